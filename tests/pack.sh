#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `moegen pack` on the command line, for each dtype and target: kernels take what it makes; what is refused and how; files whole or not at
# all. That bits are those of transposed weights is pack_test.c's.
#   pack.sh MOEGEN SOURCE
set -u
moegen=$(realpath -- "$1") failed=0
in=$(realpath -- "$2")/tests/vectors/Swish-PRE-nobias/in.safetensors # gate_up_proj_weight f32 [4, 64, 2, 48], ...
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
cat >s.yaml <<'X'
{kernel: moe_forward, name: k, E: 4, top_k: 2, block_size: BLOCK, dtype: f32, H: 64, I_TP: 48, weights: {layout: packed}}
X
# slots / blocks
block=$(head -c 4000 "$in" | grep -ao '"[a-z_]*":{"dtype":"I[0-9]*","shape":\[[0-9, ]*\]' | awk -F'[][]' '
  /token_position/ { s = $2 } /block_to_expert/ { n = $2 } END { split(s, a, ","); split(n, b, ","); print a[1] / b[1] }')
sed -i "s/BLOCK/$block/" s.yaml

# expect STATUS PATTERN WORDS...: what moegen says
expect() {
  status=$1 pattern=$2
  shift 2
  "$moegen" "$@" >out 2>&1
  got=$?
  if [ $got != "$status" ] || ! grep -q -- "$pattern" out; then
    echo "FAIL $*: status $got, expected $status and '$pattern':"
    cat out
    failed=1
  fi
}
check() { "$@" || { echo "FAIL: $*"; failed=1; }; }

pairs=0
for dtype in f32 bf16 f16; do
  for target in $("$moegen" list targets | awk '{ print $1 }'); do
    set -- --set dtype=$dtype --target "$target"
    "$moegen" explain s.yaml "$@" >/dev/null 2>&1 || continue
    expect 0 '^packed 2 of ' pack s.yaml --in "$in" --out p.st "$@"
    "$moegen" run s.yaml --in p.st --out a.st -q "$@" 2>err
    case $? in
      0) ;;
      3) continue ;; # not on this CPU
      *) echo "FAIL run $*: $(cat err)"; failed=1; continue ;;
    esac
    expect 0 '^packed 2 of ' pack s.yaml --in "$in" --out q.st --threads 3 "$@" --set weights.layout=plain
    check cmp p.st q.st
    pairs=$((pairs + 1))
  done
done
[ $pairs -ge 6 ] || { echo "FAIL: only $pairs targets ran"; failed=1; }

# what is refused
expect 0 packed pack s.yaml --in "$in" --out p.st --target scalar
expect 2 'weights are not those of this plan; `moegen pack SPEC --in W.safetensors --out P.safetensors` makes' \
  run s.yaml --in p.st --out no.st --target avx512 --spelling scalar
expect 2 "f32 \[4, 64, 2, 48\], expected f32 \[4, [0-9]*\]: \`moegen pack SPEC" run s.yaml --in "$in" --out no.st
expect 2 'f32 \[4, [0-9]*\], expected f32 \[4, 96, 64\], transposed' pack s.yaml --in p.st --out no.st --from transposed
expect 2 "layout 'nki' is not one of plain, transposed" pack s.yaml --in "$in" --out no.st --from nki
expect 2 'pack takes --in FILE and --out FILE' pack s.yaml --in "$in"
expect 2 'cannot open' pack s.yaml --in nothing.st --out no.st
expect 2 'packed is of numbers' pack s.yaml --in "$in" --out no.st --set weights.dtype=int8
head -c 30000 p.st >cut.st
expect 2 'cut.st' run s.yaml --in cut.st --out no.st
expect 2 'cut.st' pack s.yaml --in cut.st --out no.st
check [ ! -e no.st ]
expect 2 '' pack s.yaml --in "$in" --out nowhere/no.st
check [ -z "$(find . -name '*no.st*')" ]
exit $failed
