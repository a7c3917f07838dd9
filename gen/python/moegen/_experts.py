# SPDX-License-Identifier: Apache-2.0
"""_experts.py - kernels of experts for tensors of PyTorch, and the operators moegen::experts, experts_backward and experts_backward_.

Operators take what has been checked by moegen.torch.experts. Their options are JSON of the keys of a spec beside the shape.
"""
from __future__ import annotations

import functools
import json
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import kernel
from ._library import DataError

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
INDICES = {torch.int32: "i32", torch.int64: "i64"}
BLOCKS = (16, 32, 64, 128)   # slots of a block: a padded one costs memory between the passes, not time
SAVE, RECOMPUTE, NOTHING = "save", "recompute", "none"   # what forward leaves for backward


class Shape(NamedTuple):
    """What kernels are made for. options: the rest of the spec as JSON."""
    E: int
    top_k: int
    H: int
    I: int   # noqa: E741
    dtype: str
    index: str
    affinity: str
    block: int
    options: str


class _Kernels:
    """The kernels of a shape, each made when it is first asked for."""

    def __init__(self, shape: Shape):
        self.options = json.loads(shape.options)
        self._shape = shape
        self._made: dict[tuple, Any] = {}

    def _make(self, *key, **more):
        s = self._shape
        self._made[key] = kernel({
            "kernel": "moe_layer", "router": "given", "dtype": s.dtype, "index_dtype": s.index, "affinity_dtype": s.affinity,
            "E": s.E, "top_k": s.top_k, "H": s.H, "I_TP": s.I, "block_size": s.block, **self.options, **more})
        return self._made[key]

    def forward(self, leaves: str):
        return self._made.get((leaves,)) or self._make(leaves, checkpoint="save" if leaves == SAVE else "none")

    def backward(self, leaves: str, into: str | None, adds: bool):
        """into: dtype of the gradients of weights and biases, None: they are frozen."""
        made = self._made.get((leaves, into, adds))
        if made is None:
            trains = {"weight_grads": "all", "output_dtype": into, "accumulate_grads": adds} if into else {"weight_grads": "none"}
            made = self._make(leaves, into, adds, op="backward", checkpoint="saved" if leaves == SAVE else "recompute", **trains)
        return made


kernels = functools.lru_cache(maxsize=256)(_Kernels)


def shape_of(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, options: str) -> Shape:
    E, top_k = gate_up.shape[0], ids.shape[1]
    rows = x.shape[0] * top_k // max(E, 1)
    # Codes lie as [E, out, in], of which `in` may be several to a byte: I is half of gate_up's rows, or all.
    plain = gate_up.dtype in DTYPES
    I = down.numel() // max(E * x.shape[1], 1) if plain else gate_up.shape[1] // (1 if '"gated": false' in options else 2)   # noqa: E741
    return Shape(E, top_k, x.shape[1], I, DTYPES[x.dtype], INDICES[ids.dtype], DTYPES[weights.dtype],
                 next((b for b in BLOCKS if b >= rows), BLOCKS[-1]), options)


def _blocks(tokens, s: Shape):
    """As many as the worst choice of experts takes."""
    return torch.sym_max((tokens * s.top_k + s.block - s.E) // s.block + s.E - 1, 1)


def _run(made, **tensors: Tensor | None) -> None:
    """Runs a kernel on contiguous tensors of its dtypes; those of fixed extents are seen in the kernel's shape."""
    fixed = made.fixed
    made.run_at({n: (t.data_ptr(), fixed[n] or t.shape) for n, t in tensors.items() if t is not None and n in fixed},
                torch.get_num_threads())


def _merged(ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A token that names an expert twice names it once, with the sum of the weights: (ids, weights, where each pair went)."""
    first = (ids[:, :, None] == ids[:, None, :]).int().argmax(2)
    once = first == torch.arange(ids.shape[1])
    return (torch.where(once, ids, -1), torch.zeros_like(weights).scatter_add_(1, first, weights), first)


def _room(x: Tensor, s: Shape, leaves: str) -> tuple[Tensor, Tensor]:
    """For what the backward pass needs: gate and up, and what the experts gave."""
    if leaves != SAVE:
        return x.new_empty(0), x.new_empty(0)
    n, parts = _blocks(x.shape[0], s), 1 if '"gated": false' in s.options else 2
    return x.new_empty(n, parts, s.I, s.block), x.new_empty(n, s.block, s.H)


def _matrices(gate_up: Tensor, down: Tensor, gate_up_bias, down_bias, gate_up_scale, down_scale) -> dict[str, Tensor | None]:
    names = ("gate_up_proj_weight", "down_proj_weight", "gate_and_up_proj_bias", "down_proj_bias", "gate_up_proj_scale",
             "down_proj_scale")
    return {n: t if t is None else t.contiguous()
            for n, t in zip(names, (gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale))}


PARAMETERS = ("Tensor gate_up, Tensor down, Tensor? gate_up_bias, Tensor? down_bias, Tensor? gate_up_scale, Tensor? down_scale")
LIBRARY = torch.library.Library("moegen", "DEF")
LIBRARY.define(f"experts(Tensor x, Tensor ids, Tensor weights, {PARAMETERS}, str options, str leaves) -> (Tensor, Tensor, Tensor)",
               tags=torch.Tag.pt2_compliant_tag)
_BACKWARD = f"Tensor dy, Tensor x, Tensor ids, Tensor weights, {PARAMETERS}, Tensor saved_gate_up, Tensor saved_down, str options, str leaves"
LIBRARY.define(f"experts_backward({_BACKWARD}, ScalarType? into) -> Tensor[]", tags=torch.Tag.pt2_compliant_tag)
LIBRARY.define(f"experts_backward_({_BACKWARD}, Tensor(a!)[] grads) -> (Tensor, Tensor)", tags=torch.Tag.pt2_compliant_tag)


def _experts(x, ids, weights, gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale, options, leaves):
    s = shape_of(x, ids, weights, gate_up, down, options)
    y, saved = torch.empty(x.shape, dtype=x.dtype), _room(x, s, leaves)
    if x.shape[0] == 0:
        return y, *saved
    left = {"gate_up_activations_T": saved[0], "down_activations": saved[1]} if leaves == SAVE else {}
    given = {"hidden_states": x.contiguous(), "output": y, **left,
             **_matrices(gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale)}
    made, ids, weights = kernels(s).forward(leaves), ids.contiguous(), weights.contiguous()
    try:
        _run(made, top_k_index=ids, top_k_weights=weights, **given)
    except DataError:
        ids, weights, _ = _merged(ids, weights)
        _run(made, top_k_index=ids, top_k_weights=weights, **given)
    return y, *saved


def _experts_fake(x, ids, weights, gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale, options, leaves):
    return torch.empty_like(x, memory_format=torch.contiguous_format), *_room(
        x, shape_of(x, ids, weights, gate_up, down, options), leaves)


def gradients(x: Tensor, gate_up: Tensor, down: Tensor, gate_up_bias: Tensor | None, down_bias: Tensor | None,
              into: torch.dtype | None) -> list[Tensor]:
    """Room for those of gate_up, down and the biases that there are; none if `into` is None."""
    if into is None:
        return []
    return [x.new_empty(t.shape, dtype=into) for t in (gate_up, down, gate_up_bias, down_bias) if t is not None]


def _differentiate(dy, x, ids, weights, parameters, saved, options, leaves, grads, adds):
    """Gradients of x and weights; those of weights and biases go to grads, in the order of `gradients`."""
    s = shape_of(x, ids, weights, *parameters[:2], options)
    dx, dweights = torch.empty(x.shape, dtype=x.dtype), torch.empty(weights.shape, dtype=weights.dtype)
    if x.shape[0] == 0:
        for g in grads if not adds else ():
            g.zero_()
        return dx, dweights
    made = kernels(s).backward(leaves, DTYPES[grads[0].dtype] if grads else None, adds)
    left = {"gate_up_activations_T": saved[0], "down_activations": saved[1]} if leaves == SAVE else {}
    given = {"hidden_states": x.contiguous(), "output_hidden_states_grad": dy.contiguous(), "hidden_states_grad": dx,
             "top_k_weights_grad": dweights, **left, **_matrices(*parameters)}
    names = ("gate_up_proj_weight", "down_proj_weight", "gate_and_up_proj_bias", "down_proj_bias")
    given.update(zip((n + "_grad" for n, t in zip(names, parameters) if t is not None), grads))
    ids, weights = ids.contiguous(), weights.contiguous()
    try:
        _run(made, top_k_index=ids, top_k_weights=weights, **given)
    except DataError:
        ids, weights, first = _merged(ids, weights)
        _run(made, top_k_index=ids, top_k_weights=weights, **given)
        dweights = dweights.gather(1, first)
    return dx, dweights


def _experts_backward(dy, x, ids, weights, gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale, saved_gate_up,
                      saved_down, options, leaves, into):
    parameters = gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale
    grads = gradients(x, *parameters[:4], into)
    return [*_differentiate(dy, x, ids, weights, parameters, (saved_gate_up, saved_down), options, leaves, grads, False), *grads]


def _experts_backward_fake(dy, x, ids, weights, gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale, saved_gate_up,
                           saved_down, options, leaves, into):
    return [x.new_empty(x.shape), weights.new_empty(weights.shape), *gradients(x, gate_up, down, gate_up_bias, down_bias, into)]


def _experts_backward_in_place(dy, x, ids, weights, gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale, saved_gate_up,
                               saved_down, options, leaves, grads):
    parameters = gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale
    return _differentiate(dy, x, ids, weights, parameters, (saved_gate_up, saved_down), options, leaves, grads, True)


def _experts_backward_in_place_fake(dy, x, ids, weights, *_):
    return x.new_empty(x.shape), weights.new_empty(weights.shape)


for _name, _cpu, _fake in (("experts", _experts, _experts_fake), ("experts_backward", _experts_backward, _experts_backward_fake),
                           ("experts_backward_", _experts_backward_in_place, _experts_backward_in_place_fake)):
    LIBRARY.impl(_name, _cpu, "CPU")
    torch.library.register_fake(f"moegen::{_name}", _fake, lib=LIBRARY)
