"""Reductions as kernels: an elementwise chain folded over any set of axes, so that sum(square(a - b)) is one launch.

A fold is a row `(init, combine)` whose combine is a row of the primitive table. Axes are split into kept, walked and
inner ones (fold.cl); whichever of the kept and reduced axes is contiguous in memory becomes the inner one, so
leading, trailing and mixed axes, and views, all run at the speed of memory. Long folds take two launches: parts, then
their fold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from netcl.core import layout
from netcl.core.backend import cpu
from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import BOOL, DType, common_dtype, compute_dtype
from netcl.core.layout import Shape
from netcl.core.protocols import Launch
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor, same_queue
from netcl.fusion.chain import Chain, as_dtype
from netcl.fusion.fold_source import FOLDS, PLACES, Split, Text, name_of, position_of, source
from netcl.fusion.render import OPTIONS
from netcl.fusion.walk import Axes, Extent, Operand, Walk, access_of, collapse, stand_in, vector_for
from netcl.kernels import route
from netcl.kernels.grid import START
from netcl.kernels.program import program
from netcl.kernels.route import FIRST, Route, choose, declare

Axis = int | Sequence[int] | None
_UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
IDENTITY = Chain("fold", ("v0",), (), (), ("v0",))

FOLD = declare("fold", "rows", "columns")
CHUNK = 16384  # elements per part on a CPU device
GROUP = 256  # work-items per group on a GPU
PART = 1 << 16  # elements that a GPU's group may fold before more groups are worth a second launch
DEPTH = 512  # rows that one item adds up one after the other: bounds the rounding error of column sums
EACH = 16  # vectors of a row that an item of a GPU should take on
ACROSS = 4  # vectors of a row of columns that are enough for the memory
NARROW = 8  # columns below which vectors run down the rows instead


FAR = 1 << 30  # reach from which positions need 64 bits: they count parts and columns past the end


class Fold(NamedTuple):
    """What is computed: `chain` of tensors broadcast together, each output folded by `op` over `axis`.

    op: a key of FOLDS, or (not on NumPy) of PLACES: the row-major position of the best among the folded. dtypes: of the
    results; outputs of kind "full" are stored, not folded. final: "mean" divides each result by the divisor, "root"
    takes the root of that. A full fold without `keepdims` has shape (1,).
    """

    chain: Chain
    op: str
    axis: Axis
    keepdims: bool
    dtypes: tuple[DType, ...]
    final: str = ""
    compute: DType | None = None  # by default what the tensors' dtypes are computed in


class Facts(NamedTuple):
    """A fold of certain tensors: their common shape, the axes to fold, the result's shape, what is computed in."""

    shape: Shape
    axes: Shape
    result: Shape
    compute: DType
    folded: int  # outputs that are folded; those that are stored come after them


class Stages(NamedTuple):
    """The launches of a fold (none when there is nothing to fold: then results are `fill`) and the result's shape."""

    launches: tuple[Launch[Any], ...]
    shape: Shape
    fill: float
    folded: int = 0  # of the first launch's results, what the second folds


def run_fold(
    fold: Fold, tensors: Sequence[Tensor], scalars: Sequence[Any] = (), divisor: float = 1.0
) -> tuple[Tensor, ...]:
    """The results of `fold`: one launch, or two for long folds."""
    queue = tensors[0].queue
    if len(tensors) > 1:
        same_queue(fold.chain.name, *tensors)
    if isinstance(fold.axis, list):
        fold = fold._replace(axis=tuple(fold.axis))
    if isinstance(queue, CPUQueue):
        if route.special:
            route.sole(FOLD)
        return _on_numpy(fold, tensors, tuple(scalars), divisor)
    key = (fold, tuple([(t.shape, t.strides, t.dtype, t.offset & START) for t in tensors]), route.mode)
    plans = queue.netcl_state.plans
    plan = plans.get(key)
    if plan is None:
        plan = plans[key] = _plan(fold, tensors)
    if not plan.launches:
        return tuple([Tensor.full(queue, plan.shape, plan.fill, dtype) for dtype in fold.dtypes])
    ending = (divisor,) if fold.final else ()
    if len(plan.launches) == 1:
        found = plan.launches[0](*tensors, *scalars, *ending)
        return found if type(found) is tuple else (found,)
    first, second = plan.launches
    parts = first(*tensors, *scalars)
    if type(parts) is Tensor:
        return (second(parts, *ending),)
    found = second(*parts[: plan.folded], *ending)
    return (*(found if type(found) is tuple else (found,)), *parts[plan.folded :])


def _facts(fold: Fold, tensors: Sequence[Tensor]) -> Facts:
    where = fold.op if fold.chain is IDENTITY else fold.chain.title
    shape = layout.broadcast(where, *[t.shape for t in tensors])
    axes = layout.as_axes(where, fold.axis, len(shape))
    if fold.keepdims:
        result = tuple(1 if a in axes else n for a, n in enumerate(shape))
    else:
        result = tuple(n for a, n in enumerate(shape) if a not in axes) or (1,)
    compute = fold.compute or compute_dtype(common_dtype(*[t.dtype for t in tensors]))
    return Facts(shape, axes, result, compute, len(fold.dtypes) - fold.chain.kinds.count("full"))


def _fill(fold: Fold, dtype: DType) -> float:
    """The result over no elements: of all (a min of truths) True, of any False."""
    return math.nan if fold.final else fold.op == "min" if dtype == BOOL else FOLDS.get(fold.op, (0.0,))[0]


# -- NumPy -------------------------------------------------------------------------------------------------------------


def _on_numpy(fold: Fold, tensors: Sequence[Tensor], scalars: tuple[Any, ...], divisor: float) -> tuple[Tensor, ...]:
    shape, axes, result, compute, count = _facts(fold, tensors)
    dtypes, op = fold.dtypes, fold.op
    if layout.size_of(shape) == 0:
        return tuple([Tensor.full(tensors[0].queue, result, _fill(fold, t), t) for t in dtypes])
    fn = fold.chain.python(compute, (compute,) * len(dtypes))

    def fold_arrays(*arrays: np.ndarray, scalars: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
        found = []
        for k, (value, dtype) in enumerate(zip(fn(*arrays, scalars=scalars), dtypes, strict=True)):
            if k < count:
                value = _UFUNCS[op].reduce(value, axis=axes, dtype=_accumulator(op, value, axes))
                value = value / divisor if fold.final else value
                value = (np.sqrt(value) if fold.final == "root" else value).reshape(result)
            found.append(as_dtype(value, dtype))
        return tuple(found)

    return cpu.compute(fold_arrays, *tensors, scalars=scalars)


def _accumulator(op: str, value: np.ndarray, axes: Shape) -> DType:
    """NumPy adds pairwise along the last axis only; other long float32 sums are kept in double."""
    long = value.size > 1024 and value.ndim - 1 not in axes
    return np.dtype(np.float64) if op == "sum" and value.dtype == np.float32 and long else value.dtype


# -- choosing the walk -------------------------------------------------------------------------------------------------


def _axes(tensors: Sequence[Tensor], facts: Facts, ordered: bool, narrow: int) -> tuple[bool, Extent]:
    """Whether the inner axis is folded, and the kept, the walked and the inner axes.

    `ordered` keeps the folded axes in row-major order. Fewer than `narrow` contiguous columns are walked downwards, in
    vectors with a step.
    """
    shape, axes = facts.shape, facts.axes
    strides = [layout.expand_strides(t.shape, t.strides, shape) for t in tensors]
    main = max(range(len(tensors)), key=lambda i: tensors[i].size)
    kept = [a for a in range(len(shape)) if a not in axes]
    reduced = list(axes) if ordered else sorted(axes, key=lambda a: -abs(strides[main][a]))
    k, r = (
        Axes(*collapse(tuple(shape[a] for a in some), tuple(tuple(s[a] for a in some) for s in strides)))
        for some in (kept, reduced)
    )
    nk, nr, contiguous = k.lengths[-1], r.lengths[-1], k.strides[main][-1] == 1
    if contiguous or r.strides[main][-1] != 1:
        rows = nk < narrow and nr > nk if contiguous else nr >= nk
    else:
        rows = nr >= 2 * NARROW or nk < NARROW
    if route.special:
        rows = _forced_walk(rows)
    inner = r if rows else k
    outer = Axes(inner.lengths[:-1], tuple(s[:-1] for s in inner.strides))
    counted = tuple(_without_ones(x) for x in ((k, outer) if rows else (outer, r)))
    return rows, Extent(counted, inner.lengths[-1], tuple(s[-1] for s in inner.strides))


def _forced_walk(rows: bool) -> bool:
    """Whether vectors run along the reduced axis or the kept one, where a route may be forced."""
    along, across = Route(FIRST, "rows", lambda: True), Route(FIRST, "columns", lambda: False)
    return bool(choose(FOLD, [along, across] if rows else [across, along]))


def _without_ones(axes: Axes) -> Axes:
    return Axes((), tuple(() for _ in axes.strides)) if axes.lengths == (1,) else axes


def _split(by_rows: bool, extent: Extent, profile: DeviceProfile, walk: Walk) -> tuple[Split, tuple[int, ...]]:
    """How to cut the work for a device, and the grid."""
    rows, outer = (layout.size_of(axes.lengths) for axes in extent.axes)
    items = 4 * profile.compute_units
    if walk.on_cpu:
        return _split_cpu(by_rows, rows, outer, extent.cols, items, 8 * walk.width)
    return _split_gpu(by_rows, rows, outer, extent.cols, items, walk)


def _split_cpu(by_rows: bool, rows: int, outer: int, n: int, items: int, block: int) -> tuple[Split, tuple[int, ...]]:
    if by_rows:
        length = outer * n
        parts = 1 if rows >= items or rows * length <= 2 * CHUNK else min(-(-length // CHUNK), 16 * items)
        parts = max(parts, -(-outer // 4096))
        ostep, istep, iparts = _cut(outer, n, parts, 32)
        unit = max(1, min(CHUNK // max(length, 1), -(-rows // items))) if parts == 1 else 1
        parts = -(-outer // ostep) * iparts
        return Split(unit, ostep, istep, iparts, parts), (-(-rows // unit), parts)
    blocks = -(-n // block)
    wanted = -(-items // (blocks * rows))
    few = rows * outer * n <= 4 * CHUNK  # a second launch costs more than it spreads
    ostep = min(outer, DEPTH, outer if few else max(16, -(-outer // wanted)))
    parts = -(-outer // ostep)
    unit = max(1, min(CHUNK // (min(n, block) * ostep), -(-rows * blocks // items))) if parts == 1 else 1
    return Split(unit, ostep, n, 1, parts), (blocks, -(-rows // unit), parts)


def _split_gpu(by_rows: bool, rows: int, outer: int, n: int, items: int, walk: Walk) -> tuple[Split, tuple[int, ...]]:
    group, width = walk.group, walk.width
    wide = -(-n // width)
    if by_rows:
        lanes = min(group, _power_of_two(-(-outer * wide // 2)))
        while lanes > 32 and outer * wide < EACH * lanes and rows * lanes >= 2 * items * group:
            lanes //= 2  # a shallower tree, where many rows keep the device busy
        groups = -(-rows * lanes // group)
        ostep, istep, iparts = _cut(outer, n, _parts_gpu(groups, items, 16, rows * outer * n), width)
        parts = -(-outer // ostep) * iparts
        return Split(lanes, ostep, istep, iparts, parts), (groups * parts * group,)
    across = widest = min(32, group, _power_of_two(wide))
    while across > ACROSS and -(-wide // across) * rows < items // 2:
        across //= 2
    if _parts_gpu(-(-wide // across) * rows, items, 1, rows * outer * n) > 1:  # cut anyway: memory likes long rows
        across = widest
    groups = -(-wide // across) * rows
    ostep = -(-outer // min(_parts_gpu(groups, items, 1, rows * outer * n), outer))
    parts = -(-outer // ostep)
    return Split(across, ostep, n, 1, parts), (groups * parts * group,)


def _parts_gpu(groups: int, items: int, most: int, size: int) -> int:
    """Into how many parts a group's work is cut: not at all where all units are busy or would soon be done."""
    if groups >= items // 2 or size <= PART * groups:
        return 1
    wanted = max(min(size // PART, most * items), min(size // (PART // 8), items))
    return -(-wanted // groups)


def _cut(outer: int, n: int, parts: int, multiple: int) -> tuple[int, int, int]:
    """(ostep, istep, iparts) for about `parts` parts: along the walked axes when they are long enough, else inside."""
    if outer >= parts:
        return -(-outer // parts), n, 1
    step = -(-n // -(-parts // outer))
    step = -(-step // multiple) * multiple
    return 1, step, -(-n // step)


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


# -- preparing launches ------------------------------------------------------------------------------------------------


def _plan(fold: Fold, tensors: Sequence[Tensor]) -> Stages:
    facts = _facts(fold, tensors)
    shape, axes, result = facts.shape, facts.axes, facts.result
    if layout.size_of(shape) == 0:
        return Stages((), result, _fill(fold, fold.dtypes[0]))
    if not axes:  # nothing to fold: the chain alone, over an axis of length one
        tensors = [t._view((1, *shape), (0, *layout.expand_strides(t.shape, t.strides, shape))) for t in tensors]
        facts = facts._replace(shape=(1, *shape), axes=(0,))
    return Stages(tuple(_stages(fold, tensors, facts)), result, 0.0, len(_held(fold, facts)))


def _stages(fold: Fold, tensors: Sequence[Tensor], facts: Facts) -> list[Launch[Any]]:
    """The launches of a fold: one, or more when it is cut into parts."""
    queue, count, dtypes = tensors[0].queue, facts.folded, fold.dtypes
    text, grid, sizes, partial = _walk(fold, tensors, facts)
    held = _held(fold, facts) if partial else dtypes[:count]
    first = int(fold.op in PLACES and partial is None)  # the values beside places stay unwritten
    new = {f"sum_{k}": (partial or facts.result, t) for k, t in enumerate(held, first)}
    new |= {f"out_{k}": (facts.shape, t) for k, t in enumerate(dtypes[count:])}
    local = (1,) * len(grid) if text.walk.on_cpu else (text.walk.group,)
    made = program(queue, source(fold.chain, text), name_of(fold.chain, fold.op), OPTIONS)
    stage = made.bind(grid, local, new, **sizes)
    if partial is None:
        return [stage]
    parts = [stand_in(queue, partial, t) for t in held]
    rest = fold._replace(chain=_sum_of(len(held)), dtypes=dtypes[:count])
    return [stage, *_stages(rest, parts, facts._replace(shape=partial, axes=(1,)))]


def _held(fold: Fold, facts: Facts) -> tuple[DType, ...]:
    """The types of what a part leaves."""
    compute = facts.compute
    return (compute, position_of(compute)) if fold.op in PLACES else (compute,) * facts.folded


class Cut(NamedTuple):
    """One launch: its text, grid, the numbers it takes, and the shape of the parts that it leaves (None: none)."""

    text: Text
    grid: tuple[int, ...]
    sizes: dict[str, int]
    partial: Shape | None


def _walk(fold: Fold, tensors: Sequence[Tensor], facts: Facts) -> Cut:
    shape, compute = facts.shape, facts.compute
    queue, count, n = tensors[0].queue, facts.folded, len(tensors)
    profile = profile_of(queue)
    on_cpu, places = profile.kind == "cpu", fold.op in PLACES
    met = [*tensors, *(stand_in(queue, shape, t) for t in fold.dtypes[count:])]
    by_rows, extent = _axes(met, facts, places, NARROW if on_cpu else 2)
    operands = tuple(Operand(t.dtype, access_of(s)) for t, s in zip(met, extent.steps, strict=True))
    kept, walked = extent.axes
    vector, ranks = vector_for(extent.cols, profile.vector), (len(kept.lengths), len(walked.lengths))
    walk = Walk(compute, on_cpu, vector, operands[:n], operands[n:], ranks, doubles=profile.has_fp64)
    beside = [(*a, *b) for a, b in zip(kept.strides, walked.strides, strict=True)]
    walk = walk.over(met, beside, 0, FAR)
    held = _held(fold, facts)
    room = GROUP if on_cpu else profile.local_mem // (walk.width * compute.itemsize * len(held))
    walk = replace(walk, group=profile.group(min(GROUP, room)))
    split, grid = _split(by_rows, extent, profile, walk)
    more = split.parts > 1
    results: tuple[DType | None, ...] = held if more else (None, *fold.dtypes) if places else fold.dtypes[:count]
    text = Text(fold.op, "" if more else fold.final, walk, results, by_rows)
    partial = (extent.rows, split.parts) if by_rows else (extent.rows, split.parts, extent.cols)
    return Cut(text, grid, split._asdict() | extent.arguments(walk), partial if more else None)


def source_of(fold: Fold, tensors: Sequence[Tensor]) -> str:
    """The program that `run_fold` would launch first."""
    return source(fold.chain, _walk(fold, tensors, _facts(fold, tensors)).text)


@cache
def _sum_of(count: int) -> Chain:
    """`count` values as they are, each to be folded."""
    if count == 1:
        return IDENTITY
    values = tuple(f"v{k}" for k in range(count))
    return Chain("fold", values, (), (), values, ("fold",) * count)
