"""Reductions on nodes. A full reduction has shape (1,); `axis` is None, a number or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netcl.autograd.node import Node
from netcl.autograd.op import apply_op

__all__ = [
    "all", "any", "argmax", "argmin", "logsumexp", "max", "mean", "min", "norm", "prod", "std", "sum", "var",
]  # fmt: skip

Value = Any  # a Node or a Tensor
Axis = int | Sequence[int] | None


def sum(x: Value, axis: Axis = None, keepdims: bool = False) -> Node:
    """Sum over `axis`; integers and booleans give int64."""
    return apply_op("sum", x, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]


def mean(x: Value, axis: Axis = None, keepdims: bool = False) -> Node:
    """Arithmetic mean over `axis`."""
    return apply_op("mean", x, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]


def prod(x: Value, axis: Axis = None, keepdims: bool = False) -> Node:
    """Product over `axis`; its gradient is exact where elements are zero."""
    return apply_op("prod", x, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]


def max(x: Value, axis: Axis = None, keepdims: bool = False) -> Node:
    """Largest element over `axis`; the gradient is shared evenly among equal ones."""
    return apply_op("max", x, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]


def min(x: Value, axis: Axis = None, keepdims: bool = False) -> Node:
    """Smallest element over `axis`; the gradient is shared evenly among equal ones."""
    return apply_op("min", x, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]


def var(x: Value, axis: Axis = None, keepdims: bool = False, correction: float = 0) -> Node:
    """sum((x - mean)^2) / (n - correction) over `axis`."""
    return apply_op("var", x, axis=axis, keepdims=keepdims, correction=correction)  # type: ignore[no-any-return]


def std(x: Value, axis: Axis = None, keepdims: bool = False, correction: float = 0) -> Node:
    """Square root of `var`; the gradient is 0 where it is 0."""
    return apply_op("std", x, axis=axis, keepdims=keepdims, correction=correction)  # type: ignore[no-any-return]


def logsumexp(x: Value, axis: Axis = None, keepdims: bool = False) -> Node:
    """log(sum(exp(x))) over `axis`, without overflow."""
    return apply_op("logsumexp", x, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]


def norm(x: Value, ord: float = 2, axis: Axis = None, keepdims: bool = False) -> Node:
    """Norm of the elements over `axis`: ord 1, 2 or inf."""
    return apply_op("norm", x, ord=ord, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]


def argmax(x: Value, axis: int | None = None, keepdims: bool = False) -> Node:
    """Position of the first largest element along `axis`; int64, no gradient."""
    return apply_op("argmax", x, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]


def argmin(x: Value, axis: int | None = None, keepdims: bool = False) -> Node:
    """Position of the first smallest element along `axis`; int64, no gradient."""
    return apply_op("argmin", x, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]


def any(x: Value, axis: Axis = None, keepdims: bool = False) -> Node:
    """Whether some element over `axis` is not zero."""
    return apply_op("any", x, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]


def all(x: Value, axis: Axis = None, keepdims: bool = False) -> Node:
    """Whether every element over `axis` is not zero."""
    return apply_op("all", x, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]
