# SPDX-License-Identifier: Apache-2.0
"""conftest.py - float64 truths and inputs that several files use."""
import sys

import numpy as np
import pytest

E, TOP_K, BLOCK, H, I = 4, 2, 8, 64, 48


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def swiglu(x, gate_up, down, ids, weights):
    """y of tokens in float64. gate_up [E, H, 2, I], down [E, I, H], ids and weights [T, k]."""
    x, gate_up, down, weights = (np.asarray(a, dtype=np.float64) for a in (x, gate_up, down, weights))
    y = np.zeros_like(x)
    for t, (chosen, by) in enumerate(zip(ids, weights)):
        for e, w in zip(chosen, by):
            gate, up = x[t] @ gate_up[e, :, 0], x[t] @ gate_up[e, :, 1]
            y[t] += w * ((gate / (1 + np.exp(-gate)) * up) @ down[e])
    return y


class Problem:
    """Inputs of moe_forward for T tokens, T + 1 rows: the last one is padding."""

    def __init__(self, rng, T, index):
        self.x = rng.standard_normal((T + 1, H)).astype(np.float32)
        self.x[T] = 0
        self.gate_up = (rng.standard_normal((E, H, 2, I)) / 8).astype(np.float32)
        self.down = (rng.standard_normal((E, I, H)) / 8).astype(np.float32)
        self.ids = np.stack([rng.permutation(E)[:TOP_K] for _ in range(T)]).astype(np.int32).reshape(T, TOP_K)
        self.weights = rng.random((T, TOP_K)).astype(np.float32)
        dense = np.zeros((T + 1, E), dtype=np.float32)
        np.put_along_axis(dense[:T], self.ids, self.weights, axis=1)
        self.tensors = {"hidden_states": self.x, "expert_affinities_masked": dense.reshape(-1, 1), "gate_up_proj_weight": self.gate_up,
                        "down_proj_weight": self.down, **index(expert_index=self.ids)}

    def truth(self):
        return swiglu(self.x[:-1], self.gate_up, self.down, self.ids, self.weights)


def error(got, want):
    """Relative L2."""
    got, want = np.asarray(got, dtype=np.float64), np.asarray(want, dtype=np.float64)
    return np.linalg.norm(got - want) / np.linalg.norm(want)


@pytest.fixture
def calls(monkeypatch):
    """How often moegen computed, and grouped_mm."""
    import moegen.transformers
    count = {"moegen": 0, "grouped_mm": 0}
    own, usual, other = (getattr(moegen.transformers, n) for n in ("experts", "_as_usual", "grouped_mm_experts_forward"))

    def counted(*args, **more):
        count["moegen"] += 1
        return own(*args, **more)

    def as_usual(*args):
        y = usual(*args)
        count["moegen"] += y is not None
        return y

    def fallen(*args):
        count["grouped_mm"] += 1
        return other(*args)
    monkeypatch.setattr(moegen.transformers, "experts", counted)
    monkeypatch.setattr(moegen.transformers, "_as_usual", as_usual)
    monkeypatch.setattr(moegen.transformers, "grouped_mm_experts_forward", fallen)
    return count


@pytest.fixture(autouse=True)
def one_thread():
    """Of PyTorch, where it is there."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
