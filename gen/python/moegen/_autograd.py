# SPDX-License-Identifier: Apache-2.0
"""_autograd.py - the experts as functions of autograd: of eager calls, which need no operators, and for those who want to see some."""
from __future__ import annotations

import itertools
from typing import Any, Callable, Sequence

import torch
from torch import Tensor

from . import _experts
from ._experts import TRAINED, Case
from ._library import ArgumentError
from ._main_grad import add, adds_in_place, awaited, mains_of, stand_in
from ._operators import learns
from ._transforms import Refusing, function, is_looked_at, once

OPS = torch.ops.moegen


def function_of(case: Case, recompute: bool) -> Callable[..., Tensor]:
    """y of the tensors of a case that there are, with gradients."""
    return case.functions.get(recompute) or _function_of(case, recompute)


def _function_of(case: Case, recompute: bool) -> Callable[..., Tensor]:
    """Each case has a function of its own, whose context has nothing to remember. It is for tensors that are known to be right."""
    to, frozen, gradient_like = 3 + case.trained, case.frozen[case.trained:], case.gradient_like
    dtype, few, forward, kept, differentiate = case.dtype, case.few, _experts.forward_saving, _experts.kept, _experts.differentiate

    class Experts(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *there: Tensor) -> Tensor:
            if recompute:
                ctx.save_for_backward(*there)
                return _experts.forward(case, there)
            y, saved = forward(case, there)
            ctx.save_for_backward(*there, saved)
            return y

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Any:
            needs = ctx.needs_input_grad
            if is_looked_at(dy):
                return tuple(_by_operators(case, ctx.saved_tensors, dy, needs, None))
            tensors = kept(case, *ctx.saved_tensors, dy)
            if True not in needs[3:to]:
                dx, dweights = _experts.differentiate(case, tensors, (), None, False)
                return dx, None, dweights, *case.frozen
            grads = [*map(gradient_like, tensors[3:to])]
            dx, dweights = differentiate(case, tensors, grads, dtype, few)
            return dx, None, dweights, *grads, *frozen

    def first(*there: Tensor) -> Tensor:
        y: Tensor = Experts.apply(*there)
        if y.grad_fn is not None:   # which the engine calls: without a look, each time, for what it is to call
            setattr(type(y.grad_fn), "apply", Experts.backward)
            case.functions[recompute] = Experts.apply
        return y
    return first


def refuse_gradients(parameters: Sequence[Tensor | None]) -> None:
    if any([t is not None and t.requires_grad for t in parameters]):
        raise ArgumentError("experts whose matrices are codes are frozen: set requires_grad of their biases to False")


class Adding(torch.autograd.Function):
    """The same where a parameter has a main_grad. mains: of each parameter that there is."""

    @staticmethod
    def forward(ctx: Any, case: Case, recompute: bool, mains: list[Tensor | None], *there: Tensor) -> Tensor:
        ctx.case, ctx.mains = case, mains
        if recompute:
            ctx.save_for_backward(*there)
            return _experts.forward(case, there)
        y, saved = _experts.forward_saving(case, there)
        ctx.save_for_backward(*there, saved)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        case, kept, needs = ctx.case, ctx.saved_tensors, awaited(ctx)
        to = 3 + case.trained
        mains: list[Any] = [m if n else None for m, n in zip(ctx.mains, needs[3:])]
        if is_looked_at(dy):
            each = iter(mains)
            of_all = [next(each) if is_there else None for is_there in case.there[3:3 + TRAINED]]
            return None, None, None, *_by_operators(case, kept, dy, needs, of_all)
        tensors, parameters = _experts.kept(case, *kept, dy), kept[3:to]
        grads: list[Tensor | None] = [None] * case.trained
        if True not in needs[3:to]:
            dx, dweights = _experts.differentiate(case, tensors, (), None, False)
        elif adds_in_place(mains, (torch.float32, dy.dtype)):
            dx, dweights = _experts.differentiate(case, tensors, mains, mains[0].dtype, True)
        else:
            dx, dweights, *found = _experts.gradients(case, tensors, torch.float32)
            grads = [g if n else None for g, n in zip(found, needs[3:])]
            add(mains, parameters, grads)
        grads = [g if m is None else stand_in(p) for g, m, p in zip(grads, mains, parameters)]
        return None, None, None, dx, None, dweights, *grads, *case.frozen[case.trained:]


def _by_operators(case: Case, kept: Sequence[Tensor], dy: Tensor, needs: Sequence[bool], mains: list[Tensor | None] | None) -> Any:
    """Gradients by operators, for each that is there."""
    saved = kept[case.count:] or (None,)
    found = _gradients(dy, (*case.all(kept[:case.count]), *saved), case.options, case.all(needs), mains)
    return itertools.compress(found, case.there)


class ByOperators(torch.autograd.Function):
    @staticmethod
    def forward(options: str, recompute: bool, mains: list[Tensor | None] | None, *given: Tensor | None) -> tuple[Tensor, ...]:
        """y, and what backward needs."""
        if recompute:
            return OPS.experts.default(*given, options, True),
        saving: tuple[Tensor, ...] = OPS.experts_saving.default(*given, options)
        return saving

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.options, ctx.recompute, ctx.mains, *given = inputs
        ctx.save_for_backward(*given, *(output[1:] or (None,)))
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> Any:
        kept, needs, mains = ctx.saved_tensors, ctx.needs_input_grad[3:], ctx.mains
        if mains:
            each = iter(awaited(ctx))
            needs = [t is not None and next(each) for t in kept[:len(needs)]]
            mains = [m if n else None for m, n in zip(mains, needs[3:])]
        return None, None, None, *_gradients(dy, kept, ctx.options, needs, mains)


class Transformed(Refusing, ByOperators):
    """The same under transforms."""


def by_operators(given: Sequence[Tensor | None], options: str, recompute: bool) -> tuple[Tensor, ...]:
    """y with gradients, and what it keeps for them."""
    parameters = given[3:3 + TRAINED]
    if given[-1] is not None:
        refuse_gradients(parameters)
    recompute = recompute and given[7] is None   # with a norm after the experts gate and up are kept
    found: tuple[Tensor, ...] = function(ByOperators, Transformed).apply(options, recompute, mains_of(parameters), *given)
    return found


learns("experts", lambda *given: by_operators(given[:-2], *given[-2:])[0])
learns("experts_saving", lambda *given: by_operators(given[:-1], given[-1], False))


def _gradients(dy: Tensor, kept: Sequence[Tensor | None], options: str, needs: Sequence[bool],
               mains: list[Tensor | None] | None) -> tuple[Tensor | None, ...]:
    """By operators, for each that was given. kept: what was given, and what forward left."""
    trains = any(needs[3:3 + TRAINED])

    def compute(dy: Tensor, *kept: Any) -> tuple[Tensor | None, ...]:
        parameters = kept[3:3 + TRAINED]
        grads: list[Tensor | None] = [None] * TRAINED
        if mains and adds_in_place([m for m, t in zip(mains, parameters) if t is not None], (torch.float32, dy.dtype)):
            dx, dweights = OPS.experts_backward_.default(dy, *kept, options, [m for m in mains if m is not None])
        else:
            into = (torch.float32 if mains else kept[0].dtype) if trains else None
            dx, dweights, *found = OPS.experts_backward.default(dy, *kept, options, into)
            if trains:
                each = iter(found)
                grads = [next(each) if t is not None else None for t in parameters]
            if mains:
                add(mains, parameters, grads)
        if mains:
            grads = [g if m is None else stand_in(p) for g, m, p in zip(grads, mains, parameters)]
        return tuple(g if n else None for g, n in zip((dx, None, dweights, *grads, None, None), needs))
    return once(compute, dy, *kept)
