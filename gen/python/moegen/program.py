# SPDX-License-Identifier: Apache-2.0
"""program.py - the program `moegen`, which comes with the package: `check` and `bench` as functions."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any, Mapping

from ._library import FileError, InternalError, MoegenError, SpecError, UnsupportedError, package_file
from .kernel import AnySpec, flatten, sound, spec_text

FAILED = 1   # exit status: an output is wrong, and the results say which
STATUS = {2: SpecError, 3: UnsupportedError, 4: InternalError}


def path() -> str:
    """Where the program is: $MOEGEN_PROGRAM, or the package's own."""
    found = package_file("bin/moegen", "MOEGEN_PROGRAM")
    if not found.exists():
        raise FileError(f"the program {found} is not there; MOEGEN_PROGRAM may name another")
    return str(found)


def main() -> None:
    """The command `moegen` of the package."""
    os.execv(path(), ["moegen", *sys.argv[1:]])


def _results(command: str, spec: AnySpec, name: str | None, overrides: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    text, label = spec_text(spec)
    name = sound("name", name) if name else None
    words = [path(), command, "--json", "--quiet"]
    words += [f"--set={key}={value}" for key, value in flatten(overrides)]
    words += [f"--{key}={value}" for key, value in options.items() if value]
    with tempfile.TemporaryDirectory() as folder:
        file = label
        if file is None:
            file = os.path.join(folder, "spec.yaml")
            with open(file, "w", encoding="utf-8") as out:
                out.write(text)
        words += ["--", f"{file}:{name}" if name else file]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    if done.returncode not in (0, FAILED) or not done.stdout:
        raise STATUS.get(done.returncode, MoegenError)(done.stderr.strip() or f"moegen {command}: exit status {done.returncode}")
    return json.loads(done.stdout)


def check(spec: AnySpec, name: str | None = None, /, *, T: int = 0, routing: str | None = None, threads: int = 0,
          **overrides: Any) -> Any:
    """Compares kernels with float64: what `moegen check --json` says. Arguments as for Engine.kernel; T: tokens."""
    return _results("check", spec, name, overrides, {"T": T, "routing": routing, "threads": threads})


def bench(spec: AnySpec, name: str | None = None, /, *, T: int = 0, threads: int = 0, seconds: float = 0,
          **overrides: Any) -> Any:
    """Times kernels: what `moegen bench --json` says, in seconds and GFLOP/s. Arguments as for Engine.kernel."""
    return _results("bench", spec, name, overrides, {"T": T, "threads": threads, "seconds": seconds})
