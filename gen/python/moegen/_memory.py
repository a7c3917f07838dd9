# SPDX-License-Identifier: Apache-2.0
"""_memory.py - room for large tensors, of pages that are used again: a gradient's pages, new at each step, cost as much as the gradient.

Pages that no tensor uses any more stay mapped, but the system is told that it may take them when memory is short.
"""
from __future__ import annotations

import collections
import mmap
import threading
import time
import weakref

import torch
from torch import Tensor

LARGE = 4 << 20   # bytes of a tensor from which on it has pages of its own
PAGE = 2 << 20   # of huge ones
SLACK = 1.25   # pages may be so many times as large as what they are used for
KEEP = 30.0   # seconds; those that nobody has used for so long are given back at the next look


def _advise(pages: mmap.mmap, name: str) -> None:
    """Does nothing where the system does not know such advice."""
    advice = getattr(mmap, name, None)
    if advice is not None:
        try:
            pages.madvise(advice)
        except OSError:
            pass


def _new(size: int) -> mmap.mmap:
    """Zero, and huge pages where the system has some."""
    pages = mmap.mmap(-1, -(-size // PAGE) * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _advise(pages, "MADV_HUGEPAGE")
    return pages


class _Pages:
    """Those that are lent, and those that are not. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lent: dict[weakref.ref[memoryview], mmap.mmap] = {}
        self._back: collections.deque[mmap.mmap] = collections.deque()   # filled at any time, also while the lock is held
        self._idle: list[tuple[float, mmap.mmap]] = []   # since when; the oldest first

    def _returned(self, ref: weakref.ref[memoryview]) -> None:
        self._back.append(self._lent.pop(ref))

    def _look(self, size: int) -> mmap.mmap | None:
        now = time.monotonic()
        while self._back:
            pages = self._back.popleft()
            _advise(pages, "MADV_FREE")
            self._idle.append((now, pages))
        fitting = [entry for entry in self._idle if size <= len(entry[1]) <= SLACK * size + PAGE]
        found = min(fitting, key=lambda entry: len(entry[1])) if fitting else None
        self._idle = [entry for entry in self._idle if entry is not found and now - entry[0] < KEEP]
        return found[1] if found else None

    def lend(self, size: int) -> memoryview:
        """Memory with any content, until nobody has this view of it or a tensor made of it."""
        with self._lock:
            pages = self._look(size)
        view = memoryview(pages if pages is not None else _new(size))
        self._lent[weakref.ref(view, self._returned)] = view.obj   # type: ignore[assignment]
        return view


_pages = _Pages()


def _tensor(memory: memoryview | mmap.mmap, shape: tuple[int, ...], dtype: torch.dtype, count: int) -> Tensor:
    return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor with any content."""
    count = _elements(shape)
    if count * dtype.itemsize < LARGE:
        return torch.empty(shape, dtype=dtype)
    return _tensor(_pages.lend(count * dtype.itemsize), shape, dtype, count)


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros; a large one has pages that nobody has touched, which are zero for nothing."""
    count = _elements(shape)
    if count * dtype.itemsize < LARGE:
        return torch.zeros(shape, dtype=dtype)
    return _tensor(_new(count * dtype.itemsize), shape, dtype, count)
