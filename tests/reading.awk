# SPDX-License-Identifier: Apache-2.0
# reading.awk - what the banner of generated C says of the file is so, and places in memory are said in constants of the file.
#   awk -v name=KERNEL -f reading.awk KERNEL.c
function bad(text) { printf "%s:%d: %s\n", FILENAME, FNR, text; failed = 1 }

# A name of the contents, NAME_gemm_4..1 as its first and its last one.
function listed(word, ends, stem)
{
    sub(/^NAME/, name, word)
    if (split(word, ends, /\.\./) == 2) {
        stem = ends[1]
        sub(/[0-9]+$/, "", stem)
        used[ends[1]] = used[stem ends[2]] = 1
    } else
        used[word] = 1
}

BEGIN { column = 39 }   # where the names of a section begin
FNR == 1 { banner = 1 }
banner && /^ \* (target|spelling) +=/ { said[$2]++ }
banner && /^ \* Algorithm / { algorithm = 1 }
banner && algorithm { sentences += gsub(/\.( |$)/, "&") }
banner && /^ \*$/ { algorithm = 0 }
banner && contents && /^ \* / {
    title = substr($0, 11, column - 11)
    gsub(/^ +| +$/, "", title)
    if (title != "")
        titles[++count] = title
    text = substr($0, column)
    gsub(/,|struct /, " ", text)
    n = split(text, words, " ")
    for (i = 1; i <= n; i++)
        listed(words[i])
    names += n
}
banner && /^ \* Contents / { contents = 1 }
banner && /^ \*\// { banner = 0; title_at = 1 }
banner { next }

/^\/\/ (----|====) / {
    title = $0
    gsub(/^\/\/ (----|====) | (----|====)$|[:=].*/, "", title)
    if (title != titles[++title_at])
        bad("section '" title "' is not where the contents have it, which say '" titles[title_at] "'")
}
/^(static|extern|int32_t|int64_t|struct) / || /^#define / {
    line = $0
    n = split(line, words, /[^A-Za-z0-9_]+/)
    for (i = 1; i <= n; i++)
        delete used[words[i]]
}

/^__asm__/ { delete open; last = 0 }
/^ *\/\/ .*loop [0-9]+: .* times/ {
    line = $0
    while (match(line, /loop [0-9]+: /)) {
        number = substr(line, RSTART + 5, RLENGTH - 7)
        if (number != ++last)
            bad("loop " number " comes after " last - 1)
        open[number] = 1
        line = substr(line, RSTART + RLENGTH)
    }
}
/jnz loop/ {
    match($0, /jnz loop [0-9]*/)
    number = substr($0, RSTART + 9, RLENGTH - 9)
    for (i in open)
        if (i + 0 > number + 0)
            bad("loop " number " ends before loop " i)
    if (!(number in open))
        bad("a jump to loop " number ", which is not open")
    delete open[number]
}
/^\);/ { for (i in open) bad("loop " i " has no end") }

# 12 * STRIDE + 2 is a place; 24770 is none.
/(\(|, |= )[A-Za-z_0-9]+ [+-] [0-9][0-9][0-9]+\)/ || /[A-Za-z_0-9]\[([a-z_0-9]+ \+ )?[0-9][0-9][0-9]+\] / { bad("an offset that says nothing") }

END {
    if (said["target"] != 1 || said["spelling"] != 1)
        bad("target and spelling are not said once")
    if (sentences < 3)
        bad("the algorithm has " sentences + 0 " sentences")
    if (names < 3 || title_at != count)
        bad("the contents are not those of the file")
    for (word in used)
        bad("the contents name '" word "', which is nowhere")
    exit failed
}
