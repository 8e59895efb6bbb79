"""Where values belong in sorted rows: searchsorted and bucketize."""

from __future__ import annotations

from typing import Any

import numpy as np

from netcl.core import layout
from netcl.core.backend import cpu
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import C_NAME, INT32, INT64, DType, compute_dtype, is_float
from netcl.core.errors import ShapeError
from netcl.core.protocols import Launch
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.kernels import sources
from netcl.kernels.grid import is_wide, like, line_of
from netcl.kernels.plans import remember
from netcl.kernels.program import program
from netcl.ops.index.pick import gather
from netcl.ops.product.op import promote

EACH = 8  # values that an item of a CPU device looks up together


def searchsorted(
    sorted: Tensor, values: Tensor, right: bool = False, sorter: Tensor | None = None, side: str | None = None
) -> Tensor:
    """How many elements of a sorted row come before each value (int64): where it belongs, before equal ones.

    After equal ones with `right` (or side="right"). NaN comes after everything. `sorter` (int64, of the shape of
    `sorted`) gives the order of a row that is not sorted, as argsort does.
    Shapes: sorted (n,) and values of any shape; or sorted (..., n) and values (..., m), row by row. The result has the
    shape of the values. Dtypes promote as in NumPy. Raises ShapeError, ValueError for another side.
    """
    if side is not None:
        if side not in ("left", "right"):
            raise ValueError(f"searchsorted: expected side 'left' or 'right', got {side!r}.")
        right = side == "right"
    return _found("searchsorted", sorted, values, right, sorter)


def bucketize(x: Tensor, boundaries: Tensor, right: bool = False) -> Tensor:
    """The number of the bucket between sorted `boundaries` (n,) that each element of `x` lies in, 0 to n (int64).

    boundaries[i - 1] < x <= boundaries[i], or with `right` boundaries[i - 1] <= x < boundaries[i]. NaN lies behind all.
    """
    if boundaries.ndim != 1:
        raise ShapeError(f"bucketize: expected boundaries of one axis, got shape {boundaries.shape}.")
    return _found("bucketize", boundaries, x, right)


def _found(where: str, sorted: Tensor, values: Tensor, right: bool, sorter: Tensor | None = None) -> Tensor:
    same_queue(where, sorted, values, *(() if sorter is None else (sorter,)))
    check_rows(where, sorted.shape, values.shape)
    if sorter is not None:
        if sorter.shape != sorted.shape:
            raise ShapeError(f"{where}: expected a sorter of shape {sorted.shape}, got {sorter.shape}.")
        sorted = gather(sorted, sorter, -1)
    row, wanted = promote(sorted, values)
    return _searched(where, row, wanted, bool(right), False)


def bin_of(where: str, edges: Tensor, values: Tensor) -> Tensor:
    """Which bin each value lies in, counted from 1, and 0 outside (int32): see `histogram`."""
    row, wanted = promote(edges, values)
    return _searched(where, row, wanted, True, True)


def _searched(where: str, row: Tensor, wanted: Tensor, right: bool, bins: bool) -> Tensor:
    dtype = INT32 if bins else INT64
    if wanted.size == 0 or row.size == 0:
        return Tensor.zeros(wanted.queue, wanted.shape, dtype)
    rows = layout.size_of(row.shape[:-1])
    row, lines = row.reshape(rows, row.shape[-1]), wanted.reshape(rows, -1)
    if row.backend == "cpu":
        return cpu.compute(_numpy_search, row, lines, right=right, bins=bins).reshape(wanted.shape)
    launch = remember(row.queue, (where, bins, *like(row), *like(lines)), lambda: _plan(row, lines, dtype))
    out = allocate(row.queue, wanted.shape, dtype)
    launch(sorted=row, v=lines, out=out.buffer, right=int(right), bins=int(bins))
    return out


def check_rows(where: str, sorted: layout.Shape, values: layout.Shape) -> None:
    """Raise ShapeError unless values of this shape can be looked up in rows of that one."""
    if not sorted or (len(sorted) > 1 and (len(values) != len(sorted) or values[:-1] != sorted[:-1])):
        want = "(n,), or (..., n) for values (..., m)"
        raise ShapeError(f"{where}: expected sorted {want}, got {sorted} for {values}.")


def _plan(row: Tensor, values: Tensor, result: DType) -> Launch[Any]:
    profile, queue = profile_of(row.queue), row.queue
    grid, local, step = line_of(profile, values.size)
    each = EACH if profile.kind == "cpu" else 1
    width = "long" if is_wide(profile, row, values) else "int"
    types = {"S": C_NAME[row.dtype], "T": C_NAME[compute_dtype(row.dtype)], "R": C_NAME[result], "I": width}
    made = program(queue, sources.load("search.cl", **types, EACH=each), "search", ("-w",))
    several = row.shape[0] > 1
    strides = {"s_r": row.strides[0] if several else 0, "v_r": values.strides[0] if several else 0}
    facts = {**strides, "s_n": row.strides[1], "v_m": values.strides[1], "n": row.shape[1], "m": values.shape[1]}
    return made.bind(grid, local, **facts, size=values.size, step=step)


def _numpy_search(rows: np.ndarray, values: np.ndarray, right: bool, bins: bool) -> np.ndarray:
    dtype = compute_dtype(rows.dtype) if is_float(rows.dtype) else rows.dtype
    side: Any = "right" if right else "left"
    rows, values = rows.astype(dtype, copy=False), values.astype(dtype, copy=False)
    found = np.stack([np.searchsorted(r, v, side) for r, v in zip(rows, values)])
    if bins:
        last = rows.shape[1]
        found[found == last] = np.where(values[found == last] == rows[0, -1], last - 1, 0)
    return found.astype(np.int32 if bins else np.int64, copy=False)
