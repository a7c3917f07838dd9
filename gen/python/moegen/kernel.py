# SPDX-License-Identifier: Apache-2.0
"""kernel.py - from a spec to a kernel that is called with arrays."""
from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import numbers
import operator
import os
import re
from ctypes import byref, c_int, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Union

from ._library import MAX_RANK, ArgumentError, EngineOptions, FileError, KindError, Override, Spec, SpecError, library
from ._tensors import Bound, bind, empty, is_torch

ROLES = ("in", "out", "inout")
log = logging.getLogger("moegen")
_LIKE_A_PATH = re.compile(r"([^\s{}]+\.ya?ml)(:\w+)?")


AnySpec = Union[str, "os.PathLike[str]", Mapping[str, Any]]   # YAML, a file of it, or keys and values


@dataclass(frozen=True)
class Arg:
    """A tensor of a kernel: dense and row-major. extent: of each dimension a formula, "2048", "T", "T+1"."""
    name: str
    dtype: str
    role: str   # in, out, or inout: read and added to
    optional: bool
    extent: tuple[str, ...]
    doc: str


@dataclass(frozen=True)
class Facts:
    """What a kernel is: moegen_kernel_facts of moegen.h."""
    name: str
    family: str
    target: str
    spelling: str
    dtype: str
    origin: str
    jit_seconds: float
    code_bytes: int
    dims: tuple[str, ...]
    flops_per_row: int
    weight_bytes_per_expert: int
    threads: int
    flops_per_token: int
    weight_bytes: int


@dataclass(frozen=True)
class Source:
    """Generated C, as `moegen gen` writes it: stem of both files, their text, options that a compiler needs."""
    name: str
    c: str
    h: str
    cflags: str


class _MissingFileError(FileError, FileNotFoundError):
    pass


def _plain(value: Any) -> Any:
    """What JSON knows of a value that it does not know itself: numbers of numpy."""
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise KindError(f"{value!r} of type {type(value).__name__} is no value of a spec's key")


def sound(what: str, text: Any) -> str:
    """The same text, which C and the program take whole: without NUL, and Unicode."""
    if not isinstance(text, str):
        raise KindError(f"{what}: {text!r} of type {type(text).__name__} is no text")
    try:
        whole = b"\0" not in text.encode()
    except UnicodeEncodeError:   # half of a pair of surrogates
        whole = False
    if not whole:
        raise SpecError(f"{what}: {text!r} has a character that is none")
    return text


def _json(value: Any) -> str:
    try:
        return json.dumps(value, default=_plain)
    except (RecursionError, ValueError) as why:   # of a mapping that holds itself
        raise KindError(f"{why}: no value of a spec's key") from why


def spec_text(spec: AnySpec) -> tuple[str, str | None]:
    """YAML of a spec and its label: of a mapping, a path (of type os.PathLike), or text as it is."""
    if isinstance(spec, os.PathLike):
        try:
            with open(spec, encoding="utf-8") as file:
                return file.read(), os.fspath(spec)
        except (OSError, UnicodeDecodeError) as why:
            kind = _MissingFileError if isinstance(why, FileNotFoundError) else FileError
            raise kind(f"cannot read {os.fspath(spec)}: {getattr(why, 'strerror', None) or why}") from why
    if isinstance(spec, str):
        if path := _LIKE_A_PATH.fullmatch(spec):
            raise SpecError(f"'{spec}' is taken for the text of a spec; a file is given as pathlib.Path({path[1]!r})"
                            + (f", {path[2][1:]!r}" if path[2] else ""))
        return spec if "\0" in spec else sound("spec", spec), None   # NUL has a place in it, which is told
    if not isinstance(spec, Mapping):
        raise KindError(f"a spec is YAML (str), a file (pathlib.Path) or a mapping, not {type(spec).__name__}")
    return _json(spec), None


def flatten(overrides: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Keys and YAML of their values, of nested mappings joined by dots."""
    if prefix.count(".") > 16:   # it may hold itself
        raise KindError(f"{prefix[:-1]}: there is no key as deep")
    for key, value in overrides.items():
        name = prefix + sound("key", key)
        if isinstance(value, Mapping):
            yield from flatten(value, f"{name}.")
        else:
            yield name, sound(name, value) if isinstance(value, str) else _json(value)


def _whole(name: str, value: Any, bits: int) -> int:
    """A number that C takes in so many bits: ctypes would cut it."""
    try:
        number = operator.index(value)
    except TypeError:
        raise KindError(f"{name}: {value!r} is no whole number") from None
    if number.bit_length() >= bits:
        raise ArgumentError(f"{name}: {number} does not fit {bits} bits")
    return number


class _Request:
    """A moegen_spec and the memory that it points to."""

    def __init__(self, spec: AnySpec, name: str | None, overrides: Mapping[str, Any]):
        text, label = spec_text(spec)
        yaml = text.encode()
        self._keep = [yaml, os.fsencode(label) if label else None, sound("name", name).encode() if name else None]
        pairs = [(k.encode(), v.encode()) for k, v in flatten(overrides)]
        self._set = (Override * max(len(pairs), 1))(*(Override(k, v) for k, v in pairs))
        self.spec = Spec(ctypes.sizeof(Spec), yaml, len(yaml), self._keep[1], self._keep[2], self._set, len(pairs),
                         None)


class Engine:
    """Settings, caches and a team of threads. Thread-safe; one for a process is enough: `moegen.kernel` has one.

    threads: of calls that say none (0: $MOEGEN_THREADS, else the spec's shard.cores, else all CPUs of this process).
    cache_dir: of the disk cache; None: the usual place, "": none. cc: the compiler for spelling `intrinsics`.
    Notes go to the logger "moegen".
    """

    def __init__(self, threads: int = 0, cache_dir: str | os.PathLike[str] | None = None, cc: str | None = None):
        self._handle = c_void_p()
        _whole("threads", threads, 32)
        if b"\0" in os.fsencode(cache_dir or ""):
            raise ArgumentError(f"cache_dir: {cache_dir!r} has a character that is none")
        self._log = EngineOptions._fields_[3][1](lambda _, level, text: log.log(
            (logging.WARNING, logging.INFO, logging.DEBUG)[level], "%s", text.decode(errors="replace")))
        options = EngineOptions(ctypes.sizeof(EngineOptions), None if cache_dir is None else os.fsencode(cache_dir), threads,
                                self._log, None, None, sound("cc", cc).encode() if cc else None, 0)
        library.engine_create(byref(options), byref(self._handle))

    def __del__(self) -> None:
        library.engine_release(self._handle)

    @property
    def cache_dir(self) -> str:
        """Directory of the disk cache; "": there is none."""
        return library.engine_cache_dir(self._handle).decode()

    def kernel(self, spec: AnySpec, name: str | None = None, /, **overrides: Any) -> Kernel:
        """A kernel, from memory, the disk cache, or generated and compiled in milliseconds.

        spec: YAML text, a mapping, or a path (pathlib.Path). name: of the kernel in a model file. overrides: keys of the spec:
        target="avx2", plan={"tile_rows": 6}. Raises SpecError with every complaint, UnsupportedError.
        """
        request, handle = _Request(spec, name, overrides), c_void_p()
        library.kernel_get(self._handle, byref(request.spec), byref(handle))
        return Kernel(self, handle)

    def generate(self, spec: AnySpec, name: str | None = None, /, **overrides: Any) -> Source:
        """The C of a kernel, for other compilers; arguments as for `kernel`."""
        request, handle = _Request(spec, name, overrides), c_void_p()
        library.generate(self._handle, byref(request.spec), byref(handle))
        try:
            return Source(*(f(handle).decode() for f in (library.source_name, library.source_c, library.source_h,
                                                         library.source_cflags)))
        finally:
            library.source_release(handle)


class _Call:
    """A moegen_call, used by one thread at a time."""

    def __init__(self, kernel: c_void_p):
        self.handle = c_void_p()
        self._threads = 0
        self._bound: dict[str, tuple[int, int, tuple[int, ...]] | None] = {}   # name: address, dtype, shape; None: not known
        library.call_create(kernel, byref(self.handle))

    def set_threads(self, threads: int) -> None:
        if threads != self._threads:
            library.call_set_threads(self.handle, _whole("threads", threads, 32))
            self._threads = threads

    def place(self, name: str, address: int, dtype: int, shape: tuple[int, ...]) -> None:
        """Memory that stays there until the call has run; dtype: the library's number."""
        key = address, dtype, shape
        if self._bound.get(name) != key:
            if len(shape) > MAX_RANK:
                raise ArgumentError(f"tensor '{name}' has {len(shape)} dimensions")
            self._bound[name] = None   # what is refused leaves what was there before
            library.call_bind(self.handle, name.encode(), address, dtype, len(shape), (c_int64 * MAX_RANK)(*shape))
            self._bound[name] = key

    def bind(self, arg: Arg, x: Any) -> Bound:
        b = bind(x, arg.name, arg.dtype, arg.role != "in")
        assert isinstance(b.dtype, int)
        self.place(arg.name, b.address, b.dtype, b.shape)
        return b

    def unbind(self, arg: Arg) -> None:
        if arg.name in self._bound:
            library.call_bind(self.handle, arg.name.encode(), None, 0, 0, None)
            del self._bound[arg.name]


class Kernel:
    """One compiled kernel. Callable from any thread; several calls may run at once."""

    def __init__(self, engine: Engine, handle: c_void_p):
        self._handle, self._engine = handle, engine
        facts = library.facts(handle)
        self.args: tuple[Arg, ...] = tuple(
            Arg(a.name.decode(), library.dtype_name[a.dtype], ROLES[a.role], bool(a.optional),
                tuple(a.extent[d].decode() for d in range(a.rank)), (a.doc or b"").decode())
            for a in (facts.args[i] for i in range(facts.arg_count)))
        name, family, target, spelling, dtype, origin = (
            getattr(facts, f).decode() for f in ("name", "family", "target", "spelling", "dtype", "origin"))
        self.facts = Facts(name, family, target, spelling, dtype, origin, facts.jit_seconds, facts.code_bytes,
                           tuple(facts.dims[i].decode() for i in range(facts.dim_count)), facts.flops_per_row,
                           facts.weight_bytes_per_expert, facts.threads, facts.flops_per_token, facts.weight_bytes)
        self._by_name = {a.name: a for a in self.args}
        self._number = {a.name: library.dtype_number[a.dtype] for a in self.args}
        # Shapes of those that do not depend on the call, () else.
        self.fixed = {a.name: tuple(map(int, a.extent)) if all(n.isdigit() for n in a.extent) else () for a in self.args}
        self._idle: list[_Call] = []   # those that nobody uses; no lock, which a thread may have while another one forks

    def __del__(self) -> None:
        for call in self.__dict__.get("_idle", ()):
            library.call_release(call.handle)
        library.kernel_release(self._handle)

    def __reduce__(self) -> str:
        raise TypeError("a kernel is machine code of this process: pickle its spec, and ask for it again")

    def __repr__(self) -> str:
        f = self.facts
        return f"<moegen.Kernel {f.name} ({f.family}), {f.dtype}, {f.target}>"

    def param(self, key: str) -> str | None:
        """A key of the checked spec with its default filled in: param("affinity.scale") is "post"."""
        value = library.kernel_param(self._handle, key.encode())
        return None if value is None else value.decode()

    def __call__(self, *, out: Mapping[str, Any] | None = None, threads: int = 0, sizes: Mapping[str, int] | None = None,
                 **tensors: Any) -> dict[str, Any]:
        """Runs the kernel and returns its outputs by name.

        tensors: by the names of `args`, of shapes that agree with their extents; numpy arrays, PyTorch tensors or anything with
        DLPack, in the CPU's memory. What is only read is copied if it is not contiguous, or has indices of 64 bits. bf16 of numpy:
        ml_dtypes.bfloat16, or its bits as uint16; codes of 8 bits as uint8. inout tensors are added to in place, and returned.
        out: arrays for outputs; others are made, of PyTorch if a tensor is of it, else of numpy.
        sizes: of dimensions that no tensor has, {"N": 3}. threads: 0: the engine's.
        Raises ArgumentError, DataError; then no output was written.
        """
        out = out or {}
        for name in (*tensors, *out):
            if name not in self._by_name:
                raise ArgumentError(f"kernel {self.facts.name} has no tensor '{name}'; it has {', '.join(self._by_name)}")
        for name in out:
            if name in tensors or self._by_name[name].role == "in":
                raise ArgumentError(f"tensor '{name}' is no output that `out` could give a place")
        with self._call(bool(sizes)) as call:
            return self._run(call, tensors, out, threads, sizes or {})

    @property
    def handle(self) -> c_void_p:
        """The moegen_kernel, which lives as long as this."""
        return self._handle

    @contextlib.contextmanager
    def _call(self, once: bool = False) -> Iterator[_Call]:
        """One that nobody uses meanwhile. once: nobody uses it later, since it has what others would not expect."""
        try:
            call = self._idle.pop()
        except IndexError:
            call = _Call(self._handle)
        try:
            yield call
        finally:
            if once:
                library.call_release(call.handle)
            else:
                self._idle.append(call)

    def run_at(self, tensors: Mapping[str, tuple[int, tuple[int, ...]]], threads: int = 0) -> None:
        """The same for a host that has all tensors ready: addresses and shapes by name, of memory that is contiguous and of the
        dtypes of `args`; the same names each time. Shapes are checked, nothing else is."""
        with self._call() as call:
            call.set_threads(threads)
            for name, (address, shape) in tensors.items():
                call.place(name, address, self._number[name], shape)
            library.call_run(call.handle)

    def _run(self, call: _Call, tensors: Mapping[str, Any], out: Mapping[str, Any], threads: int,
             sizes: Mapping[str, int]) -> dict[str, Any]:
        torch = any(is_torch(x) for x in (*tensors.values(), *out.values()))
        keep: list[Bound] = []
        results: dict[str, Any] = {}
        call.set_threads(threads)
        for name, size in sizes.items():
            library.call_set_size(call.handle, name.encode(), _whole(name, size, 64))
        for arg in self.args:
            x = tensors.get(arg.name)
            if x is not None:
                keep.append(call.bind(arg, x))
                if arg.role != "in":
                    results[arg.name] = x
            else:
                call.unbind(arg)
        for arg in self.args:
            if arg.role == "out" and arg.name not in tensors and not (arg.optional and arg.name not in out):
                x = out.get(arg.name)
                x = self._make(call, arg, torch) if x is None else x
                keep.append(call.bind(arg, x))
                results[arg.name] = x
        library.call_run(call.handle)
        return results

    def _make(self, call: _Call, arg: Arg, torch: bool) -> Any:
        rank, shape = c_int(), (c_int64 * MAX_RANK)()
        library.call_shape(call.handle, arg.name.encode(), byref(rank), shape)
        return empty(tuple(shape[:rank.value]), arg.dtype, torch)
