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
from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import BOOL, C_NAME, INT32, INT64, DType, compute_dtype
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.layout import Shape
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.fusion.chain import is_aligned, reach
from netcl.kernels import sources
from netcl.ops.elementwise import add, assign, contiguous, copy
from netcl.ops.index.pick import check_gathered, check_index_dtype, check_on_host, line_of, pick, three
from netcl.ops.index.scan import is_wide
from netcl.ops.index.sort import order_of_rows
from netcl.ops.product.op import promote
from netcl.runtime.cache import get_kernel

NONE = -1  # no position is left out
WALK = 32  # positions that a GPU's item may walk along before sorting them is quicker
RANKED = 1 << 14  # positions up to which counting for each those before it sorts them quickest
NEAR, SHARES, ROWS = 32, 8, 4  # as in scatter.cl: positions of a group and items for each; rows of an item
COLUMNS, KEYS, RANK, BLOCKS, SUMS = range(5)  # FORM in scatter.cl
_NAMES = ("add_columns", "make_keys", "rank_keys", "sum_blocks", "sum_rows")


def scatter_add(x: Tensor, index: Tensor, src: Tensor, axis: int) -> Tensor:
    """`x` with `src` added along `axis`: y[index[i, j, k], j, k] += src[i, j, k] for axis 0.

    Shapes: index and src alike, of the rank of x and at most its lengths except along `axis`. The dtypes of x and src
    promote as in NumPy. Raises IndexOutOfRange for indices outside [0, length) (see pick.py), ShapeError.
    """
    same_queue("scatter_add", x, index, src)
    axis = layout.as_axis("scatter_add", axis, x.ndim)
    check_index_dtype("scatter_add", index)
    check_gathered("scatter_add", x.shape, index.shape, axis)
    if src.shape != index.shape:
        raise ShapeError(f"scatter_add: expected src of the index's shape {index.shape}, got {src.shape}.")
    x, src = promote(x, src)
    if x.dtype == BOOL:
        raise DTypeError("scatter_add: expected numbers, got bool; convert with astype.")
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
    queue, profile = src.queue, profile_of(src.queue)
    if src.size and profile.kind not in ("cpu", "numpy") and src.shape[1] > WALK:
        return _by_runs(where, shape, axis, index, src, skip, None if x is None else contiguous(x))
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
    kernel = _kernel(queue, COLUMNS, (src.dtype, index.dtype, INT32, wide), 4, 13, INT64, INT32)
    launch(
        kernel, queue, (-(-items // local) * local,), (local,), out.buffer, index.buffer, src.buffer,
        flag_buffer(queue), index.offset, *layout.expand_strides(index.shape, index.strides, src.shape), src.offset,
        *src.strides, out.shape[1], count, cols, outer, chunk, skip, arm_flag(queue, where),
    )  # fmt: skip


def _by_runs(where: str, shape: Shape, axis: int, index: Tensor, src: Tensor, skip: int, x: Tensor | None) -> Tensor:
    """Sort the positions, sum blocks of equal ones, then write row by row `x` and what belongs to it.

    Where whole rows are added there is one list of positions, else one for each (o, c).
    """
    queue, (outer, count, cols), n = src.queue, src.shape, shape[axis]
    out, profile = allocate(queue, shape, src.dtype), profile_of(queue)
    whole = index.shape[::2] == (1, 1)
    keys, order = _sorted(where, index, (1, count, 1) if whole else src.shape, n, skip)
    aligned = is_aligned((src,), (src.strides,)) and (x is None or x.offset % 4 == 0)
    vector = 4 if whole and cols % 4 == 0 and src.strides[2] == 1 and aligned else 1
    columns, span = cols // vector, max(32, isqrt(count) // 3)
    lanes, blocks, rows = outer * columns, count // span, outer * n
    sums = allocate(queue, (blocks, outer * cols), compute_dtype(src.dtype))
    bounds = allocate(queue, (n if whole else out.size, 2), INT32)
    base = out if x is None else x
    wide = is_wide(profile, out.size, reach(src), reach(base), keys.size, sums.size)
    types = (
        src.dtype,
        INT32,
        keys.dtype,
        wide,
        (("V", vector), ("LISTS", int(not whole)), ("ADDS", int(x is not None))),
    )
    runs = (keys.buffer, order.buffer, src.buffer, sums.buffer, bounds.buffer)
    facts = (src.offset, *src.strides, n, count, columns, lanes, span)
    grid, local, _ = line_of(profile, max(blocks * lanes, keys.size))
    launch(_kernel(queue, BLOCKS, types, 5, 11), queue, grid, local, *runs, *facts, keys.size, blocks)
    grid, local, _ = line_of(profile, -(-rows // ROWS) * columns)
    launch(
        _kernel(queue, SUMS, types, 7, 11),
        queue,
        grid,
        local,
        *runs,
        base.buffer,
        out.buffer,
        *facts,
        base.offset,
        rows,
    )
    return out


def _sorted(where: str, index: Tensor, seen: Shape, n: int, skip: int) -> tuple[Tensor, Tensor]:
    """The lists of positions of an index seen as (O, K, C): (O * C, K, 1), -1 for what is left out, in rising order.

    And where along K each was (int64). Positions are int32, int64 where that is too small.
    """
    queue, profile, (outer, count, cols) = index.queue, profile_of(index.queue), seen
    lists, group = outer * cols, NEAR * SHARES
    wide = is_wide(profile, lists * count, reach(index))
    keys = allocate(queue, (lists, count, 1), INT64 if is_wide(profile, n) else INT32)
    types = (INT32, index.dtype, keys.dtype, wide)
    flag, at, code = flag_buffer(queue), index.offset, arm_flag(queue, where)
    if index.shape[::2] == (1, 1) and count <= RANKED and keys.dtype == INT32 and profile.group(group) == group:
        order, kernel = allocate(queue, (count,), INT64), _kernel(queue, RANK, types, 4, 4, INT64, INT32)
        launch(
            kernel, queue, (-(-count // NEAR) * group,), (group,), index.buffer, keys.buffer, order.buffer, flag, at,
            index.strides[1], n, count, skip, code,
        )  # fmt: skip
        return keys, order
    kernel = _kernel(queue, KEYS, types, 3, 8, INT64, INT32)
    grid, local, _ = line_of(profile, keys.size)
    steps = layout.expand_strides(index.shape, index.strides, seen)
    launch(
        kernel, queue, grid, local, index.buffer, keys.buffer, flag, at, *steps, n, count, cols, keys.size, skip, code
    )  # fmt: skip
    order = order_of_rows(keys.reshape(lists, count))
    return pick(where, keys, order.reshape(keys.shape), keys.shape), order


@cache
def _source(form: int, src: DType, index: DType, key: DType, wide: bool, more: tuple[tuple[str, int], ...] = ()) -> str:
    compute = C_NAME[compute_dtype(src)]
    types: dict[str, Any] = {"S": C_NAME[src], "T": compute, "INDEX": C_NAME[index], "KEY": C_NAME[key]}
    if form == COLUMNS and wide and compute == C_NAME[src]:  # GPUs walk one column per item
        types["T8"] = f"{compute}8"
    return sources.load("index.cl", "scatter.cl", FORM=form, I="long" if wide else "int", **types, **dict(more))


def _kernel(queue: Any, form: int, facts: tuple[Any, ...], memory: int, positions: int, *rest: DType) -> Kernel:
    """The kernel of scatter.cl for `facts` (see _source) that takes `memory` buffers, positions, then the `rest`."""
    types = (*[None] * memory, *[INT64 if facts[3] else INT32] * positions, *rest)
    return get_kernel(queue, _source(form, *facts), _NAMES[form], types, ("-w",))
