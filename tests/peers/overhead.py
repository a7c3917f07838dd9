# SPDX-License-Identifier: Apache-2.0
"""overhead.py - what moegen.torch.experts costs beside its kernels: microseconds a call, one thread, tiny shapes.

    PYTHONPATH=gen/python MOEGEN_LIBRARY=build/libmoegen.so python tests/peers/overhead.py [ROUNDS]

A chain of layers is called and differentiated, since a model enters autograd once; times are of a layer, the least of all rounds but a
tenth, all of them in turns. The floor is a chain of an autograd.Function of the same tensors that saves them, makes room for answers,
and calls the kernels with words that were made beforehand: what is between kernels is slower than without them, since they take its
caches. Printed, too: the floor without kernels, and kernels timed in a loop and in their place in the chain. Calls of Python's
functions, which no other work on the machine changes, are counted: a layer's, without autograd's own.
"""
import functools
import itertools
import sys
import time

import torch

import moegen.torch
from moegen import _experts, _team

E, K, H, I, T, LAYERS, CALLS = 8, 2, 32, 16, 2, 10, 20


class Floor(torch.autograd.Function):
    forward_kernels, backward_kernels = itertools.repeat(list), itertools.repeat(list)   # of the layers in turns; list: none

    @staticmethod
    def forward(ctx, x, ids, weights, gate_up, down):
        ctx.save_for_backward(x, ids, weights, gate_up, down)
        y = torch.empty_like(x)
        next(Floor.forward_kernels)()
        return y

    @staticmethod
    def backward(ctx, dy):
        x, _, weights, gate_up, down = ctx.saved_tensors
        grads = torch.empty_like(x), None, torch.empty_like(weights), torch.empty_like(gate_up), torch.empty_like(down)
        next(Floor.backward_kernels)()
        return grads


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


class Instead:
    """Of moegen_team_run, while this is entered."""

    def __init__(self):
        self.run, self.taken, self.calls = _team.team.run, [], []

    def __enter__(self):
        _team.team.run = self
        return self

    def __exit__(self, *_):
        _team.team.run = self.run


class Timed(Instead):
    """It, and the seconds that it takes."""

    def __enter__(self):
        self.taken.clear()
        return super().__enter__()

    def __call__(self, *words):
        start = time.perf_counter()
        answer = self.run(*words)
        self.taken.append(time.perf_counter() - start)
        return answer


class Words(Instead):
    """Does not call it, but keeps the calls."""

    def __call__(self, *words):
        self.calls.append(functools.partial(self.run, *words))
        return 0


def main(rounds=60):
    torch.set_num_threads(1)
    x, ids, w, *matrices = given = problem()
    dy, y = torch.randn(T, H), torch.empty(T, H)
    layers = [[t.clone().requires_grad_() for t in (w, *matrices)] for _ in range(LAYERS)]
    learned = [t for layer in layers for t in layer]
    case = _experts.case_of((*given, *[None] * 5), moegen.torch.options(matrices[0]))
    rooms = [(torch.empty(T, H), case.room(), [torch.empty_like(t) for t in (x, w, *matrices)]) for _ in layers]
    timed, forward, backward = Timed(), Words(), Words()
    for (w, *own), (y, saved, grads) in zip(layers, rooms):
        with forward:
            case.forward_saving([x, ids, w, *own, y, saved])
    for (w, *own), (_, saved, grads) in zip(layers[::-1], rooms[::-1]):
        with backward:
            case.backward(True, torch.float32, case.few)([x, ids, w, *own, saved, dy, *grads])

    def inference():
        with torch.no_grad():
            for _ in range(LAYERS):
                moegen.torch.experts(*given)

    def loop_of_inference():
        run = case.forward
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
        start = time.perf_counter()
        for call in forward.calls:
            call()
        between = time.perf_counter()
        for call in backward.calls:
            call()
        return between - start, time.perf_counter() - between

    def floor(with_kernels):
        Floor.forward_kernels, Floor.backward_kernels = (
            itertools.cycle(words.calls if with_kernels else [list]) for words in (forward, backward))
        return step(Floor.apply)

    def in_place():
        with timed:
            step(moegen.torch.experts)
            return sum(timed.taken[:LAYERS]), sum(timed.taken[LAYERS:])

    passes = {"all of it": lambda: step(moegen.torch.experts), "floor": lambda: floor(True), "floor alone": lambda: floor(False),
              "in place": in_place, "in a loop": loop}
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
        all_of_it, under, alone, placed, looped = (us(n, index) for n in passes)
        print(f"{name:9} {all_of_it:5.1f} us, floor with kernels {under:5.1f} us: ours {all_of_it - under:.1f} us; "
              f"floor without kernels {alone:4.1f} us, kernel in its place {placed:4.1f} us, in a loop {looped:4.1f} us")
    print(f"calls: inference {calls(inference):.0f}, forward + backward {calls(passes['all of it']):.0f}")


main(*map(int, sys.argv[1:]))
