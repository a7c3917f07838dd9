# SPDX-License-Identifier: Apache-2.0
"""_quantizers.py - quantised checkpoints whose experts stay as they are on machines without a GPU: mxfp4 (GPT-OSS), fp8 with a scale for
128 x 128 elements (DeepSeek-V3 and others), and int4 in groups as compressed-tensors packs it (Kimi and others).

transformers would dequantise them to bfloat16, at four times or twice the memory. Its quantizers are replaced by subclasses which swap
modules of experts, where moegen is their implementation, for modules that hold the checkpoint's codes; all else, and every other case,
is as before. Codes are frozen: gradients reach hidden states and routing weights, not them.
"""
from __future__ import annotations

import re
from typing import Any, Callable

import torch
from torch import Tensor, nn
from transformers.integrations.compressed_tensors import get_experts_scheme
from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS, FP8Experts
from transformers.integrations.moe import use_experts_implementation
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.quantizers import auto
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizer_compressed_tensors import CompressedTensorsHfQuantizer
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer
from transformers.quantizers.quantizer_mxfp4 import Mxfp4HfQuantizer

from .transformers import NAME, options_of

BLOCK, GROUP = 128, 32
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def of_mxfp4(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., n] of blocks [..., n / 32, 16], the lower nibble first, and scales [..., n / 32], 2^(s - 127)."""
    table = torch.tensor((*E2M1, *(-v for v in E2M1)))
    values = table[torch.stack([blocks & 15, blocks >> 4], -1).int()].flatten(-2)
    return torch.ldexp(values, (scales.view(torch.uint8).int() - 127)[..., None]).flatten(-2).to(dtype)


def of_fp8(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., n, m] of e4m3 codes of that shape and a factor for 128 x 128 of them."""
    by = scales.float().repeat_interleave(BLOCK, -2).repeat_interleave(BLOCK, -1)
    return (codes.float() * by[..., :codes.shape[-2], :codes.shape[-1]]).to(dtype)


def of_int4(packed: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., n] of int32 [..., n / 8], lower bits first, 8 is zero, and a factor for each group [..., n / 32 or n / 128]."""
    codes = packed.view(torch.uint8)
    values = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).float() - 8
    return (values * scales.float().repeat_interleave(values.shape[-1] // scales.shape[-1], -1)).to(dtype)


@use_experts_implementation(is_concatenated=False, is_transposed=True, has_bias=True)
class Mxfp4Experts(nn.Module):
    """GptOssExperts of codes, with parameters of the names, shapes and dtypes that checkpoints have: of gate_up_proj and down_proj
    `_blocks` uint8 [E, out, in / 32, 16], `_scales` uint8 [E, out, in / 32], `_bias` [E, out]. Other implementations than
    moegen see matrices in the dtype of the biases, made at each look."""
    gate_up_proj_blocks: Tensor
    gate_up_proj_scales: Tensor
    gate_up_proj_bias: Tensor
    down_proj_blocks: Tensor
    down_proj_scales: Tensor
    down_proj_bias: Tensor

    def __init__(self, config: Any):
        super().__init__()
        self.num_experts, self.hidden_size, self.intermediate_size = config.num_local_experts, config.hidden_size, config.intermediate_size
        self.alpha, self.limit = config.swiglu_alpha, config.swiglu_limit
        for name, out, n in (("gate_up_proj", 2 * self.intermediate_size, self.hidden_size),
                             ("down_proj", self.hidden_size, self.intermediate_size)):
            for suffix, shape, dtype in (("blocks", (out, n // GROUP, GROUP // 2), torch.uint8), ("scales", (out, n // GROUP), torch.uint8),
                                         ("bias", (out,), None)):
                self.register_parameter(f"{name}_{suffix}", nn.Parameter(
                    torch.empty(self.num_experts, *shape, dtype=dtype), requires_grad=False))

    _apply_gate = GptOssExperts._apply_gate

    @property
    def gate_up_proj(self) -> Tensor:
        return of_mxfp4(self.gate_up_proj_blocks, self.gate_up_proj_scales, self.gate_up_proj_bias.dtype).transpose(1, 2)

    @property
    def down_proj(self) -> Tensor:
        return of_mxfp4(self.down_proj_blocks, self.down_proj_scales, self.down_proj_bias.dtype).transpose(1, 2)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        gate_up, down, y = self.gate_up_proj, self.down_proj, torch.zeros_like(hidden_states)
        for e in range(self.num_experts):
            t, j = torch.where(top_k_index == e)
            h = self._apply_gate(hidden_states[t] @ gate_up[e] + self.gate_up_proj_bias[e])
            d = (h @ down[e] + self.down_proj_bias[e]) * top_k_weights[t, j, None]
            y = y.index_add(0, t, d.to(y.dtype))
        return y


class Fp8Experts(FP8Experts):
    """transformers' own, frozen, whose eager form runs on CPUs: with matrices made of the codes at each use."""

    def __init__(self, *args: Any, **more: Any):
        super().__init__(*args, **more)
        self.requires_grad_(False)

    def linear(self, input: Tensor, weight: Tensor, weight_scale_inv: Tensor, activation_scale: Tensor | None = None) -> Tensor:
        matrix = (of_mxfp4(weight.view(torch.uint8).unflatten(-1, (-1, GROUP // 2)), weight_scale_inv, input.dtype)
                  if weight.dtype == torch.int8 else of_fp8(weight, weight_scale_inv, input.dtype))
        return nn.functional.linear(input, matrix)


class Int4Experts(nn.Module):
    """Gated experts of codes: of gate_up_proj and down_proj `_packed` int32 [E, out, in / 8], `_scale` bfloat16 [E, out, in / group],
    `_shape`, which is not looked at. Other implementations than moegen see matrices in bfloat16, made at each look."""
    num_experts: int
    gate_up_proj_packed: Tensor
    gate_up_proj_scale: Tensor
    down_proj_packed: Tensor
    down_proj_scale: Tensor
    _apply_gate: Callable[[Tensor], Tensor]

    def __init__(self, of: Any, group: int):
        super().__init__()
        self.num_experts = of.num_experts
        for k, v in vars(of).items():   # numbers that a gate may need
            if isinstance(v, float):
                setattr(self, k, v)
        if hasattr(of, "act_fn"):
            self.act_fn = of.act_fn
        for name in ("gate_up_proj", "down_proj"):
            E, out, n = getattr(of, name).shape
            for suffix, shape, dtype in (("packed", (E, out, n // 8), torch.int32), ("scale", (E, out, n // group), torch.bfloat16),
                                         ("shape", (E, 4 if name == "gate_up_proj" else 2), torch.int64)):
                self.register_parameter(f"{name}_{suffix}", nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False))

    @property
    def gate_up_proj(self) -> Tensor:
        return of_int4(self.gate_up_proj_packed, self.gate_up_proj_scale, torch.bfloat16)

    @property
    def down_proj(self) -> Tensor:
        return of_int4(self.down_proj_packed, self.down_proj_scale, torch.bfloat16)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        gate_up, down, y = self.gate_up_proj, self.down_proj, torch.zeros_like(hidden_states)
        for e in range(self.num_experts):
            t, j = torch.where(top_k_index == e)
            h = self._apply_gate(hidden_states[t] @ gate_up[e].T.to(y.dtype))
            y = y.index_add(0, t, (h @ down[e].T.to(y.dtype) * top_k_weights[t, j, None]).to(y.dtype))
        return y


class _Keeps(HfQuantizer):
    """Of a quantizer: decides which modules of a model keep codes. `keeps`: the codes are of a form that kernels take."""
    kept = False
    may_keep = False

    @property
    def keeps(self) -> bool:
        return True

    def validate_environment(self, *args: Any, **more: Any) -> None:
        self.may_keep = (self.pre_quantized and not self.quantization_config.dequantize and self.keeps
                         and not torch.accelerator.is_available())
        if not self.may_keep:
            super().validate_environment(*args, **more)

    def _modules(self, model: Any) -> Any:
        """Names and modules of experts to swap."""
        skipped = self.get_modules_to_not_convert(model, getattr(self.quantization_config, "modules_to_not_convert", None))
        return [(n, m) for n, m in model.named_modules() if hasattr(m, "is_transposed") and hasattr(m, "_apply_gate")
                and getattr(m.config, "_experts_implementation", None) == NAME and not any(n == s or n.endswith("." + s) for s in skipped)]


class _Mixed(_Keeps):
    """Of a quantizer that leaves codes in experts and dequantises the rest; a model that is saved is such a mixture, too."""

    def postprocess_model(self, model: Any, **more: Any) -> Any:
        conversions = getattr(model, "_weight_conversions", None) or ()   # which may be gone behind the next line
        result = super().postprocess_model(model, **more)
        if self.kept:
            model.hf_quantizer = self
            self.quantization_config.dequantize = False   # the next one to load it will see
            self.leave_out([n for n, m in model.named_modules() if isinstance(m, nn.Linear)])
            model.config.quantization_config = self.quantization_config
            # What made matrices of codes would make codes of all matrices.
            model._weight_conversions = [c for c in conversions if list(c.target_patterns) != ["weight"]]
        return result

    def leave_out(self, names: list[str]) -> None:
        """Modules that are no codes in what is saved."""
        raise NotImplementedError

    def is_serializable(self) -> bool:
        return self.kept or super().is_serializable()


class Mxfp4Quantizer(_Keeps, Mxfp4HfQuantizer):
    def _process_model_before_weight_loading(self, model: Any, **more: Any) -> Any:
        modules = [(n, m) for n, m in self._modules(model) if type(m) is GptOssExperts] if self.may_keep else []
        if not modules:
            if self.may_keep:
                self.quantization_config.dequantize = True
            super()._process_model_before_weight_loading(model, **more)
            return
        self.kept = True
        for name, module in modules:
            with torch.device("meta"):
                model.set_submodule(name, Mxfp4Experts(module.config))

    def param_needs_quantization(self, model: Any, param_name: str, **more: Any) -> bool:
        return not self.kept and super().param_needs_quantization(model, param_name, **more)

    def get_weight_conversions(self) -> Any:
        return [] if self.kept else super().get_weight_conversions()

    def update_weight_conversions(self, weight_conversions: Any, model: Any) -> Any:
        return weight_conversions if self.kept else super().update_weight_conversions(weight_conversions, model)

    def get_state_dict_and_metadata(self, model: Any) -> Any:
        return (None, {}) if self.kept else super().get_state_dict_and_metadata(model)

    def _process_model_after_weight_loading(self, model: Any, **more: Any) -> Any:
        for module in model.modules() if self.kept else ():
            if isinstance(module, Mxfp4Experts):
                module.requires_grad_(False)
        return super()._process_model_after_weight_loading(model, **more)

    @property
    def is_trainable(self) -> bool:
        return self.kept or super().is_trainable


class Fp8Quantizer(_Mixed, FineGrainedFP8HfQuantizer):
    """Matrices outside of experts are dequantised, as transformers would."""

    @property
    def keeps(self) -> bool:
        c = self.quantization_config
        return c.activation_scheme == "dynamic" and (c.expert_dtype == "fp4" or list(c.weight_block_size or ()) == [BLOCK, BLOCK])

    def leave_out(self, names: list[str]) -> None:
        c = self.quantization_config
        c.modules_to_not_convert = list(dict.fromkeys([*(c.modules_to_not_convert or ()), *names]))

    def _process_model_before_weight_loading(self, model: Any, **more: Any) -> Any:
        c, found = self.quantization_config, []
        for name, module in self._modules(model) if self.may_keep else ():
            if not name.endswith(".experts") or module.has_bias or module.is_transposed or not module.is_concatenated:
                continue
            with torch.device("meta"):
                kind = use_experts_implementation(type("Fp8Experts", (Fp8Experts,), {}), experts_interface=ALL_FP8_EXPERTS_FUNCTIONS,
                                                  has_gate=module.has_gate)
                made = kind(module.config, block_size=c.weight_block_size, activation_scheme=c.activation_scheme, scale_fmt=c.scale_fmt,
                            has_gate=module.has_gate, expert_dtype=c.expert_dtype)
            if not isinstance(options_of(made), str):
                found.append((name, made))
        if self.may_keep:
            c.dequantize = True
        super()._process_model_before_weight_loading(model, **more)
        for name, made in found:
            model.set_submodule(name, made)
        self.kept = bool(found)

    def _process_model_after_weight_loading(self, model: Any, **more: Any) -> Any:
        for module in model.modules() if self.kept else ():
            if isinstance(module, Fp8Experts):
                module.requires_grad_(False)
                for name, scale in list(module.named_parameters(recurse=False)):   # powers of two, in a byte
                    if name.endswith("scale_inv") and scale.element_size() == 1 and self.quantization_config.expert_dtype == "fp8":
                        scale = scale.data.view(torch.float8_e8m0fnu).float()
                        setattr(module, name, nn.Parameter(scale, requires_grad=False))
        return super()._process_model_after_weight_loading(model, **more)


class CompressedTensorsQuantizer(_Mixed, CompressedTensorsHfQuantizer):
    """Matrices outside of experts are dequantised when they are loaded."""

    def validate_environment(self, *args: Any, **more: Any) -> None:
        CompressedTensorsHfQuantizer.validate_environment(self, *args, **more)
        super().validate_environment(*args, **more)

    @property
    def _scheme(self) -> Any:
        return get_experts_scheme(self.compressor.quantization_config)

    @property
    def keeps(self) -> bool:
        w, c = self._scheme.weights, self._scheme
        return (w is not None and c.input_activations is None and w.num_bits == 4 and str(getattr(w.type, "value", w.type)) == "int"
                and w.symmetric and w.group_size in (32, 128) and not w.actorder
                and (c.format or self.compressor.quantization_config.format) == "pack-quantized")

    def leave_out(self, names: list[str]) -> None:
        c = self.quantization_config.quantization_config
        c.ignore = list(dict.fromkeys([*(c.ignore or ()), *names]))

    def _is_packed(self, name: str) -> bool:
        """Are the experts of a module packed in the checkpoint, where each has matrices of its own?"""
        one = name + ".0.gate_proj"

        def names(patterns: Any) -> bool:
            return any(re.match(p.removeprefix("re:"), one) if p.startswith("re:") else one == p or one.startswith(p + ".")
                       for p in patterns or ())
        return not names(self.compressor.quantization_config.ignore) and ("Linear" in self._scheme.targets or names(self._scheme.targets))

    def _process_model_before_weight_loading(self, model: Any, **more: Any) -> Any:
        found = []
        for name, module in self._modules(model) if self.may_keep else ():
            if self._is_packed(name) and module.has_gate and not module.has_bias and not module.is_transposed and module.is_concatenated:
                kind = type("Int4Experts", (Int4Experts,), {"_apply_gate": type(module)._apply_gate,
                                                            "__init__": lambda self, config, *args: Int4Experts.__init__(self, *args)})
                with torch.device("meta"):
                    made = use_experts_implementation(kind)(module.config, module, self._scheme.weights.group_size)
                if not isinstance(options_of(made), str):
                    found.append((name, made))
        self.kept = bool(found)
        if self.kept:
            self.quantization_config.dequantize = True
        super()._process_model_before_weight_loading(model, **more)
        for name, made in found:
            model.set_submodule(name, made)


def register() -> None:
    auto.AUTO_QUANTIZER_MAPPING["mxfp4"] = Mxfp4Quantizer
    auto.AUTO_QUANTIZER_MAPPING["fp8"] = Fp8Quantizer
    auto.AUTO_QUANTIZER_MAPPING["compressed-tensors"] = CompressedTensorsQuantizer
