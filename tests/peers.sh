#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tests/peers/run on a layer of a few numbers: moegen against numpy, and peers made up here that are wrong, crash, hang, or are not there.
#   peers.sh MOEGEN SOURCE
set -u
moegen=$(realpath -- "$1") root=$(realpath -- "$2") failed=0
for python in python3 /usr/bin/python3 none; do
  ! "$python" -c 'import numpy' 2>/dev/null || break
done
[ "$python" != none ] || { echo "no python3 with numpy"; exit 77; }
MOEGEN=$moegen
MOEGEN_LIBRARY=$(dirname -- "$moegen")/libmoegen.so
[ -e "$MOEGEN_LIBRARY" ] || { echo "no libmoegen.so"; exit 77; }
export MOEGEN MOEGEN_LIBRARY
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
printf 'H: 64\nI_TP: 48\nE: 4\ntop_k: 2\nT: 37\n' >tiny.yaml

# peer NAME BODY: rows of the answer are what BODY makes of them
peer() {
  cat >"peer_$1.py" <<END
import os, signal, time
import numpy as np
from peer_numpy import Numpy
from worker import Missing, serve
class Peer(Numpy):
    name = "$1"
$2
serve(Peer)
END
}
peer wrong '    def rows(self, name, rows): return 1.5 * super().rows(name, rows)'
peer nan '    def rows(self, name, rows): return super().rows(name, rows) * np.nan'
peer crash '    def run(self, what): os.kill(os.getpid(), signal.SIGSEGV)'
peer late '    def run(self, what):
        self.runs = getattr(self, "runs", 0) + 1
        time.sleep(100 if self.runs > 3 else 0)
        super().run(what)'
peer raises '    def run(self, what): raise ValueError("no such product")'
peer absent '    def __init__(self, p, threads): raise Missing("no such library")'
echo 'print("hello")' >peer_chatty.py

# Peers in C: one of a header that is not there, one that is no C, one that says no, and one whose answers are wrong.
native() {
  printf '#include <stddef.h>\n#include "layer.h"\n%s\n' "$2" >"$1.c"
  cat >"peer_$1.py" <<END
from native import Native
from worker import serve
class Peer(Native):
    name, install, products, source = "$1", "what installs $1", ("forward",), "$tmp/$1.c"
serve(Peer)
END
}
calls='const char *peer_version(void) { return "1"; }
const char *peer_open(const struct layer *l) { return l->E == 4 && l->first[4] == l->pairs ? NULL : "no layer"; }
const char *peer_run(int backward) { return'
native headless '#include <no_such_library.h>'
native garbled 'this is no C'
native refuses "$calls backward ? NULL : \"not today\"; }"
native zeros "$calls backward ? \"no\" : NULL; }"

run() { timeout 120 "$python" "$root/tests/peers/run" --layers tiny.yaml --budget 0 --seconds 0.01 "$@" >out 2>err; }
say() { echo "FAIL $*"; cat out err; failed=1; }
has() { grep -q -e "$1" "$2" || say "$2 lacks /$1/"; }
lacks() { ! grep -q -e "$1" "$2" || say "$2 has /$1/"; }

for dtype in bf16 f32; do
  run --peers moegen,numpy --dtype $dtype --json all.json || say "exit status $?"
  has "^| tiny_forward $dtype | 37 | 1 | moegen .* ms | " out
  has "^| tiny_forward $dtype | 37 | 1 | numpy .* ms | .* ([0-9.]*\.\.[0-9.]*) |" out
  has "^| tiny_backward $dtype | 37 | 1 | moegen " out
  lacks "tiny_backward .* numpy" out
  has '"samples_s"' all.json
done
"$moegen" compare all.json all.json -q >out 2>err && grep -q 'peer=numpy.* same$' out || say "compare does not read it"

run --peers "moegen,peer_wrong.py,peer_nan.py,peer_crash.py,peer_late.py,peer_raises.py,peer_absent.py,peer_chatty.py" \
  --products forward --patience 3 --md all.md --plot all.html || say "exit status $?"
has '^note: wrong, forward, is not timed: its answers are wrong: output by 5.0e-01$' err
has '^note: nan, forward, is not timed: its answers are wrong: output by inf$' err
has '^note: crash, forward, is not timed: ended with signal 11' err
has '^note: late, forward, round 1: no answer in 3 s$' err
has '^note: raises, forward, is not timed: ValueError: no such product$' err
has '^note: absent is left out: no such library (apt-get install python3-numpy)$' err
has '^note: chatty failed: what it answers is no JSON$' err
has '^| tiny_forward bf16 | 37 | 1 | moegen ' all.md
[ "$(grep -c '^| tiny' all.md)" = 1 ] || say "all.md has other rows"
has '</html>' all.html
[ -z "$(ls -- *.part 2>/dev/null)" ] || say "parts of files are left"

CPATH=$root/tests/peers
export CPATH
run --peers "moegen,peer_headless.py,peer_garbled.py,peer_refuses.py,peer_zeros.py" --products forward || say "exit status $?"
has '^note: headless is left out: no_such_library.h: No such file or directory (what installs headless)$' err
has '^note: garbled failed: RuntimeError: garbled.c cannot be built: .*garbled.c:3' err
has '^note: refuses, forward, is not timed: RuntimeError: not today$' err
has '^note: zeros, forward, is not timed: its answers are wrong: output by 1.0e+00$' err
has '^| tiny_forward bf16 | 37 | 1 | moegen ' out
CC=none run --peers peer_zeros.py --products forward && say "without a compiler"
has '^note: zeros is left out: no CC' err
# Libraries that are here are right, and others are said with what installs them.
for dtype in bf16 f32; do
  run --peers moegen,onednn,libxsmm --dtype $dtype --threads 2 || say "exit status $?"
  for row in onednn_forward onednn_backward libxsmm_forward; do
    grep -q "^| tiny_${row#*_} $dtype .* | ${row%_*} " out || has "^note: ${row%_*} is left out: .* (apt-get install " err
  done
done

run --peers peer_wrong.py --products forward && say "nothing was timed, and that is no failure"
run --peers frogs; [ $? = 2 ] || say "there is no peer frogs"
has 'there is no peer .*frogs' err
run --products sideways; [ $? = 2 ] || say "there is no product sideways"
timeout 60 "$python" "$root/tests/peers/run" --layers frogs >out 2>err; [ $? = 2 ] || say "there is no layer frogs"
has "frogs is neither a layer" err
exit $failed
