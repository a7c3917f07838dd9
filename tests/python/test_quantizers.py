# SPDX-License-Identifier: Apache-2.0
"""test_quantizers.py - tiny checkpoints in mxfp4 and fp8: loaded as they are, against the dequantised model in float64."""
import json

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
transformers = pytest.importorskip("transformers", exc_type=ImportError)
safetensors = pytest.importorskip("safetensors.torch", exc_type=ImportError)

import models  # noqa: E402
import moegen.transformers  # noqa: E402
from models import error, tokens  # noqa: E402
from moegen import _quantizers  # noqa: E402

EXPERTS = dict(models.classes())


def load(path, implementation, dtype=torch.bfloat16, **more):
    return transformers.AutoModelForCausalLM.from_pretrained(path, experts_implementation=implementation, dtype=dtype, **more).eval()


def written(path, model, tensors, config):
    """A checkpoint with other tensors and a quantization_config."""
    safetensors.save_file({n: t.contiguous() for n, t in tensors.items()}, path / "model.safetensors", metadata={"format": "pt"})
    told = json.loads((path / "config.json").read_text())
    told["quantization_config"] = config
    (path / "config.json").write_text(json.dumps(told))
    return path


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory):
    """Random codes under the names of GPT-OSS's checkpoints."""
    path = tmp_path_factory.mktemp("gpt_oss")
    model = models.build("gpt_oss", EXPERTS["gpt_oss"], "eager", hidden_size=64, intermediate_size=32).to(torch.bfloat16)
    model.save_pretrained(path)
    tensors, g = safetensors.load_file(path / "model.safetensors"), torch.Generator().manual_seed(2)
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        E, inner, out = tensors.pop(name).shape
        tensors[name + "_blocks"] = torch.randint(0, 256, (E, out, inner // 32, 16), generator=g, dtype=torch.uint8)
        tensors[name + "_scales"] = torch.randint(121, 125, (E, out, inner // 32), generator=g, dtype=torch.uint8)
    return written(path, model, tensors, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})


@pytest.fixture(scope="module", params=["float", "ue8m0"])
def deepseek(request, tmp_path_factory):
    """Random codes under the names of DeepSeek-V3's checkpoints; with scales that are powers of two in a byte, too."""
    path = tmp_path_factory.mktemp("deepseek")
    model = models.build("deepseek_v3", EXPERTS["deepseek_v3"], "eager", hidden_size=128, moe_intermediate_size=128,
                         qk_nope_head_dim=32, v_head_dim=32).to(torch.bfloat16)
    model.save_pretrained(path)
    tensors, g = safetensors.load_file(path / "model.safetensors"), torch.Generator().manual_seed(2)
    for name in [n for n in tensors if ".experts." in n or n.endswith("o_proj.weight")]:
        out, inner = tensors[name].shape
        tensors[name] = (torch.randn(out, inner, generator=g) * 40).to(torch.float8_e4m3fn)
        scale = torch.randint(118, 121, (-(-out // 128), -(-inner // 128)), generator=g)
        tensors[name + "_scale_inv"] = (scale.to(torch.uint8).view(torch.float8_e8m0fnu) if request.param == "ue8m0"
                                        else torch.rand(scale.shape, generator=g) * 2.0 ** -8)
    return written(path, model, tensors, {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic",
                                          "scale_fmt": request.param})


def compare(model, truth, calls):
    """Logits, and gradients of what is no code."""
    ids = tokens()
    got, want = model(ids, labels=ids), truth(ids, labels=ids)
    assert calls == {"moegen": 2, "grouped_mm": 0}
    assert error(got.logits, want.logits) < 1e-5 and error(got.loss, want.loss) < 1e-5
    got.loss.backward()
    want.loss.backward()
    theirs, seen = dict(truth.named_parameters()), 0
    for n, p in model.named_parameters():
        if p.grad is not None:
            assert error(p.grad, theirs[n].grad, 1e-6) < 1e-3, n
            seen += n.endswith(("mlp.router.weight", "mlp.gate.weight"))
    assert seen == 2


def test_mxfp4(gpt_oss, calls):
    model, truth = load(gpt_oss, "moegen", torch.float32), load(gpt_oss, "eager")
    assert model.model.layers[0].mlp.experts.gate_up_proj_blocks.dtype == torch.uint8
    assert truth.model.layers[0].mlp.experts.gate_up_proj.dtype == torch.bfloat16
    stored = safetensors.load_file(gpt_oss / "model.safetensors")
    for n, t in model.state_dict().items():
        assert torch.equal(t, stored[n].to(t.dtype)), n
    compare(model, truth.double(), calls)


def test_mxfp4_elsewhere(gpt_oss, calls):
    """Other implementations on the same model, matrices dequantised as transformers does it, and a copy of the checkpoint."""
    model, truth = load(gpt_oss, "moegen", torch.float32), load(gpt_oss, "eager")
    with torch.no_grad():
        want = truth.double()(tokens()).logits
        for implementation in ("eager", "grouped_mm", "moegen"):
            model.set_experts_implementation(implementation)
            assert error(model(tokens()).logits, want) < 1e-5
        assert calls == {"moegen": 2, "grouped_mm": 0}
    assert torch.equal(truth.model.layers[0].mlp.experts.gate_up_proj.bfloat16(),
                       load(gpt_oss, "moegen").model.layers[0].mlp.experts.gate_up_proj)


def test_mxfp4_again(gpt_oss, tmp_path):
    model = load(gpt_oss, "moegen")
    model.save_pretrained(tmp_path)
    again = load(tmp_path, "moegen")
    assert again.model.layers[1].mlp.experts.down_proj_blocks.dtype == torch.uint8
    with torch.no_grad():
        assert torch.equal(again(tokens()).logits, model(tokens()).logits)
        a, b = (m.generate(tokens(), max_new_tokens=4, do_sample=False) for m in (model, again))
    assert torch.equal(a, b)


def test_mxfp4_dequantised(gpt_oss, calls):
    """Where the caller asks for it."""
    model = load(gpt_oss, "moegen", quantization_config=transformers.Mxfp4Config(dequantize=True))
    assert model.model.layers[0].mlp.experts.gate_up_proj.dtype == torch.bfloat16
    with torch.no_grad():
        model(tokens())
    assert calls == {"moegen": 2, "grouped_mm": 0}


def test_fp8(deepseek, calls):
    model = load(deepseek, "moegen")
    experts = model.model.layers[0].mlp.experts
    assert experts.gate_up_proj.dtype == torch.float8_e4m3fn and experts.down_proj_scale_inv.dtype == torch.float32
    assert model.model.layers[0].self_attn.o_proj.weight.dtype == torch.bfloat16
    for p in model.parameters():
        p.data = p.data.float() if p.dtype == torch.bfloat16 else p.data
    # In float64 without the rounding of transformers' dequantised matrices to bfloat16.
    truth = models.around(model, "deepseek_v3", EXPERTS["deepseek_v3"], hidden_size=128, moe_intermediate_size=128,
                        qk_nope_head_dim=32, v_head_dim=32)
    with torch.no_grad():
        for layer, other in zip(model.model.layers, truth.model.layers):
            for n in ("gate_up_proj", "down_proj"):
                codes, scale = getattr(layer.mlp.experts, n), getattr(layer.mlp.experts, n + "_scale_inv")
                getattr(other.mlp.experts, n).copy_(_quantizers.of_fp8(codes, scale, torch.float64))
    compare(model, truth, calls)


def test_fp8_elsewhere(deepseek):
    model = load(deepseek, "moegen")
    with torch.no_grad():
        got = model(tokens()).logits
        model.set_experts_implementation("eager")
        assert error(model(tokens()).logits, got) < 0.05
        other = load(deepseek, "eager")
        assert other.model.layers[0].mlp.experts.gate_up_proj.dtype == torch.bfloat16 and error(other(tokens()).logits, got) < 0.05


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """Random codes under the names of compressed-tensors."""
    pytest.importorskip("compressed_tensors", exc_type=ImportError)
    path = tmp_path_factory.mktemp("qwen")
    model = models.build("qwen3_moe", EXPERTS["qwen3_moe"], "eager", hidden_size=64, moe_intermediate_size=32).to(torch.bfloat16)
    model.save_pretrained(path)
    tensors, g = safetensors.load_file(path / "model.safetensors"), torch.Generator().manual_seed(2)
    for name in [n for n in tensors if ".experts." in n]:
        out, inner = tensors.pop(name).shape
        tensors[name + "_packed"] = torch.randint(-1 << 31, 1 << 31, (out, inner // 8), generator=g).int()
        tensors[name + "_scale"] = (torch.rand(out, inner // 32, generator=g) / 30).bfloat16()
        tensors[name + "_shape"] = torch.tensor([out, inner])
    return written(path, model, tensors, {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["re:.*mlp[.]experts.*"], "weights": {
            "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}}}})


def test_int4(qwen, calls):
    model = load(qwen, "moegen", torch.float32)
    experts = model.model.layers[0].mlp.experts
    assert experts.gate_up_proj_packed.dtype == torch.int32
    stored = safetensors.load_file(qwen / "model.safetensors")
    assert torch.equal(experts.gate_up_proj_packed[1, 32:], stored["model.layers.0.mlp.experts.1.up_proj.weight_packed"])
    assert torch.equal(experts.down_proj_scale[2], stored["model.layers.0.mlp.experts.2.down_proj.weight_scale"])
    truth = models.around(model, "qwen3_moe", EXPERTS["qwen3_moe"], hidden_size=64, moe_intermediate_size=32)
    with torch.no_grad():
        for layer, other in zip(model.model.layers, truth.model.layers):
            for n in ("gate_up_proj", "down_proj"):
                codes, scale = getattr(layer.mlp.experts, n + "_packed"), getattr(layer.mlp.experts, n + "_scale")
                getattr(other.mlp.experts, n).copy_(_quantizers.of_int4(codes, scale, torch.float64))
    compare(model, truth, calls)
    with torch.no_grad():
        got = model(tokens()).logits
        model.set_experts_implementation("eager")
        assert error(model(tokens()).logits, got) < 0.01


def test_int4_dequantised(qwen):
    """By transformers, for other implementations: the same matrices."""
    model, other = load(qwen, "moegen"), load(qwen, "eager", quantization_config=transformers.CompressedTensorsConfig(dequantize=True))
    assert other.model.layers[0].mlp.experts.gate_up_proj.dtype == torch.bfloat16
    assert error(model.model.layers[0].mlp.experts.gate_up_proj, other.model.layers[0].mlp.experts.gate_up_proj) < 1e-2


def save_again(path, tmp_path, **elsewhere):
    """A model of codes and matrices has the same codes and the same answers when it was saved, in both ways of loading."""
    model = load(path, "moegen")
    model.save_pretrained(tmp_path)
    before, after = (safetensors.load_file(p / "model.safetensors") for p in (path, tmp_path))
    codes = [n for n in before if ".mlp.experts." in n]
    assert len(codes) > 20 and all(after[n].dtype == before[n].dtype or after[n].dtype == torch.float32 for n in codes)
    assert all(torch.equal(after[n].float(), before[n].float()) for n in codes)
    assert all(t.dtype != torch.float8_e4m3fn for n, t in after.items() if n not in codes)
    again = load(tmp_path, "moegen")
    assert type(again.model.layers[0].mlp.experts).__name__ == type(model.model.layers[0].mlp.experts).__name__
    with torch.no_grad():
        want = model(tokens()).logits
        assert torch.equal(again(tokens()).logits, want)
        assert error(load(tmp_path, "eager", **elsewhere)(tokens()).logits, want) < 0.05
    again.save_pretrained(tmp_path / "more")
    last = safetensors.load_file(tmp_path / "more" / "model.safetensors")
    assert last.keys() == after.keys() and all(torch.equal(last[n].float(), t.float()) for n, t in after.items())


def test_fp8_again(deepseek, tmp_path):
    save_again(deepseek, tmp_path)


def test_int4_again(qwen, tmp_path):
    save_again(qwen, tmp_path, quantization_config=transformers.CompressedTensorsConfig(dequantize=True))
