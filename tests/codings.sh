#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Codes of the small floats are those of ml_dtypes (PyPI), where PYTHON (the build's own, see .ci/run, or python3) has it.
#   codings.sh MOEGEN SOURCE BUILD
python=${PYTHON:-$3/venv/bin/python}
[ -x "$python" ] || python=python3
"$python" -c 'import ml_dtypes' 2>/dev/null || { echo "$python has no ml_dtypes: nothing to compare with"; exit 77; }
exec "$python" "$2/tests/codings.py" "$3/tests/runtime_format"
