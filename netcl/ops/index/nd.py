"""Elements and slices by positions along several axes: gather_nd, scatter_nd, index_put, and more made of other ops.

These work on tensors and on nodes alike, by the ops of what they are given, so gradients pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from netcl.core import layout
from netcl.core.backend import cpu
from netcl.core.backend.opencl import arm_flag, flag_buffer
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import BOOL, INT64
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.layout import Shape
from netcl.core.live import sized_by_data
from netcl.core.protocols import Launch
from netcl.core.tensor import OPERATIONS, Tensor
from netcl.kernels.grid import is_wide, like, line_of
from netcl.kernels.plans import remember
from netcl.ops.create.factories import arange
from netcl.ops.index.counts import counted
from netcl.ops.index.pick import RAVEL, check_index_dtype, from_start, gather_program

REDUCTIONS = ("none", "add", "mul", "max", "min")  # of scatter_nd, as in ONNX


def ravel_index(index: Tensor, dims: Sequence[int], where: str = "ravel_index") -> Tensor:
    """Positions in an array of lengths `dims`, flattened, from positions along each of its axes (int64).

    Shapes: index (..., len(dims)) of int32 or int64 -> (...). Negative ones count from the end of their axis. Raises
    IndexOutOfRange, under the name `where`, DTypeError, ShapeError.
    """
    check_index_dtype(where, index)
    sizes = tuple(dims)
    if index.ndim == 0 or index.shape[-1] != len(sizes):
        raise ShapeError(f"{where}: expected positions (..., {len(sizes)}) along {sizes}, got shape {index.shape}.")
    if index.backend == "cpu":
        return cpu.compute(_numpy_ravel, index, dims=sizes, where=where)
    rows = index.reshape(layout.size_of(index.shape[:-1]), len(sizes))
    if rows.shape[0] == 0 or not sizes:
        return Tensor.zeros(index.queue, index.shape[:-1], INT64)
    launch = remember(index.queue, ("ravel", sizes, index.shape, *like(rows)), partial(_ravel_plan, rows, index, sizes))
    found: Tensor = launch(index=rows, code=arm_flag(index.queue, where))
    return found


def _ravel_plan(rows: Tensor, index: Tensor, sizes: Shape) -> Launch[Tensor]:
    queue, profile = rows.queue, profile_of(rows.queue)
    grid, local, step = line_of(profile, rows.shape[0])
    made = gather_program(queue, RAVEL, 8, rows.dtype, is_wide(profile, rows))
    lengths = Tensor.from_host(queue, np.asarray(sizes, np.int64))
    new = {"out": (index.shape[:-1], INT64)}
    facts = {"i_r": rows.strides[0], "i_k": rows.strides[1], "rows": rows.shape[0], "axes": len(sizes), "step": step}
    return made.bind(grid, local, new, flag=flag_buffer(queue), lengths=lengths.buffer, **facts)


def _numpy_ravel(index: np.ndarray, dims: Shape, where: str) -> np.ndarray:
    flat = np.zeros(index.shape[:-1], np.int64)
    for axis, n in enumerate(dims):
        flat = flat * n + from_start(where, index[..., axis], n, False)
    return flat


def ops_of(*values: Any) -> dict[str, Callable[..., Any]]:
    """The ops on what is given: on nodes where one of the values is one."""
    node = next((v for v in values if hasattr(v, "shape") and not isinstance(v, Tensor)), None)
    return OPERATIONS if node is None else node._operations


def gather_nd(x: Any, indices: Any, batch_dims: int = 0) -> Any:
    """Slices of `x` by positions along its first axes: y[i..] = x[tuple(indices[i..])], as in ONNX.

    The first `batch_dims` axes of both are walked together, and positions are those along the axes after them.
    Shapes: indices (B.., i.., k), x (B.., n1, .., nk, rest..) -> (B.., i.., rest..). Negative positions count from the
    end; IndexOutOfRange for others. The gradient is added where it came from.
    """
    batch = x.shape[:batch_dims]
    k, b = _depth("gather_nd", x.shape, indices.shape, batch_dims), len(batch)
    ops, lead, rest = ops_of(x, indices), x.shape[b : b + k], x.shape[b + k :]
    flat = ops["ravel_index"](indices, lead, where="gather_nd")
    count, total = layout.size_of(batch), layout.size_of(lead)
    if batch:
        first = (arange(_queue(x, indices), count, dtype=INT64) * total).reshape(*batch, *(1,) * (len(flat.shape) - b))
        flat = ops["add"](flat, first)
    return x.reshape(count * total, *rest).take(flat, 0)


def _queue(*values: Any) -> Any:
    return next(v.queue for v in values if hasattr(v, "queue"))


def _depth(name: str, shape: Shape, indices: Shape, batch_dims: int = 0) -> int:
    """How many axes the positions are along. Raises ShapeError."""
    layout.as_int(name, batch_dims, "batch_dims", 0)
    fits = len(indices) > batch_dims and indices[:batch_dims] == shape[:batch_dims]
    if not fits or indices[-1] > len(shape) - batch_dims:
        most = len(shape) - batch_dims
        want = f"indices {(*shape[:batch_dims], '...')} whose last axis is at most {most} long"
        raise ShapeError(f"{name}: expected {want} for {shape}, got {indices}.")
    return indices[-1]


def scatter_nd(x: Any, indices: Any, updates: Any, reduction: str = "none") -> Any:
    """`x` with slices put by positions along its first axes: y[tuple(indices[i..])] = updates[i..], as in ONNX.

    With the reduction "add", "mul", "max" or "min" they are combined with what is there; with "none" the last one stays
    where positions repeat, and it alone gets a gradient.
    Shapes: indices (i.., k), x (n1, .., nk, rest..), updates (i.., rest..). Raises IndexOutOfRange, ShapeError,
    ValueError for another reduction.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"scatter_nd: expected a reduction of {', '.join(REDUCTIONS)}, got {reduction!r}.")
    k = _depth("scatter_nd", x.shape, indices.shape)
    want = (*indices.shape[:-1], *x.shape[k:])
    if updates.shape != want:
        raise ShapeError(f"scatter_nd: expected updates {want}, got {updates.shape}.")
    flat = ops_of(x, updates, indices)["ravel_index"](indices, x.shape[:k], where="scatter_nd")
    return put_rows(x, k, flat, updates, reduction)


def put_rows(x: Any, k: int, flat: Any, updates: Any, reduction: str) -> Any:
    """`x` with `updates` at positions in its first `k` axes, flattened."""
    ops, shape = ops_of(x, updates, flat), x.shape
    rest = shape[k:]
    count, cols = layout.size_of(flat.shape), layout.size_of(rest)
    rows, values = x.reshape(layout.size_of(shape[:k]), cols), updates.reshape(count, cols)
    line = flat.reshape(count)
    if reduction == "none":
        found = ops["index_copy"](rows, line, values, 0)
    elif reduction == "add":
        found = ops["index_add"](rows, line, values, 0)
    else:
        found = ops["scatter_reduce"](rows, line.reshape(count, 1).expand(count, cols), values, 0, reduction)
    return found.reshape(*shape)


def index_put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    """A copy of `x` with x[indices] = values, or += where it accumulates: `indices` is a tensor for each leading axis.

    They broadcast; a mask (bool) stands for as many axes as it has, and waits for the queue. Negative positions count
    from the end. Where they repeat the last value stays, or all are added in order. Values, a tensor or a number,
    broadcast to the shape of x[indices]. Raises IndexOutOfRange, ShapeError, DTypeError.
    """
    if hasattr(indices, "shape"):
        indices = (indices,)
    ops, places = ops_of(x, values, *indices), list[Any]()
    for index in indices:
        if index.dtype == BOOL:
            found = index.nonzero()
            _check_mask(x.shape, len(places), index.shape)
            places += [found[:, axis] for axis in range(len(index.shape))]
        else:
            check_index_dtype("index_put", index)
            places.append(index)
    k = len(places)
    if not 0 < k <= len(x.shape):
        raise ShapeError(f"index_put: expected 1 to {len(x.shape)} axes of positions, got {k} for {x.shape}.")
    shape = layout.broadcast("index_put", *(p.shape for p in places))
    stacked = ops["stack"]([p.astype(INT64).expand(*shape) for p in places], len(shape))
    flat = ops["ravel_index"](stacked, x.shape[:k], where="index_put")
    whole = (*shape, *x.shape[k:])
    if not hasattr(values, "shape"):
        values = Tensor.full(_queue(x, *indices), (1,), values, x.dtype)
    if layout.broadcast("index_put", values.shape, whole) != whole:
        raise ShapeError(f"index_put: expected values that broadcast to {whole}, got {values.shape}.")
    if values.dtype != x.dtype:
        raise DTypeError(f"index_put: expected values of {x.dtype}, got {values.dtype}; use astype.")
    return put_rows(x, k, flat, values.expand(*whole), "add" if accumulate else "none")


def _check_mask(shape: Shape, start: int, mask: Shape) -> None:
    if shape[start : start + len(mask)] != mask:
        raise ShapeError(f"index_put: expected a mask of the lengths {shape[start:]} of x, got shape {mask}.")


def masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """`x` where `mask` (bool) is false, else the next element of `source`, in row-major order; x and mask broadcast.

    Raises IndexOutOfRange where source has fewer elements than the mask has true ones, DTypeError.
    """
    if mask.dtype != BOOL:
        raise DTypeError(f"masked_scatter: expected a bool mask, got {mask.dtype}; compare with something, or astype.")
    if source.dtype != x.dtype:
        raise DTypeError(f"masked_scatter: expected a source of {x.dtype}, got {source.dtype}; use astype.")
    ops, shape = ops_of(x, mask, source), layout.broadcast("masked_scatter", x.shape, mask.shape)
    seen, values = mask.expand(*shape), source.reshape(layout.size_of(source.shape))
    if values.shape[0] == 0:  # something to read for elements that stay
        values = ops["concat"]([values, Tensor.zeros(_queue(x, mask, source), (1,), x.dtype)], 0)
        return ops["where"](seen, values.take(_turns(ops, seen, 0), 0), x)
    return ops["where"](seen, values.take(_turns(ops, seen, 1), 0), x)


def _turns(ops: dict[str, Callable[..., Any]], mask: Any, less: int) -> Any:
    """Which element of the source each true element gets, counted from 1 - `less`; 0 for the others."""
    return ops["where"](mask, ops["sub"](mask.cumsum().reshape(*mask.shape), less), 0)


def repeat_interleave(x: Any, repeats: Any, axis: int | None = None, output_size: int | None = None) -> Any:
    """Each element `repeats` times in place along `axis`; without one x is flattened. `repeats`: a number, or one each.

    A tensor of counts (length of the axis, int32 or int64): their sum is the length of the result, which is read from
    the device (this waits) unless `output_size` gives it. The gradient is summed. Raises ShapeError, ValueError for
    counts below 0.
    """
    if axis is None:
        x, axis = x.reshape(layout.size_of(x.shape)), 0
    axis = layout.as_axis("repeat_interleave", axis, len(x.shape))
    if not hasattr(repeats, "shape"):
        return ops_of(x)["repeat"](x, repeats, axis)
    counts = getattr(repeats, "value", repeats)
    if not isinstance(counts, Tensor):  # a value that is traced
        sized_by_data("repeat_interleave", "give the counts as a tensor that the function closes over")
    check_index_dtype("repeat_interleave", counts)
    if counts.shape not in ((x.shape[axis],), (1,)):
        raise ShapeError(f"repeat_interleave: expected {x.shape[axis]} counts, got shape {counts.shape}.")
    counts = counts.expand(x.shape[axis])
    ends = OPERATIONS["cumsum"](counts, 0)
    if output_size is None:
        sized_by_data("repeat_interleave", "give output_size")
        least, output_size = _least_and_last(counts, ends)
        if least < 0:
            raise ValueError(f"repeat_interleave: expected counts of at least 0, got {least}.")
    size = layout.as_int("repeat_interleave", output_size, "output_size", 0)
    return x.take(_elements_of(ends, size), axis)


def _elements_of(ends: Tensor, size: int) -> Tensor:
    """Which element each of `size` places belongs to, element i ending at ends[i]."""
    if profile_of(ends.queue).kind in ("cpu", "numpy"):  # an element is the number of those that ended before it
        marks = counted("repeat_interleave", ends, None, size + 1)
        summed: Tensor = OPERATIONS["cumsum"](marks[:size])
        return summed
    ravel_index(ends[-1:].reshape(-1, 1), (size + 1,), "repeat_interleave")  # refuses more than `size`
    found: Tensor = OPERATIONS["searchsorted"](ends, arange(ends.queue, size, dtype=INT64), True)
    return found


def _least_and_last(counts: Tensor, ends: Tensor) -> tuple[int, int]:
    """The smallest count and the sum of all, read together."""
    if counts.size == 0:
        return 0, 0
    both = OPERATIONS["concat"]([OPERATIONS["min"](counts).astype(INT64), ends[-1:]], 0).tolist()
    return int(both[0]), int(both[1])
