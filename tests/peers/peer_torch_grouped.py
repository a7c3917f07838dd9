# SPDX-License-Identifier: Apache-2.0
"""peer_torch_grouped.py - PyTorch's torch._grouped_mm, which transformers takes for mixtures of experts, forward."""
from peer_torch import INSTALL, Torch, torch
from worker import Missing, serve


class Grouped(Torch):
    name, install, products = "torch_grouped", INSTALL, ("forward",)

    def __init__(self, p, threads):
        super().__init__(p, threads)
        if not hasattr(torch, "_grouped_mm"):
            raise Missing(f"PyTorch {torch.__version__} has no torch._grouped_mm")
        self.ends = torch.from_numpy(self.r.first[1:]).to(torch.int32)

    def forward(self, save=False):
        h = torch._grouped_mm(self.x[self.r.tokens], self.gate_up.transpose(-2, -1), offs=self.ends)
        gate, up = h.chunk(2, -1)
        product = torch.nn.functional.silu(gate) * up
        return self.add(torch._grouped_mm(product, self.down.transpose(-2, -1), offs=self.ends) * self.r.weight)


if __name__ == "__main__":
    serve(Grouped)
