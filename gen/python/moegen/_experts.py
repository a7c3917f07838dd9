# SPDX-License-Identifier: Apache-2.0
"""_experts.py - kernels of experts for tensors of PyTorch, and the operators moegen::experts, experts_saving (which leaves what the
backward pass needs), experts_backward and experts_backward_ (which adds to gradients that are there).

Their options are JSON of the keys of a spec beside the shape.
"""
from __future__ import annotations

import json
from typing import Any, NamedTuple, Sequence

import torch
from torch import Tensor

from . import _memory, kernel
from ._check import DTYPES, INDICES, check
from ._library import DataError
from ._team import Direct

BLOCKS = (16, 32, 64, 128)   # slots of a block: a padded one costs memory between the passes, not time
TORCH = {name: dtype for dtype, name in DTYPES.items()}
NO_GATE = '"gated": false'   # in options
MANY = 1024   # plans, and cases, to remember
WEIGHTS = ("gate_up_proj_weight", "down_proj_weight", "gate_and_up_proj_bias", "down_proj_bias", "post_norm_weight",
           "gate_up_proj_scale", "down_proj_scale")
TRAINED = 5   # of them, the first ones: those that have gradients
SAVED = ("gate_up_activations_T", "down_activations")
# Tensors of a call in their order.
FORWARD = ("hidden_states", "top_k_index", "top_k_weights", *WEIGHTS, "output", *SAVED)
BACKWARD = ("hidden_states", "top_k_index", "top_k_weights", *WEIGHTS, *SAVED, "output_hidden_states_grad", "hidden_states_grad",
            "top_k_weights_grad", *[n + "_grad" for n in WEIGHTS[:TRAINED]])

Given = Sequence[Any]   # x, ids, weights, gate_up, down, their biases, post_norm, scales of the first two
NO_OTHERS = (None,) * 5   # than gate_up and down


class Shape(NamedTuple):
    """What kernels are made for. options: the rest of the spec as JSON."""
    E: int
    top_k: int
    H: int
    I: int   # noqa: E741
    dtype: str
    pairs: str
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

    def __init__(self, given: Given, options: str):
        told = json.loads(options)
        check(given, told.get("gated", True), told["weights"]["layout"] == "plain")
        x, ids, weights, gate_up, down = given[:5]
        self.shape = shape_of(x, ids, weights, gate_up, down, options)
        self._options = told
        self._made: dict[tuple[Any, ...], Direct] = {}

    def at(self, T: int) -> Shape:
        """The shape with the blocks for T tokens."""
        rows = T * self.shape.top_k // self.shape.E
        return self.shape._replace(block=next((b for b in BLOCKS if b >= rows), BLOCKS[-1]))

    def _make(self, key: tuple[Any, ...], names: Sequence[str], block: int, **more: Any) -> Direct:
        s = self.shape
        made = self._made[key] = Direct(kernel({
            "kernel": "moe_layer", "router": "given", "dtype": s.dtype, "index_dtype": s.pairs, "affinity_dtype": s.affinity,
            "E": s.E, "top_k": s.top_k, "H": s.H, "I_TP": s.I, "block_size": block, **self._options, **more}), names)
        return made

    def forward(self, block: int, saves: bool) -> Direct:
        key = block, saves
        return self._made.get(key) or self._make(key, FORWARD, block, checkpoint="save" if saves else "none")

    def backward(self, block: int, saved: bool, into: str | None, adds: bool) -> Direct:
        """into: dtype of the gradients of weights and biases, None: they are frozen."""
        key = block, saved, into, adds
        made = self._made.get(key)
        if made is None:
            trains = {"weight_grads": "all", "output_dtype": into, "accumulate_grads": adds} if into else {"weight_grads": "none"}
            made = self._make(key, BACKWARD, block, op="backward", checkpoint="saved" if saved else "recompute", **trains)
        return made


class Case:
    """A plan's kernels for a number of tokens, and room for what they give."""

    def __init__(self, plan: Plan, given: Given):
        T = given[0].shape[0]
        s = plan.at(T)
        self._plan, self.T, self._block = plan, T, s.block
        blocks = int(_blocks(T, s))
        self.few = 2 * T * s.top_k < s.E   # most experts have no token
        # Of parameters: gradients of experts without a token stay zero, or are written.
        self.gradient_like = _memory.zeros_like if self.few else _memory.maker([t for t in given[3:] if t is not None])
        shapes = (blocks, 1 if NO_GATE in s.options else 2, s.I, s.block), (blocks, s.block, s.H)
        self._saved = [torch.empty((), dtype=TORCH[s.dtype]).expand(shape) for shape in shapes]   # which have no memory
        self._saved_like = _memory.maker(self._saved)
        self._sizes = {"T": T, "N": blocks}
        self._forward: dict[bool, tuple[Direct, tuple[int, ...]]] = {}
        self._backward: dict[tuple[bool, torch.dtype | None, bool], tuple[Direct, tuple[int, ...]]] = {}

    def room(self) -> tuple[Tensor, Tensor]:
        """For SAVED."""
        first, second = self._saved
        return self._saved_like(first), self._saved_like(second)

    def forward(self, saves: bool) -> tuple[Direct, tuple[int, ...]]:
        """A kernel and the sizes that follow its tensors."""
        found = self._forward.get(saves)
        if found is None:
            made = self._plan.forward(self._block, saves)
            found = self._forward[saves] = made, made.tail(self._sizes)
        return found

    def backward(self, saved: bool, into: torch.dtype | None, adds: bool) -> tuple[Direct, tuple[int, ...]]:
        key = saved, into, adds
        found = self._backward.get(key)
        if found is None:
            made = self._plan.backward(self._block, saved, None if into is None else DTYPES[into], adds)
            found = self._backward[key] = made, made.tail(self._sizes)
        return found


_plans: dict[tuple[Any, ...], Plan] = {}
_cases: dict[tuple[Any, ...], Case] = {}


def _key(given: Given, options: str) -> tuple[Any, ...]:
    (x, ids, weights, gate_up, down), others = given[:5], given[5:]
    more = None if others == NO_OTHERS else tuple([t if t is None else (t.dtype, t.shape) for t in others])
    return (options, x.dtype, x.shape, ids.dtype, ids.shape, weights.dtype, weights.shape, gate_up.dtype, gate_up.shape,
            down.dtype, down.shape, more)


def known_case(given: Given, options: str) -> Case | None:
    """Of tensors whose dtypes and shapes had one before."""
    return _cases.get(_key(given, options))


def case_of(given: Given, options: str) -> Case:
    """Of tensors that are checked when their dtypes and shapes are new. Raises ArgumentError, SpecError."""
    key = _key(given, options)
    case = _cases.get(key)
    if case is None:
        checked = Plan(given, options)
        of_plan = checked.shape._replace(block=0), tuple(t if t is None else (t.dtype, t.shape) for t in given[3:])
        for known in (_plans, _cases):
            if len(known) >= MANY:
                known.clear()
        case = _cases[key] = Case(_plans.setdefault(of_plan, checked), given)
    return case


def _blocks(tokens: Any, s: Shape) -> Any:
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


PARAMETERS = ("Tensor gate_up, Tensor down, Tensor? gate_up_bias, Tensor? down_bias, Tensor? post_norm, "
              "Tensor? gate_up_scale, Tensor? down_scale")
LIBRARY = torch.library.Library("moegen", "DEF")


def register(operators: Sequence[tuple[str, str, Any, Any]]) -> None:
    """Adds operators to the library: name, schema, function for the CPU, fake function."""
    for name, schema, cpu, fake in operators:
        LIBRARY.define(name + schema, tags=torch.Tag.pt2_compliant_tag)
        LIBRARY.impl(name, cpu, "CPU")
        torch.library.register_fake(f"moegen::{name}", fake, lib=LIBRARY)


_FORWARD = f"Tensor x, Tensor ids, Tensor weights, {PARAMETERS}, str options"
LIBRARY.define(f"experts({_FORWARD}) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
LIBRARY.define(f"experts_saving({_FORWARD}) -> (Tensor, Tensor, Tensor)", tags=torch.Tag.pt2_compliant_tag)
_BACKWARD = f"Tensor dy, Tensor x, Tensor ids, Tensor weights, {PARAMETERS}, Tensor? saved_gate_up, Tensor? saved_down, str options"
LIBRARY.define(f"experts_backward({_BACKWARD}, ScalarType? into) -> Tensor[]", tags=torch.Tag.pt2_compliant_tag)
LIBRARY.define(f"experts_backward_({_BACKWARD}, Tensor(a!)[] grads) -> (Tensor, Tensor)", tags=torch.Tag.pt2_compliant_tag)


def _run(made: Direct, tail: tuple[int, ...], tensors: list[Tensor | None]) -> Tensor | None:
    """Runs a kernel. A token that names an expert twice is told to name it once; then the answer is where each pair went."""
    try:
        made(tensors, tail)
        return None
    except DataError:
        x, ids, weights, *others = tensors
        assert ids is not None and weights is not None
        ids, weights, first = merged(ids, weights)
        made([x, ids, weights, *others], tail)
        return first



def forward(case: Case, given: Given, saves: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """y, and what backward needs."""
    tensors: list[Any] = [t if t is None else t.contiguous() for t in given]
    y, (first, second) = torch.empty_like(tensors[0]), case.room() if saves else (None, None)
    if case.T:
        _run(*case.forward(saves), [*tensors, y, first, second])
    return y, first, second


def backward(case: Case, dy: Tensor, given: Given, trains: bool) -> tuple[Tensor, Tensor, list[Tensor | None]]:
    """Gradients of x and weights, and if the parameters have some those. given: followed by what forward left."""
    make = case.gradient_like
    grads = [t if t is None or not trains else make(t) for t in given[3:3 + TRAINED]]
    return *_differentiate(case, dy, given, grads, given[0].dtype if trains else None, case.few), grads


def _differentiate(case: Case, dy: Tensor, given: Given, grads: list[Tensor | None], into: torch.dtype | None,
                   adds: bool) -> tuple[Tensor, Tensor]:
    """Gradients of x and weights; those of weights and biases, in the dtype `into`, go to grads, of those that there are."""
    tensors: list[Any] = [t if t is None else t.contiguous() for t in given]
    dx, dweights = torch.empty_like(tensors[0]), torch.empty_like(tensors[2])
    if case.T == 0:
        return dx, dweights   # gradients are zero, or the caller's
    made, tail = case.backward(tensors[-1] is not None, into, adds)
    first = _run(made, tail, [*tensors, dy.contiguous(), dx, dweights, *grads])
    return dx, dweights if first is None else dweights.gather(1, first)


def _experts(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, gate_up_bias: Tensor | None,
             down_bias: Tensor | None, post_norm: Tensor | None, gate_up_scale: Tensor | None, down_scale: Tensor | None,
             options: str) -> Tensor:
    given = x, ids, weights, gate_up, down, gate_up_bias, down_bias, post_norm, gate_up_scale, down_scale
    return forward(case_of(given, options), given, False)[0]


def _experts_fake(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _experts_saving(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, gate_up_bias: Tensor | None,
                    down_bias: Tensor | None, post_norm: Tensor | None, gate_up_scale: Tensor | None, down_scale: Tensor | None,
                    options: str) -> tuple[Tensor, Tensor, Tensor]:
    given = x, ids, weights, gate_up, down, gate_up_bias, down_bias, post_norm, gate_up_scale, down_scale
    y, first, second = forward(case_of(given, options), given, True)
    assert first is not None and second is not None
    return y, first, second


def _experts_saving_fake(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor,
                         *more: Any) -> tuple[Tensor, Tensor, Tensor]:
    s = shape_of(x, ids, weights, gate_up, down, more[-1])
    n, parts = _blocks(x.shape[0], s), 1 if NO_GATE in s.options else 2
    return _experts_fake(x), x.new_empty(n, parts, s.I, s.block), x.new_empty(n, s.block, s.H)


def _experts_backward(dy: Tensor, x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, gate_up_bias: Tensor | None,
                      down_bias: Tensor | None, post_norm: Tensor | None, gate_up_scale: Tensor | None, down_scale: Tensor | None,
                      saved_gate_up: Tensor | None, saved_down: Tensor | None, options: str, into: torch.dtype | None) -> list[Tensor]:
    given = x, ids, weights, gate_up, down, gate_up_bias, down_bias, post_norm, gate_up_scale, down_scale
    case = case_of(given, options)
    grads: list[Tensor | None] = [None] * TRAINED
    if into is not None:   # gradients of experts without a token stay zero, or are written
        make = _memory.zeros if case.few else _memory.empty
        grads = [t if t is None else make(t.shape, into) for t in given[3:3 + TRAINED]]
    return [*_differentiate(case, dy, (*given, saved_gate_up, saved_down), grads, into, case.few), *[g for g in grads if g is not None]]


def _experts_backward_fake(dy: Tensor, x: Tensor, ids: Tensor, weights: Tensor, *more: Any) -> list[Tensor]:
    *given, into = more[:TRAINED] + more[-1:]
    return [x.new_empty(x.shape), weights.new_empty(weights.shape),
            *[x.new_empty(t.shape, dtype=into) for t in given if t is not None and into is not None]]


def _experts_backward_in_place(dy: Tensor, x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor,
                               gate_up_bias: Tensor | None, down_bias: Tensor | None, post_norm: Tensor | None,
                               gate_up_scale: Tensor | None, down_scale: Tensor | None, saved_gate_up: Tensor | None,
                               saved_down: Tensor | None, options: str, grads: list[Tensor]) -> tuple[Tensor, Tensor]:
    given = x, ids, weights, gate_up, down, gate_up_bias, down_bias, post_norm, gate_up_scale, down_scale
    each = iter(grads)
    of_parameters = [t if t is None else next(each) for t in given[3:3 + TRAINED]]
    return _differentiate(case_of(given, options), dy, (*given, saved_gate_up, saved_down), of_parameters, grads[0].dtype, True)


def _experts_backward_in_place_fake(dy: Tensor, x: Tensor, ids: Tensor, weights: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), weights.new_empty(weights.shape)


_IMPLEMENTATIONS: tuple[tuple[str, Any, Any], ...] = (
    ("experts", _experts, _experts_fake), ("experts_saving", _experts_saving, _experts_saving_fake),
    ("experts_backward", _experts_backward, _experts_backward_fake),
    ("experts_backward_", _experts_backward_in_place, _experts_backward_in_place_fake))
for _name, _cpu, _fake in _IMPLEMENTATIONS:
    LIBRARY.impl(_name, _cpu, "CPU")
    torch.library.register_fake(f"moegen::{_name}", _fake, lib=LIBRARY)
