# SPDX-License-Identifier: Apache-2.0
"""test_transformers.py - tiny models of Hugging Face's classes with moegen's experts: loss, logits and all gradients against float64,
and what users do with models. The number of calls shows that moegen computed."""
import copy
import logging

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
transformers = pytest.importorskip("transformers", exc_type=ImportError)

import moegen.transformers  # noqa: E402
from transformers.integrations import moe  # noqa: E402

COMMON = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MODELS = {
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "head_dim": 8},
    "qwen2_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 32},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "sliding_window": 16},
    "deepseek_v3": {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_group": 2, "topk_group": 1,
                    "first_k_dense_replace": 0, "n_shared_experts": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
                    "qk_nope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 4},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "minimax_m2": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8},
    "glm4_moe": {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_group": 1, "topk_group": 1,
                 "first_k_dense_replace": 0, "head_dim": 8},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 24, "moe_layer_start_index": 0,
                     "moe_num_shared_experts": 1},
}


def build(name, implementation="moegen", dtype=torch.float32):
    config = transformers.AutoConfig.for_model(name, **{**COMMON, **MODELS[name]})
    config._attn_implementation = "eager"
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if "bias" in n or p.abs().max() == 0 or not p.isfinite().all():
                p.normal_(0, 0.1)
            elif "experts" in n:
                p.normal_(0, p.shape[-1] ** -0.5)
    model.set_experts_implementation(implementation)
    return model.to(dtype)


@pytest.fixture
def calls(monkeypatch):
    """How often moegen computed, and grouped_mm."""
    count = {"moegen": 0, "grouped_mm": 0}
    own, other = moegen.transformers.experts, moegen.transformers.grouped_mm_experts_forward

    def counted(*args, **more):
        count["moegen"] += 1
        return own(*args, **more)

    def fallen(*args):
        count["grouped_mm"] += 1
        return other(*args)
    monkeypatch.setattr(moegen.transformers, "experts", counted)
    monkeypatch.setattr(moegen.transformers, "grouped_mm_experts_forward", fallen)
    return count


def tokens(seed=5):
    return torch.randint(3, 64, (2, 9), generator=torch.Generator().manual_seed(seed))


def error(got, want):
    return ((got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-30)).item()


@pytest.mark.parametrize("name", MODELS)
def test_gradients(name, calls):
    model = build(name).train()
    truth = build(name, "eager", torch.float64).train()
    truth.load_state_dict({n: p.double() if p.is_floating_point() else p for n, p in model.state_dict().items()})
    ids = tokens()
    got, want = model(ids, labels=ids), truth(ids, labels=ids)
    assert calls == {"moegen": 2, "grouped_mm": 0}
    assert error(got.logits, want.logits) < 1e-5 and error(got.loss, want.loss) < 1e-5
    got.loss.backward()
    want.loss.backward()
    others = dict(truth.named_parameters())
    some = 0
    for n, p in model.named_parameters():
        if others[n].grad is not None:
            assert p.grad is not None and error(p.grad, others[n].grad) < 1e-4, n
            some += "experts" in n
    assert some >= 4


@pytest.mark.parametrize("name", ["olmoe", "gpt_oss"])
def test_generate(name, calls):
    model = build(name).eval()
    ids = tokens()
    mine = model.generate(ids, max_new_tokens=8, do_sample=False)
    assert calls["moegen"] == 16
    model.set_experts_implementation("eager")
    assert torch.equal(mine, model.generate(ids, max_new_tokens=8, do_sample=False)) and calls["moegen"] == 16


def test_save_and_load(tmp_path, calls):
    model = build("olmoe").eval()
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, experts_implementation="moegen", dtype=torch.float32).eval()
    with torch.no_grad():
        assert error(again(tokens()).logits, model(tokens()).logits) < 1e-6
    assert "moegen" in str(again.get_experts_implementation()) and calls == {"moegen": 4, "grouped_mm": 0}


def test_gradient_checkpointing_and_deepcopy():
    model = build("qwen3_moe").train()
    other = copy.deepcopy(model)
    other.gradient_checkpointing_enable({"use_reentrant": False})
    for m in (model, other):
        m(tokens(), labels=tokens()).loss.backward()
    for a, b in zip(model.parameters(), other.parameters()):
        assert (a.grad is None and b.grad is None) or error(a.grad, b.grad) < 1e-6


def test_bf16_and_autocast(calls):
    model, truth = build("olmoe").eval(), build("olmoe", "eager", torch.float64).eval()
    truth.load_state_dict({n: p.double() if p.is_floating_point() else p for n, p in model.state_dict().items()})
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert error(model(tokens()).logits.float(), truth(tokens()).logits) < 0.1
    with torch.no_grad():
        assert error(model.to(torch.bfloat16)(tokens()).logits.float(), truth(tokens()).logits) < 0.1
    assert calls == {"moegen": 4, "grouped_mm": 0}


def test_fallback(calls, caplog):
    model = build("olmoe").eval()
    layer = next(m for m in model.modules() if hasattr(m, "gate_up_proj") and hasattr(m, "has_gate"))
    layer.act_fn = torch.nn.Tanh()
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
    assert isinstance(own(lambda g, u: silu(g).clamp(max=7) * u.clamp(-7, 7)), str)   # the clamp comes after the activation
    assert isinstance(own(lambda g, u: torch.tanh(g) * u), str)


def test_registered():
    assert moe.ALL_EXPERTS_FUNCTIONS["moegen"] is moegen.transformers.experts_forward
