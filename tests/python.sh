#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The Python package with the library and the program of this build: tests/python, with pytest. What needs other packages than numpy
# is skipped where they are not there.
#   python.sh MOEGEN SOURCE BUILD
set -u
for python in "$3/venv/bin/python" python3 /usr/bin/python3 none; do
  ! "$python" -c 'import numpy, pytest' 2>/dev/null || break
done
[ "$python" != none ] || { echo "no python3 with numpy and pytest"; exit 77; }
MOEGEN_LIBRARY=$(dirname -- "$(realpath -- "$1")")/libmoegen.so MOEGEN_PROGRAM=$(realpath -- "$1")
[ -e "$MOEGEN_LIBRARY" ] || { echo "no libmoegen.so"; exit 77; }
PYTHONPATH=$2/gen/python PYTHONDONTWRITEBYTECODE=1
MYPY_CACHE_DIR=$3/mypy # what mypy knows of PyTorch takes most of its time
export MOEGEN_LIBRARY MOEGEN_PROGRAM PYTHONPATH PYTHONDONTWRITEBYTECODE MYPY_CACHE_DIR
exec "$python" -m pytest -q -p no:cacheprovider "$2/tests/python"
