#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `moegen report`: one page with the tables and pictures of a directory's results, which needs no other file; what is not one of its
# files, and files that are refused.
#   report.sh MOEGEN SOURCE
set -u
command -v lua5.4 >/dev/null || { echo "no lua5.4"; exit 77; }
moegen=$(realpath -- "$1") root=$(realpath -- "$2") failed=0
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
spec=$root/tests/host/toy.yaml:forward

# expect STATUS PATTERN ARG...: exit status, and a line of stdout or stderr that matches
expect() {
  want=$1 pattern=$2
  shift 2
  timeout 60 "$moegen" "$@" >out 2>err
  got=$?
  if [ $got != "$want" ] || ! cat out err | grep -q -e "$pattern"; then
    echo "FAIL moegen $*: exit status $got, expected $want and /$pattern/; it said:"
    head -c 2000 out
    head -c 2000 err
    failed=1
  fi
}
check() { "$@" || { echo "FAIL: $*"; failed=1; }; }

mkdir r none
expect 0 . bench "$spec" --T 9 --runs 1 --vary threads=1,3 --vary spelling=scalar,auto --json 'r/a<b>&.json'
expect 0 . compare "$spec" --vary spelling=bytes,scalar --target avx2 --T 4 --runs 6 --seconds 0.001 --threads 1 --json=r/c.json
expect 0 . bench "$root/tests/kernels/moe_index.yaml:plain" --T 9 --runs 1 --json r/none.json
expect 0 . bench "$spec" --latency --target scalar --json r/latency.json
echo '{"name": "another program"}' >r/other.json
echo 'no JSON' >r/.hidden.json
expect 0 'other.json is neither' report r
expect 0 'wrote r/report.html' report r
check cp r/report.html first.html
expect 0 'wrote again.html' report r -o again.html
check cmp first.html again.html
cp r/c.json kept.json
expect 2 '-[-]out: r/c.json is a file that is read' report r -o r/c.json
ln -s r/c.json link.html
expect 2 '-[-]out: link.html is a file that is read' report r/ -o link.html
check cmp kept.json r/c.json
expect 0 '^<!DOCTYPE html>' report r -o -
check cmp first.html out
check grep -q '<h2>a&#60;b&#62;&#38;.json</h2>' first.html
check [ "$(grep -c '<h2>' first.html) $(grep -c '<table>' first.html) $(grep -c '^<svg ' first.html)" = '4 4 4' ]
check [ "$(grep -c '<td>threads=3 spelling=scalar</td>' first.html)" = 1 ]
check grep -q '<td>slower</td>\|<td>noisy' first.html
# Nothing is fetched from anywhere.
check sh -c '! grep -v "^<svg xmlns=" first.html | grep -i "http\|src=\|href\|@import\|url(\|<script"'
awk '/^<svg /{n++} n && !done[n]{print > ("picture" n ".svg")} /<\/svg>/{done[n] = 1}' first.html
check lua5.4 "$root/tests/picture.lua" picture1.svg picture2.svg picture4.svg
check grep -q '>Roofline' picture1.svg
for i in 1 2 4; do check grep -q 'class="dim machine">[^;]*;.*moegen [0-9.]*<' picture$i.svg; done
check grep -q 'class="dim command">moegen bench .* --T 9 ' picture1.svg
check grep -q 'class="dim command">moegen compare .* spelling=bytes,scalar ' picture2.svg

rm first.html
expect 2 'has no result' report none
expect 2 'cannot read the directory no: No such file' report no
expect 2 'takes one directory' report
expect 2 'takes one directory' report r none

# refused PLACE_AND_PATTERN: the file bad/x.json
mkdir bad
refused() { expect 2 "bad/x.json:$1" report bad -q; check [ ! -e bad/report.html ]; }
result='"kernel": "f", "variant": "", "target": "t", "spelling": "s", "dtype": "f32", "T": 8, "threads": 1'
context='"cpu": "x", "moegen": "1", "routing": "uniform", "cpus": 1, "limits": ['
bench() { printf '{"context": {%s]},\n"results": [{%s}]}\n' "$context$2" "$result$1" >bad/x.json; }
bench '' ''
expect 0 wrote report bad
rm -f bad/report.html
bench ', "gflops": 1e13' ''; refused '2:.*a number from'
bench ', "gflops": -1' ''; refused '2:.*a number from'
bench ', "gflops": 0' ''; refused '2:.*a number from'
bench ', "gflops": "1"' ''; refused '2:.*a number from'
bench ', "gbps": nan' ''; refused '2:.*not JSON'
bench ', "T": 9' ''; refused '2:.*given twice'
bench '' 7; refused '1:.*an object'
bench '' '{"target": "t"}'; refused '1:.*no "op"'
printf '{"results": []}' >bad/x.json; refused '1:1.*no "context"'
printf '{"context": {}, "results": []}' >bad/x.json; refused '1:13.*no "cpu"'
head -c 60 r/c.json >bad/x.json; refused '[0-9]*:'
for wrong in 's/"ratio": [0-9.e-]*/"ratio": 0/' 's/"pairs": 6/"pairs": -6/' 's/"verdict": "[a-z]*"/"verdict": "fine"/' \
  's/"overall"/"over"/' 's/"a_s": [0-9.e-]*/"a_s": null/' 's/"margin": 0.02/"margin": 0/' 's/"b": "[^"]*"/"b": 3/'; do
  sed "$wrong" r/c.json >bad/x.json
  refused '[0-9]*:[0-9]*: error'
done
# Extremes are drawn, in a moment.
for numbers in '1e12 1e-12' '1e-12 1e12' '1e-12 1e-12' '1e12 1e12'; do
  # shellcheck disable=SC2086 # two words
  set -- $numbers
  bench ", \"gflops\": $1, \"gbps\": $2, \"median_s\": $1, \"p20_s\": $2, \"p80_s\": $1, \"share_of_roof\": $2" \
    "{\"target\": \"t\", \"op\": \"fma\", \"threads\": 1, \"peak_gflops\": $2, \"read_gbps\": $1}"
  expect 0 wrote report bad
  awk '/^<svg /{on = 1} on{print} /<\/svg>/{on = 0}' bad/report.html >extreme.svg
  check lua5.4 "$root/tests/picture.lua" extreme.svg
done
exit $failed
