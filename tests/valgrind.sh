#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One kernel from spec text to its result under valgrind: no error, nothing lost.
#   valgrind.sh MOEGEN SOURCE BUILD
set -u
command -v valgrind >/dev/null || { echo "no valgrind"; exit 77; }
exec valgrind --quiet --error-exitcode=1 --leak-check=full --errors-for-leak-kinds=definite,possible \
  "$3/tests/process_test" once
