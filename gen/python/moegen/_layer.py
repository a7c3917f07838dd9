# SPDX-License-Identifier: Apache-2.0
"""_layer.py - whole layers, router included, as a module of PyTorch: moegen.torch.MoELayer and the operators behind it."""
from __future__ import annotations

import functools
import json
from typing import Any, Mapping

import torch
from torch import Tensor

from . import kernel
from ._check import DTYPES
from ._experts import BLOCKS, LIBRARY
from ._library import ArgumentError
from ._team import Direct

TORCH = {name: dtype for dtype, name in DTYPES.items()} | {"i32": torch.int32, "u8": torch.uint8, "fp8_e4m3": torch.float8_e4m3fn}
OF_A_CALL = ("hidden_states", "output", "load_balance_loss", "z_loss")
LOSSES = OF_A_CALL[2:]


class _Pass:
    """A kernel of one pass, and the shapes of its tensors for T tokens."""

    def __init__(self, spec: dict[str, Any], **more):
        made = kernel({**spec, "kernel": "moe_layer", **more})
        self.args, self.run = made.args, Direct(made)
        self._extents = {a.name: [compile(n, a.name, "eval") for n in a.extent] for a in made.args}
        self._block, self._top_k, self._E = spec["block_size"], spec.get("top_k", 1), spec["E"]

    def sizes(self, T) -> dict[str, Any]:
        """Tokens; blocks, as many as the worst choice of experts takes; blocks of an expert that all tokens share."""
        return {"T": T, "N": torch.sym_max((T * self._top_k + self._block - self._E) // self._block + self._E - 1, 1),
                "M": (T + self._block - 1) // self._block}

    def room(self, name: str, x: Tensor) -> Tensor:
        """For a tensor of a pass over the tokens x."""
        sizes = self.sizes(x.shape[0])
        arg = next(a for a in self.args if a.name == name)
        return x.new_empty([eval(n, {}, sizes) for n in self._extents[name]], dtype=TORCH[arg.dtype])


class _Layer:
    """Both passes of a spec, made when they are first asked for."""

    def __init__(self, text: str):
        self._spec = json.loads(text)
        self._trained: dict[bool, _Pass] = {}

    @functools.cached_property
    def forward(self) -> _Pass:
        return _Pass(self._spec, checkpoint="none")

    @functools.cached_property
    def saving(self) -> _Pass:
        return _Pass(self._spec, checkpoint="save")

    def backward(self, trains: bool) -> _Pass:
        if trains not in self._trained:
            self._trained[trains] = _Pass(self._spec, op="backward", checkpoint="saved", weight_grads="all" if trains else "none")
        return self._trained[trains]

    @functools.cached_property
    def parameters(self) -> list[str]:
        return [a.name for a in self.forward.args if a.role == "in" and a.name not in OF_A_CALL]

    @functools.cached_property
    def state(self) -> list[str]:
        """What forward leaves for backward, and losses."""
        return [a.name for a in self.saving.args if a.role == "out" and a.name != "output"]


layer_of = functools.lru_cache(maxsize=256)(_Layer)


def _forward(x: Tensor, parameters: list[Tensor], text: str, saves: bool) -> tuple[Tensor, list[Tensor]]:
    layer = layer_of(text)
    made = layer.saving if saves else layer.forward
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    state = {n: made.room(n, x) for n in (layer.state if saves else LOSSES) if n in made.run.names}
    if x.shape[0]:
        made.run({"hidden_states": x.contiguous(), "output": y, **dict(zip(layer.parameters, (p.contiguous() for p in parameters))),
                  **state}, made.sizes(x.shape[0]))
    else:
        for n in LOSSES:
            state[n].zero_() if n in state else None
    return y, list(state.values())


def _forward_fake(x, parameters, text, saves):
    layer = layer_of(text)
    made = layer.saving if saves else layer.forward
    return (torch.empty_like(x, memory_format=torch.contiguous_format),
            [made.room(n, x) for n in (layer.state if saves else LOSSES) if n in made.run.names])


def _room_for_gradients(x, parameters, text, trains):
    """Names and tensors: of x, then of all parameters; those that have none are empty."""
    layer = layer_of(text)
    gives = layer.backward(trains).run.names
    grads = {"hidden_states_grad": torch.empty_like(x, memory_format=torch.contiguous_format)}
    return grads | {n + "_grad": torch.empty_like(p, memory_format=torch.contiguous_format) if n + "_grad" in gives else p.new_empty(0)
                    for n, p in zip(layer.parameters, parameters)}


def _backward(dy, x, parameters, state, text, trains):
    layer, grads = layer_of(text), _room_for_gradients(x, parameters, text, trains)
    made = layer.backward(trains)
    if x.shape[0] == 0:
        return [g.zero_() for g in grads.values()]
    given = {**dict(zip(layer.parameters, (p.contiguous() for p in parameters))), **dict(zip(layer.state, state)),
             "hidden_states": x.contiguous(), "output_hidden_states_grad": dy.contiguous(), **grads}
    made.run({n: given[n] for n in made.run.names if n in given}, made.sizes(x.shape[0]))
    return list(grads.values())


def _backward_fake(dy, x, parameters, state, text, trains):
    return list(_room_for_gradients(x, parameters, text, trains).values())


for _name, _schema, _cpu, _fake in (
        ("layer", "(Tensor x, Tensor[] parameters, str spec, bool saves) -> (Tensor, Tensor[])", _forward, _forward_fake),
        ("layer_backward", "(Tensor dy, Tensor x, Tensor[] parameters, Tensor[] state, str spec, bool trains) -> Tensor[]", _backward,
         _backward_fake)):
    LIBRARY.define(_name + _schema, tags=torch.Tag.pt2_compliant_tag)
    LIBRARY.impl(_name, _cpu, "CPU")
    torch.library.register_fake(f"moegen::{_name}", _fake, lib=LIBRARY)


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, text, losses, of_experts, *parameters):
        """losses: how many there are; of_experts: which parameters are those of experts."""
        y, state = torch.ops.moegen.layer.default(x, parameters, text, True)
        ctx.text, ctx.of_experts = text, of_experts
        ctx.save_for_backward(x, *parameters, *state)
        ctx.mark_non_differentiable(*state[:losses])
        return y, *state[:losses]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy, *_):
        x, *rest = ctx.saved_tensors
        count, needs = len(ctx.of_experts), ctx.needs_input_grad[4:]
        trains = any(n and of for n, of in zip(needs, ctx.of_experts))
        dx, *grads = torch.ops.moegen.layer_backward.default(dy, x, rest[:count], rest[count:], ctx.text, trains)
        return tuple(g if n else None for g, n in zip((dx, None, None, None, *grads), ctx.needs_input_grad))


class MoELayer(torch.nn.Module):
    """A mixture-of-experts layer, router and losses included, in one kernel a pass: x [..., H] to y [..., H].

    Keys are those of `moegen list keys moe_layer`: H, I_TP, E, top_k, method, aux_loss, ...; matrices lie as Hugging Face's do
    (weights.layout: transposed) unless `weights` says otherwise. dtype: "f32", "bf16" or "f16", also of x. Parameters have the names,
    shapes and dtypes that the kernel's tensors have (`moegen explain`); correction_bias is a buffer, which no gradient changes.

    Coefficients of aux_loss are part of the layer: the gradients of its losses come with those of y, as if the losses, which are in
    `losses` after a call (f32, without gradients), had been added to what was differentiated.
    Raises SpecError for keys and values, ArgumentError for an x that does not fit.
    """

    def __init__(self, dtype: str = "f32", **keys):
        super().__init__()
        self.spec: dict[str, Any] = {"dtype": dtype, **keys, "weights": {"layout": "transposed", **keys.get("weights", {})}}
        self.losses: dict[str, Tensor] = {}
        self.names: dict[str, str] = {}   # of parameters in the block that from_hf took them from
        self._texts = {block: json.dumps({"block_size": block, **self.spec}) for block in BLOCKS}
        layer = layer_of(self._texts[BLOCKS[0]])
        self._names, self._losses = tuple(layer.parameters), tuple(n for n in LOSSES if n in layer.forward.run.names)
        self._of_experts = tuple(not n.startswith(("router", "correction")) for n in self._names)
        args = {a.name: a for a in layer.forward.args}
        for name in self._names:
            t = torch.empty([int(n) for n in args[name].extent], dtype=TORCH[args[name].dtype])
            if name == "correction_bias":
                self.register_buffer(name, t)
            else:
                self.register_parameter(name, torch.nn.Parameter(t, requires_grad=t.is_floating_point() and t.element_size() > 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Matrices normal with the square root of 1 / H or 1 / I, biases 0; codes are left alone."""
        for name, t in (*self.named_parameters(recurse=False), *self.named_buffers(recurse=False)):
            if t.is_floating_point() and t.element_size() > 1:
                rows = self.spec["I_TP"] if name.startswith("down") else self.spec["H"]
                torch.nn.init.zeros_(t) if "bias" in name else torch.nn.init.normal_(t, std=rows ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        H, dtype = self.spec["H"], TORCH[self.spec["dtype"]]
        if x.dtype != dtype and torch.is_autocast_enabled("cpu"):
            return self(x.to(dtype)).to(x.dtype)
        if x.shape[-1] != H or x.dtype != dtype:
            raise ArgumentError(f"x: [..., {H}] of {dtype}, not {list(x.shape)} of {x.dtype}")
        rows = x.reshape(-1, H)
        pairs = rows.shape[0] * self.spec.get("top_k", 1) // self.spec["E"]
        text = self._texts[next((b for b in BLOCKS if b >= pairs), BLOCKS[-1])]
        parameters = [getattr(self, n) for n in self._names]
        if torch.is_grad_enabled() and any(t.requires_grad for t in (x, *parameters)):
            y, *losses = _Function.apply(rows, text, len(self._losses), self._of_experts, *parameters)
        else:
            y, losses = torch.ops.moegen.layer.default(rows, parameters, text, False)
        self.losses = dict(zip(self._losses, losses))
        return y.view(x.shape)

    def extra_repr(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in self.spec.items())

    @classmethod
    def from_hf(cls, block: torch.nn.Module) -> MoELayer:
        """What a sparse block of a model of Hugging Face (OlmoeSparseMoeBlock, GptOssMLP, DeepseekV3MoE, ...) computes: its experts'
        parameters are shared, those of the router and of a shared expert are copied. It is told by evaluating the block. Raises
        UnsupportedError with the reason if it is something else."""
        from ._from_hf import layer_of_block
        return layer_of_block(cls, block)

    def to_hf(self) -> Mapping[str, Tensor]:
        """A state dict for the block that `from_hf` takes: block.load_state_dict(layer.to_hf(), strict=False)."""
        from ._from_hf import state_of_layer
        return state_of_layer(self)
