# SPDX-License-Identifier: Apache-2.0
"""torch.py - the experts of a mixture-of-experts layer as an operator of PyTorch, with gradients.

    import torch, moegen.torch
    y = moegen.torch.experts(x, ids, weights, gate_up, down)     # as a layer of Qwen, OLMoE, Mixtral holds them

Kernels are made for E, top_k, H, I, dtype and options at the first call with them, in milliseconds, and kept.
"""
from __future__ import annotations

import functools
import json
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import kernel
from ._library import ArgumentError, DataError

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
BLOCKS = (16, 32, 64, 128)   # slots of a block: a padded one costs memory between the passes, not time


class _Shape(NamedTuple):
    """What kernels are made for. options: the rest of the spec as JSON."""
    E: int
    top_k: int
    H: int
    I: int   # noqa: E741
    dtype: str
    block: int
    options: str


class _Kernels:
    """The kernels of a shape, each made when it is first asked for."""

    def __init__(self, shape: _Shape):
        self._shape = shape
        self._made: dict[str, Any] = {}

    def _make(self, name: str, spec: dict[str, Any]):
        if name not in self._made:
            self._made[name] = kernel(spec)
        return self._made[name]

    def index(self):
        s = self._shape
        return self._make("index", {"kernel": "moe_index", "E": s.E, "top_k": s.top_k, "block_size": s.block, "skip_token": True})

    def _spec(self, family: str, **more) -> dict[str, Any]:
        s = self._shape
        return {"kernel": family, "dtype": s.dtype, "E": s.E, "top_k": s.top_k, "H": s.H, "I_TP": s.I, "block_size": s.block,
                "skip_token": True, "affinity_dtype": "f32", **json.loads(s.options), **more}

    def forward(self, save: bool):
        return self._make(f"forward{save}", self._spec("moe_forward", checkpoint="save" if save else "none"))

    def backward(self, trains: bool):
        return self._make(f"backward{trains}", self._spec("moe_backward", weight_grads="all" if trains else "none"))


_kernels = functools.lru_cache(maxsize=256)(_Kernels)


def _shape_of(x: Tensor, ids: Tensor, gate_up: Tensor, down: Tensor, options: str) -> _Shape:
    E, H, top_k = gate_up.shape[0], x.shape[1], ids.shape[1]
    I = down.numel() // max(E * H, 1)   # noqa: E741
    rows = x.shape[0] * top_k // max(E, 1)
    return _Shape(E, top_k, H, I, DTYPES[x.dtype], next((b for b in BLOCKS if b >= rows), BLOCKS[-1]), options)


def _blocks(tokens, s: _Shape):
    """The number of blocks that moe_index fills: as many as the worst choice of experts takes."""
    return torch.sym_max((tokens * s.top_k + s.block - s.E) // s.block + s.E - 1, 1)


def _run(made, threads: int, **tensors: Tensor | None) -> None:
    """Runs a kernel on contiguous tensors of its dtypes; those of fixed extents are seen in the kernel's shape."""
    fixed = made.fixed
    made.run_at({n: (t.data_ptr(), fixed[n] or t.shape) for n, t in tensors.items() if t is not None and n in fixed}, threads)


def _route(s: _Shape, x: Tensor, ids: Tensor, weights: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
    """Tensors that tell kernels of the experts; ids all of which name one; which of them count, None: all."""
    T, n, valid = x.shape[0], int(_blocks(x.shape[0], s)), None
    lists = torch.empty(n * (s.block + 2) + 1, dtype=torch.int32).split((n * s.block, n, n + 1))
    given = dict(zip(("token_position_to_id", "block_to_expert", "conditions"), lists))
    try:
        _run(_kernels(s).index(), 1, expert_index=ids.clamp(-1, s.E).int().contiguous(), **given)
    except DataError:   # some name no expert: the largest of the same token again, or the first one, with no weight
        valid = (ids >= 0) & (ids < s.E)
        ids, weights = torch.where(valid, ids, torch.where(valid, ids, 0).amax(1, keepdim=True)), torch.where(valid, weights, 0)
        _run(_kernels(s).index(), 1, expert_index=ids.int().contiguous(), **given)
    ids = ids.long()
    dense = torch.zeros(T, s.E, dtype=torch.float32).scatter_add_(1, ids, weights.float())
    return {"hidden_states": x, "expert_affinities_masked": dense.view(-1, 1), **given}, ids, valid


def _saved(x: Tensor, s: _Shape, save: bool) -> tuple[Tensor, Tensor]:
    """Room for what the backward pass needs, see checkpoint: save of moe_forward."""
    if not save:
        return x.new_empty(0), x.new_empty(0)
    n, parts = _blocks(x.shape[0], s), 2 if json.loads(s.options).get("gated", True) else 1
    return x.new_empty(n, parts, s.I, s.block), x.new_empty(n, s.block, s.H)


@torch.library.custom_op("moegen::experts", mutates_args=(), device_types="cpu")
def _experts(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, gate_up_bias: Tensor | None,
             down_bias: Tensor | None, options: str, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    s = _shape_of(x, ids, gate_up, down, options)
    y, saved = x.new_empty(x.shape), _saved(x, s, save)
    if x.shape[0]:
        left = dict(zip(("gate_up_activations_T", "down_activations"), saved)) if save else {}
        gate_up_bias, down_bias = (b if b is None else b.contiguous() for b in (gate_up_bias, down_bias))
        x, gate_up, down = x.contiguous(), gate_up.contiguous(), down.contiguous()
        _run(_kernels(s).forward(save), torch.get_num_threads(), **_route(s, x, ids, weights)[0], gate_up_proj_weight=gate_up,
             down_proj_weight=down, gate_and_up_proj_bias=gate_up_bias, down_proj_bias=down_bias, output=y, **left)
    return y, *saved


@_experts.register_fake
def _(x, ids, weights, gate_up, down, gate_up_bias, down_bias, options, save):
    return x.new_empty(x.shape), *_saved(x, _shape_of(x, ids, gate_up, down, options), save)


def _gradients(x: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, s: _Shape, trains: bool) -> list[Tensor]:
    """Room for them: of x, weights, and with `trains` of gate_up, down and the biases that there are."""
    grads, bias = [x.new_empty(x.shape), weights.new_empty(weights.shape)], json.loads(s.options).get("bias", {})
    if trains:
        grads += [gate_up.new_empty(gate_up.shape), down.new_empty(down.shape)]
        grads += [x.new_empty(s.E, gate_up.numel() // (s.E * s.H))] * bias.get("gate_up", False)
        grads += [x.new_empty(s.E, s.H)] * bias.get("down", False)
    return grads


@torch.library.custom_op("moegen::experts_backward", mutates_args=(), device_types="cpu")
def _experts_backward(dy: Tensor, x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, saved_gate_up: Tensor,
                      saved_down: Tensor, options: str, trains: bool) -> list[Tensor]:
    s = _shape_of(x, ids, gate_up, down, options)
    grads = _gradients(x, weights, gate_up, down, s, trains)
    if x.shape[0] == 0:
        return [g.zero_() for g in grads]
    made, dense = _kernels(s).backward(trains), torch.empty(x.shape[0] * s.E, 1)
    given, ids, valid = _route(s, x.contiguous(), ids, weights)
    names = [n for n in ("gate_up_proj_weight_grad", "down_proj_weight_grad", "gate_and_up_proj_bias_grad", "down_proj_bias_grad")
             if n in made.fixed]
    _run(made, torch.get_num_threads(), **given, gate_up_proj_weight=gate_up.contiguous(), down_proj_weight=down.contiguous(),
         gate_up_proj_act_checkpoint_T=saved_gate_up, down_proj_act_checkpoint=saved_down, output_hidden_states_grad=dy.contiguous(),
         hidden_states_grad=grads[0], expert_affinities_masked_grad=dense, **dict(zip(names, grads[2:])))
    by_pair = dense.view(x.shape[0], s.E).gather(1, ids)
    grads[1].copy_(by_pair if valid is None else torch.where(valid, by_pair, 0))
    return grads


@_experts_backward.register_fake
def _(dy, x, ids, weights, gate_up, down, saved_gate_up, saved_down, options, trains):
    return _gradients(x, weights, gate_up, down, _shape_of(x, ids, gate_up, down, options), trains)


def _setup_context(ctx, inputs, output):
    x, ids, weights, gate_up, down, gate_up_bias, down_bias, ctx.options, ctx.save = inputs
    ctx.biases = gate_up_bias is not None, down_bias is not None
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, ids, weights, gate_up, down, output[1], output[2])


def _differentiate(ctx, dy, *_):
    none = [None] * 9
    if dy is None:
        return tuple(none)
    if not ctx.save:
        raise RuntimeError("moegen::experts: nothing was saved for gradients")
    x, ids, weights, gate_up, down, *saved = ctx.saved_tensors
    needs = ctx.needs_input_grad
    dx, dweights, *rest = _experts_backward(dy.to(x.dtype), x, ids, weights, gate_up, down, *saved, ctx.options, any(needs[3:7]))
    none[0], none[2] = dx, dweights
    for at, there in ((3, True), (4, True), (5, ctx.biases[0]), (6, ctx.biases[1])):
        if there and rest:
            none[at] = rest.pop(0)
    return tuple(g if n else None for g, n in zip(none, needs))


_experts.register_autograd(_differentiate, setup_context=_setup_context)


def _range(limits) -> str:
    low, high = limits or (None, None)
    return f"[{'null' if low is None else float(low)}, {'null' if high is None else float(high)}]"


def _options(activation, gated, clamp, up_offset, transposed, interleaved, gate_up_bias, down_bias) -> str:
    """JSON of the keys that a spec has beside the shape; without the module json, which torch.compile does not follow."""
    bias = f'"bias": {{"gate_up": {str(gate_up_bias).lower()}, "down": {str(down_bias).lower()}}}'
    order = ', "gate_up_order": "interleaved"' if interleaved else ""
    layout = "plain" if transposed else "transposed"
    limits = "".join(f', "{name}": {_range(clamp[name])}' for name in ("gate", "up") if clamp and name in clamp)
    clamped = f', "clamp": {{{limits[2:]}}}' if limits else ""
    return (f'{{"activation": "{activation}", "gated": {str(gated).lower()}, {bias}, "weights": {{"layout": "{layout}"{order}}}'
            f'{clamped}, "up_offset": {float(up_offset)}}}')


def experts(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, *, gate_up_bias: Tensor | None = None,
            down_bias: Tensor | None = None, activation: str = "silu", gated: bool = True, clamp: dict[str, Any] | None = None,
            up_offset: float = 0.0, transposed: bool = False, interleaved: bool = False) -> Tensor:
    """y[t] = sum over the k experts e of token t of weights[t, j] * down_e(act(gate_e(x[t])) * up_e(x[t])), in the dtype of x.

    x: [T, H], float32, bfloat16 or float16; T may be 0. ids: [T, k] integers; those outside 0..E-1 are skipped. weights: [T, k],
    any float. gate_up: [E, 2I, H], down: [E, H, I] in x's dtype; transposed: [E, H, 2I] and [E, I, H]. The first half of 2I is the
    gate, or with `interleaved` every other one, from the first on; without `gated` there is no gate: [E, I, H]. gate_up_bias:
    [E, 2I], down_bias: [E, H], in x's dtype. activation: `moegen list activations`. clamp: {"gate": [low, high], "up": [low, high]},
    None leaves a side open; up_offset is added to up after it.

    Gradients for x, weights, gate_up, down and the biases, of those that need one (once differentiable). Products are in x's
    dtype with sums in float32; the result does not depend on the number of threads, which is torch's.
    """
    if x.dim() != 2 or x.dtype not in DTYPES:
        raise ArgumentError(f"x: [T, H] of float32, bfloat16 or float16, not {list(x.shape)} of {x.dtype}")
    if ids.shape != weights.shape or ids.dim() != 2 or ids.shape[0] != x.shape[0] or ids.is_floating_point():
        raise ArgumentError(f"ids, weights: [T, k] for {x.shape[0]} tokens, not {list(ids.shape)} and {list(weights.shape)}")
    E, H, parts = gate_up.shape[0], x.shape[1], 2 if gated else 1
    columns, I = (2, down.shape[1]) if transposed else (1, down.shape[2])   # noqa: E741
    if (gate_up.dim() != 3 or down.dim() != 3 or gate_up.shape[columns] != parts * I or gate_up.shape[3 - columns] != H
            or list(down.shape) != ([E, I, H] if transposed else [E, H, I])):
        raise ArgumentError(f"gate_up {list(gate_up.shape)}, down {list(down.shape)} are not matrices of {E} experts for H = {H}")
    for name, t, shape in (("gate_up", gate_up, None), ("down", down, None), ("gate_up_bias", gate_up_bias, [E, parts * I]),
                           ("down_bias", down_bias, [E, H])):
        if t is not None and (t.dtype != x.dtype or (shape and list(t.shape) != shape)):
            raise ArgumentError(f"{name}: {shape or list(t.shape)} of {x.dtype}, not {list(t.shape)} of {t.dtype}")
    options = _options(activation, gated, clamp, up_offset, transposed, interleaved and gated, gate_up_bias is not None,
                       down_bias is not None)
    save = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weights, gate_up, down, gate_up_bias,
                                                                                      down_bias))
    return _experts(x, ids, weights, gate_up, down, gate_up_bias, down_bias, options, save)[0]
