"""Sums by position: scatter_add and the gradients of picking. Deterministic: sums run in the order of the indices.

No atomics: on devices either every column of the result has one owner, or positions are sorted so that equal ones lie
together and are summed in blocks. Half is summed in float32.
"""

from __future__ import annotations

from functools import cache
from math import isqrt
from typing import Any

import numpy as np

from netcl.core import layout
from netcl.core.backend import cpu
from netcl.core.backend.opencl import Kernel, arm_flag, flag_buffer, launch
from netcl.core.dtypes import BOOL, C_NAME, INT32, INT64, DType, compute_dtype
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.layout import Shape
from netcl.core.profile import DeviceProfile, profile_of
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.ops import sources
from netcl.ops.chain import reach
from netcl.ops.elementwise import add, assign, copy
from netcl.ops.indexing import check_gathered, check_index_dtype, check_on_host, line_of, pick, three
from netcl.ops.scan import is_wide
from netcl.ops.sort import order_of_rows
from netcl.runtime.cache import get_kernel

NONE = -1  # no position is left out
WALK = 512  # positions that a GPU's item may walk along before sorting them is quicker
BUSY = 4096  # columns from which walking keeps a GPU busy whatever the number of positions
COLUMNS, KEYS, RUNS, ENDS = range(4)  # FORM in scatter.cl
_NAMES = ("add_columns", "make_keys", "add_runs", "add_ends")


def scatter_add(x: Tensor, index: Tensor, src: Tensor, axis: int) -> Tensor:
    """`x` with `src` added along `axis`: y[index[i, j, k], j, k] += src[i, j, k] for axis 0.

    Shapes: index and src alike, of the rank of x and at most its lengths except along `axis`; src has the dtype of x.
    Raises IndexOutOfRange for indices outside [0, length) (see indexing.py), DTypeError, ShapeError.
    """
    same_queue("scatter_add", x, index, src)
    axis = layout.as_axis("scatter_add", axis, x.ndim)
    check_index_dtype("scatter_add", index)
    check_gathered("scatter_add", x.shape, index.shape, axis)
    if src.shape != index.shape:
        raise ShapeError(f"scatter_add: expected src of the index's shape {index.shape}, got {src.shape}.")
    if src.dtype != x.dtype or x.dtype == BOOL:
        raise DTypeError(f"scatter_add: expected x and src of one dtype, not bool, got {x.dtype} and {src.dtype}.")
    if index.size == 0:
        return copy(x)
    region = _region(x.shape, index.shape, axis)
    if x[region].shape == x.shape:
        out = copy(x.astype(compute_dtype(x.dtype)))
        _accumulate("scatter_add", three(out, axis), three(index, axis), three(src, axis))
        return out.astype(x.dtype)
    part = _summed("scatter_add", x[region].shape, index, src, axis)
    out = copy(x)
    assign(out[region], add(x[region], part))
    return out


def gather_grad(g: Tensor, index: Tensor, shape: Shape, axis: int) -> Tensor:
    """Gradient of `gather` for an x of `shape`: g added where it came from."""
    axis = layout.as_axis("gather", axis, len(shape))
    region = _region(shape, index.shape, axis)
    seen = tuple(n if a == axis else m for a, (n, m) in enumerate(zip(shape, index.shape)))
    if seen == shape:
        return _summed("gather", shape, index, g, axis)
    out = Tensor.zeros(g.queue, shape, g.dtype)
    if index.size:
        assign(out[region], _summed("gather", seen, index, g, axis))
    return out


def take_grad(where: str, g: Tensor, index: Tensor, shape: Shape, axis: int, left_out: int | None = None) -> Tensor:
    """Gradient of `take` for an x of `shape`: slices of g added where they came from, except at `left_out`."""
    axis = layout.as_axis(where, axis, len(shape))
    out = Tensor.zeros(g.queue, shape, compute_dtype(g.dtype))
    if g.size:
        outer, cols = layout.size_of(shape[:axis]), layout.size_of(shape[axis + 1 :])
        source = g.reshape(outer, index.size, cols)
        _accumulate(where, three(out, axis), index.reshape(1, -1, 1), source, NONE if left_out is None else left_out)
    return out.astype(g.dtype)


def _region(shape: Shape, index: Shape, axis: int) -> tuple[slice, ...]:
    """The key of the part of an x of `shape` that an index of this shape can reach."""
    return tuple(slice(None) if a == axis else slice(m) for a, (_, m) in enumerate(zip(shape, index)))


def _summed(where: str, shape: Shape, index: Tensor, src: Tensor, axis: int) -> Tensor:
    """Zeros of `shape` with `src` added by position."""
    out = Tensor.zeros(src.queue, shape, compute_dtype(src.dtype))
    if index.size:
        _accumulate(where, three(out, axis), three(index, axis), three(src, axis))
    return out.astype(src.dtype)


def _accumulate(where: str, out: Tensor, index: Tensor, src: Tensor, skip: int = NONE) -> None:
    """out[o, index[o, k, c], c] += src[o, k, c] in place, except at `skip`.

    out (O, n, C) is contiguous and of the compute dtype; index (O or 1, K, C or 1); src (O, K, C), not empty.
    """
    if out.backend == "cpu":
        return cpu.update(_numpy_add, (out,), index, src, where=where, skip=skip)
    profile, (outer, count, cols) = profile_of(out.queue), src.shape
    whole = index.shape[::2] == (1, 1)
    if profile.kind == "cpu" or count <= WALK or (not whole and outer * cols >= BUSY):
        return _by_columns(where, out, index, src, skip, profile)
    if whole:
        return _by_runs(where, out, index, src, skip, None)
    return _by_runs(where, out.reshape(1, -1, 1), index, src.reshape(1, -1, 1), skip, (outer, count, cols))


def _numpy_add(out: np.ndarray, index: np.ndarray, src: np.ndarray, where: str, skip: int) -> np.ndarray:
    """Sums of runs of equal positions, added to `out` in place."""
    outer, n, cols = out.shape
    check_on_host(where, index, n)
    if index.shape[::2] == (1, 1):
        flat, target = index[0, :, 0], out
    else:
        index = np.broadcast_to(index, src.shape)
        base = (np.arange(outer) * n)[:, None, None]
        flat = np.where(index == skip, skip, (base + index) * cols + np.arange(cols)).reshape(-1)
        target, src = out.reshape(1, -1, 1), src.reshape(1, -1, 1)
    places = np.flatnonzero(flat != skip)
    places = places[np.argsort(flat[places], kind="stable")]
    keys = flat[places]
    if keys.size:
        starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
        target[:, keys[starts]] += np.add.reduceat(src[:, places], starts, axis=1, dtype=out.dtype)
    return out


# -- devices -----------------------------------------------------------------------------------------------------------


def _by_columns(
    where: str, out: Tensor, index: Tensor, src: Tensor, skip: int, profile: DeviceProfile
) -> None:  # fmt: skip
    """One launch: every column of `out` belongs to one work-item, which walks along the positions."""
    queue, (outer, count, cols) = out.queue, src.shape
    chunk, local = 1, profile.group(64)
    if profile.kind == "cpu":
        share = -(-cols * outer // (4 * profile.compute_units))
        chunk, local = min(cols, -(-share // 16) * 16), 1  # 16: items do not share cache lines
    items = outer * -(-cols // chunk)
    wide = is_wide(profile, out.size, reach(index), reach(src))
    kernel = _kernel(queue, COLUMNS, src.dtype, index.dtype, INT32, wide, 4, 13, INT64, INT32)
    launch(
        kernel, queue, (-(-items // local) * local,), (local,), out.buffer, index.buffer, src.buffer,
        flag_buffer(queue), index.offset, *layout.expand_strides(index.shape, index.strides, src.shape), src.offset,
        *src.strides, out.shape[1], count, cols, outer, chunk, skip, arm_flag(queue, where),
    )  # fmt: skip


def _by_runs(where: str, out: Tensor, index: Tensor, src: Tensor, skip: int, walk: Shape | None) -> None:
    """Sort the positions, then sum runs of equal ones in blocks of about the square root of their number.

    `walk` is the shape (O, K, C) whose elements are scattered one by one; None: whole rows of `out` are.
    """
    queue, (outer, count, cols) = out.queue, src.shape
    keys = _keys(where, out, index, skip, walk)
    order = order_of_rows(keys.reshape(1, -1))
    keys = pick(where, keys, order.reshape(1, -1, 1))
    span = max(32, isqrt(count))
    blocks, lanes = -(-count // span), outer * cols
    head, tail = (allocate(queue, (blocks, lanes), out.dtype) for _ in range(2))
    profile = profile_of(queue)
    wide = is_wide(profile, out.size, reach(src), blocks * lanes)
    add_runs = _kernel(queue, RUNS, src.dtype, INT32, keys.dtype, wide, 6, 10)
    add_ends = _kernel(queue, ENDS, src.dtype, INT32, keys.dtype, wide, 4, 6)
    grid, local, _ = line_of(profile, blocks * lanes)
    facts = (out.shape[1], count, cols, lanes, blocks, span)
    launch(
        add_runs, queue, grid, local, out.buffer, keys.buffer, order.buffer, src.buffer, head.buffer, tail.buffer,
        src.offset, *src.strides, *facts,
    )  # fmt: skip
    launch(add_ends, queue, grid, local, out.buffer, keys.buffer, head.buffer, tail.buffer, *facts)


def _keys(where: str, out: Tensor, index: Tensor, skip: int, walk: Shape | None) -> Tensor:
    """The row of `out` that each position means, -1 for what is left out: (1, K, 1) int32, int64 where too small."""
    queue, profile = out.queue, profile_of(out.queue)
    outer, count, cols = walk or (1, index.shape[1], 1)
    n = out.size // (outer * cols) if walk else out.shape[1]
    size = outer * count * cols
    wide = is_wide(profile, size, reach(index))
    keys = allocate(queue, (1, size, 1), INT64 if is_wide(profile, out.size) else INT32)
    kernel = _kernel(queue, KEYS, INT32, index.dtype, keys.dtype, wide, 3, 8, INT64, INT32)
    grid, local, _ = line_of(profile, size)
    steps = layout.expand_strides(index.shape, index.strides, (outer, count, cols))
    launch(
        kernel, queue, grid, local, index.buffer, keys.buffer, flag_buffer(queue), index.offset, *steps, n, count, cols,
        size, skip, arm_flag(queue, where),
    )  # fmt: skip
    return keys


@cache
def _source(form: int, src: DType, index: DType, key: DType, wide: bool) -> str:
    compute = C_NAME[compute_dtype(src)]
    types = {"S": C_NAME[src], "T": compute, "INDEX": C_NAME[index], "KEY": C_NAME[key]}
    if form == COLUMNS and wide and compute == C_NAME[src]:  # GPUs walk one column per item
        types["T8"] = f"{compute}8"
    return sources.load("index.cl", "scatter.cl", FORM=form, I="long" if wide else "int", **types)


def _kernel(
    queue: Any, form: int, src: DType, index: DType, key: DType, wide: bool, memory: int, positions: int, *rest: DType
) -> Kernel:
    """The kernel of scatter.cl that takes `memory` buffers, then positions, then the `rest`."""
    types = (*[None] * memory, *[INT64 if wide else INT32] * positions, *rest)
    return get_kernel(queue, _source(form, src, index, key, wide), _NAMES[form], types, ("-w",))
