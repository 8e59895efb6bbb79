"""Methods of Tensor and Node. Written by tools/generate_ops.py from the records of ops; do not edit.

Each looks the op up in a table of the class: ops on tensors for Tensor, ops on nodes for Node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from netcl.core.keywords import axis_of, index_before_axis, needed_axis

if TYPE_CHECKING:
    from typing_extensions import Self

Axis = int | Sequence[int] | None


class Methods:
    """The methods that are ops. `_operations` has the op of each name, `_operands` is what operators take."""

    __slots__ = ()
    __hash__ = object.__hash__
    _operations: Mapping[str, Callable[..., Self]]
    _several: Mapping[str, Callable[..., tuple[Self, ...]]]  # the same table, for ops with several results
    _operands: tuple[type, ...]

    def _refuse(self, name: str, other: Any) -> Any:
        """What an operator gives for an operand it does not take."""
        return NotImplemented

    def __add__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["add"](self, other) if known else self._refuse("add", other)

    def __radd__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["add"](other, self) if known else self._refuse("add", other)

    def add(self, b: Any) -> Self:
        """add: y = a + b, elementwise. Gradient: d/da = g; d/db = g."""
        return self._operations["add"](self, b)

    def __sub__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["sub"](self, other) if known else self._refuse("sub", other)

    def __rsub__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["sub"](other, self) if known else self._refuse("sub", other)

    def sub(self, b: Any) -> Self:
        """sub: y = a - b, elementwise. Gradient: d/da = g; d/db = -g."""
        return self._operations["sub"](self, b)

    def __mul__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["mul"](self, other) if known else self._refuse("mul", other)

    def __rmul__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["mul"](other, self) if known else self._refuse("mul", other)

    def mul(self, b: Any) -> Self:
        """mul: y = a * b, elementwise. Gradient: d/da = g * b; d/db = g * a."""
        return self._operations["mul"](self, b)

    def __truediv__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["div"](self, other) if known else self._refuse("div", other)

    def __rtruediv__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["div"](other, self) if known else self._refuse("div", other)

    def div(self, b: Any) -> Self:
        """div: y = a / b, elementwise. Gradient: d/da = g / b; d/db = -g * y / b."""
        return self._operations["div"](self, b)

    def __neg__(self) -> Self:
        return self._operations["neg"](self)

    def neg(self) -> Self:
        """neg: y = -a, elementwise. Gradient: d/da = -g."""
        return self._operations["neg"](self)

    def __abs__(self) -> Self:
        return self._operations["abs"](self)

    def abs(self) -> Self:
        """abs: y = abs(a), elementwise. Gradient: d/da = where(a > 0, g, where(a < 0, -g, 0 * g))."""
        return self._operations["abs"](self)

    def sign(self) -> Self:
        """sign: y = where(a > 0, 1, where(a < 0, -1, a)), elementwise. Gradient: d/da = 0 * g."""
        return self._operations["sign"](self)

    def square(self) -> Self:
        """square: y = a * a, elementwise. Gradient: d/da = 2 * g * a."""
        return self._operations["square"](self)

    def reciprocal(self) -> Self:
        """reciprocal: y = 1 / a, elementwise. Gradient: d/da = -g * y * y."""
        return self._operations["reciprocal"](self)

    def __pow__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["pow"](self, other) if known else self._refuse("pow", other)

    def __rpow__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["pow"](other, self) if known else self._refuse("pow", other)

    def pow(self, b: Any) -> Self:
        """a ** b; the exponent 2 is a product."""
        return self._operations["pow"](self, b)

    def __mod__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["remainder"](self, other) if known else self._refuse("remainder", other)

    def __rmod__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["remainder"](other, self) if known else self._refuse("remainder", other)

    def remainder(self, b: Any) -> Self:
        """remainder: y = WITH_SIGN_OF(b, fmod(a, b)), elementwise. Gradient: d/da = g; d/db = -g * floor(a / b)."""
        return self._operations["remainder"](self, b)

    def fmod(self, b: Any) -> Self:
        """fmod: y = fmod(a, b), elementwise. Gradient: d/da = g; d/db = -g * trunc(a / b)."""
        return self._operations["fmod"](self, b)

    def __floordiv__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["floor_divide"](self, other) if known else self._refuse("floor_divide", other)

    def __rfloordiv__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["floor_divide"](other, self) if known else self._refuse("floor_divide", other)

    def floor_divide(self, b: Any) -> Self:
        """floor_divide: y = FLOOR_QUOTIENT(a, b, fmod(a, b)), elementwise. Gradient: d/da = 0 * g; d/db = 0 * g."""
        return self._operations["floor_divide"](self, b)

    def trunc_divide(self, b: Any) -> Self:
        """trunc_divide: y = where(b == 0, quotient(a, b), round(quotient(a - fmod(a, b), b))), elementwise.
        Gradient: d/da = 0 * g; d/db = 0 * g.
        """
        return self._operations["trunc_divide"](self, b)

    def maximum(self, b: Any) -> Self:
        """maximum: y = where(a > b, a, where(a == a, b, a)), elementwise. Gradient: d/da = where(a > b, g, where(a
        == b, 0.5 * g, 0)); d/db = where(b > a, g, where(a == b, 0.5 * g, 0)).
        """
        return self._operations["maximum"](self, b)

    def minimum(self, b: Any) -> Self:
        """minimum: y = where(a < b, a, where(a == a, b, a)), elementwise. Gradient: d/da = where(a < b, g, where(a
        == b, 0.5 * g, 0)); d/db = where(b < a, g, where(a == b, 0.5 * g, 0)).
        """
        return self._operations["minimum"](self, b)

    def clip(self, lo: float | None = None, hi: float | None = None) -> Self:
        """min(max(a, lo), hi), so `hi` where the bounds cross; None leaves a side open. NaN stays NaN."""
        return self._operations["clip"](self, lo, hi)

    def __lt__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["lt"](self, other) if known else self._refuse("lt", other)

    def lt(self, b: Any) -> Self:
        """lt: y = where(a < b, 1, 0), elementwise."""
        return self._operations["lt"](self, b)

    def __le__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["le"](self, other) if known else self._refuse("le", other)

    def le(self, b: Any) -> Self:
        """le: y = where(a <= b, 1, 0), elementwise."""
        return self._operations["le"](self, b)

    def __gt__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["gt"](self, other) if known else self._refuse("gt", other)

    def gt(self, b: Any) -> Self:
        """gt: y = where(a > b, 1, 0), elementwise."""
        return self._operations["gt"](self, b)

    def __ge__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["ge"](self, other) if known else self._refuse("ge", other)

    def ge(self, b: Any) -> Self:
        """ge: y = where(a >= b, 1, 0), elementwise."""
        return self._operations["ge"](self, b)

    def __eq__(self, other: object) -> Self:  # type: ignore[override]  # elementwise, as NumPy's
        known = isinstance(other, self._operands)
        return self._operations["eq"](self, other) if known else self._refuse("eq", other)

    def eq(self, b: Any) -> Self:
        """eq: y = where(a == b, 1, 0), elementwise."""
        return self._operations["eq"](self, b)

    def __ne__(self, other: object) -> Self:  # type: ignore[override]  # elementwise, as NumPy's
        known = isinstance(other, self._operands)
        return self._operations["ne"](self, other) if known else self._refuse("ne", other)

    def ne(self, b: Any) -> Self:
        """ne: y = where(a != b, 1, 0), elementwise."""
        return self._operations["ne"](self, b)

    def logical_and(self, b: Any) -> Self:
        """logical_and: y = where(a != 0, where(b != 0, 1, 0), 0), elementwise."""
        return self._operations["logical_and"](self, b)

    def logical_or(self, b: Any) -> Self:
        """logical_or: y = where(a != 0, 1, where(b != 0, 1, 0)), elementwise."""
        return self._operations["logical_or"](self, b)

    def logical_not(self) -> Self:
        """logical_not: y = where(a == 0, 1, 0), elementwise."""
        return self._operations["logical_not"](self)

    def __and__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["bitwise_and"](self, other) if known else self._refuse("bitwise_and", other)

    def __rand__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["bitwise_and"](other, self) if known else self._refuse("bitwise_and", other)

    def bitwise_and(self, b: Any) -> Self:
        """bitwise_and: y = a & b, elementwise."""
        return self._operations["bitwise_and"](self, b)

    def __or__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["bitwise_or"](self, other) if known else self._refuse("bitwise_or", other)

    def __ror__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["bitwise_or"](other, self) if known else self._refuse("bitwise_or", other)

    def bitwise_or(self, b: Any) -> Self:
        """bitwise_or: y = a | b, elementwise."""
        return self._operations["bitwise_or"](self, b)

    def __xor__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["bitwise_xor"](self, other) if known else self._refuse("bitwise_xor", other)

    def __rxor__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["bitwise_xor"](other, self) if known else self._refuse("bitwise_xor", other)

    def bitwise_xor(self, b: Any) -> Self:
        """bitwise_xor: y = a ^ b, elementwise."""
        return self._operations["bitwise_xor"](self, b)

    def __invert__(self) -> Self:
        return self._operations["bitwise_not"](self)

    def bitwise_not(self) -> Self:
        """bitwise_not: y = ~a, elementwise."""
        return self._operations["bitwise_not"](self)

    def __lshift__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["left_shift"](self, other) if known else self._refuse("left_shift", other)

    def __rlshift__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["left_shift"](other, self) if known else self._refuse("left_shift", other)

    def left_shift(self, b: Any) -> Self:
        """left_shift: y = lshift(a, b), elementwise."""
        return self._operations["left_shift"](self, b)

    def __rshift__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["right_shift"](self, other) if known else self._refuse("right_shift", other)

    def __rrshift__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["right_shift"](other, self) if known else self._refuse("right_shift", other)

    def right_shift(self, b: Any) -> Self:
        """right_shift: y = rshift(a, b), elementwise."""
        return self._operations["right_shift"](self, b)

    def isnan(self) -> Self:
        """isnan: y = where(a != a, 1, 0), elementwise."""
        return self._operations["isnan"](self)

    def isfinite(self) -> Self:
        """isfinite: y = where(a - a == 0, 1, 0), elementwise."""
        return self._operations["isfinite"](self)

    def isinf(self) -> Self:
        """isinf: y = where(a == a, where(a - a == 0, 0, 1), 0), elementwise."""
        return self._operations["isinf"](self)

    def exp(self) -> Self:
        """exp: y = exp(a), elementwise. Gradient: d/da = g * y."""
        return self._operations["exp"](self)

    def expm1(self) -> Self:
        """expm1: y = expm1(a), elementwise. Gradient: d/da = g * (y + 1)."""
        return self._operations["expm1"](self)

    def log(self) -> Self:
        """log: y = log(a), elementwise. Gradient: d/da = g / a."""
        return self._operations["log"](self)

    def log2(self) -> Self:
        """log2: y = log(a) * 1.4426950408889634, elementwise. Gradient: d/da = g * 1.4426950408889634 / a."""
        return self._operations["log2"](self)

    def log10(self) -> Self:
        """log10: y = log(a) * 0.4342944819032518, elementwise. Gradient: d/da = g * 0.4342944819032518 / a."""
        return self._operations["log10"](self)

    def log1p(self) -> Self:
        """log1p: y = log1p(a), elementwise. Gradient: d/da = g / (1 + a)."""
        return self._operations["log1p"](self)

    def sqrt(self) -> Self:
        """sqrt: y = sqrt(a), elementwise. Gradient: d/da = 0.5 * g / y."""
        return self._operations["sqrt"](self)

    def rsqrt(self) -> Self:
        """rsqrt: y = 1 / sqrt(a), elementwise. Gradient: d/da = -0.5 * g * y * y * y."""
        return self._operations["rsqrt"](self)

    def sin(self) -> Self:
        """sin: y = sin(a), elementwise. Gradient: d/da = g * cos(a)."""
        return self._operations["sin"](self)

    def cos(self) -> Self:
        """cos: y = cos(a), elementwise. Gradient: d/da = -g * sin(a)."""
        return self._operations["cos"](self)

    def tan(self) -> Self:
        """tan: y = tan(a), elementwise. Gradient: d/da = g * (1 + y * y)."""
        return self._operations["tan"](self)

    def sinh(self) -> Self:
        """sinh: y = sinh(a), elementwise. Gradient: d/da = g * cosh(a)."""
        return self._operations["sinh"](self)

    def cosh(self) -> Self:
        """cosh: y = cosh(a), elementwise. Gradient: d/da = g * sinh(a)."""
        return self._operations["cosh"](self)

    def tanh(self) -> Self:
        """tanh: y = tanh(a), elementwise. Gradient: d/da = g * (1 - y * y)."""
        return self._operations["tanh"](self)

    def atan(self) -> Self:
        """atan: y = atan(a), elementwise. Gradient: d/da = g / (1 + a * a)."""
        return self._operations["atan"](self)

    def atan2(self, b: Any) -> Self:
        """atan2: y = atan2(a, b), elementwise. Gradient: d/da = g * b / (a * a + b * b); d/db = -g * a / (a * a + b
        * b).
        """
        return self._operations["atan2"](self, b)

    def erf(self) -> Self:
        """erf: y = erf(a), elementwise. Gradient: d/da = g * 1.1283791670955126 * exp(-a * a)."""
        return self._operations["erf"](self)

    def asin(self) -> Self:
        """asin: y = asin(a), elementwise. Gradient: d/da = g / sqrt((1 - a) * (1 + a))."""
        return self._operations["asin"](self)

    def acos(self) -> Self:
        """acos: y = acos(a), elementwise. Gradient: d/da = -g / sqrt((1 - a) * (1 + a))."""
        return self._operations["acos"](self)

    def asinh(self) -> Self:
        """asinh: y = asinh(a), elementwise. Gradient: d/da = g / hypot(a, 1)."""
        return self._operations["asinh"](self)

    def acosh(self) -> Self:
        """acosh: y = acosh(a), elementwise. Gradient: d/da = g / sqrt((a - 1) * (a + 1))."""
        return self._operations["acosh"](self)

    def atanh(self) -> Self:
        """atanh: y = atanh(a), elementwise. Gradient: d/da = g / ((1 - a) * (1 + a))."""
        return self._operations["atanh"](self)

    def exp2(self) -> Self:
        """exp2: y = exp2(a), elementwise. Gradient: d/da = g * y * 0.6931471805599453."""
        return self._operations["exp2"](self)

    def hypot(self, b: Any) -> Self:
        """hypot: y = hypot(a, b), elementwise. Gradient: d/da = g * a / y; d/db = g * b / y."""
        return self._operations["hypot"](self, b)

    def copysign(self, b: Any) -> Self:
        """copysign: y = copysign(a, b), elementwise. Gradient: d/da = where(a == 0, 0, g * (y / a)); d/db = 0 * g."""
        return self._operations["copysign"](self, b)

    def logaddexp(self, b: Any) -> Self:
        """logaddexp: y = where(a == b, a + 0.6931471805599453, LARGER(a, b) + log1p(exp(-abs(a - b)))), elementwise.
        Gradient: d/da = where(a == b, 0.5 * g, g / (1 + exp(b - a))); d/db = where(a == b, 0.5 * g, g / (1 +
        exp(a - b))).
        """
        return self._operations["logaddexp"](self, b)

    def logaddexp2(self, b: Any) -> Self:
        """logaddexp2: y = where(a == b, a + 1, LARGER(a, b) + 1.4426950408889634 * log1p(exp2(-abs(a - b)))),
        elementwise. Gradient: d/da = where(a == b, 0.5 * g, g / (1 + exp2(b - a))); d/db = where(a == b, 0.5 * g,
        g / (1 + exp2(a - b))).
        """
        return self._operations["logaddexp2"](self, b)

    def xlogy(self, b: Any) -> Self:
        """xlogy: y = where(b != b, b, where(a == 0, 0, a * log(b))), elementwise. Gradient: d/da = where(a == 0,
        where(b <= 0, 0, g * log(b)), g * log(b)); d/db = g * a / b.
        """
        return self._operations["xlogy"](self, b)

    def sinc(self) -> Self:
        """sinc: y = where(a == 0, 1, sin(3.141592653589793 * a) / (3.141592653589793 * a)), elementwise. Gradient:
        d/da = where(a == 0, 0, g * (cos(3.141592653589793 * a) - y) / a).
        """
        return self._operations["sinc"](self)

    def logit(self) -> Self:
        """logit: y = log(a / (1 - a)), elementwise. Gradient: d/da = g / (a * (1 - a))."""
        return self._operations["logit"](self)

    def deg2rad(self) -> Self:
        """deg2rad: y = a * 0.017453292519943295, elementwise. Gradient: d/da = g * 0.017453292519943295."""
        return self._operations["deg2rad"](self)

    def rad2deg(self) -> Self:
        """rad2deg: y = a * 57.29577951308232, elementwise. Gradient: d/da = g * 57.29577951308232."""
        return self._operations["rad2deg"](self)

    def erfc(self) -> Self:
        """erfc: y = erfc(a), elementwise. Gradient: d/da = -g * 1.1283791670955126 * exp(-a * a)."""
        return self._operations["erfc"](self)

    def erfinv(self) -> Self:
        """erfinv: y = erfinv(a), elementwise. Gradient: d/da = g * 0.886226925452758 * exp(y * y)."""
        return self._operations["erfinv"](self)

    def lgamma(self) -> Self:
        """lgamma: y = lgamma(a), elementwise. Gradient: d/da = g * PSI(a)."""
        return self._operations["lgamma"](self)

    def digamma(self) -> Self:
        """digamma: y = PSI(a), elementwise. Gradient: d/da = g * TRIGAMMA(a)."""
        return self._operations["digamma"](self)

    def lerp(self, b: Any, c: Any) -> Self:
        """a + c * (b - a), and b exactly where c is 1; all three broadcast."""
        return self._operations["lerp"](self, b, c)

    def addcmul(self, b: Any, c: Any, value: float = 1) -> Self:
        """a + value * b * c; all three broadcast."""
        return self._operations["addcmul"](self, b, c, value)

    def addcdiv(self, b: Any, c: Any, value: float = 1) -> Self:
        """a + value * b / c; all three broadcast."""
        return self._operations["addcdiv"](self, b, c, value)

    def nan_to_num(self, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Self:
        """`a` with numbers for NaN and the infinities, these by default the ends of the dtype's range. Integers
        stay.
        """
        return self._operations["nan_to_num"](self, nan, posinf, neginf)

    def floor(self) -> Self:
        """floor: y = floor(a), elementwise. Gradient: d/da = 0 * g."""
        return self._operations["floor"](self)

    def ceil(self) -> Self:
        """ceil: y = ceil(a), elementwise. Gradient: d/da = 0 * g."""
        return self._operations["ceil"](self)

    def round(self) -> Self:
        """round: y = round(a), elementwise. Gradient: d/da = 0 * g."""
        return self._operations["round"](self)

    def trunc(self) -> Self:
        """trunc: y = trunc(a), elementwise. Gradient: d/da = 0 * g."""
        return self._operations["trunc"](self)

    def frac(self) -> Self:
        """frac: y = a - trunc(a), elementwise. Gradient: d/da = g."""
        return self._operations["frac"](self)

    def relu(self) -> Self:
        """relu: y = where(a < 0, 0, a), elementwise. Gradient: d/da = where(y > 0, g, 0 * y)."""
        return self._operations["relu"](self)

    def leaky_relu(self, slope: float = 0.01) -> Self:
        """a where a >= 0, else slope * a."""
        return self._operations["leaky_relu"](self, slope)

    def prelu(self, weight: Any | float) -> Self:
        """a where a >= 0, else weight * a. Shapes: a (N, C, ...), weight one number or (C,) along axis 1."""
        return self._operations["prelu"](self, weight)

    def elu(self, alpha: float = 1.0) -> Self:
        """a where a > 0, else alpha * (exp(a) - 1)."""
        return self._operations["elu"](self, alpha)

    def selu(self) -> Self:
        """selu: y = 1.0507009873554805 * where(a > 0, a, 1.6732632423543772 * expm1(a)), elementwise. Gradient: d/da
        = 1.0507009873554805 * where(a > 0, g, g * 1.6732632423543772 * exp(a)).
        """
        return self._operations["selu"](self)

    def sigmoid(self) -> Self:
        """sigmoid: y = 1 / (1 + exp(-a)), elementwise. Gradient: d/da = g * y * (1 - y)."""
        return self._operations["sigmoid"](self)

    def log_sigmoid(self) -> Self:
        """log_sigmoid: y = -(where(a < 0, -a, 0) + log1p(exp(-abs(a)))), elementwise. Gradient: d/da = g / (1 +
        exp(a)).
        """
        return self._operations["log_sigmoid"](self)

    def silu(self) -> Self:
        """silu: y = a / (1 + exp(-a)), elementwise. Gradient: d/da = g * (1 + a * (1 - 1 / (1 + exp(-a)))) * (1 / (1
        + exp(-a))).
        """
        return self._operations["silu"](self)

    def gelu(self, approximate: str = "none") -> Self:
        """a * Phi(a) with the normal distribution's Phi: exact ("none") or by tanh ("tanh"). arXiv:1606.08415."""
        return self._operations["gelu"](self, approximate)

    def softplus(self) -> Self:
        """softplus: y = where(a > 0, a, 0) + log1p(exp(-abs(a))), elementwise. Gradient: d/da = g * (1 / (1 +
        exp(-a))).
        """
        return self._operations["softplus"](self)

    def mish(self) -> Self:
        """mish: y = a * tanh(where(a > 0, a, 0) + log1p(exp(-abs(a)))), elementwise. Gradient: d/da = g *
        (tanh(where(a > 0, a, 0) + log1p(exp(-abs(a)))) + a * (1 - tanh(where(a > 0, a, 0) + log1p(exp(-abs(a))))
        * tanh(where(a > 0, a, 0) + log1p(exp(-abs(a))))) * (1 / (1 + exp(-a)))).
        """
        return self._operations["mish"](self)

    def softsign(self) -> Self:
        """softsign: y = a / (1 + abs(a)), elementwise. Gradient: d/da = g / ((1 + abs(a)) * (1 + abs(a)))."""
        return self._operations["softsign"](self)

    def hard_sigmoid(self) -> Self:
        """hard_sigmoid: y = where(a < -3, 0, where(a > 3, 1, a * 0.16666666666666666 + 0.5)), elementwise. Gradient:
        d/da = where(a < -3, 0, where(a > 3, 0, g * 0.16666666666666666)).
        """
        return self._operations["hard_sigmoid"](self)

    def hard_swish(self) -> Self:
        """hard_swish: y = where(a < -3, 0, where(a > 3, a, a * (a + 3) * 0.16666666666666666)), elementwise.
        Gradient: d/da = where(a < -3, 0, where(a > 3, g, g * (2 * a + 3) * 0.16666666666666666)).
        """
        return self._operations["hard_swish"](self)

    def celu(self, alpha: float = 1.0) -> Self:
        """a where a > 0, else alpha * (exp(a / alpha) - 1). Source: Barron 2017, arXiv:1704.07483."""
        return self._operations["celu"](self, alpha)

    def softshrink(self, lambd: float = 0.5) -> Self:
        """`a` moved towards 0 by lambd, and 0 within lambd of it."""
        return self._operations["softshrink"](self, lambd)

    def hardshrink(self, lambd: float = 0.5) -> Self:
        """`a`, and 0 within lambd of it."""
        return self._operations["hardshrink"](self, lambd)

    def tanhshrink(self) -> Self:
        """tanhshrink: y = a - tanh(a), elementwise. Gradient: d/da = g * tanh(a) * tanh(a)."""
        return self._operations["tanhshrink"](self)

    def threshold(self, threshold: float, value: float) -> Self:
        """`a` where it is above `threshold`, else `value`."""
        return self._operations["threshold"](self, threshold, value)

    def hard_tanh(self) -> Self:
        """hard_tanh: y = where(a < -1, -1, where(a > 1, 1, a)), elementwise. Gradient: d/da = where(a < -1, 0,
        where(a > 1, 0, g)).
        """
        return self._operations["hard_tanh"](self)

    def reshape(self, *shape: Any) -> Self:
        """The elements in row-major order as `shape` (one length may be -1); copies only when strides demand it."""
        return self._operations["reshape"](self, *shape)

    def permute(self, *axes: Any) -> Self:
        """The axes in the given order, as NumPy's transpose(axes); without arguments they are reversed."""
        return self._operations["permute"](self, *axes)

    def expand(self, *shape: Any) -> Self:
        """Axes of length one repeated to `shape` without a copy; -1 keeps a length."""
        return self._operations["expand"](self, *shape)

    def squeeze(self, axis: Any = None, *, dim: Any | None = None) -> Self:
        """Without the axes of length one (all of them, or those named; a named axis must have length one)."""
        if dim is not None:
            axis = axis_of("squeeze", axis, None, dim)
        return self._operations["squeeze"](self, axis)

    def unsqueeze(self, axis: int | None = None, *, dim: int | None = None) -> Self:
        """With a new axis of length one before `axis`."""
        if dim is not None:
            axis = axis_of("unsqueeze", axis, None, dim)
        return self._operations["unsqueeze"](self, axis)

    def __getitem__(self, key: Any) -> Self:
        return self._operations["getitem"](self, key)

    def astype(self, dtype: Any) -> Self:
        """The values as `dtype`; itself when it already is. Floats go to integers by truncation, as in NumPy."""
        return self._operations["astype"](self, dtype)

    def to(self, queue: Any) -> Self:
        """`x` on another device (a queue, a handle, a device's name), or as another dtype; the gradient travels
        back.
        """
        return self._operations["to"](self, queue)

    def split(self, sizes: int | Sequence[int], axis: int = 0, *, dim: int | None = None) -> tuple[Self, ...]:
        """Views of consecutive parts along `axis`: parts of the given size (the last may be shorter) or of given
        sizes.
        """
        if dim is not None:
            axis = axis_of("split", axis, 0, dim)
        return self._several["split"](self, sizes, axis)

    def flip(self, axis: Any = None, *, dims: Any | None = None) -> Self:
        """A copy reversed along `axis` (an axis, several, or all)."""
        if dims is not None:
            axis = axis_of("flip", axis, None, dims)
        return self._operations["flip"](self, axis)

    def roll(self, shift: int | Sequence[int], axis: Any = None, *, dims: Any | None = None) -> Self:
        """A copy moved by `shift` along `axis`, what falls off the end coming back at the start; without an axis,
        flat.
        """
        if dims is not None:
            axis = axis_of("roll", axis, None, dims)
        return self._operations["roll"](self, shift, axis)

    def sum(self, axis: Axis = None, keepdims: bool = False, *, dim: Axis = None, keepdim: bool = False) -> Self:
        """Sum over `axis` (all axes when None), float32 in blocks; integers and booleans give int64."""
        if dim is not None:
            axis = axis_of("sum", axis, None, dim)
        return self._operations["sum"](self, axis, keepdims or keepdim)

    def prod(self, axis: Axis = None, keepdims: bool = False, *, dim: Axis = None, keepdim: bool = False) -> Self:
        """Product over `axis`; integers and booleans give int64. Its gradient is exact where elements are zero."""
        if dim is not None:
            axis = axis_of("prod", axis, None, dim)
        return self._operations["prod"](self, axis, keepdims or keepdim)

    def max(self, axis: Axis = None, keepdims: bool = False, *, dim: Axis = None, keepdim: bool = False) -> Self:
        """Largest element over `axis`; NaN wins. Raises ShapeError over no elements."""
        if dim is not None:
            axis = axis_of("max", axis, None, dim)
        return self._operations["max"](self, axis, keepdims or keepdim)

    def min(self, axis: Axis = None, keepdims: bool = False, *, dim: Axis = None, keepdim: bool = False) -> Self:
        """Smallest element over `axis`; NaN wins. Raises ShapeError over no elements."""
        if dim is not None:
            axis = axis_of("min", axis, None, dim)
        return self._operations["min"](self, axis, keepdims or keepdim)

    def mean(self, axis: Axis = None, keepdims: bool = False, *, dim: Axis = None, keepdim: bool = False) -> Self:
        """sum / count over `axis`; NaN over no elements. Integers and booleans give floats."""
        if dim is not None:
            axis = axis_of("mean", axis, None, dim)
        return self._operations["mean"](self, axis, keepdims or keepdim)

    def var(
        self,
        axis: Axis = None,
        keepdims: bool = False,
        correction: float = 0,
        *,
        dim: Axis = None,
        keepdim: bool = False,
    ) -> Self:
        """sum((x - mean)^2) / (n - correction) over `axis`, by two passes; NaN over no elements."""
        if dim is not None:
            axis = axis_of("var", axis, None, dim)
        return self._operations["var"](self, axis, keepdims or keepdim, correction)

    def std(
        self,
        axis: Axis = None,
        keepdims: bool = False,
        correction: float = 0,
        *,
        dim: Axis = None,
        keepdim: bool = False,
    ) -> Self:
        """Square root of `var`; the gradient is 0 where it is 0."""
        if dim is not None:
            axis = axis_of("std", axis, None, dim)
        return self._operations["std"](self, axis, keepdims or keepdim, correction)

    def logsumexp(self, axis: Axis = None, keepdims: bool = False, *, dim: Axis = None, keepdim: bool = False) -> Self:
        """log(sum(exp(x))) over `axis` without overflow. All -inf (or nothing) gives -inf, any +inf gives +inf."""
        if dim is not None:
            axis = axis_of("logsumexp", axis, None, dim)
        return self._operations["logsumexp"](self, axis, keepdims or keepdim)

    def norm(
        self, ord: float = 2, axis: Axis = None, keepdims: bool = False, *, dim: Axis = None, keepdim: bool = False
    ) -> Self:
        """Norm of the elements over `axis`: sum |x| (ord 1), sqrt(sum x^2) (ord 2), max |x| (ord inf)."""
        if dim is not None:
            axis = axis_of("norm", axis, None, dim)
        return self._operations["norm"](self, ord, axis, keepdims or keepdim)

    def any(self, axis: Axis = None, keepdims: bool = False, *, dim: Axis = None, keepdim: bool = False) -> Self:
        """Whether some element over `axis` is not zero (NaN is not zero); bool."""
        if dim is not None:
            axis = axis_of("any", axis, None, dim)
        return self._operations["any"](self, axis, keepdims or keepdim)

    def all(self, axis: Axis = None, keepdims: bool = False, *, dim: Axis = None, keepdim: bool = False) -> Self:
        """Whether every element over `axis` is not zero; bool."""
        if dim is not None:
            axis = axis_of("all", axis, None, dim)
        return self._operations["all"](self, axis, keepdims or keepdim)

    def argmax(
        self, axis: int | None = None, keepdims: bool = False, *, dim: int | None = None, keepdim: bool = False
    ) -> Self:
        """Position of the first largest element along `axis` (None: of the flattened tensor); int64. NaN comes
        first.
        """
        if dim is not None:
            axis = axis_of("argmax", axis, None, dim)
        return self._operations["argmax"](self, axis, keepdims or keepdim)

    def argmin(
        self, axis: int | None = None, keepdims: bool = False, *, dim: int | None = None, keepdim: bool = False
    ) -> Self:
        """Position of the first smallest element along `axis` (None: of the flattened tensor); int64. NaN comes
        first.
        """
        if dim is not None:
            axis = axis_of("argmin", axis, None, dim)
        return self._operations["argmin"](self, axis, keepdims or keepdim)

    def take(self, index: Any, axis: int = 0, *, dim: int | None = None) -> Self:
        """Whole slices of `x` by position: y[.., i.., ..] = x[.., index[i..], ..]."""
        if dim is not None:
            axis = axis_of("take", axis, 0, dim)
        return self._operations["take"](self, index, axis)

    def index_select(self, index: Any, axis: int = 0, *, dim: int | None = None) -> Self:
        """`take` with an index of one axis."""
        index, axis = index_before_axis(index, axis)
        if dim is not None:
            axis = axis_of("index_select", axis, 0, dim)
        return self._operations["index_select"](self, index, axis)

    def gather(self, index: Any, axis: int | None = None, *, dim: int | None = None) -> Self:
        """Elements of `x` along `axis`, one per element of `index`: y[i, j, k] = x[index[i, j, k], j, k] for axis 0."""
        index, axis = index_before_axis(index, axis)
        axis = needed_axis("gather", axis, dim)
        return self._operations["gather"](self, index, axis)

    def scatter_add(self, index: Any, src: Any, axis: int | None = None, *, dim: int | None = None) -> Self:
        """`x` with `src` added along `axis`: y[index[i, j, k], j, k] += src[i, j, k] for axis 0."""
        index, src, axis = index_before_axis(index, src, axis)
        axis = needed_axis("scatter_add", axis, dim)
        return self._operations["scatter_add"](self, index, src, axis)

    def scatter(self, index: Any, src: Any, axis: int | None = None, *, dim: int | None = None) -> Self:
        """`x` with elements of `src` put along `axis`: y[index[i, j, k], j, k] = src[i, j, k] for axis 0."""
        index, src, axis = index_before_axis(index, src, axis)
        axis = needed_axis("scatter", axis, dim)
        return self._operations["scatter"](self, index, src, axis)

    def scatter_reduce(
        self,
        index: Any,
        src: Any,
        axis: int | None = None,
        reduce: str = "sum",
        include_self: bool = True,
        *,
        dim: int | None = None,
    ) -> Self:
        """`x` with what `src` puts at one place along `axis` combined: "sum", "prod", "mean", "amax" or "amin"."""
        index, src, axis = index_before_axis(index, src, axis)
        axis = needed_axis("scatter_reduce", axis, dim)
        return self._operations["scatter_reduce"](self, index, src, axis, reduce, include_self)

    def index_copy(self, index: Any, src: Any, axis: int = 0, *, dim: int | None = None) -> Self:
        """`x` with slices of `src` put along `axis`: y[index[i]] = src[i] for axis 0."""
        index, src, axis = index_before_axis(index, src, axis)
        if dim is not None:
            axis = axis_of("index_copy", axis, 0, dim)
        return self._operations["index_copy"](self, index, src, axis)

    def index_add(self, index: Any, src: Any, axis: int = 0, alpha: float = 1, *, dim: int | None = None) -> Self:
        """`x` with `alpha` times slices of `src` added along `axis`: y[index[i]] += alpha * src[i] for axis 0."""
        index, src, axis = index_before_axis(index, src, axis)
        if dim is not None:
            axis = axis_of("index_add", axis, 0, dim)
        return self._operations["index_add"](self, index, src, axis, alpha)

    def masked_select(self, mask: Any) -> Self:
        """The elements of `x` where `mask` is true, in row-major order, as one axis; x and mask broadcast."""
        return self._operations["masked_select"](self, mask)

    def isin(self, values: Any) -> Self:
        """Whether each element of `x` equals one of `values` (any shape); bool. Compares all pairs, storing none."""
        return self._operations["isin"](self, values)

    def cumsum(self, axis: int | None = None, *, dim: int | None = None) -> Self:
        """y[k] = x[0] + ... + x[k] along `axis`; without an axis, of the flattened tensor, as in NumPy."""
        if dim is not None:
            axis = axis_of("cumsum", axis, None, dim)
        return self._operations["cumsum"](self, axis)

    def argsort(self, axis: int = -1, descending: bool = False, *, dim: int | None = None) -> Self:
        """Positions that sort `x` along `axis`, as int64: equal elements keep their order, NaN comes last."""
        if dim is not None:
            axis = axis_of("argsort", axis, -1, dim)
        return self._operations["argsort"](self, axis, descending)

    def histc(self, bins: int = 100, min: float = 0, max: float = 0) -> Self:
        """How many elements of `x` lie in each of `bins` of one width from `min` to `max`, in the dtype of x."""
        return self._operations["histc"](self, bins, min, max)

    def unique(
        self,
        sorted: bool = True,
        return_inverse: bool = False,
        return_counts: bool = False,
        axis: int | None = None,
        return_index: bool = False,
        *,
        dim: int | None = None,
    ) -> Self:
        """The different elements of `x` in rising order; with an axis, its different slices in that order."""
        if dim is not None:
            axis = axis_of("unique", axis, None, dim)
        return self._operations["unique"](self, sorted, return_inverse, return_counts, axis, return_index)

    def nonzero(self) -> Self:
        """The positions of the elements that are not zero, in row-major order: int64 (count, axes of x). NaN is not
        zero.
        """
        return self._operations["nonzero"](self)

    def argwhere(self) -> Self:
        """`nonzero` by its name in NumPy."""
        return self._operations["argwhere"](self)

    def softmax(self, axis: int = -1, *, dim: int | None = None) -> Self:
        """exp(x) / sum(exp(x)) along `axis`, with the maximum taken out first so that nothing overflows."""
        if dim is not None:
            axis = axis_of("softmax", axis, -1, dim)
        return self._operations["softmax"](self, axis)

    def log_softmax(self, axis: int = -1, *, dim: int | None = None) -> Self:
        """x - log(sum(exp(x))) along `axis`, without forming the softmax."""
        if dim is not None:
            axis = axis_of("log_softmax", axis, -1, dim)
        return self._operations["log_softmax"](self, axis)

    def matmul(self, b: Any) -> Self:
        """The matrix product by NumPy's rules."""
        return self._operations["matmul"](self, b)

    def __matmul__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["matmul"](self, other) if known else self._refuse("matmul", other)

    def __rmatmul__(self, other: Any) -> Self:
        known = isinstance(other, self._operands)
        return self._operations["matmul"](other, self) if known else self._refuse("matmul", other)

    def flatten(
        self, start_axis: int = 0, end_axis: int = -1, *, start_dim: int | None = None, end_dim: int | None = None
    ) -> Self:
        """Axes from `start_axis` to `end_axis` merged into one."""
        if start_dim is not None:
            start_axis = axis_of("flatten", start_axis, 0, start_dim)
        if end_dim is not None:
            end_axis = axis_of("flatten", end_axis, -1, end_dim)
        return self._operations["flatten"](self, start_axis, end_axis)

    def transpose(self, *axes: Any) -> Self:
        """Two axes exchanged when two are given for a tensor of any rank; else the same as `permute`."""
        return self._operations["transpose"](self, *axes)

    def chunk(self, chunks: int, axis: int = 0, *, dim: int | None = None) -> tuple[Self, ...]:
        """At most `chunks` views of equal size along `axis` (the last may be shorter)."""
        if dim is not None:
            axis = axis_of("chunk", axis, 0, dim)
        return self._several["chunk"](self, chunks, axis)

    def repeat(self, repeats: int, axis: int | None = None, *, dim: int | None = None) -> Self:
        """Each element `repeats` times in place along `axis` (NumPy's repeat); without an axis the tensor is
        flattened.
        """
        if dim is not None:
            axis = axis_of("repeat", axis, None, dim)
        return self._operations["repeat"](self, repeats, axis)

    def tile(self, repeats: int | Sequence[int]) -> Self:
        """The whole tensor `repeats[i]` times along axis i (NumPy's tile)."""
        return self._operations["tile"](self, repeats)

    def index_put(self, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Self:
        """A copy of `x` with x[indices] = values, or += where it accumulates: `indices` is a tensor for each leading
        axis.
        """
        return self._operations["index_put"](self, indices, values, accumulate)

    def masked_scatter(self, mask: Any, source: Any) -> Self:
        """`x` where `mask` (bool) is false, else the next element of `source`, in row-major order; x and mask
        broadcast.
        """
        return self._operations["masked_scatter"](self, mask, source)

    def repeat_interleave(
        self, repeats: Any, axis: int | None = None, output_size: int | None = None, *, dim: int | None = None
    ) -> Self:
        """Each element `repeats` times in place along `axis`; without one x is flattened. `repeats`: a number, or
        one each.
        """
        if dim is not None:
            axis = axis_of("repeat_interleave", axis, None, dim)
        return self._operations["repeat_interleave"](self, repeats, axis, output_size)

    def sort(self, axis: int = -1, descending: bool = False, *, dim: int | None = None) -> Self:
        """`x` sorted along `axis`, NaN last in either direction."""
        if dim is not None:
            axis = axis_of("sort", axis, -1, dim)
        return self._operations["sort"](self, axis, descending)

    def topk(self, k: int, axis: int = -1, largest: bool = True, *, dim: int | None = None) -> tuple[Self, ...]:
        """The `k` largest (or smallest) elements along `axis` in order, and their positions (int64)."""
        if dim is not None:
            axis = axis_of("topk", axis, -1, dim)
        return self._several["topk"](self, k, axis, largest)

    def masked_fill(self, mask: Any, value: Any) -> Self:
        """`value` where `mask` (bool) is true, else `x`, in the dtype of x. All broadcast; the value is a number
        or a tensor.
        """
        return self._operations["masked_fill"](self, mask, value)

    def take_along_dim(self, indices: Any, axis: int | None = None, *, dim: int | None = None) -> Self:
        """Elements of `x` along `axis`, one per element of `indices`: `gather` where the other axes broadcast."""
        if dim is not None:
            axis = axis_of("take_along_dim", axis, None, dim)
        return self._operations["take_along_dim"](self, indices, axis)
