"""The sum, product, mean, largest or smallest of what goes to one place, always in the order of the index."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from netcl.core import layout
from netcl.core.dtypes import BOOL, INT32, DType, compute_dtype, is_float
from netcl.core.errors import DTypeError, ShapeError, meant
from netcl.core.tensor import Tensor, same_queue
from netcl.ops.elementwise import assign, cast, copy, div, eq, isnan, logical_and, logical_or, maximum, mul, where
from netcl.ops.index.pick import check_gathered, check_index_dtype, gather, three
from netcl.ops.index.place import scatter
from netcl.ops.index.scatter import ADD, MAX, MIN, MUL, Addition, added, region_of, scatter_add
from netcl.ops.product.op import promote

REDUCES = {
    "sum": ADD,
    "mean": ADD,
    "prod": MUL,
    "amax": MAX,
    "amin": MIN,
    "add": ADD,
    "mul": MUL,
    "max": MAX,
    "min": MIN,
}


def scatter_reduce(
    x: Tensor, index: Tensor, src: Tensor, axis: int, reduce: str = "sum", include_self: bool = True
) -> Tensor:
    """`x` with what `src` puts at one place along `axis` combined: "sum", "prod", "mean", "amax" or "amin".

    y[i, j, k] = reduce(x[i, j, k], every src[l, j, k] with index[l, j, k] = i) for axis 0; without x where
    `include_self` is false, which then stays where nothing is put. "add", "mul", "max" and "min" mean the same.
    Shapes: as `scatter_add`. The dtypes of x and src promote as in NumPy. NaN wins in "amax" and "amin", whose gradient
    is shared evenly among equal ones. Raises IndexOutOfRange for indices outside [-length, length), ShapeError,
    DTypeError for bools and for the mean of integers.
    """
    same_queue("scatter_reduce", x, index, src)
    axis = layout.as_axis("scatter_reduce", axis, x.ndim)
    check_index_dtype("scatter_reduce", index)
    check_gathered("scatter_reduce", x.shape, index.shape, axis)
    if src.shape != index.shape:
        raise ShapeError(f"scatter_reduce: expected src of the index's shape {index.shape}, got {src.shape}.")
    x, src = promote(x, src)
    _check("scatter_reduce", reduce, x.dtype)
    if index.size == 0:
        return copy(x)
    region = region_of(x.shape, index.shape, axis)
    part = _combined(x[region], index, src, axis, reduce, include_self)
    if part.shape == x.shape:
        return part
    out = copy(x)
    assign(out[region], part)
    return out


def _check(where: str, reduce: str, dtype: DType) -> None:
    if reduce not in REDUCES:
        raise ValueError(
            f"{where}: expected reduce as one of {', '.join(REDUCES)}, got {reduce!r}{meant(reduce, REDUCES)}."
        )
    if dtype == BOOL:
        raise DTypeError(f"{where}: expected numbers, got bool; convert with astype.")
    if reduce == "mean" and not is_float(dtype):
        raise DTypeError(f"{where}: expected a floating dtype for the mean, got {dtype}; convert with astype.")


def _combined(x: Tensor, index: Tensor, src: Tensor, axis: int, reduce: str, include_self: bool) -> Tensor:
    """`scatter_reduce` where the index reaches all of `x`."""
    mode, dtype = REDUCES[reduce], x.dtype
    if not include_self:
        x = where(_touched(x.shape, index, axis), _identity(mode, dtype), x)
    if reduce == "mean":
        x, src = (cast(t, compute_dtype(dtype)) for t in (x, src))
    y = added(Addition("scatter_reduce", x.shape, axis, three(index, axis), three(src, axis), x=x, mode=mode))
    return y if reduce != "mean" else cast(div(y, cast(_counts(x.shape, index, axis, include_self), y.dtype)), dtype)


def _touched(shape: layout.Shape, index: Tensor, axis: int) -> Tensor:
    """Where something is put."""
    none, ones = Tensor.zeros(index.queue, shape, BOOL), Tensor.ones(index.queue, index.shape, BOOL)
    return scatter(none, index, ones, axis)


def _counts(shape: layout.Shape, index: Tensor, axis: int, include_self: bool) -> Tensor:
    """How many values each mean is of (int32)."""
    start = Tensor.full(index.queue, shape, int(include_self), INT32)
    found = scatter_add(start, index, Tensor.ones(index.queue, index.shape, INT32), axis)
    return found if include_self else maximum(found, 1)


def _identity(mode: int, dtype: DType) -> float:
    """What changes nothing."""
    if mode in (ADD, MUL):
        return int(mode == MUL)
    if is_float(dtype):
        return -np.inf if mode == MAX else np.inf
    limits = np.iinfo(dtype)
    return int(limits.min if mode == MAX else limits.max)


# -- gradients ---------------------------------------------------------------------------------------------------------


def scatter_reduce_grad(
    g: Tensor,
    y: Tensor,
    x: Tensor,
    index: Tensor,
    src: Tensor,
    axis: int,
    reduce: str = "sum",
    include_self: bool = True,
    *,
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """What x and src had a part in."""
    if index.size == 0:
        return [g, None, Tensor.zeros(g.queue, index.shape, g.dtype)]
    untouched = None if include_self else where(_touched(x.shape, index, axis), 0.0, 1.0)
    slopes = {MUL: _product_slopes, MAX: _extreme_slopes, MIN: _extreme_slopes}.get(REDUCES[reduce])
    if slopes is None:
        counts = _counts(x.shape, index, axis, include_self) if reduce == "mean" else None
        gs = g if counts is None else div(g, cast(counts, compute_dtype(g.dtype)))
        gx, gs = gs if untouched is None else g, gather(gs, index, axis)
    else:
        gx, gs = slopes(g, y, x, index, src, axis, untouched)
    return [cast(gx if untouched is None else mul(gx, untouched), g.dtype), None, cast(gs, g.dtype)]


def _extreme_slopes(
    g: Tensor, y: Tensor, x: Tensor, index: Tensor, src: Tensor, axis: int, untouched: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Shares of the upstream gradient for all that equals the result; NaN equals NaN."""
    compute = compute_dtype(g.dtype)
    hit_x, hit_s = cast(_same(x, y), compute), cast(_same(src, gather(y, index, axis)), compute)
    hit_x = hit_x if untouched is None else mul(hit_x, untouched)
    share = div(g, scatter_add(hit_x, index, hit_s, axis))
    return where(hit_x, share, 0.0), where(hit_s, gather(share, index, axis), 0.0)


def _same(a: Tensor, b: Tensor) -> Tensor:
    return logical_or(eq(a, b), logical_and(isnan(a), isnan(b)))


def _product_slopes(
    g: Tensor, y: Tensor, x: Tensor, index: Tensor, src: Tensor, axis: int, untouched: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The upstream gradient times the product of the others, also where one of them is 0."""
    compute = compute_dtype(g.dtype)
    x, src = cast(x, compute), cast(src, compute)
    zero_x, zero_s = eq(x, 0), eq(src, 0)
    own = cast(zero_x, INT32) if untouched is None else cast(mul(cast(zero_x, compute), untouched), INT32)
    zeros = scatter_add(own, index, cast(zero_s, INT32), axis)
    ones_x, ones_s = where(zero_x, 1.0, x), where(zero_s, 1.0, src)
    rest = scatter_reduce(ones_x, index, ones_s, axis, "prod", untouched is None)

    def slope(g: Tensor, is_zero: Tensor, value: Tensor, zeros: Tensor, rest: Tensor) -> Tensor:
        return mul(g, where(eq(zeros, cast(is_zero, INT32)), div(rest, value), 0.0))

    there = [gather(t, index, axis) for t in (g, zeros, rest)]
    return slope(g, zero_x, ones_x, zeros, rest), slope(there[0], zero_s, ones_s, *there[1:])
