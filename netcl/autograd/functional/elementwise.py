"""Elementwise ops on nodes: the rows of the primitive table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netcl.autograd.node import Node
from netcl.autograd.op import apply_op
from netcl.core.errors import unexpected
from netcl.core.kernels.primitives import TABLE, Primitive
from netcl.core.tensor import Tensor
from netcl.ops import promotion

__all__ = [
    "abs", "add", "atan", "atan2", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "clip",
    "cos", "cosh", "div", "elu", "eq", "erf", "exp", "expm1", "floor", "fmod", "ge", "gelu", "gt", "hard_sigmoid",
    "hard_swish", "hard_tanh", "isfinite", "isinf", "isnan", "le", "leaky_relu", "log", "log1p", "log2", "log10",
    "log_sigmoid", "logical_and", "logical_not", "logical_or", "lt", "maximum", "minimum", "mish", "mul", "ne",
    "neg", "pow", "reciprocal", "relu", "remainder", "round", "rsqrt", "selu", "sigmoid", "sign", "silu", "sin",
    "sinh", "softplus", "softsign", "sqrt", "square", "sub", "swish", "tan", "tanh", "trunc", "where",
]  # fmt: skip

Value = Any  # a Node, a Tensor or a Python number


def _placed(row: Primitive, args: tuple[Value, ...], named: dict[str, Value]) -> tuple[Value, ...]:
    """The operands of a row in order, some of them given by name."""
    rest = row.inputs[len(args) :]
    if set(rest) != set(named):
        raise unexpected(row.name, [n for n in named if n not in rest] or [*named], row.inputs)
    return (*args, *(named[n] for n in rest))


def _elementwise(name: str) -> Callable[..., Node]:
    row = TABLE[name]

    def op(*args: Value, **named: Value) -> Node:
        return apply_op(name, *(_placed(row, args, named) if named else args))  # type: ignore[no-any-return]

    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"{name}({', '.join((*row.inputs, *row.attrs))}): y = {row.value}, elementwise with broadcasting."
    return op


add, sub, mul, div = (_elementwise(n) for n in ("add", "sub", "mul", "div"))
maximum, minimum, remainder, fmod = (_elementwise(n) for n in ("maximum", "minimum", "remainder", "fmod"))
lt, le, gt, ge, eq, ne = (_elementwise(n) for n in ("lt", "le", "gt", "ge", "eq", "ne"))
bitwise_and, bitwise_or = (_elementwise(n) for n in ("bitwise_and", "bitwise_or"))
bitwise_xor, bitwise_not = (_elementwise(n) for n in ("bitwise_xor", "bitwise_not"))
logical_and, logical_or, logical_not = (_elementwise(n) for n in ("logical_and", "logical_or", "logical_not"))
isnan, isfinite, isinf, atan2 = (_elementwise(n) for n in ("isnan", "isfinite", "isinf", "atan2"))
neg, abs, sign, square, reciprocal = (_elementwise(n) for n in ("neg", "abs", "sign", "square", "reciprocal"))
exp, expm1, log, log1p, log2, log10 = (_elementwise(n) for n in ("exp", "expm1", "log", "log1p", "log2", "log10"))
sqrt, rsqrt, erf, sin, cos, tan = (_elementwise(n) for n in ("sqrt", "rsqrt", "erf", "sin", "cos", "tan"))
sinh, cosh, tanh, atan = (_elementwise(n) for n in ("sinh", "cosh", "tanh", "atan"))
floor, ceil, round, trunc = (_elementwise(n) for n in ("floor", "ceil", "round", "trunc"))
relu, sigmoid, log_sigmoid, silu, mish = (_elementwise(n) for n in ("relu", "sigmoid", "log_sigmoid", "silu", "mish"))
selu, softplus, softsign = (_elementwise(n) for n in ("selu", "softplus", "softsign"))
hard_sigmoid, hard_swish, hard_tanh = (_elementwise(n) for n in ("hard_sigmoid", "hard_swish", "hard_tanh"))
swish = silu


def where(condition: Value, a: Value, b: Value, **unknown: Any) -> Node:
    """`a` where `condition` is true (not zero), else `b`; all three broadcast.

    `a` gets the upstream gradient where it was chosen and exactly 0 elsewhere, `b` the other way round, even where the
    upstream gradient is NaN or infinite. What computed them is still asked for its slope everywhere: behind
    `where(x > 0, sqrt(x), x)` sqrt multiplies that 0 by its NaN at x = -1, as in other frameworks. Keep its argument
    where it is defined: `where(x > 0, sqrt(where(x > 0, x, 1.0)), x)`.
    """
    if unknown:
        raise unexpected("where", unknown, ("condition", "a", "b"))
    return apply_op("where", condition, a, b)  # type: ignore[no-any-return]


def pow(a: Value, b: Value, **unknown: Any) -> Node:
    """a ** b; the exponent 2 is a product. Integers: see `ops.pow`."""
    if unknown:
        raise unexpected("pow", unknown, ("a", "b"))
    if isinstance(b, (int, float)) and isinstance(a, (Node, Tensor)) and promotion.is_square(a.dtype, b):
        return square(a)
    return apply_op("pow", a, b)  # type: ignore[no-any-return]


def clip(a: Value, lo: float | None = None, hi: float | None = None, **unknown: Any) -> Node:
    """min(max(a, lo), hi); None leaves a side open. The gradient is 0 outside. Integers: see `ops.clip`."""
    if unknown:
        raise unexpected("clip", unknown, ("a", "lo", "hi"))
    return apply_op("clip", a, **promotion.open_bounds(a.dtype, lo, hi))  # type: ignore[no-any-return]


def leaky_relu(a: Value, slope: float = 0.01, **unknown: Any) -> Node:
    """a where a >= 0, else slope * a."""
    if unknown:
        raise unexpected("leaky_relu", unknown, ("a", "slope"))
    return apply_op("leaky_relu", a, slope=slope)  # type: ignore[no-any-return]


def elu(a: Value, alpha: float = 1.0, **unknown: Any) -> Node:
    """a where a > 0, else alpha * (exp(a) - 1)."""
    if unknown:
        raise unexpected("elu", unknown, ("a", "alpha"))
    return apply_op("elu", a, alpha=alpha)  # type: ignore[no-any-return]


def gelu(a: Value, approximate: str = "none", **unknown: Any) -> Node:
    """a * Phi(a): exact, or with the tanh formula (approximate="tanh"). arXiv:1606.08415."""
    if unknown:
        raise unexpected("gelu", unknown, ("a", "approximate"))
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: expected approximate 'none' or 'tanh', got {approximate!r}.")
    return apply_op("gelu" if approximate == "none" else "gelu_tanh", a)  # type: ignore[no-any-return]
