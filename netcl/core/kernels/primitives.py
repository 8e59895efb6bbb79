"""The table of elementwise primitives: one row of formulas per op.

A row says what an op computes and how its gradients follow, in text that means the same in OpenCL C and in Python
(`dialect.py`). Eager kernels, fused kernels, the NumPy path, gradients, and what backward keeps all come from the row.
Inputs are `a b c`, `y` is the output, `g` the upstream gradient, further names are scalar attributes.

Special values are part of a formula: relu is `where(a < 0, 0, a)`, so NaN stays NaN and -inf gives 0. Integers wrap,
x % 0 is 0, and a negative power is the whole part of the true one, on every backend.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from netcl.core.kernels import dialect
from netcl.moved import attribute

# kinds of result: promoted inputs; at least half; true or false; promoted inputs, which must be integers or bools
SAME, FLOAT, BOOL, INTEGER = "same", "float", "bool", "integer"
HIGH = "float32"  # what mixed precision computes in where half would overflow or lose too much
AS_INT8, REFUSED = "int8", "refused"  # what bools may do besides taking another row


@dataclass(frozen=True)
class Primitive:
    """One row. `grads` holds a formula per input (None where there is no gradient); `result` is one of the kinds.

    `bools` says what becomes of bools alone, as in NumPy: another row, AS_INT8 or REFUSED; "" takes them as 0 and 1.
    The rest is what `ops.record.Op` says of all ops: names of methods, precision, names in ONNX and the array API.
    """

    name: str
    value: str
    grads: tuple[str | None, ...] = ()
    attrs: tuple[str, ...] = ()
    result: str = SAME
    bools: str = ""
    methods: tuple[str, ...] = field(default=(), compare=False)
    cast: str = field(default="", compare=False)
    onnx: str = field(default="", compare=False)
    array_api: str = field(default="", compare=False)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The inputs the value reads, in order."""
        used = dialect.names(self.value)
        return tuple(n for n in "abc" if n in used)

    @cached_property
    def saved(self) -> tuple[str, ...]:
        """What backward needs of the forward pass, read off the gradient formulas: `y` and inputs."""
        used = {n for formula in self.grads if formula for n in dialect.names(formula)}
        return tuple(n for n in ("y", *self.inputs) if n in used)

    @cached_property
    def _read(self) -> dict[tuple[bool, ...], frozenset[str]]:
        return {}

    def reads(self, needs: tuple[bool, ...]) -> frozenset[str]:
        """The part of `saved` that the gradients of the inputs marked in `needs` read."""
        found = self._read.get(needs)
        if found is None:
            wanted = (f for f, need in zip(self.grads, needs, strict=False) if f and need)
            found = frozenset(n for f in wanted for n in dialect.names(f) if n in self.saved)
            self._read[needs] = found
        return found

    def functions(self) -> Iterator[tuple[str, tuple[str, ...], str]]:
        """(NAME, parameters, formula) of the value, then of each gradient as NAME_D0, NAME_D1, ..."""
        yield self.name.upper(), (*self.inputs, *self.attrs), self.value
        for i, formula in enumerate(self.grads):
            if formula:
                yield f"{self.name.upper()}_D{i}", ("g", "y", *self.inputs, *self.attrs), formula


dialect.define_function(
    "WITH_SIGN_OF", ("b", "r"), "where(r == 0, where(b < 0, -abs(r), abs(r)), where((r < 0) != (b < 0), r + b, r))"
)  # of a remainder r by b: Python's has the sign of b

# The derivative of log(gamma) and the derivative of that, by their series from 6 on and by reflection below 1/2.
# Source: Abramowitz and Stegun 1964, 6.3.18, 6.4.12 (series), 6.3.7, 6.4.7 (reflection).
dialect.define_function(
    "PSI_SERIES",
    ("x", "r"),
    "log(x) - 0.5 / x - r * (0.08333333333333333 - r * (0.008333333333333333 - r * (0.003968253968253968 - r * "
    "(0.004166666666666667 - r * (0.007575757575757576 - r * (0.021092796092796094 - r * 0.08333333333333333))))))",
)
dialect.define_function(
    "PSI_ABOVE",
    ("x",),
    "PSI_SERIES(x + 6, 1 / ((x + 6) * (x + 6))) - (1 / x + 1 / (x + 1) + 1 / (x + 2) + 1 / (x + 3) + 1 / (x + 4) + "
    "1 / (x + 5))",
)
dialect.define_function(
    "PSI",
    ("a",),
    "where(a < 0.5, where(a == round(a), where(a == 0, -1 / a, (a - a) / (a - a)), "
    "PSI_ABOVE(1 - a) - 3.141592653589793 / tan(3.141592653589793 * (a - round(a)))), PSI_ABOVE(a))",
)
dialect.define_function(
    "TRIGAMMA_SERIES",
    ("x", "r"),
    "1 / x + 0.5 * r + r / x * (0.16666666666666666 - r * (0.03333333333333333 - r * (0.023809523809523808 - r * "
    "(0.03333333333333333 - r * (0.07575757575757576 - r * (0.2531135531135531 - r * 1.1666666666666667))))))",
)
dialect.define_function("INVERSE_SQUARE", ("x",), "1 / (x * x)")
dialect.define_function(
    "TRIGAMMA_ABOVE",
    ("x",),
    "TRIGAMMA_SERIES(x + 6, INVERSE_SQUARE(x + 6)) + INVERSE_SQUARE(x) + INVERSE_SQUARE(x + 1) + INVERSE_SQUARE(x + 2) "
    "+ INVERSE_SQUARE(x + 3) + INVERSE_SQUARE(x + 4) + INVERSE_SQUARE(x + 5)",
)
dialect.define_function(
    "TRIGAMMA",
    ("a",),
    "where(a < 0.5, 9.869604401089358 * INVERSE_SQUARE(sin(3.141592653589793 * (a - round(a)))) - "
    "TRIGAMMA_ABOVE(1 - a), TRIGAMMA_ABOVE(a))",
)
dialect.define_function(
    "FLOOR_QUOTIENT",
    ("a", "b", "r"),
    "where(b == 0, quotient(a, b), round(quotient(a - r, b)) - where(r == 0, 0, where((r < 0) != (b < 0), 1, 0)))",
)  # from the remainder r = fmod(a, b)
dialect.define_function("LARGER", ("a", "b"), "where(a > b, a, where(a == a, b, a))")

P = Primitive
_SIGMOID = "1 / (1 + exp(-a))"
_CDF = "0.5 * (1 + erf(a * 0.7071067811865476))"  # of the standard normal distribution
_TANH_GELU = "tanh(a * (0.7978845608028654 + 0.035677408136300125 * a * a))"
_SOFTPLUS = "where(a > 0, a, 0) + log1p(exp(-abs(a)))"

ROWS = (
    # arithmetic
    P("add", "a + b", ("g", "g"), bools="logical_or", methods=("__add__", "__radd__"), onnx="Add", array_api="add"),
    P("sub", "a - b", ("g", "-g"), bools=REFUSED, methods=("__sub__", "__rsub__"), onnx="Sub", array_api="subtract"),
    P("mul", "a * b", ("g * b", "g * a"), bools="logical_and",
      methods=("__mul__", "__rmul__"), onnx="Mul", array_api="multiply"),
    P("div", "a / b", ("g / b", "-g * y / b"), result=FLOAT,
      methods=("__truediv__", "__rtruediv__"), onnx="Div", array_api="divide"),
    P("neg", "-a", ("-g",), bools=REFUSED, methods=("__neg__",), onnx="Neg", array_api="negative"),
    P("abs", "abs(a)", ("where(a > 0, g, where(a < 0, -g, 0 * g))",),
      methods=("__abs__", "abs"), onnx="Abs", array_api="abs"),
    P("sign", "where(a > 0, 1, where(a < 0, -1, a))", ("0 * g",), onnx="Sign", array_api="sign"),
    P("square", "a * a", ("2 * g * a",), bools=AS_INT8, methods=("square",), array_api="square"),
    P("reciprocal", "1 / a", ("-g * y * y",), result=FLOAT, cast=HIGH, onnx="Reciprocal", array_api="reciprocal"),
    P("pow", "pow(a, b)", ("where(b == 0, 0, g * b * pow(a, b - 1))", "where(a == 0, 0, g * y * log(a))"),
      bools=AS_INT8, methods=("__pow__", "__rpow__"), cast=HIGH, onnx="Pow", array_api="pow"),
    P("remainder", "WITH_SIGN_OF(b, fmod(a, b))", ("g", "-g * floor(a / b)"), bools=AS_INT8,
      methods=("__mod__", "__rmod__"), array_api="remainder"),
    P("fmod", "fmod(a, b)", ("g", "-g * trunc(a / b)"), bools=AS_INT8),
    P("floor_divide", "FLOOR_QUOTIENT(a, b, fmod(a, b))", ("0 * g", "0 * g"), bools=AS_INT8,
      methods=("__floordiv__", "__rfloordiv__"), array_api="floor_divide"),
    P("trunc_divide", "where(b == 0, quotient(a, b), round(quotient(a - fmod(a, b), b)))", ("0 * g", "0 * g"),
      bools=AS_INT8),
    P("maximum", "where(a > b, a, where(a == a, b, a))",
      ("where(a > b, g, where(a == b, 0.5 * g, 0))", "where(b > a, g, where(a == b, 0.5 * g, 0))"),
      onnx="Max", array_api="maximum"),
    P("minimum", "where(a < b, a, where(a == a, b, a))",
      ("where(a < b, g, where(a == b, 0.5 * g, 0))", "where(b < a, g, where(a == b, 0.5 * g, 0))"),
      onnx="Min", array_api="minimum"),
    P("clip", "where(where(a < lo, lo, a) > hi, hi, where(a < lo, lo, a))",
      ("where(a < lo, 0, where(a > hi, 0, g))",), ("lo", "hi"), methods=("clip",), onnx="Clip", array_api="clip"),
    P("where", "where(a != 0, b, c)", (None, "where(a != 0, g, 0)", "where(a != 0, 0, g)"),
      onnx="Where", array_api="where"),
    # comparison and logic
    P("lt", "where(a < b, 1, 0)", result=BOOL, methods=("__lt__",), onnx="Less", array_api="less"),
    P("le", "where(a <= b, 1, 0)", result=BOOL, methods=("__le__",), onnx="LessOrEqual", array_api="less_equal"),
    P("gt", "where(a > b, 1, 0)", result=BOOL, methods=("__gt__",), onnx="Greater", array_api="greater"),
    P("ge", "where(a >= b, 1, 0)", result=BOOL, methods=("__ge__",), onnx="GreaterOrEqual", array_api="greater_equal"),
    P("eq", "where(a == b, 1, 0)", result=BOOL, methods=("__eq__",), onnx="Equal", array_api="equal"),
    P("ne", "where(a != b, 1, 0)", result=BOOL, methods=("__ne__",), array_api="not_equal"),
    P("logical_and", "where(a != 0, where(b != 0, 1, 0), 0)", result=BOOL, onnx="And", array_api="logical_and"),
    P("logical_or", "where(a != 0, 1, where(b != 0, 1, 0))", result=BOOL, onnx="Or", array_api="logical_or"),
    P("logical_not", "where(a == 0, 1, 0)", result=BOOL, onnx="Not", array_api="logical_not"),
    P("bitwise_and", "a & b", result=INTEGER,
      methods=("__and__", "__rand__"), onnx="BitwiseAnd", array_api="bitwise_and"),
    P("bitwise_or", "a | b", result=INTEGER, methods=("__or__", "__ror__"), onnx="BitwiseOr", array_api="bitwise_or"),
    P("bitwise_xor", "a ^ b", result=INTEGER,
      methods=("__xor__", "__rxor__"), onnx="BitwiseXor", array_api="bitwise_xor"),
    P("bitwise_not", "~a", result=INTEGER, bools="logical_not",
      methods=("__invert__",), onnx="BitwiseNot", array_api="bitwise_invert"),
    P("left_shift", "lshift(a, b)", result=INTEGER, bools=AS_INT8,
      methods=("__lshift__", "__rlshift__"), onnx="BitShift", array_api="bitwise_left_shift"),
    P("right_shift", "rshift(a, b)", result=INTEGER, bools=AS_INT8,
      methods=("__rshift__", "__rrshift__"), onnx="BitShift", array_api="bitwise_right_shift"),
    P("isnan", "where(a != a, 1, 0)", result=BOOL, onnx="IsNaN", array_api="isnan"),
    P("isfinite", "where(a - a == 0, 1, 0)", result=BOOL, array_api="isfinite"),
    P("isinf", "where(a == a, where(a - a == 0, 0, 1), 0)", result=BOOL, onnx="IsInf", array_api="isinf"),
    # exponentials, roots, trigonometry
    P("exp", "exp(a)", ("g * y",), result=FLOAT, methods=("exp",), cast=HIGH, onnx="Exp", array_api="exp"),
    P("expm1", "expm1(a)", ("g * (y + 1)",), result=FLOAT, cast=HIGH, array_api="expm1"),
    P("log", "log(a)", ("g / a",), result=FLOAT, methods=("log",), cast=HIGH, onnx="Log", array_api="log"),
    P("log2", "log(a) * 1.4426950408889634", ("g * 1.4426950408889634 / a",), result=FLOAT,
      cast=HIGH, array_api="log2"),
    P("log10", "log(a) * 0.4342944819032518", ("g * 0.4342944819032518 / a",), result=FLOAT,
      cast=HIGH, array_api="log10"),
    P("log1p", "log1p(a)", ("g / (1 + a)",), result=FLOAT, cast=HIGH, array_api="log1p"),
    P("sqrt", "sqrt(a)", ("0.5 * g / y",), result=FLOAT, methods=("sqrt",), onnx="Sqrt", array_api="sqrt"),
    P("rsqrt", "1 / sqrt(a)", ("-0.5 * g * y * y * y",), result=FLOAT, cast=HIGH),
    P("sin", "sin(a)", ("g * cos(a)",), result=FLOAT, onnx="Sin", array_api="sin"),
    P("cos", "cos(a)", ("-g * sin(a)",), result=FLOAT, onnx="Cos", array_api="cos"),
    P("tan", "tan(a)", ("g * (1 + y * y)",), result=FLOAT, cast=HIGH, onnx="Tan", array_api="tan"),
    P("sinh", "sinh(a)", ("g * cosh(a)",), result=FLOAT, cast=HIGH, onnx="Sinh", array_api="sinh"),
    P("cosh", "cosh(a)", ("g * sinh(a)",), result=FLOAT, cast=HIGH, onnx="Cosh", array_api="cosh"),
    P("tanh", "tanh(a)", ("g * (1 - y * y)",), result=FLOAT, methods=("tanh",), onnx="Tanh", array_api="tanh"),
    P("atan", "atan(a)", ("g / (1 + a * a)",), result=FLOAT, onnx="Atan", array_api="atan"),
    P("atan2", "atan2(a, b)", ("g * b / (a * a + b * b)", "-g * a / (a * a + b * b)"), result=FLOAT, array_api="atan2"),
    P("erf", "erf(a)", ("g * 1.1283791670955126 * exp(-a * a)",), result=FLOAT, onnx="Erf"),
    P("asin", "asin(a)", ("g / sqrt((1 - a) * (1 + a))",), result=FLOAT, onnx="Asin", array_api="asin"),
    P("acos", "acos(a)", ("-g / sqrt((1 - a) * (1 + a))",), result=FLOAT, onnx="Acos", array_api="acos"),
    P("asinh", "asinh(a)", ("g / hypot(a, 1)",), result=FLOAT, onnx="Asinh", array_api="asinh"),
    P("acosh", "acosh(a)", ("g / sqrt((a - 1) * (a + 1))",), result=FLOAT, onnx="Acosh", array_api="acosh"),
    P("atanh", "atanh(a)", ("g / ((1 - a) * (1 + a))",), result=FLOAT, onnx="Atanh", array_api="atanh"),
    P("exp2", "exp2(a)", ("g * y * 0.6931471805599453",), result=FLOAT, cast=HIGH),
    P("hypot", "hypot(a, b)", ("g * a / y", "g * b / y"), result=FLOAT, array_api="hypot"),
    P("copysign", "copysign(a, b)", ("where(a == 0, 0, g * (y / a))", "0 * g"), result=FLOAT, array_api="copysign"),
    P("logaddexp", "where(a == b, a + 0.6931471805599453, LARGER(a, b) + log1p(exp(-abs(a - b))))",
      ("where(a == b, 0.5 * g, g / (1 + exp(b - a)))", "where(a == b, 0.5 * g, g / (1 + exp(a - b)))"), result=FLOAT,
      cast=HIGH, array_api="logaddexp"),
    P("logaddexp2", "where(a == b, a + 1, LARGER(a, b) + 1.4426950408889634 * log1p(exp2(-abs(a - b))))",
      ("where(a == b, 0.5 * g, g / (1 + exp2(b - a)))", "where(a == b, 0.5 * g, g / (1 + exp2(a - b)))"), result=FLOAT,
      cast=HIGH),
    P("xlogy", "where(b != b, b, where(a == 0, 0, a * log(b)))",
      ("where(a == 0, where(b <= 0, 0, g * log(b)), g * log(b))", "g * a / b"), result=FLOAT, cast=HIGH),
    P("sinc", "where(a == 0, 1, sin(3.141592653589793 * a) / (3.141592653589793 * a))",
      ("where(a == 0, 0, g * (cos(3.141592653589793 * a) - y) / a)",), result=FLOAT),
    P("logit", "log(a / (1 - a))", ("g / (a * (1 - a))",), result=FLOAT, cast=HIGH),
    P("deg2rad", "a * 0.017453292519943295", ("g * 0.017453292519943295",), result=FLOAT),
    P("rad2deg", "a * 57.29577951308232", ("g * 57.29577951308232",), result=FLOAT),
    # special functions
    P("erfc", "erfc(a)", ("-g * 1.1283791670955126 * exp(-a * a)",), result=FLOAT),
    P("erfinv", "erfinv(a)", ("g * 0.886226925452758 * exp(y * y)",), result=FLOAT, cast=HIGH),
    P("lgamma", "lgamma(a)", ("g * PSI(a)",), result=FLOAT, cast=HIGH),
    P("digamma", "PSI(a)", ("g * TRIGAMMA(a)",), result=FLOAT, cast=HIGH),
    # several operands at once
    P("lerp", "where(abs(c) < 0.5, a + c * (b - a), b - (b - a) * (1 - c))", ("g * (1 - c)", "g * c", "g * (b - a)"),
      result=FLOAT),
    P("addcmul", "a + value * b * c", ("g", "g * value * c", "g * value * b"), ("value",)),
    P("addcdiv", "a + value * b / c", ("g", "g * value / c", "-g * value * b / (c * c)"), ("value",), result=FLOAT),
    P("nan_to_num", "where(a == a, where(a - a == 0, a, where(a > 0, posinf, neginf)), nan)",
      ("where(a - a == 0, g, 0)",), ("nan", "posinf", "neginf")),
    # rounding (round goes to the even neighbour)
    P("floor", "floor(a)", ("0 * g",), onnx="Floor", array_api="floor"),
    P("ceil", "ceil(a)", ("0 * g",), onnx="Ceil", array_api="ceil"),
    P("round", "round(a)", ("0 * g",), onnx="Round", array_api="round"),
    P("trunc", "trunc(a)", ("0 * g",), array_api="trunc"),
    P("frac", "a - trunc(a)", ("g",)),
    # activations
    P("relu", "where(a < 0, 0, a)", ("where(y > 0, g, 0 * y)",), methods=("relu",), onnx="Relu"),
    P("leaky_relu", "where(a < 0, slope * a, a)", ("where(a < 0, slope * g, g)",), ("slope",), onnx="LeakyRelu"),
    P("prelu", "where(a < 0, b * a, a)", ("where(a < 0, g * b, g)", "where(a < 0, g * a, 0)")),
    P("elu", "where(a > 0, a, alpha * expm1(a))", ("where(a > 0, g, g * alpha * exp(a))",), ("alpha",), FLOAT,
      onnx="Elu"),
    P("selu", "1.0507009873554805 * where(a > 0, a, 1.6732632423543772 * expm1(a))",
      ("1.0507009873554805 * where(a > 0, g, g * 1.6732632423543772 * exp(a))",), result=FLOAT, onnx="Selu"),
    P("sigmoid", _SIGMOID, ("g * y * (1 - y)",), result=FLOAT, methods=("sigmoid",), onnx="Sigmoid"),
    P("log_sigmoid", "-(where(a < 0, -a, 0) + log1p(exp(-abs(a))))", ("g / (1 + exp(a))",), result=FLOAT),
    P("silu", "a / (1 + exp(-a))", (f"g * (1 + a * (1 - {_SIGMOID})) * ({_SIGMOID})",), result=FLOAT),
    P("gelu", "0.5 * a + 0.5 * a * erf(a * 0.7071067811865476)",
      (f"g * ({_CDF} + a * 0.3989422804014327 * exp(-0.5 * a * a))",), result=FLOAT, onnx="Gelu"),
    P("gelu_tanh", f"0.5 * a + 0.5 * a * {_TANH_GELU}",
      (f"g * (0.5 * (1 + {_TANH_GELU}) + 0.5 * a * (1 - {_TANH_GELU} * {_TANH_GELU})"
       " * (0.7978845608028654 + 0.1070322243 * a * a))",), result=FLOAT, onnx="Gelu"),
    P("softplus", _SOFTPLUS, (f"g * ({_SIGMOID})",), result=FLOAT, cast=HIGH, onnx="Softplus"),
    P("mish", f"a * tanh({_SOFTPLUS})",
      (f"g * (tanh({_SOFTPLUS}) + a * (1 - tanh({_SOFTPLUS}) * tanh({_SOFTPLUS})) * ({_SIGMOID}))",), result=FLOAT,
      onnx="Mish"),
    P("softsign", "a / (1 + abs(a))", ("g / ((1 + abs(a)) * (1 + abs(a)))",), result=FLOAT, onnx="Softsign"),
    P("hard_sigmoid", "where(a < -3, 0, where(a > 3, 1, a * 0.16666666666666666 + 0.5))",
      ("where(a < -3, 0, where(a > 3, 0, g * 0.16666666666666666))",), result=FLOAT, onnx="HardSigmoid"),
    P("hard_swish", "where(a < -3, 0, where(a > 3, a, a * (a + 3) * 0.16666666666666666))",
      ("where(a < -3, 0, where(a > 3, g, g * (2 * a + 3) * 0.16666666666666666))",), result=FLOAT, onnx="HardSwish"),
    P("celu", "where(a > 0, a, alpha * expm1(a / alpha))", ("where(a > 0, g, g * exp(a / alpha))",), ("alpha",), FLOAT,
      onnx="Celu"),
    P("softshrink", "where(a > lambd, a - lambd, where(a < -lambd, a + lambd, 0 * a))",
      ("where(a > lambd, g, where(a < -lambd, g, 0))",), ("lambd",), FLOAT, onnx="Shrink"),
    P("hardshrink", "where(a > lambd, a, where(a < -lambd, a, where(a == a, 0, a)))",
      ("where(a > lambd, g, where(a < -lambd, g, 0))",), ("lambd",), FLOAT),
    P("tanhshrink", "a - tanh(a)", ("g * tanh(a) * tanh(a)",), result=FLOAT),
    P("threshold", "where(a <= threshold, value, a)", ("where(a <= threshold, 0, g)",), ("threshold", "value")),
    P("hard_tanh", "where(a < -1, -1, where(a > 1, 1, a))", ("where(a < -1, 0, where(a > 1, 0, g))",), result=FLOAT),
)  # fmt: skip

TABLE: dict[str, Primitive] = {row.name: row for row in ROWS}


def add_row(row: Primitive) -> None:
    """Add a user's row to the table, after the dialect check. Raises ValueError if it is not in the dialect."""
    dialect.check(row)
    before, TABLE[row.name] = TABLE.get(row.name), row
    dialect.define(row)
    if before is not None and before != row:
        dialect.defined_anew()


for _row in ROWS:
    dialect.define(_row)

PRIMITIVE_PREAMBLE = dialect.preamble(None, "float", 1)


def __getattr__(name: str) -> Any:
    return attribute(__name__, name)
