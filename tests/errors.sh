#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each tests/errors/NAME.yaml, with the overrides of its `# set: KEY=VALUE` lines and the kernel of its `# kernel: NAME`
# line, is refused with exit status 2, nothing on stdout, no file, and exactly the text of NAME.err.
#   errors.sh MOEGEN SOURCE [BUILD | --accept]
set -u
moegen=$(realpath -- "$1") accept=${3:-} failed=0
cd "$2/tests/errors" || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
for spec in *.yaml; do
  name=${spec%.yaml}
  set -- gen "$spec" -o "$tmp/out"
  kernel=$(sed -n 's/^# kernel: //p' "$spec")
  [ -z "$kernel" ] || set -- gen "$spec:$kernel" -o "$tmp/out"
  sed -n 's/^# set: //p' "$spec" >"$tmp/sets"
  while IFS= read -r set; do set -- "$@" --set "$set"; done <"$tmp/sets"
  "$moegen" "$@" >"$tmp/stdout" 2>"$tmp/stderr"
  status=$?
  if [ "$accept" = --accept ]; then
    cp "$tmp/stderr" "$name.err"
  elif [ $status != 2 ] || [ -s "$tmp/stdout" ] || [ -e "$tmp/out" ] || ! diff -u "$name.err" "$tmp/stderr"; then
    echo "FAIL $spec: exit status $status, expected 2"
    failed=1
  fi
done
[ $failed = 0 ] || echo "To accept: sh tests/errors.sh build/moegen . --accept"
exit $failed
