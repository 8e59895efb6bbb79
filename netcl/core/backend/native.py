"""The driver's functions without pyopencl in between: the OpenCL loader through ctypes, and `_send.c` on top of it.

`_send.c` is compiled at installation where a compiler exists. With it a launch is one call that sets the arguments that
changed and enqueues, at half the cost of pyopencl's two; without it launches go through pyopencl.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import struct
import sys
from collections.abc import Sequence
from functools import cache, lru_cache, partial
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from netcl.core.dtypes import DType
from netcl.core.errors import DTypeError

with contextlib.suppress(ImportError):  # without pyopencl only NumPy runs, and nothing here is called
    import pyopencl as cl

P, SIZE, UINT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
POINTER = attrgetter("int_ptr")  # the driver's handle of a pyopencl object
_MEMORY = 1 << 31  # marks memory among the sizes of arguments
_CODES = {  # the letters by which `struct` knows numbers; records are bytes
    "f2": "e", "f4": "f", "f8": "d", "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q",
    "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
}  # fmt: skip
PADDED = {
    np.dtype(name): f"{code}{-int(name[1]) % 8}x" for name, code in _CODES.items()
}  # in a multiple of eight bytes


class Driver(ctypes.Structure):
    """The driver's functions as `_send.c` reads them."""

    _fields_ = (("kernel", P), ("copy", P), ("fill", P), ("write", P), ("argument", P))


NAMES = (
    "clEnqueueNDRangeKernel", "clEnqueueCopyBuffer", "clEnqueueFillBuffer", "clEnqueueWriteBuffer", "clSetKernelArg"
)  # fmt: skip
_LIST = (UINT, P, P)  # the wait list and the event, always empty
SIGNATURES = (
    (P, P, UINT, P, P, P, *_LIST),
    (P, P, P, SIZE, SIZE, SIZE, *_LIST),
    (P, P, P, SIZE, SIZE, SIZE, *_LIST),
    (P, P, UINT, SIZE, SIZE, P, *_LIST),
    (P, UINT, SIZE, P),
)


@cache
def library() -> Any:
    """The OpenCL loader that pyopencl uses, through ctypes; None where it cannot be reached."""
    try:
        found = ctypes.CDLL(cl._cl.__file__)  # looks through what the module is linked to
        if not hasattr(found, NAMES[0]):  # Windows does not
            found = ctypes.CDLL("OpenCL.dll")
        for name, signature in zip(NAMES, SIGNATURES, strict=True):
            getattr(found, name).argtypes = signature
    except (OSError, AttributeError):
        return None
    return found


@cache
def driver() -> Driver:
    """The addresses of the driver's functions."""
    return Driver(*(ctypes.cast(getattr(library(), name), P) for name in NAMES))


class Extension(NamedTuple):
    """The functions of `_send.c`. Launches hold the interpreter's lock: setting arguments and sending is one step."""

    replay: Any
    launch: Any
    launch_event: Any


def load(path: str) -> Extension:
    """The compiled `_send.c` at `path`."""
    locked, found = ctypes.PyDLL(path), Extension(ctypes.CDLL(path).netcl_send, None, None)
    found = found._replace(launch=locked.netcl_launch, launch_event=locked.netcl_launch_event)
    found.replay.argtypes = (P,)
    found.launch.argtypes, found.launch_event.argtypes = (ctypes.c_char_p,), (ctypes.c_char_p, P)
    return found


def _locked() -> bool:
    """Whether Python's lock keeps the arguments of two threads apart."""
    return not hasattr(sys, "_is_gil_enabled") or bool(sys._is_gil_enabled())


def absence() -> str:
    """Why there is no `extension`, and what to do about it."""
    if not _locked():
        return "needs a Python with its global lock"
    return "not built when netcl was installed; install a C compiler, then reinstall netcl"


@cache
def extension() -> Extension | None:
    """`_send.c` when it was built at installation and can be used, else None."""
    if not _locked():
        return None
    try:
        spec = importlib.util.find_spec("netcl.core.backend._send")
        return None if spec is None or spec.origin is None or library() is None else load(spec.origin)
    except (ImportError, OSError, AttributeError):
        return None


class _Call(ctypes.Structure):
    """A kernel as `netcl_launch` reads it."""

    _fields_ = (("kernel", P), ("driver", P), ("count", UINT), ("known", UINT), ("sizes", P), ("sent", P))


class Sender:
    """A kernel's launches through `_send.c`. `pack(queue address, *arguments)` gives what follows the geometry."""

    __slots__ = ("_event", "_kept", "_types", "address", "launch", "layout", "memory", "mixed", "pack")

    def __init__(self, handle: Any, types: Sequence[DType | None], functions: Extension) -> None:
        """Args: types: as in `opencl.Kernel`."""
        self.launch, self._event = functions.launch, functions.launch_event
        self._types, self.memory = tuple(types), next((i for i, t in enumerate(types) if t is not None), len(types))
        self.mixed = None in types[self.memory :]  # memory also comes after numbers
        widths = [ctypes.sizeof(P) if t is None else t.itemsize for t in types]
        marks = [n | (0 if t is not None else _MEMORY) for n, t in zip(widths, types, strict=True)]
        sizes = (ctypes.c_uint32 * max(len(marks), 1))(*marks)
        sent = ctypes.create_string_buffer(8 + sum(-(-n // 8) * 8 for n in widths))
        addresses = [ctypes.addressof(x) for x in (sizes, sent)]
        call = _Call(handle.int_ptr, ctypes.addressof(driver()), len(marks), 0, *addresses)
        self._kept = (handle, sizes, sent, call)
        self.address = ctypes.addressof(call)
        self.layout = ["Q" if t is None else PADDED.get(t) or f"{t.itemsize}s{-t.itemsize % 8}x" for t in types]
        self.pack = partial(struct.Struct(f"=QQ{''.join(self.layout)}").pack, self.address)

    def launch_event(self, packed: bytes) -> tuple[int, Any]:
        """As `launch`, with the event."""
        place = P()
        status = self._event(packed, ctypes.byref(place))
        return status, None if place.value is None else cl.Event.from_int_ptr(place.value, False)

    def rest(self, args: Sequence[Any]) -> Sequence[Any]:
        """What to pack for the arguments behind the first memory."""
        found = args[self.memory :]
        if not self.mixed:
            return found
        return [a.int_ptr if t is None else a for a, t in zip(found, self._types[self.memory :], strict=True)]

    def packed(self, name: str, queue: int, args: Sequence[Any]) -> bytes:
        """`pack` for numbers it refuses: floats too large for their type become infinite. Raises DTypeError."""
        types = self._types[self.memory :]
        values = [_saturated(a, t) for a, t in zip(self.rest(args), types, strict=True)]
        try:
            return self.pack(queue, *map(POINTER, args[: self.memory]), *values)
        except struct.error as error:
            raise DTypeError(
                f"{name}: expected numbers that fit {types}, got {args[self.memory :]} ({error})."
            ) from None


@lru_cache(maxsize=4096)
def geometry(global_size: Sequence[int], local_size: Sequence[int] | None) -> bytes:
    """The first part of what `netcl_launch` reads."""
    sizes = [(*t, 0, 0, 0)[:3] for t in (global_size, local_size or ())]
    return struct.pack("=7Q", len(global_size), *sizes[0], *sizes[1])


def _saturated(value: Any, dtype: DType | None) -> Any:
    if dtype is None or dtype.kind != "f":
        return value
    with np.errstate(over="ignore"):
        return float(np.array(float(value)).astype(dtype))
