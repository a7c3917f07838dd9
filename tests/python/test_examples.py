# SPDX-License-Identifier: Apache-2.0
"""test_examples.py - gen/python/examples run as the README says, but for sizes."""
import os
import pathlib
import re
import runpy
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "gen" / "python" / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a file in this process, where PyTorch is imported already, and gives what it prints."""
    def of(name, *words):
        monkeypatch.setattr(sys, "argv", [str(EXAMPLES / name), *words])
        runpy.run_path(sys.argv[0], run_name="__main__")
        return capsys.readouterr().out
    return of


def test_numpy_only():
    done = subprocess.run([sys.executable, str(EXAMPLES / "numpy_only.py")], env=dict(os.environ, OMP_NUM_THREADS="1"), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 0 and "off float64 by" in done.stdout, done.stderr


def test_gpt_oss(run):
    for module in ("torch", "safetensors"):
        pytest.importorskip(module, exc_type=ImportError)
    assert len(re.findall(r"T +\d+: .* off float64", run("gpt_oss.py"))) == 3


def test_overhead(run):
    pytest.importorskip("torch", exc_type=ImportError)
    said = run(ROOT / "tests" / "peers" / "overhead.py", "1")
    inference, both = map(int, re.search(r"calls: inference (\d+), forward \+ backward (\d+)", said).groups())
    assert len(re.findall(r"^(?:inference|forward|backward) .*: ours ", said, re.M)) == 3 and inference <= 5 and both <= 11


def test_finetune(run, tmp_path):
    for module in ("torch", "transformers"):
        pytest.importorskip(module, exc_type=ImportError)
    said = run("finetune.py", *"--steps 12 --hidden 32 --layers 1 --batch 4 --length 32 --out".split(), str(tmp_path / "f.svg"))
    losses = [[float(x) for x in re.findall(r"\d\.\d{4}", line)] for line in said.splitlines() if line.startswith("step")]
    assert len(losses) == 3 and all(max(row) - min(row) < 2e-3 for row in losses) and losses[-1][0] < losses[0][0]
    picture = (tmp_path / "f.svg").read_text()
    assert picture.count("<polyline") == 3 and picture.count("tokens/s") == 3 and "moegen" in said
