# SPDX-License-Identifier: Apache-2.0
"""_tensors.py - arrays of numpy, PyTorch or anything with DLPack as addresses, dtypes and shapes, and new ones like them."""
from __future__ import annotations

import functools
import importlib
import math
import sys
from typing import Any, NamedTuple

from . import _pages
from ._library import ArgumentError, library

# Of numpy, by its own names; ml_dtypes gives the small floats, else their bits are integers of that size.
NUMPY = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "int64": "i64", "uint8": "u8",
         "uint16": "u16", "uint32": "u32", "float64": "f64", "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2",
         "float8_e8m0fnu": "u8"}
TORCH = {"torch.float32": "f32", "torch.float16": "f16", "torch.bfloat16": "bf16", "torch.int32": "i32", "torch.int64": "i64",
         "torch.uint8": "u8", "torch.uint16": "u16", "torch.uint32": "u32", "torch.float64": "f64",
         "torch.float8_e4m3fn": "fp8_e4m3", "torch.float8_e5m2": "fp8_e5m2", "torch.float8_e8m0fnu": "u8"}
BITS = {1: ("uint8", "int8"), 2: ("uint16", "int16"), 4: ("uint32",)}   # may hold any dtype of that size

LIMITS = (-1 << 31, (1 << 31) - 1)   # of indices: what lies beyond is out of range in any case


class Bound(NamedTuple):
    """A tensor that is in place: its address, number of dtype, shape; `keep` keeps the memory."""
    address: int
    dtype: int | str   # str: one that the library does not know
    shape: tuple[int, ...]
    keep: Any


def is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


@functools.lru_cache(maxsize=1024)
def _number(dtype: Any, wanted: str) -> int | str:
    """Of torch or numpy: the library's number, or the name of one that it does not know. wanted: bits may be of that dtype."""
    name = str(dtype)
    bare = name.removeprefix("torch.")
    ours = wanted if bare in BITS.get(library.dtype_size[wanted], ()) else TORCH.get(name) or NUMPY.get(bare, bare)
    return library.dtype_number.get(ours, ours)


def _from_torch(x: Any, name: str, wanted: str, writes: bool) -> Bound:
    masked = sys.modules.get("torch.masked")
    if masked is not None and isinstance(x, masked.MaskedTensor):
        raise ArgumentError(f"tensor '{name}' has a mask, and kernels have none: x.to_tensor(0) is a tensor without one")
    if x.device.type != "cpu" or x.layout is not sys.modules["torch"].strided or x.is_nested:
        raise ArgumentError(f"tensor '{name}' is no dense tensor in the CPU's memory")
    if writes and not (x.is_contiguous() and not x.is_neg()):
        raise ArgumentError(f"tensor '{name}' is written and has to be contiguous, and no view that negates")
    x = x.detach().contiguous().resolve_neg()
    if wanted == "i32" and not writes and x.dtype == sys.modules["torch"].int64:
        x = x.clamp(*LIMITS).int()
    return Bound(x.data_ptr(), _number(x.dtype, wanted), x.shape, x)


def _from_numpy(x: Any, name: str, wanted: str, writes: bool) -> Bound:
    import numpy
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(x, masked.MaskedArray):
        raise ArgumentError(f"tensor '{name}' has a mask, and kernels have none: x.filled(0) is an array without one")
    if not isinstance(x, numpy.ndarray):
        x = numpy.from_dlpack(x) if hasattr(x, "__dlpack__") else numpy.asarray(x)
    if writes and not (x.flags.c_contiguous and x.flags.writeable):
        raise ArgumentError(f"tensor '{name}' is written and has to be contiguous and writeable")
    x = x if x.flags.c_contiguous else numpy.ascontiguousarray(x)
    if wanted == "i32" and x.dtype.name == "int64" and not writes:
        x = x.clip(*LIMITS).astype("int32")
    return Bound(x.ctypes.data, _number(x.dtype, wanted), x.shape, x)


def bind(x: Any, name: str, wanted: str, writes: bool) -> Bound:
    """x as it lies; of what is only read a copy where it is not contiguous, or has indices of 64 bits. wanted: the kernel's dtype."""
    bound = (_from_torch if is_torch(x) else _from_numpy)(x, name, wanted, writes)
    if isinstance(bound.dtype, str):
        raise ArgumentError(f"tensor '{name}' has dtype {bound.dtype}, which kernels do not know")
    return bound


@functools.lru_cache(maxsize=64)
def _torch_dtype(dtype: str) -> Any:
    known = {ours: theirs.removeprefix("torch.") for theirs, ours in reversed(TORCH.items())}
    return getattr(sys.modules["torch"], known.get(dtype, "uint8"))


def _numpy_dtype(dtype: str) -> Any:
    """Without ml_dtypes numpy's small floats are their bits: uint16, uint8."""
    import numpy
    known = {ours: theirs for theirs, ours in reversed(NUMPY.items())}
    name = known.get(dtype, "uint8")
    try:
        return numpy.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes
        return numpy.dtype(getattr(ml_dtypes, name))
    except ImportError:
        return numpy.dtype(BITS[library.dtype_size[dtype]][0])


def empty(shape: tuple[int, ...], dtype: str, torch: bool) -> Any:
    """A new array or tensor with any content; a large one in pages that are used again."""
    module: Any = sys.modules["torch"] if torch else importlib.import_module("numpy")
    own = _torch_dtype(dtype) if torch else _numpy_dtype(dtype)
    count = math.prod(shape)
    size = count * library.dtype_size[dtype]
    if size < _pages.LARGE:
        return module.empty(shape, dtype=own)
    return module.frombuffer(_pages.lend(size), dtype=own, count=count).reshape(shape)
