#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""finetune.py - trains a small OLMoE on a text, byte by byte, once for each implementation of its experts, side by side: the same start,
the same batches. Prints losses and tokens per second, and draws the curves.

    python gen/python/examples/finetune.py --steps 60 --out build/finetune.svg
    python gen/python/examples/finetune.py --model DIRECTORY --text FILE      # a checkpoint of your own, with its tokenizer
"""
import argparse
import copy
import pathlib
import statistics
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, OlmoeConfig, OlmoeForCausalLM

import moegen.transformers  # noqa: F401 - makes "moegen" known

ROOT = pathlib.Path(__file__).resolve().parents[3]
COLORS = ("#d1495b", "#2e86ab", "#66a182", "#8d6a9f")


def model_of(options):
    """(model, tokens of the text)"""
    text = pathlib.Path(options.text).read_bytes()
    if options.model:
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=options.dtype, experts_implementation="moegen")
        return model, tokenizer(text.decode(errors="replace"), return_tensors="pt").input_ids[0]
    torch.manual_seed(1)
    config = OlmoeConfig(vocab_size=256, hidden_size=options.hidden, intermediate_size=options.hidden // 2,
                         num_hidden_layers=options.layers, num_attention_heads=4, num_key_value_heads=4, num_experts=64,
                         num_experts_per_tok=8, max_position_embeddings=256,
                         norm_topk_prob=True, pad_token_id=0, bos_token_id=None, eos_token_id=None)
    return OlmoeForCausalLM(config).to(options.dtype), torch.tensor(list(text))


class Run:
    """A copy of the model with experts of one implementation, and how it went."""

    def __init__(self, model, name, rate):
        self.name, self.model = name, copy.deepcopy(model).train()
        self.model.set_experts_implementation(name)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, betas=(0.9, 0.95), fused=True)
        self.losses, self.seconds = [], []

    def step(self, batch):
        start = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(input_ids=batch, labels=batch).loss
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - start)


def picture(runs, tokens, width=720, height=400, pad=48):
    """SVG of the losses over the steps."""
    top = max(max(r.losses) for r in runs) * 1.02
    low = min(min(r.losses) for r in runs) * 0.95
    last = max(len(runs[0].losses) - 1, 1)

    def at(step, loss):
        return f"{pad + step / last * (width - 2 * pad):.1f},{pad + (top - loss) / (top - low) * (height - 2 * pad):.1f}"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="#fff"/>',
             f'<text x="{pad}" y="24" font-size="14">loss of a small OLMoE over {len(runs[0].losses)} steps of {tokens} tokens</text>']
    for i in range(5):
        loss = low + (top - low) * i / 4
        y = at(0, loss).split(",")[1]
        parts.append(f'<path d="M{pad} {y}H{width - pad}" stroke="#ddd"/>'
                     f'<text x="{pad - 6}" y="{y}" text-anchor="end" dy="4">{loss:.2f}</text>')
    for i, (run, color) in enumerate(zip(runs, COLORS)):
        points = " ".join(at(step, loss) for step, loss in enumerate(run.losses))
        dash = ' stroke-dasharray="6 5"' if i else ""
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{width - pad}" y="{pad + 18 * (i + 1)}" text-anchor="end" fill="{color}">{run.name}: '
                     f'{tokens / statistics.median(run.seconds):.0f} tokens/s</text>')
    return "\n".join(parts) + "\n</svg>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default=str(ROOT / "README.md"))
    parser.add_argument("--model", help="a directory with a checkpoint; none: a new, small model of bytes")
    parser.add_argument("--implementations", default="eager,grouped_mm,moegen")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--dtype", default="float32", type=lambda name: getattr(torch, name), help="float32 or bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", help="the picture, an SVG file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, text = model_of(options)
    runs = [Run(model, name, options.rate) for name in options.implementations.split(",")]
    del model
    where, tokens = torch.Generator().manual_seed(2), options.batch * options.length
    for step in range(options.steps):
        starts = torch.randint(0, len(text) - options.length, (options.batch,), generator=where).tolist()
        batch = torch.stack([text[s:s + options.length] for s in starts])
        for run in runs[step % len(runs):] + runs[:step % len(runs)]:
            run.step(batch)
        if step % 10 == 0 or step == options.steps - 1:
            print(f"step {step:4}: " + ", ".join(f"{r.name} {r.losses[-1]:.4f}" for r in runs), flush=True)
    for run in runs:
        median = statistics.median(run.seconds)
        print(f"{run.name:10} {tokens / median:8.0f} tokens/s, {1e3 * median:.1f} ms a step")
    if options.out:
        pathlib.Path(options.out).write_text(picture(runs, tokens), encoding="utf-8")
        print(options.out)


if __name__ == "__main__":
    main()
