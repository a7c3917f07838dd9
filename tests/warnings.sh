#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The C of every seventh case of tests/kernels gives no warning; compilers (gcc, clang), targets, spellings and dtypes in turns.
#   warnings.sh MOEGEN SOURCE
set -u
moegen=$(realpath -- "$1")
cd "$2" || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
flags='-std=c11 -Wall -Wextra -Wpedantic -Wconversion -Werror' compilers=
for cc in gcc clang; do ! command -v $cc >/dev/null || compilers="$compilers $cc"; done
[ -n "$compilers" ] || { echo "no gcc and no clang"; exit 77; }

# Up to where each has seen all that it warns of: gcc looks for unused functions after the syntax.
gcc='-O0 -S -o /dev/null' clang=-fsyntax-only
export gcc clang
echo 'static int f(void) { return 1; }' >"$tmp/unused.c"
for cc in $compilers; do
  eval "until=\$$cc"
  # shellcheck disable=SC2086
  $cc $flags $until "$tmp/unused.c" 2>/dev/null && { echo "FAIL $cc does not see an unused function"; touch "$tmp/failed"; }
done

for spec in tests/kernels/*.yaml; do
  family=$(basename "$spec" .yaml)
  dtypes=$("$moegen" list keys | sed -n "s/^$family: dtype  *one of \([^[]*\).*/\1/p" | tr -d ,)
  sed -n 's/^  \([A-Za-z0-9_]*\): .*/\1/p' "$spec" | awk -v spec="$spec" -v dtypes="$dtypes" '
    BEGIN {
      n = split(dtypes, dtype, " ")
      v = split("avx512 --spelling bytes|avx2 --spelling intrinsics|scalar|avx512 --spelling intrinsics|avx2 --spelling bytes|avx512_bf16 --spelling intrinsics|avx512 --spelling scalar|amx --spelling bytes|amx --spelling intrinsics", variant, "|")
    }
    { print spec ":" $1 " --target " variant[NR % v + 1] (n ? " --set dtype=" dtype[int(NR / v) % n + 1] : "") }'
done | awk -v list="$compilers" 'BEGIN { n = split(list, cc, " ") } NR % 7 == 1 { print cc[int(NR / 7) % n + 1], $0 }' >"$tmp/jobs"
# A function that only some plans of a target call: of pairs where no rows are f32.
echo "${compilers##* } tests/kernels/grouped_gemm.yaml:dX --target avx512_bf16 --spelling intrinsics --set dtype=bf16 --set E=3 --set N=65 --set K=29 --set top_k=1" >>"$tmp/jobs"
# What a function keeps on the stack of a thread, which may be the caller's: of codes whose units are long, in chunks of many rows.
if command -v gcc >/dev/null; then
  echo "gcc tests/kernels/moe_forward.yaml:mxfp4 --target avx512_bf16 --spelling bytes --set dtype=bf16 --set H=1024" >>"$tmp/jobs"
  gcc="-Wframe-larger-than=12288 $gcc"
fi

# What intrinsics need is read once for a compiler and its flags: by the first file that has them, and found by those after it.
# shellcheck disable=SC2016
xargs -P 2 -I ARGS sh -c '
  moegen=$1 flags=$4 dir=$(mktemp -d "$2/XXXXXX") cc=${3%% *} job=${3#* } read=
  # shellcheck disable=SC2086
  "$moegen" gen $job -o "$dir" --stem x --cflags "$dir/flags" --quiet || { echo "FAIL moegen gen $job"; touch "$2/failed"; }
  if grep -q "^#include <immintrin.h>" "$dir/x.c"; then
    read=$2/$cc.$(cksum <"$dir/flags" | tr " " .)
    if mkdir "$read" 2>/dev/null; then
      echo "#include <immintrin.h>" >"$read/read.h"
      case $cc in clang) kind=pch ;; *) kind=gch ;; esac
      $cc $flags "@$dir/flags" -x c-header "$read/read.h" -o "$read/made" && mv "$read/made" "$read/read.h.$kind" && touch "$read/ready"
    fi
    [ -e "$read/ready" ] && read="-include $read/read.h" || read=
  fi
  eval "until=\$$cc"
  case "$job" in *"spelling bytes"*) ;; *) until=${until#-Wframe*288 } ;; esac # each vector of others is a variable
  # shellcheck disable=SC2086
  $cc $flags "@$dir/flags" $read -Iruntime $until "$dir/x.c" 2>"$dir/err" ||
    { echo "FAIL $cc: moegen gen $job"; head -n 10 "$dir/err"; touch "$2/failed"; }
  rm -rf "$dir"' sh "$moegen" "$tmp" ARGS "$flags" <"$tmp/jobs"
echo "$(wc -l <"$tmp/jobs") files"
[ ! -e "$tmp/failed" ]
