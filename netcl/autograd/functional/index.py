"""Selecting, scattering and sorting on nodes. Indices are int32 or int64 and get no gradient.

An index outside its axis raises IndexOutOfRange, on OpenCL at the next synchronisation.
"""

from __future__ import annotations

from typing import Any

from netcl.autograd.functional.movement import getitem, shape_of
from netcl.autograd.node import Node
from netcl.autograd.op import apply_op
from netcl.core import layout
from netcl.core.errors import ShapeError

__all__ = [
    "argsort", "cumsum", "embedding", "gather", "index_select", "isin", "masked_select", "one_hot", "scatter_add",
    "sort", "take", "topk", "tril", "triu",
]  # fmt: skip

Value = Any  # a Node or a Tensor


def cumsum(x: Value, axis: int | None = None) -> Node:
    """Running sum along `axis` (of the flattened value when None)."""
    return apply_op("cumsum", x, axis=axis)  # type: ignore[no-any-return]


def take(x: Value, index: Value, axis: int = 0) -> Node:
    """Whole slices by position: y[.., i.., ..] = x[.., index[i..], ..]."""
    return apply_op("take", x, index, axis=axis)  # type: ignore[no-any-return]


def index_select(x: Value, index: Value, axis: int = 0) -> Node:
    """`take` with an index of one axis."""
    return apply_op("index_select", x, index, axis=axis)  # type: ignore[no-any-return]


def gather(x: Value, index: Value, axis: int) -> Node:
    """One element of `x` along `axis` for each element of `index`."""
    return apply_op("gather", x, index, axis=axis)  # type: ignore[no-any-return]


def embedding(weight: Value, index: Value, padding_index: int | None = None) -> Node:
    """Rows of a table: y[i..] = weight[index[i..]]. Row `padding_index` gets no gradient."""
    return apply_op("embedding", weight, index, padding_index=padding_index)  # type: ignore[no-any-return]


def scatter_add(x: Value, index: Value, src: Value, axis: int) -> Node:
    """`x` with each element of `src` added at its index along `axis`."""
    return apply_op("scatter_add", x, index, src, axis=axis)  # type: ignore[no-any-return]


def masked_select(x: Value, mask: Value) -> Node:
    """The elements where `mask` is true, as one axis. Waits for the device, since the length depends on the data."""
    return apply_op("masked_select", x, mask)  # type: ignore[no-any-return]


def argsort(x: Value, axis: int = -1, descending: bool = False) -> Node:
    """Positions that sort `x` along `axis`; equal elements keep their order, NaN comes last."""
    return apply_op("argsort", x, axis=axis, descending=descending)  # type: ignore[no-any-return]


def sort(x: Value, axis: int = -1, descending: bool = False) -> Node:
    """`x` sorted along `axis`, NaN last."""
    axis = layout.as_axis("sort", axis, len(shape_of("sort", x)))
    return gather(x, argsort(x, axis, descending), axis)


def topk(x: Value, k: int, axis: int = -1, largest: bool = True) -> tuple[Node, Node]:
    """The `k` largest (or smallest) elements along `axis` in order, and their positions."""
    shape = shape_of("topk", x)
    axis = layout.as_axis("topk", axis, len(shape))
    if not 0 <= layout.as_int("topk", k, "k") <= shape[axis]:
        raise ShapeError(f"topk: expected k in [0, {x.shape[axis]}] for axis {axis} of {x.shape}, got {k}.")
    places = getitem(argsort(x, axis, largest), ((slice(None),) * axis + (slice(k),)))
    return gather(x, places, axis), places


def tril(x: Value, k: int = 0) -> Node:
    """The lower triangle of each matrix: elements with column - row <= k, zeros elsewhere."""
    return apply_op("tril", x, k=k)  # type: ignore[no-any-return]


def triu(x: Value, k: int = 0) -> Node:
    """The upper triangle of each matrix: elements with column - row >= k, zeros elsewhere."""
    return apply_op("triu", x, k=k)  # type: ignore[no-any-return]


def one_hot(index: Value, classes: int, dtype: Any = "float32") -> Node:
    """1 at each index along a new last axis of `classes`, 0 elsewhere; no gradient."""
    return apply_op("one_hot", index, classes=classes, dtype=dtype)  # type: ignore[no-any-return]


def isin(x: Value, values: Value) -> Node:
    """Whether each element equals one of `values`; no gradient."""
    return apply_op("isin", x, values)  # type: ignore[no-any-return]
