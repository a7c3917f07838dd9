# SPDX-License-Identifier: Apache-2.0
"""test_layer.py - moegen.torch.MoELayer: whole layers against float64, and from blocks of Hugging Face's models."""
import copy
import pickle

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

import moegen.torch  # noqa: E402
from models import error  # noqa: E402

SIZES = {"H": 48, "I_TP": 32, "E": 6, "top_k": 2}
AUX = {"load_balance": 0.02, "z": 0.001, "per": "tokens"}


def truth(layer, x, top_k=2):
    """(y, sum of the losses) in float64 of softmax_topk_renorm."""
    p = {n: t.detach().double().requires_grad_() for n, t in layer.named_parameters()}
    logits = x @ p["router_weight"]
    scores = logits.softmax(1)
    weights, ids = scores.topk(top_k)
    weights = weights / weights.sum(1, keepdim=True)
    y = torch.zeros_like(x)
    for e in range(p["down_proj_weight"].shape[0]):
        t, j = torch.where(ids == e)
        gate, up = (x[t] @ p["gate_up_proj_weight"][e].T).chunk(2, 1)
        y = y.index_add(0, t, (torch.nn.functional.silu(gate) * up) @ p["down_proj_weight"][e].T * weights[t, j, None])
    E = scores.shape[1]
    tokens = torch.nn.functional.one_hot(ids, E).sum(1).double().mean(0)
    return y, p, AUX["load_balance"] * E * (tokens * scores.mean(0)).sum(), AUX["z"] * logits.logsumexp(1).square().mean()


@pytest.mark.parametrize("dtype,limit", [("f32", 3e-6), ("bf16", 2e-2)])
@pytest.mark.parametrize("T", [1, 60])
@pytest.mark.parametrize("dispatch", ["sparse", "dense"])
def test_values(dtype, limit, T, dispatch):
    torch.manual_seed(1)
    layer = moegen.torch.MoELayer(dtype, method="softmax_topk_renorm", aux_loss=AUX, dispatch=dispatch, **SIZES)
    x = torch.randn(T, 48).to(getattr(torch, {"f32": "float32"}.get(dtype, "bfloat16"))).requires_grad_()
    q = x.detach().double().requires_grad_()
    want, p, balance, z = truth(layer, q)
    y = layer(x.view(1, T, 48))
    assert y.shape == (1, T, 48) and y.dtype == x.dtype and error(y[0], want) < limit
    assert error(layer.losses["load_balance_loss"], balance.view(1)) < limit and error(layer.losses["z_loss"], z.view(1)) < limit
    dy = torch.randn(T, 48)
    y.backward(dy.to(y.dtype).view(1, T, 48))
    ((want * dy).sum() + balance + z).backward()
    assert error(x.grad, q.grad) < 3 * limit
    for n, t in layer.named_parameters():
        assert t.grad.dtype == t.dtype and error(t.grad, p[n].grad) < 3 * limit, n
    with torch.no_grad():
        assert torch.equal(layer(x), y[0]) and error(layer.losses["z_loss"], z.view(1)) < limit


def test_no_tokens_and_copies():
    layer = moegen.torch.MoELayer(aux_loss=AUX, bias=True, router_bias=True, correction_bias=True, **SIZES)
    assert dict(layer.named_buffers()).keys() == {"correction_bias"} and layer.gate_and_up_proj_bias.abs().max() == 0
    x = torch.randn(0, 48, requires_grad=True)
    layer(x).sum().backward()
    assert layer.down_proj_weight.grad.abs().max() == 0 and layer.losses["z_loss"] == 0
    x = torch.randn(7, 48)
    want = layer(x)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), want)
    other = moegen.torch.MoELayer(aux_loss=AUX, bias=True, router_bias=True, correction_bias=True, **SIZES)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_another_dtype(dtype):
    """That of module.to is the layer's; codes and their scales keep theirs, and what kernels cannot take is refused."""
    more = {"correction_bias": True, "method": "sigmoid_topk_renorm"}
    layer, x = moegen.torch.MoELayer(aux_loss=AUX, bias=True, **more, **SIZES), torch.randn(9, 48)
    want = layer.to(dtype)(x.to(dtype))
    again = moegen.torch.MoELayer(moegen.torch.DTYPES[dtype], aux_loss=AUX, bias=True, **more, **SIZES)
    again.load_state_dict(layer.state_dict())
    assert want.dtype == dtype and torch.equal(again(x.to(dtype)), want) and layer.spec == again.spec
    precise = moegen.torch.MoELayer(bias_dtype="f32", **more, **SIZES).to(dtype)
    assert precise.correction_bias.dtype == torch.float32 and precise(x.to(dtype)).isfinite().all()
    layer.double()
    with pytest.raises(moegen.ArgumentError, match="float64"):
        layer(x.double())
    coded = moegen.torch.MoELayer("f32", H=128, I_TP=128, E=4, top_k=2, weights={"dtype": "fp8_e4m3", "scale": "block"})
    before = {n: t.clone() for n, t in coded.state_dict().items() if "proj" in n}
    coded.to(dtype)
    assert coded.router_weight.dtype == dtype and all(
        t.dtype == before[n].dtype and torch.equal(t.view(torch.uint8), before[n].view(torch.uint8)) for n, t in coded.state_dict().items()
        if n in before)
    assert coded(torch.randn(3, 128).to(dtype)).dtype == dtype


def test_frozen_experts():
    layer, x = moegen.torch.MoELayer(**SIZES), torch.randn(20, 48, requires_grad=True)
    layer(x).sum().backward()
    want = x.grad.clone(), layer.router_weight.grad.clone()
    x.grad = None
    layer.zero_grad()
    layer.gate_up_proj_weight.requires_grad_(False), layer.down_proj_weight.requires_grad_(False)
    layer(x).sum().backward()
    assert torch.equal(x.grad, want[0]) and torch.equal(layer.router_weight.grad, want[1]) and layer.down_proj_weight.grad is None


def test_wrong():
    with pytest.raises(moegen.SpecError, match="I_TPP"):
        moegen.torch.MoELayer(H=4, I_TPP=4, E=2)
    layer = moegen.torch.MoELayer(**SIZES)
    for x in (torch.zeros(3, 47), torch.tensor(1.0), torch.zeros(3, 48, device="meta"), torch.zeros(3, 48, dtype=torch.long)):
        with pytest.raises(moegen.ArgumentError, match=r"x: \[..., 48\]"):
            layer(x)
    with pytest.raises(moegen.KindError, match="not NoneType"):
        layer(None)
    with pytest.raises(moegen.ArgumentError, match="router of its own"):
        moegen.torch.MoELayer(router="given", **SIZES)
    for keys in ({"output_dtype": "bf16"}, {"T": 3}, {"op": "backward"}, {"weights": {"experts": "separate"}}):
        with pytest.raises(moegen.ArgumentError, match=f"^(weights.)?{next(iter(keys.get('weights', keys)))}: a layer"):
            moegen.torch.MoELayer(**keys, **SIZES)
    layer.down_proj_weight.data = layer.down_proj_weight.data[1:]   # as who shares it may do
    with pytest.raises(moegen.ArgumentError, match=r"down_proj_weight: \[6, 48, 32\]"):
        layer(torch.zeros(3, 48))


def test_compile():
    layer, x = moegen.torch.MoELayer(aux_loss=AUX, **SIZES), torch.randn(9, 48, requires_grad=True)
    layer(x).sum().backward()
    want = x.grad.clone(), layer.router_weight.grad.clone()
    x.grad = layer.router_weight.grad = None
    torch.compile(layer, fullgraph=True, backend="aot_eager")(x).sum().backward()
    assert torch.equal(x.grad, want[0]) and torch.equal(layer.router_weight.grad, want[1])


def test_opcheck():
    layer, x = moegen.torch.MoELayer(aux_loss=AUX, **SIZES), torch.randn(9, 48)
    text, parameters = layer._texts[torch.float32, 16], [t.detach() for t in layer.parameters()]
    torch.library.opcheck(torch.ops.moegen.layer.default, (x, parameters, text, False))
    torch.library.opcheck(torch.ops.moegen.layer.default, (x, parameters, text, True))
    _, state = torch.ops.moegen.layer(x, parameters, text, True)
    given = torch.randn(9, 48), x, parameters, state, text, True
    for into in (None, torch.float32):
        torch.library.opcheck(torch.ops.moegen.layer_backward.default, (*given, into))
    torch.library.opcheck(torch.ops.moegen.layer_backward_.default, (*given, [torch.zeros(p.shape) for p in parameters]))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("dtype,limit", [("f32", 1e-6), ("bf16", 1e-2)])
def test_main_grad(dtype, limit, frozen):
    """Sums of two passes in float32; of all parameters, or of some."""
    torch.manual_seed(1)
    layer = moegen.torch.MoELayer(dtype, bias=True, aux_loss=AUX, **SIZES)
    x = torch.randn(30, 48).to(layer.router_weight.dtype)
    layer.down_proj_bias.requires_grad_(not frozen)
    layer(x).sum().backward()
    want = {n: p.grad.clone() for n, p in layer.named_parameters() if p.requires_grad}
    layer.zero_grad()
    for n, p in layer.named_parameters():
        if p.requires_grad and not (frozen and n.startswith("gate_and")):
            p.main_grad, p.grad_added_to_main_grad = torch.ones(p.shape), False
    for _ in range(2):
        layer(x).sum().backward()
    for n, p in layer.named_parameters():
        if hasattr(p, "main_grad"):
            assert p.grad_added_to_main_grad and error(p.main_grad - 1, 2 * want[n].float()) < limit, n
        else:
            assert frozen and (p.grad is None if n == "down_proj_bias" else error(p.grad, 2 * want[n].float()) < limit), n


def test_main_grad_of_what_is_asked_for():
    layer, x = moegen.torch.MoELayer(torch.float32, **SIZES), torch.randn(9, 48, requires_grad=True)
    for p in layer.parameters():
        p.main_grad = torch.zeros(p.shape)
    torch.autograd.grad(layer(x).sum(), x)
    assert all(p.main_grad.abs().max() == 0 for p in layer.parameters())
    layer(x).sum().backward(inputs=[layer.router_weight])
    assert [n for n, p in layer.named_parameters() if p.main_grad.abs().max() > 0] == ["router_weight"]


def test_what_is_saved_and_views_that_negate():
    layer, x = moegen.torch.MoELayer(H=48, I_TP=32, E=5, top_k=2), torch.randn(9, 48)
    want = layer(x)
    assert torch.equal(layer(torch._neg_view(-x)), want)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double() if t.is_floating_point() else t, lambda t: t):
        y = layer(x)
    with pytest.raises(moegen.ArgumentError, match="hooks of saved tensors"):
        y.sum().backward()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.mT.contiguous().mT if t.dim() > 1 else t, lambda t: t):
        y = layer(x)
    got, right = (torch.autograd.grad(f.sum(), list(layer.parameters())) for f in (y, want))
    assert all(torch.equal(a, b) for a, b in zip(got, right))


def test_training_of_a_copy():
    layer, x = moegen.torch.MoELayer(aux_loss=AUX, **SIZES), torch.randn(9, 48)
    layer(x)   # which leaves losses
    other = copy.deepcopy(layer)
    step = torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(2):
        other(x).square().sum().backward()
        step.step()
    assert not any(torch.equal(a, b) for a, b in zip(layer.parameters(), other.parameters())) and layer.router_weight.grad is None


BLOCKS = ["olmoe", "mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "deepseek_v3", "deepseek_v2", "mistral4", "glm4_moe", "minimax_m2",
          "nemotron_h", "hy_v3", "beam", "kimi_linear", "dots1", "lfm2_moe", "phimoe", "inkling"]


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_models(name):
    """y and gradients of a block, and its state dict."""
    pytest.importorskip("transformers", exc_type=ImportError)
    import models
    experts = dict(models.classes())[name]
    special = {"norm_topk_prob": True} if name == "olmoe" else {}
    block = next(m for m in models.build(name, experts, "eager", **special).modules() if type(getattr(m, "experts", None)) is experts)
    layer = moegen.torch.MoELayer.from_hf(block)
    assert block.training == layer.training
    block.eval()   # Phi-3.5-MoE draws lots in training
    x = torch.randn(1, 20, layer.spec["H"])
    q, r = x.clone().requires_grad_(), x.clone().requires_grad_()
    got, want = layer(q), block(r)
    want = want[0] if isinstance(want, tuple) else want
    assert error(got, want) < 1e-5
    dy = torch.randn(want.shape)
    got.backward(dy)
    mine = {n: p.grad.clone() for n, p in layer.named_parameters()}
    block.zero_grad()
    want.backward(dy)
    assert error(q.grad, r.grad) < 1e-5 and len(mine) >= 3
    for n, p in layer.named_parameters():
        p.grad = mine[n]
    grads, theirs = copy.copy(layer), dict(block.named_parameters())
    grads._parameters = {n: torch.nn.Parameter(g) for n, g in mine.items()}
    for n, g in grads.to_hf().items():
        assert n not in theirs or error(g, theirs[n].grad) < 1e-4, n
    with torch.no_grad():
        layer.router_weight.mul_(2)
    assert not block.load_state_dict(layer.to_hf(), strict=False).unexpected_keys
    assert torch.equal(getattr(block, "gate", None).weight if hasattr(block, "gate") else block.router.weight, layer.router_weight.t())


def split(name, dtype=torch.float32):
    """A block whose experts see something else than its router, and what it computes, of modules of its own."""
    import models
    experts = dict(models.classes())[name]
    block = next(m for m in models.build(name, experts, "eager", dtype).modules() if type(getattr(m, "experts", None)) is experts)
    torch.manual_seed(4)
    with torch.no_grad():
        for n, p in block.named_parameters():
            if p.dim() == 1:   # of norms and scales
                p.add_(0.3 * torch.randn(p.shape))
    return block


def half(block, x):
    """A decoder layer of Gemma 4 behind its attention; of Muse Spark the block."""
    if not hasattr(block, "router"):
        return block(x)
    rows = x.view(-1, x.shape[-1])
    _, weights, ids = block.router(rows)
    sparse = block.post_feedforward_layernorm_2(block.experts(block.pre_feedforward_layernorm_2(rows), ids, weights)).view(x.shape)
    dense = block.post_feedforward_layernorm_1(block.mlp(block.pre_feedforward_layernorm(x)))
    return x + block.post_feedforward_layernorm(dense + sparse)


@pytest.mark.parametrize("name", ["muse_spark", "gemma4", "diffusion_gemma"])
def test_experts_that_see_something_else(name, calls):
    """y and all gradients against float64; the norms after Muse Spark's experts are not PyTorch's. State dict, copies, no tokens."""
    pytest.importorskip("transformers", exc_type=ImportError)
    block = split(name)
    exact = copy.deepcopy(block).double()
    layer = moegen.torch.MoELayer.from_hf(block)
    assert type(layer) is moegen.torch.SplitLayer
    behind, normed = getattr(block.experts, "post_expert_norm", None), []
    if behind is not None:
        hook = behind.register_forward_hook(lambda *_: normed.append(1))
    calls["moegen"] = 0
    x = torch.randn(2, 11, layer.spec["H"])
    q, r = x.clone().requires_grad_(), x.double().requires_grad_()
    got, want = layer(q), half(exact, r)
    assert calls["moegen"] == 1 and not normed and calls["grouped_mm"] == 0
    assert got.shape == x.shape and error(got, want) < 1e-5
    dy = torch.randn(x.shape)
    got.backward(dy), want.backward(dy.double())
    assert error(q.grad, r.grad) < 1e-5
    theirs = {n: p.grad for n, p in exact.named_parameters() if p.grad is not None}
    names, seen = {**layer.names}, set()
    for n, p in layer.named_parameters():
        theirs_name = names.get(n, n)
        seen.add(theirs_name)
        assert error(p.grad.t() if n == "router_weight" else p.grad, theirs[theirs_name]) < 3e-5, n
    assert seen == theirs.keys()
    if behind is not None:
        hook.remove()
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), layer(x))
    program = torch.export.export(layer, (x,)).module()
    s = x.clone().requires_grad_()
    program(s).backward(dy)
    assert error(s.grad, r.grad) < 1e-5
    layer(torch.zeros(0, layer.spec["H"], requires_grad=True)).sum().backward()
    with torch.no_grad():
        layer.router_weight.mul_(2)
    assert not block.load_state_dict(layer.to_hf(), strict=False).unexpected_keys
    assert error(layer(x), half(block, x)) < 1e-5


def test_split_in_bf16_and_operators():
    pytest.importorskip("transformers", exc_type=ImportError)
    block = split("muse_spark", torch.bfloat16)
    layer, exact = moegen.torch.MoELayer.from_hf(block), copy.deepcopy(block).double()
    x = torch.randn(40, layer.spec["H"]).bfloat16()
    with torch.no_grad():
        assert error(layer(x), half(exact, x[None].double())[0]) < 3e-2
    given = x, [getattr(layer, n).detach() for n in ("router_weight", "correction_bias")], layer._texts[(torch.bfloat16,) * 2]
    weights, ids, logits = torch.ops.moegen.router(*given)
    torch.library.opcheck(torch.ops.moegen.router.default, given)
    torch.library.opcheck(torch.ops.moegen.router_backward.default, (torch.randn(weights.shape), *given[:2], ids, logits, given[2]))
    with pytest.raises(moegen.ArgumentError, match="x: "):
        layer(x.float())
    with torch.no_grad():
        assert error(layer.float()(x.float()), half(exact, x[None].double())[0]) < 1e-5   # numbers of bf16 in f32


def test_no_layer_of_it():
    with pytest.raises(moegen.UnsupportedError, match="Linear has no `experts`"):
        moegen.torch.MoELayer.from_hf(torch.nn.Linear(3, 3))
    for none in None, "OlmoeSparseMoeBlock", torch.nn.Linear:
        with pytest.raises(moegen.KindError, match="from_hf: a module of PyTorch"):
            moegen.torch.MoELayer.from_hf(none)
