# SPDX-License-Identifier: Apache-2.0
"""overhead.py - what moegen.torch.experts costs beside its kernels: microseconds a call, one thread, tiny shapes.

    PYTHONPATH=gen/python MOEGEN_LIBRARY=build/libmoegen.so python tests/peers/overhead.py [ROUNDS]

A chain of layers is called and differentiated, since a model enters autograd once; times are of a layer, the least of all rounds but a
tenth, all of them in turns. The floor is a chain of an autograd.Function of the same tensors that only saves them and makes room for
answers. Kernels are timed twice: in a loop, each layer with its own tensors, and in their place in the chain, where they are slower
since what is between them takes their caches. Calls of Python's functions, which no other work on the machine changes, are counted: a
layer's, without autograd's own.
"""
import sys
import time

import torch

import moegen.torch
from moegen import _experts, _team

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


class Timed:
    """moegen_team_run, and the seconds that it took."""

    def __init__(self):
        self.run, self.taken = _team.team.run, []

    def __call__(self, *words):
        start = time.perf_counter()
        answer = self.run(*words)
        self.taken.append(time.perf_counter() - start)
        return answer

    def __enter__(self):
        self.taken.clear()
        _team.team.run = self
        return self

    def __exit__(self, *_):
        _team.team.run = self.run


def main(rounds=60):
    torch.set_num_threads(1)
    x, ids, w, *matrices = given = problem()
    dy, y = torch.randn(T, H), torch.empty(T, H)
    layers = [[t.clone().requires_grad_() for t in (w, *matrices)] for _ in range(LAYERS)]
    learned = [t for layer in layers for t in layer]
    case = _experts.case_of((*given, *_experts.NO_OTHERS), moegen.torch.options(matrices[0]))
    rooms = [(torch.empty(T, H), case.room(), [torch.empty_like(t) for t in (x, w, *matrices)]) for _ in layers]
    timed = Timed()

    def inference():
        with torch.no_grad():
            for _ in range(LAYERS):
                moegen.torch.experts(*given)

    def loop_of_inference():
        run = case.forward(False)
        for _ in range(LAYERS):
            run([x, ids, w, *matrices, y])

    def step(function):
        """Seconds of both passes."""
        h, start = x, time.perf_counter()
        for w, *own in layers:
            h = function(h, ids, w, *own)
        between = time.perf_counter()
        torch.autograd.grad(h, learned, dy)
        return between - start, time.perf_counter() - between

    def loop():
        first, second = case.forward(True), case.backward(True, torch.float32, case.few)
        start = time.perf_counter()
        for (w, *own), (y, saved, _) in zip(layers, rooms):
            first([x, ids, w, *own, y, saved])
        between = time.perf_counter()
        for (w, *own), (_, saved, grads) in zip(layers, rooms):
            second([x, ids, w, *own, saved, dy, *grads])
        return between - start, time.perf_counter() - between

    def in_place():
        with timed:
            step(moegen.torch.experts)
            return sum(timed.taken[:LAYERS]), sum(timed.taken[LAYERS:])

    passes = {"of both passes": lambda: step(moegen.torch.experts), "floor": lambda: step(Nothing.apply), "in a loop": loop,
              "in place": in_place}
    times = {n: [] for n in (*passes, "inference", "its kernel")}
    for _ in range(rounds):
        for n, call in passes.items():
            call()
            times[n] += [call() for _ in range(CALLS)]
        times["inference"].append(seconds(inference))
        times["its kernel"].append(seconds(loop_of_inference))

    def us(name, index=None):
        """A layer's."""
        found = sorted(times[name] if index is None else [t[index] / LAYERS for t in times[name]])
        return 1e6 * found[len(found) // 10]
    own, kernel = us("inference"), us("its kernel")
    print(f"inference {own:5.1f} us, kernel in a loop {kernel:5.1f} us: ours {own - kernel:.1f} us")
    for index, name in enumerate(("forward", "backward")):
        all_of_it, floor, looped, placed = (us(n, index) for n in passes)
        print(f"{name:9} {all_of_it:5.1f} us, autograd's floor {floor:4.1f} us, "
              f"kernel in a loop {looped:4.1f} us, in its place {placed:4.1f} us: "
              f"ours {all_of_it - floor - placed:.1f} us, and {placed - looped:.1f} us by which the kernel is slower in its place")
    print(f"calls: inference {calls(inference):.0f}, forward + backward {calls(passes['of both passes']):.0f}")


main(*map(int, sys.argv[1:]))
