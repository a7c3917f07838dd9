# SPDX-License-Identifier: Apache-2.0
"""problem.py - a layer's inputs as files that every peer maps, and float64 results of a few rows to hold their answers against.

Weights have the layout of Hugging Face's modules: gate_up [E, 2 I, H], gate rows first, and down [E, H, I]. The output of token t is
the sum over its experts e of weight[t, e] * down[e] (silu(gate[e] x) * (up[e] x)).
"""
import json
import os
import re

import numpy as np

TENSORS = ("x", "gate_up", "down", "ids", "weights", "dy")
ROWS = 6           # tokens, and rows of a weight's gradient, that are checked
LIMITS = {"bf16": 2e-2, "f32": 1e-4}   # relative error; peers round what is between two products


def sizes(spec):
    """H, I_TP, E, top_k and the default T of a spec file of one layer."""
    found = {}
    with open(spec, encoding="utf-8") as f:
        for line in f:
            match = re.match(r"(H|I_TP|E|top_k|T): *(\d+)", line)
            if match:
                found[match[1]] = int(match[2])
    return found


def to_bf16(values):
    """f32 numbers as the 16 bits of the nearest bf16, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def store(directory, name, values):
    with open(os.path.join(directory, name + ".bin"), "wb") as f:
        values.tofile(f)


def make(directory, spec, tokens, dtype, seed=1):
    """Writes the inputs and problem.json into a directory."""
    s = sizes(spec)
    T, H, I, E, k = tokens or s.get("T", 1024), s["H"], s["I_TP"], s["E"], s["top_k"]
    rng = np.random.default_rng(seed)
    kept = to_bf16 if dtype == "bf16" else lambda values: values.astype(np.float32)
    shapes = {"x": (T, H), "gate_up": (E, 2 * I, H), "down": (E, H, I), "ids": (T, k), "weights": (T, k), "dy": (T, H)}
    store(directory, "x", kept(rng.standard_normal((T, H), dtype=np.float32)))
    store(directory, "dy", kept(rng.standard_normal((T, H), dtype=np.float32)))
    for name in ("gate_up", "down"):   # an expert at a time: all of them may be more than memory has room for twice
        with open(os.path.join(directory, name + ".bin"), "wb") as f:
            for _ in range(E):
                matrix = rng.standard_normal(shapes[name][1:], dtype=np.float32)
                kept(matrix * np.float32(1 / np.sqrt(shapes[name][2]))).tofile(f)
    ids = np.argsort(rng.random((T, E)), axis=1)[:, :k].astype(np.int64)
    store(directory, "ids", ids)
    store(directory, "weights", kept(rng.random((T, k), dtype=np.float32)))
    about = {"T": T, "H": H, "I": I, "E": E, "k": k, "dtype": dtype, "shapes": {n: list(shapes[n]) for n in TENSORS}}
    with open(os.path.join(directory, "problem.json"), "w", encoding="utf-8") as f:
        json.dump(about, f)
    return about


class Problem:
    """The inputs in a directory: attributes x, gate_up, ... are arrays over mapped files, of uint16 for bf16."""

    def __init__(self, directory):
        with open(os.path.join(directory, "problem.json"), encoding="utf-8") as f:
            about = json.load(f)
        self.directory = directory
        self.T, self.H, self.I, self.E, self.k = (about[n] for n in "THIEk")
        self.dtype = about["dtype"]
        for name in TENSORS:
            kind = np.int64 if name == "ids" else np.uint16 if self.dtype == "bf16" else np.float32
            path = os.path.join(directory, name + ".bin")
            setattr(self, name, np.memmap(path, dtype=kind, mode="r", shape=tuple(about["shapes"][name])))

    def numbers(self, values):
        """What is stored, as float64."""
        return (from_bf16(values) if values.dtype == np.uint16 else values).astype(np.float64)


def experts_of(p):
    """order: pairs (token, choice), as t * k + j, sorted by expert; first[e]: where those of expert e begin."""
    flat = p.ids.ravel()
    order = np.argsort(flat, kind="stable")
    return order, np.searchsorted(flat[order], np.arange(p.E + 1))


def of_expert(p, e, x):
    """h, gate, up and sigmoid(gate) of rows of x through an expert, float64."""
    h = x @ p.numbers(p.gate_up[e]).T
    gate, up = h[:, :p.I], h[:, p.I:]
    return gate, up, 1 / (1 + np.exp(-gate))


def through_expert(p, e, x, scaled_dy):
    """Gradients of gate and up of those rows, [gate | up]."""
    gate, up, s = of_expert(p, e, x)
    dp = scaled_dy @ p.numbers(p.down[e])
    return np.concatenate([dp * up * (s * (1 + gate * (1 - s))), dp * gate * s], axis=1)


def reference(p, what):
    """Rows of the answers, float64: {name: (rows, values)}. Rows of gate_up_grad are those of the busiest expert."""
    tokens = np.unique(np.linspace(0, p.T - 1, ROWS).astype(int))
    out = np.zeros((len(tokens), p.H))
    for i, t in enumerate(tokens):
        x, dy = p.numbers(p.x[t:t + 1]), p.numbers(p.dy[t:t + 1])
        for e, a in zip(p.ids[t], p.numbers(p.weights[t])):
            if what == "forward":
                gate, up, s = of_expert(p, e, x)
                out[i] += a * ((gate * s * up) @ p.numbers(p.down[e]).T)[0]
            else:
                out[i] += (through_expert(p, e, x, a * dy) @ p.numbers(p.gate_up[e]))[0]
    if what == "forward":
        return {"output": (tokens, out)}
    order, first = experts_of(p)
    e = int(np.argmax(np.diff(first)))
    pairs = order[first[e]:first[e + 1]]
    x, dy = p.numbers(p.x[pairs // p.k]), p.numbers(p.dy[pairs // p.k])
    a = p.numbers(p.weights.reshape(-1)[pairs])[:, None]
    rows = np.unique(np.linspace(0, 2 * p.I - 1, ROWS).astype(int))
    gradient = through_expert(p, e, x, a * dy)[:, rows].T @ x
    return {"x_grad": (tokens, out), "gate_up_grad": (e * 2 * p.I + rows, gradient)}


def error(got, want):
    """Relative L2 error; infinite for anything that is no number."""
    got = np.asarray(got, dtype=np.float64)
    if got.shape != want.shape or not np.isfinite(got).all():
        return float("inf")
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))
