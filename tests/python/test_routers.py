# SPDX-License-Identifier: Apache-2.0
"""Routers of transformers that belong to no block: the kernels `router` beside them, values and gradients."""
import importlib
import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", exc_type=ImportError)
import moegen   # noqa: E402
from conftest import error   # noqa: E402

T, WIDTH, EXPERTS, K = 40, 48, 9, 3


@pytest.mark.parametrize("model", ["gemma4", "diffusion_gemma"])
def test_norm_and_scale(model):
    """A norm with a factor before the logits, and a factor of each expert after them."""
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    kind = next(v for n, v in vars(module).items() if n.endswith("TextRouter"))
    torch.manual_seed(1)
    router = kind(types.SimpleNamespace(hidden_size=WIDTH, num_experts=EXPERTS, top_k_experts=K, rms_norm_eps=1e-6))
    with torch.no_grad():
        for p in router.parameters():
            p.normal_()
    keys = {"kernel": "router", "dtype": "f32", "H": WIDTH, "E": EXPERTS, "top_k": K, "method": "softmax_topk_renorm",
            "router_norm": {"eps": 1e-6}, "logit_scale": WIDTH ** -0.5, "router_scale": "each"}
    x = torch.randn(T, WIDTH).requires_grad_()
    tensors = {"hidden_states": x.detach(), "router_weight": router.proj.weight.detach().t().contiguous(),
               "router_norm_weight": router.scale.detach(), "router_scale": router.per_expert_scale.detach()}
    got = moegen.kernel({**keys, "op": "forward"})(**tensors)
    _, weights, ids = router(x)
    order, mine = ids.argsort(1), got["expert_index"].long().argsort(1)
    assert torch.equal(got["expert_index"].long().gather(1, mine), ids.gather(1, order))
    assert error(got["topk_weights"].gather(1, mine), weights.detach().gather(1, order)) < 1e-5
    dy = torch.randn(T, EXPERTS)
    weights.backward(dy.gather(1, ids))
    back = moegen.kernel({**keys, "op": "backward"})(**tensors, logits=got["logits"], expert_index=got["expert_index"],
                                                     expert_affinities_grad=dy)
    for name, want in (("hidden_states", x.grad), ("router_weight", router.proj.weight.grad.t()), ("router_norm_weight", router.scale.grad),
                       ("router_scale", router.per_expert_scale.grad)):
        assert error(back[name + "_grad"], want) < 1e-4, name


@pytest.mark.parametrize("jitter", [0.01, 0.3])
def test_sparsemixer(jitter):
    """Of inference, and what autograd makes of that."""
    from transformers.models.phimoe.modeling_phimoe import sparsemixer
    torch.manual_seed(2)
    x, w = torch.randn(T, WIDTH), torch.randn(WIDTH, EXPERTS) / 3
    keys = {"kernel": "router", "dtype": "f32", "H": WIDTH, "E": EXPERTS, "top_k": 2, "method": "sparsemixer", "jitter": jitter}
    got = moegen.kernel({**keys, "op": "forward"})(hidden_states=x, router_weight=w)
    q, r = x.clone().requires_grad_(), w.clone().requires_grad_()
    weights, ids = sparsemixer(q @ r, jitter, False)
    assert torch.equal(got["expert_index"].long(), ids) and error(got["topk_weights"], weights.detach()) < 1e-5
    dy = torch.randn(T, EXPERTS)
    weights.backward(dy.gather(1, ids))
    back = moegen.kernel({**keys, "op": "backward"})(hidden_states=x, router_weight=w, logits=got["logits"],
                                                     expert_index=got["expert_index"], expert_affinities_grad=dy)
    assert error(back["hidden_states_grad"], q.grad) < 1e-4 and error(back["router_weight_grad"], r.grad) < 1e-4
