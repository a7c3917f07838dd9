#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# generated/ is what the generator makes of generated/manifest (one `moegen gen` of one kernel per line), and it compiles
# without warnings and without any part of moegen but moegen_rt.h.
#   stale.sh MOEGEN SOURCE [BUILD | --accept]
set -u
moegen=$(realpath -- "$1") accept=${3:-} failed=0
cd "$2" || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/new" "$tmp/old"

# compile FILE FLAGS: by gcc and clang; by tcc, if it needs no flags of a vector target (bytes, scalar)
compile() {
  for cc in "gcc -O1" "clang -O0"; do # warnings of gcc need its optimiser, those of clang do not
    command -v "${cc% *}" >/dev/null || continue
    $cc -std=c11 -Wall -Wextra -Wpedantic -Wconversion -Werror "@$2" -Iruntime -c "$1" -o "$tmp/x.o" 2>"$tmp/err" ||
      { echo "FAIL $cc $(cat "$2") $1"; head -n 20 "$tmp/err"; failed=1; }
  done
  if command -v tcc >/dev/null && ! grep -q -e -m "$2"; then
    tcc -Wall -Werror -Iruntime -c "$1" -o "$tmp/x.o" 2>"$tmp/err" || { echo "FAIL tcc $1"; head -n 20 "$tmp/err"; failed=1; }
  fi
}

grep -v -e '^#' -e '^$' generated/manifest >"$tmp/lines"
while IFS= read -r line; do
  rm -rf "$tmp/one"
  # shellcheck disable=SC2086
  if ! "$moegen" gen $line -o "$tmp/one" --quiet --cflags "$tmp/flags"; then
    echo "FAIL moegen gen $line"
    failed=1
    continue
  fi
  [ "$accept" = --accept ] || for file in "$tmp/one"/*.c; do compile "$file" "$tmp/flags"; done
  mv "$tmp/one"/* "$tmp/new"
done <"$tmp/lines"

if [ "$accept" = --accept ]; then
  [ $failed = 0 ] || exit 1
  rm -f generated/*.c generated/*.h
  cp "$tmp/new"/* generated
  exit 0
fi
cp generated/*.c generated/*.h "$tmp/old" 2>/dev/null
if ! (cd "$tmp" && diff -ru old new) >"$tmp/diff"; then
  head -n 60 "$tmp/diff"
  echo "generated/ is stale. To accept: sh tests/stale.sh build/moegen . --accept"
  failed=1
fi
exit $failed
