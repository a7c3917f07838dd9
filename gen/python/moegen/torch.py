# SPDX-License-Identifier: Apache-2.0
"""torch.py - the experts of a mixture-of-experts layer as an operator of PyTorch, with gradients, and whole layers.

    import torch, moegen.torch
    y = moegen.torch.experts(x, ids, weights, gate_up, down)     # as a layer of Qwen, OLMoE, Mixtral holds them
    layer = moegen.torch.MoELayer(H=2048, I_TP=1024, E=64, top_k=8)

Kernels are made for E, top_k, H, I, dtypes and options at the first call with them, in milliseconds, and kept.
"""
from __future__ import annotations

import functools
from typing import Any, Mapping, Sequence

import torch
from torch import Tensor
from torch.compiler import is_compiling, is_dynamo_compiling

from . import _experts
from ._autograd import Adding, by_operators, function_of, refuse_gradients
from ._check import CODES, DTYPES, INDICES, check_ranks, shared_by
from ._layer import MoELayer
from ._library import ArgumentError, KindError
from ._main_grad import mains_of
from ._split import SplitLayer
from ._transforms import has_to_be_a_function, is_eager, nobody_looks

__all__ = ["MoELayer", "SplitLayer", "experts", "options"]

OPS = torch.ops.moegen
_is_grad_enabled, _is_inference = torch.is_grad_enabled, torch.is_inference_mode_enabled
_known, _facts = _experts.cases.get, _experts.facts


def _limits(clamp: Mapping[str, Any]) -> tuple[Any, ...]:
    """Name, low, high of each."""
    found = []
    if not hasattr(clamp, "items"):
        raise ArgumentError(f"clamp: a mapping of limits by names, not {clamp!r}")
    for name, limits in clamp.items():
        if limits is not None:
            both = (None, limits) if name == "activated" else limits
            if name not in ("gate", "up", "activated") or not isinstance(both, (list, tuple)) or len(both) != 2:
                raise ArgumentError(f'clamp: {{"gate": [low, high], "up": [low, high], "activated": high}}, not {name!r}: {limits!r}')
            found.append((name, *both))
    return tuple(found)


def _number(limit: float | None, is_open: str = "") -> str:
    """JSON. is_open: what is no limit, as None."""
    try:
        number = is_open if limit is None else f"{float(limit)}"
    except (TypeError, ValueError):
        number = "nan"
    if number == is_open:
        return "null"
    if number in ("inf", "-inf", "nan"):
        raise ArgumentError(f"clamp, up_offset, post_norm_eps: {limit} is no such number")
    return number


def _stored(gate_up: Tensor, gate_up_scale: Tensor | None) -> str:
    """JSON of `weights.dtype` and what belongs to it: formats are told by the dtypes and shapes of codes and scales."""
    if gate_up.dtype not in CODES:
        return ""
    if gate_up_scale is None:
        raise ArgumentError(f"gate_up and down of {gate_up.dtype} are codes, which have scales")
    by = shared_by(gate_up, gate_up_scale)
    if isinstance(by, str):
        return f', "dtype": "fp8_e4m3", "scale": "{by}"'
    return f', "dtype": "int4", "group": {by}' if gate_up_scale.dtype == torch.bfloat16 else ', "dtype": "mxfp4"'


def options(gate_up: Tensor, *, gate_up_scale: Tensor | None = None, clamp: Mapping[str, Any] | None = None, activation: str = "silu",
            gated: bool = True, up_offset: float = 0.0, transposed: bool = False, interleaved: bool = False, gate_up_bias: bool = False,
            down_bias: bool = False, post_norm_eps: float | None = None) -> str:
    """What is special about some experts, as operators take it: JSON of the keys that a spec has beside the shape."""
    limits = _limits(clamp) if clamp else ()
    make = _options if is_compiling() else _known_options
    stored = "" if gate_up.dtype in DTYPES else _stored(gate_up, gate_up_scale)
    return make(stored, gate_up.dtype == torch.uint8, limits, activation, gated, up_offset, transposed, interleaved, gate_up_bias,
                down_bias, post_norm_eps)


def _options(stored: str, packed: bool, limits: tuple[Any, ...], activation: str, gated: bool, up_offset: float, transposed: bool,
             interleaved: bool, gate_up_bias: bool, down_bias: bool, post_norm_eps: float | None = None) -> str:
    layout = "contiguous" if packed else "plain" if transposed else "transposed"
    order = ', "gate_up_order": "interleaved"' if interleaved and gated else ""
    clamp = ", ".join(f'"{name}": ' + (_number(high, "inf") if name == "activated"
                                       else "[" + _number(low, "-inf") + ", " + _number(high, "inf") + "]")
                      for name, low, high in limits)
    clamped = f', "clamp": {{{clamp}}}' if clamp else ""
    norm = "" if post_norm_eps is None else f', "post_norm": {{"eps": {_number(post_norm_eps)}}}'
    bias = f'"bias": {{"gate_up": {str(gate_up_bias).lower()}, "down": {str(down_bias).lower()}}}'
    return (f'{{"activation": "{activation}", "gated": {str(bool(gated)).lower()}, {bias}, '
            f'"weights": {{"layout": "{layout}"{order}{stored}}}{clamped}{norm}, "up_offset": {_number(up_offset)}}}')


_known_options = functools.lru_cache(maxsize=256)(_options)


def experts(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, *, gate_up_bias: Tensor | None = None,
            down_bias: Tensor | None = None, activation: str = "silu", gated: bool = True, clamp: Mapping[str, Any] | None = None,
            up_offset: float = 0.0, transposed: bool = False, interleaved: bool = False, gate_up_scale: Tensor | None = None,
            down_scale: Tensor | None = None, post_norm: Tensor | None = None, post_norm_eps: float = 1e-6,
            recompute: bool = False) -> Tensor:
    """y[t] = sum over the k experts e of token t of weights[t, j] * down_e(act(gate_e(x[t])) * up_e(x[t])), in the dtype of x.

    x: [T, H], float32, bfloat16 or float16; T may be 0. ids: [T, k] integers; those outside 0..E-1 are skipped. weights: [T, k],
    any float. gate_up: [E, 2I, H], down: [E, H, I] in x's dtype; transposed: [E, H, 2I] and [E, I, H]. The first half of 2I is the
    gate, or with `interleaved` every other one, from the first on; without `gated` there is no gate: [E, I, H]. gate_up_bias:
    [E, 2I], down_bias: [E, H], in x's dtype. activation: `moegen list activations`. clamp: {"gate": [low, high], "up": [low, high]},
    None leaves a side open, and "activated": the most that act gives; up_offset is added to up after it. Under torch.autocast, x
    may have another dtype than the matrices: it is rounded to theirs, and y to x's.

    post_norm: [H], in x's dtype: what an expert gives, down_e(...) with its bias, is multiplied by it and then divided by the root of
    its mean square plus post_norm_eps, before weights[t, j] multiplies it.

    Matrices may be codes with scales, which are used as they are and have no gradients: float8_e4m3fn [E, out, in] with f32 factors
    of 128 x 128 elements [E, ceil(out / 128), ceil(in / 128)] or of rows [E, out, 1]; mxfp4, uint8 [E, out, in / 32, 16] with uint8
    [E, out, in / 32]; int4, uint8 [E, out, in / 2] (the lower nibble first, 8 is zero) with bfloat16 [E, out, in / 32 or in / 128].

    Gradients for x, weights, gate_up, down, the biases and post_norm, of those that need one (once differentiable). A parameter with an
    attribute `main_grad` has its gradient added to that, in float32, and none of its own; its `grad_added_to_main_grad`, if there is
    such a flag, is set; inside of torch.compile it has a gradient of its own. recompute: gate and up are computed again in the backward
    pass instead of kept for it; with post_norm they are kept. Products are in x's dtype with sums in float32; the result does not
    depend on the number of threads, which is torch's.
    Raises ArgumentError (a ValueError) for shapes and dtypes, SpecError for sizes and options that kernels are not made for.
    """
    quick = not is_dynamo_compiling() and nobody_looks()
    if quick:   # was there such a call before?
        there: tuple[Tensor, ...] = (x, ids, weights, gate_up, down)
        asked: tuple[Any, ...] = (activation, gated, up_offset, transposed, interleaved)
        if (gate_up_bias is not None or down_bias is not None or clamp or post_norm is not None or gate_up_scale is not None
                or down_scale is not None):
            others = gate_up_bias, down_bias, post_norm, gate_up_scale, down_scale
            there += tuple([t for t in others if t is not None])
            asked += _limits(clamp) if clamp else (), post_norm_eps, *[t is not None for t in others]
        try:
            case = _known((asked, *map(_facts, there)))   # known_case, without its calls
        except AttributeError:
            raise KindError(f"experts: tensors of PyTorch, not {', '.join(type(t).__name__ for t in there)}") from None
        if case is not None:
            if not _is_grad_enabled() or not (x.requires_grad or weights.requires_grad or gate_up.requires_grad or down.requires_grad
                                              or case.count > 5 and any([t.requires_grad for t in there[5:]])) or _is_inference():
                return _experts.forward(case, there)
            if case.count > 5 or hasattr(gate_up, "main_grad") or hasattr(down, "main_grad"):
                return _learned(case, recompute, there)
            return (case.functions.get(recompute) or function_of(case, recompute))(*there)
    check_ranks(gate_up, down, gate_up_scale, down_scale)
    if x.dtype != gate_up.dtype and gate_up.dtype in DTYPES and torch.is_autocast_enabled("cpu"):
        return experts(x.to(gate_up.dtype), ids, weights, gate_up, down, gate_up_bias=gate_up_bias, down_bias=down_bias,
                       activation=activation, gated=gated, clamp=clamp, up_offset=up_offset, transposed=transposed,
                       interleaved=interleaved, post_norm=post_norm, post_norm_eps=post_norm_eps, recompute=recompute).to(x.dtype)
    if clamp or post_norm is not None or gate_up.dtype not in DTYPES or is_compiling():
        told = options(gate_up, activation=activation, gated=gated, clamp=clamp, up_offset=up_offset, transposed=transposed,
                       interleaved=interleaved, gate_up_bias=gate_up_bias is not None, down_bias=down_bias is not None,
                       gate_up_scale=gate_up_scale, post_norm_eps=None if post_norm is None else post_norm_eps)
    else:
        told = _known_options("", False, (), activation, gated, up_offset, transposed, interleaved, gate_up_bias is not None,
                              down_bias is not None)
    y = checked(x, ids, weights, gate_up, down, gate_up_bias, down_bias, post_norm, gate_up_scale, down_scale, told, recompute)
    if quick and is_eager(there):
        _experts.also_told(there, asked, told)
    return y


def _has_gradient(t: Tensor | None) -> bool:
    return t is not None and t.requires_grad


def _pairs(ids: Tensor, weights: Tensor, E: int) -> tuple[Tensor, Tensor]:
    """ids and weights in dtypes that kernels take, and no more to a token than there are experts."""
    if ids.dtype not in INDICES:
        if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
            raise ArgumentError(f"ids, weights: ids are integers, not {ids.dtype}")
        ids = ids.long()
    if weights.dtype not in DTYPES:
        if weights.is_complex():
            raise ArgumentError(f"ids, weights: weights are real numbers, not {weights.dtype}")
        weights = weights.float()
    if ids.dim() == 2 and ids.shape == weights.shape and ids.shape[1] > E > 0:
        return _experts.first_of(ids, weights, E)
    return ids, weights


def _learned(case: _experts.Case, recompute: bool, there: Sequence[Tensor]) -> Tensor:
    """Of tensors of which some have gradients."""
    parameters = there[3:3 + case.trained]
    if case.are_codes:
        refuse_gradients(parameters)
    mains = mains_of(parameters)
    recompute = recompute and not case.keeps
    if mains is None:
        return function_of(case, recompute)(*there)
    y: Tensor = Adding.apply(case, recompute, mains, *there)
    return y


def checked(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, gate_up_bias: Tensor | None,
            down_bias: Tensor | None, post_norm: Tensor | None, gate_up_scale: Tensor | None, down_scale: Tensor | None, told: str,
            recompute: bool = False) -> Tensor:
    """`experts` of what is known to be right; told: `options`."""
    given = x, ids, weights, gate_up, down, gate_up_bias, down_bias, post_norm, gate_up_scale, down_scale
    there = _experts.there_of(given)
    eager = is_eager(there)
    case = _experts.known_case(there, told) if eager else None
    if case is None:
        if any([t.layout != torch.strided for t in there]):
            raise ArgumentError(f"experts: dense tensors, not {', '.join(str(t.layout) for t in there)}")
        ids, weights = pairs = _pairs(ids, weights, gate_up.shape[0])
        given, there = (x, *pairs, *given[3:]), [x, *pairs, *there[3:]]
        case = _experts.case_of(given, told) if eager else None
    if case is None and any([t.device != x.device for t in there]):
        raise ArgumentError(f"experts: tensors on one device, not {', '.join(str(t.device) for t in there)}")
    trains = _is_grad_enabled() and any([_has_gradient(t) for t in given[:8]]) and (is_compiling() or not _is_inference())
    if case is not None:
        return _learned(case, recompute, there) if trains else _experts.forward(case, there)
    if has_to_be_a_function(trains):
        return by_operators(given, told, recompute)[0]
    y: Tensor = OPS.experts.default(*given, told, recompute)
    return y
