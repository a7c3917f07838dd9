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
# Results into a pipe, through a link, and nowhere, which is told before anything is measured.
short() { timeout 60 "$moegen" bench "$source/tests/host/toy.yaml:forward" --target scalar --T 3 "$@"; }
mkfifo pipe && : >end.json && ln -s end.json link.json || exit 1
cat pipe >piped &
short --runs 1 -q --json pipe >/dev/null || { kill $!; exit 1; }
wait
[ -p pipe ] && grep -q '"results"' piped || { echo "FAIL: nothing came through the pipe, or it is gone"; exit 1; }
short --runs 1 -q --json link.json >/dev/null && [ -h link.json ] && grep -q '"results"' end.json || { echo "FAIL: a link"; exit 1; }
for where in '--json none/r.json' '--plot none/r.svg'; do
  # shellcheck disable=SC2086
  short --runs 100000000 --seconds 1000 $where >out 2>err
  [ $? = 2 ] && grep -q 'cannot write none/r' err || { echo "FAIL: $where"; cat out err; exit 1; }
done
lua5.4 "$source/tests/bench.lua" r.txt r.json r.svg none.svg t.txt t.json
