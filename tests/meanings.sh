#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every op of every target means what isa/scalar.lua says: bytes, intrinsics and scalar spelling give the same bits, the
# scalar one through gcc and through tcc. Targets that this CPU lacks are skipped. With another NAME: the same for the programs of
# tests/NAME.lua, which tests/NAME/driver.c runs.
#   meanings.sh MOEGEN SOURCE BUILD [NAME]
set -u
source=$(realpath -- "$2") build=$(realpath -- "$3") name=${4:-meanings} failed=0
for tool in lua5.4 gcc; do
  command -v $tool >/dev/null || { echo "no $tool"; exit 77; }
done
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
ln -s "$source/runtime" runtime
warn="-std=c11 -Wall -Wextra -Wpedantic -Wconversion -Werror -Wno-unused-parameter -fno-strict-aliasing -Iruntime"
LUA_CPATH="$build/tests/?.so" lua5.4 "$source/tests/$name.lua" "$source" >targets || exit 1
# shellcheck disable=SC2086
gcc $warn -O2 -c "$source/tests/$name/driver.c" -o driver.o || exit 1
while read -r target flags; do
  # shellcheck disable=SC2086
  gcc $warn -O1 -c "$target.bytes.c" && gcc $warn -O1 $flags -c "$target.intrinsics.c" &&
    gcc $warn -O2 -c "$target.scalar.c" && gcc $warn -c "$target.table.c" || { failed=1; continue; }
  parts="driver.o $target.table.o $target.bytes.o $target.intrinsics.o"
  # shellcheck disable=SC2086
  gcc -Wl,-z,noexecstack $parts "$target.scalar.o" "$build/libmoegen_rt.a" -lpthread -lm -o one && ./one "$target, gcc" || failed=1
  command -v clang >/dev/null && { clang $warn -c "$target.scalar.c" -o clang.o || failed=1; }
  command -v tcc >/dev/null || continue
  # shellcheck disable=SC2086
  tcc -Iruntime -c "$target.scalar.c" -o tcc.o &&
    gcc -Wl,-z,noexecstack $parts tcc.o "$build/libmoegen_rt.a" -lpthread -lm -o two && ./two "$target, tcc" || failed=1
done <targets
exit $failed
