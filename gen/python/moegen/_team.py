# SPDX-License-Identifier: Apache-2.0
"""_team.py - kernels on PyTorch's own threads, see gen/python/team.h: a second team would compete with them.

Libraries of a process that was forked are another matter: there PyTorch's threads are gone, and kernels run as those of `kernel.py`.
"""
from __future__ import annotations

import ctypes
import itertools
import os
import struct
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

import torch
from torch import Tensor

from ._library import ArgumentError, DataError, InternalError, OutOfMemoryError, library, package_file
from .kernel import Kernel

Run = Callable[[Sequence[Tensor]], None]

NOTHING = torch.empty(0)   # in the place of a tensor that is not there: its address is 0
VERSION = 2   # of team.h
NO_MEMORY, NO_TENSOR = -1, -3
SIZES_ARE_WRONG = 2   # statuses up to this are not of the data, see moe_layer


class _CWord(ctypes.Structure):
    """struct moegen_team_word."""
    _fields_ = [("at", c_int32), ("more", c_int32), ("needed", c_int32)]


class _CTeam(ctypes.Structure):
    """struct moegen_team."""
    _fields_ = [("entry", c_void_p), ("workspace", c_void_p), ("loop", c_void_p), ("index", c_void_p), ("word", POINTER(_CWord)),
                ("words", c_int64)]


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
        except (OSError, AttributeError):
            return
        version = getattr(own, "moegen_team_version", None)
        if version is None or version() != VERSION:
            raise InternalError(f"{path}: the library is of another version than the package")
        run = own.moegen_team_run
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
    behind: of a tensor that lies behind another one, in the same memory: its name and the other's.
    """

    def __init__(self, kernel: Kernel, names: Sequence[str], behind: tuple[str, str] | None = None):
        self.kernel, self._names, self._behind = kernel, tuple(names), behind
        # What a call gives: addresses of its tensors, sizes, how many bytes one tensor lies behind the other, 0.
        tensors, dims = len(self._names), kernel.facts.dims
        offset, zero = tensors + len(dims), tensors + len(dims) + 1
        at = {name: (i, zero) for i, name in enumerate(self._names)}
        if behind is not None and behind[1] in at:
            at[behind[0]] = at[behind[1]][0], offset
        words = *((*at.get(a.name, (zero, zero)), not a.optional) for a in kernel.args), *((tensors + i, zero, 0) for i in range(len(dims)))
        entry, workspace = c_void_p(), c_void_p()
        library.kernel_entry(kernel.handle, byref(entry), byref(workspace))
        self._pack, self._pack_sizes = struct.Struct(f"{tensors}q").pack, struct.Struct(f"{len(dims) + 2}q").pack
        if team.run is not None:
            self._words = (_CWord * len(words))(*itertools.starmap(_CWord, words))
            self._team = _CTeam(entry, workspace, team.loop, team.index, self._words, len(words) + 2)
            self._at = ctypes.addressof(self._team)

    def of(self, sizes: Mapping[str, int], offset: int = 0) -> Run:
        """The kernel for calls of these sizes. It is called with tensors in the order of the names, and raises DataError.

        offset: bytes from the start of one tensor to what lies behind it.
        """
        tail = self._pack_sizes(*(sizes[d] for d in self.kernel.facts.dims), offset, 0)
        pack, at = self._pack, getattr(self, "_at", 0)

        def run(tensors: Sequence[Tensor]) -> None:
            if team.run is None:
                self._alone(tensors, sizes, offset)
                return
            answer = team.run(at, pack(*map(_address, tensors)) + tail, _threads())
            if answer:
                self._refused(answer)
        return run

    def _alone(self, tensors: Sequence[Tensor], sizes: Mapping[str, int], offset: int) -> None:
        places = {n: t.data_ptr() for n, t in zip(self._names, tensors) if t is not NOTHING}
        if self._behind is not None and self._behind[1] in places:
            places[self._behind[0]] = places[self._behind[1]] + offset
        shapes = {a.name: tuple(eval(n, {}, dict(sizes)) for n in a.extent) for a in self.kernel.args}
        self.kernel.run_at({n: (at, shapes[n]) for n, at in places.items() if n in shapes}, _threads())

    def _refused(self, answer: int) -> None:
        name = self.kernel.facts.name
        if answer == NO_MEMORY:
            raise OutOfMemoryError(f"there is no memory for the workspace of {name}")
        if answer == NO_TENSOR:
            raise ArgumentError(f"kernel {name}: a tensor has no memory, as those whose storage was freed")
        kind: Any = DataError if answer > SIZES_ARE_WRONG else InternalError
        raise kind(f"kernel {name} refuses: status {answer}")
