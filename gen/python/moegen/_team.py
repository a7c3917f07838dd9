# SPDX-License-Identifier: Apache-2.0
"""_team.py - kernels on PyTorch's own threads, see gen/python/team.h: a second team would compete with them.

Libraries of a process that was forked are another matter: there PyTorch's threads are gone, and kernels run as those of `kernel.py`.
"""
from __future__ import annotations

import ctypes
import os
import struct
from ctypes import byref, c_char_p, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Mapping

import torch
from torch import Tensor

from ._library import DataError, InternalError, OutOfMemoryError, library, package_file
from .kernel import Kernel

WORDS, NO_MEMORY = 64, -1
SIZES_ARE_WRONG = 2   # statuses up to this are not of the data, see moe_layer


class _Team:
    """moegen_team_run with PyTorch's loop; `run` is None where one of the two is not there, or after a fork."""

    def __init__(self):
        self.run = None
        path = package_file("libmoegen_team.so", "MOEGEN_TEAM")
        if "MOEGEN_LIBRARY" in os.environ and "MOEGEN_TEAM" not in os.environ:
            path = Path(os.environ["MOEGEN_LIBRARY"]).with_name("libmoegen_team.so")
        host = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
        try:
            torch_library, own = ctypes.CDLL(str(host)), ctypes.CDLL(str(path))
            self._loop, self._index = (ctypes.cast(getattr(torch_library, n), c_void_p).value
                                       for n in ("torch_parallel_for", "torch_get_thread_idx"))
            run = own.moegen_team_run
        except (OSError, AttributeError):
            return
        run.restype = c_int32
        run.argtypes = [c_void_p, c_void_p, c_char_p, c_int64, c_int64, c_void_p, c_void_p]
        self._run = self.run = run
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self):
        self.run = None

    def __call__(self, entry: int, workspace: int, words: bytes, threads: int) -> int:
        return self._run(entry, workspace, words, len(words) // 8, threads, self._loop, self._index)


team = _Team()


class Direct:
    """A kernel for tensors that are known to be right: contiguous, of its dtypes and shapes. Nothing is checked."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self._dims = kernel.facts.dims
        self._names = [(a.name, a.optional) for a in kernel.args]
        self.names = frozenset(a.name for a in kernel.args)
        self._entry, self._workspace = c_void_p(), c_void_p()
        library.kernel_entry(kernel.handle, byref(self._entry), byref(self._workspace))
        self._entry, self._workspace = self._entry.value, self._workspace.value
        self._pack = struct.Struct(f"{len(self._names) + len(self._dims) + 2}q").pack

    def __call__(self, tensors: Mapping[str, Tensor | None], sizes: Mapping[str, int]) -> None:
        """tensors: by the names of the kernel, of which those that are not optional have to be there. Raises DataError."""
        threads = torch.get_num_threads()
        if team.run is None:
            fixed = self.kernel.fixed
            self.kernel.run_at({n: (t.data_ptr(), fixed[n] or t.shape) for n, t in tensors.items() if t is not None and n in fixed},
                               threads)
            return
        words = [0 if optional and tensors.get(n) is None else tensors[n].data_ptr() for n, optional in self._names]
        answer = team(self._entry, self._workspace, self._pack(*words, *[sizes[d] for d in self._dims], 0, 0), threads)
        if answer:
            name = self.kernel.facts.name
            if answer == NO_MEMORY:
                raise OutOfMemoryError(f"there is no memory for the workspace of {name}")
            raise (DataError if answer > SIZES_ARE_WRONG else InternalError)(f"kernel {name} refuses: status {answer}")
