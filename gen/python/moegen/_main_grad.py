# SPDX-License-Identifier: Apache-2.0
"""_main_grad.py - parameters whose gradients are added to their attribute `main_grad`, as trainers with buckets of gradients have it."""
from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import Tensor

from ._library import ArgumentError

Mains = Sequence["Tensor | None"]


def mains_of(parameters: Sequence[Tensor | None]) -> list[Tensor | None] | None:
    """Of each parameter that needs a gradient its main_grad or None; None if none of them has one."""
    if torch.compiler.is_compiling() or not any([hasattr(t, "main_grad") for t in parameters]):
        return None
    found = [getattr(t, "main_grad", None) if t is not None and t.requires_grad else None for t in parameters]
    for t, main in zip(parameters, found):
        if t is None or main is None:
            continue
        if not isinstance(main, Tensor) or not main.is_floating_point() or main.device != t.device:
            raise ArgumentError(f"main_grad: a tensor of floats on {t.device}, not {getattr(main, 'dtype', main)}, "
                                f"{getattr(main, 'device', type(main).__name__)}")
        if main.shape != t.shape:   # which a kernel would write beyond
            raise ArgumentError(f"main_grad: {list(t.shape)} as its parameter, not {list(main.shape)}")
    return None if all(m is None for m in found) else found


def awaited(node: Any) -> list[bool]:
    """Inside of a node's backward pass, of each tensor that it was given: does the engine go on with its gradient? autograd.grad of some
    tensors leaves others, whose main_grad is none of its business."""
    found = []
    for behind, _ in node.next_functions:
        try:
            found.append(behind is not None and torch._C._will_engine_execute_node(behind))
        except RuntimeError:   # a leaf, and one of those that autograd.grad was asked for
            found.append(True)
    return found


def adds_in_place(mains: Mains, dtypes: tuple[torch.dtype, ...]) -> bool:
    """May a kernel add to all of them in one call? dtypes: those that it can."""
    first = mains[0].dtype if mains and mains[0] is not None else None
    return first in dtypes and all(m is not None and m.is_contiguous() and not m.is_neg() and m.dtype == first and m.device.type == "cpu"
                                   for m in mains)


def add(mains: Mains, parameters: Sequence[Tensor | None], grads: list[Tensor | None]) -> None:
    """Gradients to their mains; what is left in grads belongs to parameters without one, in their dtype."""
    for i, (main, p, g) in enumerate(zip(mains, parameters, grads)):
        if g is not None and p is not None:
            if main is None:
                grads[i] = g.to(p.dtype)
            else:
                main.add_(g)
                grads[i] = None


def stand_in(parameter: Tensor) -> Tensor | None:
    """What a backward pass returns for a parameter whose gradient is in its main_grad: trainers that set the flag want something."""
    if not hasattr(parameter, "grad_added_to_main_grad"):
        return None
    setattr(parameter, "grad_added_to_main_grad", True)
    make = torch.zeros if getattr(parameter, "zero_out_wgrad", False) else torch.empty
    return make(parameter.shape, dtype=parameter.dtype)
