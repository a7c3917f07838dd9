#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The C of gen/ and runtime/ lies in rooms: a room uses those below it only, and through their headers. So does the Lua: rooms.lua.
#   rooms.sh MOEGEN SOURCE
# Also: every folder of C is a row here, has a header of its own that says what it gives, and at most 24 files.
set -u
lua=$(command -v lua5.4) || { echo "no lua5.4"; exit 77; }
cd "$2" || exit 1
failed=0

# Room, its header, and what it may include of other rooms, which stand further up; in its own a file includes what it likes.
# moegen.h is a row of its own, since its words are everybody's in gen/.
rooms='
runtime            moegen_runtime.h
runtime/format     codes.h           moegen_runtime.h format.h rt_wide.h
runtime/reference  reference.h       moegen_runtime.h runtime_private.h format.h packed.h rt_wide.h
runtime/reference/router  router.h   reference/reference.h
runtime/reference/layer  layer.h     reference/moe.h reference/router/router.h
runtime/reference/mlp  mlp.h         reference/quantised.h reference/weights.h
runtime/reference/stored  stored.h   reference/weights.h reference/quantised.h reference/moe.h
moegen.h           -                 moegen_dtype.h moegen_rt.h
gen/base           base.h            moegen.h rt_write.h
gen/spec           spec.h            moegen.h base/base.h
gen/arch           arch.h
gen/arch/x86       x86.h             arch/arch.h
gen/jit            jit.h             moegen.h base/base.h rt_write.h
gen/cache          cache.h           moegen.h base/base.h rt_write.h
gen/host           host.h            moegen.h base/base.h spec/spec.h arch/arch.h arch/x86/x86.h
gen/api            api.h             moegen.h base/base.h spec/spec.h host/host.h jit/jit.h cache/cache.h moegen_runtime.h packed.h rt_ranks.h
gen/python         team.h            moegen_rt.h rt_ranks.h
gen/trial          trial.h           moegen.h base/base.h api/api.h moegen_runtime.h
gen/tune           tune.h            moegen.h base/base.h spec/spec.h host/host.h api/api.h trial/trial.h moegen_runtime.h rt_write.h reference/kept.h
gen/cli            cli.h             moegen.h base/base.h spec/spec.h host/host.h jit/jit.h cache/cache.h api/api.h trial/trial.h moegen_runtime.h rt_write.h rt_file.h format.h
gen/cli/draw       draw.h            cli/cli.h
gen/cli/bench      bench.h           cli/cli.h cli/draw/draw.h
gen/cli/compare    compare.h         cli/bench/bench.h tune/paired.h
gen/cli/tune       tuner.h           cli/compare/compare.h tune/tune.h
gen/cli/report     report.h          cli/compare/compare.h
gen/cli/quantize   quantize.h        cli/cli.h format.h packed.h rt_file.h'

{
  echo "$rooms" | sed -n 's/^[a-z]/room &/p'
  find gen runtime -name '*.[ch]' | sort | while read -r file; do
    echo "file $file $(find "${file%/*}" -maxdepth 1 -type f | wc -l)"
    sed -n -e "s|^ *# *include *\"\\([^\"]*\\)\".*|include $file \\1|p" -e "s|^ *# *include *<\\([^>]*\\)>.*|system $file \\1|p" "$file"
  done
} | awk '
  function bad(text) { print text; failed = 1 }
  function folder(path) { sub(/\/[^\/]*$/, "", path); return path }
  function room_of(path) { return path == "gen/api/moegen.h" ? "moegen.h" : folder(path) }
  # What `name` means in a file of `dir`: a file beside it, else one from a directory that the build searches; "": none.
  function meant(dir, name,   i) {
    for (i = split(dir " gen gen/api runtime", root, " "); i; i--) at[i] = root[i] "/" name
    for (i = 1; i in root; i++) if (at[i] in files) return at[i]
    return ""
  }
  $1 == "room" { rank[$2] = ++rows; row[rows] = $2; gives[$2] = $3; for (i = 4; i <= NF; i++) { may[$2, $i] = 1; uses[rows, i] = $i } }
  $1 == "file" { files[$2] = 1; count[folder($2)] = $3 }
  $1 == "include" || $1 == "system" { kind[++n] = $1; from[n] = $2; name[n] = $3 }
  END {
    for (dir in count) {
      if (!(dir in rank)) bad(dir ": a folder of C that tests/rooms.sh does not know")
      else if (!((dir "/" gives[dir]) in files)) bad(dir ": there is no " gives[dir] " that says what it gives")
      if (count[dir] > 24) bad(dir ": " count[dir] " files, of at most 24: split it where it has two subjects")
    }
    for (r = 1; r <= rows; r++) {
      if (row[r] != "moegen.h" && !(row[r] in count)) bad("tests/rooms.sh: there is no C in " row[r])
      for (i = 4; (r, i) in uses; i++) {
        path = meant("", uses[r, i])
        if (path == "") bad("tests/rooms.sh: " row[r] ": there is no " uses[r, i])
        else if (!(rank[room_of(path)] < r)) bad("tests/rooms.sh: " row[r] ": " path " does not lie below it")
      }
    }
    for (i = 1; i <= n; i++) {
      room = room_of(from[i])
      path = meant(kind[i] == "system" ? "" : folder(from[i]), name[i])
      if (kind[i] == "system") { if (path != "") bad(from[i] ": <" name[i] "> is of this project: in quotes, please") }
      else if (path == "") bad(from[i] ": \"" name[i] "\" is no header of gen/ or runtime/")
      else if (room_of(path) != room) {
        arrows++
        if (!((room, name[i]) in may)) bad(from[i] ": \"" name[i] "\" is not for " room ": see the table in tests/rooms.sh")
      }
    }
    print rows " rooms, " arrows " arrows between them"
    exit failed || arrows < 20
  }' || failed=1
"$lua" tests/rooms.lua . || failed=1
exit $failed
