# SPDX-License-Identifier: Apache-2.0
"""_from_hf.py - sparse blocks of Hugging Face's models as MoELayers: what their routers compute is told by evaluating them."""
from __future__ import annotations

import contextlib
import itertools
from typing import Any, Iterator, TypeVar

import torch
from torch import Tensor

from . import kernel
from ._check import DTYPES
from ._library import KindError, SpecError, UnsupportedError
from ._split import Form, SplitLayer, form_of

METHODS = ("softmax_topk", "softmax_topk_renorm", "topk_softmax", "sigmoid_topk", "sigmoid_topk_renorm", "topk_sigmoid")
TOKENS, CLOSE = 64, 1e-4
EXPERTS = {"gate_up_proj_weight": "gate_up_proj", "down_proj_weight": "down_proj", "gate_and_up_proj_bias": "gate_up_proj_bias",
           "down_proj_bias": "down_proj_bias"}
Layer = TypeVar("Layer", bound=torch.nn.Module)
ALWAYS = "shared_experts"   # of a block whose router weighs them as it does those that it chooses
CORRECTIONS = ("e_score_correction_bias", "expert_bias", "bias_correction")


def _router_of(block: Any) -> tuple[str, Any]:
    for name in ("gate", "router"):
        router = getattr(block, name, None)
        if isinstance(router, torch.nn.Module) and _matrix_of(router):
            return name, router
    raise UnsupportedError(f"{type(block).__name__} has no router `gate` or `router` with a matrix `weight`")


def _matrix_of(router: Any) -> tuple[str, Tensor] | None:
    """Its name and the matrix [E, H] that logits come of."""
    for name, owner in (("weight", router), ("proj.weight", getattr(router, "proj", None))):
        if isinstance(getattr(owner, "weight", None), Tensor):
            return name, getattr(owner, "weight")
    return None


def _norm_of(router: Any, H: int) -> tuple[str, Tensor, float] | None:
    """Of a router that normalises what it sees: the name of the parameter that multiplies it then, its values, eps."""
    eps, factor = getattr(router, "eps", None), getattr(router, "scale", None)
    if not isinstance(getattr(router, "norm", None), torch.nn.Module) or not isinstance(eps, float) or not isinstance(factor, Tensor):
        return None
    return ("scale", factor, eps) if list(factor.shape) == [H] else None


def _correction_of(name: str, router: Any, block: Any) -> tuple[str, Tensor, bool] | None:
    """Its name, its values, and whether the block has it and tells the router."""
    for owner, prefix in ((router, f"{name}."), (block, "")):
        for n in CORRECTIONS:
            if isinstance(getattr(owner, n, None), Tensor):
                return prefix + n, getattr(owner, n), owner is block
    return None


def _scale_of(name: str, router: Any, E: int, norm: tuple[str, Tensor, float] | None) -> tuple[str, Tensor] | None:
    """A parameter of the router that multiplies the weights."""
    found = (n for n, p in router.named_parameters(recurse=False)
             if "scale" in n and list(p.shape) in ([1], [E]) and not (norm and norm[0] == n))
    return next(((f"{name}.{n}", getattr(router, n)) for n in found), None)


def _always_of(block: Any, router: Any, experts: Any) -> int:
    """How many experts every token has beside those that are chosen, with weights of the router's."""
    count = router.weight.shape[0] - experts.down_proj.shape[0]
    mine, H, I = getattr(block, ALWAYS, None), router.weight.shape[1], experts.down_proj.shape[2]   # noqa: E741
    shapes = {"gate_proj": [count, I, H], "up_proj": [count, I, H], "down_proj": [count, H, I]}
    fits = all(list(getattr(getattr(mine, n, None), "shape", [])) == shape for n, shape in shapes.items())
    return count if count > 0 and fits and experts.has_gate and not experts.is_transposed and not experts.has_bias else 0


@contextlib.contextmanager
def _inferring(block: torch.nn.Module) -> Iterator[None]:
    """In the mode of inference: routers may draw lots in training."""
    modes = [(m, m.training) for m in block.modules()]
    block.eval()
    try:
        yield
    finally:
        for m, training in modes:
            m.training = training


def _numbers(router: Any, words: str) -> list[int]:
    """Attributes of the router whose names have a word, as whole numbers above 1."""
    return [v for k, v in vars(router).items() if words in k and isinstance(v, int) and not isinstance(v, bool) and v >= 1]


def _scales(module: Any) -> list[float]:
    """1, and the module's attributes that sound like factors."""
    return list(dict.fromkeys([1.0] + [float(v) for k, v in vars(module).items() if "scal" in k and isinstance(v, (int, float)) and v]))


def _methods(router: Any, E: int) -> Iterator[dict[str, Any]]:
    """What the router may compute, most common first."""
    scales = _scales(router)[::-1]
    counts = [n for n in _numbers(router, "group") if 1 < n < E and E % n == 0]
    keeps = [n for n in _numbers(router, "topk_group") if n < E]
    groups = [None] + [{"count": c, "keep": k, "score": score, "fill": fill} for c in counts for k in keeps if k < c
                       for score in ("top2_sum", "max") for fill in ("minus_infinity", "zero")]
    scores: list[str | None] = [None, "sqrt_softplus"]
    of_logits = [float(v) for k, v in vars(router).items() if ("multiplier" in k or "scalar" in k) and isinstance(v, float)]
    for of_score, of_groups, method, s, z in itertools.product(scores, reversed(groups), METHODS, scales, [*of_logits, 1.0]):
        found: dict[str, Any] = {"method": method, "routing_scale": s} | ({} if z == 1 else {"logit_scale": z})
        yield found | ({"score": of_score} if of_score else {}) | ({"groups": of_groups} if of_groups else {})
    for jitter in (v for k, v in vars(router).items() if "jitter" in k and isinstance(v, float)):
        yield {"method": "sparsemixer", "routing_scale": 1.0, "jitter": jitter}


def _told(router: Any, weights: Tensor, bias: Tensor | None, correction: Tensor | None, is_told: bool, scale: Tensor | None,
          norm: tuple[str, Tensor, float] | None, top_k: int, always: int) -> dict[str, Any]:
    """Keys of the router, told by what it answers for random tokens, as one that a spec describes answers it."""
    E, H = weights.shape
    x = torch.randn(TOKENS, H, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        given = [t for t in router(x.to(weights.dtype), *([correction] if is_told else [])) if isinstance(t, Tensor)]
        ids = next(t for t in given if not t.is_floating_point() and list(t.shape) == [TOKENS, top_k])
        *_, by = (t for t in (given[:-1] if always else given) if t.is_floating_point() and list(t.shape) == [TOKENS, top_k])
    want = torch.zeros(TOKENS, E).scatter_(1, ids.long(), by.float())
    if always:
        want[:, E - always:] = given[-1]
    # Close scores may be chosen otherwise in the rounding of a dtype: most tokens have to agree.
    close, share = (CLOSE, 1.0) if weights.dtype == torch.float32 else (2e-2, 0.9)
    tensors: dict[str, Any] = {"hidden_states": x.to(weights.dtype).float(), "router_weight": weights.detach().float().t().contiguous()}
    if bias is not None:
        tensors["router_bias"] = bias.detach().float()
    if correction is not None:
        tensors["correction_bias"] = correction.detach().float()
    more: dict[str, Any] = {"always": always, "bias": bias is not None, "correction_bias": correction is not None}
    if scale is not None:
        tensors["router_scale"], more["router_scale"] = scale.detach().float(), "one" if scale.numel() == 1 else "each"
    if norm is not None:
        tensors["router_norm_weight"], more["router_norm"] = norm[1].detach().float(), {"eps": norm[2]}
    for keys in _methods(router, E):
        try:
            made = kernel({"kernel": "router", "op": "forward", "dtype": "f32", "H": H, "E": E, "top_k": top_k + always,
                           "affinity_dtype": "f32", **more, **keys})
        except SpecError:
            continue
        got = made(**tensors)["expert_affinities"]
        if ((got - want).abs().amax(1) <= close * (1 + want.abs().amax(1))).float().mean() >= share:
            return keys
    raise UnsupportedError(f"{type(router).__name__} is no router that moegen has")


def _shared_of(block: Any, H: int, gated: bool) -> tuple[str, dict[str, Any], dict[str, Tensor]] | None:
    """Of an expert that all tokens share: its name, keys of the layer, parameters by the layer's names."""
    names = ("shared_experts", "shared_expert", "shared_mlp")
    name = next((n for n in names if isinstance(getattr(block, n, None), torch.nn.Module)), None)
    if name is None:
        return None
    linear: list[Any] = [getattr(getattr(block, name), n, None) for n in (("gate_proj",) if gated else ()) + ("up_proj", "down_proj")]
    if not all(isinstance(m, torch.nn.Linear) and m.bias is None for m in linear) or linear[0].weight.shape[1] != H:
        raise UnsupportedError(f"{type(block).__name__} has a `{name}` that is no MLP like its experts")
    *first, down = (m.weight for m in linear)
    keys: dict[str, Any] = {"I": down.shape[1], "gate": "none"}
    tensors = {"shared_gate_up_proj_weight": torch.cat(first), "shared_down_proj_weight": down}
    scalar = getattr(block, "shared_expert_gate", None)
    if scalar is not None:
        keys["gate"], tensors["shared_gate_weight"] = "sigmoid", scalar.weight.view(-1)
    return name, keys, tensors


def _answer(module: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = module(x)
    return (y[0] if isinstance(y, tuple) else y).reshape(x.shape)


def layer_of_block(cls: type[Layer], block: Any) -> Layer | SplitLayer:
    """MoELayer.from_hf."""
    if not isinstance(block, torch.nn.Module):
        raise KindError(f"from_hf: a module of PyTorch, not {type(block).__name__}")
    with _inferring(block):
        layer = _layer_of(cls, block)
    return layer.train(block.training)


def _layer_of(cls: type[Layer], block: Any) -> Layer | SplitLayer:
    from .transformers import options_of
    experts = getattr(block, "experts", None)
    if experts is None or not hasattr(experts, "is_transposed"):
        raise UnsupportedError(f"{type(block).__name__} has no `experts` that transformers' implementations know")
    options = options_of(experts)
    if isinstance(options, str):
        raise UnsupportedError(f"{type(experts).__name__} has {options}")
    form = form_of(block)
    if form is not None:
        return _split_of(form, block)
    name, router = _router_of(block)
    first = experts.gate_up_proj if experts.has_gate else experts.up_proj
    if not isinstance(getattr(router, "weight", None), Tensor):
        raise UnsupportedError(f"{type(block).__name__} has a router whose matrix is not its own")
    E, H = router.weight.shape
    bias = getattr(router, "bias", None)
    bias = bias if isinstance(bias, Tensor) and list(bias.shape) == [E] else None
    always, scale, correction = _always_of(block, router, experts), _scale_of(name, router, E, None), _correction_of(name, router, block)
    shared = None if always else _shared_of(block, H, experts.has_gate)
    top_k = next(iter(_numbers(router, "top_k") + _numbers(router, "num_experts_per_tok")), None)
    if first.dtype not in DTYPES or first.shape[0] + always != E or H != first.shape[1 if experts.is_transposed else 2] or top_k is None:
        raise UnsupportedError(f"{type(block).__name__} has a router and experts that do not belong together")
    keys = _told(router, router.weight, bias, correction[1] if correction else None, correction is not None and correction[2],
                 scale[1] if scale else None, None, top_k, always)
    weights = {"layout": "plain" if options["transposed"] else "transposed"}
    if options.get("interleaved"):
        weights["gate_up_order"] = "interleaved"
    keys |= {k: options[k] for k in ("activation", "gated", "clamp", "up_offset") if k in options}
    keys |= {"H": H, "I_TP": experts.down_proj.shape[1 if experts.is_transposed else 2], "E": E, "top_k": top_k + always,
             "always": always, "weights": weights, "router_bias": bias is not None, "correction_bias": correction is not None,
             "bias": experts.has_bias}
    keys |= {"router_scale": "one" if scale[1].numel() == 1 else "each"} if scale else {}
    keys |= {"bias_dtype": "f32"} if correction and not experts.has_bias else {}
    keys |= {"shared": shared[1]} if shared else {}
    x = torch.randn(1, TOKENS, H, generator=torch.Generator().manual_seed(2)).to(first.dtype)
    want, close = _answer(block, x), CLOSE if first.dtype == torch.float32 else 5e-2
    for factor in _scales(block):   # that the block multiplies by, after the experts
        layer = cls(DTYPES[first.dtype], **{**keys, "routing_scale": keys["routing_scale"] * factor})
        _fill(layer, name, router, bias, correction, scale, shared, experts, getattr(block, ALWAYS) if always else None)
        if (_answer(layer, x) - want).norm() <= close * want.norm():
            return layer
    raise UnsupportedError(f"{type(block).__name__} does more than its router and its experts")


class _Silent(torch.nn.Module):
    """In the place of an attention."""

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        return torch.zeros_like(hidden_states), None


def _half_answer(block: Any, x: Tensor) -> Tensor:
    """What a decoder layer makes of x if its attention adds nothing, and nothing follows its MLPs."""
    own, more = block.self_attn, getattr(block, "hidden_size_per_layer_input", 0)
    block.self_attn, block.hidden_size_per_layer_input = _Silent(), 0
    try:
        return _answer(block, x) / getattr(block, "layer_scalar", 1)
    finally:
        block.self_attn, block.hidden_size_per_layer_input = own, more


def _split_of(form: Form, block: Any) -> SplitLayer:
    """Of a block whose experts see something else than its router."""
    name, router = _router_of(block)
    found = _matrix_of(router)
    assert found is not None
    E, H = found[1].shape
    norm, correction = _norm_of(router, H), _correction_of(name, router, block)
    scale = _scale_of(name, router, E, norm)
    top_k = next(iter(_numbers(router, "top_k") + _numbers(getattr(router, "config", router), "top_k_experts")), None)
    if found[1].dtype not in DTYPES or top_k is None or block.experts.down_proj.shape[0] != E:
        raise UnsupportedError(f"{type(block).__name__} has a router and experts that do not belong together")
    keys = _told(router, found[1], None, correction[1] if correction else None, correction is not None and correction[2],
                 scale[1] if scale else None, norm, top_k, 0)
    given = {"router_weight": (f"{name}.{found[0]}", found[1].t())}
    if norm is not None:
        given["router_norm_weight"], keys["router_norm"] = (f"{name}.{norm[0]}", norm[1]), {"eps": norm[2]}
    if scale is not None:
        given["router_scale"], keys["router_scale"] = scale, "one" if scale[1].numel() == 1 else "each"
    if correction is not None:
        given["correction_bias"], keys["correction_bias"] = correction[:2], True
        keys["bias_dtype"] = DTYPES[correction[1].dtype]
    keys |= {"dtype": DTYPES[found[1].dtype], "H": H, "E": E, "top_k": top_k}
    layer = SplitLayer(form, block, keys, {n: t for n, (_, t) in given.items()}, {n: theirs for n, (theirs, _) in given.items()})
    x = torch.randn(1, TOKENS, H, generator=torch.Generator().manual_seed(2)).to(found[1].dtype)
    want, close = (_half_answer if form.joined else _answer)(block, x), CLOSE if x.dtype == torch.float32 else 5e-2
    if (_answer(layer, x) - want).norm() > close * want.norm():
        raise UnsupportedError(f"{type(block).__name__} does more than its router, its experts and {', '.join(form.names())}")
    return layer


def _fill(layer: Any, name: str, router: Any, bias: Tensor | None, correction: tuple[str, Tensor, bool] | None,
          scale: tuple[str, Tensor] | None, shared: tuple[str, dict[str, Any], dict[str, Tensor]] | None, experts: Any,
          always: Any) -> None:
    """Parameters of the block for the layer, and their names there."""
    layer.names = {"router_weight": f"{name}.weight"}
    given = {"router_weight": router.weight.t()}
    if bias is not None:
        layer.names["router_bias"], given["router_bias"] = f"{name}.bias", bias
    if correction:
        layer.names["correction_bias"], given["correction_bias"] = correction[:2]
    if scale:
        layer.names["router_scale"], given["router_scale"] = scale
    if shared:
        layer.names |= {n: f"{shared[0]}.{n}" for n in shared[2]}
        given |= shared[2]
    with torch.no_grad():
        for own, tensor in given.items():
            getattr(layer, own).copy_(tensor)
    for own, theirs in EXPERTS.items():
        if own in layer._parameters:
            theirs = theirs if experts.has_gate else theirs.replace("gate_up", "up")
            matrix = getattr(experts, theirs)   # the same memory: [E, H, 2I] is [E, H, 2, I]
            if always is not None:
                more = torch.cat([always.gate_proj, always.up_proj], 1) if own == "gate_up_proj_weight" else always.down_proj
                matrix = torch.nn.Parameter(torch.cat([matrix, more]).detach(), requires_grad=matrix.requires_grad)
            setattr(layer, own, matrix)
            layer.names[own] = f"experts.{theirs}"


def state_of_layer(layer: Any) -> dict[str, Tensor]:
    """MoELayer.to_hf."""
    if not layer.names:
        raise UnsupportedError("this layer was not made by from_hf")
    own, state = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}, dict[str, Tensor]()
    for name, theirs in layer.names.items():
        tensor, block = own[name].detach(), theirs.partition(".")[0]
        always = layer.spec.get("always", 0) if block == "experts" else 0
        if always:
            tensor, more = tensor[:-always], tensor[-always:]
            parts = ("gate_proj", "up_proj") if name == "gate_up_proj_weight" else ("down_proj",)
            state |= zip((f"{ALWAYS}.{n}" for n in parts), more.chunk(len(parts), 1))
        if name == "shared_gate_up_proj_weight":
            parts = ("gate_proj", "up_proj") if layer.spec["gated"] else ("up_proj",)
            state |= zip((f"{block}.{n}.weight" for n in parts), tensor.chunk(len(parts)))
        elif name == "shared_down_proj_weight":
            state[f"{block}.down_proj.weight"] = tensor
        elif name == "shared_gate_weight":
            state["shared_expert_gate.weight"] = tensor.view(1, -1)
        else:
            state[theirs] = tensor.t() if name == "router_weight" else tensor
    return state
