#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The tile products of templates/tiles/amx.lua: the scalar spelling against a plain product, bytes and intrinsics against
# the scalar spelling where the CPU has AMX.
#   amx.sh MOEGEN SOURCE [BUILD | --static FILE]     --static: only build FILE, a program for another machine (FILE --time)
set -u
source=$(realpath -- "$2") parts=$(realpath -- "$(dirname -- "$1")") failed=0
for tool in lua5.4 gcc; do
  command -v $tool >/dev/null || { echo "no $tool"; exit 77; }
done
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
[ "${3:-}" != --static ] || out=$(realpath -m "$4")
cd "$tmp" || exit 1
flags=$(LUA_CPATH="$parts/tests/?.so" lua5.4 "$source/tests/amx.lua" "$source") || exit 1
warn="-std=c11 -Wall -Wextra -Wpedantic -Wconversion -Werror -I$source/tests/amx -I$source/runtime"

# build COMPILER: objects of all spellings
build() {
  # shellcheck disable=SC2086
  $1 $warn -O2 -c scalar.c && $1 $warn -O2 -Wno-overlength-strings -c bytes.c && $1 $warn -O2 $flags -c intrinsics.c &&
    $1 $warn -O2 -D_GNU_SOURCE -c "$source/tests/amx/driver.c"
}

if [ -n "${out:-}" ]; then
  mkdir -p "$(dirname "$out")"
  build gcc && gcc -static driver.o scalar.o bytes.o intrinsics.o -o "$out"
  exit
fi
for cc in gcc clang; do
  command -v $cc >/dev/null || continue
  build $cc && $cc driver.o scalar.o bytes.o intrinsics.o -o run && ./run || { echo "FAIL $cc"; failed=1; }
done
if command -v tcc >/dev/null; then
  tcc -I"$source/tests/amx" -I"$source/runtime" -c scalar.c -o scalar.o &&
    gcc -Wl,-z,noexecstack driver.o scalar.o bytes.o intrinsics.o -o run && ./run || { echo "FAIL tcc"; failed=1; }
fi
exit $failed
