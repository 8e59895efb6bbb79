"""Elements and slices put, or added, by position. Of equal positions the last one stays, as in NumPy, in every run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netcl.core import layout
from netcl.core.dtypes import BOOL, INT64
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.tensor import Tensor, same_queue
from netcl.ops.create.factories import arange
from netcl.ops.elementwise import assign, copy, eq, mul, where
from netcl.ops.index.pick import check_gathered, check_index_dtype, gather, take_as, three
from netcl.ops.index.scatter import PUT, Addition, added, region_of
from netcl.ops.product.op import promote


def scatter(x: Tensor, index: Tensor, src: Tensor, axis: int) -> Tensor:
    """`x` with elements of `src` put along `axis`: y[index[i, j, k], j, k] = src[i, j, k] for axis 0.

    Where positions repeat, the last src along the axis stays, and it alone gets a gradient. Shapes: index and src
    alike, of the rank of x and at most its lengths except along `axis`. Raises IndexOutOfRange for indices outside
    [-length, length) (see pick.py), ShapeError, DTypeError unless x and src have one dtype.
    """
    same_queue("scatter", x, index, src)
    axis = layout.as_axis("scatter", axis, x.ndim)
    check_index_dtype("scatter", index)
    check_gathered("scatter", x.shape, index.shape, axis)
    if src.shape != index.shape:
        raise ShapeError(f"scatter: expected src of the index's shape {index.shape}, got {src.shape}.")
    _check_dtypes("scatter", x, src)
    out = copy(x)
    if index.size:
        seen = x[region_of(x.shape, index.shape, axis)]
        job = Addition("scatter", seen.shape, axis, three(index, axis), three(src, axis), x=seen, mode=PUT)
        assign(out[region_of(x.shape, index.shape, axis)], added(job))
    return out


def index_copy(x: Tensor, index: Tensor, src: Tensor, axis: int = 0) -> Tensor:
    """`x` with slices of `src` put along `axis`: y[index[i]] = src[i] for axis 0.

    Where positions repeat, the last slice stays, and it alone gets a gradient. Shapes: index of one axis; src of x's
    shape, but as long as the index along `axis`. Raises IndexOutOfRange for indices outside [-length, length),
    ShapeError, DTypeError unless x and src have one dtype.
    """
    axis = _check_slices("index_copy", x, index, src, axis)
    _check_dtypes("index_copy", x, src)
    where_to = index.reshape(1, -1, 1)
    return added(Addition("index_copy", x.shape, axis, where_to, three(src, axis), x=x, mode=PUT))


def index_add(x: Tensor, index: Tensor, src: Tensor, axis: int = 0, alpha: float = 1) -> Tensor:
    """`x` with `alpha` times slices of `src` added along `axis`: y[index[i]] += alpha * src[i] for axis 0.

    Sums run in the order of the index. Shapes: index of one axis; src of x's shape, but as long as the index along
    `axis`. The dtypes of x and src promote as in NumPy. Raises IndexOutOfRange for indices outside
    [-length, length), ShapeError, DTypeError for bools.
    """
    axis = _check_slices("index_add", x, index, src, axis)
    x, src = promote(x, src if alpha == 1 else mul(src, alpha))
    if x.dtype == BOOL:
        raise DTypeError("index_add: expected numbers, got bool; convert with astype.")
    return added(Addition("index_add", x.shape, axis, index.reshape(1, -1, 1), three(src, axis), x=x))


def _check_slices(name: str, x: Tensor, index: Tensor, src: Tensor, axis: int) -> int:
    """The axis, counted from the first, of slices that fit `x`."""
    same_queue(name, x, index, src)
    axis = layout.as_axis(name, axis, x.ndim)
    check_index_dtype(name, index)
    if index.ndim != 1:
        raise ShapeError(f"{name}: expected an index of one axis, got shape {index.shape}; reshape it.")
    want = (*x.shape[:axis], index.size, *x.shape[axis + 1 :])
    if src.shape != want:
        raise ShapeError(f"{name}: expected src {want} for x {x.shape} and {index.size} positions, got {src.shape}.")
    return axis


def _check_dtypes(name: str, x: Tensor, src: Tensor) -> None:
    if x.dtype != src.dtype:
        raise DTypeError(f"{name}: expected x and src of one dtype, got {x.dtype} and {src.dtype}; use astype.")


# -- gradients ---------------------------------------------------------------------------------------------------------


def scatter_grad(
    g: Tensor, y: Any, x: Any, index: Tensor, src: Any, axis: int, *, needs: Sequence[bool]
) -> list[Tensor | None]:
    """Zero where something was put, and for src what stayed."""
    gx = scatter(g, index, Tensor.zeros(g.queue, index.shape, g.dtype), axis) if needs[0] else None
    if not needs[2]:
        return [gx, None, None]
    number = arange(g.queue, index.size, dtype=INT64).reshape(index.shape)
    last = gather(scatter(Tensor.zeros(g.queue, x.shape, INT64), index, number, axis), index, axis)
    return [gx, None, where(eq(last, number), gather(g, index, axis), 0.0)]


def index_copy_grad(
    g: Tensor, y: Any, x: Any, index: Tensor, src: Any, axis: int = 0, *, needs: Sequence[bool]
) -> list[Tensor | None]:
    """Zero where something was put, and for src what stayed."""
    axis = layout.as_axis("index_copy", axis, g.ndim)
    gx = index_copy(g, index, Tensor.zeros(g.queue, src.shape, g.dtype), axis) if needs[0] else None
    if not needs[2]:
        return [gx, None, None]
    number = arange(g.queue, index.size, dtype=INT64)
    put = index_copy(Tensor.zeros(g.queue, x.shape[axis : axis + 1], INT64), index, number)
    last = take_as("index_copy", put, index, 0)
    stays = eq(last, number).reshape(-1, *[1] * (g.ndim - axis - 1))
    return [gx, None, where(stays, take_as("index_copy", g, index, axis), 0.0)]


def index_add_grad(
    g: Tensor, y: Any, x: Any, index: Tensor, src: Any, axis: int = 0, alpha: float = 1, *, needs: Sequence[bool]
) -> list[Tensor | None]:
    """g, and for src `alpha` times what lies where it was added."""
    if not needs[2]:
        return [g, None, None]
    taken = take_as("index_add", g, index, axis)
    return [g, None, taken if alpha == 1 else mul(taken, alpha)]
