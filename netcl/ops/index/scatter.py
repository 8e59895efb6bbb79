"""Sums by position: scatter_add and the gradients of picking. Deterministic: sums run in the order of the indices.

No atomics: on devices either every column of the result has one owner, or positions are sorted so that equal ones lie
together and are summed in blocks. Half is summed in float32.
"""

from __future__ import annotations

from functools import cache
from math import isqrt
from typing import Any, NamedTuple

import numpy as np

from netcl.core import layout
from netcl.core.backend import cpu
from netcl.core.backend.opencl import arm_flag, flag_buffer
from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import BOOL, C_NAME, INT32, INT64, DType, compute_dtype, is_float
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.layout import Shape
from netcl.core.protocols import Launch, Queue
from netcl.core.tensor import Tensor, same_queue
from netcl.fusion.walk import is_aligned
from netcl.kernels import route, sources
from netcl.kernels.grid import is_wide, like, line_of
from netcl.kernels.plans import remember
from netcl.kernels.program import Program, program
from netcl.kernels.route import FIRST, Route, cannot, choose, declare
from netcl.ops.elementwise import add, assign, contiguous, copy
from netcl.ops.index.pick import BITS, check_gathered, check_index_dtype, from_start, pick, three
from netcl.ops.index.sort import order_of_rows
from netcl.ops.product.op import promote

SCATTER = declare("scatter_add", "sorted", "walk")
NONE = -(1 << 63)  # no position is left out
WALK = 32  # positions that a GPU's item may walk along before sorting them is quicker
RANKED = 1 << 14  # positions up to which counting for each those before it sorts them quickest
NEAR, SHARES, ROWS = 32, 8, 4  # as in scatter.cl: positions of a group and items for each; rows of an item
COLUMNS, KEYS, RANK, BLOCKS, SUMS, LAST = range(6)  # FORM in scatter.cl
ADD, PUT, MUL, MAX, MIN = range(5)  # MODE in scatter.cl
UFUNCS = {ADD: np.add, MUL: np.multiply, MAX: np.maximum, MIN: np.minimum}
_NAMES = ("add_columns", "make_keys", "rank_keys", "sum_blocks", "sum_rows", "put_last")


class Addition(NamedTuple):
    """y[o, indices[o, k, c], c] += src[o, k, c] except at `skip`, y of `shape` being a copy of `x`, or zeros.

    `mode` says what comes in the place of +=: with PUT the src of the largest k stays. Indices count from the end where
    they are negative, unless `strict`.

    indices (O or 1, K, C or 1) and src (O, K, C), O and C being what is before and after `axis`.
    """

    where: str  # the op that errors shall name
    shape: Shape
    axis: int
    indices: Tensor
    src: Tensor
    skip: int = NONE
    x: Tensor | None = None
    mode: int = ADD
    strict: bool = False

    @property
    def low(self) -> int:
        """The smallest index that is taken."""
        return 0 if self.strict else -self.shape[self.axis]


def scatter_add(x: Tensor, index: Tensor, src: Tensor, axis: int) -> Tensor:
    """`x` with `src` added along `axis`: y[index[i, j, k], j, k] += src[i, j, k] for axis 0.

    Shapes: index and src alike, of the rank of x and at most its lengths except along `axis`. The dtypes of x and src
    promote as in NumPy. Raises IndexOutOfRange for indices outside [-length, length) (see pick.py), ShapeError.
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
    region = region_of(x.shape, index.shape, axis)
    if x[region].shape == x.shape:
        return added(Addition("scatter_add", x.shape, axis, three(index, axis), three(src, axis), x=x))
    part = added(Addition("scatter_add", x[region].shape, axis, three(index, axis), three(src, axis)))
    out = copy(x)
    assign(out[region], add(x[region], part))
    return out


def gather_grad(g: Tensor, index: Tensor, shape: Shape, axis: int) -> Tensor:
    """Gradient of `gather` for an x of `shape`: g added where it came from."""
    axis = layout.as_axis("gather", axis, len(shape))
    region = region_of(shape, index.shape, axis)
    seen = tuple(n if a == axis else m for a, (n, m) in enumerate(zip(shape, index.shape)))
    if seen == shape:
        return added(Addition("gather", shape, axis, three(index, axis), three(g, axis)))
    out = Tensor.zeros(g.queue, shape, g.dtype)
    if index.size:
        assign(out[region], added(Addition("gather", seen, axis, three(index, axis), three(g, axis))))
    return out


def take_grad(where: str, g: Tensor, index: Tensor, shape: Shape, axis: int, left_out: int | None = None) -> Tensor:
    """Gradient of `take` or `embedding` for an x of `shape`: slices of g added where they came from.

    Except at `left_out`. Rows of an embedding do not count from the end.
    """
    axis = layout.as_axis(where, axis, len(shape))
    source = g.reshape(layout.size_of(shape[:axis]), index.size, layout.size_of(shape[axis + 1 :]))
    skip = NONE if left_out is None else left_out
    return added(Addition(where, shape, axis, index.reshape(1, -1, 1), source, skip, strict=where == "embedding"))


def region_of(shape: Shape, index: Shape, axis: int) -> tuple[slice, ...]:
    """The key of the part of an x of `shape` that an index of this shape can reach."""
    return tuple(slice(None) if a == axis else slice(m) for a, (_, m) in enumerate(zip(shape, index)))


def added(job: Addition) -> Tensor:
    """What an addition gives."""
    src, profile = job.src, profile_of(job.src.queue)
    if src.size and _takes_runs(profile, src.shape[1]):
        if job.mode == PUT:
            return _by_last(job)
        return _by_runs(job if job.x is None else job._replace(x=contiguous(job.x)))
    compute = compute_dtype(src.dtype)
    out = Tensor.zeros(src.queue, job.shape, compute) if job.x is None else copy(job.x.astype(compute))
    if src.size and profile.kind == "numpy":
        function, rule = _numpy_set if job.mode == PUT else _numpy_add, Rule(job.where, job.skip, job.strict, job.mode)
        cpu.update(function, (three(out, job.axis),), job.indices, src, rule=rule)
    elif src.size:
        _by_columns(job, three(out, job.axis))
    return out.astype(src.dtype)


def _takes_runs(profile: DeviceProfile, count: int) -> bool:
    """Whether `count` positions are sorted first, or columns are walked along them."""
    can, pays = profile.kind not in ("cpu", "numpy"), count > WALK
    if not route.special:
        return can and pays
    if profile.kind == "numpy":
        route.sole(SCATTER)
        return False
    runs = (
        Route(FIRST, "sorted", lambda: True)
        if can and pays
        else cannot("sorted", f"for more than {WALK} positions, on GPUs")
    )
    return bool(choose(SCATTER, [runs, Route(FIRST, "walk", lambda: False)]))


class Rule(NamedTuple):
    """What NumPy needs of an addition besides its arrays."""

    where: str
    skip: int
    strict: bool
    mode: int


def _numpy_add(out: np.ndarray, index: np.ndarray, src: np.ndarray, rule: Rule) -> np.ndarray:
    """Sums of runs of equal positions, added to `out` in place."""
    outer, n, cols = out.shape
    index, skip = from_start(rule.where, index, n, rule.strict), rule.skip
    if index.shape[::2] == (1, 1):
        flat, target = index[0, :, 0], out
    else:
        index = np.broadcast_to(index, src.shape)
        base = (np.arange(outer) * n)[:, None, None]
        flat = np.where(index == skip, skip, (base + index) * cols + np.arange(cols)).reshape(-1)
        target, src = out.reshape(1, -1, 1), src.reshape(1, -1, 1)
    chosen = np.flatnonzero(flat != skip)
    chosen = chosen[np.argsort(flat[chosen], kind="stable")]
    keys = flat[chosen]
    if keys.size:
        starts, merge = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]]), UFUNCS[rule.mode]
        runs = merge.reduceat(src[:, chosen].astype(out.dtype, copy=False), starts, axis=1, dtype=out.dtype)
        target[:, keys[starts]] = merge(target[:, keys[starts]], runs)
    return out


def _numpy_set(out: np.ndarray, index: np.ndarray, src: np.ndarray, rule: Rule) -> np.ndarray:
    """Elements put into `out` in place, in the order of k."""
    outer, n, cols = out.shape
    index = from_start(rule.where, index, n, rule.strict)
    if index.shape[::2] == (1, 1):
        out[:, index[0, :, 0]] = src
    else:
        base = (np.arange(outer) * n)[:, None, None]
        out.reshape(-1)[((base + index) * cols + np.arange(cols)).reshape(-1)] = src.reshape(-1)
    return out


# -- devices -----------------------------------------------------------------------------------------------------------


def _by_columns(job: Addition, out: Tensor) -> None:
    """One launch: every column of `out` (O, n, C) belongs to one work-item, which walks along the positions."""
    index, src = job.indices, job.src
    key = ("scatter by columns", out.shape, job.skip, job.mode, job.low, *like(index), *like(src))
    launch = remember(src.queue, key, lambda: _columns_plan(job, out))
    launch(out=out.buffer, index=index, src=src, code=arm_flag(src.queue, job.where))


def _columns_plan(job: Addition, out: Tensor) -> Launch[Tensor]:
    index, src, queue, (outer, count, cols) = job.indices, job.src, out.queue, job.src.shape
    profile = profile_of(queue)
    chunk, local = 1, profile.group(64)
    if profile.kind == "cpu":
        share = -(-cols * outer // (4 * profile.compute_units))
        chunk, local = min(cols, -(-share // 16) * 16), 1  # 16: items do not share cache lines
    items = outer * -(-cols // chunk)
    variant = Variant(COLUMNS, src.dtype, index.dtype, INT32, is_wide(profile, out, index, src))
    variant = variant._replace(more=(("MODE", job.mode),)) if job.mode else variant
    return _program(queue, variant).bind(
        (-(-items // local) * local,),
        (local,),
        flag=flag_buffer(queue),
        **_steps(index, src.shape),
        **_steps_of(src),
        n=out.shape[1],
        low=job.low,
        count=count,
        cols=cols,
        outer=outer,
        chunk=chunk,
        skip=job.skip,
    )


def _by_last(job: Addition) -> Tensor:
    """Sort the positions, then put over a copy of `x` the last of each run of equal ones."""
    index, src = job.indices, job.src
    whole = index.shape[::2] == (1, 1)
    keys, order = _sorted(job, (1, src.shape[1], 1) if whole else src.shape)
    out = Tensor.zeros(src.queue, job.shape, src.dtype) if job.x is None else copy(job.x)
    key = ("scatter last", job.shape, job.axis, whole, keys.dtype, *like(src))
    launch = remember(src.queue, key, lambda: _last_plan(job, keys, out, whole))
    launch(keys=keys.buffer, order=order.buffer, src=src, out=out.buffer)
    return out


def _last_plan(job: Addition, keys: Tensor, out: Tensor, whole: bool) -> Launch[Tensor]:
    src, queue, (outer, count, cols) = job.src, job.src.queue, job.src.shape
    profile = profile_of(queue)
    grid, local, _ = line_of(profile, src.size)
    variant = Variant(LAST, src.dtype, INT32, keys.dtype, is_wide(profile, out, src), (("LISTS", int(not whole)),))
    facts = {**_steps_of(src), "n": job.shape[job.axis], "count": count, "cols": cols, "lanes": outer * cols}
    return _program(queue, variant).bind(grid, local, **facts, size=src.size)


def _by_runs(job: Addition) -> Tensor:
    """Sort the positions, sum blocks of equal ones, then write row by row `x` and what belongs to it."""
    index, src, x = job.indices, job.src, job.x
    whole = index.shape[::2] == (1, 1)
    keys, order = _sorted(job, (1, src.shape[1], 1) if whole else src.shape)
    facts = (job.shape, job.axis, job.mode, whole, keys.dtype, *like(src), x is None or x.offset % 4 == 0)
    blocks, rows = remember(
        src.queue, ("scatter by runs", *facts, *(() if x is None else like(x))), lambda: _runs_plan(job, keys, whole)
    )
    runs = {"keys": keys.buffer, "order": order.buffer, "src": src}
    sums, bounds = blocks(**runs)
    out: Tensor = rows(**runs, sums=sums.buffer, bounds=bounds.buffer, x=src if x is None else x)
    return out


def _runs_plan(job: Addition, keys: Tensor, whole: bool) -> tuple[Launch[Tensor], Launch[Tensor]]:
    """The launches for the sums of blocks, and for the rows of the result.

    Where whole rows are added there is one list of positions, else one for each (o, c).
    """
    src, x, queue, (outer, count, cols), n = job.src, job.x, job.src.queue, job.src.shape, job.shape[job.axis]
    profile, compute, size = profile_of(queue), compute_dtype(src.dtype), layout.size_of(job.shape)
    aligned = is_aligned((src,), (src.strides[:-1],)) and (x is None or x.offset % 4 == 0)
    vector = 4 if whole and cols % 4 == 0 and src.strides[2] == 1 and aligned else 1
    columns, span = cols // vector, max(32, isqrt(count) // 3)
    lanes, blocks, rows = outer * columns, count // span, outer * n
    new = {"sums": ((blocks, outer * cols), compute), "bounds": ((n if whole else size, 2), INT32)}
    is_long = is_wide(profile, size, src, *(() if x is None else (x,)), keys, blocks * outer * cols)
    more = (("V", vector), ("LISTS", int(not whole)), ("ADDS", int(x is not None)), *_merging(job.mode, compute))
    variant = Variant(BLOCKS, src.dtype, INT32, keys.dtype, is_long, more)
    facts = {**_steps_of(src), "n": n, "count": count, "cols": columns, "lanes": lanes, "span": span}
    grid, local, _ = line_of(profile, max(blocks * lanes, keys.size))
    summed = _program(queue, variant).bind(grid, local, new, **facts, size=keys.size, blocks=blocks)
    grid, local, _ = line_of(profile, -(-rows // ROWS) * columns)
    made = _program(queue, variant._replace(kernel=SUMS))
    return summed, made.bind(grid, local, {"out": (job.shape, src.dtype)}, **facts, rows=rows)


def _merging(mode: int, compute: DType) -> tuple[tuple[str, int | str], ...]:
    """MODE and IDENTITY of scatter.cl."""
    if mode in (ADD, MUL):
        return (("IDENTITY", int(mode == MUL)),) if mode == ADD else (("MODE", mode), ("IDENTITY", 1))
    if is_float(compute):
        return ("MODE", mode), ("IDENTITY", "-INFINITY" if mode == MAX else "INFINITY")
    limits = np.iinfo(compute)
    number = int(limits.min) + 1 if mode == MAX else int(limits.max)
    return ("MODE", mode), ("IDENTITY", f"({number}L - {int(mode == MAX)})")


def _sorted(job: Addition, seen: Shape) -> tuple[Tensor, Tensor]:
    """The lists of positions of an index seen as (O, K, C): (O * C, K, 1), -1 for what is left out, in rising order.

    And where along K each was (int64). Positions are int32, int64 where that is too small.
    """
    index, queue, (outer, count, cols) = job.indices, job.indices.queue, seen
    key = ("scatter keys", seen, job.shape[job.axis], job.skip, job.low, *like(index))
    launch = remember(queue, key, lambda: _keys_plan(job, seen))
    made = launch(index=index, code=arm_flag(queue, job.where))
    if isinstance(made, tuple):  # keys and order at once
        return made
    order = order_of_rows(made.reshape(outer * cols, count))
    return pick(job.where, made, order.reshape(made.shape), made.shape), order


def _keys_plan(job: Addition, seen: Shape) -> Launch[Tensor]:
    """The launch that makes the keys, and where there are few their order as well."""
    index, queue, n, (outer, count, cols) = job.indices, job.indices.queue, job.shape[job.axis], seen
    profile, group, shape = profile_of(queue), NEAR * SHARES, (outer * cols, count, 1)
    key = INT64 if is_wide(profile, n) else INT32
    variant = Variant(KEYS, INT32, index.dtype, key, is_wide(profile, layout.size_of(shape), index))
    facts: dict[str, Any] = {"flag": flag_buffer(queue), "n": n, "low": job.low, "count": count, "skip": job.skip}
    if index.shape[::2] == (1, 1) and count <= RANKED and key == INT32 and profile.group(group) == group:
        new = {"sorted": (shape, key), "order": ((count,), INT64)}
        made = _program(queue, variant._replace(kernel=RANK))
        return made.bind((-(-count // NEAR) * group,), (group,), new, **facts, i_k=index.strides[1])
    size = layout.size_of(shape)
    grid, local, _ = line_of(profile, size)
    facts |= {**_steps(index, seen), "cols": cols, "size": size}
    return _program(queue, variant).bind(grid, local, {"keys": (shape, key)}, **facts)


def _steps(index: Tensor, seen: Shape) -> dict[str, int]:
    return dict(zip(("i_o", "i_k", "i_c"), layout.expand_strides(index.shape, index.strides, seen)))


def _steps_of(src: Tensor) -> dict[str, int]:
    return dict(zip(("s_o", "s_k", "s_c"), src.strides))


class Variant(NamedTuple):
    """What the text of scatter.cl depends on."""

    kernel: int
    src: DType
    indices: DType
    key: DType
    is_long: bool
    more: tuple[tuple[str, int | str], ...] = ()


@cache
def _source(variant: Variant) -> str:
    compute = C_NAME[compute_dtype(variant.src)]
    types: dict[str, Any] = {
        "S": BITS[variant.src.itemsize] if variant.kernel == LAST else C_NAME[variant.src],  # it copies, in any type
        "T": compute,
        "INDEX": C_NAME[variant.indices],
        "KEY": C_NAME[variant.key],
    }
    if variant.kernel == COLUMNS and variant.is_long and compute == types["S"]:  # GPUs walk one column per item
        types["T8"] = f"{compute}8"
    width = "long" if variant.is_long else "int"
    return sources.load("index.cl", "scatter.cl", FORM=variant.kernel, I=width, **types, **dict(variant.more))


def _program(queue: Queue, variant: Variant) -> Program:
    return program(queue, _source(variant), _NAMES[variant.kernel], ("-w",))
