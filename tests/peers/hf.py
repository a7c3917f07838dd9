#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hf.py - an experts module of transformers, as its own implementations and moegen run it: median times, in turns.

    tests/peers/hf.py [--layers olmoe,qwen3] [--T 1,64,1024] [--threads 2] [--rounds 7]
"""
import argparse
import statistics
import time

import torch
from transformers import AutoConfig

import moegen.transformers  # noqa: F401

LAYERS = {   # model type, class of experts, H, I, E, top_k
    "olmoe": ("olmoe", "OlmoeExperts", 2048, 1024, 64, 8),
    "qwen3": ("qwen3_moe", "Qwen3MoeExperts", 2048, 768, 128, 8),
}
IMPLEMENTATIONS = ("moegen", "grouped_mm", "batched_mm", "eager")
MOST_ROWS = 64   # batched_mm copies the weights of each row


def module_of(name, dtype):
    import importlib
    kind, cls, H, I, E, k = LAYERS[name]   # noqa: E741
    config = AutoConfig.for_model(kind, hidden_size=H, intermediate_size=I, moe_intermediate_size=I, num_experts=E, num_experts_per_tok=k)
    module = getattr(importlib.import_module(f"transformers.models.{kind}.modeling_{kind}"), cls)(config).to(dtype)
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float32) * p.shape[-1] ** -0.5)
    return module, H, E, k


def step(module, how, x, ids, weights, backward):
    module.config._experts_implementation = how
    if not backward:
        with torch.no_grad():
            return module(x, ids, weights)
    for t in (x, weights, *module.parameters()):
        t.grad = None
    y = module(x, ids, weights)
    y.backward(torch.ones_like(y))
    return y


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="olmoe,qwen3")
    parser.add_argument("--T", default="1,64,1024")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("| layer, bf16 | T | pass | " + " | ".join(IMPLEMENTATIONS) + " |\n|---" * 1 + "|---" * (len(IMPLEMENTATIONS) + 2) + "|")
    for name in options.layers.split(","):
        module, H, E, k = module_of(name, torch.bfloat16)
        for T in map(int, options.T.split(",")):
            g = torch.Generator().manual_seed(2)
            ids = torch.stack([torch.randperm(E, generator=g)[:k] for _ in range(T)])
            x = torch.randn(T, H, generator=g).to(torch.bfloat16).requires_grad_()
            weights = torch.rand(T, k, generator=g).to(torch.bfloat16).requires_grad_()
            for backward in (False, True):
                hows = [h for h in IMPLEMENTATIONS if h != "batched_mm" or (T * k <= MOST_ROWS and not backward)]
                times = {h: [] for h in hows}
                for r in range(options.rounds + 1):   # the first one is to get warm
                    for h in hows if r % 2 else reversed(hows):
                        start = time.perf_counter()
                        step(module, h, x, ids, weights, backward)
                        times[h].append(time.perf_counter() - start)
                own = statistics.median(times["moegen"][1:])
                cells = [f"{1e3 * statistics.median(times[h][1:]):.3g} ms, {statistics.median(times[h][1:]) / own:.2f}" if h in times else "–"
                         for h in IMPLEMENTATIONS]
                print(f"| {name} | {T} | {'both' if backward else 'forward'} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
