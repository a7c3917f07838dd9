# SPDX-License-Identifier: Apache-2.0
"""_experts.py - kernels of experts for tensors of PyTorch. Options are JSON of the keys of a spec beside the shape."""
from __future__ import annotations

import functools
import itertools
import json
import operator
from typing import Any, NamedTuple, Sequence

import torch
from torch import Tensor

from . import _memory, kernel
from ._check import DTYPES, INDICES, Alike, Kinds, alike, check, check_kept, in_memory, kinds_of
from ._library import DataError
from ._team import Direct, Run

BLOCKS = (16, 32, 64, 128)   # slots of a block: a padded one costs memory between the passes, not time
TORCH = {name: dtype for dtype, name in DTYPES.items()}
NO_GATE = '"gated": false'   # in options
MANY = 1024   # plans, and cases, to remember
WEIGHTS = ("gate_up_proj_weight", "down_proj_weight", "gate_and_up_proj_bias", "down_proj_bias", "post_norm_weight",
           "gate_up_proj_scale", "down_proj_scale")
TRAINED = 5   # of them, the first ones: those that have gradients
SAVED, BEHIND = "gate_up_activations_T", "down_activations"   # one behind the other in a tensor
GIVEN = ("hidden_states", "top_k_index", "top_k_weights", *WEIGHTS)
DY, GIVES = "output_hidden_states_grad", ("hidden_states_grad", "top_k_weights_grad")

Given = Sequence[Any]   # x, ids, weights, gate_up, down, their biases, post_norm, scales of the first two
There = Sequence[Tensor]   # those of them that are there


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


def block_for(rows: Any) -> Any:
    """The least of BLOCKS that so many rows of an expert fit in, or the largest; of a symbol, too, without a look at what it is."""
    return BLOCKS[0] + sum((more - less) * torch.sym_min(1, rows // (less + 1)) for less, more in itertools.pairwise(BLOCKS))


def shape_of(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, options: str) -> Shape:
    E, top_k = gate_up.shape[0], ids.shape[1]
    rows = x.shape[0] * top_k // max(E, 1)
    # Codes lie as [E, out, in], of which `in` may be several to a byte: I is half of gate_up's rows, or all.
    plain = gate_up.dtype in DTYPES
    I = down.numel() // max(E * x.shape[1], 1) if plain else gate_up.shape[1] // (1 if NO_GATE in options else 2)   # noqa: E741
    return Shape(E, top_k, x.shape[1], I, DTYPES[x.dtype], INDICES[ids.dtype], DTYPES[weights.dtype],
                 block_for(rows), options)


class Plan:
    """The kernels for tensors of the same dtypes and shapes, but for T; each is made when it is first asked for."""

    def __init__(self, given: Given, options: str):
        told = json.loads(options)
        check(given, told.get("gated", True), told["weights"]["layout"] == "plain")
        x, ids, weights, gate_up, down = given[:5]
        self.shape = shape_of(x, ids, weights, gate_up, down, options)
        self.there = [t is not None for t in given]
        self._names = tuple(itertools.compress(GIVEN, self.there))
        self._trained = tuple(n + "_grad" for n in WEIGHTS[:TRAINED] if n in self._names)
        self._options = told
        self._made: dict[tuple[Any, ...], Direct] = {}

    def at(self, T: int) -> Shape:
        """The shape with the blocks for T tokens."""
        return self.shape._replace(block=block_for(T * self.shape.top_k // self.shape.E))

    def _make(self, key: tuple[Any, ...], names: Sequence[str], block: int, **more: Any) -> Direct:
        s = self.shape
        made = self._made[key] = Direct(kernel({
            "kernel": "moe_layer", "router": "given", "dtype": s.dtype, "index_dtype": s.pairs, "affinity_dtype": s.affinity,
            "E": s.E, "top_k": s.top_k, "H": s.H, "I_TP": s.I, "block_size": block, **self._options, **more}), names, (BEHIND, SAVED))
        return made

    def forward(self, block: int, saves: bool) -> Direct:
        key = block, saves
        return self._made.get(key) or self._make(
            key, (*self._names, "output", *([SAVED] if saves else ())), block, checkpoint="save" if saves else "none")

    def backward(self, block: int, saved: bool, into: str | None, adds: bool) -> Direct:
        """into: dtype of the gradients of weights and biases, None: they are frozen."""
        key = block, saved, into, adds
        made = self._made.get(key)
        if made is None:
            trains = {"weight_grads": "all", "output_dtype": into, "accumulate_grads": adds} if into else {"weight_grads": "none"}
            names = *self._names, *([SAVED] if saved else ()), DY, *GIVES, *(self._trained if into else ())
            made = self._make(key, names, block, op="backward", checkpoint="saved" if saved else "recompute", **trains)
        return made


class Case:
    """A plan's kernels for a number of tokens, and room for what they give."""

    def __init__(self, plan: Plan, given: Given):
        T = given[0].shape[0]
        s = plan.at(T)
        self._plan, self.T, self._block = plan, T, s.block
        # Which tensors there are, how many, and how many of them are parameters that have gradients.
        self.there, self.count, self.trained = plan.there, sum(plan.there), sum(plan.there[3:3 + TRAINED])
        self.options, self.dtype = s.options, TORCH[s.dtype]
        self.are_codes = given[3].dtype not in DTYPES
        self.keeps = given[7] is not None   # gate and up, always: a norm after the experts
        self.frozen = (None,) * (self.count - 3)   # gradients
        blocks = int(blocks_for(T, s))
        self.few = 2 * T * s.top_k < s.E   # most experts have no token
        # Of parameters: gradients of experts without a token stay zero, or are written.
        self.gradient_like = _memory.zeros_like if self.few else _memory.maker([t for t in given[3:] if t is not None])
        first, both = saved_elements(blocks, s)
        self.room = _memory.room(both, self.dtype)   # for SAVED and what is BEHIND it
        self._behind = first * self.dtype.itemsize
        (dtypes, elements), (of_dy, as_x) = kinds_of([t for t in given if t is not None]), kinds_of(given[:1])
        self.kinds: dict[bool, Kinds] = {   # of what backward has; True: also what forward left
            False: (dtypes + of_dy, elements + as_x), True: ([*dtypes, self.dtype, *of_dy], [*elements, both, *as_x])}
        self.usual: dict[bool, Alike] = {}   # of these kinds, in memory, as those of the first backward pass were
        self._sizes = {"T": T, "N": blocks}
        self.functions: dict[bool, Any] = {}   # of autograd; True: what can be is computed again
        self.known_backward: dict[tuple[bool, torch.dtype | None, bool], Run] = {}

    def all(self, of_there: Sequence[Any]) -> list[Any]:
        """As many as may be given, with None for what is not there."""
        each = iter(of_there)
        return [next(each) if is_there else None for is_there in self.there]

    def _forward(self, saves: bool) -> Run:
        return self._plan.forward(self._block, saves).of(self._sizes, self._behind) if self.T else _nothing

    @functools.cached_property
    def forward(self) -> Run:
        """The kernel for the tensors that there are, and the output."""
        return self._forward(False)

    @functools.cached_property
    def forward_saving(self) -> Run:
        """The kernel for the tensors that there are, the output, and room."""
        return self._forward(True)

    def backward(self, saved: bool, into: torch.dtype | None, adds: bool) -> Run:
        """The kernel for the tensors that there are, those saved, dy, gradients of x and weights, and of parameters if into is a dtype."""
        made = self._plan.backward(self._block, saved, None if into is None else DTYPES[into], adds)
        found = self.known_backward[saved, into, adds] = made.of(self._sizes, self._behind)
        return found


def _nothing(_: Sequence[Tensor]) -> None:
    """Of no tokens."""


_plans: dict[tuple[Any, ...], Plan] = {}
cases: dict[tuple[Any, ...], Case] = {}
facts = operator.attrgetter("__class__", "is_cpu", "dtype", "shape")


def _key(there: There, told: Any) -> tuple[Any, ...]:
    return (told, *map(facts, there))


def known_case(there: There, told: Any) -> Case | None:
    """Of tensors whose kinds, dtypes and shapes had one before. told: options, or what they have been `also_told`."""
    return cases.get(_key(there, told))


def also_told(there: There, told: Any, options: str) -> None:
    """What has a case with these options has it under `told`, too."""
    case = known_case(there, options)
    if case is not None:
        cases[_key(there, told)] = case


def case_of(given: Given, options: str) -> Case:
    """Of tensors that are checked when their dtypes and shapes are new. Raises ArgumentError, SpecError."""
    key = _key(there_of(given), options)
    case = cases.get(key)
    if case is None:
        checked = Plan(given, options)
        of_plan = checked.shape._replace(block=0), tuple(t if t is None else (t.dtype, t.shape) for t in given[3:])
        for known in (_plans, cases):
            if len(known) >= MANY:
                known.clear()
        case = cases[key] = Case(_plans.setdefault(of_plan, checked), given)
    return case


def blocks_for(tokens: Any, s: Shape) -> Any:
    """As many as the worst choice of experts takes."""
    return torch.sym_max((tokens * s.top_k + s.block - s.E) // s.block + s.E - 1, 1)


def saved_elements(blocks: Any, s: Shape) -> tuple[Any, Any]:
    """Of gate and up, [blocks, gates, I, block], and with what experts gave, [blocks, block, H], behind them."""
    first = blocks * (1 if NO_GATE in s.options else 2) * s.I * s.block
    return first, first + blocks * s.block * s.H


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


def _once_more(run: Run, tensors: list[Tensor]) -> Tensor:
    """Runs a kernel that has refused: a token that names an expert twice is told to name it once. Where each pair went."""
    x, ids, weights, *others = tensors
    ids, weights, first = merged(ids, weights)
    run([x, ids, weights, *others])
    return first


_empty_like = torch.empty_like


def there_of(given: Given) -> list[Tensor]:
    return [t for t in given if t is not None]


def forward(case: Case, there: There, are_in_memory: bool = False) -> Tensor:
    tensors = [*there] if are_in_memory else in_memory(there)
    y = _empty_like(tensors[0])
    tensors.append(y)
    try:
        case.forward(tensors)
    except DataError:
        _once_more(case.forward, tensors)
    return y


def forward_saving(case: Case, there: There) -> tuple[Tensor, Tensor]:
    """y, and what backward needs."""
    tensors = in_memory(there)
    y, saved = _empty_like(tensors[0]), case.room()
    tensors += y, saved
    try:
        case.forward_saving(tensors)
    except DataError:
        _once_more(case.forward_saving, tensors)
    return y, saved


def kept(case: Case, *tensors: Tensor) -> There:
    """in_memory: those that are there, what forward left, dy. Raises ArgumentError for those that hooks have made something else of."""
    saved = len(tensors) - 1 > case.count
    is_usual = case.usual.get(saved)
    if is_usual is not None and is_usual(*tensors):
        return tensors
    found = in_memory(tensors)
    check_kept(found, case.kinds[saved])
    if is_usual is None and all(map(operator.is_, found, tensors)):
        case.usual[saved] = alike(tensors)
    return found


def gradients(case: Case, tensors: There, into: torch.dtype) -> list[Tensor]:
    """Of x, weights, and parameters, these in the dtype `into`. tensors: as `differentiate` has them."""
    make = _memory.zeros if case.few else _memory.empty   # gradients of experts without a token stay zero, or are written
    grads = [make(t.shape, into) for t in tensors[3:3 + case.trained]]
    return [*differentiate(case, tensors, grads, into, case.few), *grads]


def differentiate(case: Case, tensors: There, grads: Sequence[Tensor], into: torch.dtype | None, adds: bool) -> tuple[Tensor, Tensor]:
    """Gradients of x and weights; those of parameters, in the dtype `into`, go to grads. tensors: `kept`."""
    dx, dweights = _empty_like(tensors[0]), _empty_like(tensors[2])
    if case.T == 0:
        return dx, dweights   # gradients are zero, or the caller's
    how = len(tensors) - 1 > case.count, into, adds
    run = case.known_backward.get(how) or case.backward(*how)
    all_of_them = [*tensors, dx, dweights, *grads]
    try:
        run(all_of_them)
    except DataError:
        return dx, dweights.gather(1, _once_more(run, all_of_them))
    return dx, dweights
