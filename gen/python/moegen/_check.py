# SPDX-License-Identifier: Apache-2.0
"""_check.py - are tensors those of experts? Dtypes and shapes, in the words of moegen.torch.experts; and what kernels trust in."""
from __future__ import annotations

import functools
import operator
from typing import Any, Callable, Sequence

import torch
from torch import Tensor

from ._library import ArgumentError

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
INDICES = {torch.int32: "i32", torch.int64: "i64"}
CODES = (torch.uint8, torch.float8_e4m3fn)

Kinds = tuple[list[torch.dtype], list[int]]   # of tensors: dtypes, and how many elements
Alike = Callable[..., bool]   # are tensors of the classes, dtypes, shapes, strides and devices of others, as negated and as trained?
_contiguous, _is_negated, _dtype, _elements = Tensor.contiguous, Tensor.is_neg, operator.attrgetter("dtype"), Tensor.numel


def nothing_is_alike(*_: Tensor) -> bool:
    return False


def _guards(tensors: Sequence[Tensor]) -> Alike:
    """PyTorch's own, by which compiled code knows its inputs: one call for what are several of each tensor."""
    from torch._C._dynamo import guards
    make: Any = guards.TensorGuards
    check: Alike = make(*tensors, dynamic_dims_sizes=[[*t.shape] for t in tensors],
                        dynamic_dims_strides=[[*t.stride()] for t in tensors]).check
    return check


@functools.lru_cache(maxsize=None)
def _tell_apart() -> bool:
    """Are there guards that see all that matters here? They are no part of PyTorch that others can count on."""
    t, likeness = torch.zeros(2, 2), torch.zeros(2, 2)
    others = (t.T, t[:1], t.double(), t.int(), torch._neg_view(t), torch.nn.Parameter(t), t.to("meta"), torch.zeros(4, 2)[::2])
    try:
        check = _guards((t, t))
        return check(likeness, t) and not any(check(o, t) or check(t, o) for o in others)
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError):
        return False


def alike(tensors: Sequence[Tensor]) -> Alike:
    """To these. Without guards nothing is, and each tensor has to be looked at."""
    return _guards(tensors) if _tell_apart() else nothing_is_alike


def in_memory(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Contiguous, and of the numbers that their memory has: others are views of it that negate, as the imaginary part of a conjugate."""
    found = [*map(_contiguous, tensors)]
    return [t.resolve_neg() for t in found] if True in map(_is_negated, found) else found


def is_in_memory(tensors: Sequence[Tensor]) -> bool:
    return all(map(operator.is_, in_memory(tensors), tensors))


def kinds_of(tensors: Sequence[Tensor]) -> Kinds:
    return [*map(_dtype, tensors)], [*map(_elements, tensors)]


def check_kept(tensors: Sequence[Tensor], kinds: Kinds) -> None:
    """Are tensors of a backward pass of the kinds that those of the forward pass were? Hooks may have made others of them."""
    dtypes, elements = kinds
    if [*map(_dtype, tensors)] != dtypes or [*map(_elements, tensors)] != elements:
        i = next(i for i, t in enumerate(tensors) if t.dtype != dtypes[i] or t.numel() != elements[i])
        raise ArgumentError(f"backward: a tensor of the forward pass had {elements[i]} elements of {dtypes[i]}, and has "
                            f"{tensors[i].numel()} of {tensors[i].dtype} now: hooks of saved tensors give them back as they were")


def check_ranks(gate_up: Tensor, down: Tensor, gate_up_scale: Tensor | None, down_scale: Tensor | None) -> None:
    """Are they matrices of experts, and scales of such? What other checks look at shapes for."""
    for name, t in (("gate_up", gate_up), ("down", down), ("gate_up_scale", gate_up_scale), ("down_scale", down_scale)):
        if t is not None and t.dim() < 3:
            raise ArgumentError(f"{name}: matrices [E, rows, columns] of experts, or their scales, not {list(t.shape)}")


def check(given: Sequence[Any], gated: bool, transposed: bool) -> None:
    """given: as experts() has them, from x to down_scale."""
    x, ids, weights, gate_up, down, gate_up_bias, down_bias, post_norm, gate_up_scale, down_scale = given
    if x.dim() != 2 or x.dtype not in DTYPES:
        raise ArgumentError(f"x: [T, H] of float32, bfloat16 or float16, not {list(x.shape)} of {x.dtype}")
    if ids.shape != weights.shape or ids.dim() != 2 or ids.shape[0] != x.shape[0]:
        raise ArgumentError(f"ids, weights: [T, k] for {x.shape[0]} tokens, not {list(ids.shape)} and {list(weights.shape)}")
    check_ranks(gate_up, down, gate_up_scale, down_scale)
    E, H, parts = gate_up.shape[0], x.shape[1], 2 if gated else 1
    if E == 0:
        raise ArgumentError("gate_up: there are no experts")
    if gate_up.dtype in CODES:
        _check_codes(gate_up, down, gate_up_scale, down_scale, E, H, parts)
        I = gate_up.shape[1] // parts   # noqa: E741
    else:
        if gate_up_scale is not None or down_scale is not None:
            raise ArgumentError(f"gate_up_scale, down_scale: of codes, not of {gate_up.dtype}")
        columns, I = (2, down.shape[1]) if transposed else (1, down.shape[2])   # noqa: E741
        if (gate_up.dim() != 3 or down.dim() != 3 or gate_up.shape[columns] != parts * I or gate_up.shape[3 - columns] != H
                or list(down.shape) != ([E, I, H] if transposed else [E, H, I])):
            raise ArgumentError(f"gate_up {list(gate_up.shape)}, down {list(down.shape)} are not matrices of {E} experts for H = {H}")
        if gate_up.dtype != x.dtype or down.dtype != x.dtype:
            raise ArgumentError(f"gate_up, down: of {x.dtype} as x, not {gate_up.dtype} and {down.dtype}")
    for name, t, shape in (("gate_up_bias", gate_up_bias, [E, parts * I]), ("down_bias", down_bias, [E, H]), ("post_norm", post_norm, [H])):
        if t is not None and (t.dtype != x.dtype or list(t.shape) != shape):
            raise ArgumentError(f"{name}: {shape} of {x.dtype}, not {list(t.shape)} of {t.dtype}")


def shared_by(codes: Tensor, scale: Tensor) -> str | int:
    """What shares a scale: a "row" or "block" of 128 x 128 elements of fp8, or so many elements of a row."""
    E, out = codes.shape[:2]
    if codes.dtype == torch.float8_e4m3fn:
        blocks = [E, -(-out // 128), -(-codes.shape[2] // 128)]
        return "block" if list(scale.shape) == blocks or scale.numel() != E * out else "row"
    return 128 if scale.dtype == torch.bfloat16 and 64 * scale.numel() == codes.numel() else 32


def _check_codes(gate_up: Tensor, down: Tensor, gate_up_scale: Tensor | None, down_scale: Tensor | None, E: int, H: int,
                 parts: int) -> None:
    I = gate_up.shape[1] // parts   # noqa: E741
    one: str | int = ""   # gate_up's and down's scales are shared alike
    is_int4 = gate_up_scale is not None and gate_up_scale.dtype == torch.bfloat16
    for name, codes, scale, out, n in (("gate_up", gate_up, gate_up_scale, parts * I, H), ("down", down, down_scale, H, I)):
        each = 1 if codes.dtype == torch.float8_e4m3fn else 2
        if codes.dtype != gate_up.dtype or list(codes.shape[:2]) != [E, out] or codes.numel() != E * out * n // each:
            raise ArgumentError(f"{name}: codes [E, out, in] of {E} experts for H = {H}, I = {I}, not {list(codes.shape)} of {codes.dtype}")
        if scale is None or scale.shape[0] != E:
            raise ArgumentError(f"{name}_scale: the scales of {name}, which is {codes.dtype}")
        one = one or shared_by(codes, scale)
        shape = [*scale.shape]
        if isinstance(one, str):
            blocks = [E, -(-out // 128), -(-n // 128)]
            right = scale.dtype == torch.float32 and (scale.numel() == E * out and out in shape if one == "row" else shape == blocks)
        else:
            right = (n % one == 0 and shape == [E, out, n // one]
                     and scale.dtype in ((torch.bfloat16,) if is_int4 else (torch.uint8, torch.float8_e8m0fnu)))
        if not right:
            raise ArgumentError(f"{name}_scale {list(scale.shape)} of {scale.dtype} are no scales of {list(codes.shape)} {codes.dtype}"
                                + (f", one for each {one}" if isinstance(one, str) else f", one for {one} elements"))
