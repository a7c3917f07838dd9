# SPDX-License-Identifier: Apache-2.0
"""peer_kt.py - kt-kernel's bf16 mixture of experts, forward: its compiled module alone, for this CPU, without the package around it.

Its workers and its calling thread spin: with as many workers as cores two of them share one, so on N > 2 cores it runs with N - 1. It
repacks the weights when they are loaded, which is not timed.
"""
import glob
import importlib.util
import os
import sys

import numpy as np

from problem import from_bf16
from worker import Missing, serve

VARIANTS = (("amx", {"amx_tile", "amx_int8", "amx_bf16", "avx512_bf16", "avx512vbmi"}),
            ("avx512_bf16", {"avx512f", "avx512_bf16", "avx512vbmi", "avx512_vnni"}))


def flags():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        return next((set(line.split(":", 1)[1].split()) for line in f if line.startswith("flags")), set())


def load():
    """The module of the best variant that this CPU runs."""
    package = importlib.util.find_spec("kt_kernel")
    if not package:
        raise Missing("no kt_kernel in this Python")
    variant = next((name for name, wants in VARIANTS if wants <= flags()), None)
    if not variant:
        raise Missing("its bf16 wants AVX-512 with BF16, which this CPU has not")
    folder = os.path.dirname(package.origin)
    found = glob.glob(os.path.join(folder, f"_kt_kernel_ext_{variant}.cpython-{sys.version_info[0]}{sys.version_info[1]}-*.so"))
    if not found:
        raise Missing(f"{folder} has no module {variant} for this Python")
    spec = importlib.util.spec_from_file_location("kt_kernel_ext", found[0])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, variant


def version_of(package):
    from importlib import metadata
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "?"


class Kt:
    name, install, products = "kt", "pip install --no-deps kt-kernel", ("forward",)

    def __init__(self, p, threads):
        if p.dtype != "bf16":
            raise Missing("it has bf16 alone")
        if p.H % 32 or p.I % 32:
            raise Missing("it wants sizes that are multiples of 32")
        kt, variant = load()
        cores = len(os.sched_getaffinity(0))
        workers = threads - 1 if threads == cores and threads > 2 else threads
        pool = kt.WorkerPoolConfig()
        pool.subpool_count, pool.subpool_numa_map, pool.subpool_thread_count = 1, [0], [workers]
        self.cpu, self.p, self.version = kt.CPUInfer(pool), p, f"{version_of('kt-kernel')} {variant}, {workers} workers"
        matrices = [np.ascontiguousarray(m) for m in (p.gate_up[:, :p.I], p.gate_up[:, p.I:], p.down)]
        experts = np.arange(p.E, dtype=np.int64)
        config = kt.moe.MOEConfig(p.E, p.k, p.H, p.I, 0)
        config.layer_idx, config.pool = 0, self.cpu.backend_
        config.max_len = max(32, (p.T + 31) // 32 * 32)
        config.physical_to_logical_map = experts.ctypes.data
        config.gate_proj, config.up_proj, config.down_proj = (m.ctypes.data for m in matrices)
        self.moe = kt.moe.AMXBF16_MOE(config)
        self.submit(self.moe.load_weights_task(experts.ctypes.data))
        numbers = from_bf16(p.weights).reshape(p.weights.shape)
        self.kept = (np.array([p.T], dtype=np.int32), np.array(p.ids), np.ascontiguousarray(numbers), np.array(p.x))
        self.output = np.zeros((p.T, p.H), dtype=np.uint16)

    def submit(self, task):
        self.cpu.submit(task)
        self.cpu.sync()

    def run(self, what):
        count, ids, weights, x = (array.ctypes.data for array in self.kept)
        self.submit(self.moe.forward_task(count, self.p.k, ids, weights, x, self.output.ctypes.data, False))

    def rows(self, name, rows):
        return from_bf16(self.output[rows])


if __name__ == "__main__":
    serve(Kt)
