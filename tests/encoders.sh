#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every row of every instruction table encodes as GNU as does.
#   encoders.sh MOEGEN SOURCE
for tool in lua5.4 as objdump; do
  command -v $tool >/dev/null || { echo "no $tool"; exit 77; }
done
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
LUA_CPATH="$(dirname "$1")/tests/?.so" lua5.4 "$2/tests/encoders.lua" "$2" "$tmp"
