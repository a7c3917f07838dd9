#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `moegen pack` on the command line, for each family, dtype and target: kernels take what it makes; what is refused and how; files whole
# or not at all. That bits are those of weights that are not packed is pack_test.c's.
#   pack.sh MOEGEN SOURCE
set -u
moegen=$(realpath -- "$1") failed=0
in=$(realpath -- "$2")/tests/vectors/Swish-PRE-nobias/in.safetensors # gate_up_proj_weight f32 [4, 64, 2, 48], ...
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
# shellcheck source=tests/tensors.inc
. "${in%/vectors/*}/tensors.inc"
# blocks, and slots of one
blocks=$(head -c 4000 "$in" | grep -ao '"[a-z_]*":{"dtype":"I[0-9]*","shape":\[[0-9, ]*\]' | awk -F'[][]' '
  /token_position/ { s = $2 } /block_to_expert/ { n = $2 } END { split(s, a, ","); split(n, b, ","); print b[1], a[1] / b[1] }')
block=${blocks#* } blocks=${blocks% *}
experts="E: 4, top_k: 2, block_size: $block"

# Of each family a spec and its inputs.
families='moe_forward moe_backward moe_layer grouped_gemm mlp_forward'
for family in $families; do
  own="H: 64, I_TP: 48"
  case $family in
    grouped*) own='op: forward, E: 4, N: 64, K: 48' ;;
    *_backward) own="$own, $experts, weight_grads: none, affinity: {on: intermediate}" ;;
    moe*) own="$own, $experts" ;;
  esac
  echo "{kernel: $family, name: k, $own, dtype: f32, weights: {layout: packed}}" >$family.yaml
done
cp "$in" moe_forward.st
cp "$in" moe_backward.st
# what they take beside
tensors beside_moe_backward.st gate_up_proj_act_checkpoint_T $blocks,2,48,$block output_hidden_states_grad 71,64
printf '\077\0\0\0\0\0\0\0%-63s\005\0\0\0\0\0\0\0\002\0\0\0\064\0\0\0' \
  '{"m_sizes":{"dtype":"I32","shape":[4],"data_offsets":[0,16]}}' >beside_grouped_gemm.st
tensors grouped_gemm.st X 59,48 W 4,64,48
tensors moe_layer.st hidden_states 71,64 router_weight 64,4 gate_up_proj_weight 4,64,2,48 down_proj_weight 4,48,64
tensors mlp_forward.st hidden_states 71,64 gate_up_weights 96,64 down_proj_weight 64,48

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

for family in $families; do
  pairs=0 beside= count=2
  [ -e beside_$family.st ] && beside="--in beside_$family.st"
  [ $family = grouped_gemm ] && count=1
  for dtype in f32 bf16 f16; do
    for target in $("$moegen" list targets | awk '{ print $1 }'); do
      set -- --set dtype=$dtype --target "$target"
      "$moegen" explain $family.yaml "$@" >/dev/null 2>&1 || continue
      expect 0 "^packed $count of " pack $family.yaml --in $family.st --out p.st "$@"
      "$moegen" run $family.yaml --in p.st $beside --out a.st -q "$@" 2>err
      case $? in
        0) ;;
        3) continue ;; # not on this CPU
        *) echo "FAIL run $family $*: $(cat err)"; failed=1; continue ;;
      esac
      expect 0 "^packed $count of " pack $family.yaml --in $family.st --out q.st --threads 3 "$@" --set weights.layout=plain
      check cmp p.st q.st
      pairs=$((pairs + 1))
    done
  done
  [ $pairs -ge 6 ] || { echo "FAIL: only $pairs targets ran $family"; failed=1; }
  expect 0 packed pack $family.yaml --in $family.st --out p.st --target scalar
  expect 2 'weights are not those of this plan; `moegen pack SPEC --in W.safetensors --out P.safetensors` makes' \
    run $family.yaml --in p.st $beside --out no.st --target avx512 --spelling scalar
  expect 2 'expected f32 \[.*[0-9]\]: `moegen pack SPEC' run $family.yaml --in $family.st $beside --out no.st
done

# what is refused
expect 0 packed pack moe_forward.yaml --in "$in" --out p.st --target scalar
expect 0 '^{"packed": [12], "tensors": [0-9]*, "target": "scalar"}$' pack moe_forward.yaml --in "$in" --out p.st --target scalar --json
expect 2 '^error: .* has no weights to pack' pack "${in%/vectors/*}/kernels/moe_index.yaml:plain" --in "$in" --out no.st
cp "$in" again.st
expect 2 "is in two files: $in and again.st" pack moe_forward.yaml --in "$in" --in again.st --out no.st --target scalar
expect 2 "layout 'transposed' is not plain" pack mlp_forward.yaml --in mlp_forward.st --out no.st --from transposed
expect 2 'f32 \[96, 64\], expected f32 \[32, 64\], plain' pack mlp_forward.yaml --in mlp_forward.st --out no.st --set I_TP=16
expect 2 'f32 \[4, [0-9]*\], expected f32 \[4, [0-9]*\]: `moegen pack SPEC' run moe_backward.yaml --in p.st --in beside_moe_backward.st --out no.st
expect 0 packed pack moe_backward.yaml --in "$in" --out q.st --target scalar
expect 2 'f32 \[4, [0-9]*\], expected f32 \[4, [0-9]*\]: `moegen pack SPEC' run moe_forward.yaml --in q.st --out no.st
expect 2 'packed is of the product of op = forward' pack grouped_gemm.yaml --in grouped_gemm.st --out no.st --set op=dX
expect 2 "layout 'transposed' is not plain" pack grouped_gemm.yaml --in grouped_gemm.st --out no.st --from transposed
expect 2 'f32 \[4, 64, 48\], expected f32 \[4, 60, 48\], plain' pack grouped_gemm.yaml --in grouped_gemm.st --out no.st --set N=60
expect 2 'it needs weight_grads = none' pack moe_layer.yaml --in moe_layer.st --out no.st --set op=backward
expect 2 'recompute (--set) multiplies the same weights forward' pack moe_backward.yaml --in "$in" --out no.st --set checkpoint=recompute
expect 2 'it needs weight_grads = none' pack moe_backward.yaml --in "$in" --out no.st --set weight_grads=all
expect 0 '^packed 2 of 4' pack moe_layer.yaml --in moe_layer.st --out q.st --set op=backward --set weight_grads=none
expect 2 'packed is of numbers that products read as they are' pack mlp_forward.yaml --in mlp_forward.st --out no.st --set quantize=mxfp8_e4m3
expect 2 "f32 \[4, 64, 2, 48\], expected f32 \[4, [0-9]*\]: \`moegen pack SPEC" run moe_forward.yaml --in "$in" --out no.st
expect 2 'f32 \[4, [0-9]*\], expected f32 \[4, 96, 64\], transposed' pack moe_forward.yaml --in p.st --out no.st --from transposed
expect 2 "layout 'nki' is not one of plain, transposed" pack moe_forward.yaml --in "$in" --out no.st --from nki
expect 2 'pack takes --in FILE and --out FILE' pack moe_forward.yaml --in "$in"
expect 2 'cannot open' pack moe_forward.yaml --in nothing.st --out no.st
expect 2 'packed is of numbers' pack moe_forward.yaml --in "$in" --out no.st --set weights.dtype=int8
head -c 30000 p.st >cut.st
expect 2 'cut.st' run moe_forward.yaml --in cut.st --out no.st
expect 2 'cut.st' pack moe_forward.yaml --in cut.st --out no.st
check [ ! -e no.st ]
expect 2 '' pack moe_forward.yaml --in "$in" --out nowhere/no.st
check [ -z "$(find . -name '*no.st*')" ]

# gate and up of one MLP: a tensor each, or rows in turn, which are not those of a plan that has one after the other
tensors apart.st hidden_states 71,64 gate_proj_weight 48,64 up_proj_weight 48,64 down_proj_weight 64,48
expect 0 '^packed 3 of 4' pack mlp_forward.yaml --in apart.st --out q.st --set weights.gate_up=separate
expect 0 '' run mlp_forward.yaml --in q.st --out a.st --set weights.gate_up=separate
expect 0 '^packed 2 of 3' pack mlp_forward.yaml --in mlp_forward.st --out q.st --set weights.gate_up_order=interleaved
expect 0 '' run mlp_forward.yaml --in q.st --out a.st --set weights.gate_up_order=interleaved
expect 2 'weights are not those of this plan' run mlp_forward.yaml --in q.st --out no.st

# of two files; the disk is full: no file, or the one that was there
tensors first.st gate_up_proj_weight 4,64,2,48
tensors second.st down_proj_weight 4,48,64
expect 0 packed pack moe_forward.yaml --in first.st --in second.st --out p.st
expect 0 'packed 2 of 2' pack moe_forward.yaml --in second.st --in first.st --out q.st
check [ "$(wc -c <p.st)" = "$(wc -c <q.st)" ]
(ulimit -f 60; "$moegen" pack moe_forward.yaml --in first.st --in second.st --out full.st) >out 2>&1
check [ $? = 2 ]
check grep -q 'full.st: cannot write: File too large' out
check [ -z "$(ls | grep full)" ]
expect 2 "second.st: tensor 'gate_up_proj_weight' is missing" pack moe_forward.yaml --in second.st --out p.st --from plain
(ulimit -f 60; "$moegen" pack moe_forward.yaml --in first.st --in second.st --out p.st) >out 2>&1
check [ $? = 2 ]
cp q.st before.st
(ulimit -f 60; "$moegen" pack moe_forward.yaml --in second.st --in first.st --out q.st) >out 2>&1
check cmp q.st before.st
check [ -z "$(ls | grep tmp)" ]
exit $failed
