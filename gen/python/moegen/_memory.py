# SPDX-License-Identifier: Apache-2.0
"""_memory.py - room for large tensors, of pages that are used again: a gradient's pages, new at each step, cost as much as the gradient.

Pages that no tensor uses any more stay mapped, but the system is told that it may take them when memory is short.
"""
from __future__ import annotations

import collections
import functools
import math
import mmap
import threading
import time
import weakref
from typing import Callable, Sequence

import torch
from torch import Tensor

LARGE = 4 << 20   # bytes of a tensor from which on it has pages of its own
PAGE = 2 << 20   # of huge ones
SLACK = 1.25   # pages may be so many times as large as what they are used for
CONTIGUOUS = torch.contiguous_format
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
    """Those that nobody has. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._back: collections.deque[mmap.mmap] = collections.deque()   # filled at any time, also while the lock is held
        self._idle: list[tuple[float, mmap.mmap]] = []   # since when; the oldest first

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
        if pages is None:
            pages = _new(size)
        view = memoryview(pages)
        weakref.finalize(view, self._back.append, pages).atexit = False
        return view


_pages = _Pages()


def _tensor(memory: memoryview | mmap.mmap, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape)).view(shape)


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor with any content."""
    size = math.prod(shape) * dtype.itemsize
    return torch.empty(shape, dtype=dtype) if size < LARGE else _tensor(_pages.lend(size), shape, dtype)


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros; a large one has pages that nobody has touched, which are zero for nothing."""
    size = math.prod(shape) * dtype.itemsize
    return torch.zeros(shape, dtype=dtype) if size < LARGE else _tensor(_new(size), shape, dtype)


def empty_like(t: Tensor) -> Tensor:
    """empty() as t is, and contiguous."""
    return torch.empty_like(t, memory_format=CONTIGUOUS) if t.nbytes < LARGE else empty(t.shape, t.dtype)


def room(elements: int, dtype: torch.dtype) -> Callable[[], Tensor]:
    """empty() of so many."""
    if elements * dtype.itemsize < LARGE:   # of a tensor without memory: code that calls have used for other tensors
        return functools.partial(torch.empty_like, torch.empty((), dtype=dtype).expand(elements))
    return functools.partial(empty, (elements,), dtype)


def maker(tensors: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
    """empty_like() for contiguous tensors like these: the quick one where none of them is large."""
    return torch.empty_like if all(t.nbytes < LARGE for t in tensors) else empty_like


def zeros_like(t: Tensor) -> Tensor:
    """zeros() as t is, and contiguous."""
    return torch.zeros_like(t, memory_format=CONTIGUOUS) if t.nbytes < LARGE else zeros(t.shape, t.dtype)
