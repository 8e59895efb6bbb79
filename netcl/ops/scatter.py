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
from netcl.ops.chain import is_aligned, reach
from netcl.ops.elementwise import add, assign, contiguous, copy
from netcl.ops.indexing import check_gathered, check_index_dtype, check_on_host, line_of, pick, three
from netcl.ops.scan import is_wide
from netcl.ops.sort import order_of_rows
from netcl.runtime.cache import get_kernel

NONE = -1  # no position is left out
WALK = 512  # positions that a GPU's item may walk along before sorting them is quicker
BUSY = 4096  # columns from which walking keeps a GPU busy whatever the number of positions
LITTLE = 16  # the same where whole rows are added
RANKED = 1 << 14  # positions up to which counting for each those before it sorts them quickest
NEAR, SHARES, ROWS = 32, 8, 4  # as in scatter.cl: positions of a group, items for each; rows of an item
COLUMNS, KEYS, RANK, BLOCKS, SUMS = range(5)  # FORM in scatter.cl
_NAMES = ("add_columns", "make_keys", "rank_keys", "sum_blocks", "sum_rows")


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
        return _summed("scatter_add", x.shape, three(index, axis), three(src, axis), axis, x=x)
    part = _summed("scatter_add", x[region].shape, three(index, axis), three(src, axis), axis)
    out = copy(x)
    assign(out[region], add(x[region], part))
    return out


def gather_grad(g: Tensor, index: Tensor, shape: Shape, axis: int) -> Tensor:
    """Gradient of `gather` for an x of `shape`: g added where it came from."""
    axis = layout.as_axis("gather", axis, len(shape))
    region = _region(shape, index.shape, axis)
    seen = tuple(n if a == axis else m for a, (n, m) in enumerate(zip(shape, index.shape)))
    if seen == shape:
        return _summed("gather", shape, three(index, axis), three(g, axis), axis)
    out = Tensor.zeros(g.queue, shape, g.dtype)
    if index.size:
        assign(out[region], _summed("gather", seen, three(index, axis), three(g, axis), axis))
    return out


def take_grad(where: str, g: Tensor, index: Tensor, shape: Shape, axis: int, left_out: int | None = None) -> Tensor:
    """Gradient of `take` for an x of `shape`: slices of g added where they came from, except at `left_out`."""
    axis = layout.as_axis(where, axis, len(shape))
    source = g.reshape(layout.size_of(shape[:axis]), index.size, layout.size_of(shape[axis + 1 :]))
    return _summed(where, shape, index.reshape(1, -1, 1), source, axis, NONE if left_out is None else left_out)


def _region(shape: Shape, index: Shape, axis: int) -> tuple[slice, ...]:
    """The key of the part of an x of `shape` that an index of this shape can reach."""
    return tuple(slice(None) if a == axis else slice(m) for a, (_, m) in enumerate(zip(shape, index)))


def _summed(
    where: str, shape: Shape, index: Tensor, src: Tensor, axis: int, skip: int = NONE, x: Tensor | None = None
) -> Tensor:
    """y[o, index[o, k, c], c] += src[o, k, c] except at `skip`, y of `shape` being a copy of `x`, or zeros.

    index (O or 1, K, C or 1) and src (O, K, C), O and C being what is before and after `axis`.
    """
    queue, profile, (outer, count, cols) = src.queue, profile_of(src.queue), src.shape
    whole = index.shape[::2] == (1, 1)
    few = count <= (LITTLE if whole else WALK) or (not whole and outer * cols >= BUSY)
    if src.size and profile.kind not in ("cpu", "numpy") and not few:
        base = None if x is None else contiguous(x)
        if whole:
            return _by_runs(where, shape, axis, index, src, skip, base, None)
        return _by_runs(where, shape, axis, index, src.reshape(1, -1, 1), skip, base, src.shape)
    compute = compute_dtype(src.dtype)
    out = Tensor.zeros(queue, shape, compute) if x is None else copy(x.astype(compute))
    if src.size and profile.kind == "numpy":
        cpu.update(_numpy_add, (three(out, axis),), index, src, where=where, skip=skip)
    elif src.size:
        _by_columns(where, three(out, axis), index, src, skip, profile)
    return out.astype(src.dtype)


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
    kernel = _kernel(queue, COLUMNS, src.dtype, index.dtype, INT32, wide, 1, False, 4, 13, INT64, INT32)
    launch(
        kernel, queue, (-(-items // local) * local,), (local,), out.buffer, index.buffer, src.buffer,
        flag_buffer(queue), index.offset, *layout.expand_strides(index.shape, index.strides, src.shape), src.offset,
        *src.strides, out.shape[1], count, cols, outer, chunk, skip, arm_flag(queue, where),
    )  # fmt: skip


def _by_runs(
    where: str, shape: Shape, axis: int, index: Tensor, src: Tensor, skip: int, x: Tensor | None, walk: Shape | None
) -> Tensor:
    """Sort the positions, sum blocks of equal ones, then write row by row `x` and what belongs to it.

    `walk` is the shape (O, K, C) whose elements are scattered one by one, src being (1, O * K * C, 1); None: whole rows
    are.
    """
    queue, (outer, count, cols) = src.queue, src.shape
    out, profile = allocate(queue, shape, src.dtype), profile_of(queue)
    n = out.size if walk else shape[axis]
    keys, order = _sorted(where, index, n // (walk[0] * walk[2]) if walk else n, n, skip, walk)
    aligned = is_aligned((src,), (src.strides,)) and (x is None or x.offset % 4 == 0)
    vector = 4 if cols % 4 == 0 and src.strides[2] == 1 and aligned else 1
    columns, span = cols // vector, max(32, isqrt(count) // 3)
    lanes, blocks = outer * columns, count // span
    sums = allocate(queue, (blocks, outer * cols), compute_dtype(src.dtype))
    bounds = allocate(queue, (n, 2), INT32)
    wide = is_wide(profile, out.size, reach(src), reach(src if x is None else x), sums.size)
    form = (src.dtype, INT32, keys.dtype, wide, vector, x is not None)
    from_src, runs = (src.offset, *src.strides), (keys.buffer, order.buffer, src.buffer, sums.buffer, bounds.buffer)
    grid, local, _ = line_of(profile, max(blocks * lanes, count))
    launch(
        _kernel(queue, BLOCKS, *form, 5, 9), queue, grid, local, *runs, *from_src, count, columns, lanes, blocks, span
    )
    rows = outer * n
    grid, local, _ = line_of(profile, -(-rows // ROWS) * columns)
    base = out if x is None else x
    launch(
        _kernel(queue, SUMS, *form, 7, 11), queue, grid, local, base.buffer, *runs, out.buffer, base.offset, *from_src,
        n, count, columns, lanes, rows, span,
    )  # fmt: skip
    return out


def _sorted(where: str, index: Tensor, limit: int, rows: int, skip: int, walk: Shape | None) -> tuple[Tensor, Tensor]:
    """The row that each position means, -1 for what is left out, in rising order; and where each was (int64).

    One of `rows` rows: index has to be below `limit`. int32, int64 where that is too small.
    """
    queue, profile = index.queue, profile_of(index.queue)
    outer, count, cols = walk or (1, index.shape[1], 1)
    size, group = outer * count * cols, NEAR * SHARES
    wide = is_wide(profile, size, reach(index))
    keys = allocate(queue, (1, size, 1), INT64 if is_wide(profile, rows) else INT32)
    form = (INT32, index.dtype, keys.dtype, wide, 1, False)
    flag, at, code = flag_buffer(queue), index.offset, arm_flag(queue, where)
    if walk is None and size <= RANKED and keys.dtype == INT32 and profile.group(group) == group:
        order, kernel = allocate(queue, (size,), INT64), _kernel(queue, RANK, *form, 4, 4, INT64, INT32)
        launch(
            kernel, queue, (-(-size // NEAR) * group,), (group,), index.buffer, keys.buffer, order.buffer, flag, at,
            index.strides[1], limit, count, skip, code,
        )  # fmt: skip
        return keys, order
    kernel = _kernel(queue, KEYS, *form, 3, 8, INT64, INT32)
    grid, local, _ = line_of(profile, size)
    steps = layout.expand_strides(index.shape, index.strides, (outer, count, cols))
    launch(
        kernel, queue, grid, local, index.buffer, keys.buffer, flag, at, *steps, limit, count, cols, size, skip, code
    )  # fmt: skip
    order = order_of_rows(keys.reshape(1, -1))
    return pick(where, keys, order.reshape(1, -1, 1), keys.shape), order


@cache
def _source(form: int, src: DType, index: DType, key: DType, wide: bool, vector: int, adds: bool) -> str:
    compute = C_NAME[compute_dtype(src)]
    types: dict[str, Any] = {"S": C_NAME[src], "T": compute, "INDEX": C_NAME[index], "KEY": C_NAME[key], "V": vector}
    if form == COLUMNS and wide and compute == C_NAME[src]:  # GPUs walk one column per item
        types["T8"] = f"{compute}8"
    if form == SUMS:
        types |= {"ROWS": ROWS, "ADDS": 1} if adds else {"ROWS": ROWS}
    return sources.load("index.cl", "scatter.cl", FORM=form, I="long" if wide else "int", **types)


def _kernel(
    queue: Any, form: int, src: DType, index: DType, key: DType, wide: bool, vector: int, adds: bool, memory: int,
    positions: int, *rest: DType,
) -> Kernel:  # fmt: skip
    """The kernel of scatter.cl that takes `memory` buffers, then positions, then the `rest`."""
    types = (*[None] * memory, *[INT64 if wide else INT32] * positions, *rest)
    return get_kernel(queue, _source(form, src, index, key, wide, vector, adds), _NAMES[form], types, ("-w",))
