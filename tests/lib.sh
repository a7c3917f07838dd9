#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `./moegen lib` names a shared library that shows the public functions, and nothing else on stdout.
#   lib.sh MOEGEN SOURCE BUILD
set -u
[ -e "$3/build.ninja" ] || exit 77 # ./moegen builds with ninja
lib=$(MOEGEN_BUILD_DIR=$3 "$2/moegen" lib) || exit 1
[ -e "$lib" ] || { echo "no file '$lib'"; exit 1; }
shown=$(nm -D --defined-only "$lib" | sed -n 's/.* T \([a-z_]*\).*/\1/p')
for name in $(sed -n 's/^MOEGEN_API .*[ *]\(moegen_[a-z_]*\)(.*/\1/p' "$2/gen/api/moegen.h"); do
  echo "$shown" | grep -qx "$name" || { echo "$lib does not show $name"; failed=1; }
done
exit "${failed:-0}"
