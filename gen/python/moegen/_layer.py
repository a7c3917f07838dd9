# SPDX-License-Identifier: Apache-2.0
"""_layer.py - whole layers, router included, as a module of PyTorch: moegen.torch.MoELayer and the operators behind it."""
from __future__ import annotations

import functools
import json
from typing import Any, Mapping, NoReturn, Sequence

import torch
from torch import Tensor

from . import _memory, kernel
from ._check import DTYPES, check_kept, in_memory, kinds_of
from ._experts import BLOCKS, MANY, block_for
from ._library import ArgumentError, KindError, UnsupportedError
from ._main_grad import add, adds_in_place, awaited, mains_of, stand_in
from ._operators import learns, register
from ._split import SplitLayer
from ._team import NOTHING, Direct, Run
from ._transforms import Refusing, function, has_to_be_a_function, is_eager, once

TORCH = {name: dtype for dtype, name in DTYPES.items()} | {"i32": torch.int32, "u8": torch.uint8, "fp8_e4m3": torch.float8_e4m3fn}
OF_A_CALL = ("hidden_states", "output", "load_balance_loss", "z_loss")
LOSSES = OF_A_CALL[2:]


class _Pass:
    """A kernel of one pass, and the shapes of its tensors for T tokens. What is written is contiguous, what is read need not be."""

    def __init__(self, spec: dict[str, Any], **more: Any):
        made = kernel({**spec, "kernel": "moe_layer", **more})
        self.args = made.args
        self.names = tuple(a.name for a in made.args)
        self._made = Direct(made, self.names)
        self._dtypes = {a.name: TORCH[a.dtype] for a in made.args}
        self._extents = {a.name: [compile(n, a.name, "eval") for n in a.extent] for a in made.args}
        self._runs: dict[int, Run] = {}   # by T
        self._shapes: dict[tuple[str, int], tuple[int, ...]] = {}   # by name and T
        dense = spec.get("dispatch") == "dense"   # blocks of all tokens, the same ones for each expert
        self._block, self._top_k, self._E = spec["block_size"], 1 if dense else spec.get("top_k", 1), 1 if dense else spec["E"]

    def sizes(self, T: Any) -> dict[str, Any]:
        """Tokens; blocks, as many as the worst choice of experts takes; blocks of an expert that all tokens share."""
        return {"T": T, "N": torch.sym_max((T * self._top_k + self._block - self._E) // self._block + self._E - 1, 1),
                "M": (T + self._block - 1) // self._block}

    def _shape(self, name: str, T: Any) -> list[Any]:
        sizes = self.sizes(T)
        return [eval(n, {}, sizes) for n in self._extents[name]]

    def room(self, name: str, x: Tensor, fake: bool = False) -> Tensor:
        """For a tensor of a pass over the tokens x."""
        T = x.shape[0]
        if fake:
            return x.new_empty(self._shape(name, T), dtype=self._dtypes[name])
        shape = self._shapes.get((name, T))
        if shape is None:
            shape = self._shapes[name, T] = tuple(map(int, self._shape(name, T)))
        return _memory.empty(shape, self._dtypes[name])

    def __call__(self, tensors: Mapping[str, Tensor], T: int) -> None:
        run = self._runs.get(T)
        if run is None:
            if len(self._runs) >= MANY:
                self._runs.clear()
                self._shapes.clear()
            run = self._runs[T] = self._made.of(self.sizes(T))
        run(in_memory([tensors.get(n, NOTHING) for n in self.names]))


class _Layer:
    """Both passes of a spec, made when they are first asked for."""

    def __init__(self, text: str):
        self._spec = json.loads(text)
        self._trained: dict[tuple[bool, torch.dtype | None, bool], _Pass] = {}

    @functools.cached_property
    def forward(self) -> _Pass:
        return _Pass(self._spec, checkpoint="none")

    @functools.cached_property
    def saving(self) -> _Pass:
        return _Pass(self._spec, checkpoint="save")

    def backward(self, trains: bool, into: torch.dtype | None, adds: bool) -> _Pass:
        """trains: experts have gradients. into: dtype of the parameters' gradients, None: as the layer's. adds: to what is there."""
        key = trains, into, adds
        if key not in self._trained:
            more = {} if into is None else {"output_dtype": DTYPES[into]}
            self._trained[key] = _Pass(self._spec, op="backward", checkpoint="saved", weight_grads="all" if trains else "none",
                                       accumulate_grads=adds, **more)
        return self._trained[key]

    @functools.cached_property
    def parameters(self) -> list[str]:
        return [a.name for a in self.forward.args if a.role == "in" and a.name not in OF_A_CALL]

    @functools.cached_property
    def of_experts(self) -> tuple[bool, ...]:
        """Which parameters are those of experts?"""
        return tuple(not n.startswith(("router", "correction")) for n in self.parameters)

    @functools.cached_property
    def state(self) -> list[str]:
        """What forward leaves for backward, and losses."""
        return [a.name for a in self.saving.args if a.role == "out" and a.name != "output"]


layer_of = functools.lru_cache(maxsize=256)(_Layer)


def _state_of(layer: _Layer, saves: bool) -> tuple[_Pass, list[str]]:
    """The pass, and the names of what it gives beside the output."""
    made = layer.saving if saves else layer.forward
    return made, [n for n in (layer.state if saves else LOSSES) if n in made.names]


def _forward(x: Tensor, parameters: Sequence[Tensor], text: str, saves: bool) -> tuple[Tensor, list[Tensor]]:
    layer = layer_of(text)
    made, names = _state_of(layer, saves)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    state = {n: made.room(n, x) for n in names}
    if x.shape[0]:
        made({"hidden_states": x, "output": y, **dict(zip(layer.parameters, parameters)), **state}, x.shape[0])
    else:
        for n in LOSSES:
            state[n].zero_() if n in state else None
    return y, list(state.values())


def _forward_fake(x: Tensor, parameters: list[Tensor], text: str, saves: bool) -> tuple[Tensor, list[Tensor]]:
    made, names = _state_of(layer_of(text), saves)
    return torch.empty_like(x, memory_format=torch.contiguous_format), [made.room(n, x, True) for n in names]


def _room_for_gradients(made: _Pass, layer: _Layer, x: Tensor, parameters: list[Tensor], fake: bool = False) -> list[Tensor]:
    """Of all parameters; those that have none are empty."""
    return [made.room(n + "_grad", x, fake) if n + "_grad" in made.names else p.new_empty(0) for n, p in zip(layer.parameters, parameters)]


def _run_backward(layer: _Layer, made: _Pass, dy: Tensor, x: Tensor, parameters: list[Tensor], state: list[Tensor],
                  grads: list[Tensor]) -> Tensor:
    """The gradient of x; those of the parameters go to grads."""
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.shape[0]:
        made({**dict(zip(layer.parameters, parameters)), **dict(zip(layer.state, state)),
              "hidden_states": x, "output_hidden_states_grad": dy, "hidden_states_grad": dx,
              **{n + "_grad": g for n, g in zip(layer.parameters, grads)}}, x.shape[0])
    return dx


def _backward(dy: Tensor, x: Tensor, parameters: list[Tensor], state: list[Tensor], text: str, trains: bool,
              into: torch.dtype | None) -> list[Tensor]:
    layer = layer_of(text)
    made = layer.backward(trains, into, False)
    grads = _room_for_gradients(made, layer, x, parameters)
    if x.shape[0] == 0:
        for g in grads:
            g.zero_()
    return [_run_backward(layer, made, dy, x, parameters, state, grads), *grads]


def _backward_fake(dy: Tensor, x: Tensor, parameters: list[Tensor], state: list[Tensor], text: str, trains: bool,
                   into: torch.dtype | None) -> list[Tensor]:
    layer = layer_of(text)
    return [torch.empty_like(x, memory_format=torch.contiguous_format),
            *_room_for_gradients(layer.backward(trains, into, False), layer, x, parameters, True)]


def _backward_in_place(dy: Tensor, x: Tensor, parameters: list[Tensor], state: list[Tensor], text: str, trains: bool,
                       grads: list[Tensor]) -> Tensor:
    """Adds to the gradients of parameters; those that have none are empty."""
    layer = layer_of(text)
    made = layer.backward(trains, next(g.dtype for g in grads if g.numel()), True)
    return _run_backward(layer, made, dy, x, parameters, state, grads)


def _backward_in_place_fake(dy: Tensor, x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


_GIVEN = "Tensor dy, Tensor x, Tensor[] parameters, Tensor[] state, str spec, bool trains"
register((
    ("layer", "(Tensor x, Tensor[] parameters, str spec, bool saves) -> (Tensor, Tensor[])", _forward, _forward_fake),
    ("layer_backward", f"({_GIVEN}, ScalarType? into) -> Tensor[]", _backward, _backward_fake),
    ("layer_backward_", f"({_GIVEN}, Tensor(a!)[] grads) -> Tensor", _backward_in_place, _backward_in_place_fake)))


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(text: str, of_experts: tuple[bool, ...], mains: list[Tensor | None] | None, x: Tensor,
                *parameters: Tensor) -> tuple[Tensor, ...]:
        """y, and what backward needs, of which the first ones are losses. of_experts: which parameters are those of experts."""
        y, state = (_forward if is_eager((x, *parameters)) else torch.ops.moegen.layer.default)(x, parameters, text, True)
        return y, *state

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.text, ctx.of_experts, ctx.mains, *tensors = inputs
        ctx.save_for_backward(*tensors, *output[1:])
        ctx.kinds = None if torch.compiler.is_compiling() else kinds_of((*tensors, *output[1:]))
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> Any:
        text, of_experts, mains, count, wanted = ctx.text, ctx.of_experts, ctx.mains, len(ctx.of_experts), ctx.needs_input_grad[3:]
        if mains:
            wanted = awaited(ctx)
            mains = [m if n else None for m, n in zip(mains, wanted[1:])]
        kept, needs = ctx.saved_tensors, wanted[1:]
        if ctx.kinds is not None:
            check_kept(kept, ctx.kinds)
        trains = any(n and of for n, of in zip(needs, of_experts))

        def compute(dy: Tensor, x: Tensor, *rest: Tensor) -> tuple[Tensor | None, ...]:
            parameters, given = rest[:count], (dy, x, rest[:count], rest[count:], text, trains)
            grads: list[Tensor | None] = [None] * count
            # Parameters with a gradient in the kernel: of a frozen one it has to go elsewhere.
            have = [i for i in range(count) if _has_gradient(text, i, trains)] if mains else []
            if mains and adds_in_place([mains[i] for i in have], (torch.float32, x.dtype)):
                dx = torch.ops.moegen.layer_backward_.default(*given, [mains[i] if i in have else x.new_empty(0) for i in range(count)])
            else:
                run: Any = _backward if is_eager((dy, x, *rest)) else torch.ops.moegen.layer_backward.default
                dx, *grads = run(*given, torch.float32 if mains else None)
                grads = [g if n else None for g, n in zip(grads, needs)]
                if mains:
                    add(mains, parameters, grads)
            if mains:
                grads = [g if m is None else stand_in(p) for g, m, p in zip(grads, mains, parameters)]
            return dx if wanted[0] else None, *grads
        return None, None, None, *once(compute, dy, *kept)


class _Transformed(Refusing, _Function):
    """The same under transforms."""


def _with_gradients(x: Tensor, parameters: Sequence[Tensor], text: str, saves: bool) -> tuple[Tensor, list[Tensor]]:
    """What the operator gives. What backward needs is kept even if it is not asked for."""
    layer = layer_of(text)
    y, *state = function(_Function, _Transformed).apply(text, layer.of_experts, mains_of(parameters), x, *parameters)
    return y, state if saves else state[:len(_state_of(layer, False)[1])]


learns("layer", _with_gradients)


def _has_gradient(text: str, i: int, trains: bool) -> bool:
    layer = layer_of(text)
    return layer.parameters[i] + "_grad" in layer.backward(trains, None, False).names


class MoELayer(torch.nn.Module):
    """A mixture-of-experts layer, router and losses included, in one kernel a pass: x [..., H] to y [..., H].

    Keys are those of `moegen list keys moe_layer`: H, I_TP, E, top_k, method, aux_loss, ...; matrices lie as Hugging Face's do
    (weights.layout: transposed) unless `weights` says otherwise. dtype: "f32", "bf16" or "f16", or PyTorch's names of these, also of x,
    until layer.to(dtype) changes it. Parameters have the names, shapes and dtypes that the kernel's tensors have (`moegen explain`);
    correction_bias is a buffer, which no gradient changes.

    Coefficients of aux_loss are part of the layer: the gradients of its losses come with those of y, as if the losses, which are in
    `losses` after a call (f32, without gradients), had been added to what was differentiated. A parameter's attribute `main_grad` has
    the gradient added to it, as with `experts`.
    Raises SpecError for keys and values, ArgumentError for an x that does not fit.
    """

    def __init__(self, dtype: str | torch.dtype = "f32", **keys: Any):
        super().__init__()
        dtype = DTYPES.get(dtype, str(dtype)) if isinstance(dtype, torch.dtype) else dtype
        if keys.get("router") == "given" or "kernel" in keys:
            raise ArgumentError("a layer has a router of its own: `experts` takes what another one gives, and `kernel` is moe_layer")
        theirs = [n for n in ("op", "T", "output_dtype") if n in keys]
        if theirs:
            raise ArgumentError(f"{', '.join(theirs)}: a layer has both passes, for any number of tokens, and y is of the dtype of x")
        if keys.get("weights", {}).get("experts") == "separate":
            raise ArgumentError("weights.experts: a layer's parameters hold all experts, joined")
        self.spec: dict[str, Any] = {"dtype": dtype, **keys, "weights": {"layout": "transposed", **keys.get("weights", {})}}
        self.losses: dict[str, Tensor] = {}
        self.names: dict[str, str] = {}   # of parameters in the block that from_hf took them from
        self._texts = {(own, block): json.dumps({"block_size": block, **self.spec, "dtype": name})
                       for own, name in DTYPES.items() for block in BLOCKS}
        layer = layer_of(json.dumps({"block_size": BLOCKS[0], **self.spec}))
        self._names, self._losses = tuple(layer.parameters), tuple(n for n in LOSSES if n in layer.forward.names)
        self._of_experts = layer.of_experts
        self._forms: dict[torch.dtype, list[tuple[torch.Size, torch.dtype]]] = {}   # of parameters, by the dtype of x
        for name, (shape, own) in zip(self._names, self._forms_for(TORCH[dtype])):
            t = torch.empty(shape, dtype=own)
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
                if name in ("router_scale", "router_norm_weight"):
                    torch.nn.init.ones_(t)
                    continue
                torch.nn.init.zeros_(t) if "bias" in name else torch.nn.init.normal_(t, std=rows ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise KindError(f"x: a tensor of PyTorch, not {type(x).__name__}")
        parameters = [getattr(self, n) for n in self._names]
        H, dtype = self.spec["H"], self._dtype_of(parameters)
        if x.dtype != dtype and torch.is_autocast_enabled("cpu"):
            return self(x.to(dtype)).to(x.dtype)
        if x.dim() == 0 or x.shape[-1] != H or x.dtype != dtype or x.device != parameters[0].device:
            raise ArgumentError(f"x: [..., {H}] of {dtype} on {parameters[0].device}, not {list(x.shape)} of {x.dtype} on {x.device}")
        rows = x.reshape(-1, H)
        any_T = torch.compiler.is_exporting() or torch.jit.is_tracing()   # else a program would be for those that have the same blocks
        block = BLOCKS[-1] if any_T else block_for(rows.shape[0] * self.spec.get("top_k", 1) // self.spec["E"])
        text = self._texts[dtype, block]
        trains = (torch.is_grad_enabled() and any(t.requires_grad for t in (x, *parameters))
                  and (torch.compiler.is_compiling() or not torch.is_inference_mode_enabled()))
        eager = is_eager((rows, *parameters))
        if has_to_be_a_function(trains) or eager and trains:
            y, *losses = function(_Function, _Transformed).apply(text, self._of_experts, mains_of(parameters), rows, *parameters)
        else:
            y, losses = (_forward if eager else torch.ops.moegen.layer.default)(rows, parameters, text, False)
        self.losses = dict(zip(self._losses, losses))   # which come first
        return y.view(x.shape)

    def __prepare_scriptable__(self) -> NoReturn:
        raise UnsupportedError("torch.jit.script reads Python's own code, which has no kernels: torch.export.export, or torch.jit.trace, "
                               "makes a program of a layer")

    def _forms_for(self, dtype: torch.dtype) -> list[tuple[torch.Size, torch.dtype]]:
        if dtype not in self._forms:
            if dtype not in DTYPES:
                raise ArgumentError(f"a layer is of float32, bfloat16 or float16, not of {dtype}")
            args = {a.name: a for a in layer_of(self._texts[dtype, BLOCKS[0]]).forward.args}
            self._forms[dtype] = [(torch.Size(map(int, args[n].extent)), TORCH[args[n].dtype]) for n in self._names]
        return self._forms[dtype]

    def _dtype_of(self, parameters: list[Tensor]) -> torch.dtype:
        """x's: that of the first parameter which is no codes. Kernels trust what is found here: others may change parameters, too."""
        dtype = next(p.dtype for p in parameters if p.element_size() > 1)
        for name, p, (shape, own) in zip(self._names, parameters, self._forms_for(dtype)):
            if p.shape != shape or p.dtype != own:
                raise ArgumentError(f"{name}: {list(shape)} of {own}, not {list(p.shape)} of {p.dtype}")
        return dtype

    def _apply(self, fn: Any, recurse: bool = True) -> MoELayer:
        """As modules do. Of another dtype are those parameters that the layer has in it: not codes, nor their scales."""
        before = [getattr(self, n).detach() for n in self._names]
        super()._apply(fn, recurse)
        dtype = next(t.dtype for t in (getattr(self, n) for n in self._names) if t.element_size() > 1)
        if dtype in DTYPES:
            self.spec["dtype"] = DTYPES[dtype]
            for name, t, (_, own) in zip(self._names, before, self._forms_for(dtype)):
                if getattr(self, name).dtype != t.dtype == own:
                    getattr(self, name).data = t
        return self

    def extra_repr(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in self.spec.items())

    @classmethod
    def from_hf(cls, block: torch.nn.Module) -> MoELayer | SplitLayer:
        """What a sparse block of a model of Hugging Face (OlmoeSparseMoeBlock, GptOssMLP, DeepseekV3MoE, ...) computes: its experts'
        parameters are shared, those of the router and of a shared expert are copied (all are where the router weighs shared experts, as
        Inkling's). It is told by evaluating the block as in inference: where a router draws lots in training (Phi-3.5-MoE), the layer
        does not. A SplitLayer where experts see something else than the router: of Muse Spark's block, or of a decoder layer of Gemma 4,
        whose half behind the attention it is. Raises UnsupportedError with the reason if it is something else."""
        from ._from_hf import layer_of_block
        return layer_of_block(cls, block)

    def to_hf(self) -> Mapping[str, Tensor]:
        """A state dict for the block that `from_hf` takes: block.load_state_dict(layer.to_hf(), strict=False)."""
        from ._from_hf import state_of_layer
        return state_of_layer(self)
