#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hf.py - an experts module of transformers, as its own implementations and moegen run it: median times, in turns.

    tests/peers/hf.py [--layers olmoe,qwen3] [--T 1,64,1024] [--passes forward,both] [--threads 2] [--rounds 7]
                      [--dtype bf16] [--against grouped_mm,eager] [--json FILE]
    tests/peers/hf.py --summary FILE...

Forward passes of few tokens have to read the weights of the experts that these go to: so many bytes are read in turns with them, too, and
each share of that speed is in the table. 2x another one's speed is out of reach where that has more than half of it.
--json: a line for each row of the table, added to FILE, of which --summary makes one table: of several processes, the least and the
median of (the fastest other one's median) / (moegen's median), and the medians of both shares of the reading speed.
"""
import argparse
import json
import statistics
import time

import torch
from transformers import AutoConfig

import moegen.transformers  # noqa: F401

LAYERS = {   # model type, class of experts, H, I, E, top_k
    "olmoe": ("olmoe", "OlmoeExperts", 2048, 1024, 64, 8),
    "qwen3": ("qwen3_moe", "Qwen3MoeExperts", 2048, 768, 128, 8),
}
PASSES = ("forward", "both")
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
READS = "reading"   # among implementations
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
    y = module(x, ids, weights)
    y.backward(torch.ones_like(y))
    for t in (x, weights, *module.parameters()):   # here: giving up gradients takes time, too, which is not the next one's
        t.grad = None
    return y


def read(module, experts):
    """The weights of so many experts, by sums, which take no longer than memory."""
    for p in module.parameters():
        p.detach()[:experts].view(torch.int64).sum()


def times_of(module, hows, problem, backward, rounds):
    times = {h: [] for h in hows}
    experts = problem[1].unique().numel()
    for r in range(rounds + 1):   # the first one is to get warm
        for h in hows if r % 2 else reversed(hows):
            start = time.perf_counter()
            read(module, experts) if h == READS else step(module, h, *problem, backward)
            times[h].append(time.perf_counter() - start)
    return {h: statistics.median(t[1:]) for h, t in times.items()}


def summary(files):
    """Of lines of --json; each is of one process."""
    rows = {}
    for file in files:
        with open(file, encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                own, reads = row["seconds"].pop("moegen"), row["seconds"].pop(READS, None)
                how = min(row["seconds"], key=row["seconds"].get)
                key = row["layer"], row.get("dtype", "bf16"), row["threads"], row["T"], row["pass"]
                rows.setdefault(key, []).append((row["seconds"][how] / own, own, how, reads))
    print("| layer | dtype | threads | T | pass | moegen, ms | fastest other one | ratio: least, median | shares of reading | processes |\n"
          + "|---" * 10 + "|")
    for (layer, dtype, threads, T, what), found in sorted(rows.items()):
        ratios, own, others, _ = zip(*found)
        shares = [(100 * reads / t, 100 * reads / t / ratio) for ratio, t, _, reads in found if reads]
        cell = ", ".join(f"{statistics.median(s):.0f} %" for s in zip(*shares)) or "–"
        print(f"| {layer} | {dtype} | {threads} | {T} | {what} | {1e3 * statistics.median(own):.3g} | {'/'.join(sorted(set(others)))} | "
              f"{min(ratios):.2f}, {statistics.median(ratios):.2f} | {cell} | {len(found)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="olmoe,qwen3")
    parser.add_argument("--T", default="1,64,1024")
    parser.add_argument("--passes", default=",".join(PASSES))
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--against", default="grouped_mm,batched_mm,eager")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json")
    parser.add_argument("--summary", nargs="+")
    options = parser.parse_args()
    if options.summary:
        summary(options.summary)
        return
    torch.set_num_threads(options.threads)
    known = ["moegen", *options.against.split(",")]
    dtype = DTYPES[options.dtype]
    print(f"| layer, {options.dtype} | T | pass | " + " | ".join(known) + " |\n" + "|---" * (len(known) + 3) + "|")
    for name in options.layers.split(","):
        module, H, E, k = module_of(name, dtype)
        for T in map(int, options.T.split(",")):
            g = torch.Generator().manual_seed(2)
            ids = torch.stack([torch.randperm(E, generator=g)[:k] for _ in range(T)])
            x = torch.randn(T, H, generator=g).to(dtype).requires_grad_()
            weights = torch.rand(T, k, generator=g).to(dtype).requires_grad_()
            for what in options.passes.split(","):
                backward = PASSES.index(what) > 0
                hows = [h for h in known if h != "batched_mm" or (T * k <= MOST_ROWS and not backward)]
                times = times_of(module, hows + [READS] * (not backward), (x, ids, weights), backward, options.rounds)
                shares = {h: f", {100 * times[READS] / times[h]:.0f} %" if READS in times else "" for h in times}
                cells = [f"{1e3 * times[h]:.3g} ms, {times[h] / times['moegen']:.2f}{shares[h]}" if h in times else "–" for h in known]
                print(f"| {name} | {T} | {what} | " + " | ".join(cells) + " |", flush=True)
                if options.json:
                    with open(options.json, "a", encoding="utf-8") as out:
                        out.write(json.dumps({"layer": name, "dtype": options.dtype, "threads": options.threads, "T": T, "pass": what,
                                              "seconds": times}) + "\n")


if __name__ == "__main__":
    main()
