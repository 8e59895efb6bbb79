"""Selecting, scattering, sorting on nodes. Written by tools/generate_ops.py from the records of ops; do not edit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netcl.autograd.node import Node, Value
from netcl.autograd.op import apply_many, apply_one
from netcl.core.keywords import axis_of, index_before_axis, needed_axis

__all__ = [
    "argsort",
    "argwhere",
    "bincount",
    "bucketize",
    "cumsum",
    "embedding",
    "gather",
    "histc",
    "histogram",
    "index_add",
    "index_copy",
    "index_select",
    "isin",
    "masked_select",
    "nonzero",
    "one_hot",
    "ravel_index",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "searchsorted",
    "take",
    "tril",
    "triu",
    "unique",
]


def tril(x: Value, k: int = 0) -> Node:
    """The lower triangle of each matrix of `x` (..., rows, cols): elements with column - row <= k, zeros elsewhere."""
    return apply_one("tril", x, k=k)


def triu(x: Value, k: int = 0) -> Node:
    """The upper triangle of each matrix of `x` (..., rows, cols): elements with column - row >= k, zeros elsewhere."""
    return apply_one("triu", x, k=k)


def take(x: Value, index: Value, axis: int = 0, *, dim: int | None = None) -> Node:
    """Whole slices of `x` by position: y[.., i.., ..] = x[.., index[i..], ..].

    Shapes: index of any shape; y = x.shape[:axis] + index.shape + x.shape[axis + 1:]. Raises IndexOutOfRange (see the
    module), DTypeError, ShapeError.
    """
    if dim is not None:
        axis = axis_of("take", axis, 0, dim)
    return apply_one("take", x, index, axis=axis)


def index_select(x: Value, index: Value, axis: int = 0, *, dim: int | None = None) -> Node:
    """`take` with an index of one axis."""
    index, axis = index_before_axis(index, axis)
    if dim is not None:
        axis = axis_of("index_select", axis, 0, dim)
    return apply_one("index_select", x, index, axis=axis)


def gather(x: Value, index: Value, axis: int | None = None, *, dim: int | None = None) -> Node:
    """Elements of `x` along `axis`, one per element of `index`: y[i, j, k] = x[index[i, j, k], j, k] for axis 0.

    Shapes: index has the rank of x and at most its lengths except along `axis`; y has the index's shape. Raises
    IndexOutOfRange (see the module), DTypeError, ShapeError.
    """
    index, axis = index_before_axis(index, axis)
    axis = needed_axis("gather", axis, dim)
    return apply_one("gather", x, index, axis=axis)


def embedding(weight: Value, index: Value, padding_index: int | None = None) -> Node:
    """Rows of a table: y[i..] = weight[index[i..]].

    Row `padding_index` is read like any other; it only gets no gradient. Shapes: weight (rows, D), index of any shape;
    y = index.shape + (D,). Raises IndexOutOfRange (see the module), DTypeError, ShapeError.
    """
    return apply_one("embedding", weight, index, padding_index=padding_index)


def scatter_add(x: Value, index: Value, src: Value, axis: int | None = None, *, dim: int | None = None) -> Node:
    """`x` with `src` added along `axis`: y[index[i, j, k], j, k] += src[i, j, k] for axis 0.

    Shapes: index and src alike, of the rank of x and at most its lengths except along `axis`. The dtypes of x and src
    promote as in NumPy. Raises IndexOutOfRange for indices outside [-length, length) (see pick.py), ShapeError.
    """
    index, src, axis = index_before_axis(index, src, axis)
    axis = needed_axis("scatter_add", axis, dim)
    return apply_one("scatter_add", x, index, src, axis=axis)


def scatter(x: Value, index: Value, src: Value, axis: int | None = None, *, dim: int | None = None) -> Node:
    """`x` with elements of `src` put along `axis`: y[index[i, j, k], j, k] = src[i, j, k] for axis 0.

    Where positions repeat, the last src along the axis stays, and it alone gets a gradient. Shapes: index and src
    alike, of the rank of x and at most its lengths except along `axis`. Raises IndexOutOfRange for indices outside
    [-length, length) (see pick.py), ShapeError, DTypeError unless x and src have one dtype.
    """
    index, src, axis = index_before_axis(index, src, axis)
    axis = needed_axis("scatter", axis, dim)
    return apply_one("scatter", x, index, src, axis=axis)


def scatter_reduce(
    x: Value,
    index: Value,
    src: Value,
    axis: int | None = None,
    reduce: str = "sum",
    include_self: bool = True,
    *,
    dim: int | None = None,
) -> Node:
    """`x` with what `src` puts at one place along `axis` combined: "sum", "prod", "mean", "amax" or "amin".

    y[i, j, k] = reduce(x[i, j, k], every src[l, j, k] with index[l, j, k] = i) for axis 0; without x where
    `include_self` is false, which then stays where nothing is put. "add", "mul", "max" and "min" mean the same.
    Shapes: as `scatter_add`. The dtypes of x and src promote as in NumPy. NaN wins in "amax" and "amin", whose gradient
    is shared evenly among equal ones. Raises IndexOutOfRange for indices outside [-length, length), ShapeError,
    DTypeError for bools and for the mean of integers.
    """
    index, src, axis = index_before_axis(index, src, axis)
    axis = needed_axis("scatter_reduce", axis, dim)
    return apply_one("scatter_reduce", x, index, src, axis=axis, reduce=reduce, include_self=include_self)


def index_copy(x: Value, index: Value, src: Value, axis: int = 0, *, dim: int | None = None) -> Node:
    """`x` with slices of `src` put along `axis`: y[index[i]] = src[i] for axis 0.

    Where positions repeat, the last slice stays, and it alone gets a gradient. Shapes: index of one axis; src of x's
    shape, but as long as the index along `axis`. Raises IndexOutOfRange for indices outside [-length, length),
    ShapeError, DTypeError unless x and src have one dtype.
    """
    index, src, axis = index_before_axis(index, src, axis)
    if dim is not None:
        axis = axis_of("index_copy", axis, 0, dim)
    return apply_one("index_copy", x, index, src, axis=axis)


def index_add(x: Value, index: Value, src: Value, axis: int = 0, alpha: float = 1, *, dim: int | None = None) -> Node:
    """`x` with `alpha` times slices of `src` added along `axis`: y[index[i]] += alpha * src[i] for axis 0.

    Sums run in the order of the index. Shapes: index of one axis; src of x's shape, but as long as the index along
    `axis`. The dtypes of x and src promote as in NumPy. Raises IndexOutOfRange for indices outside
    [-length, length), ShapeError, DTypeError for bools.
    """
    index, src, axis = index_before_axis(index, src, axis)
    if dim is not None:
        axis = axis_of("index_add", axis, 0, dim)
    return apply_one("index_add", x, index, src, axis=axis, alpha=alpha)


def masked_select(x: Value, mask: Value) -> Node:
    """The elements of `x` where `mask` is true, in row-major order, as one axis; x and mask broadcast.

    The length of the result depends on the data: on a device this waits for the queue to read the count.
    """
    return apply_one("masked_select", x, mask)


def one_hot(index: Value, classes: int, dtype: Any = "float32") -> Node:
    """y[i.., c] = 1 where c == index[i..], else 0. Shapes: (...) -> (..., classes). Raises IndexOutOfRange."""
    return apply_one("one_hot", index, classes=classes, dtype=dtype)


def isin(x: Value, values: Value) -> Node:
    """Whether each element of `x` equals one of `values` (any shape); bool. Compares all pairs, storing none."""
    return apply_one("isin", x, values)


def cumsum(x: Value, axis: int | None = None, *, dim: int | None = None) -> Node:
    """y[k] = x[0] + ... + x[k] along `axis`; without an axis, of the flattened tensor, as in NumPy.

    Integers and booleans give int64. Sums are kept in double precision where the device has it at no cost, else in
    float32 in blocks.
    """
    if dim is not None:
        axis = axis_of("cumsum", axis, None, dim)
    return apply_one("cumsum", x, axis=axis)


def argsort(x: Value, axis: int = -1, descending: bool = False, *, dim: int | None = None) -> Node:
    """Positions that sort `x` along `axis`, as int64: equal elements keep their order, NaN comes last."""
    if dim is not None:
        axis = axis_of("argsort", axis, -1, dim)
    return apply_one("argsort", x, axis=axis, descending=descending)


def bincount(x: Value, weights: Value | None = None, minlength: int = 0) -> Node:
    """How often each position occurs in `x` (one axis, int32 or int64), or the sum of its `weights`.

    The result has max(x) + 1 elements, at least `minlength`, and the dtype of the weights, int64 without. Its length
    depends on the data: on a device this waits for the queue to read the largest. Raises IndexOutOfRange for negative
    ones, ShapeError, DTypeError.
    """
    return apply_one(
        "bincount", x, weights=weights.value if isinstance(weights, Node) else weights, minlength=minlength
    )


def histogram(
    x: Value,
    bins: int | Value = 10,
    range: tuple[float, float] | None = None,
    weights: Value | None = None,
    density: bool = False,
) -> tuple[Node, ...]:
    """How many elements of `x` lie in each bin, and the edges of the bins (as NumPy's histogram).

    Bin i holds edges[i] <= x < edges[i + 1], the last one its upper edge as well; what lies outside, and NaN, is left
    out. `bins` is a number of bins of one width over `range`, by default from the smallest element to the largest (then
    a device waits for them); or rising edges (n + 1,). The counts are int64, or sums of the `weights` (of the shape of
    x) in their dtype; with `density` shares per width of the bin, whose integral is 1.
    Raises ShapeError, ValueError for a range that is not finite or falls.
    """
    operands = (x,) if bins is None else (x, bins)
    return apply_many(
        "histogram",
        *operands,
        range=range,
        weights=weights.value if isinstance(weights, Node) else weights,
        density=density,
    )


def histc(x: Value, bins: int = 100, min: float = 0, max: float = 0) -> Node:
    """How many elements of `x` lie in each of `bins` of one width from `min` to `max`, in the dtype of x.

    From the smallest element to the largest where min and max are equal. What lies outside, and NaN, is left out.
    """
    return apply_one("histc", x, bins=bins, min=min, max=max)


def unique(
    x: Value,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    return_index: bool = False,
    *,
    dim: int | None = None,
) -> Node:
    """The different elements of `x` in rising order; with an axis, its different slices in that order.

    Where not `sorted`, in the order in which they first occur. Alone, or a tuple with what is asked for: where each
    occurs first (index), the position of each element or slice among them (inverse, of the shape of x, or one axis),
    how often each occurs (counts), all int64. Every NaN differs from all others, and comes last; -0 equals 0. Their
    number depends on the data: on a device this waits for the queue.
    """
    if dim is not None:
        axis = axis_of("unique", axis, None, dim)
    return apply_one(
        "unique",
        x,
        sorted=sorted,
        return_inverse=return_inverse,
        return_counts=return_counts,
        axis=axis,
        return_index=return_index,
    )


def searchsorted(
    sorted: Value, values: Value, right: bool = False, sorter: Value | None = None, side: str | None = None
) -> Node:
    """How many elements of a sorted row come before each value (int64): where it belongs, before equal ones.

    After equal ones with `right` (or side="right"). NaN comes after everything. `sorter` (int64, of the shape of
    `sorted`) gives the order of a row that is not sorted, as argsort does.
    Shapes: sorted (n,) and values of any shape; or sorted (..., n) and values (..., m), row by row. The result has the
    shape of the values. Dtypes promote as in NumPy. Raises ShapeError, ValueError for another side.
    """
    return apply_one(
        "searchsorted",
        sorted,
        values,
        right=right,
        sorter=sorter.value if isinstance(sorter, Node) else sorter,
        side=side,
    )


def bucketize(x: Value, boundaries: Value, right: bool = False) -> Node:
    """The number of the bucket between sorted `boundaries` (n,) that each element of `x` lies in, 0 to n (int64).

    boundaries[i - 1] < x <= boundaries[i], or with `right` boundaries[i - 1] <= x < boundaries[i]. NaN lies behind all.
    """
    return apply_one("bucketize", x, boundaries, right=right)


def ravel_index(index: Value, dims: Sequence[int], where: str = "ravel_index") -> Node:
    """Positions in an array of lengths `dims`, flattened, from positions along each of its axes (int64).

    Shapes: index (..., len(dims)) of int32 or int64 -> (...). Negative ones count from the end of their axis. Raises
    IndexOutOfRange, under the name `where`, DTypeError, ShapeError.
    """
    return apply_one("ravel_index", index, dims=dims, where=where)


def nonzero(x: Value) -> Node:
    """The positions of the elements that are not zero, in row-major order: int64 (count, axes of x). NaN is not zero.

    The length of the result depends on the data: on a device this waits for the queue to read the count.
    """
    return apply_one("nonzero", x)


def argwhere(x: Value) -> Node:
    """`nonzero` by its name in NumPy."""
    return apply_one("argwhere", x)
