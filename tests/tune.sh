#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tuned plans: which kernels take one and which do not, and files that are stale, hostile or not there; and `moegen tune`, whatever
# it finds here: that it ends, also when it is told to, and leaves a valid file or none.
#   tune.sh MOEGEN SOURCE
set -u
moegen=$(realpath -- "$1") failed=0
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
MOEGEN_TUNED=$tmp/t.yaml MOEGEN_CACHE_DIR=$tmp/cache
export MOEGEN_TUNED MOEGEN_CACHE_DIR

cat >toy.yaml <<'END'
name: toy
dtype: f32
H: 64
I_TP: 32
E: 4
top_k: 2
kernels:
  forward: {kernel: moe_forward, block_size: 16}
  fixed: {kernel: moe_forward, block_size: 16, T: 64}
  layer: {kernel: moe_layer, op: forward, block_size: 16}
  backward: {kernel: moe_backward, block_size: 16}
END
printf 'cpu: none\nplans: []\n' >t.yaml
cpu=$("$moegen" explain toy.yaml:forward | sed -n 's/^note: .*this one is \(.*\)/\1/p')
[ -n "$cpu" ] || { echo "FAIL: no note on another CPU's plans"; exit 1; }

shape='kernel: moe_forward, dtype: f32, H: 64, I_TP: 32, E: 4, top_k: 2, block_size: 16'
measured='{ratio: 1.25, low: 1.2, high: 1.3, pairs: 8, moegen: 0123456789ab}'
# entry TOKENS THREADS PLAN [SHAPE]
entry() {
  printf '  - spec: {%s}\n    tokens: %s\n    threads: %s\n    target: scalar\n    plan: %s\n    measured: %s\n' \
    "${4:-$shape}" "$1" "$2" "$3" "$measured"
}
file() { printf 'cpu: %s\nplans:\n' "$cpu"; }

# says PATTERN ARG...: `explain` has such a line; not PATTERN ARG...: it has none
says() {
  pattern=$1
  shift
  "$moegen" explain --target scalar "$@" >out 2>&1 && grep -q -e "$pattern" out || {
    echo "FAIL explain $*: no /$pattern/ in"; grep -e note -e tuned out; failed=1; }
}
not() {
  pattern=$1
  shift
  { "$moegen" explain --target scalar "$@" >out 2>&1 && ! grep -q -e "$pattern" out; } || {
    echo "FAIL explain $*: /$pattern/ in"; grep -e note -e tuned out; failed=1; }
}

# ---- which one ----

{ file; entry '[1, 1024]' 2 '{tile_rows: 3}'; entry '[64, 64]' 2 '{tile_rows: 2}'
  entry '[1, 1024]' 8 '{tile_rows: 1}'
  entry '[1, 1024]' 2 '{experts: {tile_rows: 3}}' "kernel: moe_layer, op: forward, ${shape#*, }"; } >t.yaml
says 't.yaml:3: 1.250 times as fast' toy.yaml:forward --threads 2
says '^  tile_rows  *3 *tuned' toy.yaml:forward --threads 2
says '^  tile_rows  *3 *tuned' toy.yaml:forward --threads 1 --set name=other
says '^  tile_rows  *1 *tuned' toy.yaml:forward --threads 6
not tuned toy.yaml:forward --threads 32
says '^  tile_rows  *2 *tuned' toy.yaml:fixed --threads 2            # the nearest range
says '^  tile_rows  *2 *tuned' toy.yaml:forward --threads 2 --set plan.tokens=64
says '^  tile_rows  *3 *tuned' toy.yaml:forward --threads 2 --set plan.tokens=1
not tuned toy.yaml:forward --threads 2 --set plan.tokens=100000      # too far off
says '^  tile_rows  *4 *given' toy.yaml:forward --threads 2 --set plan.tile_rows=4
says '^  tile_rows  *3 *tuned' toy.yaml:forward --threads 2 --set plan.direct_k=16
says '^  tile_rows  *3 *tuned' toy.yaml:layer --threads 2            # a part's
not tuned toy.yaml:forward --threads 2 --set plan.tuned=false
not tuned toy.yaml:forward --threads 2 --set H=128
not tuned toy.yaml:forward --threads 2 --set gated=false
not tuned toy.yaml:forward --threads 2 --set dtype=bf16
says '^  tile_rows  *3 *tuned' toy.yaml:forward --threads 2 --set gated=true   # as by default
MOEGEN_TUNED='' not tuned toy.yaml:forward --threads 2

# ---- what is made of it ----

check() { "$@" || { echo "FAIL: $*"; failed=1; }; }
check "$moegen" check -q toy.yaml --target scalar --threads 2 >/dev/null
"$moegen" gen toy.yaml:forward --target scalar -o - >with
MOEGEN_TUNED='' "$moegen" gen toy.yaml:forward --target scalar -o - >without
check cmp with without # files are the same whatever was tuned here
"$moegen" gen toy.yaml:forward --target scalar --threads 2 --set plan.tuned=t.yaml -o - >with
check grep -q 'tile_rows *= 3 *(tuned)' with
"$moegen" gen toy.yaml:forward --target scalar --threads 2 --set plan.tile_rows=3 -o - >given
for f in with given; do sed '1,/\*\//d' $f >$f.c; done
check cmp with.c given.c

# A kernel of the disk cache is that of the plan.
entries() { "$moegen" cache list --json | grep -c '"key"'; }
run() { "$moegen" check -q toy.yaml:forward --target scalar --T 3 "$@" >/dev/null || { echo "FAIL: check $*"; failed=1; }; }
"$moegen" cache clear >/dev/null
run
one=$(entries)
run
check [ "$(entries)" = "$one" ]
sed 's/{tile_rows: 3}/{tile_rows: 2}/' t.yaml >u && mv u t.yaml
run
check [ "$(entries)" -gt "$one" ]

# ---- wrong ones: a note with its place, and the plan is as it would be ----

# wrong PATTERN [SEDSCRIPT]: of a file made by entry, changed
wrong() {
  sed "$2" good.yaml >t.yaml
  says "^note: .*$1" toy.yaml:forward --threads 2
  not '(tuned\|  tuned$' toy.yaml:forward --threads 2
  check "$moegen" check -q toy.yaml:forward --target scalar --T 3 --threads 2 >/dev/null
  "$moegen" gen toy.yaml:forward --target scalar --threads 2 --set plan.tuned=t.yaml -o - >out 2>err
  check [ $? = 2 ]
  check [ ! -s out ]
  grep -q "t.yaml:.*error: .*" err || { echo "FAIL: no place:"; cat err; failed=1; }
}
{ file; entry '[1, 1024]' 2 '{tile_rows: 3}'; } >good.yaml
wrong 't.yaml:3:11: this tuned plan is left out: .*tyle_rows' 's/tile_rows/tyle_rows/'
wrong "t.yaml:3:11: .*plan.tile_rows: 'x' is not an integer" 's/tile_rows: 3/tile_rows: x/'
wrong 't.yaml:3:11: .*65 is not in 1..64' 's/tile_rows: 3/tile_rows: 65/'
wrong 't.yaml:3:11: .*does not use' 's/tile_rows: 3/few_rows: 3/'
wrong 't.yaml:7:11: plans.1.plan: this is not a map' 's/{tile_rows: 3}/[1, 2]/'
wrong 't.yaml:5:14: plans.1.threads: 100000000000 is not in' 's/threads: 2/threads: 100000000000/'
wrong 't.yaml:4:13: plans.1.tokens: a list of 1' 's/\[1, 1024\]/[1]/'
wrong 't.yaml:4:13: tokens: 9 is more than 1' 's/\[1, 1024\]/[9, 1]/'
wrong 't.yaml:8:23: plans.1.measured.ratio: .\.nan. is not' 's/1.25/.nan/'
wrong 't.yaml:3:5: key .plans.1.tokens. .*is missing' '/tokens/d'
wrong 't.yaml:6:13: plans.1.target: .* is not a name' 's/scalar/"a\\nb; rm -rf"/'
wrong 't.yaml:3:11: .*is not an integer' 's/tile_rows: 3/tile_rows: "3; system(0)"/'
wrong 't.yaml:3:11: .*does not fit 64 bits' 's/tile_rows: 3/tile_rows: 99999999999999999999/'
wrong 't.yaml:4:17: plans.1.tokens.2: -5 is not in' 's/1024\]/-5]/'
wrong 't.yaml:1:6: these plans are for CPU other' 's/^cpu: .*/cpu: other/'
wrong 't.yaml:.*anchor' 's/scalar/\&x scalar/'
wrong 't.yaml:1:1: tuned plans are a map' 's/^cpu.*/- x/;2,$d'
wrong 't.yaml:3:.* list is not closed\|t.yaml:4:.*' 's/1024\]/1024/'
wrong "t.yaml:.*unknown key 'os'" 's/cpu:/os: x\ncpu:/'
wrong "t.yaml:3:.*unknown key 'hidden'" 's/H: 64/H: 64, hidden: 1/'
head -c 300000 /dev/zero | tr '\0' ' ' >t.yaml
says 'note: .*the limit is 262144' toy.yaml:forward
head -c 3000 /dev/urandom >t.yaml
check "$moegen" check -q toy.yaml:forward --target scalar --T 3 >/dev/null
rm t.yaml
check "$moegen" check -q toy.yaml:forward --target scalar --T 3 >/dev/null
mkdir folder
for path in folder none.yaml; do # named, and not read: not only -v says so
  MOEGEN_TUNED=$path says "^$path: tuned plans cannot be read: " toy.yaml:forward
  MOEGEN_TUNED=$path "$moegen" check -q toy.yaml:forward --target scalar --T 3 >/dev/null 2>err
  check [ ! -s err ]
done
"$moegen" gen toy.yaml:forward --set plan.tuned=none.yaml -o - 2>err >out
check [ $? = 2 ]
check grep -q 'plan.tuned: cannot read none.yaml' err
sed 's/^name: toy/&\nplan: {tuned: good.yaml}/' toy.yaml >names.yaml # files are named by overrides only
"$moegen" explain names.yaml:forward 2>err >out
check [ $? = 2 ]
check grep -q 'names.yaml:2:15: .*a spec says true or false' err
sed 's/^name: toy/&\nplan: {tuned: false}/' toy.yaml >names.yaml
cp good.yaml t.yaml
not tuned names.yaml:forward --threads 2

# ---- the search ----

MOEGEN_TUNED='' && export MOEGEN_TUNED
sound() { # a file of plans, or none
  [ ! -e "$1" ] || check "$moegen" explain toy.yaml:forward --target scalar --threads 1 --set "plan.tuned=$1" >/dev/null
}
fast="--target scalar --threads 1 --budget 0.3s"
check "$moegen" tune toy.yaml $fast -o a.yaml --plot a.svg --T 3 --set T=3 -q >out
check grep -q '^toy_forward  *3  *1 ' out
check grep -q '^toy_backward  *3  *1 ' out
check grep -q '</svg>' a.svg
sound a.yaml
check "$moegen" tune toy.yaml:forward --target scalar --budget 0.3s --threads 1,1 --T 3,5,3 -o a.yaml --json >out # each once
check [ "$(grep -c '"T": \[3,5\], "threads": 1' out)" = 1 ]
check "$moegen" tune toy.yaml:fixed $fast -o a.yaml --json >out
check grep -q '"T": \[64\], "threads": 1, "plan": "' out
sound a.yaml
for wrong in '--T 0' '--T 1,x' '--threads 0' '--budget x' '--budget 5m' '--T 1,2,3,4,5,6,7,8,9'; do
  # shellcheck disable=SC2086
  "$moegen" tune toy.yaml $wrong >out 2>err
  check [ $? = 2 ]
  check grep -q -e "${wrong%% *}: " err
done
"$moegen" tune toy.yaml:fixed --T 3 >out 2>err
check [ $? = 2 ]
check grep -q 'its spec fixes T at 64' err
"$moegen" tune - <toy.yaml >out 2>err
check [ $? = 2 ]

# A place for what is found is looked for before the search, which is long.
echo 'not a plan' >wrong.yaml
for place in '-o none/t.yaml' '-o .' '-o wrong.yaml' '-o p.yaml --plot none/t.svg' '-o p.yaml --json=none/t.json'; do
  # shellcheck disable=SC2086
  timeout 60 "$moegen" tune toy.yaml:forward --budget 1000s $place >out 2>err
  check [ $? = 2 ]
  check grep -q 'cannot write \(none/t\|\.: \)\|^wrong.yaml:1:1: error: ' err
done
check [ "$(cat wrong.yaml)" = 'not a plan' ]

# Interrupted, killed, and two at once.
long="--target scalar --threads 1 --budget 100s --T 3 -q"
interrupt() { # SIGNAL FILE
  timeout -k 60 -s "$1" 1 "$moegen" tune toy.yaml:forward $long -o "$2" >out 2>err
}
interrupt INT b.yaml
sound b.yaml
check grep -q '^toy_forward' out
interrupt KILL c.yaml
sound c.yaml
"$moegen" tune toy.yaml:forward $fast -o d.yaml -q >/dev/null 2>one &
"$moegen" tune toy.yaml:layer $fast -o d.yaml -q >/dev/null 2>two
wait
check [ -z "$(cat one two)" ]
sound d.yaml
# shellcheck disable=SC2144
[ ! -e ./*.tmp ] || { echo "FAIL: temporary files are left"; failed=1; }
exit $failed
