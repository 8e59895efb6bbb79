"""`ag.<op>`: every operation on nodes, with the names and arguments of `netcl.ops`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netcl.autograd import rules  # noqa: F401
from netcl.autograd.node import OPERATORS, Node
from netcl.autograd.op import apply_op
from netcl.autograd.rules import linear as _linear_rules  # noqa: F401
from netcl.autograd.rules import movement as _movement_rules  # noqa: F401
from netcl.core import layout
from netcl.core.dtypes import as_dtype
from netcl.core.kernels.primitives import TABLE
from netcl.core.tensor import Tensor

Value = Any  # a Node, a Tensor or a Python number


def _elementwise(name: str) -> Callable[..., Node]:
    def op(*args: Value, **attrs: Any) -> Node:
        return apply_op(name, *args, **attrs)  # type: ignore[no-any-return]

    row = TABLE[name]
    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"{name}({', '.join((*row.inputs, *row.attrs))}): y = {row.value}, elementwise with broadcasting."
    return op


add, sub, mul, div = (_elementwise(n) for n in ("add", "sub", "mul", "div"))
maximum, minimum, remainder, fmod = (_elementwise(n) for n in ("maximum", "minimum", "remainder", "fmod"))
lt, le, gt, ge, eq, ne = (_elementwise(n) for n in ("lt", "le", "gt", "ge", "eq", "ne"))
logical_and, logical_or, logical_not = (_elementwise(n) for n in ("logical_and", "logical_or", "logical_not"))
isnan, isfinite, isinf, where, atan2 = (_elementwise(n) for n in ("isnan", "isfinite", "isinf", "where", "atan2"))
neg, abs, sign, square, reciprocal = (_elementwise(n) for n in ("neg", "abs", "sign", "square", "reciprocal"))
exp, expm1, log, log1p, log2, log10 = (_elementwise(n) for n in ("exp", "expm1", "log", "log1p", "log2", "log10"))
sqrt, rsqrt, erf, sin, cos, tan = (_elementwise(n) for n in ("sqrt", "rsqrt", "erf", "sin", "cos", "tan"))
sinh, cosh, tanh, atan = (_elementwise(n) for n in ("sinh", "cosh", "tanh", "atan"))
floor, ceil, round, trunc = (_elementwise(n) for n in ("floor", "ceil", "round", "trunc"))
relu, sigmoid, log_sigmoid, silu, mish = (_elementwise(n) for n in ("relu", "sigmoid", "log_sigmoid", "silu", "mish"))
selu, softplus, softsign = (_elementwise(n) for n in ("selu", "softplus", "softsign"))
hard_sigmoid, hard_swish, hard_tanh = (_elementwise(n) for n in ("hard_sigmoid", "hard_swish", "hard_tanh"))
swish = silu


def pow(a: Value, b: Value) -> Node:
    """a ** b; the exponent 2 is a product."""
    if isinstance(b, (int, float)) and b == 2:
        return square(a)
    return apply_op("pow", a, b)  # type: ignore[no-any-return]


def clip(a: Value, lo: float | None = None, hi: float | None = None) -> Node:
    """`a` limited to [lo, hi]; None leaves a side open. The gradient is 0 outside."""
    lo, hi = -np.inf if lo is None else lo, np.inf if hi is None else hi
    return apply_op("clip", a, lo=lo, hi=hi)  # type: ignore[no-any-return]


def leaky_relu(a: Value, slope: float = 0.01) -> Node:
    """a where a >= 0, else slope * a."""
    return apply_op("leaky_relu", a, slope=slope)  # type: ignore[no-any-return]


def elu(a: Value, alpha: float = 1.0) -> Node:
    """a where a > 0, else alpha * (exp(a) - 1)."""
    return apply_op("elu", a, alpha=alpha)  # type: ignore[no-any-return]


def gelu(a: Value, approximate: str = "none") -> Node:
    """a * Phi(a): exact, or with the tanh formula (approximate="tanh"). arXiv:1606.08415."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: expected approximate 'none' or 'tanh', got {approximate!r}.")
    return apply_op("gelu" if approximate == "none" else "gelu_tanh", a)  # type: ignore[no-any-return]


# -- views and movement ------------------------------------------------------------------------


def _ints(values: tuple[Any, ...]) -> tuple[int, ...]:
    """f(2, 3) and f((2, 3)) alike."""
    one = len(values) == 1 and not isinstance(values[0], (int, np.integer))
    return tuple(int(v) for v in (values[0] if one else values))


def reshape(x: Value, *shape: Any) -> Node:
    """The elements in row-major order as `shape`; one length may be -1."""
    return apply_op("reshape", x, shape=_ints(shape))  # type: ignore[no-any-return]


def flatten(x: Value, start_axis: int = 0) -> Node:
    """Axes from `start_axis` on merged into one."""
    return reshape(x, *x.shape[:start_axis], -1)


def permute(x: Value, *axes: Any) -> Node:
    """The axes in the given order; reversed when none is given."""
    order = _ints(axes) if axes else tuple(reversed(range(x.ndim)))
    return apply_op("permute", x, axes=order)  # type: ignore[no-any-return]


def transpose(x: Value, *axes: Any) -> Node:
    """Two axes exchanged when two are given, else `permute`."""
    if len(axes) != 2:
        return permute(x, *axes)
    order = list(range(x.ndim))
    i, j = (layout.as_axis("transpose", a, x.ndim) for a in axes)
    order[i], order[j] = order[j], order[i]
    return permute(x, *order)


def expand(x: Value, *shape: Any) -> Node:
    """Axes of length one repeated to `shape`, without a copy."""
    return apply_op("expand", x, shape=_ints(shape))  # type: ignore[no-any-return]


def squeeze(x: Value, axis: Any = None) -> Node:
    """Without axes of length one."""
    return apply_op("squeeze", x, axis=axis)  # type: ignore[no-any-return]


def unsqueeze(x: Value, axis: int) -> Node:
    """With a new axis of length one."""
    return apply_op("unsqueeze", x, axis=axis)  # type: ignore[no-any-return]


def getitem(x: Value, key: Any) -> Node:
    """Basic indexing: integers, slices, None and '...'."""
    return apply_op("getitem", x, key=key)  # type: ignore[no-any-return]


def astype(x: Value, dtype: Any) -> Node:
    """The values as `dtype`; the gradient comes back in the input's dtype."""
    return apply_op("astype", x, dtype=as_dtype(dtype))  # type: ignore[no-any-return]


def contiguous(x: Value) -> Node:
    """The value contiguous in memory."""
    return apply_op("contiguous", x)  # type: ignore[no-any-return]


def to(x: Value, queue: Any) -> Node:
    """The value on another queue; the gradient travels back."""
    return apply_op("to", x, queue=queue)  # type: ignore[no-any-return]


def concat(xs: Sequence[Value], axis: int = 0) -> Node:
    """Joined along `axis`."""
    return apply_op("concat", *xs, axis=axis)  # type: ignore[no-any-return]


def stack(xs: Sequence[Value], axis: int = 0) -> Node:
    """Joined along a new `axis`."""
    return apply_op("stack", *xs, axis=axis)  # type: ignore[no-any-return]


# -- products ----------------------------------------------------------------------------------


def matmul(a: Value, b: Value) -> Node:
    """Matrix product with NumPy's rules for 1-D operands and batches."""
    return apply_op("matmul", a, b)  # type: ignore[no-any-return]


def linear(x: Value, weight: Value, bias: Value | None = None) -> Node:
    """x @ weight.T + bias: (..., in), (out, in), (out,) -> (..., out)."""
    return apply_op("linear", x, weight, *(() if bias is None else (bias,)))  # type: ignore[no-any-return]


def conv2d(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Node:
    """Cross-correlation: (N, C, H, W) with (O, C / groups, KH, KW) -> (N, O, H', W')."""
    geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return apply_op("conv2d", x, weight, *(() if bias is None else (bias,)), **geometry)  # type: ignore[no-any-return]


OPERATORS.update({name: f for name, f in globals().items() if callable(f) and not name.startswith("_")})
_ = Tensor
