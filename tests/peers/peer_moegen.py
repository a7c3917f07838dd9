# SPDX-License-Identifier: Apache-2.0
"""peer_moegen.py - moegen itself, through its C library: $MOEGEN_LIBRARY, or libmoegen.so of the source tree's build."""
import ctypes
import os

import numpy as np

from problem import experts_of, from_bf16
from worker import Missing, serve

BLOCK = 128


class Spec(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("text", ctypes.c_char_p), ("len", ctypes.c_size_t), ("label", ctypes.c_char_p),
                ("kernel", ctypes.c_char_p), ("overrides", ctypes.c_void_p), ("override_count", ctypes.c_size_t),
                ("command", ctypes.c_char_p)]


class Library:
    def __init__(self):
        here = os.path.dirname(os.path.abspath(__file__))
        path = os.environ.get("MOEGEN_LIBRARY", os.path.join(here, "..", "..", "build", "libmoegen.so"))
        if not os.path.exists(path):
            raise Missing(f"{path} is not there")
        self.dll = ctypes.CDLL(path)
        self.dll.moegen_error_text.restype = ctypes.c_char_p
        self.dll.moegen_dtype_name.restype = ctypes.c_char_p
        self.dtype = {self.dll.moegen_dtype_name(i): i for i in range(32)}
        self.engine = ctypes.c_void_p()
        self.call("engine_create", None, ctypes.byref(self.engine))

    def call(self, name, *args):
        err = ctypes.c_void_p()
        if getattr(self.dll, "moegen_" + name)(*args, ctypes.byref(err)):
            raise RuntimeError(self.dll.moegen_error_text(err).decode() if err else name)

    def version(self):
        number = self.dll.moegen_version()
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


class Call:
    """A kernel of a spec with arrays bound to its tensors."""

    def __init__(self, library, text, threads):
        self.library, self.kept, self.handle = library, {}, ctypes.c_void_p()
        text, kernel = text.encode(), ctypes.c_void_p()
        spec = Spec(ctypes.sizeof(Spec), text, len(text), b"peers", None, None, 0, None)
        library.call("kernel_get", library.engine, ctypes.byref(spec), ctypes.byref(kernel))
        library.call("call_create", kernel, ctypes.byref(self.handle))
        library.call("call_set_threads", self.handle, threads)

    def bind(self, name, array, dtype, const=True):
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.kept[name] = array
        self.library.call("call_bind_const" if const else "call_bind", self.handle, name.encode(),
                          ctypes.c_void_p(array.ctypes.data), self.library.dtype[dtype.encode()], array.ndim, shape)

    def give(self, name, kind, dtype):
        """An output of the size that the tensors bound so far ask for."""
        rank, shape = ctypes.c_int(), (ctypes.c_int64 * 8)()
        self.library.call("call_shape", self.handle, name.encode(), ctypes.byref(rank), shape)
        self.bind(name, np.zeros(tuple(shape[:rank.value]), dtype=kind), dtype, const=False)
        return self.kept[name]

    def run(self):
        self.library.call("call_run", self.handle)


def padded(rows):
    """A copy with a row of zeros behind the last one."""
    return np.concatenate([rows, np.zeros((1, rows.shape[1]), dtype=rows.dtype)])


class Moegen:
    name, install, products = "moegen", "./moegen lib", ("forward", "backward")

    def __init__(self, p, threads):
        self.p, self.library = p, Library()
        self.version = self.library.version()
        self.kind = np.uint16 if p.dtype == "bf16" else np.float32
        self.lists()
        self.forward = self.make("moe_forward", "", threads)
        self.forward.give("output", self.kind, p.dtype)
        self.threads, self.saved, self.backward = threads, None, None

    def lists(self):
        """Tokens of each expert in blocks of slots, and affinities of pairs."""
        p = self.p
        order, first = experts_of(p)
        slots, experts = [], []
        for e in range(p.E):
            tokens = (order[first[e]:first[e + 1]] // p.k).astype(np.int32)
            blocks = -(-len(tokens) // BLOCK)
            slots.append(np.full(blocks * BLOCK, p.T, dtype=np.int32))
            slots[-1][:len(tokens)] = tokens
            experts += [e] * blocks
        affinity = np.zeros(((p.T + 1), p.E), dtype=self.kind)
        np.put_along_axis(affinity[:p.T], p.ids, np.asarray(p.weights), axis=1)
        self.shared = {"hidden_states": (padded(p.x), p.dtype), "expert_affinities_masked": (affinity.reshape(-1, 1), p.dtype),
                       "gate_up_proj_weight": (p.gate_up, p.dtype), "down_proj_weight": (p.down, p.dtype),
                       "token_position_to_id": (np.concatenate(slots), "i32"),
                       "block_to_expert": (np.array(experts, dtype=np.int32), "i32")}

    def make(self, family, more, threads):
        p = self.p
        call = Call(self.library, f"{{kernel: {family}, dtype: {p.dtype}, H: {p.H}, I_TP: {p.I}, E: {p.E}, top_k: {p.k}, "
                    f"block_size: {BLOCK}, weights: {{layout: transposed}}{more}}}", threads)
        for name, (array, dtype) in self.shared.items():
            call.bind(name, array, dtype)
        return call

    def run(self, what):
        if what == "forward":
            self.forward.run()
            return
        if not self.backward:   # a forward pass has left what the backward pass needs, as in training
            self.saved = self.make("moe_forward", ", checkpoint: save", self.threads)
            kept = [self.saved.give(name, self.kind, self.p.dtype) for name in ("output", "gate_up_activations_T", "down_activations")]
            self.saved.run()
            self.backward = self.make("moe_backward", "", self.threads)
            self.backward.bind("gate_up_proj_act_checkpoint_T", kept[1], self.p.dtype)
            self.backward.bind("down_proj_act_checkpoint", kept[2], self.p.dtype)
            self.backward.bind("output_hidden_states_grad", padded(self.p.dy), self.p.dtype)
            for name in ("hidden_states_grad", "expert_affinities_masked_grad", "gate_up_proj_weight_grad", "down_proj_weight_grad"):
                self.backward.give(name, self.kind, self.p.dtype)
        self.backward.run()

    def rows(self, name, rows):
        call, tensor = {"output": (self.forward, "output"), "x_grad": (self.backward, "hidden_states_grad"),
                        "gate_up_grad": (self.backward, "gate_up_proj_weight_grad")}[name]
        taken = call.kept[tensor].reshape(-1, self.p.H)[rows]
        return from_bf16(taken) if self.kind == np.uint16 else taken


if __name__ == "__main__":
    serve(Moegen)
