"""The element types of netcl: NumPy dtypes, their OpenCL C names, and the type that arithmetic runs in."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from netcl.core.errors import DTypeError, NumberOutOfRange
from netcl.core.live import Cell

DType = np.dtype[Any]

FLOAT16, FLOAT32, FLOAT64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)  # the upper half of a float32: its range, 8 bits of precision
INT8, UINT8, INT32, INT64, BOOL = (np.dtype(t) for t in (np.int8, np.uint8, np.int32, np.int64, np.bool_))
INT16 = np.dtype(np.int16)  # not of tensors: the bits of a 16-bit float that is only moved
NARROW = (FLOAT16, BFLOAT16)  # stored in 16 bits, computed as float
FLOATS = (*NARROW, FLOAT32, FLOAT64)
SUPPORTED = (*FLOATS, INT8, UINT8, INT32, INT64, BOOL)
_SUPPORTED = frozenset(SUPPORTED)

C_NAME: dict[DType, str] = {
    FLOAT16: "half", BFLOAT16: "bfloat", FLOAT32: "float", FLOAT64: "double",
    INT8: "char", UINT8: "uchar", INT16: "short", INT32: "int", INT64: "long", BOOL: "uchar",
}  # fmt: skip
_ALIASES: dict[str, DType] = {
    "half": FLOAT16,
    "float": FLOAT32,
    "double": FLOAT64,
    "int": INT32,
    "long": INT64,
    "bool": BOOL,
}
_warned: set[str] = set()


def as_dtype(dtype: Any) -> DType:
    """The NumPy dtype for a name ("float32", "half", ...), a NumPy type or a dtype. Raises DTypeError for others."""
    if isinstance(dtype, np.dtype) and dtype in _SUPPORTED:
        return dtype
    if isinstance(dtype, str) and dtype in _ALIASES:
        return _ALIASES[dtype]
    if dtype is None:  # which NumPy takes for float64
        raise DTypeError(f"dtype: expected one of {_choices()}, got None.")
    try:
        result: DType = np.dtype(dtype)
    except TypeError as error:
        raise DTypeError(f"dtype: expected one of {_choices()}, got {dtype!r}.") from error
    if result not in _SUPPORTED:
        raise DTypeError(f"dtype: expected one of {_choices()}, got {result}; convert the array first.")
    return result


def _choices() -> str:
    return ", ".join(str(t) for t in SUPPORTED)


@cache
def is_float(dtype: DType) -> bool:
    """Whether `dtype` is a floating type."""
    return dtype.kind == "f" or dtype == BFLOAT16


@cache
def compute_dtype(dtype: DType) -> DType:
    """The type arithmetic runs in: half and bfloat compute as float, bool as uint8 (0 and 1), all else as itself."""
    return FLOAT32 if dtype in NARROW else UINT8 if dtype == BOOL else dtype


def common_dtype(*operands: Any) -> DType:
    """NumPy's promotion of dtypes and (weak) Python numbers, in which bfloat16 behaves as float16 does.

    Together the two are float32: neither holds the other's values. int8 and uint8 are int32, as there is no int16.
    """
    if BFLOAT16 not in operands:
        found = np.result_type(*operands)
        return INT32 if found == np.int16 else found
    promoted = np.result_type(*(FLOAT16 if t == BFLOAT16 else t for t in operands))
    if promoted != FLOAT16:
        return promoted
    return FLOAT32 if FLOAT16 in operands else BFLOAT16


@cache
def limits(dtype: DType) -> tuple[int, int]:
    """Smallest and largest value of an integer dtype, of bool 0 and 1."""
    if dtype == BOOL:
        return 0, 1
    found = np.iinfo(dtype)
    return int(found.min), int(found.max)


def largest(dtype: DType) -> float:
    """The largest finite number of a floating dtype."""
    finfo: Any = ml_dtypes.finfo
    return float(finfo(dtype).max)


def as_float(x: Any) -> Any:
    """A number as a kernel of floats takes it."""
    return x if isinstance(x, Cell) else float(x)


@cache
def converter(compute: DType) -> Callable[[Any], Any]:
    """What makes a kernel's argument of a number. Raises OverflowError for one that the compute dtype cannot hold."""
    if is_float(compute):
        return as_float
    low, high = limits(compute)

    def as_integer(x: Any) -> int:
        if low <= x <= high:
            return int(x)
        raise OverflowError

    return as_integer


def check_number(name: str, x: Any, dtype: DType) -> None:
    """Raise NumberOutOfRange for a number that a tensor of `dtype` cannot hold."""
    if isinstance(x, Cell):
        return
    try:
        converter(dtype)(x)
    except OverflowError:
        if is_float(dtype):
            raise NumberOutOfRange(f"{name}: expected a number that a float can hold, got one far larger.") from None
        low, high = limits(dtype)
        raise NumberOutOfRange(
            f"{name}: expected a number from {low} to {high} for {dtype}, got {x}; use astype for a wider dtype."
        ) from None


def transferable(array: Any) -> Any:
    """`array` (or NumPy scalar) as drivers' buffers take it: bfloat16 as uint16, everything else as it is."""
    return array.view(np.uint16) if array.dtype == BFLOAT16 else array


def on_device(dtype: DType, has_fp64: bool, device: str) -> DType:
    """`dtype`, or float32 with one warning per device where it is float64 and the device cannot compute it."""
    if dtype != FLOAT64 or has_fp64:
        return dtype
    if device not in _warned:
        _warned.add(device)
        warnings.warn(f"{device} has no double precision: float64 results are computed in float32.", stacklevel=3)
    return FLOAT32
