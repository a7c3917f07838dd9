# SPDX-License-Identifier: Apache-2.0
"""torch.py - the experts of a mixture-of-experts layer as an operator of PyTorch, with gradients, and whole layers.

    import torch, moegen.torch
    y = moegen.torch.experts(x, ids, weights, gate_up, down)     # as a layer of Qwen, OLMoE, Mixtral holds them
    layer = moegen.torch.MoELayer(H=2048, I_TP=1024, E=64, top_k=8)

Kernels are made for E, top_k, H, I, dtypes and options at the first call with them, in milliseconds, and kept.
"""
from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from . import _experts
from ._check import CODES, DTYPES, INDICES
from ._layer import MoELayer
from ._library import ArgumentError

__all__ = ["MoELayer", "experts", "options"]

OPS = torch.ops.moegen


class _Experts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, ids, weights, gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale, options, recompute, mains):
        given = x, ids, weights, gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale
        y, *saved = [OPS.experts.default(*given, options), None, None] if recompute else OPS.experts_saving.default(*given, options)
        ctx.options, ctx.mains = options, mains
        ctx.save_for_backward(*given, *saved)
        return y

    @staticmethod
    def backward(ctx, dy):
        """Its answers are no functions of what it gets: who differentiates them has an error."""
        with torch.no_grad():
            found = _Experts.gradients(ctx, dy)
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return found
        some = [g.requires_grad_() for g in found if g is not None]
        some = iter(torch._C._functions.DelayedError(b"moegen.torch.experts can be differentiated once", len(some))(*some))
        return tuple(g if g is None else next(some) for g in found)

    @staticmethod
    def gradients(ctx, dy):
        given = ctx.saved_tensors
        x, parameters, needs = given[0], given[3:7], ctx.needs_input_grad
        trains, mains = any(needs[3:7]), ctx.mains
        there = [i for i, t in enumerate(parameters) if t is not None]
        if trains and mains and all(_adds_in_place(mains[i], mains[0], x) for i in there):
            dx, dweights = OPS.experts_backward_.default(dy, *given, ctx.options, [mains[i] for i in there])
            grads = [None] * 4
        else:
            into = (torch.float32 if mains else x.dtype) if trains else None
            dx, dweights, *found = OPS.experts_backward.default(dy, *given, ctx.options, into)
            grads = [None] * 4
            for i, g in zip(there, found):
                grads[i] = g
            for i in there if trains and mains else ():
                if mains[i] is not None:
                    mains[i].add_(grads[i])
                    grads[i] = None
                else:
                    grads[i] = grads[i].to(parameters[i].dtype)
        if mains:
            for i in there:
                if mains[i] is not None:
                    grads[i] = _told(parameters[i])
        return tuple(g if n else None for g, n in zip((dx, None, dweights, *grads, *[None] * 5), needs))


def _adds_in_place(main: Tensor | None, first: Tensor | None, x: Tensor) -> bool:
    """May a kernel add to it, with the others in one call?"""
    return (main is not None and main.is_contiguous() and main.dtype == first.dtype and main.dtype in (torch.float32, x.dtype)
            and main.device.type == "cpu")


def _told(parameter: Tensor) -> Tensor | None:
    """What a backward pass returns for a parameter whose gradient is in its main_grad: trainers that set the flag want a stand-in."""
    if not hasattr(parameter, "grad_added_to_main_grad"):
        return None
    parameter.grad_added_to_main_grad = True
    make = torch.zeros if getattr(parameter, "zero_out_wgrad", False) else torch.empty
    return make(parameter.shape, dtype=parameter.dtype)


def _number(limit: float | None) -> str:
    return "null" if limit is None else str(float(limit))


def _stored(gate_up: Tensor, gate_up_scale: Tensor | None) -> str:
    """JSON of `weights.dtype` and what belongs to it: formats are told by the dtypes and shapes of codes and scales."""
    if gate_up.dtype not in CODES:
        return ""
    if gate_up_scale is None:
        raise ArgumentError(f"gate_up and down of {gate_up.dtype} are codes, which have scales")
    rows = gate_up.shape[1]
    if gate_up.dtype == torch.float8_e4m3fn:
        by = "row" if rows in gate_up_scale.shape[1:] and gate_up_scale.numel() == gate_up.shape[0] * rows else "block"
        return f', "dtype": "fp8_e4m3", "scale": "{by}"'
    if gate_up_scale.dtype == torch.bfloat16:
        return f', "dtype": "int4", "group": {2 * gate_up.shape[2] // gate_up_scale.shape[2]}'
    return ', "dtype": "mxfp4"'


def options(gate_up: Tensor, *, gate_up_scale: Tensor | None = None, clamp: dict[str, Any] | None = None, **more) -> str:
    """What is special about some experts, as operators take it: JSON of the keys that a spec has beside the shape."""
    limits = tuple((name, (None, clamp[name]) if name == "activated" else tuple(clamp[name] or (None, None)))
                   for name in ("gate", "up", "activated") if clamp.get(name) is not None) if clamp else ()
    make = _options if torch.compiler.is_compiling() else _known_options
    return make(_stored(gate_up, gate_up_scale), gate_up.dtype == torch.uint8, limits, **more)


def _options(stored: str, packed: bool, limits: tuple, activation: str = "silu", gated: bool = True, up_offset: float = 0.0,
             transposed: bool = False, interleaved: bool = False, gate_up_bias: bool = False, down_bias: bool = False) -> str:
    layout = "contiguous" if packed else "plain" if transposed else "transposed"
    order = ', "gate_up_order": "interleaved"' if interleaved and gated else ""
    clamp = ", ".join(f'"{name}": ' + (_number(high) if name == "activated" else f"[{_number(low)}, {_number(high)}]")
                      for name, (low, high) in limits)
    clamped = f', "clamp": {{{clamp}}}' if clamp else ""
    bias = f'"bias": {{"gate_up": {str(gate_up_bias).lower()}, "down": {str(down_bias).lower()}}}'
    return (f'{{"activation": "{activation}", "gated": {str(gated).lower()}, {bias}, "weights": {{"layout": "{layout}"{order}{stored}}}'
            f'{clamped}, "up_offset": {float(up_offset)}}}')


_known_options = functools.lru_cache(maxsize=256)(_options)


def experts(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, *, gate_up_bias: Tensor | None = None,
            down_bias: Tensor | None = None, activation: str = "silu", gated: bool = True, clamp: dict[str, Any] | None = None,
            up_offset: float = 0.0, transposed: bool = False, interleaved: bool = False, gate_up_scale: Tensor | None = None,
            down_scale: Tensor | None = None, recompute: bool = False) -> Tensor:
    """y[t] = sum over the k experts e of token t of weights[t, j] * down_e(act(gate_e(x[t])) * up_e(x[t])), in the dtype of x.

    x: [T, H], float32, bfloat16 or float16; T may be 0. ids: [T, k] integers; those outside 0..E-1 are skipped. weights: [T, k],
    any float. gate_up: [E, 2I, H], down: [E, H, I] in x's dtype; transposed: [E, H, 2I] and [E, I, H]. The first half of 2I is the
    gate, or with `interleaved` every other one, from the first on; without `gated` there is no gate: [E, I, H]. gate_up_bias:
    [E, 2I], down_bias: [E, H], in x's dtype. activation: `moegen list activations`. clamp: {"gate": [low, high], "up": [low, high]},
    None leaves a side open, and "activated": the most that act gives; up_offset is added to up after it. Under torch.autocast, x
    may have another dtype than the matrices: it is rounded to theirs, and y to x's.

    Matrices may be codes with scales, which are used as they are and have no gradients: float8_e4m3fn [E, out, in] with f32 factors
    of 128 x 128 elements [E, ceil(out / 128), ceil(in / 128)] or of rows [E, out, 1]; mxfp4, uint8 [E, out, in / 32, 16] with uint8
    [E, out, in / 32]; int4, uint8 [E, out, in / 2] (the lower nibble first, 8 is zero) with bfloat16 [E, out, in / 32 or in / 128].

    Gradients for x, weights, gate_up, down and the biases, of those that need one (once differentiable). A parameter with an
    attribute `main_grad` has its gradient added to that, in float32, and none of its own; its `grad_added_to_main_grad`, if there is
    such a flag, is set. recompute: gate and up are computed again in the backward pass instead of kept for it. Products are in x's
    dtype with sums in float32; the result does not depend on the number of threads, which is torch's.
    Raises ArgumentError (a ValueError) for shapes and dtypes, SpecError for sizes and options that kernels are not made for.
    """
    if x.dtype != gate_up.dtype and gate_up.dtype in DTYPES and torch.is_autocast_enabled("cpu"):
        return experts(x.to(gate_up.dtype), ids, weights, gate_up, down, gate_up_bias=gate_up_bias, down_bias=down_bias,
                       activation=activation, gated=gated, clamp=clamp, up_offset=up_offset, transposed=transposed,
                       interleaved=interleaved, recompute=recompute).to(x.dtype)
    told = options(gate_up, activation=activation, gated=gated, clamp=clamp, up_offset=up_offset, transposed=transposed,
                   interleaved=interleaved, gate_up_bias=gate_up_bias is not None, down_bias=down_bias is not None,
                   gate_up_scale=gate_up_scale)
    return checked(x, ids, weights, gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale, told, recompute)


def checked(x, ids, weights, gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale, told: str, recompute=False) -> Tensor:
    """`experts` of what is known to be right; told: `options`."""
    if ids.dtype not in INDICES:
        if ids.is_floating_point() or ids.is_complex():
            raise ArgumentError(f"ids, weights: ids are integers, not {ids.dtype}")
        ids = ids.long()
    weights = weights if weights.dtype in DTYPES else weights.float()
    if ids.dim() == 2 and ids.shape == weights.shape and ids.shape[1] > gate_up.shape[0] > 0:
        ids, weights = _experts.first_of(ids, weights, gate_up.shape[0])
    parameters = gate_up, down, gate_up_bias, down_bias
    if not torch.is_grad_enabled() or not any(t is not None and t.requires_grad for t in (x, weights, *parameters)):
        return OPS.experts.default(x, ids, weights, *parameters, gate_up_scale, down_scale, told)
    if gate_up_scale is not None and any(t is not None and t.requires_grad for t in parameters):
        raise ArgumentError("experts whose matrices are codes are frozen: set requires_grad of their biases to False")
    mains = None
    if not torch.compiler.is_compiling() and any(hasattr(t, "main_grad") for t in parameters):
        mains = [getattr(t, "main_grad", None) if t is not None and t.requires_grad else None for t in parameters]
    return _Experts.apply(x, ids, weights, *parameters, gate_up_scale, down_scale, told, recompute, mains)
