#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# lua_limits.sh SOURCE_ROOT - no Lua function of the generator has more than 200 constants: above 256, Lua 5.4.4
# compiles `x | (y or 0)` to wrong code. Exit 77 (skipped) without luac.
luac=$(command -v luac5.4 || command -v luac) || exit 77
cd "$1" || exit 1
bad=0
for file in gen/lua/*.lua gen/lua/isa/*.lua templates/lib/*.lua; do
    "$luac" -l -p "$file" | awk -v file="$file" '
        /^(main|function) </ { place = $2 }
        / constants?, / { for (i = 2; i <= NF; i++) if ($i ~ /^constants?,$/ && $(i - 1) > 200) {
            print file ": " place " has " $(i - 1) " constants; at most 200: split it"; bad = 1 } }
        END { exit bad }' || bad=1
done
exit $bad
