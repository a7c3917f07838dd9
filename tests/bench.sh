#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `moegen bench` reports: the machine's limits for one thread and for all at once, shares of them that agree with the
# numbers beside them, and a plot whose parts are all there and inside the picture; of products on tiles, which are emulated where
# the CPU has none, also what time they took in each state.
#   bench.sh MOEGEN SOURCE
set -u
moegen=$(realpath -- "$1") source=$(realpath -- "$2")
command -v lua5.4 >/dev/null || { echo "no lua5.4"; exit 77; }
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
"$moegen" bench "$source/tests/host/toy.yaml:forward" --T 9 --runs 1 --vary threads=1,3 --vary spelling=scalar,auto \
  --json r.json --plot r.svg >r.txt || exit 1
"$moegen" bench "$source/tests/kernels/moe_index.yaml:plain" --T 9 --runs 1 --plot none.svg >/dev/null || exit 1
"$moegen" bench "$source/tests/host/toy.yaml:forward" --target amx --set dtype=bf16 --set weights.layout=transposed --T 3 --runs 2 \
  --vary plan.product=tiles,dot --vary threads=1,2 --json t.json >t.txt || exit 1
lua5.4 "$source/tests/bench.lua" r.txt r.json r.svg none.svg t.txt t.json
