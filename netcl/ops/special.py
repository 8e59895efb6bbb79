"""Elementwise functions beyond the everyday: inverses, special functions, divisions, replacements, shrinking."""

from __future__ import annotations

from typing import Any

from netcl.core.arguments import number
from netcl.core.dtypes import is_float
from netcl.core.errors import DTypeError, unexpected
from netcl.core.tensor import Tensor
from netcl.ops import promotion
from netcl.ops.elementwise import Operand, apply, binary, unary

asin, acos, asinh, acosh, atanh = (unary(n) for n in ("asin", "acos", "asinh", "acosh", "atanh"))
exp2, sinc, logit, deg2rad, rad2deg = (unary(n) for n in ("exp2", "sinc", "logit", "deg2rad", "rad2deg"))
erfc, erfinv, lgamma, digamma = (unary(n) for n in ("erfc", "erfinv", "lgamma", "digamma"))
hypot, copysign, logaddexp, logaddexp2, xlogy = (
    binary(n) for n in ("hypot", "copysign", "logaddexp", "logaddexp2", "xlogy")
)
floor_divide, trunc_divide = binary("floor_divide"), binary("trunc_divide")
left_shift, right_shift = binary("left_shift"), binary("right_shift")
frac, tanhshrink = unary("frac"), unary("tanhshrink")


def lerp(a: Operand, b: Operand, c: Operand, **unknown: Any) -> Tensor:
    """a + c * (b - a), and b exactly where c is 1; all three broadcast."""
    if unknown:
        raise unexpected("lerp", unknown, ("a", "b", "c"))
    return apply("lerp", a, b, c)


def addcmul(a: Operand, b: Operand, c: Operand, value: float = 1, **unknown: Any) -> Tensor:
    """a + value * b * c; all three broadcast."""
    if unknown:
        raise unexpected("addcmul", unknown, ("a", "b", "c", "value"))
    return apply("addcmul", a, b, c, value=value)


def addcdiv(a: Operand, b: Operand, c: Operand, value: float = 1, **unknown: Any) -> Tensor:
    """a + value * b / c; all three broadcast."""
    if unknown:
        raise unexpected("addcdiv", unknown, ("a", "b", "c", "value"))
    return apply("addcdiv", a, b, c, value=value)


def nan_to_num(
    a: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None, **unknown: Any
) -> Tensor:
    """`a` with numbers for NaN and the infinities, these by default the ends of the dtype's range. Integers stay."""
    if unknown:
        raise unexpected("nan_to_num", unknown, ("a", "nan", "posinf", "neginf"))
    if not isinstance(a, Tensor):
        raise DTypeError(f"nan_to_num: expected a as a Tensor, got {type(a).__name__}.")
    if not is_float(a.dtype):
        return a
    ends = promotion.number_ends(a.dtype, posinf, neginf)
    return apply("nan_to_num", a, nan=nan, posinf=ends["posinf"], neginf=ends["neginf"])


def celu(a: Tensor, alpha: float = 1.0, **unknown: Any) -> Tensor:
    """a where a > 0, else alpha * (exp(a / alpha) - 1). Source: Barron 2017, arXiv:1704.07483."""
    if unknown:
        raise unexpected("celu", unknown, ("a", "alpha"))
    if not number("celu", "alpha", alpha):
        raise ValueError("celu: expected alpha other than 0, got 0.")
    return apply("celu", a, alpha=alpha)


def softshrink(a: Tensor, lambd: float = 0.5, **unknown: Any) -> Tensor:
    """`a` moved towards 0 by lambd, and 0 within lambd of it."""
    if unknown:
        raise unexpected("softshrink", unknown, ("a", "lambd"))
    return apply("softshrink", a, lambd=number("softshrink", "lambd", lambd, 0))


def hardshrink(a: Tensor, lambd: float = 0.5, **unknown: Any) -> Tensor:
    """`a`, and 0 within lambd of it."""
    if unknown:
        raise unexpected("hardshrink", unknown, ("a", "lambd"))
    return apply("hardshrink", a, lambd=number("hardshrink", "lambd", lambd, 0))


def threshold(a: Tensor, threshold: float, value: float, **unknown: Any) -> Tensor:
    """`a` where it is above `threshold`, else `value`."""
    if unknown:
        raise unexpected("threshold", unknown, ("a", "threshold", "value"))
    return apply("threshold", a, threshold=threshold, value=value)
