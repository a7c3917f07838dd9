# SPDX-License-Identifier: Apache-2.0
"""test_types.py - the package's annotations, checked by mypy as pyproject.toml says, where mypy and PyTorch are there."""
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("mypy")
pytest.importorskip("torch", exc_type=ImportError)
ROOT = pathlib.Path(__file__).parents[2]


def mypy(tmp_path, *words):
    return subprocess.run([sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", *words],
                          env={"MYPY_CACHE_DIR": str(tmp_path), **os.environ, "MYPYPATH": str(ROOT / "gen/python")}, cwd=tmp_path,
                          capture_output=True, text=True, check=False)


def test_package(tmp_path):
    done = mypy(tmp_path, "-p", "moegen")
    assert done.returncode == 0, done.stdout + done.stderr
    use = tmp_path / "use.py"
    use.write_text("import moegen\nblocks: int = moegen.kernel({}).facts\n", encoding="utf-8")
    done = mypy(tmp_path, use)
    assert done.returncode == 1 and 'has type "Facts"' in done.stdout
