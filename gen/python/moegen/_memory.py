# SPDX-License-Identifier: Apache-2.0
"""_memory.py - tensors of PyTorch, of which the large ones lie in pages that are used again."""
from __future__ import annotations

import functools
import math
from typing import Any, Callable, Sequence

import torch
from torch import Tensor

from ._pages import LARGE, lend, new

CONTIGUOUS = torch.contiguous_format


def _tensor(memory: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape)).view(shape)


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor with any content."""
    size = math.prod(shape) * dtype.itemsize
    return torch.empty(shape, dtype=dtype) if size < LARGE else _tensor(lend(size), shape, dtype)


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros; a large one has pages that nobody has touched, which are zero for nothing."""
    size = math.prod(shape) * dtype.itemsize
    return torch.zeros(shape, dtype=dtype) if size < LARGE else _tensor(new(size), shape, dtype)


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
