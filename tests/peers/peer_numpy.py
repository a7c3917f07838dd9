# SPDX-License-Identifier: Apache-2.0
"""peer_numpy.py - numpy over whatever BLAS it was built with, f32 whatever the problem's dtype, forward."""
import os

import numpy as np

from problem import experts_of, from_bf16
from worker import serve


class Numpy:
    name, install, products = "numpy", "apt-get install python3-numpy", ("forward",)

    def __init__(self, p, threads):
        for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            if os.environ.get(name) != str(threads):   # BLAS reads them when it is loaded
                raise RuntimeError(f"{name} is {os.environ.get(name)}, not {threads}")
        self.p, self.version = p, np.__version__
        def numbers(array): return from_bf16(array) if array.dtype == np.uint16 else np.asarray(array)
        self.x, self.gate_up, self.down, self.weights = (numbers(a) for a in (p.x, p.gate_up, p.down, p.weights))
        self.order, self.first = experts_of(p)

    def run(self, what):
        p, out = self.p, np.zeros((self.p.T, self.p.H), dtype=np.float32)
        for e in range(p.E):
            pairs = self.order[self.first[e]:self.first[e + 1]]
            h = self.x[pairs // p.k] @ self.gate_up[e].T
            gate, up = h[:, :p.I], h[:, p.I:]
            rows = (gate / (1 + np.exp(-gate)) * up) @ self.down[e].T
            out[pairs // p.k] += rows * self.weights.reshape(-1)[pairs][:, None]   # a token comes once to an expert
        self.output = out

    def rows(self, name, rows):
        return self.output[rows]


if __name__ == "__main__":
    serve(Numpy)
