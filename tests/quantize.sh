#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `moegen quantize` on the command line: what is converted, what is refused and how, files whole or not at all. What codes are
# right is quantize_test.c's.
#   quantize.sh MOEGEN SOURCE
set -u
moegen=$(realpath -- "$1") failed=0
in=$(realpath -- "$2")/tests/vectors/Swish-PRE-nobias/in.safetensors # gate_up_proj_weight f32 [4, 64, 2, 48], ...
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
# shellcheck source=tests/tensors.inc
. "${in%/vectors/*}/tensors.inc"

# expect STATUS PATTERN WORDS...: what quantize says
expect() {
  status=$1 pattern=$2
  shift 2
  "$moegen" quantize "$@" >out 2>&1
  got=$?
  if [ $got != "$status" ] || ! grep -q -- "$pattern" out; then
    echo "FAIL quantize $*: status $got, expected $status and '$pattern':"
    cat out
    failed=1
  fi
}
check() { "$@" || { echo "FAIL: $*"; failed=1; }; }

# make FILE HEADER BYTES: a tensor file of that header, under 256 characters, and so many bytes 8.
make() {
  {
    # shellcheck disable=SC2059
    printf "\\$(printf %o ${#2})\\0\\0\\0\\0\\0\\0\\0%s" "$2"
    head -c "$3" /dev/zero | tr '\0' '\10'
  } >"$1"
}

weight='*_proj_weight' gate='gate_up_*'
expect 0 '^2 tensors to fp8_e4m3, 147 kB to 39.4 kB; 5 copied: wrote a.st$' "$in" --to fp8_e4m3 --axis 1 --only "$weight" --out a.st
expect 0 '"name": "gate_up_proj_scale", "dtype": "f32", "shape": \[4, 1, 96\]' "$in" --to fp8_e4m3 --axis 1 --only "$weight" --out b.st --json
check cmp a.st b.st
expect 0 '"name": "gate_up_proj_weight", "dtype": "f16", "shape": \[4, 64, 2, 48\]' a.st --to f16 --out b.st --json
expect 0 '"converted": 1, "copied": 7,' a.st --to f32 --only gate_up_proj_weight --out b.st --json
check grep -q '"name": "down_proj_scale"' out # of the one that stays as it is
expect 0 '^1 tensors to f32' b.st --to f32 --out c.st # which the metadata still names
expect 0 '"name": "gate_up_proj_weight", "dtype": "u8", "shape": \[4, 96, 2, 16\]' "$in" --to mxfp4 --axis 1 --only "$gate" --out b.st --json
check grep -q '"name": "gate_up_proj_scale", "dtype": "u8", "shape": \[4, 96, 2\]' out
expect 0 '"name": "gate_up_proj_scale_2", "dtype": "f32", "shape": \[4, 2\]' "$in" --to nvfp4 --axis 1 --gate-up split --only "$gate" --out b.st --json
expect 0 '"shape": \[4, 2, 1\]' "$in" --to fp8_e4m3 --axis 1 --scale static --gate-up split --only "$gate" --out b.st --json
expect 0 '^4 tensors to int8' "$in" --to int8 --out b.st # all matrices

# kernels whose matrices have rows of K read what it makes, with the same bits as the numbers that codes are
tensors mlp.st hidden_states 71,64 gate_up_weights 128,64 down_proj_weight 64,64
tensors gemm.st X 59,64 W 4,32,64
printf '\077\0\0\0\0\0\0\0%-63s\005\0\0\0\0\0\0\0\002\0\0\0\064\0\0\0' \
  '{"m_sizes":{"dtype":"I32","shape":[4],"data_offsets":[0,16]}}' >sizes.st
echo '{kernel: mlp_forward, name: k, H: 64, I_TP: 64, dtype: f32, plan: {kc: 128, along: 0}}' >mlp.yaml
echo '{kernel: grouped_gemm, name: k, op: forward, E: 4, N: 32, K: 64, dtype: f32, plan: {kc: 128, along: 0}}' >gemm.yaml
for kind in fp8_e4m3 fp8_e5m2 int8 mxfp8_e4m3 mxfp8_e5m2 mxfp4 nvfp4 int4; do
  for what in mlp gemm; do
    beside= only=W from=gemm.st
    if [ $what = mlp ]; then
      only='gate_up_weights --gate-up split' from=down.st
      expect 0 "tensors to $kind" mlp.st --to $kind --only 'down*' --out down.st
    else
      beside='--in sizes.st'
    fi
    # shellcheck disable=SC2086
    expect 0 "tensors to $kind" $from --to $kind --only $only --out codes.st
    expect 0 'to f32' codes.st --to f32 --out numbers.st
    # shellcheck disable=SC2086
    check "$moegen" run $what.yaml --set weights.dtype=$kind --in codes.st $beside --out of_codes.st -q
    # shellcheck disable=SC2086
    check "$moegen" run $what.yaml --in numbers.st $beside --out of_numbers.st -q
    [ $kind = nvfp4 ] || check cmp of_codes.st of_numbers.st # whose second scale is one factor more
    check "$moegen" check $what.yaml --set weights.dtype=$kind --threads 1 -q >out 2>&1
  done
done

# files of others: names and shapes as published
make gpt '{"x_blocks":{"dtype":"U8","shape":[2,4,3,16],"data_offsets":[0,384]},"x_scales":{"dtype":"U8","shape":[2,4,3],"data_offsets":[384,408]}}' 408
expect 0 '"name": "x", "dtype": "bf16", "shape": \[2, 4, 96\]' gpt --to bf16 --from mxfp4 --out b.st --json
check grep -q '"copied": 0' out
make deepseek '{"w.weight_scale_inv":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"w.weight":{"dtype":"F8_E4M3","shape":[130,2],"data_offsets":[8,268]}}' 268
expect 0 '"name": "w.weight", "dtype": "bf16", "shape": \[130, 2\]' deepseek --to bf16 --from fp8_e4m3 --scale block --out b.st --json
expect 2 "'w.weight' has other scales: f32 \[2, 1\], expected f32 \[1, 130\]" deepseek --to bf16 --from fp8_e4m3 --out no.st
expect 2 'no tensor has codes of the format of --from' deepseek --to bf16 --from int8 --out no.st
expect 2 "'w.weight' are no such codes: fp8_e4m3 \[130, 2\], expected u8 \[130, 2\]" deepseek --to bf16 --from int8 --only w.weight --out no.st

# metadata that nobody wrote
meta() { make odd '{"__metadata__":{"w":"'"$1"'"},"w":{"dtype":"U8","shape":[2,64],"data_offsets":[0,128]},"w_scale":{"dtype":"F32","shape":[1,2],"data_offsets":[128,136]}}' 136; }
meta 'moegen int8 scale=row group=0 axis=1 parts=whole shape=2,64'
expect 0 '^1 tensors to bf16' odd --to bf16 --out b.st
for line in 'moegen' 'int8' ''; do
  meta "$line"
  expect 2 'no tensor is of a format that the metadata names' odd --to bf16 --out no.st
done
for line in 'moegen ' 'moegen int9 scale=row group=0 axis=1 parts=whole shape=2,64' 'moegen int8 scale=block group=0 axis=1 parts=whole shape=2,64' \
  'moegen int8 scale=row group=0 axis=2 parts=whole shape=2,64' 'moegen int8 scale=row group=0 axis=1 parts=odd shape=2,64' \
  'moegen int8 scale=row group=0 axis=1 parts=whole shape=' 'moegen int8 scale=row group=0 axis=1 parts=whole shape=2,64,' \
  'moegen int8 scale=row group=0 axis=1 parts=whole shape=1,1,1,1,1,1,1,1,128' \
  'moegen int8 scale=row group=0 axis=1 parts=whole shape=4611686018427387904,4611686018427387904'; do
  meta "$line"
  expect 2 'has metadata that says nothing of a format' odd --to bf16 --out no.st
done
meta 'moegen \u001b[31m'
expect 2 'says nothing of a format: "moegen .u001b.31m"' odd --to bf16 --out no.st # no terminal obeys it
meta 'moegen int8 scale=row group=0 axis=0 parts=whole shape=2,64'
expect 2 'has other scales: f32 \[1, 2\], expected f32 \[1, 64\]' odd --to bf16 --out no.st
meta 'moegen int8 scale=row group=0 axis=1 parts=whole shape=2,65'
expect 2 'are no such codes' odd --to bf16 --out no.st
meta 'moegen int4 scale=group group=3 axis=1 parts=whole shape=2,128'
expect 2 'says nothing of a format' odd --to bf16 --out no.st
meta 'moegen int4 scale=group group=128 axis=1 parts=whole shape=2,128'
expect 0 '^1 tensors to bf16' odd --to bf16 --out b.st # scales in f32

# what is refused; no file is there afterwards
rm -f no.st
expect 2 'takes one tensor file' "$in" --to mxfp4
expect 2 'takes one tensor file' --to mxfp4 --out no.st
expect 2 'takes one tensor file' "$in" --out no.st
expect 2 "'mxfp6' is not one of fp8_e4m3, .*int4, f32, bf16, f16" "$in" --to mxfp6 --out no.st
expect 2 'cannot open' none.st --to mxfp4 --out no.st
cp "$in" in.st
expect 2 '--out: ./in.st is a file that is read' in.st --to int8 --out ./in.st
check cmp "$in" in.st
expect 2 "tensor 'gate_up_proj_weight' has no axis 4: its axes are 0 to 3" "$in" --to int8 --axis 4 --only 'gate*weight' --out no.st
expect 2 'axis 1 has 64 elements, no multiple of a group of 128: another --axis, --group 32 or a format without groups (fp8_e4m3, fp8_e5m2, int8) may do; --only' "$in" --to int4 --group 128 --axis 1 --only 'gate*weight' --out no.st
expect 2 "tensor 'token_position_to_id' is i32: only f32, bf16 and f16 become int8" "$in" --to int8 --only '*id' --out no.st
expect 2 "'token_position_to_id' is i32" "$in" --to int8 --only '*' --axis 5 --out no.st
check grep -q "'gate_up_proj_weight' has no axis 5" out # all at once
make flat '{"w":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}}' 64
expect 2 "tensor 'w' has 1 extent; a matrix is needed" flat --to int8 --only w --out no.st
expect 2 'flat: no tensor of f32, bf16 or f16 is a matrix' flat --to int8 --out no.st
make empty '{"w_weight":{"dtype":"F32","shape":[2,0],"data_offsets":[0,0]}}' 0
expect 0 '^1 tensors' empty --to fp8_e4m3 --out b.st
expect 0 '^1 tensors' empty --to mxfp4 --out b.st
expect 0 '^1 tensors' b.st --to f32 --out c.st
make clash '{"w_weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"w_scale":{"dtype":"U8","shape":[8],"data_offsets":[16,24]}}' 24
expect 2 "'w_weight' would have scales of the name 'w_scale', which is another tensor's" clash --to int8 --out no.st
make twins '{"w_weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"w":{"dtype":"F32","shape":[2,2],"data_offsets":[16,32]}}' 32
expect 2 "two tensors would have the name 'w_scale'" twins --to int8 --out no.st
expect 2 '--only nothing: .* has no tensor of such a name' "$in" --to int8 --only "$weight" --only nothing --out no.st
expect 2 '--scale: .block. is not one of those of int8: row' "$in" --to int8 --scale block --out no.st
expect 2 '--scale: .row. is not one of those of mxfp4: group' "$in" --to mxfp4 --scale row --out no.st
expect 2 '--group: 64 is not 32 or 128, the groups of int4' "$in" --to int4 --group 64 --out no.st
expect 2 '--group: 16 is not 32, the group of mxfp4' "$in" --to mxfp4 --group 16 --out no.st
expect 2 '--group: fp8_e4m3 has no groups' "$in" --to fp8_e4m3 --group 32 --out no.st
expect 2 "--scale-rule: 'narrow' is not one of ocp, wide" "$in" --to mxfp4 --scale-rule narrow --out no.st
expect 2 '--scale-rule: the scales of nvfp4 are not powers of two' "$in" --to nvfp4 --scale-rule wide --out no.st
expect 2 "--gate-up: 'both' is not one of split, interleaved" "$in" --to nvfp4 --gate-up both --out no.st
expect 2 '--threads: ' "$in" --to int8 --threads 5000 --out no.st
expect 2 '--from is for --to f32' "$in" --to int8 --from mxfp4 --out no.st
expect 2 'no tensor is of a format that the metadata names; --from FORMAT says it' "$in" --to f32 --out no.st
expect 2 'no tensor has codes of the format of --from' "$in" --to f32 --from int8 --out no.st
expect 2 "group: '0' is not a whole number >= 1" "$in" --to int4 --group 0 --out no.st
expect 2 "'gate_up_proj_weight' is of no format" "$in" --to f32 --only 'gate_up*' --out no.st
expect 2 "'gate_up_proj_weight' has no tensor of scales beside it" "$in" --to f32 --from int8 --only 'gate_up*' --out no.st
check [ ! -e no.st ]

# the disk is full: no file, whole or in part
(ulimit -f 1; "$moegen" quantize "$in" --to int8 --out full.st) >out 2>&1
check [ $? = 2 ]
check grep -q 'full.st: cannot write: File too large' out
check [ -z "$(ls | grep full)" ]

# what is said lies in no file that takes the place of a closed stream
make eights '{"w_weight":{"dtype":"F32","shape":[32,32],"data_offsets":[0,4096]}}' 4096
{ head -c $(($(stat -c %s eights) - 4096)) eights; head -c 4096 /dev/zero | tr '\0' '\377'; } >nans
expect 0 'scales are NaN' nans --to mxfp4 --out told.st
"$moegen" quantize nans --to mxfp4 --out closed.st 2>&- >/dev/null
check [ $? = 0 ]
check cmp told.st closed.st
"$moegen" quantize nans --to mxfp4 --out closed.st <&- >&- 2>&-
check [ $? = 2 ] # stdout cannot be written
check cmp told.st closed.st
[ $failed = 0 ] && echo "all right"
exit $failed
