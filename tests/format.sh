#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every C file is as clang-format writes it, every Lua file passes luacheck, no line of Python is too wide, every file names its licence,
# no file and no function is too long to read, and no room of templates is too full.
#   format.sh MOEGEN SOURCE
set -u
cd "$2" || exit 1
failed=0 tmp=$(mktemp)
for tool in clang-format luacheck; do
  command -v $tool >/dev/null || { echo "no $tool"; exit 77; }
done
c=$(find gen runtime tests -name '*.[ch]' -o -name '*.cpp' | sort)
# shellcheck disable=SC2086
if ! clang-format --dry-run -Werror $c 2>"$tmp"; then
  sed -n 's/:[0-9]*:[0-9]*: error.*//p' "$tmp" | sort | uniq -c
  echo "To mend: clang-format -i \$(find gen runtime tests -name '*.[ch]' -o -name '*.cpp')"
  failed=1
fi
rm -f "$tmp"
luacheck -q gen/lua templates || failed=1
python=$(find gen tests -name '*.py' | sort)
# wide COLUMNS FILE...
wide() {
  columns=$1
  shift
  awk -v most="$columns" 'length > most { print FILENAME ":" FNR ": " length " columns, more than " most; bad = 1 } END { exit bad }' "$@" || failed=1
}
# shellcheck disable=SC2086
wide 140 $python
# Lines of generated C are as long as what stands in their holes: here a hole is a name, which `@ local` says more of.
# shellcheck disable=SC2046
wide 145 $(find templates -name '*.c.in')
for file in $c $python $(find gen templates tests -name '*.lua' -o -name '*.c.in' -o -name '*.cmake' -o -name '*.sh' -o -name '*.awk'); do
  head -n 3 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || { echo "$file: no SPDX line"; failed=1; }
done
# longest LINES FILE...
longest() {
  lines=$1
  shift
  for file; do
    [ "$(wc -l <"$file")" -le "$lines" ] || { echo "$file has more than $lines lines: split it where it has two subjects"; failed=1; }
  done
}
# shellcheck disable=SC2046
longest 400 $(find gen runtime tests -name '*.c' -o -name '*.cpp')
# shellcheck disable=SC2046
longest 300 $(find gen templates tests -name '*.lua')
# shellcheck disable=SC2046
longest 250 $(find templates -name '*.c.in')
# shellcheck disable=SC2046
awk -v most=60 -f tests/sizes.awk $c $(find gen templates tests -name '*.lua') || failed=1
for folder in templates/*/; do
  [ "$(find "$folder" -type f | wc -l)" -le 24 ] || { echo "$folder has more than 24 files: make a room of its own for some"; failed=1; }
done
exit $failed
