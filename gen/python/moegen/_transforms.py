# SPDX-License-Identifier: Apache-2.0
"""_transforms.py - torch.func and forward-mode differentiation: what the package's functions do under them, and what they refuse.

Functions with gradients are written twice here: as compilers take them, and with the answers below, which compilers do not take.
"""
from __future__ import annotations

import functools
from typing import Any, Callable, NoReturn, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._library import UnsupportedError

VMAP = ("moegen's operators have no rule for torch.func.vmap, nor for gradients that come in batches (is_grads_batched, vectorize=True, "
        "jacrev): more tokens are more rows, so call it once with x.reshape(-1, H), and ids and weights of the same rows; of several sets "
        "of parameters, or several gradients, take one after the other in a loop")
JVP = ("moegen's operators have no forward-mode derivatives (torch.func.jvp, jacfwd, hessian, linearize, dual tensors): take reverse mode, "
       "torch.func.vjp, torch.func.grad or backward(); for a Jacobian torch.autograd.functional.jacobian")
ALONE = ("moegen's operators know no transforms of torch.func where they stand alone, as in a program of torch.export: take backward() or "
         "torch.autograd.grad, or give the transform the module that the program was made of")
TWICE = ("moegen's operators can be differentiated once: for second derivatives let PyTorch's own operators compute the experts, as "
         "set_experts_implementation(\"eager\") does; without them leave out create_graph=True")


_is_grad_enabled, in_transform, _dispatch_modes = (
    torch.is_grad_enabled, torch._C._are_functorch_transforms_active, torch._C._len_torch_dispatch_stack)
_function_modes, _is_profiled = torch._C._len_torch_function_stack, torch._C._autograd._profiler_enabled


def at_work() -> bool:
    """Is this inside of a transform of torch.func, or of forward-mode differentiation?"""
    return in_transform() or forward_ad._current_level >= 0


def nobody_looks() -> bool:
    """Is there nobody who wants to see operators: no mode, profiler or transform?"""
    return not (_dispatch_modes() or _function_modes() or _is_profiled() or in_transform() or forward_ad._current_level >= 0)


def has_to_be_a_function(trains: bool) -> bool:
    """Is it functions of autograd that have to be called here, not operators with gradients? Transforms look for what functions answer to
    them, also those that torch.compile finds in what it compiles. Programs of torch.export have operators."""
    return trains and not torch.compiler.is_exporting() if torch.compiler.is_dynamo_compiling() else at_work()


is_batched = torch._C._functorch.is_legacy_batchedtensor   # as is_grads_batched makes them, which are no transform


def is_looked_at(dy: Tensor) -> bool:
    """Does somebody want to see the operators of a backward pass, differentiate them, or is dy not a plain tensor?"""
    return bool(_is_grad_enabled() or type(dy) is not Tensor or is_batched(dy) or _dispatch_modes() or _function_modes() or _is_profiled()
                or in_transform() or forward_ad._current_level >= 0)   # nobody_looks, without a call


PLAIN = (Tensor, torch.nn.Parameter)


def is_eager(there: Sequence[Tensor]) -> bool:
    """Is there nobody who wants to see the operators, compilers included, and are there no tensors of their own kinds?"""
    return (not torch.compiler.is_compiling() and nobody_looks() and not torch.jit.is_tracing()
            and all([type(t) in PLAIN and t.is_cpu for t in there]))


class Refusing:
    """Of an autograd.Function: what it answers to transforms beside `grad`."""

    @staticmethod
    def vmap(_info: Any, _in_dims: Any, *_: Any) -> NoReturn:
        raise UnsupportedError(VMAP)

    @staticmethod
    def jvp(_ctx: Any, *_: Any) -> NoReturn:
        raise UnsupportedError(JVP)


def refuse_vmap(name: str, library: torch.library.Library) -> None:
    """The operator moegen::name has no rule for batches, and says what to do."""
    torch.library.register_vmap(f"moegen::{name}", Refusing.vmap, lib=library)


@functools.lru_cache(maxsize=None)
def _in_one(kind: Any) -> Any:
    """A function that has setup_context, without it: PyTorch looks at its signature at each call."""
    def forward(ctx: Any, *inputs: Any) -> Any:
        output = kind.forward(*inputs)
        kind.setup_context(ctx, inputs, output)
        return output
    return type(kind.__name__, (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(kind.backward)})


def function(plain: Any, refusing: Any) -> Any:
    """The one of two that is for here."""
    return plain if torch.compiler.is_compiling() else refusing if at_work() else _in_one(plain)


class _Once(Refusing, torch.autograd.Function):
    @staticmethod
    def forward(compute: Callable[..., Any], *tensors: Tensor | None) -> Any:
        return compute(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(_ctx: Any, *_: Any) -> NoReturn:
        raise UnsupportedError(TWICE)



def once(compute: Callable[..., tuple[Tensor | None, ...]], dy: Tensor, *more: Tensor | None) -> tuple[Tensor | None, ...]:
    """compute(dy, *more) in a backward pass; who differentiates the answers has an error."""
    tensors = dy, *more
    if not torch.compiler.is_compiling() and is_batched(dy):
        raise UnsupportedError(VMAP)
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        with torch.no_grad():
            return compute(*tensors)
    found: tuple[Tensor | None, ...] = _Once.apply(compute, *tensors)
    return found
