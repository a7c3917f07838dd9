# SPDX-License-Identifier: Apache-2.0
"""_experts.py - kernels of experts for tensors of PyTorch, and the operators moegen::experts, experts_saving (which leaves what the
backward pass needs), experts_backward and experts_backward_ (which adds to gradients that are there).

Their options are JSON of the keys of a spec beside the shape.
"""
from __future__ import annotations

import json
import mmap
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import kernel
from ._check import DTYPES, INDICES, check
from ._library import DataError
from ._team import Direct

BLOCKS = (16, 32, 64, 128)   # slots of a block: a padded one costs memory between the passes, not time
NO_GATE = '"gated": false'   # in options
MANY = 1024   # plans to remember
LARGE = 4 << 20   # bytes of a gradient from which on it has pages of its own


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


def shape_of(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, options: str) -> Shape:
    E, top_k = gate_up.shape[0], ids.shape[1]
    rows = x.shape[0] * top_k // max(E, 1)
    # Codes lie as [E, out, in], of which `in` may be several to a byte: I is half of gate_up's rows, or all.
    plain = gate_up.dtype in DTYPES
    I = down.numel() // max(E * x.shape[1], 1) if plain else gate_up.shape[1] // (1 if NO_GATE in options else 2)   # noqa: E741
    return Shape(E, top_k, x.shape[1], I, DTYPES[x.dtype], INDICES[ids.dtype], DTYPES[weights.dtype],
                 next((b for b in BLOCKS if b >= rows), BLOCKS[-1]), options)


class Plan:
    """The kernels for tensors of the same dtypes and shapes, but for T; each is made when it is first asked for."""

    def __init__(self, x, ids, weights, parameters, options: str):
        told = json.loads(options)
        check(x, ids, weights, *parameters, told.get("gated", True), told["weights"]["layout"] == "plain")
        self.shape = shape_of(x, ids, weights, *parameters[:2], options)
        self._options = told
        self._made: dict[tuple, Direct] = {}

    def at(self, T: int) -> Shape:
        """The shape with the blocks for T tokens."""
        rows = T * self.shape.top_k // self.shape.E
        block = next((b for b in BLOCKS if b >= rows), BLOCKS[-1])
        return self.shape if block == self.shape.block else self.shape._replace(block=block)

    def _make(self, key, block: int, **more) -> Direct:
        s = self.shape
        made = self._made[key] = Direct(kernel({
            "kernel": "moe_layer", "router": "given", "dtype": s.dtype, "index_dtype": s.index, "affinity_dtype": s.affinity,
            "E": s.E, "top_k": s.top_k, "H": s.H, "I_TP": s.I, "block_size": block, **self._options, **more}))
        return made

    def forward(self, block: int, saves: bool) -> Direct:
        key = block, saves
        return self._made.get(key) or self._make(key, block, checkpoint="save" if saves else "none")

    def backward(self, block: int, saved: bool, into: str | None, adds: bool) -> Direct:
        """into: dtype of the gradients of weights and biases, None: they are frozen."""
        key = block, saved, into, adds
        made = self._made.get(key)
        if made is None:
            trains = {"weight_grads": "all", "output_dtype": into, "accumulate_grads": adds} if into else {"weight_grads": "none"}
            made = self._make(key, block, op="backward", checkpoint="saved" if saved else "recompute", **trains)
        return made


_plans: dict[tuple, Plan] = {}


def plan_of(x, ids, weights, parameters, options: str) -> Plan:
    """Of tensors that are checked when their dtypes and shapes are new. Raises ArgumentError, SpecError."""
    shape, pairs, gate_up, down = x.shape, ids.shape, parameters[0], parameters[1]
    key = (options, x.dtype, shape[1:], ids.dtype, pairs[1:], weights.dtype, gate_up.dtype, gate_up.shape, down.dtype, down.shape,
           *[t if t is None else (t.dtype, t.shape) for t in parameters[2:]])
    plan = _plans.get(key)
    if plan is None or weights.shape != pairs or shape[0] != pairs[0]:
        plan = Plan(x, ids, weights, parameters, options)
        if len(_plans) >= MANY:
            _plans.clear()
        _plans[key] = plan
    return plan


def _blocks(tokens, s: Shape):
    """As many as the worst choice of experts takes."""
    return torch.sym_max((tokens * s.top_k + s.block - s.E) // s.block + s.E - 1, 1)


def merged(ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A token that names an expert twice names it once, with the sum of the weights: (ids, weights, where each pair went)."""
    first = (ids[:, :, None] == ids[:, None, :]).int().argmax(2)
    once = first == torch.arange(ids.shape[1], device=ids.device)
    return (torch.where(once, ids, -1), torch.zeros_like(weights).scatter_add_(1, first, weights), first)


def first_of(ids: Tensor, weights: Tensor, E: int) -> tuple[Tensor, Tensor]:
    """The pairs [T, E] that name one of E experts, of more to a token than there are experts, as where others have the rest."""
    ids, weights, _ = merged(ids, weights)
    order = ((ids < 0) | (ids >= E)).int().argsort(dim=1, stable=True)[:, :E]
    return ids.gather(1, order), weights.gather(1, order)


def _room(x: Tensor, s: Shape) -> tuple[Tensor, Tensor]:
    """For what the backward pass needs: gate and up, and what the experts gave."""
    n, parts = _blocks(x.shape[0], s), 1 if NO_GATE in s.options else 2
    return x.new_empty(n, parts, s.I, s.block), x.new_empty(n, s.block, s.H)


def _matrices(gate_up: Tensor, down: Tensor, gate_up_bias, down_bias, gate_up_scale, down_scale) -> dict[str, Tensor | None]:
    names = ("gate_up_proj_weight", "down_proj_weight", "gate_and_up_proj_bias", "down_proj_bias", "gate_up_proj_scale",
             "down_proj_scale")
    return {n: t if t is None else t.contiguous()
            for n, t in zip(names, (gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale))}


PARAMETERS = ("Tensor gate_up, Tensor down, Tensor? gate_up_bias, Tensor? down_bias, Tensor? gate_up_scale, Tensor? down_scale")
LIBRARY = torch.library.Library("moegen", "DEF")
_FORWARD = f"Tensor x, Tensor ids, Tensor weights, {PARAMETERS}, str options"
LIBRARY.define(f"experts({_FORWARD}) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
LIBRARY.define(f"experts_saving({_FORWARD}) -> (Tensor, Tensor, Tensor)", tags=torch.Tag.pt2_compliant_tag)
_BACKWARD = f"Tensor dy, Tensor x, Tensor ids, Tensor weights, {PARAMETERS}, Tensor? saved_gate_up, Tensor? saved_down, str options"
LIBRARY.define(f"experts_backward({_BACKWARD}, ScalarType? into) -> Tensor[]", tags=torch.Tag.pt2_compliant_tag)
LIBRARY.define(f"experts_backward_({_BACKWARD}, Tensor(a!)[] grads) -> (Tensor, Tensor)", tags=torch.Tag.pt2_compliant_tag)


def _run(made: Direct, ids: Tensor, weights: Tensor, tensors: dict[str, Tensor | None], sizes: dict[str, int]) -> Tensor | None:
    """Runs a kernel. A token that names an expert twice is told to name it once; then the answer is where each pair went."""
    try:
        made({"top_k_index": ids.contiguous(), "top_k_weights": weights.contiguous(), **tensors}, sizes)
        return None
    except DataError:
        ids, weights, first = merged(ids, weights)
        made({"top_k_index": ids, "top_k_weights": weights, **tensors}, sizes)
        return first


def _forward(x, ids, weights, parameters, options: str, saves: bool):
    plan, T = plan_of(x, ids, weights, parameters, options), x.shape[0]
    s, y = plan.at(T), torch.empty_like(x, memory_format=torch.contiguous_format)
    saved = _room(x, s) if saves else ()
    if T:
        given, sizes = {"hidden_states": x.contiguous(), "output": y, **_matrices(*parameters)}, {"T": T}
        if saves:
            given.update(gate_up_activations_T=saved[0], down_activations=saved[1])
            sizes["N"] = saved[1].shape[0]
        _run(plan.forward(s.block, saves), ids, weights, given, sizes)
    return y, *saved


def _experts(x, ids, weights, gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale, options):
    return _forward(x, ids, weights, (gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale), options, False)[0]


def _experts_fake(x, *_):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _experts_saving(x, ids, weights, gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale, options):
    return _forward(x, ids, weights, (gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale), options, True)


def _experts_saving_fake(x, ids, weights, gate_up, down, *more):
    return _experts_fake(x), *_room(x, shape_of(x, ids, weights, gate_up, down, more[-1]))


def _zeros(like: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Large ones are pages that nobody has touched: zero for nothing, and huge ones where the system has some."""
    size = shape.numel() * dtype.itemsize
    if size < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return like.new_zeros(shape, dtype=dtype)
    pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        pages.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass   # a kernel without them
    return torch.frombuffer(pages, dtype=dtype).view(shape)


def gradients(x: Tensor, gate_up: Tensor, down: Tensor, gate_up_bias: Tensor | None, down_bias: Tensor | None,
              into: torch.dtype | None) -> list[Tensor]:
    """Room for those of gate_up, down and the biases that there are, all zero; none if `into` is None."""
    if into is None:
        return []
    return [_zeros(x, t.shape, into) for t in (gate_up, down, gate_up_bias, down_bias) if t is not None]


def _differentiate(dy, x, ids, weights, parameters, saved, options, grads, adds):
    """Gradients of x and weights; those of weights and biases go to grads, in the order of `gradients`."""
    dx, dweights = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, weights))
    T = x.shape[0]
    if T == 0:
        return dx, dweights   # gradients are zero, or the caller's
    plan = plan_of(x, ids, weights, parameters, options)
    made = plan.backward(plan.at(T).block, saved[0] is not None, DTYPES[grads[0].dtype] if grads else None, adds)
    given, sizes = {"hidden_states": x.contiguous(), "output_hidden_states_grad": dy.contiguous(), "hidden_states_grad": dx,
                    "top_k_weights_grad": dweights, **_matrices(*parameters)}, {"T": T}
    if saved[0] is not None:
        given.update(gate_up_activations_T=saved[0], down_activations=saved[1])
        sizes["N"] = saved[1].shape[0]
    names = ("gate_up_proj_weight", "down_proj_weight", "gate_and_up_proj_bias", "down_proj_bias")
    given.update(zip((n + "_grad" for n, t in zip(names, parameters) if t is not None), grads))
    first = _run(made, ids, weights, given, sizes)
    return dx, dweights if first is None else dweights.gather(1, first)


def _experts_backward(dy, x, ids, weights, gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale, saved_gate_up,
                      saved_down, options, into):
    parameters = gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale
    grads = gradients(x, *parameters[:4], into)
    few = 2 * ids.numel() < gate_up.shape[0]   # most experts have no token: their gradients stay as they are
    return [*_differentiate(dy, x, ids, weights, parameters, (saved_gate_up, saved_down), options, grads, few), *grads]


def _experts_backward_fake(dy, x, ids, weights, gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale, saved_gate_up,
                           saved_down, options, into):
    given = () if into is None else (gate_up, down, gate_up_bias, down_bias)
    return [x.new_empty(x.shape), weights.new_empty(weights.shape), *[x.new_empty(t.shape, dtype=into) for t in given if t is not None]]


def _experts_backward_in_place(dy, x, ids, weights, gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale, saved_gate_up,
                               saved_down, options, grads):
    parameters = gate_up, down, gate_up_bias, down_bias, gate_up_scale, down_scale
    return _differentiate(dy, x, ids, weights, parameters, (saved_gate_up, saved_down), options, grads, True)


def _experts_backward_in_place_fake(dy, x, ids, weights, *_):
    return x.new_empty(x.shape), weights.new_empty(weights.shape)


for _name, _cpu, _fake in (("experts", _experts, _experts_fake), ("experts_saving", _experts_saving, _experts_saving_fake),
                           ("experts_backward", _experts_backward, _experts_backward_fake),
                           ("experts_backward_", _experts_backward_in_place, _experts_backward_in_place_fake)):
    LIBRARY.impl(_name, _cpu, "CPU")
    torch.library.register_fake(f"moegen::{_name}", _fake, lib=LIBRARY)
