#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""numpy_only.py - a whole mixture-of-experts layer with nothing but numpy: 64 tokens, 8 experts, 2 of them each.

    python gen/python/examples/numpy_only.py
"""
import numpy as np

import moegen

H, I, E, TOP_K, T = 256, 128, 8, 2, 64


def truth(x, router, gate_up, down):
    """The same in float64, token by token."""
    y = np.zeros(x.shape)
    for t, row in enumerate(x.astype(np.float64)):
        scores = np.exp(row @ router - (row @ router).max())
        chosen = np.argsort(-scores)[:TOP_K]
        for e in chosen:
            gate, up = row @ gate_up[e, :, 0], row @ gate_up[e, :, 1]
            y[t] += scores[e] / scores[chosen].sum() * ((gate / (1 + np.exp(-gate)) * up) @ down[e])
    return y


def main():
    layer = moegen.kernel({"kernel": "moe_layer", "dtype": "f32", "H": H, "I_TP": I, "E": E, "top_k": TOP_K, "block_size": 16,
                           "method": "softmax_topk_renorm"})
    print(layer, f"made in {1e3 * layer.facts.jit_seconds:.0f} ms ({layer.facts.origin})")
    for arg in layer.args:
        print(f"  {arg.role:5} {arg.name:22} {arg.dtype} [{']['.join(arg.extent)}]  {arg.doc}")
    rng = np.random.default_rng(1)
    x = rng.standard_normal((T, H), dtype=np.float32)
    router = rng.standard_normal((H, E), dtype=np.float32) / 16
    gate_up = rng.standard_normal((E, H, 2, I), dtype=np.float32) / 16
    down = rng.standard_normal((E, I, H), dtype=np.float32) / 11
    y = layer(hidden_states=x, router_weight=router, gate_up_proj_weight=gate_up, down_proj_weight=down)["output"]
    want = truth(x, router, gate_up, down)
    error = np.linalg.norm(y - want) / np.linalg.norm(want)
    print(f"y {y.shape} {y.dtype}, off float64 by {error:.1e}")
    assert error < 1e-5


if __name__ == "__main__":
    main()
