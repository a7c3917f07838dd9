#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A family, or every one, with the cases of tests/kernels/FAMILY.yaml, against float64 (`moegen check`: NaN in everything that is not
# an input). On this CPU's best target each case with every dtype, by 1, 2 and 3 threads: with one dtype a third of them with all
# routings and the others with one in turn, with many tokens and with few. On the scalar target each with one dtype and routing, by
# one thread. On every target (those that the CPU lacks are emulated, slowly) `plain` with every dtype; few tokens and some of `odd`
# and those called `direct...` with one, of `odd_...` of families that may multiply pairs with each width; what routing makes of these
# on an emulated target, `plain` shows. `plain` and `ungated` with every activation, some with every spelling and compiler, and
# kernels drawn at random from FAMILY.mix, a few of them on every target.
#   kernels.sh MOEGEN SOURCE [BUILD [FAMILY [SEED [COUNT]]]]        SEED, COUNT: of the random ones
set -u
moegen=$(realpath -- "$1") only=${4:-} seed=${5:-1} count=${6:-12}
cd "$2/tests/kernels" || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

names() { "$moegen" list "$1" | awk '{print $1}'; }
has_key() { "$moegen" list keys | grep -q "^$1: $2 "; }
job() { echo "$*" >>"$tmp/jobs"; }
# All cases of the spec: some at a time.
job_all() {
  for some in $(sed -n 's/^  \([A-Za-z0-9_]*\): .*/\1/p' "$spec" | xargs -n 40 | tr ' ' ,); do job "$spec:$some $*"; done
}

few_and_some() {
  job "$spec:$1 --target all --routing skewed $set"
  job "$spec:$1 --target all --routing one --T 1 --threads 1 $set"
}

# One kernel per drawn line, numbered.
draw() {
  awk -v seed="$seed" -v count="$count" -v family="$family" '
    BEGIN { x = 7919 * seed + 1 }
    function random(n) { x = (x * 16807) % 2147483647; return int(x / 2147483647 * n) }
    /^[^#]/ { row[rows++] = $0 }
    END {
      print "kernels:"
      for (i = 1; i <= count; i++) {
        text = "kernel: " family
        for (r = 0; r < rows; r++) { n = split(row[r], part, / [|] /); text = text ", " part[random(n) + 1] }
        print "  mix" i ": {" text "}"
      }
    }' "$1"
}

# A list of cases of a spec: every third one, if $2 is 0; otherwise those between whose routing has this turn.
part() {
  sed -n 's/^  \([A-Za-z0-9_]*\): .*/\1/p' "$1" |
    awk -v turn="$2" '(NR % 3 == 1) == !turn && (!turn || NR % routings + 1 == turn) { printf "%s%s", sep, $0; sep = "," }' \
      routings="$(echo "$routings" | wc -w)"
}

routings=$("$moegen" check moe_forward.yaml:plain --routing ? 2>&1 | sed -n "s/.* is not one of \([a-z_, ]*\)/\1/p" | tr -d ,)
[ -n "$routings" ] || { echo "FAIL no list of routings"; exit 1; }
# Compilers take turns: what optimises a family's plain C, and what its C around bytes and does not optimise the plain one.
fast=gcc slow=clang
for family in $(names kernels); do
  [ "$family" != probe ] || continue # measures the machine: has no answer
  spec=$family.yaml swap=$fast fast=$slow slow=$swap
  [ -e "$spec" ] || { echo "FAIL family $family has no tests/kernels/$spec"; exit 1; }
  [ -z "$only" ] || [ "$family" = "$only" ] || continue
  dtypes=none
  ! has_key "$family" dtype || dtypes=$(names dtypes)
  targets=auto,scalar # of the first dtype; then this CPU's best one
  sizes=' '
  for dtype in $dtypes; do
    set=
    [ "$dtype" = none ] || set="--set dtype=$dtype"
    size=$("$moegen" list dtypes | sed -n "s/^$dtype  *\([0-9]*\) byte.*/\1/p")
    # The second width has all routings: the first one's products differ in what is read and written, and so has some. What is as wide
    # as another is shared out among ranks as that is.
    all=1 again=''
    case $sizes in
      ' ') [ "$dtype" = none ] || all='' ;;
      *" $size "*) all='' again=1 set="$set --threads 1" ;;
    esac
    if [ $all ]; then
      turn=0
      job "$spec:$(part "$spec" 0) --target auto $set"
      for routing in $routings; do
        turn=$((turn + 1))
        cases=$(part "$spec" $turn)
        [ -z "$cases" ] || for how in "--routing $routing" "--routing skewed --T 333" "--routing uniform --T 3"; do
          job "$spec:$cases --target auto $how $set"
        done
      done
    else
      job_all "--target auto --routing skewed $set"
      if [ $again ]; then
        job "$spec:$(part "$spec" 0) --target auto --routing one --T 1 $set"
      else
        job_all "--target auto --routing one --T 1 $set"
        job_all "--target auto --routing uniform --T 150 $set"
      fi
    fi
    sizes="$sizes$size "
    job "$spec:plain --target all $set"
    if [ $targets != auto ]; then
      job_all "--target scalar --threads 1 --routing skewed --T 11 $set"
      for case in odd $(sed -n 's/^  \(direct[a-z_]*\):.*/\1/p' "$spec"); do few_and_some "$case"; done
    fi
    # shellcheck disable=SC2013
    [ $again ] || ! has_key "$family" plan.product || for case in $(sed -n 's/^  \(odd_[A-Za-z_]*\):.*/\1/p' "$spec"); do
      few_and_some "$case"
    done
    ! has_key "$family" activation || for activation in $(names activations); do
      for case in plain ungated; do
        ! grep -q "^  $case:" "$spec" || job "$spec:$case --target $targets --threads 1 --set activation=$activation $set"
      done
    done
    targets=auto
  done
  # Emulations, and what is drawn, are compiled without optimising, which would take ten times as long as all the rest.
  job "$spec:plain --target all --spelling bytes --cc $slow"
  # Beside gcc, which is used without --cc. What compilers make of intrinsics at -O2, `odd` tells.
  job "MOEGEN_CC_LEVEL=-O1 $spec:plain --target all --spelling intrinsics --cc clang"
  job "MOEGEN_CC_LEVEL=-O1 $spec:plain --target scalar --spelling scalar --cc $fast"
  job "MOEGEN_CC_LEVEL=-O0 $spec:plain --target all --spelling scalar --cc $slow --routing skewed"
  job "$spec:odd --target all --spelling bytes,intrinsics,scalar --routing skewed ${set:-}"
  if [ -e "$family.mix" ]; then
    { cat "$family.mix"
      ! has_key "$family" activation || names activations | awk '{printf "%sactivation: %s", sep, $1; sep = " | "} END {print ""}'
      names dtypes | awk '{printf "%sdtype: %s", sep, $1; sep = " | "} END {print ""}'; } >"$tmp/mix"
    spec=$tmp/$family-mix.yaml
    draw "$tmp/mix" >"$spec"
    job_all --target auto
    for i in 4 5 6; do job "$spec:mix$i --target all --routing uniform"; done
    for i in 1 2; do job "MOEGEN_CC_LEVEL=-O0 $spec:mix$i --target all --spelling intrinsics,scalar --routing skewed"; done
  fi
done

# Short ones last, so that both processors end together. Each reads a spec that has its cases alone: reading all of a family's would
# take longer than making a small kernel.
# shellcheck disable=SC2016
{ grep -v activation= "$tmp/jobs"; grep activation= "$tmp/jobs"; } | xargs -P 2 -I ARGS sh -c '
  moegen=$1 tmp=$2
  out=$(mktemp "$tmp/out.XXXXXX")
  case $3 in
    MOEGEN_*) export "${3%% *}"; set -- "$1" "$2" "${3#* }" ;;
  esac
  what=${3%% *}
  spec=${what%%:*} dir=$(mktemp -d "$tmp/spec.XXXXXX")
  awk -v cases=",${what#"$spec":}," "!/^  / || index(cases, \",\" substr(\$1, 1, length(\$1) - 1) \",\")" "$spec" >"$dir/$(basename "$spec")"
  # shellcheck disable=SC2086
  timeout 300 "$moegen" check "$dir/$(basename "$spec")" ${3#"$what"} --quiet >"$out" 2>&1
  status=$?
  if [ $status != 0 ]; then
    { grep -v -e " ok$" -e " ok (emulated)$" -e " not compared$" -e "not run:" "$out" | cut -c 1-300 | head -n 20
      echo "FAIL ($status) moegen check $3"; } >"$out.failed"
    cat "$out.failed"
  fi' sh "$moegen" "$tmp" ARGS

ran=$(cat "$tmp"/out.?????? | sed -n 's/^\([0-9]*\) ok, .*/\1/p' | awk '{n += $1} END {print n + 0}')
echo "$(wc -l <"$tmp/jobs") jobs, $ran kernels right"
for mix in "$tmp"/*-mix.yaml; do # the specs of random kernels that failed
  [ ! -e "$mix" ] || grep -h -o "^FAIL [a-z_]*_mix[0-9]*" "$tmp"/out.??????.failed 2>/dev/null | sed 's/.*_mix/mix/' | sort -u |
    while read -r name; do grep "^  $name:" "$mix"; done
done
if ls "$tmp"/out.*.failed >/dev/null 2>&1 || [ "$ran" = 0 ]; then exit 1; fi
