# SPDX-License-Identifier: Apache-2.0
"""_library.py - the C library: where it is, its structs and functions (gen/api/moegen.h), and its errors as exceptions."""
from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint32, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

MAX_RANK = 8


class EngineOptions(Structure):
    _fields_ = [("struct_size", c_size_t), ("cache_dir", c_char_p), ("threads", c_int),
                ("log", ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)), ("log_user", c_void_p), ("features", c_char_p),
                ("cc", c_char_p), ("max_kernels", c_size_t)]


class Override(Structure):
    _fields_ = [("key", c_char_p), ("value", c_char_p)]


class Spec(Structure):
    _fields_ = [("struct_size", c_size_t), ("text", c_char_p), ("len", c_size_t), ("label", c_char_p), ("kernel", c_char_p),
                ("overrides", POINTER(Override)), ("override_count", c_size_t), ("command", c_char_p)]


class CArg(Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_int), ("role", c_int), ("optional", c_int), ("rank", c_int),
                ("extent", POINTER(c_char_p)), ("doc", c_char_p)]


class CFacts(Structure):
    _fields_ = [("struct_size", c_size_t), ("name", c_char_p), ("family", c_char_p), ("target", c_char_p), ("spelling", c_char_p),
                ("dtype", c_char_p), ("origin", c_char_p), ("jit_seconds", c_double), ("code_bytes", c_size_t), ("arg_count", c_int),
                ("args", POINTER(CArg)), ("dim_count", c_int), ("dims", POINTER(c_char_p)), ("flops_per_row", c_int64),
                ("weight_bytes_per_expert", c_int64), ("threads", c_int), ("flops_per_token", c_int64), ("weight_bytes", c_int64)]


class CDiagnostic(Structure):
    _fields_ = [("file", c_char_p), ("line", c_int), ("col", c_int), ("len", c_int), ("message", c_char_p), ("hint", c_char_p),
                ("source", c_char_p)]


# ---- errors -----------------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Diagnostic:
    """One complaint. line and col count from 1, 0: no place."""
    file: str | None
    line: int
    col: int
    message: str
    hint: str | None


class MoegenError(Exception):
    """What moegen refused or could not do: str() is the text with places and suggestions, `diagnostics` the complaints."""

    def __init__(self, text: str, diagnostics: tuple[Diagnostic, ...] = ()):
        super().__init__(text)
        self.diagnostics = diagnostics


class ArgumentError(MoegenError, ValueError):
    """A tensor is unknown or missing, or has the wrong shape or dtype."""


class KindError(MoegenError, TypeError):
    """A value is of a type that nothing can be made of."""


class SpecError(MoegenError, ValueError):
    """The spec's fault."""


class UnsupportedError(MoegenError, NotImplementedError):
    """This machine, or this spelling, cannot."""


class DataError(MoegenError, IndexError):
    """The content of a tensor is out of range: an expert's index, a token's id."""


class OutOfMemoryError(MoegenError, MemoryError):
    """There was no memory."""


class FileError(MoegenError, OSError):
    """A file could not be read or written."""


class InternalError(MoegenError, RuntimeError):
    """A bug of moegen."""


STATUS = {1: ArgumentError, 2: SpecError, 3: UnsupportedError, 4: DataError, 5: OutOfMemoryError, 6: FileError, 7: InternalError}


# ---- the library ------------------------------------------------------------------------------------------------------------

# Name: result, arguments without the error at the end; a c_int result is a status, and has that error.
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "engine_create": (c_int, POINTER(EngineOptions), POINTER(c_void_p)),
    "engine_release": (None, c_void_p),
    "engine_cache_dir": (c_char_p, c_void_p),
    "kernel_get": (c_int, c_void_p, POINTER(Spec), POINTER(c_void_p)),
    "kernel_release": (None, c_void_p),
    "kernel_entry": (c_int, c_void_p, POINTER(c_void_p), POINTER(c_void_p)),
    "kernel_param": (c_char_p, c_void_p, c_char_p),
    "call_create": (c_int, c_void_p, POINTER(c_void_p)),
    "call_release": (None, c_void_p),
    "call_bind": (c_int, c_void_p, c_char_p, c_void_p, c_int, c_int, POINTER(c_int64)),
    "call_bind_const": (c_int, c_void_p, c_char_p, c_void_p, c_int, c_int, POINTER(c_int64)),
    "call_set_size": (c_int, c_void_p, c_char_p, c_int64),
    "call_set_threads": (c_int, c_void_p, c_int),
    "call_shape": (c_int, c_void_p, c_char_p, POINTER(c_int), POINTER(c_int64)),
    "call_run": (c_int, c_void_p),
    "generate": (c_int, c_void_p, POINTER(Spec), POINTER(c_void_p)),
    "source_name": (c_char_p, c_void_p),
    "source_c": (c_char_p, c_void_p),
    "source_h": (c_char_p, c_void_p),
    "source_cflags": (c_char_p, c_void_p),
    "source_release": (None, c_void_p),
}


def package_file(name: str, variable: str) -> Path:
    """A file that comes with the package; the environment may name another."""
    path = os.environ.get(variable)
    return Path(path) if path else Path(__file__).parent / name


class Library:
    """Functions of libmoegen without their prefix, which raise. Thread-safe; the GIL is released inside."""

    def __init__(self, path: Path):
        if not path.exists():
            raise ImportError(f"moegen: {path} is not there: install the package (pip install .), or name the library that "
                              "`./moegen lib` prints in MOEGEN_LIBRARY")
        try:
            self._dll = ctypes.CDLL(str(path))
            self._dll.moegen_version.restype = c_uint32
        except (OSError, AttributeError) as why:
            raise ImportError(f"moegen: {path} cannot be loaded, or is another library: {why}") from why
        self._dll.moegen_error_text.restype = c_char_p
        self._dll.moegen_error_text.argtypes = [c_void_p]
        self._dll.moegen_error_count.restype = c_size_t
        self._dll.moegen_error_count.argtypes = [c_void_p]
        self._dll.moegen_error_diagnostic.argtypes = [c_void_p, c_size_t, POINTER(CDiagnostic)]
        self._dll.moegen_error_release.argtypes = [c_void_p]
        self._dll.moegen_error_release.restype = None
        self._dll.moegen_dtype_name.restype = c_char_p
        self._dll.moegen_dtype_size.restype = c_size_t
        self._dll.moegen_kernel_info.argtypes = [c_void_p, POINTER(CFacts)]
        number = self._dll.moegen_version()
        self.version = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
        names = [self._dll.moegen_dtype_name(i).decode() for i in range(64)]
        self.dtype_number = {name: i for i, name in enumerate(names) if name != "?"}
        self.dtype_name = {i: name for name, i in self.dtype_number.items()}
        self.dtype_size = {name: self._dll.moegen_dtype_size(i) for name, i in self.dtype_number.items()}
        self._functions = {name: self._wrap(getattr(self._dll, "moegen_" + name), result, args)
                           for name, (result, *args) in PROTOTYPES.items()}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A function; found once, then it is an attribute."""
        try:
            found = self.__dict__[name] = self.__dict__["_functions"][name]
        except KeyError:
            raise AttributeError(f"libmoegen has no function moegen_{name} that is known here") from None
        return found

    def _wrap(self, function: Any, result: Any, args: list[Any]) -> Callable[..., Any]:
        function.restype = result
        function.argtypes = [*args, POINTER(c_void_p)] if result is c_int else args
        if result is not c_int:
            return function

        def checked(*values: Any) -> None:
            error = c_void_p()
            status = function(*values, byref(error))
            if status:
                raise self.error(status, error)
        return checked

    def error(self, status: int, error: c_void_p) -> MoegenError:
        """The exception of a status and its moegen_error, which is released."""
        text = self._dll.moegen_error_text(error).decode(errors="replace").rstrip("\n") if error else f"moegen: status {status}"
        found = []
        for i in range(self._dll.moegen_error_count(error) if error else 0):
            d = CDiagnostic()
            self._dll.moegen_error_diagnostic(error, i, byref(d))
            words = [w.decode(errors="replace") if w is not None else None for w in (d.file, d.message, d.hint)]
            found.append(Diagnostic(words[0], d.line, d.col, words[1] or "", words[2]))
        self._dll.moegen_error_release(error)
        return STATUS.get(status, InternalError)(text, tuple(found))

    def facts(self, kernel: c_void_p) -> CFacts:
        facts = CFacts(ctypes.sizeof(CFacts))
        if self._dll.moegen_kernel_info(kernel, byref(facts)):
            raise InternalError("moegen_kernel_info: the library is of another version than the package")
        return facts


library = Library(package_file("libmoegen.so", "MOEGEN_LIBRARY"))
