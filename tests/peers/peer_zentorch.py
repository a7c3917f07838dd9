# SPDX-License-Identifier: Apache-2.0
"""peer_zentorch.py - zentorch's fused mixture of experts, bf16 forward: its operator alone, which libzentorch.so gives to PyTorch,
without the package around it."""
import ctypes
import importlib.util
import os

import numpy as np

from peer_kt import flags, version_of
from peer_torch import tensor_of, torch
from problem import from_bf16
from worker import Missing, serve


def load():
    """zentorch_fused_moe."""
    package = importlib.util.find_spec("zentorch")
    if not package:
        raise Missing("no zentorch in this Python")
    if not {"avx512f", "avx512_bf16"} <= flags():
        raise Missing("its bf16 wants AVX-512 with BF16, which this CPU has not")
    path = os.path.join(os.path.dirname(package.origin), "libzentorch.so")
    try:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError as why:   # of another PyTorch, most often
        raise Missing(f"PyTorch {torch.__version__} cannot load it: {why}") from why
    return torch.ops.zentorch.zentorch_fused_moe


class Zentorch:
    name, install, products = "zentorch", "pip install --no-deps zentorch, of PyTorch's version", ("forward",)

    def __init__(self, p, threads):
        if p.dtype != "bf16":
            raise Missing("it has bf16 alone")
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.fused, self.version = load(), version_of("zentorch")
        self.given = [tensor_of(a, p.dtype) for a in (p.x, p.gate_up, p.down)]
        self.weights = torch.from_numpy(np.ascontiguousarray(from_bf16(p.weights)).reshape(p.weights.shape))
        self.ids = torch.from_numpy(np.array(p.ids, dtype=np.int32))
        self.output = torch.zeros(p.T, p.H, dtype=torch.bfloat16)

    def run(self, what):
        self.fused(self.output, *self.given, None, None, self.weights, self.ids, False, "silu")

    def rows(self, name, rows):
        return self.output[torch.from_numpy(np.asarray(rows))].float().numpy()


if __name__ == "__main__":
    serve(Zentorch)
