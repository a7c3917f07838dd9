#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Where the decimal point is a comma: the library in such a process, and the program, do as they do elsewhere.
#   locale.sh MOEGEN SOURCE BUILD
set -u
moegen=$1 root=$2 build=$3
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
command -v localedef >/dev/null || { echo "no localedef"; exit 77; }
localedef -i de_DE -f UTF-8 "$tmp/de_DE.UTF-8" >/dev/null 2>&1
[ -e "$tmp/de_DE.UTF-8/LC_NUMERIC" ] || { echo "localedef has no de_DE"; exit 77; }
sets="--set up_offset=0.5 --set clamp.up=[-0.25,1.5]"
# shellcheck disable=SC2086
"$moegen" gen "$root/tests/host/toy.yaml:forward" $sets -o "$tmp/c" --quiet || exit 1
export LOCPATH="$tmp" LC_ALL=de_DE.UTF-8
# shellcheck disable=SC2086
"$moegen" gen "$root/tests/host/toy.yaml:forward" $sets -o "$tmp/de" --quiet || exit 1
diff -r "$tmp/c" "$tmp/de" || exit 1
"$moegen" check "$root/tests/host/toy.yaml:forward" --T 9 --routing uniform --quiet || exit 1
exec "$build/tests/process_test" locale
