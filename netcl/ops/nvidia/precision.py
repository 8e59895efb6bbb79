"""How exactly float32 products and convolutions are computed."""

from __future__ import annotations

from netcl.core.errors import DTypeError
from netcl.kernels import route

LEVELS = ("highest", "high", "medium")
UNIT_TYPE = {"float": "tf32", "half": "f16", "bfloat": "bf16"}  # what the units call a storage type
_level = "high"
route.settle("precision", _level)


def set_matmul_precision(level: str) -> None:
    """Choose the arithmetic of float32 matrix products and convolutions, for all threads.

    "highest"   ordinary float32 arithmetic.
    "high"      (default) three products of operands split into two TF32 parts, added in float32: the error is at most
                that of ordinary float32 arithmetic, the speed a multiple. Infinity and NaN behave as there.
    "medium"    operands rounded to TF32 (10 bits of mantissa), sums in float32: relative error about 3e-4.

    Devices without matrix units compute products as with "highest". Where matrix units do not compute them, 3x3
    convolutions of stride 1 may go by Winograd's F(4x4, 3x3), unless "highest" is set: the error is up to three times
    that of direct sums for values of usual sizes (bounds: ops/convolution/winograd.py); infinity and NaN behave as
    in direct sums. Other dtypes follow float32 where they are computed in it.
    """
    global _level
    if level not in LEVELS:
        raise DTypeError(f"set_matmul_precision: expected one of {', '.join(LEVELS)}, got {level!r}.")
    _level = level
    route.settle("precision", level)


def matmul_precision() -> str:
    """The level that `set_matmul_precision` chose."""
    return _level
