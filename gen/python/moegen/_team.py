# SPDX-License-Identifier: Apache-2.0
"""_team.py - kernels on PyTorch's own threads, see gen/python/team.h: a second team would compete with them.

Libraries of a process that was forked are another matter: there PyTorch's threads are gone, and kernels run as those of `kernel.py`.
"""
from __future__ import annotations

import ctypes
import operator
import os
import struct
from ctypes import byref, c_char_p, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

import torch
from torch import Tensor

from ._library import DataError, InternalError, OutOfMemoryError, library, package_file
from .kernel import Kernel

Run = Callable[[Sequence[Tensor]], None]

NOTHING = torch.empty(0)   # in the place of a tensor that is not there: its address is 0
NO_MEMORY = -1
SIZES_ARE_WRONG = 2   # statuses up to this are not of the data, see moe_layer


class _CTeam(ctypes.Structure):
    """struct moegen_team."""
    _fields_ = [("entry", c_void_p), ("workspace", c_void_p), ("loop", c_void_p), ("index", c_void_p), ("words", c_int64)]


class _Team:
    """moegen_team_run with PyTorch's loop; `run` is None where one of the two is not there, or after a fork."""

    def __init__(self) -> None:
        self.run: Callable[[int, bytes, int], int] | None = None
        path = package_file("libmoegen_team.so", "MOEGEN_TEAM")
        if "MOEGEN_LIBRARY" in os.environ and "MOEGEN_TEAM" not in os.environ:
            path = Path(os.environ["MOEGEN_LIBRARY"]).with_name("libmoegen_team.so")
        host = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
        try:
            torch_library, own = ctypes.CDLL(str(host)), ctypes.CDLL(str(path))
            self.loop, self.index = (ctypes.cast(getattr(torch_library, n), c_void_p).value
                                     for n in ("torch_parallel_for", "torch_get_thread_idx"))
            run = own.moegen_team_run
        except (OSError, AttributeError):
            return
        run.restype = c_int32
        run.argtypes = [c_void_p, c_char_p, c_int64]
        self.run = run
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.run = None


team = _Team()
_address, _threads = Tensor.data_ptr, torch.get_num_threads


class Direct:
    """A kernel for tensors that are known to be right: contiguous, of its dtypes and shapes. Nothing is checked.

    names: of the tensors that calls have, in their order; others than the kernel's are left out, and the kernel's others are optional.
    """

    def __init__(self, kernel: Kernel, names: Sequence[str]):
        self.kernel = kernel
        self._order = tuple(names)
        where = {name: i for i, name in enumerate(names)}
        places = [where.get(a.name, len(names)) for a in kernel.args]   # of the kernel's tensors in those of a call and 0
        self._pick = operator.itemgetter(*places)
        entry, workspace = c_void_p(), c_void_p()
        library.kernel_entry(kernel.handle, byref(entry), byref(workspace))
        words = len(places) + len(kernel.facts.dims) + 2
        self._pack = struct.Struct(f"{words}q").pack
        if team.run is not None:
            self._team = _CTeam(entry, workspace, team.loop, team.index, words)
            self._at = ctypes.addressof(self._team)

    def of(self, sizes: Mapping[str, int]) -> Run:
        """The kernel for calls of these sizes. It is called with tensors in the order of the names, and raises DataError."""
        tail = *(sizes[d] for d in self.kernel.facts.dims), 0, 0   # what follows the addresses in the kernel's arguments
        pick, pack, at = self._pick, self._pack, getattr(self, "_at", 0)

        def run(tensors: Sequence[Tensor]) -> None:
            if team.run is None:
                self._alone(tensors)
                return
            answer = team.run(at, pack(*pick([*map(_address, tensors), 0]), *tail), _threads())
            if answer:
                self._refused(answer)
        return run

    def _alone(self, tensors: Sequence[Tensor]) -> None:
        fixed = self.kernel.fixed
        there = {n: t for n, t in zip(self._order, tensors) if t is not NOTHING and n in fixed}
        self.kernel.run_at({n: (t.data_ptr(), fixed[n] or t.shape) for n, t in there.items()}, _threads())

    def _refused(self, answer: int) -> None:
        name = self.kernel.facts.name
        if answer == NO_MEMORY:
            raise OutOfMemoryError(f"there is no memory for the workspace of {name}")
        kind: Any = DataError if answer > SIZES_ARE_WRONG else InternalError
        raise kind(f"kernel {name} refuses: status {answer}")
