#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `./moegen lib` names a shared library that shows the public functions, and nothing else on stdout; folders that `./moegen` builds in.
#   lib.sh MOEGEN SOURCE BUILD
set -u
[ -e "$3/build.ninja" ] || exit 77 # ./moegen builds with ninja
lib=$(MOEGEN_BUILD_DIR=$3 "$2/moegen" lib) || exit 1
[ -e "$lib" ] || { echo "no file '$lib'"; exit 1; }
shown=$(nm -D --defined-only "$lib" | sed -n 's/.* T \([a-z_]*\).*/\1/p')
for name in $(sed -n 's/^MOEGEN_API .*[ *]\(moegen_[a-z_]*\)(.*/\1/p' "$2/gen/api/moegen.h"); do
  echo "$shown" | grep -qx "$name" || { echo "$lib does not show $name"; failed=1; }
done

# A checkout that was moved is configured anew, and one that stays is not; cmake only says what it is asked for.
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/bin" "$tmp/a b/build" "$tmp/elsewhere"
printf '#!/bin/sh\necho cmake "$@" >>"%s/asked"\nexit 1\n' "$tmp" >"$tmp/bin/cmake"
chmod +x "$tmp/bin/cmake"
cp "$2/moegen" "$2/CMakeLists.txt" "$tmp/a b"
# of HOME BUILD: `./moegen` in a folder that is said to have been configured there asks cmake for a configuration, if ...
of() {
  touch "$tmp/a b/build/build.ninja"
  printf 'CMAKE_HOME_DIRECTORY:INTERNAL=%s\nCMAKE_CACHEFILE_DIR:INTERNAL=%s\n' "$1" "$2" >"$tmp/a b/build/CMakeCache.txt"
  rm -f "$tmp/asked"
  PATH=$tmp/bin:$PATH "$tmp/a b/moegen" --version >/dev/null 2>&1
  grep -q -e '--fresh' "$tmp/asked"
}
! of "$tmp/a b" "$tmp/a b/build" || { echo "FAIL: configured without need"; failed=1; }
of "$tmp/elsewhere" "$tmp/a b/build" || { echo "FAIL: not configured for its own sources"; failed=1; }
of "$tmp/a b" "$tmp/gone" || { echo "FAIL: not configured for its own folder"; failed=1; }
for odd in 'a;b' 'a#b' 'a"b' 'a\b' 'a$b'; do
  rm -f "$tmp/asked"
  mv "$tmp/a b" "$tmp/$odd"
  PATH=$tmp/bin:$PATH "$tmp/$odd/moegen" --version >/dev/null 2>"$tmp/err"
  { [ $? = 2 ] && grep -qF "$odd" "$tmp/err" && [ ! -e "$tmp/asked" ]; } || { echo "FAIL: $odd"; failed=1; }
  mv "$tmp/$odd" "$tmp/a b"
done
exit "${failed:-0}"
