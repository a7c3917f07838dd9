# SPDX-License-Identifier: Apache-2.0
"""_pages.py - memory for large tensors, of pages that are used again: a gradient's pages, new at each step, cost as much as the gradient.

Pages that no tensor uses any more stay mapped for the next one. After a while the system is told that it may take them when memory is
short: at once, that would cost a step of training as much as some of its kernels' time.
"""
from __future__ import annotations

import collections
import ctypes
import dataclasses
import mmap
import os
import threading
import time
import weakref
from typing import Any

from ._library import OutOfMemoryError

LARGE = 4 << 20   # bytes of a tensor from which on it has pages of its own
PAGE = 2 << 20   # of huge ones
SLACK = 1.25   # pages may be so many times as large as what they are used for
REST = 5.0   # seconds; those that nobody has used for so long are the system's to take
KEEP = 30.0   # and for so long are given back


def _advise(pages: mmap.mmap, name: str) -> None:
    """Does nothing where the system does not know such advice."""
    advice = getattr(mmap, name, None)
    if advice is not None:
        try:
            pages.madvise(advice)
        except OSError:
            pass


def new(size: int) -> mmap.mmap:
    """Zero, and huge pages where the system has some."""
    try:
        pages = mmap.mmap(-1, -(-size // PAGE) * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as why:
        raise OutOfMemoryError(f"there is no memory for a tensor of {size} bytes") from why
    _advise(pages, "MADV_HUGEPAGE")
    return pages


@dataclasses.dataclass(eq=False)
class _Idle:
    pages: mmap.mmap
    since: float
    offered: bool = False   # to the system


class Pages:
    """Those that nobody has. Thread-safe."""

    def __init__(self) -> None:
        self._back: collections.deque[mmap.mmap] = collections.deque()   # filled at any time, also while the lock is held
        self._idle: list[_Idle] = []
        self._lent = 0
        self.forget_watch()

    def forget_watch(self) -> None:
        """As after a fork: no other thread is here, nor has the lock."""
        self._lock, self._is_watched = threading.Lock(), False

    def _look(self) -> list[_Idle]:
        """Those that are idle, and not for too long."""
        now = time.monotonic()
        while self._back:
            self._idle.append(_Idle(self._back.popleft(), now))
            self._lent -= 1
        self._idle = [idle for idle in self._idle if now - idle.since < KEEP]
        return self._idle

    def _start_watch(self) -> None:
        self._is_watched = True
        try:
            threading.Thread(target=self._watch, name="moegen pages", daemon=True).start()
        except RuntimeError:   # there is no thread to have, as when Python ends
            self._is_watched = False

    def _watch(self) -> None:
        """Looks after what is idle, in a thread of its own, until there is nothing that is or may be."""
        while self._is_watched:
            time.sleep(REST)
            with self._lock:
                for idle in self._look():
                    if not idle.offered and time.monotonic() - idle.since >= REST:
                        _advise(idle.pages, "MADV_FREE")
                        idle.offered = True
                self._is_watched = bool(self._idle) or self._lent > 0

    def _new(self, size: int) -> mmap.mmap:
        """In the place of those that are idle, where there is no more memory."""
        try:
            return new(size)
        except OutOfMemoryError:
            self._idle = []
            return new(size)

    def lend(self, size: int) -> Any:
        """Memory with any content, until nobody has this view of it or a tensor made of it: an array of ctypes, since numpy would make
        a memoryview of its own and let go of one that it is given."""
        with self._lock:
            fitting = [idle for idle in self._look() if size <= len(idle.pages) <= SLACK * size + PAGE]
            found = min(fitting, key=lambda idle: len(idle.pages)) if fitting else None
            if found:
                self._idle.remove(found)
            pages = found.pages if found else self._new(size)
            self._lent += 1
            if not self._is_watched:
                self._start_watch()
        view = (ctypes.c_char * len(pages)).from_buffer(pages)
        weakref.finalize(view, self._back.append, pages).atexit = False
        return view


_pages = Pages()
lend = _pages.lend
os.register_at_fork(after_in_child=_pages.forget_watch)
