"""How the dtypes and numbers of an elementwise call come together: NumPy 2's rule, the same eager, traced and on NumPy.

Numbers are weak: only their class takes part in promotion. One that the dtype found cannot hold is refused, except in
comparisons and in bounds of `clip`, which come out as mathematics has them: uint8 < 300 is true everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from netcl.core.dtypes import (
    BFLOAT16,
    BOOL,
    FLOAT64,
    INT8,
    DType,
    as_dtype,
    check_number,
    common_dtype,
    compute_dtype,
    is_float,
    largest,
    limits,
)
from netcl.core.errors import DTypeError
from netcl.core.kernels.dialect import of_formulas
from netcl.core.kernels.primitives import AS_INT8, FLOAT, INTEGER, REFUSED, TABLE, Primitive
from netcl.core.kernels.primitives import BOOL as TRUTH
from netcl.core.live import Cell

Signature = tuple[Any, ...]  # of operands, then of attributes: the dtype of a tensor, the class of a number

NUMBERS = (bool, int, float)  # the classes that `kind` tells apart
_WEAK = {bool: True, int: 0, float: 0.0}
_INSTEAD = {  # of "-", for bools
    "sub": "use ^ (bitwise_xor) or logical_not, or astype",
    "neg": "use ~ (logical_not), or astype",
}


def kind(name: str, x: Any) -> type:
    """The class of number `x` is, which is all promotion looks at."""
    if isinstance(x, (bool, np.bool_)):
        return bool
    if isinstance(x, (int, np.integer)):
        return int
    if isinstance(x, (float, np.floating, BFLOAT16.type, Cell)):
        return float
    raise DTypeError(
        f"{name}: expected tensors and numbers, got {type(x).__name__}; make a tensor with Tensor.from_host."
    )


# -- dtypes ------------------------------------------------------------------------------------------------------------


@of_formulas(4096)
def resolve(name: str, signature: Signature) -> tuple[Primitive, DType, DType]:
    """The row that computes, its compute dtype and the result's dtype.

    For bools alone another row may compute: + is `logical_or`. Raises DTypeError for a wrong number of operands, for
    numbers alone, for floats where a row takes integers, and for `-` of bools.
    """
    row = TABLE[name]
    count = len(row.inputs)
    operands = signature[:count]
    if len(operands) < count or len(signature) > count + len(row.attrs):
        raise DTypeError(f"{name}: expected {count} operands, got {len(signature)}.")
    if not any(isinstance(s, np.dtype) for s in operands):
        raise DTypeError(f"{name}: expected at least one tensor, got only numbers.")
    promoted = result_type(row, signature)
    if promoted == BOOL and row.bools:
        if row.bools == REFUSED:
            raise DTypeError(f"{name}: expected numbers, got bool; {_INSTEAD[name]}.")
        row, promoted = (row, INT8) if row.bools == AS_INT8 else (TABLE[row.bools], BOOL)
    if row.result == INTEGER and is_float(promoted):
        found = ", ".join(s.name if isinstance(s, np.dtype) else s.__name__ for s in operands)
        raise DTypeError(f"{name}: expected integers or bools, got {found}; compare first, or use astype.")
    return row, compute_dtype(promoted), BOOL if row.result == TRUTH else promoted


@cache
def _common(signature: Signature) -> DType:
    """NumPy's promotion alone."""
    return as_dtype(common_dtype(*[s if isinstance(s, np.dtype) else _WEAK[s] for s in signature]))


def result_type(row: Primitive, signature: Sequence[Any]) -> DType:
    """NumPy's promotion of operands and attributes (`where`: of its last two), at least half for rows of floats."""
    taking = signature[1:] if row.name == "where" else signature
    dtype = taking[0] if len(taking) == 1 else _common(tuple(taking))
    if row.result == FLOAT and not is_float(dtype):
        tensors = [s for s in taking if isinstance(s, np.dtype)]
        each = [dtype] if all(t == BOOL for t in tensors) else tensors
        halves = [np.result_type(t, np.float16) for t in each]  # the narrowest that holds each operand
        dtype = FLOAT64 if row.name in ("div", "reciprocal") else np.result_type(*halves)
        dtype = as_dtype(dtype)
    return dtype


def loses_truth(condition: DType, compute: DType) -> bool:
    """Whether a condition may turn from not zero to zero when it is converted to the compute dtype."""
    if condition == BOOL:
        return False
    if is_float(condition):
        return not is_float(compute) or compute_dtype(condition).itemsize > compute.itemsize
    return not is_float(compute) and condition.itemsize > compute.itemsize


# -- numbers -----------------------------------------------------------------------------------------------------------


def is_square(dtype: DType, exponent: Any) -> bool:
    """Whether a power of a tensor by this number is its square, in the same dtype."""
    return bool(exponent == 2) and (is_float(dtype) or (dtype != BOOL and not isinstance(exponent, float)))


def number_ends(dtype: DType, posinf: Any, neginf: Any) -> dict[str, Any]:
    """What `nan_to_num` puts for infinities: the ends of the dtype's range for None."""
    end = largest(dtype)
    return {"posinf": end if posinf is None else posinf, "neginf": -end if neginf is None else neginf}


def open_bounds(dtype: DType, lo: Any, hi: Any) -> dict[str, Any]:
    """The bounds of `clip` with the end of the dtype's range for None."""
    low, high = (-np.inf, np.inf) if is_float(dtype) else limits(dtype)
    return {"lo": low if lo is None else lo, "hi": high if hi is None else hi}


def fitted(
    name: str, signature: Signature, operands: Sequence[Any], attrs: dict[str, Any]
) -> tuple[str, Sequence[Any], dict[str, Any]]:
    """The same call with numbers that its compute dtype holds: comparisons turn into ones with the end of the range.

    Raises NumberOutOfRange where there is no such call, and DTypeError for a negative power of integers.
    """
    compute = resolve(name, signature)[1]
    tensors = [isinstance(s, np.dtype) for s in signature[: len(operands)]]
    if is_float(compute):
        for x in (*operands, *attrs.values()):
            if isinstance(x, int):
                check_number(name, x, compute)
        return name, operands, attrs
    if name == "clip":
        return name, operands, _saturated(attrs, compute)
    if name in _COMPARED and not all(tensors):
        return *_compared(name, operands, tensors[0], compute), attrs
    if name == "where" and not tensors[0]:
        operands = (bool(operands[0]), *operands[1:])
    for x, is_tensor in zip(operands, tensors, strict=True):
        if not is_tensor:
            check_number(name, x, compute)
    if name == "pow" and tensors[0] and not tensors[1] and operands[1] < 0:
        raise DTypeError(
            f"pow: expected a float tensor for the negative exponent {operands[1]}, got {signature[0]}; "
            "use astype first."
        )
    return name, operands, attrs


def _saturated(attrs: dict[str, Any], compute: DType) -> dict[str, Any]:
    """Bounds beyond the range, which limit nothing, as its ends. Raises if they would leave no value in the range."""
    low, high = limits(compute)
    lo, hi = attrs["lo"], attrs["hi"]
    if lo > high or hi < low:
        check_number("clip", lo if lo > high else hi, compute)
    return {"lo": max(lo, low), "hi": min(hi, high)}


# name -> the name with operands exchanged, and the comparisons with the largest and smallest value that are the same
# as with a number above and below them
_COMPARED = {
    "lt": ("gt", "le", "lt"),
    "le": ("ge", "le", "lt"),
    "gt": ("lt", "gt", "ge"),
    "ge": ("le", "gt", "ge"),
    "eq": ("eq", "gt", "lt"),
    "ne": ("ne", "le", "ge"),
}


def _compared(name: str, operands: Sequence[Any], first: bool, compute: DType) -> tuple[str, Sequence[Any]]:
    """A comparison of integers with a number, whatever its size."""
    x, number = operands if first else (operands[1], operands[0])
    low, high = limits(compute)
    if low <= number <= high:
        return name, operands
    name = name if first else _COMPARED[name][0]
    return (_COMPARED[name][1], (x, high)) if number > high else (_COMPARED[name][2], (x, low))
