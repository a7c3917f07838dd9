#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpt_oss.py - a mixture-of-experts layer of GPT-OSS straight from an mxfp4 checkpoint file: codes are used as they lie in it.

    python gen/python/examples/gpt_oss.py                                    # of a small file of the same form, which it writes first
    python gen/python/examples/gpt_oss.py --file model-00000-of-00002.safetensors --layer 3
"""
import argparse
import pathlib
import statistics
import tempfile
import time

import torch
from safetensors import safe_open
from safetensors.torch import save_file

import moegen.torch

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
GATE = {"activation": "swish", "clamp": {"gate": [None, 7.0], "up": [-7.0, 7.0]}, "up_offset": 1.0, "interleaved": True}


def written(path, layer, E=4, H=576, I=576):
    """A file with one layer, as a checkpoint has it, of random codes."""
    g, name = torch.Generator().manual_seed(1), f"model.layers.{layer}.mlp."
    tensors = {name + "router.weight": torch.randn(E, H, generator=g).bfloat16() / 24, name + "router.bias": torch.zeros(E).bfloat16()}
    for matrix, out, n in (("gate_up_proj", 2 * I, H), ("down_proj", H, I)):
        tensors[f"{name}experts.{matrix}_blocks"] = torch.randint(0, 256, (E, out, n // 32, 16), generator=g, dtype=torch.uint8)
        tensors[f"{name}experts.{matrix}_scales"] = torch.randint(118, 122, (E, out, n // 32), generator=g, dtype=torch.uint8)
        tensors[f"{name}experts.{matrix}_bias"] = torch.randn(E, out, generator=g).bfloat16() / 8
    save_file(tensors, path)


class Layer:
    """Router and experts; the codes stay in the mapped file."""

    def __init__(self, path, layer, top_k):
        self.top_k, name = top_k, f"model.layers.{layer}.mlp."
        with safe_open(path, "pt") as file:
            names = [n for n in file.keys() if n.startswith(name)]
            if not names:
                raise SystemExit(f"{path} has no tensors {name}*: other layers may be in it, or in another file of the checkpoint")
            self.tensors = {n.removeprefix(name): file.get_tensor(n) for n in names}

    def route(self, x):
        t = self.tensors
        top, ids = (x @ t["router.weight"].T + t["router.bias"]).topk(self.top_k, dim=1)
        return ids, top.softmax(1)

    def __call__(self, x):
        t = self.tensors
        return moegen.torch.experts(x, *self.route(x), t["experts.gate_up_proj_blocks"], t["experts.down_proj_blocks"],
                                    gate_up_scale=t["experts.gate_up_proj_scales"], down_scale=t["experts.down_proj_scales"],
                                    gate_up_bias=t["experts.gate_up_proj_bias"], down_bias=t["experts.down_proj_bias"], **GATE)

    def matrix(self, name, e):
        """[out, in] of one expert, dequantised."""
        blocks, scales = self.tensors[f"experts.{name}_blocks"][e], self.tensors[f"experts.{name}_scales"][e]
        values = E2M1[torch.stack([blocks & 15, blocks >> 4], -1).int()].flatten(-2)
        return torch.ldexp(values, (scales.int() - 127)[..., None]).flatten(-2).double()

    def truth(self, x):
        """In float64, from dequantised matrices."""
        t, (ids, weights), y = self.tensors, self.route(x), torch.zeros(x.shape, dtype=torch.float64)
        for e in ids.unique().tolist():
            rows, j = torch.where(ids == e)
            h = x[rows].double() @ self.matrix("gate_up_proj", e).T + t["experts.gate_up_proj_bias"][e].double()
            gate, up = h[:, ::2].clamp(max=7), h[:, 1::2].clamp(-7, 7)
            d = ((up + 1) * gate * torch.sigmoid(1.702 * gate)) @ self.matrix("down_proj", e).T + t["experts.down_proj_bias"][e].double()
            y.index_add_(0, rows, d * weights[rows, j, None].double())
        return y


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", help="a safetensors file of the checkpoint that has the layer")
    parser.add_argument("--layer", type=int, default=0)
    parser.add_argument("--top-k", type=int, help="experts of a token: 4 in GPT-OSS; 2 of the small file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = options.file or pathlib.Path(folder) / "layer.safetensors"
        if not options.file:
            written(path, options.layer)
        layer = Layer(path, options.layer, options.top_k or (4 if options.file else 2))
        E, out, groups, _ = layer.tensors["experts.gate_up_proj_blocks"].shape
        size = sum(t.numel() * t.element_size() for n, t in layer.tensors.items() if "experts" in n)
        print(f"{E} experts, H {32 * groups}, I {out // 2}: {size / 1e6:.1f} MB of codes and scales, "
              f"{3 * E * out * 32 * groups / 1e6:.1f} MB in bf16")
        for T in (1, 16, 128):
            x = torch.randn(T, 32 * groups, generator=torch.Generator().manual_seed(T)).bfloat16()
            y, want, times = layer(x), layer.truth(x), []
            for _ in range(9):
                start = time.perf_counter()
                layer(x)
                times.append(time.perf_counter() - start)
            error = ((y - want).norm() / want.norm()).item()
            print(f"T {T:4}: {1e3 * statistics.median(times):8.2f} ms, off float64 by {error:.1e}")
            assert error < 2e-2


if __name__ == "__main__":
    main()
