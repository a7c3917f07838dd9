# SPDX-License-Identifier: Apache-2.0
"""models.py - every class of experts that transformers has, and for each a tiny model that holds some.

The classes are found in transformers itself: those of the modules whose source decorates one. Sizes of a configuration are made small by
their names; SPECIAL has what a model asks for beyond that.
"""
import copy
import functools
import importlib
import inspect
import pathlib
import re

import torch
import transformers
from transformers import PreTrainedModel

# The first name that matches gives the size; a size of the configuration that is smaller stays.
SIZES = [(r"token_id$", None), (r"^(unpadded_)?vocab_size", 64), (r"^(d_model|n_embd|hidden_size|hidden_size_per_layer_input)$", 32),
         (r"^num_hidden_layers$", 2), (r"num_attention_heads$|^num_heads$", 4), (r"num_key_value_heads$|num_kv_heads$", 2),
         (r"^linear_num.*heads$|^mamba_num_heads$|^index_n_heads$", 4), (r"^chunk_size$", 16),
         (r"experts_per_tok|^moe_k$|moe_topk|top_k_experts|^moe_router_topk|^top_k$", 2), (r"shared_experts$", 1),
         (r"^(num_|n_)?(moe_num_)?(routed_|local_)?experts$", 4), (r"^n_group$", 2), (r"^topk_group$", 1),
         (r"intermediate_size$|intermediate_dim$|hidden_dim$|ffn_hidden|latent_size$", 24), (r"head_dim$", 8), (r"lora_rank$", 16),
         (r"first_k_dense_replace$|num_dense_layers$|moe_layer_start", 0), (r"sliding_window$", 16)]
OFTEN_NONE = r"expert|moe_intermediate|^head_dim$"   # sizes that configurations leave open
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MIXED = {"layer_types": ["linear_attention", "full_attention"]}
ROPE = {"rope_type": "default", "rope_theta": 1e4}
SPECIAL = {
    "bailing_hybrid": {**MIXED, "n_group": 2, "topk_group": 1},
    "deepseek_v4": {"mlp_layer_types": ["hash_moe", "moe"]},
    "ernie4_5_vl_moe": {"rope_parameters": {**ROPE, "mrope_section": [1, 1, 2]}},
    "flint": {"mlp_only_layers": []},
    "gemma4": {"enable_moe_block": True},
    "glm4v_moe": {"rope_parameters": {**ROPE, "mrope_section": [1, 1, 0]}},
    "glm5_next": {"qk_rope_head_dim": 0},
    "granitemoehybrid": {**MIXED, "mamba_n_heads": 8, "mamba_d_head": 8},
    "hy_v4_vl": {"rope_parameters": {**ROPE, "mrope_section": [2, 1, 1]}},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": MIXED,
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mistral4": {"head_dim": 16},
    "muse_spark": {"moe_hidden_size": 16},
    "nemotron_h": {"n_groups": 2},
    "qwen3_5_moe": MIXED,
    "qwen3_next": MIXED,
    "qwen3_omni_moe": {"shared_expert_intermediate_size": 24},
    "qwen4_exp": {**MIXED, "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 4,
                  "indexer_compress_ratio": 2},
}
KINDS = ("ForCausalLM", "ForTokenClassification", "TextModel", "Model")   # of models, those that are liked best first


def classes():
    """(name of the model, class of experts) of all that are decorated."""
    found = []
    for path in sorted((pathlib.Path(transformers.__file__).parent / "models").glob("*/modeling_*.py")):
        if "@use_experts_implementation" in path.read_text(encoding="utf-8"):
            module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
            found += [(path.parent.name, c) for c in list(vars(module).values())
                      if inspect.isclass(c) and c.__module__ == module.__name__ and hasattr(c, "_apply_gate")]
    return found


def _small(kind, special):
    """A configuration of a class with small sizes."""
    usual, sizes = kind().to_dict(), {}
    for name, value in usual.items():
        if name == "mlp_layer_types":
            sizes[name] = ["sparse"] * 2
        elif (isinstance(value, int) and not isinstance(value, bool)) or (value is None and re.search(OFTEN_NONE, name)):
            size = next((n for pattern, n in SIZES if re.search(pattern, name)), None)
            if size is not None and value != 0:
                sizes[name] = size if value is None else min(size, value)
        if name in TOKENS:
            sizes[name] = TOKENS[name]
    if "kv_lora_rank" in sizes and "num_key_value_heads" in sizes:
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    return kind(**{**sizes, **special})


@functools.cache
def _candidates(experts):
    """Classes of models in the same module, those that are liked best first."""
    module = inspect.getmodule(experts)
    own = [c for c in vars(module).values() if inspect.isclass(c) and issubclass(c, PreTrainedModel)
           and c.__module__ == module.__name__ and c.__name__.endswith(KINDS)]
    # A module with several classes of experts names its models after them.
    near = experts.__name__.removesuffix("Experts").removesuffix("Text")
    return sorted(own, key=lambda c: (not c.__name__.startswith(near), next(i for i, k in enumerate(KINDS) if c.__name__.endswith(k))))


def build(name, experts, implementation, dtype=torch.float32, **special):
    """A tiny model with random parameters that has modules of the class `experts`, for inference."""
    for kind in _candidates(experts):
        torch.manual_seed(3)
        model = kind(_small(kind.config_class, {**SPECIAL.get(name, {}), **special}))
        if any(type(m) is experts for m in model.modules()):
            break
    else:
        raise LookupError(f"no model of {name} has {experts.__name__}")
    with torch.no_grad():
        for n, p in model.named_parameters():
            if "bias" in n or p.abs().max() == 0 or not p.isfinite().all():
                p.normal_(0, 0.1)
            elif p.dim() > 1:
                p.normal_(0, p.shape[-1] ** -0.5)
        for n, b in model.named_buffers():
            if "correction" in n or "expert_bias" in n:   # of the router, for choosing
                b.normal_(0, 0.1)
            if n.endswith("tid2eid"):   # experts by the token's id
                b.copy_(torch.stack([torch.randperm(4)[:b.shape[1]] for _ in b]))
    model.set_experts_implementation(implementation)
    return model.to(dtype).eval()


def twin(model, implementation="eager", dtype=torch.float64):
    """The same parameters and buffers in another dtype, with other experts."""
    other = copy.deepcopy(model).to(dtype)
    other.set_experts_implementation(implementation)
    return other


def around(model, name, experts, dtype=torch.float64, **special):
    """A new model with the parameters and buffers of one whose experts are codes; its own experts are eager and are to be filled."""
    other = build(name, experts, "eager", dtype, **special)
    other.load_state_dict({n: p.to(dtype) if p.is_floating_point() else p for n, p in model.state_dict().items() if ".experts." not in n},
                          strict=False)
    return other


def count_calls(model, experts):
    """A list that grows by one with every call of a module of the class."""
    called = []
    for m in model.modules():
        if type(m) is experts:
            m.register_forward_hook(lambda *_: called.append(1))
    return called


def tokens(seed=5, T=9):
    return torch.randint(3, 60, (2, T), generator=torch.Generator().manual_seed(seed))


def run(model, ids):
    """(what the model answers, a loss): logits, or states of the last layer with a loss of their own."""
    labels = {"labels": ids} if type(model).__name__.endswith("ForCausalLM") else {}
    given = {"input_ids": ids} if labels else {"inputs_embeds": model.get_input_embeddings()(ids)}
    out = model(use_cache=False, **given, **labels)
    y = out.logits if "logits" in out else out.last_hidden_state
    if labels:
        return y, out.loss
    by = torch.randn(y.shape, generator=torch.Generator().manual_seed(7)).to(y.dtype)
    return y, (y * by).mean()


def error(got, want, least=1e-30):
    """Relative L2, to the norm of `want` or to `least`."""
    got, want = got.detach().double(), want.detach().double()
    return ((got - want).norm() / want.norm().clamp_min(least)).item()
