# SPDX-License-Identifier: Apache-2.0
"""Encoding against ml_dtypes: random numbers, every number, every tie and their neighbours, edges.

codings.py RUNTIME_FORMAT: the program that encodes doubles. Beyond the largest number ml_dtypes
gives infinity or NaN where the OCP rules for MX clip: numbers are clipped before they go there.
"""
import subprocess
import sys

import ml_dtypes
import numpy as np

CODINGS = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": getattr(ml_dtypes, "float4_e2m1fn", None),
}


def numbers(dtype, rng):
    """What to encode: f32 values, so that ml_dtypes rounds once."""
    bits = 4 if ml_dtypes.finfo(dtype).bits == 4 else 8
    all_of = np.arange(1 << bits, dtype=np.uint8).view(dtype).astype(np.float64)
    finite = np.unique(all_of[np.isfinite(all_of)])
    ties = (finite[1:] + finite[:-1]) / 2
    exact = np.concatenate([finite, ties, [0.0, -0.0]]).astype(np.float32)
    near = [exact, np.nextafter(exact, np.float32(np.inf)), np.nextafter(exact, np.float32(-np.inf))]
    largest = np.float32(finite[-1])
    spread = rng.standard_normal(200000).astype(np.float32)
    uniform = rng.uniform(-1.2, 1.2, 200000).astype(np.float32) * largest
    exponents = np.ldexp(spread, rng.integers(-30, 20, spread.size)).astype(np.float32)
    edges = np.array([1e-45, -1e-45, 1e-30, 3e38, -3e38, np.inf, -np.inf], np.float32)
    x = np.concatenate(near + [spread, uniform, exponents, edges])
    return x, np.clip(x, -largest, largest)


def main():
    failed = compared = 0
    rng = np.random.default_rng(1)
    for name, dtype in CODINGS.items():
        if dtype is None:
            print(f"this ml_dtypes has no {name}")
            continue
        x, clipped = numbers(dtype, rng)
        made = subprocess.run([sys.argv[1], name], input=x.astype(np.float64).tobytes(),
                              stdout=subprocess.PIPE, check=True).stdout
        got = np.frombuffer(made, np.uint8)
        want = clipped.astype(dtype).view(np.uint8)
        wrong = np.flatnonzero(got != want)
        for i in wrong[:10]:
            print(f"{name}: {x[i]!r} is {got[i]:#x}, ml_dtypes has {want[i]:#x}")
        failed += wrong.size
        compared += x.size
    print(f"{compared} numbers compared")
    return failed > 0 or compared < 1000


sys.exit(main())
