# SPDX-License-Identifier: Apache-2.0
"""test_transformers.py - what users do with models whose experts moegen computes. test_models.py has every class of experts. The number
of calls shows that moegen computed."""
import copy
import logging
import os
import pickle

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
transformers = pytest.importorskip("transformers", exc_type=ImportError)

import models  # noqa: E402
import moegen.transformers  # noqa: E402
from models import error, tokens  # noqa: E402
from transformers.integrations import moe  # noqa: E402

EXPERTS = dict(models.classes())


def build(name, implementation="moegen", **special):
    return models.build(name, EXPERTS[name], implementation, **special)


def layer_of(model):
    """The first module of experts."""
    return next(m for m in model.modules() if hasattr(m, "down_proj") and hasattr(m, "has_gate"))


def train(model):
    """Gradients of a step by name."""
    model.zero_grad()
    model(tokens(), labels=tokens()).loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def close(a, b, limit=1e-6):
    return a.keys() == b.keys() and all(error(g, b[n]) < limit for n, g in a.items())


def test_save_and_load(tmp_path, calls):
    model = build("olmoe")
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, experts_implementation="moegen", dtype=torch.float32).eval()
    with torch.no_grad():
        assert error(again(tokens()).logits, model(tokens()).logits) < 1e-6
    assert "moegen" in str(again.get_experts_implementation()) and calls == {"moegen": 4, "grouped_mm": 0}


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_gradient_checkpointing(name, calls):
    model = build(name).train()
    want, before = train(model), calls["moegen"]
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert close(train(model), want) and calls == {"moegen": 3 * before, "grouped_mm": 0}


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies(again, calls):
    model = build("mixtral").train()
    want = train(model)
    other = again(model)
    del model
    assert close(train(other), want) and calls == {"moegen": 4, "grouped_mm": 0}


def test_fork(calls):
    model = build("olmoe").train()
    torch.set_num_threads(2)
    want = train(model)
    child = os.fork()
    if child == 0:
        right = False
        try:
            torch.set_num_threads(1)   # OpenMP's own team does not outlive a fork
            right = close(train(model), want) and calls["moegen"] == 4
        finally:
            os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("name", ["olmoe", "gpt_oss", "nemotron_h"])
def test_compile(name, calls):
    layer = layer_of(build(name))
    x = torch.randn(7, layer.down_proj.shape[2 if layer.is_transposed else 1], requires_grad=True)
    ids, weights = torch.stack([torch.randperm(4)[:2] for _ in range(7)]), torch.rand(7, 2, requires_grad=True)

    def step(function):
        x.grad = weights.grad = None
        layer.zero_grad()
        y = function(x, ids, weights)
        y.square().sum().backward()
        return [y.detach(), x.grad, weights.grad, *(p.grad for p in layer.parameters())]
    want = step(layer)
    got = step(torch.compile(layer, fullgraph=True, backend="aot_eager"))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True)) and calls["grouped_mm"] == 0


def test_compile_a_model(calls):
    model = build("qwen3_moe", num_hidden_layers=1).train()
    want = train(model)
    model.forward = torch.compile(model.forward, fullgraph=True, backend="aot_eager")
    assert close(train(model), want, 1e-5) and calls["grouped_mm"] == 0


@pytest.mark.parametrize("name", ["olmoe", "gpt_oss"])
def test_sentinels(name):
    """Experts of another rank: ids == num_experts, weight 0."""
    layer = layer_of(build(name))
    x = torch.randn(5, 32, requires_grad=True)
    ids, weights = torch.tensor([[0, 1], [4, 3], [4, 4], [2, 4], [3, 0]]), torch.rand(5, 2)
    weights[ids == 4] = 0
    layer._is_expert_parallel = True
    y, other = layer(x, ids, weights), moe.grouped_mm_experts_forward(layer, x, ids, weights)
    assert error(y, other) < 1e-5 and y[2].abs().max() == 0
    by = torch.randn(y.shape)
    got, want = (torch.autograd.grad(out, [x, *layer.parameters()], by) for out in (y, other))
    assert all(error(a, b) < 1e-5 for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("T,k", [(0, 2), (1, 1), (1, 2), (3, 1), (1, 4)])
def test_few_tokens(T, k):
    layer = layer_of(build("olmoe"))
    x, ids, weights = torch.randn(T, 32), torch.arange(T * k).view(T, k) % 4, torch.rand(T, k)
    with torch.no_grad():
        y = layer(x, ids, weights)
        layer.config._experts_implementation = "eager"
        assert y.shape == (T, 32) and error(y, layer(x, ids, weights)) < 1e-5


def test_as_usual():
    """Calls without gradients that are like the last one take a short way; others, and parameters that change, are seen."""
    layer = layer_of(build("olmoe"))
    x, ids, weights = torch.randn(3, 32), torch.tensor([[0, 1], [2, 1], [3, 0]]), torch.rand(3, 2)

    def call(how="moegen", *given):
        layer.config._experts_implementation = how
        return layer(*(given or (x, ids, weights)))

    def right(*given):
        return error(call("moegen", *given), call("eager", *given)) < 1e-5
    with torch.no_grad():
        assert right() and layer in moegen.transformers._usual and right()
        layer.down_proj.mul_(2)
        assert right()
        layer.down_proj = torch.nn.Parameter(layer.down_proj.mT.contiguous().mT)
        assert right() and right(x[:2], ids[:2], weights[:2]) and right(torch._neg_view(x), ids, weights)
        assert error(call("moegen", x, ids.int(), weights), call("eager")) < 1e-5
        assert right(x, torch.tensor([[0, 0], [2, 1], [3, 3]]), weights)
        assert error(call("moegen", x.double().requires_grad_(), ids, weights), call("eager")) < 1e-5
        with torch.inference_mode():
            assert right() and right()
    y = call()
    y.sum().backward()
    assert layer.down_proj.grad is not None


def test_bf16_and_autocast(calls):
    model = build("olmoe")
    truth = models.twin(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert error(model(tokens()).logits.float(), truth(tokens()).logits) < 0.1
    with torch.no_grad():
        assert error(model.to(torch.bfloat16)(tokens()).logits.float(), truth(tokens()).logits) < 0.1
    assert calls == {"moegen": 4, "grouped_mm": 0}


def test_fallback(calls, caplog):
    model = build("olmoe")
    layer_of(model).act_fn = torch.nn.Tanh()
    with torch.no_grad(), caplog.at_level(logging.WARNING):
        for _ in range(2):
            model(tokens())
    assert calls == {"moegen": 2, "grouped_mm": 2}
    warned = [r.getMessage() for r in caplog.records if r.name == "moegen.transformers"]
    assert len(warned) == 1 and "OlmoeExperts (olmoe)" in warned[0] and "activation" in warned[0]


def test_gates():
    class Gate(torch.nn.Module):
        def __init__(self, apply, concatenated=True):
            super().__init__()
            self.config, self.limit = transformers.PretrainedConfig(), 7.0
            self.is_concatenated, self.is_transposed, self.has_gate = concatenated, False, True
            type(self)._apply_gate = lambda _, both: apply(*(both.chunk(2, 1) if concatenated else (both[:, ::2], both[:, 1::2])))

    def own(apply, concatenated=True):
        return moegen.transformers.options_of(type("Own", (Gate,), {})(apply, concatenated))
    silu = torch.nn.functional.silu
    assert own(lambda g, u: silu(g) * u)["activation"] == "silu"
    clamped = own(lambda g, u: (u.clamp(-7, 7) + 1) * g.clamp(max=7) * torch.sigmoid(1.702 * g.clamp(max=7)), False)
    assert clamped["clamp"] == {"gate": [None, 7.0], "up": [-7.0, 7.0]} and clamped["up_offset"] == 1 and clamped["interleaved"]
    after = own(lambda g, u: silu(g).clamp(max=7) * u.clamp(-7, 7))
    assert after["clamp"] == {"up": [-7.0, 7.0], "activated": 7.0}
    assert isinstance(own(lambda g, u: torch.tanh(g) * u), str)


def test_registered():
    assert moe.ALL_EXPERTS_FUNCTIONS["moegen"] is moegen.transformers.experts_forward
