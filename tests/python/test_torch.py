# SPDX-License-Identifier: Apache-2.0
"""test_torch.py - moegen.torch.experts: values and all gradients against float64, and what PyTorch asks of an operator."""
import contextlib
import copy
import itertools
import json
import os
import threading

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

import moegen  # noqa: E402
import moegen.torch  # noqa: E402
from moegen import _check, _experts, _team, _tensors  # noqa: E402

LIMIT = {torch.float32: 3e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
ACTIVATIONS = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu, "relu": torch.relu,
               "swish": lambda g: g * torch.sigmoid(1.702 * g)}


def inputs(T, E=5, k=2, H=48, I=32, dtype=torch.float32, transposed=False, gated=True, bias=False, seed=1, norm=False):
    g = torch.Generator().manual_seed(seed)
    wide = (2 if gated else 1) * I

    def new(*shape, scale=1.0):
        return (torch.randn(*shape, generator=g) * scale).to(dtype).requires_grad_()
    p = {"x": new(T, H), "ids": torch.stack([torch.randperm(E, generator=g)[:k] for _ in range(T)]).reshape(T, k) if T
         else torch.zeros(0, k, dtype=torch.long),
         "weights": torch.rand(T, k, generator=g).requires_grad_(),
         "gate_up": new(*((E, H, wide) if transposed else (E, wide, H)), scale=H ** -0.5),
         "down": new(*((E, I, H) if transposed else (E, H, I)), scale=I ** -0.5)}
    if bias:
        p.update(gate_up_bias=new(E, wide), down_bias=new(E, H))
    if norm:
        p["post_norm"] = new(H)
    return p


def eager(x, ids, weights, gate_up, down, gate_up_bias=None, down_bias=None, activation="silu", gated=True, clamp=None, up_offset=0.0,
          transposed=False, interleaved=False, post_norm=None, post_norm_eps=1e-6):
    """The same with torch's own operators, in the dtype of its inputs."""
    y = torch.zeros_like(x)
    for e in range(gate_up.shape[0]):
        t, j = torch.where(ids == e)
        h = x[t] @ (gate_up[e] if transposed else gate_up[e].T)
        h = h + gate_up_bias[e] if gate_up_bias is not None else h
        if gated:
            gate, up = (h[:, ::2], h[:, 1::2]) if interleaved else h.chunk(2, 1)
            if clamp:
                gate, up = gate.clamp(*clamp.get("gate", (None, torch.inf))), up.clamp(*clamp["up"])
            h = ACTIVATIONS[activation](gate)
            h = (h.clamp(max=clamp["activated"]) if clamp and "activated" in clamp else h) * (up + up_offset)
        else:
            h = ACTIVATIONS[activation](h)
        d = h @ (down[e] if transposed else down[e].T)
        d = d + down_bias[e] if down_bias is not None else d
        if post_norm is not None:
            d = d * post_norm
            d = d * (d.square().mean(1, keepdim=True) + post_norm_eps).rsqrt()
        y = y.index_add(0, t, d * weights[t, j, None].to(d.dtype))
    return y


def double(p):
    return {n: t.detach().double().requires_grad_() if t.is_floating_point() else t for n, t in p.items()}


def error(got, want):
    return ((got.double() - want).norm() / want.norm().clamp_min(1e-30)).item()


def compare(p, limit, **options):
    """y and every gradient of moegen against those of float64."""
    q = double(p)
    y, want = moegen.torch.experts(**p, **options), eager(**q, **options)
    assert y.dtype == p["x"].dtype and y.shape == p["x"].shape
    assert error(y, want) < limit
    dy = torch.randn(want.shape, generator=torch.Generator().manual_seed(7)).to(y.dtype)
    y.backward(dy)
    want.backward(dy.double())
    for name, t in p.items():
        if t.requires_grad:
            assert t.grad.dtype == t.dtype and t.grad.shape == t.shape
            assert error(t.grad, q[name].grad) < 2 * limit, name


@pytest.mark.parametrize("dtype", LIMIT, ids=str)
@pytest.mark.parametrize("T", [1, 7, 130])
def test_values(dtype, T):
    compare(inputs(T, dtype=dtype), LIMIT[dtype])


@pytest.mark.parametrize("transposed,interleaved,bias", list(itertools.product([False, True], repeat=3)))
def test_layouts(transposed, interleaved, bias):
    compare(inputs(19, transposed=transposed, bias=bias), LIMIT[torch.float32], transposed=transposed, interleaved=interleaved)


def test_gpt_oss():
    compare(inputs(23, transposed=True, bias=True), LIMIT[torch.float32], transposed=True, interleaved=True, activation="swish",
            clamp={"gate": [None, 0.7], "up": [-0.7, 0.7]}, up_offset=1.0)


def test_offset_that_is_rounded():
    """Where up was clamped it has no gradient, though its limit and the offset, in f32, add up to another number than their sum is."""
    compare(inputs(60), LIMIT[torch.float32], clamp={"up": [-0.5, 0.5]}, up_offset=0.3)


@pytest.mark.parametrize("dtype", LIMIT, ids=str)
@pytest.mark.parametrize("T", [1, 7, 130])
def test_norm_after_the_experts(dtype, T):
    compare(inputs(T, dtype=dtype, norm=True), LIMIT[dtype], post_norm_eps=1e-5)


@pytest.mark.parametrize("transposed,bias,recompute", list(itertools.product([False, True], repeat=3)))
def test_norm_of_layouts(transposed, bias, recompute):
    p = inputs(19, transposed=transposed, bias=bias, norm=True)
    p["ids"][0, 1], p["ids"][3], p["ids"][5] = 5, -1, 2   # skipped, and twice the same
    q = double(p)
    y, want = moegen.torch.experts(**p, transposed=transposed, recompute=recompute), eager(**q, transposed=transposed)
    assert error(y, want) < LIMIT[torch.float32]
    y.square().sum().backward(), want.square().sum().backward()
    for name, t in p.items():
        assert not t.requires_grad or error(t.grad, q[name].grad) < 3 * LIMIT[torch.float32], name


def test_clamp_after_the_activation():
    compare(inputs(23), LIMIT[torch.float32], clamp={"up": [-0.7, 0.7], "activated": 0.3})


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_without_gate(activation):
    compare(inputs(11, gated=False), LIMIT[torch.float32], activation=activation, gated=False)


@pytest.mark.parametrize("k", [1, 5])
def test_top_k(k):
    compare(inputs(13, k=k), LIMIT[torch.float32])


def test_all_to_one():
    p = inputs(40, k=1)
    p["ids"] = torch.full((40, 1), 3)
    compare(p, LIMIT[torch.float32])
    assert p["gate_up"].grad[0].abs().max() == 0


def test_skipped_ids():
    p = inputs(17)
    p["ids"][0, 1], p["ids"][3], p["ids"][5, 0] = 5, -1, 1 << 40
    compare(p, LIMIT[torch.float32])
    assert p["x"].grad[3].abs().max() == 0 and p["weights"].grad[0, 1] == 0 and p["weights"].grad[3].abs().max() == 0


def test_fewer_experts_than_pairs():
    """Of experts that are shared out, a few are here."""
    p = inputs(9, E=2)
    p["ids"] = torch.randint(0, 6, (9, 4), generator=torch.Generator().manual_seed(2))
    p["ids"][0], p["ids"][1] = torch.tensor([0, 1, 0, 1]), torch.tensor([5, 4, 1, -1])
    p["weights"] = torch.rand(9, 4).requires_grad_()
    compare(p, LIMIT[torch.float32])
    assert p["weights"].grad[1, 0] == 0


def test_one_expert_twice():
    p = inputs(9)
    p["ids"][4] = 2
    compare(p, LIMIT[torch.float32])


class Names(torch.utils._python_dispatch.TorchDispatchMode):
    """Of the operators that are called."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, kinds, args=(), more=None):
        self.seen.add(str(function))
        return function(*args, **(more or {}))


@pytest.mark.parametrize("T", [1, 30])
@pytest.mark.parametrize("recompute", [False, True])
def test_operators_when_somebody_looks(T, recompute):
    """Eager calls need no operators; a mode or a profiler sees them. The bits are the same."""
    def step():
        p = inputs(T, bias=True, dtype=torch.bfloat16)
        y = moegen.torch.experts(**p, recompute=recompute)
        y.sum().backward()
        return [y.detach(), *[t.grad for t in p.values() if t.grad is not None]]
    plain, name = step(), "experts" if recompute else "experts_saving"
    with Names() as names:
        seen = step()
    assert {f"moegen.{name}.default", "moegen.experts_backward.default"} <= names.seen and len(plain) == len(seen) == 7
    assert all(torch.equal(a, b) for a, b in zip(plain, seen))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    assert {f"moegen::{name}", "moegen::experts_backward"} <= {e.name for e in profile.events()}


def test_no_tokens():
    p = inputs(0, bias=True)
    y = moegen.torch.experts(**p)
    assert y.shape == (0, 48)
    y.sum().backward()
    assert p["gate_up"].grad.abs().max() == 0 and p["down_bias"].grad.shape == (5, 48) and p["x"].grad.shape == (0, 48)


@pytest.mark.parametrize("needs", ["x", "weights", "gate_up", "down"])
def test_some_gradients(needs):
    p = inputs(21)
    full = {n: t.detach().clone().requires_grad_() if t.is_floating_point() else t for n, t in p.items()}
    moegen.torch.experts(**full).sum().backward()   # dy is an expanded tensor
    for name, t in p.items():
        t.requires_grad_(name == needs) if t.is_floating_point() else None
    moegen.torch.experts(**p).sum().backward()
    assert torch.equal(p[needs].grad, full[needs].grad)
    assert all(t.grad is None for n, t in p.items() if n != needs)


def test_without_gradients():
    p = inputs(9)
    want = moegen.torch.experts(**p)
    with torch.no_grad():
        assert torch.equal(moegen.torch.experts(**p), want)
    with torch.inference_mode():
        assert torch.equal(moegen.torch.experts(**p), want)
        with torch.enable_grad():   # which changes nothing there
            assert not moegen.torch.experts(**p).requires_grad


def test_microbatches():
    p = inputs(12)
    parts = [dict(p, x=x, ids=i, weights=w) for x, i, w in zip(p["x"].split(5), p["ids"].split(5), p["weights"].split(5))]
    ys = [moegen.torch.experts(**part) for part in parts]
    for y in reversed(ys):   # several forward passes are in flight
        y.square().sum().backward()
    whole = {n: t.detach().clone().requires_grad_() if t.is_floating_point() else t for n, t in p.items()}
    moegen.torch.experts(**whole).square().sum().backward()
    for name in ("x", "gate_up", "down"):
        assert error(p[name].grad, whole[name].grad.double()) < 1e-6


def test_threads():
    p, before = inputs(64), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            q = {n: t.detach().clone().requires_grad_() if t.is_floating_point() else t for n, t in p.items()}
            y = moegen.torch.experts(**q)
            y.sum().backward()
            results.append([y, q["x"].grad, q["gate_up"].grad, q["weights"].grad])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


def test_many_callers():
    """Each with threads of its own."""
    torch.set_num_threads(2)
    problems = [inputs(T, seed=T) for T in (1, 7, 33, 64)]
    want, wrong = [moegen.torch.experts(**p).detach() for p in problems], []

    def many(p, y):
        torch.set_num_threads(2)
        for _ in range(20):
            got = moegen.torch.experts(**copies(p))
            got.sum().backward()
            if not torch.equal(got, y):
                wrong.append(p)
    workers = [threading.Thread(target=many, args=both) for both in zip(problems, want)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong


def test_fork():
    """In the child PyTorch's threads are gone, and those of its loops would be waited for."""
    p = inputs(33)
    torch.set_num_threads(2)
    want = moegen.torch.experts(**p).detach()
    child = os.fork()
    if child == 0:
        right = False
        try:
            right = torch.equal(moegen.torch.experts(**p), want)
        finally:
            os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_opcheck():
    p, ops = inputs(6, bias=True, norm=True), torch.ops.moegen
    parameters = [p[n] for n in ("gate_up", "down", "gate_up_bias", "down_bias", "post_norm")] + [None, None]
    told = moegen.torch.options(p["gate_up"], gate_up_bias=True, down_bias=True, post_norm_eps=1e-6)
    given = p["x"], p["ids"], p["weights"], *parameters
    for recompute in (False, True):
        torch.library.opcheck(ops.experts.default, (*given, told, recompute))
    torch.library.opcheck(ops.experts_saving.default, (*given, told))
    _, *saved = (t.detach() for t in ops.experts_saving(*given, told))
    dy = torch.randn(6, 48)
    given = [t.detach() if t is not None else None for t in given]
    for into in (None, torch.float32):
        torch.library.opcheck(ops.experts_backward.default, (dy, *given, *saved, told, into))
    mains = [torch.zeros(t.shape) for t in parameters[:5]]
    torch.library.opcheck(ops.experts_backward_.default, (dy, *given, *saved, told, mains))


def test_opcheck_of_a_layer():
    layer = moegen.torch.MoELayer(H=48, I_TP=32, E=5, top_k=2, aux_loss={"z": 0.1})
    text, x, parameters = layer._texts[torch.float32, 16], torch.randn(6, 48, requires_grad=True), [*layer.parameters()]
    for saves in (False, True):
        torch.library.opcheck(torch.ops.moegen.layer.default, (x, parameters, text, saves))
    text = json.dumps({"dtype": "f32", "H": 48, "E": 5, "top_k": 2, "method": "softmax_topk"})
    torch.library.opcheck(torch.ops.moegen.router.default, (x, [torch.randn(48, 5, requires_grad=True)], text))


def test_checkpointing_and_deepcopy():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            p = inputs(1)
            self.gate_up, self.down = torch.nn.Parameter(p["gate_up"].detach()), torch.nn.Parameter(p["down"].detach())

        def forward(self, x, ids, weights):
            return moegen.torch.experts(x, ids, weights, self.gate_up, self.down)
    layer, p = Layer(), inputs(15)
    other = copy.deepcopy(layer)
    layer(p["x"], p["ids"], p["weights"]).square().sum().backward()
    want = p["x"].grad.clone()
    p["x"].grad = None
    torch.utils.checkpoint.checkpoint(other, p["x"], p["ids"], p["weights"], use_reentrant=False).square().sum().backward()
    assert torch.equal(p["x"].grad, want) and torch.equal(layer.gate_up.grad, other.gate_up.grad)


def copies(p):
    return {n: t.detach().clone().requires_grad_(t.requires_grad) for n, t in p.items()}


def test_recompute():
    p, q = inputs(21, bias=True), inputs(21, bias=True)
    for given, recompute in ((p, False), (q, True)):
        moegen.torch.experts(**given, recompute=recompute).square().sum().backward()
    assert all(error(q[n].grad, p[n].grad.double()) < 1e-6 for n in p if n != "ids")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("told,looked_at", [(False, False), (True, False), (True, True)])
def test_main_grad(dtype, told, looked_at):
    """Sums of several backward passes in float32, as trainers with buckets of gradients have them."""
    p = inputs(40, bias=True, dtype=dtype)
    names, start = ("gate_up", "down", "gate_up_bias", "down_bias"), 0.5
    q = double(p)
    eager(**q).sum().backward()
    for n in names:
        p[n].main_grad = torch.full(p[n].shape, start)
        if told:
            p[n].grad_added_to_main_grad = False
    with Names() if looked_at else contextlib.nullcontext():
        for _ in range(2):
            moegen.torch.experts(**p).sum().backward()
    for n in names:
        assert error(p[n].main_grad - start, 2 * q[n].grad) < 2 * LIMIT[dtype]
        assert (p[n].grad is None) != told and getattr(p[n], "grad_added_to_main_grad", None) in (None, True)
    assert p["x"].grad.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_main_grad_and_checkpointing(dtype):
    """What was saved is unpacked once; a float64 main_grad is none that kernels add to."""
    p = inputs(20)
    want = copies(p)
    moegen.torch.experts(**want).square().sum().backward()
    p["gate_up"].main_grad = torch.zeros(p["gate_up"].shape, dtype=dtype)
    torch.utils.checkpoint.checkpoint(lambda x: moegen.torch.experts(**dict(p, x=x)), p["x"], use_reentrant=False).square().sum().backward()
    assert error(p["gate_up"].main_grad, want["gate_up"].grad.double()) < 1e-6
    assert all(error(p[n].grad, want[n].grad.double()) < 1e-6 for n in ("x", "weights", "down"))


def test_main_grad_of_some():
    p = inputs(20, bias=True)
    p["down"].main_grad = torch.zeros(4, 48, 32)
    with pytest.raises(moegen.ArgumentError, match=r"main_grad: \[5, 48, 32\]"):
        moegen.torch.experts(**p)
    del p["down"].main_grad
    want = copies(p)
    moegen.torch.experts(**want).sum().backward()
    p["down"].main_grad = torch.ones(p["down"].shape, dtype=torch.float64)
    p["gate_up_bias"].requires_grad_(False)
    moegen.torch.experts(**p).sum().backward()
    assert p["down"].grad is None and error(p["down"].main_grad - 1, want["down"].grad.double()) < 1e-6
    assert torch.equal(p["gate_up"].grad, want["gate_up"].grad) and p["gate_up_bias"].grad is None
    assert torch.equal(p["down_bias"].grad, want["down_bias"].grad)


@pytest.mark.parametrize("looked_at", [False, True])
def test_main_grad_of_what_is_asked_for(looked_at):
    """autograd.grad of x is no step of the parameters, nor are those that backward(inputs=...) leaves out."""
    p, want = inputs(20), inputs(20)
    for n in ("gate_up", "down"):
        p[n].main_grad = torch.zeros(p[n].shape)
    moegen.torch.experts(**want).sum().backward()
    with Names() if looked_at else contextlib.nullcontext():
        dx, = torch.autograd.grad(moegen.torch.experts(**p).sum(), p["x"])
        assert torch.equal(dx, want["x"].grad) and all(p[n].main_grad.abs().max() == 0 for n in ("gate_up", "down"))
        moegen.torch.experts(**p).sum().backward(inputs=[p["down"]])
    assert error(p["down"].main_grad, want["down"].grad.double()) < 1e-6
    assert p["gate_up"].main_grad.abs().max() == 0 and p["x"].grad is None


@pytest.mark.parametrize("main", [3, {"dtype": torch.long}, {"device": "meta"}], ids=str)
def test_wrong_main_grad(main):
    p = inputs(3)
    p["gate_up"].main_grad = torch.zeros(5, 64, 48, **main) if isinstance(main, dict) else main
    with pytest.raises(moegen.ArgumentError, match="main_grad: a tensor of floats on cpu"):
        moegen.torch.experts(**p)


def test_hooks():
    """Of a parameter, of the node and of what is saved; they see gradients once, and change them."""
    p, q, seen = inputs(9), inputs(9), []
    p["gate_up"].register_hook(lambda g: seen.append("parameter") or 2 * g)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t.clone()):
        y = moegen.torch.experts(**p)
    y.register_hook(lambda g: seen.append("y") or 3 * g)
    y.grad_fn.register_hook(lambda grads, _: seen.append(len(grads)))
    y.sum().backward(retain_graph=True)
    moegen.torch.experts(**q).sum().backward()
    assert seen == ["y", 5, "parameter"] and error(p["gate_up"].grad, 6 * q["gate_up"].grad.double()) < 1e-6
    y.sum().backward()
    assert error(p["down"].grad, 6 * q["down"].grad.double()) < 1e-6


@pytest.mark.parametrize("looked_at", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("pack", [torch.Tensor.double, torch.Tensor.bfloat16, lambda t: t[:-1]], ids=["wider", "narrower", "shorter"])
def test_hooks_that_change_what_is_saved(pack, recompute, looked_at):
    p = inputs(9)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: pack(t) if t.is_floating_point() else t, lambda t: t):
        y = moegen.torch.experts(**p, recompute=recompute)
    with pytest.raises(moegen.ArgumentError), Names() if looked_at else contextlib.nullcontext():
        y.sum().backward()


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("pack", [lambda t: t.mT.contiguous().mT, lambda t: torch._neg_view(-t), torch.Tensor.double],
                         ids=["columns", "negated", "wider"])
def test_hooks_that_change_the_usual(pack, guarded, monkeypatch):
    """Backward passes look closely at the first tensors, and at a glance at those like them: others are seen, and taken or refused."""
    if not guarded:
        monkeypatch.setattr(_check, "_tell_apart", lambda: False)
    _experts.cases.clear()
    p, q, dy = inputs(11), inputs(11), torch.ones(11, 48)
    for _ in range(2):
        moegen.torch.experts(**p).backward(dy)
    (case,) = {id(c): c for c in _experts.cases.values()}.values()
    assert (case.usual[True] is not _check.nothing_is_alike) == (guarded and _check._tell_apart())
    with torch.autograd.graph.saved_tensors_hooks(lambda t: pack(t) if t.is_floating_point() and t.dim() > 1 else t, lambda t: t):
        y = moegen.torch.experts(**q)
    with pytest.raises(moegen.ArgumentError) if pack is torch.Tensor.double else contextlib.nullcontext():
        y.backward(dy)
        for name in ("x", "weights", "gate_up", "down"):
            assert torch.equal(2 * q[name].grad, p[name].grad), name


def test_a_glance_sees_what_matters():
    assert _check._tell_apart(), "guards of this PyTorch are others: moegen._check looks at each tensor, which takes longer"


def test_parameters_that_have_changed():
    p = inputs(9)
    y = moegen.torch.experts(**p)
    with torch.no_grad():
        p["down"].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_autocast():
    p = inputs(20)
    with torch.autocast("cpu", torch.bfloat16):
        y = moegen.torch.experts(**dict(p, x=p["x"].bfloat16(), weights=p["weights"].bfloat16()))
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert error(y, eager(**double(p))) < 0.02 and p["gate_up"].grad.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8], ids=str)
@pytest.mark.parametrize("weights", [torch.float64, torch.bfloat16], ids=str)
def test_dtypes_of_pairs(dtype, weights):
    p = inputs(20)
    p["ids"], p["weights"] = p["ids"].to(dtype), p["weights"].detach().to(weights).requires_grad_()
    compare(p, {torch.float64: 3e-6, torch.bfloat16: 8e-3}[weights])


def test_layouts_of_memory():
    """Misaligned, with strides, expanded."""
    def odd(t):
        by = torch.zeros(t.numel() + 1, dtype=t.dtype)[1:].view(t.shape)
        return by.copy_(t.detach()).requires_grad_(t.requires_grad)

    def strided(t):
        return t.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_(t.requires_grad)
    p = inputs(20, bias=True)
    by = torch.randn(48, 20).T
    moegen.torch.experts(**p).backward(by.contiguous())
    for change in (odd, strided):
        q = {n: change(t) for n, t in p.items()}
        moegen.torch.experts(**q).backward(by)
        assert all(torch.equal(q[n].grad, p[n].grad) for n in p if n != "ids")


def test_views_that_negate():
    """As imaginary parts of conjugates are: memory has the numbers with another sign."""
    def negated(t):
        view = torch.complex(torch.zeros_like(t), -t).conj().imag
        assert view.is_neg() and torch.equal(view, t)
        return view
    p, q, by = inputs(9, bias=True), inputs(9, bias=True), torch.randn(9, 48)
    want = moegen.torch.experts(**p)
    want.backward(by)
    for n, t in q.items():
        if t.requires_grad:
            y = moegen.torch.experts(**dict(q, **{n: negated(t)}))
            assert torch.equal(y, want), n
            y.backward(negated(by))
            assert all(torch.equal(q[m].grad, p[m].grad) for m in q if m != "ids"), n
            for m in q.values():
                m.grad = None
    q["gate_up"].main_grad = negated(torch.ones(5, 64, 48))
    moegen.torch.experts(**q).backward(by)
    assert error(q["gate_up"].main_grad, 1 + p["gate_up"].grad.double()) < 1e-6
    assert torch.equal(_tensors.bind(negated(by), "by", "f32", False).keep, by)
    with pytest.raises(moegen.ArgumentError, match="negates"):
        _tensors.bind(negated(by), "by", "f32", True)


def test_once_differentiable():
    p = inputs(5)
    for wanted in (p["x"], (p["x"], p["gate_up"])):
        g = torch.autograd.grad(moegen.torch.experts(**p).sum(), wanted, create_graph=True)[0]
        with pytest.raises(moegen.UnsupportedError, match="differentiated once: .*eager"):
            (g.sum() + p["x"].sum()).backward()


def of_x(which):
    """A function of x that has kernels in it, and an x: experts, or a whole layer."""
    p = {n: t.detach() for n, t in inputs(5).items()}
    x = p.pop("x")
    return (lambda x: moegen.torch.experts(x, **p)) if which == "experts" else moegen.torch.MoELayer(H=48, I_TP=32, E=5, top_k=2), x


def dual(f, x):
    with torch.autograd.forward_ad.dual_level():
        return f(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))


REFUSED = {   # what is asked for, and what the answer says to do
    "vmap": (lambda f, x: torch.func.vmap(f)(x.expand(3, -1, -1)), r"reshape\(-1, H\)"),
    "jacrev": (lambda f, x: torch.func.jacrev(f)(x), "loop"),
    "vectorize": (lambda f, x: torch.autograd.functional.jacobian(f, x, vectorize=True), "loop"),
    "is_grads_batched": (lambda f, x: torch.autograd.grad(f(y := x.clone().requires_grad_()), y, torch.ones(3, *x.shape),
                                                          is_grads_batched=True), "loop"),
    "jvp": (lambda f, x: torch.func.jvp(f, (x,), (x,)), "vjp"),
    "dual": (dual, "vjp"),
    "jacfwd": (lambda f, x: torch.func.jacfwd(f)(x), "vjp"),
    "hessian": (lambda f, x: torch.func.hessian(lambda x: f(x).sum())(x), "vjp"),
    "twice": (lambda f, x: torch.func.grad(lambda x: torch.func.grad(lambda x: f(x).sum())(x).sum())(x), "eager"),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
@pytest.mark.parametrize("which", ["experts", "layer"])
@pytest.mark.parametrize("how", REFUSED)
def test_what_transforms_are_told(which, how):
    ask, words = REFUSED[how]
    for grads in (True, False):
        with torch.set_grad_enabled(grads or how in ("vectorize", "is_grads_batched")):
            with pytest.raises(moegen.UnsupportedError, match=words) as told:
                ask(*of_x(which))
            assert isinstance(told.value, NotImplementedError)


@pytest.mark.parametrize("which", ["experts", "layer"])
def test_gradients_by_transforms(which):
    f, x = of_x(which)
    y, back = torch.func.vjp(f, x)
    leaf = x.clone().requires_grad_()
    f(leaf).square().sum().backward()
    assert torch.equal(y, f(x)) and torch.equal(back(2 * y)[0], leaf.grad)
    assert torch.equal(torch.func.grad(lambda x: f(x).square().sum())(x), leaf.grad)


@pytest.mark.parametrize("change,words", [
    ({"x": torch.zeros(3, 4, 5)}, r"x: \[T, H\]"), ({"x": torch.zeros(3, 48, dtype=torch.float64)}, "float64"),
    ({"ids": torch.zeros(3, 3, dtype=torch.long)}, "ids, weights"), ({"ids": torch.zeros(3, 2)}, "ids, weights"),
    ({"down": torch.zeros(5, 32, 48)}, "not matrices"), ({"gate_up": torch.zeros(5, 64, 48, dtype=torch.bfloat16)}, "bfloat16"),
    ({"gate_up_bias": torch.zeros(5, 63)}, "gate_up_bias"),
    ({"gate_up": torch.zeros(0, 64, 48), "down": torch.zeros(0, 48, 32)}, "no experts"),
    ({"gate_up": torch.zeros(5, 64, 48, device="meta")}, "cpu, cpu, cpu, meta, cpu"), ({"clamp": {"gates": [0, 1]}}, "not 'gates'"),
    ({"clamp": {"gate": 3.0}}, "not 'gate': 3.0"), ({"clamp": 3}, "mapping"), ({"clamp": {"up": ["a", 1]}}, "a is no"),
    ({"up_offset": "x"}, "x is no"), ({"post_norm": torch.ones(48), "post_norm_eps": float("nan")}, "nan is no"),
    ({"gate_up": torch.tensor(1.0)}, "gate_up: matrices"), ({"down": torch.zeros(5, 48)}, "down: matrices"),
    ({"gate_up": torch.zeros(5, 64, 48, dtype=torch.uint8), "gate_up_scale": torch.zeros(5)}, "gate_up_scale: matrices"),
    ({"gate_up_scale": torch.ones(5, 1, 1)}, "of codes, not"), ({"weights": torch.zeros(3, 2, dtype=torch.complex64)}, "real numbers"),
    ({"up_offset": float("nan")}, "nan is no"), ({"ids": torch.zeros(3, 2, dtype=torch.bool)}, "integers, not torch.bool"),
    ({"x": torch.zeros(3, 48).to_sparse()}, "dense tensors, not torch.sparse_coo, torch.strided")])
def test_wrong_inputs(change, words):
    with pytest.raises(moegen.ArgumentError, match=words):
        moegen.torch.experts(**dict(inputs(3), **change))


def test_freed_memory():
    """As trainers do that shard parameters; what is left has an address of 0."""
    p = {**inputs(3), "gate_up": torch.nn.Parameter(torch.randn(5, 64, 48))}
    y = moegen.torch.experts(**p)
    p["gate_up"].untyped_storage().resize_(0)
    for use in (lambda: moegen.torch.experts(**p), y.sum().backward):
        with pytest.raises(moegen.ArgumentError, match="no memory"):
            use()


def test_a_library_of_another_version(monkeypatch):
    monkeypatch.setenv("MOEGEN_TEAM", os.environ.get("MOEGEN_LIBRARY", ""))
    if not os.environ["MOEGEN_TEAM"]:
        pytest.skip("MOEGEN_LIBRARY is not set")
    with pytest.raises(moegen.InternalError, match="of another version"):
        _team._Team()


def test_no_tensors():
    with pytest.raises(TypeError, match="not ndarray, Tensor") as told:
        moegen.torch.experts(**dict(inputs(3), x=torch.zeros(3, 48).numpy()))
    assert isinstance(told.value, moegen.MoegenError)


def test_open_clamps():
    p = inputs(9)
    want = moegen.torch.experts(**p, clamp={"gate": [None, 0.5], "up": [None, None]})
    assert torch.equal(moegen.torch.experts(**p, clamp={"gate": [-torch.inf, 0.5], "up": [-torch.inf, torch.inf]}), want)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore:Converting a tensor to a Python boolean")
def test_jit_trace():
    p = {n: t.detach() for n, t in inputs(6).items()}
    x = p.pop("x")
    moegen.torch.experts(x, **p)
    traced = torch.jit.trace(lambda x: moegen.torch.experts(x, **p), (x,))
    assert torch.equal(traced(2 * x), moegen.torch.experts(2 * x, **p))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("trains", [False, True])
def test_jit_of_a_layer(trains):
    """A trace is for any number of tokens."""
    layer = moegen.torch.MoELayer(H=48, I_TP=32, E=5, top_k=2)
    with torch.set_grad_enabled(trains):
        traced = torch.jit.trace(layer, (torch.randn(7, 48),))
    for T in (1, 7, 500):
        x = torch.randn(T, 48, requires_grad=trains)
        y = traced(x)
        assert torch.equal(y, layer(x))
    if trains:
        want = torch.autograd.grad(layer(x).sum(), x)[0]
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], want)
    with pytest.raises(moegen.UnsupportedError, match="torch.export.export"):
        torch.jit.script(torch.nn.Sequential(layer))


class Experts(torch.nn.Module):
    """With a router of PyTorch's."""

    def __init__(self, **options):
        super().__init__()
        p = inputs(1, norm="post_norm_eps" in options)
        self.matrices = torch.nn.ParameterDict({n: p[n].detach() for n in ("gate_up", "down", "post_norm") if n in p})
        self.options = options

    def forward(self, x):
        weights, ids = x[:, :5].softmax(1).topk(2)
        return moegen.torch.experts(x, ids, weights, **self.matrices, **self.options)


MODULES = {
    "experts": lambda: Experts(), "recompute": lambda: Experts(recompute=True), "norm": lambda: Experts(post_norm_eps=1e-5, recompute=True),
    "layer": lambda: moegen.torch.MoELayer(H=48, I_TP=32, E=5, top_k=2),
    "losses": lambda: moegen.torch.MoELayer(H=48, I_TP=32, E=5, top_k=2, aux_loss={"load_balance": 0.1})}


def exported(module, **how):
    x = torch.randn(48, 48)
    return torch.export.export(module, (x,), dynamic_shapes={"x": {0: torch.export.Dim("T", max=1 << 20)}}, **how)


def gradients(module, x):
    """Of x and of all parameters."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(module(x).square().sum(), (x, *module.parameters()))


@pytest.mark.filterwarnings("ignore:.*assigned during export", "ignore:.*side effects happened")   # losses
@pytest.mark.parametrize("how", ["with gradients", "without", "strict"])
@pytest.mark.parametrize("which", MODULES)
def test_export(which, how):
    """A program for any number of tokens, which trains as its module does, whether it was made with gradients or without."""
    module = MODULES[which]()
    with torch.set_grad_enabled(how != "without"):
        program = exported(module, strict=how == "strict")
    if how == "with gradients":
        other = torch.compile(program.module(), fullgraph=True, backend="aot_eager", dynamic=True)
    else:
        other = program.run_decompositions().module()
    for one in (program.module(), other):
        for T in (1, 7, 500):
            x = torch.randn(T, 48)
            assert torch.equal(one(x), module(x))
            got, want = gradients(one, x), gradients(module, x)
            assert len(got) == len(want) and all(map(torch.equal, got, want))
            with torch.no_grad():
                assert torch.equal(one(x), module(x))


@pytest.mark.parametrize("which", ["experts", "layer"])
def test_export_and_main_grad(which):
    module = MODULES[which]()
    program = exported(module).module()
    x = torch.randn(9, 48)
    _, *want = gradients(module, x)
    for p in program.parameters():
        p.main_grad = torch.ones(p.shape)
    program(x).square().sum().backward()
    for p, g in zip(program.parameters(), want):
        assert p.grad is None and error(p.main_grad - 1, g.double()) < 1e-6


def test_export_of_frozen_experts():
    """Codes have no gradients, in a program neither; x and the weights of pairs do."""
    class Frozen(torch.nn.Module):
        def __init__(self):
            super().__init__()
            g = torch.Generator().manual_seed(1)
            for name, out, n in (("gate_up", 64, 64), ("down", 64, 32)):
                self.register_buffer(name, torch.randint(0, 255, (5, out, n // 32, 16), dtype=torch.uint8, generator=g))
                self.register_buffer(name + "_scale", torch.full((5, out, n // 32), 124, dtype=torch.uint8))
            self.bias = torch.nn.Parameter(torch.zeros(5, 64), requires_grad=False)

        def forward(self, x):
            weights, ids = x[:, :5].softmax(1).topk(2)
            return moegen.torch.experts(x, ids, weights, self.gate_up, self.down, gate_up_scale=self.gate_up_scale, down_bias=self.bias,
                                        down_scale=self.down_scale)
    module, x = Frozen(), torch.randn(9, 64, requires_grad=True)
    program = torch.export.export(module, (torch.randn(48, 64),), dynamic_shapes={"x": {0: torch.export.Dim("T", max=1 << 20)}}).module()
    got, want = (torch.autograd.grad(m(x).square().sum(), x)[0] for m in (program, module))
    assert torch.equal(got, want)
    program.bias.requires_grad_(True)
    with pytest.raises(moegen.ArgumentError, match="frozen"):
        program(x)


@pytest.mark.parametrize("how", ["jvp", "jacfwd", "twice", "grad", "dual"])
def test_what_programs_tell_transforms(how):
    program, x = exported(MODULES["layer"]()).module(), torch.randn(5, 48)
    ask = REFUSED[how][0] if how in REFUSED else lambda f, x: torch.func.grad(lambda x: f(x).sum())(x)
    with pytest.raises(moegen.UnsupportedError, match="vjp" if how == "dual" else "the module that the program was made of"):
        ask(program, x)
    with torch.autograd.forward_ad.dual_level():   # which no tensor has part in
        assert program(x).shape == x.shape


def test_blocks():
    for rows in range(200):
        assert _experts.block_for(rows) == next((b for b in _experts.BLOCKS if b >= rows), _experts.BLOCKS[-1])


def test_compile():
    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def step(x, ids, weights, gate_up, down):
        return moegen.torch.experts(x * 2, ids, weights, gate_up, down).square().sum()
    for T in (7, 12, 300):   # of which the last has other blocks
        p, q = inputs(T), inputs(T)
        step(**p).backward()
        moegen.torch.experts(q["x"] * 2, *(q[n] for n in ("ids", "weights", "gate_up", "down"))).square().sum().backward()
        for name in ("x", "weights", "gate_up", "down"):
            assert torch.equal(p[name].grad, q[name].grad), name
