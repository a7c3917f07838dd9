# SPDX-License-Identifier: Apache-2.0
"""peer_torch.py - PyTorch, an explicit product of each expert's rows, forward and backward, without autograd's bookkeeping."""
import numpy as np

from problem import experts_of
from worker import need, serve

INSTALL = "pip install torch"
torch = need("torch", INSTALL)


def tensor_of(array, dtype):
    """A mapped array as a tensor over the same memory, which nobody writes."""
    plain = np.ndarray(array.shape, array.dtype, memoryview(array).cast("B")) if array.flags.c_contiguous else np.array(array)
    t = torch.from_numpy(plain.view(np.int16) if array.dtype == np.uint16 else plain)
    return t.view(torch.bfloat16) if array.dtype == np.uint16 and dtype == "bf16" else t


class Rows:
    """Tokens in the order of their experts."""

    def __init__(self, p):
        order, self.first = experts_of(p)
        self.pairs = torch.from_numpy(order)
        self.tokens = self.pairs // p.k
        self.weight = tensor_of(p.weights, p.dtype).reshape(-1)[self.pairs].unsqueeze(1)

    def each(self):
        for e in range(len(self.first) - 1):
            if self.first[e] < self.first[e + 1]:
                yield e, slice(int(self.first[e]), int(self.first[e + 1]))


class Torch:
    name, install, products = "torch", INSTALL, ("forward", "backward")

    def __init__(self, p, threads):
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.p, self.version = p, torch.__version__
        self.x, self.dy, self.gate_up, self.down = (tensor_of(a, p.dtype) for a in (p.x, p.dy, p.gate_up, p.down))
        self.r, self.saved, self.out = Rows(p), {}, {}

    def add(self, rows):
        """Rows of pairs added to their tokens, in f32, rounded once."""
        return torch.zeros(self.p.T, self.p.H).index_add_(0, self.r.tokens, rows.float()).to(self.x.dtype)

    def forward(self, save=False):
        x, rows = self.x[self.r.tokens], []
        for e, at in self.r.each():
            h = x[at] @ self.gate_up[e].t()
            gate, up = h.chunk(2, -1)
            product = torch.nn.functional.silu(gate) * up
            rows.append(product @ self.down[e].t())
            if save:
                self.saved[e] = (h, product)
        rows = torch.cat(rows)
        if save:
            self.saved["x"], self.saved["rows"] = x, rows
        return self.add(rows * self.r.weight)

    def backward(self):
        dy, x = self.dy[self.r.tokens], self.saved["x"]
        weight_grad = (dy * self.saved["rows"]).sum(1)
        scaled, dx = dy * self.r.weight, torch.empty_like(x)
        gate_up_grad, down_grad = torch.zeros_like(self.gate_up), torch.zeros_like(self.down)
        for e, at in self.r.each():
            h, product = self.saved[e]
            gate, up = h.chunk(2, -1)
            torch.mm(scaled[at].t(), product, out=down_grad[e])
            dp, s = scaled[at] @ self.down[e], torch.sigmoid(gate)
            dh = torch.cat([dp * up * (s * (1 + gate * (1 - s))), dp * (gate * s)], 1)
            torch.mm(dh.t(), x[at], out=gate_up_grad[e])
            torch.mm(dh, self.gate_up[e], out=dx[at])
        return self.add(dx), gate_up_grad, down_grad, weight_grad

    def run(self, what):
        if what == "forward":
            self.out = {"output": self.forward()}
            return
        if not self.saved:
            self.forward(save=True)
        gradients = self.backward()
        self.out = {"x_grad": gradients[0], "gate_up_grad": gradients[1]}

    def rows(self, name, rows):
        return self.out[name].reshape(-1, self.p.H)[torch.from_numpy(rows)].double().numpy()


if __name__ == "__main__":
    serve(Torch)
