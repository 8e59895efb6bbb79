"""The element types of netcl: NumPy dtypes, their OpenCL C names, and the type that arithmetic runs in."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np

from netcl.core.errors import DTypeError

DType = np.dtype[Any]

FLOAT16, FLOAT32, FLOAT64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)  # the upper half of a float32: its range, 8 bits of precision
INT8, UINT8, INT32, INT64, BOOL = (np.dtype(t) for t in (np.int8, np.uint8, np.int32, np.int64, np.bool_))
NARROW = (FLOAT16, BFLOAT16)  # stored in 16 bits, computed as float
FLOATS = (*NARROW, FLOAT32, FLOAT64)
SUPPORTED = (*FLOATS, INT8, UINT8, INT32, INT64, BOOL)

C_NAME: dict[DType, str] = {
    FLOAT16: "half", BFLOAT16: "bfloat", FLOAT32: "float", FLOAT64: "double",
    INT8: "char", UINT8: "uchar", INT32: "int", INT64: "long", BOOL: "uchar",
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
    if isinstance(dtype, np.dtype) and dtype in C_NAME:
        return dtype
    if isinstance(dtype, str) and dtype in _ALIASES:
        return _ALIASES[dtype]
    try:
        result: DType = np.dtype(dtype)
    except TypeError as error:
        raise DTypeError(f"dtype: expected one of {_choices()}, got {dtype!r}.") from error
    if result not in C_NAME:
        raise DTypeError(f"dtype: expected one of {_choices()}, got {result}; convert the array first.")
    return result


def _choices() -> str:
    return ", ".join(str(t) for t in SUPPORTED)


def is_float(dtype: DType) -> bool:
    """Whether `dtype` is a floating type."""
    return dtype.kind == "f" or dtype == BFLOAT16


def compute_dtype(dtype: DType) -> DType:
    """The type arithmetic runs in: half and bfloat are stored, float is computed; all else computes as itself."""
    return FLOAT32 if dtype in NARROW else dtype


def common_dtype(*operands: Any) -> DType:
    """NumPy's promotion of dtypes and (weak) Python numbers, in which bfloat16 behaves as float16 does.

    Together the two are float32: neither holds the other's values.
    """
    if BFLOAT16 not in operands:
        return np.result_type(*operands)
    promoted = np.result_type(*(FLOAT16 if t == BFLOAT16 else t for t in operands))
    if promoted != FLOAT16:
        return promoted
    return FLOAT32 if FLOAT16 in operands else BFLOAT16


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
