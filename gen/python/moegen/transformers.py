# SPDX-License-Identifier: Apache-2.0
"""transformers.py - moegen as an implementation of the experts of Hugging Face's models.

    import moegen.transformers
    model = AutoModelForCausalLM.from_pretrained(..., experts_implementation="moegen")      # or set_experts_implementation("moegen")

What a model's experts compute is told from their parameters and by evaluating their gate on a few numbers; what moegen cannot
express goes to transformers' own grouped_mm, with one warning that names the model and the reason. Experts of checkpoints in mxfp4,
fp8 and int4 stay as they are, see _quantizers.py.
"""
from __future__ import annotations

import copy
import logging
import weakref
from typing import Any, Callable

import torch
from transformers.integrations import moe
from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS, FP8Experts
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

from . import _experts
from ._check import CODES, DTYPES, Alike, alike, is_in_memory
from ._transforms import is_eager, nobody_looks
from .torch import experts
from .torch import options as told_of

NAME = "moegen"
log = logging.getLogger("moegen.transformers")

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda g: torch.nn.functional.gelu(g, approximate="tanh"),
    "swish": lambda g: g * torch.sigmoid(1.702 * g),
    "relu": torch.relu,
    "squared_relu": lambda g: torch.relu(g).square(),
}
CLOSE = 1e-5
PLAIN = (torch.Tensor, torch.nn.Parameter)
STORED = frozenset((*DTYPES, *CODES))

# Of modules: options of `experts` or the reason why there are none, form of the matrices, name of the first one, and of a norm after
# each expert what is added to its weight.
_known: weakref.WeakKeyDictionary[torch.nn.Module, tuple[dict[str, Any] | str, str, str, float | None]] = weakref.WeakKeyDictionary()
_warned: set[tuple[type, str]] = set()
# Of those with nothing but two matrices: tensors that a call without gradients is like, its case, name of the first matrix.
_usual: weakref.WeakKeyDictionary[torch.nn.Module, tuple[Alike, _experts.Case, str]] = weakref.WeakKeyDictionary()
_is_grad_enabled, _is_dynamo_compiling = torch.is_grad_enabled, torch.compiler.is_dynamo_compiling


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool(((a - b).abs() <= CLOSE * (1 + b.abs())).all())


def _activation_of(function: Any) -> str | None:
    """The name of an activation, told by its values."""
    g = torch.linspace(-9, 9, 181)
    with torch.no_grad():
        got = function(g)
        return next((name for name, act in ACTIVATIONS.items() if _same(got, act(g))), None)


def _limits_of(module: Any) -> list[float]:
    """Numbers that may be the limit of a clamp: those of the module, and of its configuration by name."""
    own = [v for v in vars(module).values() if isinstance(v, float)]
    named = [v for k, v in vars(module.config).items() if "limit" in k and isinstance(v, (int, float)) and not isinstance(v, bool)]
    return list(dict.fromkeys(float(v) for v in (*own, *named) if v and v > 0))


def _gate_of(module: Any) -> dict[str, Any] | None:
    """Options of `experts` for a gate of the module's own, told by its values; None: it is none of those."""
    limits = _limits_of(module)
    reach = 2 * max([4.0, *limits])
    g, u = torch.meshgrid(torch.linspace(-reach, reach, 41), torch.linspace(-reach, reach, 37), indexing="ij")
    g, u = g.reshape(1, -1), u.reshape(1, -1)
    both = torch.cat([g, u], 1) if module.is_concatenated else torch.stack([g, u], 2).reshape(1, -1)
    with torch.no_grad():
        got = module._apply_gate(both.clone())
        for name, act in ACTIVATIONS.items():
            for offset in (0.0, 1.0):
                if _same(got, act(g) * (u + offset)):
                    return {"activation": name, "up_offset": offset}
                for limit in limits:
                    if _same(got, act(g.clamp(max=limit)) * (u.clamp(-limit, limit) + offset)):
                        return {"activation": name, "up_offset": offset, "clamp": {"gate": [None, limit], "up": [-limit, limit]}}
                    if _same(got, act(g).clamp(max=limit) * (u.clamp(-limit, limit) + offset)):
                        return {"activation": name, "up_offset": offset, "clamp": {"up": [-limit, limit], "activated": limit}}
    return None


def norm_of(module: Any) -> tuple[float, float] | None:
    """Of a norm after each expert that multiplies by a weight first: eps, and what is added to its parameter `weight`, told by its values
    for some other weight. None: it is another norm."""
    norm = copy.deepcopy(module.post_expert_norm).float()
    g = torch.Generator().manual_seed(1)
    d, weight = torch.randn(4, norm.weight.numel(), generator=g) * 3, torch.randn(norm.weight.numel(), generator=g)
    with torch.no_grad():
        norm.weight.copy_(weight)
        got = norm(d)
    for offset in (0.0, 1.0):
        z = (offset + weight) * d
        for eps in (v for v in vars(norm).values() if isinstance(v, float)):
            if _same(got, z * (z.square().mean(1, keepdim=True) + eps).rsqrt()):
                return eps, offset
    return None


def options_of(module: Any) -> dict[str, Any] | str:
    """Options of moegen.torch.experts for a module with transformers' experts, or the reason why there are none."""
    options: dict[str, Any] = {"transposed": module.is_transposed, "gated": module.has_gate}
    if getattr(module, "has_post_expert_norm", False):
        norm = norm_of(module)
        if norm is None:
            return "a norm after each expert that moegen does not have"
        options["post_norm_eps"] = norm[0]
    if not module.has_gate:
        options["activation"] = _activation_of(module.act_fn)
        return options if options["activation"] else "an activation that moegen does not have"
    options["interleaved"] = not module.is_concatenated
    if type(module)._apply_gate is moe._default_apply_gate:
        options["activation"] = _activation_of(module.act_fn)
        return options if options["activation"] else "an activation that moegen does not have"
    gate = _gate_of(module)
    return {**options, **gate} if gate else "a gate that moegen does not have"


def _form_of(module: Any) -> str:
    """How the module holds its matrices."""
    suffixes = {"gate_up_proj_blocks": "mxfp4", "gate_up_proj_packed": "int4", "down_proj_scale_inv": "scaled"}
    return next((form for name, form in suffixes.items() if hasattr(module, name)), "plain")


def _tensor_of(module: torch.nn.Module, name: str) -> torch.Tensor:
    """What module.name is, without nn.Module's own search where it is a parameter."""
    found = module._parameters.get(name)
    return getattr(module, name) if found is None else found


def _matrices_of(module: torch.nn.Module, form: str, first_name: str) -> tuple[torch.Tensor, ...]:
    """Of the first and the second product, and the scales of those that are codes; these are frozen, whatever trainers say."""
    if form == "plain":
        return _tensor_of(module, first_name), _tensor_of(module, "down_proj")
    if form == "mxfp4":
        return tuple(_tensor_of(module, n) for n in ("gate_up_proj_blocks", "down_proj_blocks", "gate_up_proj_scales", "down_proj_scales"))
    if form == "int4":
        packed = (_tensor_of(module, n).view(torch.uint8) for n in ("gate_up_proj_packed", "down_proj_packed"))
        return *packed, _tensor_of(module, "gate_up_proj_scale"), _tensor_of(module, "down_proj_scale")
    first, down = (_tensor_of(module, n).detach() for n in (first_name, "down_proj"))
    if first.dtype == torch.int8:   # mxfp4, as DeepSeek-V4 has it
        first, down = first.view(torch.uint8), down.view(torch.uint8)
    return first, down, _tensor_of(module, first_name + "_scale_inv"), _tensor_of(module, "down_proj_scale_inv")


def _reason(x: torch.Tensor, first: torch.Tensor, down: torch.Tensor) -> str | None:
    """What speaks against this call."""
    if not x.is_cpu:
        return "tensors that are not in the CPU's memory"
    if first.dtype not in STORED or down.dtype != first.dtype:
        return f"parameters of {first.dtype}"
    if type(first) not in PLAIN:
        return f"parameters that are {type(first).__name__}"
    return None


def _fall_back(module: Any, reason: str, *args: torch.Tensor) -> torch.Tensor:
    kind = type(module)
    if (kind, reason) not in _warned:
        _warned.add((kind, reason))
        model = getattr(getattr(module, "config", None), "model_type", "?")
        log.warning("%s (%s) is left to transformers: %s", kind.__name__, model, reason)
    if isinstance(module, FP8Experts):
        return FP8Experts.forward(module, *args)
    return grouped_mm_experts_forward(module, *args)


def _know(module: Any) -> tuple[dict[str, Any] | str, str, str, float | None]:
    options = options_of(module)
    norm = norm_of(module) if isinstance(options, dict) and "post_norm_eps" in options else None
    known = _known[module] = options, _form_of(module), "gate_up_proj" if module.has_gate else "up_proj", norm and norm[1]
    return known


def _as_usual(module: torch.nn.Module, *given: torch.Tensor) -> torch.Tensor | None:
    """What `experts` gives if this call is like the last one, found with few looks: kernels leave no room in caches for Python."""
    is_alike, case, name = _usual[module]
    there: Any = (*given, module._parameters.get(name), module._parameters.get("down_proj"))
    return _experts.forward(case, there, True) if is_alike(*there) else None


def _remember(module: torch.nn.Module, there: tuple[torch.Tensor, ...], name: str, options: dict[str, Any]) -> None:
    case = _experts.known_case(there, told_of(there[3], **options)) if is_eager(there) and is_in_memory(there) else None
    if case is not None:
        _usual[module] = alike(there), case, name


def experts_forward(module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor,
                    top_k_weights: torch.Tensor) -> torch.Tensor:
    """transformers' interface: hidden_states [T, H], top_k_index and top_k_weights [T, k] to [T, H] in the dtype of hidden_states."""
    unseen = not _is_grad_enabled() and not _is_dynamo_compiling() and nobody_looks()
    if unseen and module in _usual:
        y = _as_usual(module, hidden_states, top_k_index, top_k_weights)
        if y is not None:
            return y
    options, form, name, offset = _known.get(module) or _know(module)
    first, down, *scales = _matrices_of(module, form, name)
    reason = None if isinstance(options, str) else _reason(hidden_states, first, down)
    if isinstance(options, str) or reason:
        reason = reason or str(options)
        return _fall_back(module, reason, hidden_states, top_k_index, top_k_weights)
    more: dict[str, Any] = {**options}
    if module.has_bias:
        more["gate_up_bias"], more["down_bias"] = _tensor_of(module, name + "_bias"), _tensor_of(module, "down_proj_bias")
    if scales:
        more["gate_up_scale"], more["down_scale"] = scales
    dtype = hidden_states.dtype
    x = hidden_states if scales or first.dtype == dtype else hidden_states.to(first.dtype)
    if offset is not None:
        more["post_norm"] = (offset + _tensor_of(module.post_expert_norm, "weight")).to(x.dtype)
    y = experts(x, top_k_index, top_k_weights, first, down, **more)
    if unseen and more == options and x is hidden_states:
        _remember(module, (x, top_k_index, top_k_weights, first, down), name, options)
    return y if y.dtype == dtype else y.to(dtype)


def register(name: str = NAME) -> None:
    """Makes the implementation known under a name; importing this module does so with "moegen"."""
    ALL_EXPERTS_FUNCTIONS.register(name, experts_forward)
    ALL_FP8_EXPERTS_FUNCTIONS.register(name, experts_forward)


register()

from . import _quantizers   # noqa: E402 - which needs the above

_quantizers.register()
