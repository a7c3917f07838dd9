# SPDX-License-Identifier: Apache-2.0
"""overhead.py - what moegen.torch.experts costs beside its kernels: microseconds a call, one thread, tiny shapes.

    PYTHONPATH=gen/python MOEGEN_LIBRARY=build/libmoegen.so python tests/peers/overhead.py [ROUNDS]

A chain of layers is called and differentiated, since a model enters autograd once; times are of a layer, the least of all rounds but a
tenth. The kernels alone are called with tensors of the same sizes, each layer its own, in turns with it; `autograd` is a chain of an
autograd.Function of the same tensors that only saves them and makes room for answers. Calls of Python's functions, which no other work
on the machine changes, are counted: a layer's, without autograd's own.
"""
import sys
import time

import torch

import moegen.torch
from moegen import _experts

E, K, H, I, T, LAYERS, CALLS = 8, 2, 32, 16, 2, 10, 20


class Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, ids, weights, gate_up, down):
        ctx.save_for_backward(x, ids, weights, gate_up, down)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, dy):
        x, _, weights, gate_up, down = ctx.saved_tensors
        return torch.empty_like(x), None, torch.empty_like(weights), torch.empty_like(gate_up), torch.empty_like(down)


def problem():
    torch.manual_seed(1)
    x, w = torch.randn(T, H), torch.rand(T, K)
    ids = torch.stack([torch.randperm(E)[:K] for _ in range(T)])
    return x, ids, w, torch.randn(E, 2 * I, H) / 8, torch.randn(E, H, I) / 8


def seconds(call):
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS / LAYERS


def calls(call):
    """Of functions of the package, by each layer."""
    count = 0

    def seen(frame, event, _):
        nonlocal count
        count += event == "call" and "/moegen/" in frame.f_code.co_filename
    call()
    sys.setprofile(seen)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count / LAYERS


def main(rounds=30):
    torch.set_num_threads(1)
    x, ids, w, *matrices = given = problem()
    dy, y = torch.randn(T, H), torch.empty(T, H)
    layers = [[t.clone().requires_grad_() for t in (w, *matrices)] for _ in range(LAYERS)]
    learned = [t for layer in layers for t in layer]
    case = _experts.case_of((*given, *_experts.NO_OTHERS), moegen.torch.options(matrices[0]))
    rooms = [(torch.empty(T, H), case.room(), [torch.empty_like(t) for t in (x, w, *matrices)]) for _ in layers]

    def forward():
        run = case.forward(False)
        for _ in range(LAYERS):
            run([x, ids, w, *matrices, y])

    def both():
        first, second = case.forward(True), case.backward(True, torch.float32, case.few)
        for (w, *own), (y, saved, _) in zip(layers, rooms):
            first([x, ids, w, *own, y, *saved])
        for (w, *own), (_, saved, grads) in zip(layers, rooms):
            second([x, ids, w, *own, *saved, dy, *grads])

    def inference():
        with torch.no_grad():
            for _ in range(LAYERS):
                moegen.torch.experts(*given)

    def step(function):
        h = x
        for w, *own in layers:
            h = function(h, ids, w, *own)
        torch.autograd.grad(h, learned, dy)

    experts = moegen.torch.experts
    names = {"forward": inference, "its kernel": forward, "forward + backward": lambda: step(experts), "its kernels": both,
             "autograd": lambda: step(Nothing.apply)}
    for call in names.values():
        seconds(call)
    times = {n: [] for n in names}
    for _ in range(rounds):
        for n, call in names.items():
            times[n].append(seconds(call))
    us = {n: 1e6 * sorted(t)[len(t) // 10] for n, t in times.items()}
    for n, t in us.items():
        print(f"{n:20} {t:7.1f} us")
    beyond = us["forward + backward"] - us["its kernels"]
    print(f"over the kernels: forward {us['forward'] - us['its kernel']:.1f} us, forward + backward {beyond:.1f} us, of which autograd's "
          f"own {us['autograd']:.1f} us, ours {beyond - us['autograd']:.1f} us")
    print(f"calls: forward {calls(inference):.0f}, forward + backward {calls(names['forward + backward']):.0f}")


main(*map(int, sys.argv[1:]))
