# SPDX-License-Identifier: Apache-2.0
"""_operators.py - the operators moegen::experts (whose backward pass may `recompute`), experts_saving (which leaves what that needs),
experts_backward and experts_backward_ (which adds to gradients that are there), for those who want to see operators: compilers, modes,
profilers, programs of torch.export.
"""
from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._experts import (TRAINED, blocks_for, case_of, differentiate, forward, forward_saving, gradients, kept, saved_elements,
                       shape_of, there_of)
from ._library import UnsupportedError
from ._transforms import ALONE, in_transform, refuse_vmap

PARAMETERS = ("Tensor gate_up, Tensor down, Tensor? gate_up_bias, Tensor? down_bias, Tensor? post_norm, "
              "Tensor? gate_up_scale, Tensor? down_scale")
LIBRARY = torch.library.Library("moegen", "DEF")


def register(operators: Sequence[tuple[str, str, Any, Any]]) -> None:
    """Adds operators to the library: name, schema, function for the CPU, fake function."""
    for name, schema, cpu, fake in operators:
        LIBRARY.define(name + schema, tags=torch.Tag.pt2_compliant_tag)
        LIBRARY.impl(name, cpu, "CPU")
        torch.library.register_fake(f"moegen::{name}", fake, lib=LIBRARY)
        refuse_vmap(name, LIBRARY)


def learns(name: str, with_gradients: Callable[..., Any]) -> None:
    """The operator moegen::name, wherever it is called, has gradients: with_gradients calls it inside of a function of autograd."""
    operator = getattr(torch.ops.moegen, name).default

    def of_autograd(*given: Any) -> Any:
        tensors = [t for g in given for t in (g if isinstance(g, (list, tuple)) else (g,)) if isinstance(t, Tensor)]
        # Inside of functions of autograd neither is so.
        if (torch.is_grad_enabled() and any([t.requires_grad for t in tensors])
                or forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled()):
            if in_transform():
                raise UnsupportedError(ALONE)
            return with_gradients(*given)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*given)
    LIBRARY.impl(name, of_autograd, "Autograd")


def _experts(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, gate_up_bias: Tensor | None,
             down_bias: Tensor | None, post_norm: Tensor | None, gate_up_scale: Tensor | None, down_scale: Tensor | None,
             options: str, recompute: bool) -> Tensor:
    given = x, ids, weights, gate_up, down, gate_up_bias, down_bias, post_norm, gate_up_scale, down_scale
    return forward(case_of(given, options), there_of(given))


def _experts_fake(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _experts_saving(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, gate_up_bias: Tensor | None,
                    down_bias: Tensor | None, post_norm: Tensor | None, gate_up_scale: Tensor | None, down_scale: Tensor | None,
                    options: str) -> tuple[Tensor, Tensor]:
    given = x, ids, weights, gate_up, down, gate_up_bias, down_bias, post_norm, gate_up_scale, down_scale
    return forward_saving(case_of(given, options), there_of(given))


def _experts_saving_fake(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor,
                         *more: Any) -> tuple[Tensor, Tensor]:
    s = shape_of(x, ids, weights, gate_up, down, more[-1])
    return _experts_fake(x), x.new_empty(saved_elements(blocks_for(x.shape[0], s), s)[1])


def _experts_backward(dy: Tensor, x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, gate_up_bias: Tensor | None,
                      down_bias: Tensor | None, post_norm: Tensor | None, gate_up_scale: Tensor | None, down_scale: Tensor | None,
                      saved: Tensor | None, options: str, into: torch.dtype | None) -> list[Tensor]:
    given = x, ids, weights, gate_up, down, gate_up_bias, down_bias, post_norm, gate_up_scale, down_scale
    case = case_of(given, options)
    tensors = kept(case, *there_of((*given, saved, dy)))
    return [*differentiate(case, tensors, (), None, False)] if into is None else gradients(case, tensors, into)


def _experts_backward_fake(dy: Tensor, x: Tensor, ids: Tensor, weights: Tensor, *more: Any) -> list[Tensor]:
    *given, into = more[:TRAINED] + more[-1:]
    return [x.new_empty(x.shape), weights.new_empty(weights.shape),
            *[x.new_empty(t.shape, dtype=into) for t in given if t is not None and into is not None]]


def _experts_backward_in_place(dy: Tensor, x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor,
                               gate_up_bias: Tensor | None, down_bias: Tensor | None, post_norm: Tensor | None,
                               gate_up_scale: Tensor | None, down_scale: Tensor | None, saved: Tensor | None, options: str,
                               grads: list[Tensor]) -> tuple[Tensor, Tensor]:
    given = x, ids, weights, gate_up, down, gate_up_bias, down_bias, post_norm, gate_up_scale, down_scale
    case = case_of(given, options)
    return differentiate(case, kept(case, *there_of((*given, saved, dy))), grads, grads[0].dtype, True)


def _experts_backward_in_place_fake(dy: Tensor, x: Tensor, ids: Tensor, weights: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), weights.new_empty(weights.shape)


_FORWARD = f"Tensor x, Tensor ids, Tensor weights, {PARAMETERS}, str options"
_BACKWARD = f"Tensor dy, Tensor x, Tensor ids, Tensor weights, {PARAMETERS}, Tensor? saved, str options"
register((
    ("experts", f"({_FORWARD}, bool recompute) -> Tensor", _experts, _experts_fake),
    ("experts_saving", f"({_FORWARD}) -> (Tensor, Tensor)", _experts_saving, _experts_saving_fake),
    ("experts_backward", f"({_BACKWARD}, ScalarType? into) -> Tensor[]", _experts_backward, _experts_backward_fake),
    ("experts_backward_", f"({_BACKWARD}, Tensor(a!)[] grads) -> (Tensor, Tensor)",
     _experts_backward_in_place, _experts_backward_in_place_fake)))
