# SPDX-License-Identifier: Apache-2.0
"""_split.py - layers whose experts see something else than their router: the operators moegen::router and moegen::router_backward, and
moegen.torch.SplitLayer, which has a kernel for the router, one for the experts, and the block's own modules around them."""
from __future__ import annotations

import functools
import json
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import torch
from torch import Tensor

from . import kernel
from ._check import DTYPES
from ._library import ArgumentError
from ._operators import learns, register
from ._transforms import Refusing, function, has_to_be_a_function, is_eager, once

PARAMETERS = ("router_weight", "router_bias", "router_norm_weight", "router_scale", "correction_bias")


class Form(NamedTuple):
    """How a block is made, by the names of its modules: y = after(experts(before(x))); with `joined`, it is a half of a decoder layer,
    y = x + joined(beside(x) + after(experts(before(x))))."""
    before: tuple[str, ...]
    after: tuple[str, ...]
    beside: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()

    def names(self) -> tuple[str, ...]:
        return self.before + self.after + self.beside + self.joined


FORMS = (
    Form(("pre_expert_proj", "pre_expert_norm"), ("post_expert_proj",)),   # Muse Spark
    Form(("pre_feedforward_layernorm_2",), ("post_feedforward_layernorm_2",),   # Gemma 4
         ("pre_feedforward_layernorm", "mlp", "post_feedforward_layernorm_1"), ("post_feedforward_layernorm",)),
)


def form_of(block: torch.nn.Module) -> Form | None:
    return next((f for f in FORMS if all(isinstance(getattr(block, n, None), torch.nn.Module) for n in f.names())), None)


class _Router:
    """Both passes of a router's keys, and the names of its parameters."""

    def __init__(self, text: str):
        spec = {"kernel": "router", "affinity_dtype": "f32", **json.loads(text)}
        self.forward, self.backward = (kernel({**spec, "op": op}) for op in ("forward", "backward"))
        names, given = {a.name for a in self.forward.args}, {a.name for a in self.backward.args}
        self.parameters = [n for n in PARAMETERS if n in names]
        self.trained = [n for n in self.parameters if n + "_grad" in given]
        self.read = given.intersection(self.parameters)
        self.E, self.top_k = spec["E"], spec["top_k"]


router_of = functools.lru_cache(maxsize=256)(_Router)


def _route(x: Tensor, parameters: list[Tensor], text: str) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, ids, logits."""
    router = router_of(text)
    if x.shape[0] == 0:
        return _route_fake(x, parameters, text)
    tensors: dict[str, Any] = dict(zip(router.parameters, parameters))
    out = router.forward(hidden_states=x.contiguous(), **tensors)
    return out["topk_weights"], out["expert_index"], out["logits"]


def _route_fake(x: Tensor, parameters: list[Tensor], text: str) -> tuple[Tensor, Tensor, Tensor]:
    router, f32 = router_of(text), torch.float32
    pairs = x.shape[0], router.top_k
    return x.new_empty(pairs, dtype=f32), x.new_empty(pairs, dtype=torch.int32), x.new_empty((x.shape[0], router.E), dtype=f32)


def _route_back(dweights: Tensor, x: Tensor, parameters: list[Tensor], ids: Tensor, logits: Tensor, text: str) -> list[Tensor]:
    """Gradients of x and of the parameters that have one."""
    router = router_of(text)
    own: dict[str, Any] = dict(zip(router.parameters, parameters))
    if x.shape[0] == 0:
        return [torch.zeros_like(t) for t in (x, *(own[n] for n in router.trained))]
    by = torch.zeros_like(logits).scatter_(1, ids.long(), dweights.float())
    out = router.backward(hidden_states=x.contiguous(), logits=logits, expert_index=ids, expert_affinities_grad=by,
                          **{n: own[n] for n in router.read})
    return [out["hidden_states_grad"], *(out[n + "_grad"] for n in router.trained)]


def _route_back_fake(dweights: Tensor, x: Tensor, parameters: list[Tensor], ids: Tensor, logits: Tensor, text: str) -> list[Tensor]:
    own = dict(zip(router_of(text).parameters, parameters))
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, *(own[n] for n in router_of(text).trained))]


register((
    ("router", "(Tensor x, Tensor[] parameters, str spec) -> (Tensor, Tensor, Tensor)", _route, _route_fake),
    ("router_backward", "(Tensor dweights, Tensor x, Tensor[] parameters, Tensor ids, Tensor logits, str spec) -> Tensor[]",
     _route_back, _route_back_fake)))


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(text: str, x: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights, ids, and logits, which backward needs."""
        route: Any = _route if is_eager((x, *parameters)) else torch.ops.moegen.router.default
        found: tuple[Tensor, Tensor, Tensor] = route(x, parameters, text)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.text, x, *parameters = inputs
        ctx.save_for_backward(x, *output[1:], *parameters)
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dweights: Tensor, *_: Any) -> Any:
        text, needs = ctx.text, ctx.needs_input_grad[1:]

        def compute(dweights: Tensor, x: Tensor, ids: Tensor, logits: Tensor, *parameters: Tensor) -> tuple[Tensor | None, ...]:
            dx, *grads = torch.ops.moegen.router_backward.default(dweights, x, parameters, ids, logits, text)
            of = dict(zip(router_of(text).trained, grads))
            every = dx, *(of.get(n) for n in router_of(text).parameters)
            return tuple(g if n else None for g, n in zip(every, needs))
        return None, *once(compute, dweights, *ctx.saved_tensors)


class _Transformed(Refusing, _Function):
    """The same under transforms."""


def _with_gradients(x: Tensor, parameters: Sequence[Tensor], text: str) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = function(_Function, _Transformed).apply(text, x, *parameters)
    return found


learns("router", _with_gradients)


class SplitLayer(torch.nn.Module):
    """A layer whose experts see something else than its router, made by MoELayer.from_hf: x [..., H] to y [..., H] in x's dtype.

    Of Muse Spark it is the sparse block; of Gemma 4 the half of a decoder layer behind the attention, from the sum that residuals are
    added to, to that sum, without what follows (per-layer inputs, layer_scalar). Router and experts are kernels; norms, projections and
    the dense MLP beside them are the block's own modules, which it shares, as it does the experts. Parameters of the router are copies.
    Raises ArgumentError for an x that does not fit.
    """

    def __init__(self, form: Form, block: torch.nn.Module, keys: Mapping[str, Any], parameters: Mapping[str, Tensor],
                 names: Mapping[str, str]):
        """keys: of the router. parameters: by the kernel's names; names: what those are called in the block."""
        super().__init__()
        self.form, self.names, self.spec = form, dict(names), dict(keys)
        # By the dtypes of x and of what is added for choosing, which module.to may change.
        biases = DTYPES if "bias_dtype" in self.spec else {None: None}
        self._texts = {(own, bias): json.dumps({**self.spec, "dtype": name, **({"bias_dtype": of} if of else {})})
                       for own, name in DTYPES.items() for bias, of in biases.items()}
        for name, t in parameters.items():
            own = t.detach().clone(memory_format=torch.contiguous_format)
            if name == "correction_bias":
                self.register_buffer(name, own)
            else:
                self.register_parameter(name, torch.nn.Parameter(own))
        for name in (*form.names(), "experts"):
            self.add_module(name, getattr(block, name))

    def _through(self, names: tuple[str, ...], x: Tensor) -> Tensor:
        for name in names:
            module: Callable[[Tensor], Tensor] = getattr(self, name)
            x = module(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        from .transformers import experts_forward
        if x.shape[-1] != self.spec["H"] or x.dtype != self.router_weight.dtype or x.dtype not in DTYPES:
            raise ArgumentError(f"x: [..., {self.spec['H']}] of {self.router_weight.dtype}, not {list(x.shape)} of {x.dtype}")
        rows = x.reshape(-1, x.shape[-1])
        text = self._texts[x.dtype, self.get_buffer("correction_bias").dtype if "bias_dtype" in self.spec else None]
        parameters = [getattr(self, n) for n in router_of(text).parameters]
        route = _with_gradients if is_eager((rows, *parameters)) or has_to_be_a_function(True) else torch.ops.moegen.router.default
        weights, ids, _ = route(rows, parameters, text)
        y = experts_forward(self.experts, self._through(self.form.before, rows), ids, weights)
        y = self._through(self.form.after, y).view(x.shape)
        if self.form.joined:
            y = x + self._through(self.form.joined, self._through(self.form.beside, x) + y)
        return y

    def extra_repr(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in self.spec.items())

    def to_hf(self) -> dict[str, Tensor]:
        """A state dict for the block that it was made of: block.load_state_dict(layer.to_hf(), strict=False)."""
        state = {n: t for n, t in self.state_dict().items() if n not in self.names}
        for name, theirs in self.names.items():
            own = getattr(self, name).detach()
            state[theirs] = own.t() if name == "router_weight" else own
        return state
