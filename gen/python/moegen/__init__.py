# SPDX-License-Identifier: Apache-2.0
"""moegen - kernels of mixture-of-experts layers for CPUs, made for their shapes in milliseconds.

    import numpy, moegen
    experts = moegen.kernel({"kernel": "moe_index", "E": 8, "top_k": 2, "block_size": 16})
    experts(expert_index=numpy.zeros((5, 2), dtype=numpy.int32) + [0, 3])["block_to_expert"]

Names of tensors, their shapes and dtypes are `Kernel.args`; `moegen list keys` has the keys of specs.
"""
from __future__ import annotations

from typing import Any

from ._library import (ArgumentError, DataError, Diagnostic, FileError, InternalError, KindError, MoegenError, OutOfMemoryError, SpecError,
                       UnsupportedError, library)
from .kernel import AnySpec, Arg, Engine, Facts, Kernel, Source
from .program import bench, check

__version__ = library.version
__all__ = ["Arg", "ArgumentError", "DataError", "Diagnostic", "Engine", "Facts", "FileError", "InternalError", "Kernel", "KindError",
           "MoegenError", "OutOfMemoryError", "Source", "SpecError", "UnsupportedError", "bench", "check", "engine", "generate", "kernel"]

_engine: Engine | None = None


def engine() -> Engine:
    """The engine that `moegen.kernel` uses, made when it is first asked for."""
    global _engine
    if _engine is None:
        _engine = Engine()
    return _engine


def kernel(spec: AnySpec, name: str | None = None, /, **overrides: Any) -> Kernel:
    """Engine.kernel of the usual engine."""
    return engine().kernel(spec, name, **overrides)


def generate(spec: AnySpec, name: str | None = None, /, **overrides: Any) -> Source:
    """Engine.generate of the usual engine."""
    return engine().generate(spec, name, **overrides)
