#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `moegen bench` reports: the machine's limits for one thread and for all at once, shares of them that agree with the
# numbers beside them, and a plot whose parts are all there and inside the picture.
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
lua5.4 "$source/tests/bench.lua" r.txt r.json r.svg none.svg
