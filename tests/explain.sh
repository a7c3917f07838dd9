#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `moegen explain` says multiplies in each product, against the tiles and instructions of the C that is generated, of every fourth
# case of tests/kernels.
#   explain.sh MOEGEN SOURCE
set -u
moegen=$(realpath -- "$1") source=$(realpath -- "$2") failed=0
command -v lua5.4 >/dev/null || { echo "no lua5.4"; exit 77; }
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1

# compare FAMILY TARGET DTYPE
compare() {
  echo "$*"
  awk '/^  [A-Za-z_0-9]*: *\{/ && n++ % 4 {next} {print}' "$source/tests/kernels/$1.yaml" >"$1.yaml"
  "$moegen" gen "$1.yaml" --target "$2" --spelling intrinsics --set "dtype=$3" -o "$*" >/dev/null &&
    "$moegen" explain "$1.yaml" --target "$2" --spelling scalar --set "dtype=$3" >explained &&
    lua5.4 "$source/tests/explain.lua" explained "$*" || failed=1
}

for family in moe_forward moe_backward grouped_gemm mlp_forward mlp_backward; do
  compare $family amx bf16
done
compare grouped_gemm avx512_bf16 bf16
compare moe_forward avx2 bf16
compare mlp_backward avx512_bf16 f16
compare grouped_gemm avx2 f32
exit $failed
