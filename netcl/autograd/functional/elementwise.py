"""Elementwise ops on nodes. Written by tools/generate_ops.py from the records of ops; do not edit."""

from __future__ import annotations

from typing import NoReturn

from netcl.autograd.node import Node, Operand, Value
from netcl.autograd.op import apply_one

__all__ = [
    "abs",
    "acos",
    "acosh",
    "add",
    "addcdiv",
    "addcmul",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "ceil",
    "celu",
    "copysign",
    "cos",
    "cosh",
    "deg2rad",
    "digamma",
    "div",
    "elu",
    "eq",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "floor_divide",
    "fmod",
    "frac",
    "ge",
    "gt",
    "hard_sigmoid",
    "hard_swish",
    "hard_tanh",
    "hardshrink",
    "hypot",
    "isfinite",
    "isinf",
    "isnan",
    "le",
    "leaky_relu",
    "left_shift",
    "lerp",
    "lgamma",
    "log",
    "log1p",
    "log2",
    "log10",
    "log_sigmoid",
    "logaddexp",
    "logaddexp2",
    "logical_and",
    "logical_not",
    "logical_or",
    "logit",
    "lt",
    "maximum",
    "minimum",
    "mish",
    "mul",
    "ne",
    "neg",
    "rad2deg",
    "reciprocal",
    "relu",
    "remainder",
    "right_shift",
    "round",
    "rsqrt",
    "selu",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinc",
    "sinh",
    "softplus",
    "softshrink",
    "softsign",
    "sqrt",
    "square",
    "sub",
    "swish",
    "tan",
    "tanh",
    "tanhshrink",
    "threshold",
    "trunc",
    "trunc_divide",
    "xlogy",
]


def add(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """add: y = a + b, elementwise. Gradient: d/da = g; d/db = g."""
    return apply_one("add", a, b, **unknown)


def sub(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """sub: y = a - b, elementwise. Gradient: d/da = g; d/db = -g."""
    return apply_one("sub", a, b, **unknown)


def mul(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """mul: y = a * b, elementwise. Gradient: d/da = g * b; d/db = g * a."""
    return apply_one("mul", a, b, **unknown)


def div(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """div: y = a / b, elementwise. Gradient: d/da = g / b; d/db = -g * y / b."""
    return apply_one("div", a, b, **unknown)


def neg(a: Value, **unknown: NoReturn) -> Node:
    """neg: y = -a, elementwise. Gradient: d/da = -g."""
    return apply_one("neg", a, **unknown)


def abs(a: Value, **unknown: NoReturn) -> Node:
    """abs: y = abs(a), elementwise. Gradient: d/da = where(a > 0, g, where(a < 0, -g, 0 * g))."""
    return apply_one("abs", a, **unknown)


def sign(a: Value, **unknown: NoReturn) -> Node:
    """sign: y = where(a > 0, 1, where(a < 0, -1, a)), elementwise. Gradient: d/da = 0 * g."""
    return apply_one("sign", a, **unknown)


def square(a: Value, **unknown: NoReturn) -> Node:
    """square: y = a * a, elementwise. Gradient: d/da = 2 * g * a."""
    return apply_one("square", a, **unknown)


def reciprocal(a: Value, **unknown: NoReturn) -> Node:
    """reciprocal: y = 1 / a, elementwise. Gradient: d/da = -g * y * y."""
    return apply_one("reciprocal", a, **unknown)


def remainder(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """remainder: y = WITH_SIGN_OF(b, fmod(a, b)), elementwise. Gradient: d/da = g; d/db = -g * floor(a / b)."""
    return apply_one("remainder", a, b, **unknown)


def fmod(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """fmod: y = fmod(a, b), elementwise. Gradient: d/da = g; d/db = -g * trunc(a / b)."""
    return apply_one("fmod", a, b, **unknown)


def floor_divide(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """floor_divide: y = FLOOR_QUOTIENT(a, b, fmod(a, b)), elementwise. Gradient: d/da = 0 * g; d/db = 0 * g."""
    return apply_one("floor_divide", a, b, **unknown)


def trunc_divide(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """trunc_divide: y = where(b == 0, quotient(a, b), round(quotient(a - fmod(a, b), b))), elementwise. Gradient:
    d/da = 0 * g; d/db = 0 * g.
    """
    return apply_one("trunc_divide", a, b, **unknown)


def maximum(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """maximum: y = where(a > b, a, where(a == a, b, a)), elementwise. Gradient: d/da = where(a > b, g, where(a == b,
    0.5 * g, 0)); d/db = where(b > a, g, where(a == b, 0.5 * g, 0)).
    """
    return apply_one("maximum", a, b, **unknown)


def minimum(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """minimum: y = where(a < b, a, where(a == a, b, a)), elementwise. Gradient: d/da = where(a < b, g, where(a == b,
    0.5 * g, 0)); d/db = where(b < a, g, where(a == b, 0.5 * g, 0)).
    """
    return apply_one("minimum", a, b, **unknown)


def lt(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """lt: y = where(a < b, 1, 0), elementwise."""
    return apply_one("lt", a, b, **unknown)


def le(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """le: y = where(a <= b, 1, 0), elementwise."""
    return apply_one("le", a, b, **unknown)


def gt(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """gt: y = where(a > b, 1, 0), elementwise."""
    return apply_one("gt", a, b, **unknown)


def ge(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """ge: y = where(a >= b, 1, 0), elementwise."""
    return apply_one("ge", a, b, **unknown)


def eq(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """eq: y = where(a == b, 1, 0), elementwise."""
    return apply_one("eq", a, b, **unknown)


def ne(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """ne: y = where(a != b, 1, 0), elementwise."""
    return apply_one("ne", a, b, **unknown)


def logical_and(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """logical_and: y = where(a != 0, where(b != 0, 1, 0), 0), elementwise."""
    return apply_one("logical_and", a, b, **unknown)


def logical_or(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """logical_or: y = where(a != 0, 1, where(b != 0, 1, 0)), elementwise."""
    return apply_one("logical_or", a, b, **unknown)


def logical_not(a: Value, **unknown: NoReturn) -> Node:
    """logical_not: y = where(a == 0, 1, 0), elementwise."""
    return apply_one("logical_not", a, **unknown)


def bitwise_and(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """bitwise_and: y = a & b, elementwise."""
    return apply_one("bitwise_and", a, b, **unknown)


def bitwise_or(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """bitwise_or: y = a | b, elementwise."""
    return apply_one("bitwise_or", a, b, **unknown)


def bitwise_xor(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """bitwise_xor: y = a ^ b, elementwise."""
    return apply_one("bitwise_xor", a, b, **unknown)


def bitwise_not(a: Value, **unknown: NoReturn) -> Node:
    """bitwise_not: y = ~a, elementwise."""
    return apply_one("bitwise_not", a, **unknown)


def left_shift(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """left_shift: y = lshift(a, b), elementwise."""
    return apply_one("left_shift", a, b, **unknown)


def right_shift(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """right_shift: y = rshift(a, b), elementwise."""
    return apply_one("right_shift", a, b, **unknown)


def isnan(a: Value, **unknown: NoReturn) -> Node:
    """isnan: y = where(a != a, 1, 0), elementwise."""
    return apply_one("isnan", a, **unknown)


def isfinite(a: Value, **unknown: NoReturn) -> Node:
    """isfinite: y = where(a - a == 0, 1, 0), elementwise."""
    return apply_one("isfinite", a, **unknown)


def isinf(a: Value, **unknown: NoReturn) -> Node:
    """isinf: y = where(a == a, where(a - a == 0, 0, 1), 0), elementwise."""
    return apply_one("isinf", a, **unknown)


def exp(a: Value, **unknown: NoReturn) -> Node:
    """exp: y = exp(a), elementwise. Gradient: d/da = g * y."""
    return apply_one("exp", a, **unknown)


def expm1(a: Value, **unknown: NoReturn) -> Node:
    """expm1: y = expm1(a), elementwise. Gradient: d/da = g * (y + 1)."""
    return apply_one("expm1", a, **unknown)


def log(a: Value, **unknown: NoReturn) -> Node:
    """log: y = log(a), elementwise. Gradient: d/da = g / a."""
    return apply_one("log", a, **unknown)


def log2(a: Value, **unknown: NoReturn) -> Node:
    """log2: y = log(a) * 1.4426950408889634, elementwise. Gradient: d/da = g * 1.4426950408889634 / a."""
    return apply_one("log2", a, **unknown)


def log10(a: Value, **unknown: NoReturn) -> Node:
    """log10: y = log(a) * 0.4342944819032518, elementwise. Gradient: d/da = g * 0.4342944819032518 / a."""
    return apply_one("log10", a, **unknown)


def log1p(a: Value, **unknown: NoReturn) -> Node:
    """log1p: y = log1p(a), elementwise. Gradient: d/da = g / (1 + a)."""
    return apply_one("log1p", a, **unknown)


def sqrt(a: Value, **unknown: NoReturn) -> Node:
    """sqrt: y = sqrt(a), elementwise. Gradient: d/da = 0.5 * g / y."""
    return apply_one("sqrt", a, **unknown)


def rsqrt(a: Value, **unknown: NoReturn) -> Node:
    """rsqrt: y = 1 / sqrt(a), elementwise. Gradient: d/da = -0.5 * g * y * y * y."""
    return apply_one("rsqrt", a, **unknown)


def sin(a: Value, **unknown: NoReturn) -> Node:
    """sin: y = sin(a), elementwise. Gradient: d/da = g * cos(a)."""
    return apply_one("sin", a, **unknown)


def cos(a: Value, **unknown: NoReturn) -> Node:
    """cos: y = cos(a), elementwise. Gradient: d/da = -g * sin(a)."""
    return apply_one("cos", a, **unknown)


def tan(a: Value, **unknown: NoReturn) -> Node:
    """tan: y = tan(a), elementwise. Gradient: d/da = g * (1 + y * y)."""
    return apply_one("tan", a, **unknown)


def sinh(a: Value, **unknown: NoReturn) -> Node:
    """sinh: y = sinh(a), elementwise. Gradient: d/da = g * cosh(a)."""
    return apply_one("sinh", a, **unknown)


def cosh(a: Value, **unknown: NoReturn) -> Node:
    """cosh: y = cosh(a), elementwise. Gradient: d/da = g * sinh(a)."""
    return apply_one("cosh", a, **unknown)


def tanh(a: Value, **unknown: NoReturn) -> Node:
    """tanh: y = tanh(a), elementwise. Gradient: d/da = g * (1 - y * y)."""
    return apply_one("tanh", a, **unknown)


def atan(a: Value, **unknown: NoReturn) -> Node:
    """atan: y = atan(a), elementwise. Gradient: d/da = g / (1 + a * a)."""
    return apply_one("atan", a, **unknown)


def atan2(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """atan2: y = atan2(a, b), elementwise. Gradient: d/da = g * b / (a * a + b * b); d/db = -g * a / (a * a + b *
    b).
    """
    return apply_one("atan2", a, b, **unknown)


def erf(a: Value, **unknown: NoReturn) -> Node:
    """erf: y = erf(a), elementwise. Gradient: d/da = g * 1.1283791670955126 * exp(-a * a)."""
    return apply_one("erf", a, **unknown)


def asin(a: Value, **unknown: NoReturn) -> Node:
    """asin: y = asin(a), elementwise. Gradient: d/da = g / sqrt((1 - a) * (1 + a))."""
    return apply_one("asin", a, **unknown)


def acos(a: Value, **unknown: NoReturn) -> Node:
    """acos: y = acos(a), elementwise. Gradient: d/da = -g / sqrt((1 - a) * (1 + a))."""
    return apply_one("acos", a, **unknown)


def asinh(a: Value, **unknown: NoReturn) -> Node:
    """asinh: y = asinh(a), elementwise. Gradient: d/da = g / hypot(a, 1)."""
    return apply_one("asinh", a, **unknown)


def acosh(a: Value, **unknown: NoReturn) -> Node:
    """acosh: y = acosh(a), elementwise. Gradient: d/da = g / sqrt((a - 1) * (a + 1))."""
    return apply_one("acosh", a, **unknown)


def atanh(a: Value, **unknown: NoReturn) -> Node:
    """atanh: y = atanh(a), elementwise. Gradient: d/da = g / ((1 - a) * (1 + a))."""
    return apply_one("atanh", a, **unknown)


def exp2(a: Value, **unknown: NoReturn) -> Node:
    """exp2: y = exp2(a), elementwise. Gradient: d/da = g * y * 0.6931471805599453."""
    return apply_one("exp2", a, **unknown)


def hypot(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """hypot: y = hypot(a, b), elementwise. Gradient: d/da = g * a / y; d/db = g * b / y."""
    return apply_one("hypot", a, b, **unknown)


def copysign(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """copysign: y = copysign(a, b), elementwise. Gradient: d/da = where(a == 0, 0, g * (y / a)); d/db = 0 * g."""
    return apply_one("copysign", a, b, **unknown)


def logaddexp(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """logaddexp: y = where(a == b, a + 0.6931471805599453, LARGER(a, b) + log1p(exp(-abs(a - b)))), elementwise.
    Gradient: d/da = where(a == b, 0.5 * g, g / (1 + exp(b - a))); d/db = where(a == b, 0.5 * g, g / (1 + exp(a -
    b))).
    """
    return apply_one("logaddexp", a, b, **unknown)


def logaddexp2(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """logaddexp2: y = where(a == b, a + 1, LARGER(a, b) + 1.4426950408889634 * log1p(exp2(-abs(a - b)))),
    elementwise. Gradient: d/da = where(a == b, 0.5 * g, g / (1 + exp2(b - a))); d/db = where(a == b, 0.5 * g, g /
    (1 + exp2(a - b))).
    """
    return apply_one("logaddexp2", a, b, **unknown)


def xlogy(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """xlogy: y = where(b != b, b, where(a == 0, 0, a * log(b))), elementwise. Gradient: d/da = where(a == 0, where(b
    <= 0, 0, g * log(b)), g * log(b)); d/db = g * a / b.
    """
    return apply_one("xlogy", a, b, **unknown)


def sinc(a: Value, **unknown: NoReturn) -> Node:
    """sinc: y = where(a == 0, 1, sin(3.141592653589793 * a) / (3.141592653589793 * a)), elementwise. Gradient: d/da
    = where(a == 0, 0, g * (cos(3.141592653589793 * a) - y) / a).
    """
    return apply_one("sinc", a, **unknown)


def logit(a: Value, **unknown: NoReturn) -> Node:
    """logit: y = log(a / (1 - a)), elementwise. Gradient: d/da = g / (a * (1 - a))."""
    return apply_one("logit", a, **unknown)


def deg2rad(a: Value, **unknown: NoReturn) -> Node:
    """deg2rad: y = a * 0.017453292519943295, elementwise. Gradient: d/da = g * 0.017453292519943295."""
    return apply_one("deg2rad", a, **unknown)


def rad2deg(a: Value, **unknown: NoReturn) -> Node:
    """rad2deg: y = a * 57.29577951308232, elementwise. Gradient: d/da = g * 57.29577951308232."""
    return apply_one("rad2deg", a, **unknown)


def erfc(a: Value, **unknown: NoReturn) -> Node:
    """erfc: y = erfc(a), elementwise. Gradient: d/da = -g * 1.1283791670955126 * exp(-a * a)."""
    return apply_one("erfc", a, **unknown)


def erfinv(a: Value, **unknown: NoReturn) -> Node:
    """erfinv: y = erfinv(a), elementwise. Gradient: d/da = g * 0.886226925452758 * exp(y * y)."""
    return apply_one("erfinv", a, **unknown)


def lgamma(a: Value, **unknown: NoReturn) -> Node:
    """lgamma: y = lgamma(a), elementwise. Gradient: d/da = g * PSI(a)."""
    return apply_one("lgamma", a, **unknown)


def digamma(a: Value, **unknown: NoReturn) -> Node:
    """digamma: y = PSI(a), elementwise. Gradient: d/da = g * TRIGAMMA(a)."""
    return apply_one("digamma", a, **unknown)


def lerp(a: Operand, b: Operand, c: Operand, **unknown: NoReturn) -> Node:
    """a + c * (b - a), and b exactly where c is 1; all three broadcast."""
    return apply_one("lerp", a, b, c, **unknown)


def addcmul(a: Operand, b: Operand, c: Operand, value: float = 1, **unknown: NoReturn) -> Node:
    """a + value * b * c; all three broadcast."""
    return apply_one("addcmul", a, b, c, value=value, **unknown)


def addcdiv(a: Operand, b: Operand, c: Operand, value: float = 1, **unknown: NoReturn) -> Node:
    """a + value * b / c; all three broadcast."""
    return apply_one("addcdiv", a, b, c, value=value, **unknown)


def floor(a: Value, **unknown: NoReturn) -> Node:
    """floor: y = floor(a), elementwise. Gradient: d/da = 0 * g."""
    return apply_one("floor", a, **unknown)


def ceil(a: Value, **unknown: NoReturn) -> Node:
    """ceil: y = ceil(a), elementwise. Gradient: d/da = 0 * g."""
    return apply_one("ceil", a, **unknown)


def round(a: Value, **unknown: NoReturn) -> Node:
    """round: y = round(a), elementwise. Gradient: d/da = 0 * g."""
    return apply_one("round", a, **unknown)


def trunc(a: Value, **unknown: NoReturn) -> Node:
    """trunc: y = trunc(a), elementwise. Gradient: d/da = 0 * g."""
    return apply_one("trunc", a, **unknown)


def frac(a: Value, **unknown: NoReturn) -> Node:
    """frac: y = a - trunc(a), elementwise. Gradient: d/da = g."""
    return apply_one("frac", a, **unknown)


def relu(a: Value, **unknown: NoReturn) -> Node:
    """relu: y = where(a < 0, 0, a), elementwise. Gradient: d/da = where(y > 0, g, 0 * y)."""
    return apply_one("relu", a, **unknown)


def leaky_relu(a: Value, slope: float = 0.01, **unknown: NoReturn) -> Node:
    """a where a >= 0, else slope * a."""
    return apply_one("leaky_relu", a, slope=slope, **unknown)


def elu(a: Value, alpha: float = 1.0, **unknown: NoReturn) -> Node:
    """a where a > 0, else alpha * (exp(a) - 1)."""
    return apply_one("elu", a, alpha=alpha, **unknown)


def selu(a: Value, **unknown: NoReturn) -> Node:
    """selu: y = 1.0507009873554805 * where(a > 0, a, 1.6732632423543772 * expm1(a)), elementwise. Gradient: d/da =
    1.0507009873554805 * where(a > 0, g, g * 1.6732632423543772 * exp(a)).
    """
    return apply_one("selu", a, **unknown)


def sigmoid(a: Value, **unknown: NoReturn) -> Node:
    """sigmoid: y = 1 / (1 + exp(-a)), elementwise. Gradient: d/da = g * y * (1 - y)."""
    return apply_one("sigmoid", a, **unknown)


def log_sigmoid(a: Value, **unknown: NoReturn) -> Node:
    """log_sigmoid: y = -(where(a < 0, -a, 0) + log1p(exp(-abs(a)))), elementwise. Gradient: d/da = g / (1 + exp(a))."""
    return apply_one("log_sigmoid", a, **unknown)


def silu(a: Value, **unknown: NoReturn) -> Node:
    """silu: y = a / (1 + exp(-a)), elementwise. Gradient: d/da = g * (1 + a * (1 - 1 / (1 + exp(-a)))) * (1 / (1 +
    exp(-a))).
    """
    return apply_one("silu", a, **unknown)


def softplus(a: Value, **unknown: NoReturn) -> Node:
    """softplus: y = where(a > 0, a, 0) + log1p(exp(-abs(a))), elementwise. Gradient: d/da = g * (1 / (1 + exp(-a)))."""
    return apply_one("softplus", a, **unknown)


def mish(a: Value, **unknown: NoReturn) -> Node:
    """mish: y = a * tanh(where(a > 0, a, 0) + log1p(exp(-abs(a)))), elementwise. Gradient: d/da = g * (tanh(where(a
    > 0, a, 0) + log1p(exp(-abs(a)))) + a * (1 - tanh(where(a > 0, a, 0) + log1p(exp(-abs(a)))) * tanh(where(a >
    0, a, 0) + log1p(exp(-abs(a))))) * (1 / (1 + exp(-a)))).
    """
    return apply_one("mish", a, **unknown)


def softsign(a: Value, **unknown: NoReturn) -> Node:
    """softsign: y = a / (1 + abs(a)), elementwise. Gradient: d/da = g / ((1 + abs(a)) * (1 + abs(a)))."""
    return apply_one("softsign", a, **unknown)


def hard_sigmoid(a: Value, **unknown: NoReturn) -> Node:
    """hard_sigmoid: y = where(a < -3, 0, where(a > 3, 1, a * 0.16666666666666666 + 0.5)), elementwise. Gradient:
    d/da = where(a < -3, 0, where(a > 3, 0, g * 0.16666666666666666)).
    """
    return apply_one("hard_sigmoid", a, **unknown)


def hard_swish(a: Value, **unknown: NoReturn) -> Node:
    """hard_swish: y = where(a < -3, 0, where(a > 3, a, a * (a + 3) * 0.16666666666666666)), elementwise. Gradient:
    d/da = where(a < -3, 0, where(a > 3, g, g * (2 * a + 3) * 0.16666666666666666)).
    """
    return apply_one("hard_swish", a, **unknown)


def celu(a: Value, alpha: float = 1.0, **unknown: NoReturn) -> Node:
    """a where a > 0, else alpha * (exp(a / alpha) - 1). Source: Barron 2017, arXiv:1704.07483."""
    return apply_one("celu", a, alpha=alpha, **unknown)


def softshrink(a: Value, lambd: float = 0.5, **unknown: NoReturn) -> Node:
    """`a` moved towards 0 by lambd, and 0 within lambd of it."""
    return apply_one("softshrink", a, lambd=lambd, **unknown)


def hardshrink(a: Value, lambd: float = 0.5, **unknown: NoReturn) -> Node:
    """`a`, and 0 within lambd of it."""
    return apply_one("hardshrink", a, lambd=lambd, **unknown)


def tanhshrink(a: Value, **unknown: NoReturn) -> Node:
    """tanhshrink: y = a - tanh(a), elementwise. Gradient: d/da = g * tanh(a) * tanh(a)."""
    return apply_one("tanhshrink", a, **unknown)


def threshold(a: Value, threshold: float, value: float, **unknown: NoReturn) -> Node:
    """`a` where it is above `threshold`, else `value`."""
    return apply_one("threshold", a, threshold=threshold, value=value, **unknown)


def hard_tanh(a: Value, **unknown: NoReturn) -> Node:
    """hard_tanh: y = where(a < -1, -1, where(a > 1, 1, a)), elementwise. Gradient: d/da = where(a < -1, 0, where(a >
    1, 0, g)).
    """
    return apply_one("hard_tanh", a, **unknown)


swish = silu
