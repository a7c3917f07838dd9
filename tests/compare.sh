#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `moegen compare`: of files whose numbers are made up here, of benches that it runs itself, and files that are refused with their
# place.
#   compare.sh MOEGEN SOURCE
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
  timeout 200 "$moegen" compare "$@" >out 2>err
  got=$?
  if [ $got != "$want" ] || ! cat out err | grep -q -e "$pattern"; then
    echo "FAIL moegen compare $*: exit status $got, expected $want and /$pattern/; it said:"
    head -c 2000 out
    head -c 2000 err
    failed=1
  fi
}

# file SECONDS... : a bench of one kernel, of 1 thread
row() { printf '{"kernel": "%s", "variant": "%s", "T": %s, "threads": 1, "samples_s": [%s]}' "$@"; }
file() { printf '{"context": {"cpu": "%s", "cold": %s}, "results": [%s]}\n' "$@"; }
near=1.000,1.004,0.998,1.002,1.001,0.997,1.003,1.000,0.999,1.002,1.004,0.998
slow=1.050,1.054,1.048,1.052,1.051,1.047,1.053,1.050,1.049,1.052,1.054,1.048
wild=1.9,0.4,1.1,0.7,1.3,0.6,2.1,0.5,1.0,0.9,1.6,0.8
file x false "$(row f '' 8 $near)" >a.json
file x false "$(row f '' 8 $slow)" >b.json
file x false "$(row f '' 8 $wild)" >wild.json
file x false "$(row f '' 8 2.5,2.51,2.49,2.5,2.51,2.49,2.5,2.5)" >far.json
file y true "$(row f '' 8 $near), $(row g '' 8 $near)" >y.json
file x false "$(row f 'k=1' 8 $near), $(row f 'k=2' 8 $near), $(row g '' 9 $slow)" >two.json
file x false "$(row g '' 9 $near), $(row f 'k=2' 8 $slow), $(row f 'k=1' 8 $near)" >owt.json

a6='a.json a.json a.json a.json a.json a.json' b6='b.json b.json b.json b.json b.json b.json'
check() { "$@" || { echo "FAIL: $*"; failed=1; }; }
# shellcheck disable=SC2086 # lists of words
{
  expect 0 'f .* 1\.000 .*same$' $a6 $a6
  expect 0 'f .* 0\.952 .* 6  slower$' $a6 $b6
  expect 0 'f .* 1\.050 .*faster$' $b6 $a6
  expect 0 'same$' $a6 $b6 --margin 0.06
  expect 0 'slower$' $a6 $b6 --fail-below 0.9
  expect 1 'f, b.json +5: ratio 0.952 is below 0.97' $a6 $b6 --fail-below 0.97
  expect 0 faster $b6 $a6 --fail-below 0.97
  expect 0 '^| f | b.json +5 | 8 | 1 |.*| slower |$' $a6 $b6 --md
  expect 0 '"verdict": "slower"' $a6 $b6 --json
  expect 0 slower $a6 $b6 --json=r.json -q --plot slower.svg
  expect 0 faster $b6 $a6 --plot faster.svg
  expect 0 same $a6 $a6 --plot same.svg
}
check [ ! -s err ]
check grep -q '"verdict": "slower"' r.json
# Of shares of the roof: a machine of half the speed has half the roof, and what takes twice as long there is the same.
share() { printf '{"kernel": "f", "variant": "", "T": 8, "threads": 1, "median_s": %s, "share_of_roof": %s, "samples_s": [%s]}' "$@"; }
twice=$(echo "$near" | awk -F, '{for (i = 1; i <= NF; i++) printf "%s%.4f", (i > 1 ? "," : ""), 2 * $i}')
file x false "$(share 1 0.8 $near)" >quick.json
file x false "$(share 2 0.8 "$twice")" >slow_machine.json
file x false "$(share 1 0.76 $near)" >worse.json
file z false "$(share 1 0.8 $near)" >other_cpu.json
of() { for _ in 1 2 3 4 5 6; do printf '%s ' "$1"; done; }
# shellcheck disable=SC2046 # lists of words
{
  expect 0 'f .* 80\.0 %  *80\.0 %  1\.000 .*same$' --baseline $(of quick.json) $(of slow_machine.json)
  expect 0 'f .* 0\.500 .*slower$' $(of quick.json) $(of slow_machine.json)
  expect 1 'f, worse.json +5: ratio 0.950 is below 0.97' --baseline $(of quick.json) $(of worse.json) --fail-below 0.97
  expect 0 '"of_roof": true' --baseline --json $(of quick.json) $(of worse.json)
  expect 2 'shares of the roofs of different CPUs' --baseline quick.json other_cpu.json
  expect 2 'a.json:1:.*there is no "share_of_roof" here' --baseline quick.json a.json
  expect 2 'baseline compares files' --baseline "$spec" --vary plan.unroll=2,4
}
# Of fewer, parts are the pairs, and only a difference that no busy machine makes counts.
expect 0 'f .* 1\.000 .* 12  same$' a.json a.json
expect 0 'f .* 0\.952 .* 12  noisy: 5 pairs more$' a.json b.json --fail-below 0.97
expect 0 'f .* 0\.952 .* 12  noisy: 4 pairs more$' a.json a.json b.json b.json
expect 0 'less than 6 processes each' a.json b.json
expect 0 'noisy: [0-9]* pairs more$' a.json wild.json
expect 0 'f .* 0\.400 .* slower$' a.json far.json
expect 0 'y.json is of another CPU (y) than a.json (x)' a.json y.json
expect 0 'y.json was measured with --cold, a.json was not' a.json y.json
expect 0 '1 results of a.json and y.json are in one of them only' a.json y.json
expect 0 noisy a.json wild.json --plot noisy.svg
# Several kernels, in another order: partners by variant.
expect 0 'all, geometric mean .* 1\.000 ' two.json owt.json
[ "$(grep -c '^f k=1 .* 1\.000 ' out) $(grep -c '^f k=2 .* 0\.952 ' out) $(grep -c '^g .* 1\.050 ' out)" = '1 1 1' ] || { cat out; failed=1; }
expect 0 '"overall": {"kernels": 3, "ratio": 1,' two.json owt.json --json

expect 2 'takes two files' a.json
expect 2 'takes two files' a.json b.json a.json
expect 2 'takes two files'
expect 2 'cannot read no.json' a.json no.json
expect 2 'is not in 0..0.5' a.json b.json --margin 2
expect 2 'is not in 0..0.5' a.json b.json --margin 0
expect 2 'not a number' a.json b.json --margin nan
expect 2 'not a number' a.json b.json --fail-below x

# refused PLACE_AND_PATTERN: the file bad.json
refused() { expect 2 "bad.json:$1" a.json bad.json -q; }
sample() { file x false "$(row f '' 8 "$1")" >bad.json; }
: >bad.json; refused '1:1.* empty'
head -c 90 a.json >bad.json; refused '[12]:'
printf '[1, 2]' >bad.json; refused '1:1.*object'
printf '3' >bad.json; refused '1:1.*object'
printf 'results: []\n' >bad.json; refused '1:1.*not JSON'
printf '{}' >bad.json; refused '1:1.*no "context"'
printf '{"context": {"cpu": 3}, "results": []}' >bad.json; refused '1:21.*a text is wanted'
printf '{"context": {"cpu": "x"}, "results": {}}' >bad.json; refused '1:38.*a list is wanted'
printf '{"context": {"cpu": "x"}, "results": []}' >bad.json; refused '1:1.*nothing was timed'
printf '{"context": {"cpu": "x"}, "results": [7]}' >bad.json; refused '1:39.*an object'
printf '{"context": {"cpu": "x"},\n "results": [],\n "results": []}' >bad.json; refused '3:2.*given twice'
printf '{"context": {"cpu": "x"}}\n{"context": {"cpu": "x"}}' >bad.json; refused '2:1'
printf '{"context": &a {"cpu": "x"}, "results": *a}' >bad.json; refused '1:13.*not JSON'
printf '{"context": !!map {"cpu": "x"}}' >bad.json; refused '1:13.*not JSON'
printf '{"context": {"cpu": \x27x\x27}}' >bad.json; refused '1:21.*not JSON'
printf '{"context": {"cpu": "\\u0000"}}' >bad.json; refused '1:21.*NUL'
printf '{["x"]: 3}' >bad.json; refused '1:.*not JSON'
printf '\377\376\000' >bad.json; refused '1:'
for value in nan inf .nan 0 -1 1e999 1e-99 null '"1"' '[1]' '{}' 1,x 0x1p3 01 1. '' '1 2'; do
  sample "$value"
  if [ -z "$value" ]; then refused '1:1.*nothing was timed'; else refused "1:1[0-9][0-9]: error"; fi
done
printf '{"context": {"cpu": "x"}, "results": [{"kernel": "f", "variant": "", "T": 8, "threads": 1, "samples": 3}]}' >bad.json
refused '1:39.*older'
printf '{"context": {"cpu": "x"}, "results": [{"kernel": "f", "variant": "", "T": 8, "threads": 0, "samples_s": [1]}]}' >bad.json
refused '1:.*a number from 1'
head -c 100000 /dev/zero | tr '\0' '[' >bad.json; refused '1:17.*deeper than 16'
head -c 5000000 /dev/zero | tr '\0' ' ' >bad.json; refused '1:1.*empty'
head -c 3000000 /dev/urandom >bad.json; refused ''
head -c 67108865 /dev/zero >bad.json; expect 2 'bad.json' a.json bad.json

# Benches of its own.
expect 0 'A: target=scalar' "$spec" --vary target=scalar,avx2 --T 4 --threads 1 --runs 2 --seconds 0.001 --set dtype=f32
grep -q 'toy_forward  target=avx2  *4  *1 .* 2  faster$' out || { cat out; failed=1; }
expect 0 '"pairs": 3,' "$spec" --vary threads=1,2 --T 4 --runs 3 --seconds 0.001 --target scalar --json
# A slower variant is found, however busy the machine is: it goes on until it knows.
expect 1 'spelling=scalar: ratio 0.* is below 0.97' "$spec" --vary spelling=bytes,scalar --target avx2 --T 64 --budget 120 --seconds 0.01 \
  --threads 1 --fail-below 0.97
grep -q 'slower$' out || { echo "FAIL: not slower:"; cat out; failed=1; }
expect 0 'target=scalar I_TP=16' "$spec" --vary target=avx2,scalar --vary I_TP=8,16 --T 4 --threads 1 --runs 2 --seconds 0.001
# Turns: what one process is told, and one that is gone while another waits.
turns() { printf "$1" | timeout 60 "$moegen" bench "$spec" --T 4 --threads 1 --target scalar --turns --json=- >turns.json 2>err; }
turns 'rrrn' && check grep -q '"samples": 3,' turns.json
check [ "$(head -c 5 turns.json | od -An -c | tr -d ' ')" = '\t\n\n\n' ]
turns 'r' && check grep -q '"samples": 1,' turns.json
turns '' && check grep -q '"samples": 0,' turns.json
all_turns() { printf "$1" | timeout 60 "$moegen" bench two.yaml --T 4 --threads 1 --target scalar --turns --json=- 2>err | grep -c '"samples": 1,'; }
{ cat "$root/tests/host/toy.yaml"; echo '  index: {kernel: moe_index}'; } >two.yaml
check [ "$(all_turns rnrn) $(all_turns rnr) $(all_turns rn) $(all_turns r)" = '2 2 1 1' ]
"$moegen" bench "$spec" --turns </dev/null 2>err; check [ $? = 2 ]
expect 2 frogs "$spec" --vary spelling=bytes,frogs --target avx2 --runs 2
expect 2 frogs "$spec" --vary spelling=frogs,bytes --target avx2 --runs 2
expect 0 'all, geometric mean  *threads=2 ' two.yaml --vary threads=1,2 --T 4 --runs 2 --seconds 0.001 --target scalar
# The budget is looked at after each kernel, and before each other variant: of all, one comparison is made.
expect 0 '--budget.*was not compared' two.yaml --vary threads=1,2,3 --T 4 --budget 0.001 --seconds 0.001 --target scalar
grep -q '^toy_forward  threads=2 .* 1  noisy' out || { cat out; failed=1; }
check [ "$(grep -c 'toy_index\|geometric\|threads=3' out)" = 0 ]
expect 0 'toy_forward  *target=avx2 .* 2  ' "$spec" --vary target=scalar,avx2 --T 4 --threads 1 --runs 2 --seconds 0.001 --cold
expect 2 'two values at least' "$spec" --vary threads=1
expect 2 'takes KEY=VALUE' "$spec" --vary threads
expect 2 'takes one spec' a.json b.json --vary threads=1,2
expect 2 'a file, please, not -' - --vary threads=1,2
# Another program: this one, which is to make plain C.
printf '#!/bin/sh\nshift\nexec "$own" bench --target=scalar "$@"\n' >older; chmod +x older
export own="$moegen"
expect 0 'A: ./older\. ' "$spec" --against ./older --T 64 --threads 1 --runs 2 --seconds 0.001
grep -q 'toy_forward  this moegen .* 2  faster$' out || { cat out; failed=1; }
expect 2 'cannot run ./none: No such' "$spec" --against ./none
expect 2 'output of `/bin/true bench`:1:1: error: the file is empty' "$spec" --against /bin/true
# One that fails is no kernel that is slower, and this one's part in it is none.
other() { printf '#!/bin/sh\n%s\n' "$1" >other; chmod +x other; }
alone() { expect 2 "$1" "$spec" --against ./other --T 4 --runs 2 --seconds 0.001; check [ "$(grep -c error: err)" = 1 ]; }
for status in 1 3 4; do other "exit $status"; alone "other bench. ended with exit status $status"; done
other 'kill -SEGV $$'; alone 'Segmentation fault'
other 'exec 2>/dev/null; yes " " | tr -d "\n"'; alone 'more than 67108863 bytes'
other 'cat /dev/zero 2>/dev/null'; alone 'more than 67108863 bytes'
# One that is silent is not waited for: before its kernel, in a run, and at its end, with stdout open or closed.
silent() { other "$1"; expect 2 'other bench. does not go on: it was silent for' "$spec" --against ./other --T 4 --budget 0.5 --seconds 0.001; }
silent 'exec sleep 100'
silent 'printf " \t"; exec sleep 100'
silent 'printf " \t"; tr -dc r | tr r "\n"; exec sleep 100'
silent 'exec >&- 2>&-; exec sleep 100'
echo nothing >other; alone 'cannot start ./other: Exec format error'
expect 2 '[-]-vary compares something else' "$spec" --against ./older --vary threads=1,2
expect 2 '[-]-baseline compares something else' "$spec" --against ./older --baseline
expect 2 'compare --against takes one spec' a.json b.json --against ./older
expect 2 'more than 16 combinations' "$spec" --vary H=8,16,24,32,40,48 --vary I_TP=8,16,24
expect 2 'no key .frogs.\|frogs' "$spec" --vary frogs=1,2 --runs 2
expect 2 'cannot read no.yaml' no.yaml --vary threads=1,2
cp "$root/tests/host/toy.yaml" ./--seed=x.yaml
expect 0 noisy --vary target=scalar,scalar --T 1 --threads 1 --runs 2 --seconds 0.001 -- --seed=x.yaml:forward

# Stored baselines, of made up kinds of CPU beside this one's.
bench() { printf '{"benches": [{"spec": "toy.yaml:forward", "T": [4, 8], "threads": [1]}],\n "cpus": [%s]}\n' "$1" >stored/b.json; }
entry() { printf '{"cpu": "%s", "moegen": "0.0.1", "kernels": [%s]}' "$@"; }
kernel() { printf '{"kernel": "%s", "T": %s, "threads": 1, "of_roof": [%s]}' "$@"; }
mkdir stored && cp "$root/tests/host/toy.yaml" stored/
b=--baseline=stored/b.json other=$(entry other-cpu "$(kernel toy_forward 4 0.5,0.25)")
quick='--target scalar --seconds 0.001'
# shellcheck disable=SC2086 # lists of words
{
  bench "$other"
  expect 3 'no baselines of this kind of CPU, .* (it has: other-cpu)' $b $quick
  expect 0 'toy_forward  *8  *1 .* % .* 6' $b $quick --record --runs 6
  check [ "$(grep -c '"cpu": ' stored/b.json) $(grep -c '"of_roof": \[0.5, 0.25\]' stored/b.json) $(grep -c '"T": 8, ' stored/b.json)" = '2 1 1' ]
  cp stored/b.json stored/first.json
  expect 2 'F says how many tokens and threads; --T would change that' $b $quick --T 4
  expect 2 'F says how many tokens and threads; --threads would' $b $quick --threads 1
  expect 2 'frogs' $b --seconds 0.001 --target frogs
  expect 0 '^A: stored/b.json, .* by moegen 0' $b $quick --runs 2
  expect 0 'toy_forward .* now  *8  *1 .* % .* 2  noisy' $b $quick --runs 2
  expect 0 'toy_forward .* now  *8  *1 .* % .* 1  noisy' $b $quick --budget 0.001
  # Shares of a hundred times what this can reach, and of a thousandth: noise makes less of a difference.
  worse() { awk -v by="$1" '/other-cpu/ {skip = 1} /"cpu"/ && !/other-cpu/ {skip = 0}
    !skip && match($0, /of_roof": \[/) {
      n = split(substr($0, RSTART + RLENGTH), x, /[],]/)
      printf "%s", substr($0, 1, RSTART + RLENGTH - 1)
      for (i = 1; x[i] + 0; i++) printf "%s%.9f", (i > 1 ? ", " : ""), x[i] * by
      print "]}" ($0 ~ /,$/ ? "," : ""); next }
    {print}' stored/first.json >stored/b.json; }
  worse 100
  expect 1 'toy_forward, now: ratio [0-9.e-]* is below 0.95' $b $quick
  grep -q 'slower$' out || { echo 'FAIL: not slower:'; cat out; failed=1; }
  expect 0 slower $b $quick --fail-below 0.000001
  worse 0.001
  expect 0 'faster$' $b $quick
  expect 0 '"of_roof": true' $b $quick --runs 1 --json
  expect 0 'toy_forward' $b $quick --runs 1 --plot stored.svg
  check lua5.4 "$root/tests/picture.lua" stored.svg
  for option in --plot --json; do expect 2 "$option: stored/../stored/b.json is a file that is read" $b $quick --runs 1 $option=stored/../stored/b.json; done
  for option in --plot=x.svg --json=x.json --md --fail-below=0.9; do
    expect 2 "record compares nothing: ${option%=*} goes without it" $b $quick --record --runs 1 $option
  done
  # Once more: in place of what was there, others stay.
  expect 0 '' $b $quick --record --runs 1
  check [ "$(grep -c '"cpu": ' stored/b.json) $(grep -c '"of_roof": \[0.5, 0.25\]' stored/b.json)" = '2 1' ]
  check [ "$(grep -c '"of_roof": \[[0-9.e-]*\]' stored/b.json)" = 2 ]
  # Kernels that are on one side only.
  here=$(sed -n 's/.*"cpu": "\([^"]*\)".*/\1/p' stored/b.json | grep -v other)
  bench "$(entry "$here" "$(kernel toy_forward 4 1,1), $(kernel gone 4 1,1)")"
  expect 0 'gone, T 4, 1 threads: its baseline was not compared' $b $quick --runs 1 --fail-below 0.000001
  expect 0 'toy_forward, T 8, 1 threads: no baseline' $b $quick --runs 1 --fail-below 0.000001
  bench "$(entry "$here" "$(kernel gone 4 1,1)")"
  expect 2 'no kernel that was benched has a baseline' $b $quick --runs 1
  # Files that are refused, with their place.
  bench "$(entry "$here" "$(kernel toy_forward 4 1,1), $(kernel toy_forward 16 1,1)")"
  sed -i 's|^{"benches": \[\(.*\)\],$|{"benches": [\1, {"spec": "toy.yaml:forward", "T": [16], "threads": [1]}],|' stored/b.json
  expect 0 'toy_forward, T 16, 1 threads: its baseline .* within --budget' $b $quick --budget 0.001 --fail-below 0.000001
  hostile() { bench "$1"; expect 2 "stored/b.json:$2" $b -q; cp stored/b.json stored/kept.json; expect 2 "stored/b.json:$2" $b -q --record; cmp stored/b.json stored/kept.json || failed=1; }
  hostile "$(entry x "$(kernel f 4 '"1"')")" '2:.*a number'
  hostile "$(entry x "$(kernel f 4 0)")" '2:.*a number from'
  hostile "$(entry x "$(kernel f 4 1e9)")" '2:.*a number from'
  hostile "$(entry x "$(kernel f 4 '')")" '2:.*an empty list'
  hostile "$(entry x "$(kernel f 1e99 1)")" '2:.*a number from'
  hostile "$(entry x "$(kernel '\u001b[31mred' 4 1)")" '2:.*"kernel": this is no name'
  hostile "$(entry '$(id)' "$(kernel f 4 1)")" '2:.*"cpu": this is no name'
  hostile "$(entry x "$(kernel f 4 1), $(kernel f 4 1)")" '2:.*it is there twice'
  hostile "$other, $other" '2:.*it is there twice'
  hostile "$(entry x "$(kernel f 4 "1$(printf ',1%.0s' $(seq 64))")")" '2:.*more than 64 numbers'
  hostile '7' '2:'
  hostile '{"cpu": "x"}' '2:'
  printf '{"benches": [], "cpus": []}' >stored/b.json; expect 2 'b.json:1:13.*nothing to bench' $b
  printf '{"benches": [{"spec": "a\n--b", "T": [1], "threads": [1]}], "cpus": []}' >stored/b.json; expect 2 'b.json:1:.*no name' $b
  printf '{"benches": [{"spec": "a", "T": [1.5], "threads": [1]}], "cpus": []}' >stored/b.json; expect 2 'whole numbers' $b
  printf '{"cpus": []}' >stored/b.json; expect 2 'b.json:1:1' $b
  printf '{"benches": [{"spec": "--help", "T": [1], "threads": [1]}], "cpus": []}' >stored/b.json; expect 2 'help' $b --record
  expect 2 'cannot read stored/none.json' --baseline=stored/none.json
  expect 2 'takes no operand' $b a.json
  expect 2 'into which file' --record a.json b.json
}

# Pictures: a bar for each, in the verdict's colour; whole, whatever the names are.
name='a<b>&"c" with a name that is rather long, so long that it would leave the picture if nobody counted its letters'
file x false "$(row "$(echo "$name" | sed 's/"/\\"/g')" '' 8 $near), $(row g '' 8 $slow)" >named.json
expect 0 'same' named.json named.json --plot named.svg
expect 0 toy_forward "$spec" --vary spelling=bytes,scalar --target avx2 --T 4 --runs 2 --seconds 0.001 --threads 1 --plot two.svg
check lua5.4 "$root/tests/picture.lua" slower.svg faster.svg same.svg noisy.svg named.svg two.svg
bars() { [ "$(grep -c "class=\"$2\"" "$1")" = "$3" ] || { echo "FAIL: not $3 bars of '$2' in $1"; failed=1; }; }
bars slower.svg poor 1
bars faster.svg good 1
bars same.svg same 1
bars noisy.svg unsure 1
bars two.svg poor 1
bars named.svg 'ink bold' 2
exit $failed
