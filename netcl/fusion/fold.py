"""Reductions as kernels: an elementwise chain folded over any set of axes, so that sum(square(a - b)) is one launch.

A fold is a row `(init, combine)` whose combine is a row of the primitive table. Axes are split into kept, walked and
inner ones (fusion/reduce.cl); whichever of the kept and reduced axes is contiguous in memory becomes the inner one, so
leading, trailing and mixed axes, and views, all run at the speed of memory. Long folds take two launches: parts, then
their fold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from netcl.fusion.broadcast import collapse
from netcl.fusion.chain import OPTIONS, START, Chain, Form, Operand, access_of, is_aligned, is_short, reach
from netcl.fusion.fold_source import FOLDS, PLACES, Text, name_of, position_of, source
from netcl.fusion.render import vector_for
from netcl.kernels import route
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


class Axes(NamedTuple):
    """The walk of a fold: lengths of kept, walked and inner axes, and each operand's strides along them."""

    rows: bool  # the inner axis is reduced
    kept: Shape
    walked: Shape
    inner: int
    kept_strides: tuple[Shape, ...]
    walked_strides: tuple[Shape, ...]
    inner_strides: Shape


class Split(NamedTuple):
    """How the work is cut: sizes of reduce.cl, and how many parts come out."""

    unit: int
    ostep: int
    istep: int
    iparts: int
    parts: int


class Stages(NamedTuple):
    """The launches of a fold (none when there is nothing to fold: then results are `fill`) and the result's shape."""

    launches: tuple[Launch[Any], ...]
    shape: Shape
    fill: float


def fold_chain(
    chain: Chain, op: str, tensors: Sequence[Tensor], axis: Axis, keepdims: bool, dtype: DType, final: str = "",
    divisor: float = 1.0, scalars: Sequence[Any] = (), compute: DType | None = None,
) -> Tensor:  # fmt: skip
    """Fold an elementwise chain of tensors (broadcast together) over `axis`: one launch, or two for long folds.

    op: a key of FOLDS, or (not on NumPy) of PLACES: the row-major position of the best among the folded. final: "mean"
    divides each result by `divisor`, "root" takes the root of that. A full fold without `keepdims` has shape (1,).
    """
    return fold_chains(chain, op, tensors, axis, keepdims, (dtype,), final, divisor, scalars, compute)[0]


def fold_chains(
    chain: Chain, op: str, tensors: Sequence[Tensor], axis: Axis, keepdims: bool, dtypes: tuple[DType, ...],
    final: str = "", divisor: float = 1.0, scalars: Sequence[Any] = (), compute: DType | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """As `fold_chain` for a chain of several outputs, all folded but for those of kind "full": these are stored."""
    queue = tensors[0].queue
    if len(tensors) > 1:
        same_queue(chain.name, *tensors)
    axis = tuple(axis) if isinstance(axis, list) else axis
    if isinstance(queue, CPUQueue):
        if route.special:
            route.sole(FOLD)
        return _on_numpy(chain, op, tensors, axis, keepdims, dtypes, tuple(scalars), final, divisor, compute)
    layouts = tuple([(t.shape, t.strides, t.dtype, t.offset & START) for t in tensors])
    key = (chain, op, axis, keepdims, dtypes, final, compute, layouts, route.mode)
    plans = queue.netcl_state.plans
    plan = plans.get(key)
    if plan is None:
        plan = plans[key] = _plan(chain, op, tensors, axis, keepdims, dtypes, final, compute)
    if not plan.launches:
        return tuple([Tensor.full(queue, plan.shape, plan.fill, dtype) for dtype in dtypes])
    ending = (divisor,) if final else ()
    if len(plan.launches) == 1:
        found = plan.launches[0](*tensors, *scalars, *ending)
        return found if type(found) is tuple else (found,)
    first, second = plan.launches
    parts = first(*tensors, *scalars)
    if type(parts) is Tensor:
        return (second(parts, *ending),)
    folded = len(parts) - chain.kinds.count("full")
    found = second(*parts[:folded], *ending)
    return (*(found if type(found) is tuple else (found,)), *parts[folded:])


def _facts(
    chain: Chain, op: str, tensors: Sequence[Tensor], axis: Axis, keepdims: bool, compute: DType | None
) -> tuple[Shape, Shape, Shape, DType]:
    """Broadcast shape, axes to reduce, result shape, compute dtype."""
    where = op if chain is IDENTITY else chain.name.removeprefix("netcl_")
    shape = layout.broadcast(where, *(t.shape for t in tensors))
    axes = layout.as_axes(where, axis, len(shape))
    if keepdims:
        result = tuple(1 if a in axes else n for a, n in enumerate(shape))
    else:
        result = tuple(n for a, n in enumerate(shape) if a not in axes) or (1,)
    return shape, axes, result, compute or compute_dtype(common_dtype(*(t.dtype for t in tensors)))


def _fill(op: str, final: str, dtype: DType) -> float:
    """The result over no elements: of all (a min of truths) True, of any False."""
    return math.nan if final else op == "min" if dtype == BOOL else FOLDS.get(op, (0.0,))[0]


# -- NumPy -------------------------------------------------------------------------------------------------------------


def _on_numpy(
    chain: Chain, op: str, tensors: Sequence[Tensor], axis: Axis, keepdims: bool, dtypes: tuple[DType, ...],
    scalars: tuple[Any, ...], final: str, divisor: float, compute: DType | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    shape, axes, result_shape, compute = _facts(chain, op, tensors, axis, keepdims, compute)
    if layout.size_of(shape) == 0:
        return tuple([Tensor.full(tensors[0].queue, result_shape, _fill(op, final, t), t) for t in dtypes])
    fn, count = chain.python(compute, (compute,) * len(dtypes)), len(dtypes) - chain.kinds.count("full")

    def fold_arrays(*arrays: np.ndarray, scalars: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
        return tuple([
            folded(value, dtype) if k < count else np.asarray(value).astype(dtype, copy=False)
            for k, (value, dtype) in enumerate(zip(fn(*arrays, scalars=scalars), dtypes, strict=True))
        ])  # fmt: skip

    def folded(value: np.ndarray, dtype: DType) -> np.ndarray:
        total = _UFUNCS[op].reduce(value, axis=axes, dtype=_accumulator(op, value, axes))
        if final:
            total = total / divisor
            total = np.sqrt(total) if final == "root" else total
        return np.asarray(total).astype(dtype, copy=False).reshape(result_shape)

    return cpu.compute(fold_arrays, *tensors, scalars=scalars)


def _accumulator(op: str, value: np.ndarray, axes: Shape) -> DType:
    """NumPy adds pairwise along the last axis only; other long float32 sums are kept in double."""
    long = value.size > 1024 and value.ndim - 1 not in axes
    return np.dtype(np.float64) if op == "sum" and value.dtype == np.float32 and long else value.dtype


# -- choosing the walk -------------------------------------------------------------------------------------------------


def _axes(tensors: Sequence[Tensor], shape: Shape, axes: Shape, ordered: bool, narrow: int) -> Axes:
    """Which axes are kept, walked and inner; `ordered` keeps the reduced axes in row-major order.

    Fewer than `narrow` contiguous columns are walked downwards, in vectors with a step.
    """
    strides = [layout.expand_strides(t.shape, t.strides, shape) for t in tensors]
    main = max(range(len(tensors)), key=lambda i: tensors[i].size)
    kept = [a for a in range(len(shape)) if a not in axes]
    reduced = list(axes) if ordered else sorted(axes, key=lambda a: -abs(strides[main][a]))
    (lengths_k, steps_k), (lengths_r, steps_r) = (
        collapse(tuple(shape[a] for a in some), tuple(tuple(s[a] for a in some) for s in strides))
        for some in (kept, reduced)
    )
    nk, nr, contiguous = lengths_k[-1], lengths_r[-1], steps_k[main][-1] == 1
    if contiguous or steps_r[main][-1] != 1:
        rows = nk < narrow and nr > nk if contiguous else nr >= nk
    else:
        rows = nr >= 2 * NARROW or nk < NARROW
    if route.special:
        rows = _forced_walk(rows)
    last = [(s[-1],) for s in (steps_r if rows else steps_k)]
    if rows:
        steps_r = tuple(s[:-1] for s in steps_r)
        lengths_r, inner = lengths_r[:-1], nr
    else:
        steps_k = tuple(s[:-1] for s in steps_k)
        lengths_k, inner = lengths_k[:-1], nk
    lengths_k, steps_k = _without_ones(lengths_k, steps_k)
    lengths_r, steps_r = _without_ones(lengths_r, steps_r)
    return Axes(rows, lengths_k, lengths_r, inner, steps_k, steps_r, tuple(s[0] for s in last))


def _forced_walk(rows: bool) -> bool:
    """Whether vectors run along the reduced axis or the kept one, where a route may be forced."""
    along, across = Route(FIRST, "rows", lambda: True), Route(FIRST, "columns", lambda: False)
    return bool(choose(FOLD, [along, across] if rows else [across, along]))


def _without_ones(lengths: Shape, strides: tuple[Shape, ...]) -> tuple[Shape, tuple[Shape, ...]]:
    return ((), tuple(() for _ in strides)) if lengths == (1,) else (lengths, strides)


def _split(walk: Axes, profile: DeviceProfile, width: int, group: int) -> tuple[Split, tuple[int, ...]]:
    """How to cut the work for a device, and the grid."""
    rows, outer, items = layout.size_of(walk.kept), layout.size_of(walk.walked), 4 * profile.compute_units
    if profile.kind == "cpu":
        return _split_cpu(walk.rows, rows, outer, walk.inner, items, 8 * width)
    return _split_gpu(walk.rows, rows, outer, walk.inner, items, group, width)


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


def _split_gpu(
    by_rows: bool, rows: int, outer: int, n: int, items: int, group: int, width: int
) -> tuple[Split, tuple[int, ...]]:
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


def _plan(
    chain: Chain, op: str, tensors: Sequence[Tensor], axis: Axis, keepdims: bool, dtypes: tuple[DType, ...], final: str,
    compute: DType | None,
) -> Stages:  # fmt: skip
    shape, axes, result, compute = _facts(chain, op, tensors, axis, keepdims, compute)
    if layout.size_of(shape) == 0:
        return Stages((), result, _fill(op, final, dtypes[0]))
    if not axes:  # nothing to fold: the chain alone, over an axis of length one
        tensors = [t._view((1, *shape), (0, *layout.expand_strides(t.shape, t.strides, shape))) for t in tensors]
        shape, axes = (1, *shape), (0,)
    return Stages(tuple(_stages(chain, op, tensors, shape, axes, compute, dtypes, final, result)), result, 0.0)


def _stages(
    chain: Chain, op: str, tensors: Sequence[Tensor], shape: Shape, axes: Shape, compute: DType,
    dtypes: tuple[DType, ...], final: str, result: Shape,
) -> list[Launch[Any]]:  # fmt: skip
    """The launches of a fold: one, or more when it is cut into parts."""
    queue, folded = tensors[0].queue, len(dtypes) - chain.kinds.count("full")
    text, grid, local, sizes, partial = _walk(chain, op, tensors, shape, axes, compute, dtypes, final)
    held = _held(op, compute, folded) if partial else dtypes[:folded]
    first = int(op in PLACES and partial is None)  # the values beside places stay unwritten
    new = {f"sum_{k}": (partial or result, t) for k, t in enumerate(held, first)}
    new |= {f"out_{k}": (shape, t) for k, t in enumerate(dtypes[folded:])}
    stage = program(queue, text, name_of(chain, op), OPTIONS).bind(grid, local, new, **sizes)
    if partial is None:
        return [stage]
    parts = [Tensor(None, partial, layout.contiguous_strides(partial), 0, t, queue) for t in held]
    return [stage, *_stages(_sum_of(len(held)), op, parts, partial, (1,), compute, dtypes[:folded], final, result)]


def _held(op: str, compute: DType, folded: int) -> tuple[DType, ...]:
    """The types of what a part leaves."""
    return (compute, position_of(compute)) if op in PLACES else (compute,) * folded


class Walk(NamedTuple):
    """One launch: program, grid, the numbers it takes, and the shape of the parts that it leaves (None: none)."""

    source: str
    grid: tuple[int, ...]
    local: tuple[int, ...]
    sizes: dict[str, int]
    partial: Shape | None


def _walk(
    chain: Chain, op: str, tensors: Sequence[Tensor], shape: Shape, axes: Shape, compute: DType,
    dtypes: tuple[DType, ...], final: str,
) -> Walk:  # fmt: skip
    queue, folded = tensors[0].queue, len(dtypes) - chain.kinds.count("full")
    profile = profile_of(queue)
    like = [Tensor(None, shape, layout.contiguous_strides(shape), 0, t, queue) for t in dtypes[folded:]]
    walk = _axes([*tensors, *like], shape, axes, op in PLACES, NARROW if profile.kind == "cpu" else 2)
    plain = profile.kind == "cpu"
    held = _held(op, compute, folded)
    wide = plain or any(reach(t) >= 1 << 30 for t in (*tensors, *like))
    accesses = [access_of(s) for s in walk.inner_strides]
    operands = [Operand(t.dtype, a) for t, a in zip((*tensors, *like), accesses, strict=True)]
    inputs, stored = tuple(operands[: len(tensors)]), tuple(operands[len(tensors) :])
    steps = [(*a, *b, i) for a, b, i in zip(walk.kept_strides, walk.walked_strides, walk.inner_strides, strict=True)]
    aligned = not plain and is_aligned((*tensors, *like), steps)
    short = is_short(operands) and compute.itemsize <= 4
    eights = aligned and short and is_aligned((*tensors, *like), steps, 8)
    vector = vector_for(walk.inner, profile.vector)
    form = Form(
        compute, inputs, stored, 0, wide, plain, aligned, vector, eights=eights, doubles=profile.has_fp64
    )  # fmt: skip
    room = GROUP if plain else profile.local_mem // (form.width * compute.itemsize * len(held))
    group = profile.group(min(GROUP, room))
    split, grid = _split(walk, profile, form.width, group)
    more = split.parts > 1
    ranks = len(walk.kept), len(walk.walked)
    results: tuple[DType | None, ...] = held if more else (None, *dtypes) if op in PLACES else dtypes[:folded]
    text = source(chain, Text(op, "" if more else final, form, results, walk.rows, *ranks, group))
    rows = layout.size_of(walk.kept)
    sizes = {**split._asdict(), "rows": rows, "outer": layout.size_of(walk.walked), "n": walk.inner}
    for kind, lengths, strides in (("k", walk.kept, walk.kept_strides), ("w", walk.walked, walk.walked_strides)):
        sizes |= {f"{kind}_d{a}": n for a, n in enumerate(lengths) if a}
        sizes |= {f"{kind}_{s}_{a}": n for s, one in zip(form.operands, strides) for a, n in enumerate(one)}
    named = zip(form.operands.items(), walk.inner_strides, strict=True)
    sizes |= {f"i_{s}": step for (s, x), step in named if x.access == "strided"}
    partial = (rows, split.parts) if walk.rows else (rows, split.parts, walk.inner)
    local = (1,) * len(grid) if plain else (group,)
    return Walk(text, grid, local, sizes, partial if more else None)


def source_of(chain: Chain, op: str, tensors: Sequence[Tensor], axes: Shape, dtypes: Sequence[DType], of: DType) -> str:
    """The program that `fold_chains` would launch first, computing in `of`."""
    shape = layout.broadcast(chain.name, *(t.shape for t in tensors))
    return _walk(chain, op, tensors, shape, axes, of, tuple(dtypes), "").source


@cache
def _sum_of(count: int) -> Chain:
    """`count` values as they are, each to be folded."""
    if count == 1:
        return IDENTITY
    values = tuple(f"v{k}" for k in range(count))
    return Chain("fold", values, (), (), values, ("fold",) * count)
