#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# No Lua function of the generator has more than 200 constants: above 256, Lua 5.4.4 compiles `x | (y or 0)` to wrong code.
#   lua_limits.sh MOEGEN SOURCE
luac=$(command -v luac5.4) || { echo "no luac5.4"; exit 77; }
cd "$2" || exit 1
bad=0
for file in gen/lua/*.lua gen/lua/*/*.lua gen/lua/*/*/*.lua templates/*/*.lua; do
    "$luac" -l -p "$file" | awk -v file="$file" '
        /^(main|function) </ { place = $2 }
        / constants?, / { seen = 1; for (i = 2; i <= NF; i++) if ($i ~ /^constants?,$/ && $(i - 1) > 200) {
            print file ": " place " has " $(i - 1) " constants; at most 200: split it"; bad = 1 } }
        END { exit bad || !seen }' || bad=1
done
exit $bad
