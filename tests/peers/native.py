# SPDX-License-Identifier: Apache-2.0
"""native.py - peers that are written in C or C++ (NAME.c, NAME.cpp beside this file, see layer.h): built when they are asked for, if the
library is here, and loaded."""
import ctypes
import os
import re
import shlex
import shutil
import subprocess

import numpy as np

from problem import experts_of, from_bf16
from worker import Missing

HERE = os.path.dirname(os.path.abspath(__file__))
COMPILERS = {".c": ("CC", "cc", "-std=gnu11"), ".cpp": ("CXX", "c++", "-std=c++17")}
FLAGS = "-O3 -march=native -ffast-math -fopenmp -shared -fPIC -Wl,-z,defs -Wall -Wextra -Werror"
ABSENT = r"(?:fatal error: |cannot find |unable to find library )(.*)"   # of a header, of a library


class Layer(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("T", "H", "I", "E", "pairs", "is_bf16", "threads")] + \
        [(name, ctypes.c_void_p) for name in ("x", "dy", "gate_up", "down", "token", "first", "weight", "output", "x_grad", "gate_up_grad",
                                              "down_grad", "weight_grad")]


def build(source, libraries, directory):
    """The shared library of a source file."""
    variable, usual, standard = COMPILERS[os.path.splitext(source)[1]]
    compiler = shlex.split(os.environ.get(variable, usual))
    if not compiler or not shutil.which(compiler[0]):
        raise Missing(f"no {variable}")
    out = os.path.join(directory, os.path.basename(source) + ".so")
    done = subprocess.run([*compiler, standard, *FLAGS.split(), source, "-o", out, *libraries], stderr=subprocess.PIPE, check=False)
    said = done.stderr.decode(errors="replace")
    absent = re.search(ABSENT, said)
    if done.returncode and absent:
        raise Missing(absent[1])
    if done.returncode:
        raise RuntimeError(f"{os.path.basename(source)} cannot be built: {said.strip().splitlines()[0] if said else compiler[0]}")
    return ctypes.CDLL(out)


class Native:
    """A peer whose class names its source and the libraries that it is linked with."""
    source, libraries = "", ()

    def __init__(self, p, threads):
        self.p = p
        self.dll = build(os.path.join(HERE, self.source), self.libraries, p.directory)
        for name in ("version", "open", "run"):
            getattr(self.dll, "peer_" + name).restype = ctypes.c_char_p
        self.version = self.dll.peer_version().decode()
        order, first = experts_of(p)
        weights = p.numbers(p.weights).astype(np.float32).reshape(-1)[order]
        def like(array): return np.zeros(array.shape, dtype=array.dtype)
        self.kept = {"x": p.x, "dy": p.dy, "gate_up": p.gate_up, "down": p.down, "token": order // p.k, "first": first.astype(np.int64),
                     "weight": weights, "output": like(p.x)}
        if "backward" in self.products:
            self.kept.update(x_grad=like(p.x), gate_up_grad=like(p.gate_up), down_grad=like(p.down), weight_grad=like(weights))
        self.layer = Layer(p.T, p.H, p.I, p.E, p.T * p.k, p.dtype == "bf16", threads, *(
            self.kept[name].ctypes.data if name in self.kept else None for name, kind in Layer._fields_ if kind is ctypes.c_void_p))
        self.must(self.dll.peer_open(ctypes.byref(self.layer)))

    def must(self, wrong):
        if wrong:
            raise RuntimeError(wrong.decode())

    def run(self, what):
        self.must(self.dll.peer_run(what == "backward"))

    def rows(self, name, rows):
        taken = self.kept[name].reshape(-1, self.p.H)[rows]
        return from_bf16(taken) if taken.dtype == np.uint16 else taken
