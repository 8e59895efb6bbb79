"""Reductions on nodes. Written by tools/generate_ops.py from the records of ops; do not edit."""

from __future__ import annotations

from netcl.autograd.node import Node, Value
from netcl.autograd.op import apply_one
from netcl.core.keywords import axis_of
from netcl.fusion.fold import Axis

__all__ = ["all", "any", "argmax", "argmin", "logsumexp", "max", "mean", "min", "norm", "prod", "std", "sum", "var"]


def sum(x: Value, axis: Axis = None, keepdims: bool = False, *, dim: Axis = None, keepdim: bool = False) -> Node:
    """Sum over `axis` (all axes when None), float32 in blocks; integers and booleans give int64."""
    if dim is not None:
        axis = axis_of("sum", axis, None, dim)
    return apply_one("sum", x, axis=axis, keepdims=keepdims or keepdim)


def prod(x: Value, axis: Axis = None, keepdims: bool = False, *, dim: Axis = None, keepdim: bool = False) -> Node:
    """Product over `axis`; integers and booleans give int64. Its gradient is exact where elements are zero."""
    if dim is not None:
        axis = axis_of("prod", axis, None, dim)
    return apply_one("prod", x, axis=axis, keepdims=keepdims or keepdim)


def max(x: Value, axis: Axis = None, keepdims: bool = False, *, dim: Axis = None, keepdim: bool = False) -> Node:
    """Largest element over `axis`; NaN wins. Raises ShapeError over no elements.

    The gradient is shared evenly among equal ones.
    """
    if dim is not None:
        axis = axis_of("max", axis, None, dim)
    return apply_one("max", x, axis=axis, keepdims=keepdims or keepdim)


def min(x: Value, axis: Axis = None, keepdims: bool = False, *, dim: Axis = None, keepdim: bool = False) -> Node:
    """Smallest element over `axis`; NaN wins. Raises ShapeError over no elements.

    The gradient is shared evenly among equal ones.
    """
    if dim is not None:
        axis = axis_of("min", axis, None, dim)
    return apply_one("min", x, axis=axis, keepdims=keepdims or keepdim)


def mean(x: Value, axis: Axis = None, keepdims: bool = False, *, dim: Axis = None, keepdim: bool = False) -> Node:
    """sum / count over `axis`; NaN over no elements. Integers and booleans give floats."""
    if dim is not None:
        axis = axis_of("mean", axis, None, dim)
    return apply_one("mean", x, axis=axis, keepdims=keepdims or keepdim)


def var(
    x: Value,
    axis: Axis = None,
    keepdims: bool = False,
    correction: float = 0,
    *,
    dim: Axis = None,
    keepdim: bool = False,
) -> Node:
    """sum((x - mean)^2) / (n - correction) over `axis`, by two passes; NaN over no elements."""
    if dim is not None:
        axis = axis_of("var", axis, None, dim)
    return apply_one("var", x, axis=axis, keepdims=keepdims or keepdim, correction=correction)


def std(
    x: Value,
    axis: Axis = None,
    keepdims: bool = False,
    correction: float = 0,
    *,
    dim: Axis = None,
    keepdim: bool = False,
) -> Node:
    """Square root of `var`; the gradient is 0 where it is 0."""
    if dim is not None:
        axis = axis_of("std", axis, None, dim)
    return apply_one("std", x, axis=axis, keepdims=keepdims or keepdim, correction=correction)


def logsumexp(x: Value, axis: Axis = None, keepdims: bool = False, *, dim: Axis = None, keepdim: bool = False) -> Node:
    """log(sum(exp(x))) over `axis` without overflow. All -inf (or nothing) gives -inf, any +inf gives +inf."""
    if dim is not None:
        axis = axis_of("logsumexp", axis, None, dim)
    return apply_one("logsumexp", x, axis=axis, keepdims=keepdims or keepdim)


def norm(
    x: Value, ord: float = 2, axis: Axis = None, keepdims: bool = False, *, dim: Axis = None, keepdim: bool = False
) -> Node:
    """Norm of the elements over `axis`: sum |x| (ord 1), sqrt(sum x^2) (ord 2), max |x| (ord inf).

    Squares are added up as they are, as NumPy does: those of float32 overflow from 1.8e19 on.
    """
    if dim is not None:
        axis = axis_of("norm", axis, None, dim)
    return apply_one("norm", x, ord=ord, axis=axis, keepdims=keepdims or keepdim)


def any(x: Value, axis: Axis = None, keepdims: bool = False, *, dim: Axis = None, keepdim: bool = False) -> Node:
    """Whether some element over `axis` is not zero (NaN is not zero); bool."""
    if dim is not None:
        axis = axis_of("any", axis, None, dim)
    return apply_one("any", x, axis=axis, keepdims=keepdims or keepdim)


def all(x: Value, axis: Axis = None, keepdims: bool = False, *, dim: Axis = None, keepdim: bool = False) -> Node:
    """Whether every element over `axis` is not zero; bool."""
    if dim is not None:
        axis = axis_of("all", axis, None, dim)
    return apply_one("all", x, axis=axis, keepdims=keepdims or keepdim)


def argmax(
    x: Value, axis: int | None = None, keepdims: bool = False, *, dim: int | None = None, keepdim: bool = False
) -> Node:
    """Position of the first largest element along `axis` (None: of the flattened tensor); int64. NaN comes first."""
    if dim is not None:
        axis = axis_of("argmax", axis, None, dim)
    return apply_one("argmax", x, axis=axis, keepdims=keepdims or keepdim)


def argmin(
    x: Value, axis: int | None = None, keepdims: bool = False, *, dim: int | None = None, keepdim: bool = False
) -> Node:
    """Position of the first smallest element along `axis` (None: of the flattened tensor); int64. NaN comes first."""
    if dim is not None:
        axis = axis_of("argmin", axis, None, dim)
    return apply_one("argmin", x, axis=axis, keepdims=keepdims or keepdim)
