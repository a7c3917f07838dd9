#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the build says of fragments of templates that are not what they say they are, and of two modules of one name: each sentence,
# and that the build stops.
#   fragments.sh MOEGEN SOURCE BUILD
lua=$(command -v lua5.4) || { echo "no lua5.4"; exit 77; }
embed=$3/moegen_embed_tool failed=0
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
"$lua" "$2/tests/fragments.lua" "$2" || failed=1
mkdir "$tmp/gen" && cp -R "$2/gen/lua" "$tmp/gen/" && cp -R "$2/templates" "$tmp/" || exit 1

# built SENTENCE: what the build of the copy says, or that it says nothing and makes its output
built() {
  rm -f "$tmp/out.c"
  # shellcheck disable=SC2046
  (cd "$tmp" && "$embed" out.c . $(find gen templates -name '*.lua' -o -name '*.c.in')) 2>"$tmp/err"
  status=$?
  if [ -z "$1" ]; then
    [ $status = 0 ] && [ -s "$tmp/out.c" ] && [ ! -s "$tmp/err" ] && return
  else
    [ $status = 1 ] && [ ! -e "$tmp/out.c" ] && grep -q -x -F "$1" "$tmp/err" && return
  fi
  echo "status $status, not: $1"
  cat "$tmp/err"
  failed=1
}
built ''
mkdir "$tmp/gen/lua/math" && echo 'return {}' >"$tmp/gen/lua/math/norm.lua"
built "embed: math.norm: a room of gen/lua and one of templates have a module of this name"
rm -r "$tmp/gen/lua/math"
line=$(grep -n 'include "queue"' "$2/templates/moe_forward.c.in" | cut -d: -f1)
cp "$tmp/templates/shared/queue.c.in" "$tmp/templates/product/queue.c.in"
built "templates/moe_forward.c.in:$line: error: fragment 'queue' is in more than one room: product, shared"
rm "$tmp/templates/product/queue.c.in" "$tmp/templates/shared/queue.c.in"
built "templates/moe_forward.c.in:$line: error: no fragment 'queue' in the rooms moe_forward, product, along, crossed, packed, codes, math, shared"
cp "$2/templates/shared/queue.c.in" "$tmp/templates/shared/"
sed '3s/^@//' "$2/templates/router.c.in" >"$tmp/templates/router.c.in"
built "templates/router.c.in:3: error: a line above \`@ ----\` that does not start with @"
# Without a build, too.
MOEGEN_TEMPLATE_DIR=$tmp MOEGEN_CACHE_DIR=$tmp/cache "$1" list keys >"$tmp/out" 2>&1 && { echo "no error"; failed=1; }
grep -q "templates/router.c.in:3: a line above" "$tmp/out" || { cat "$tmp/out"; failed=1; }
exit $failed
