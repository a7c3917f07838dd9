# SPDX-License-Identifier: Apache-2.0
# sizes.awk - functions of more than `most` lines; awk -v most=60 -f sizes.awk FILE...
# C as clang-format writes it: a body is from a { in column 0 after a line that ends with ) to the } in column 0. Lua: from a
# line that begins a function and does not end it to the `end` at the same indent; functions inside count for themselves.
function report(lines)
{
    functions++
    if (lines > most) {
        printf "%s:%d: a function of %d lines; at most %d: split it\n", FILENAME, start, lines, most
        bad = 1
    }
}
FNR == 1 { depth = open = 0; before = ""; c = FILENAME ~ /\.(c|h|cpp)$/ }
c && /^\{/ && before ~ /\)$/ { start = FNR - 1; open = 1 }
c && /^\}/ && open { report(FNR - start - 2); open = 0 }
c { before = $0 }
!c && /(^|[ (={,])function[ (]/ && !/[^a-z_]end[]),}; ]*(--.*)?$/ && !/^ *--/ {
    match($0, /^ */)
    depth++
    indent[depth] = RLENGTH
    from[depth] = FNR
    inside[depth] = 0
}
!c && depth && /^ *end/ {
    match($0, /^ */)
    if (RLENGTH == indent[depth]) {
        start = from[depth]
        report(FNR - start - 1 - inside[depth])
        depth--
        inside[depth] += FNR - start + 1
    }
}
END { exit bad || !functions }
