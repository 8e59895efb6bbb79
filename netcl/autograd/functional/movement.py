"""Views and other movements of elements, on nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netcl.autograd.node import Node
from netcl.autograd.op import apply_op
from netcl.core import layout
from netcl.core.dtypes import as_dtype

__all__ = [
    "astype", "concat", "contiguous", "expand", "flatten", "getitem", "permute", "reshape", "squeeze", "stack",
    "to", "transpose", "unsqueeze",
]  # fmt: skip

Value = Any  # a Node, a Tensor or a Python number


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
