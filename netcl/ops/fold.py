"""Reductions as kernels: an elementwise chain folded over any set of axes, so that sum(square(a - b)) is one launch.

A fold is a row `(init, combine)` whose combine is a row of the primitive table. Axes are split into kept, walked and
inner ones (kernels/reduce.cl); whichever of the kept and reduced axes is contiguous in memory becomes the inner one, so
leading, trailing and mixed axes, and views, all run at the speed of memory. Long folds take two launches: parts, then
their fold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from netcl.core import layout
from netcl.core.backend import cpu
from netcl.core.backend.opencl import Kernel, launch
from netcl.core.dtypes import BOOL, C_NAME, INT32, INT64, DType, compute_dtype, is_float
from netcl.core.kernels import dialect
from netcl.core.layout import Shape
from netcl.core.profile import DeviceProfile, profile_of
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.ops import sources
from netcl.ops.broadcast import collapse
from netcl.ops.chain import (
    OPTIONS,
    PLANS,
    Chain,
    Form,
    Operand,
    access_of,
    c_argument,
    element_of,
    reach,
    vector_load,
    vector_types,
)
from netcl.ops.render import vector_for
from netcl.runtime.cache import get_kernel

Axis = int | Sequence[int] | None
FOLDS = {"sum": (0.0, "add"), "prod": (1.0, "mul"), "max": (-math.inf, "maximum"), "min": (math.inf, "minimum")}
FINALS = {"": "{}", "mean": "DIV({}, (T)(s_final))", "root": "f_sqrt(DIV({}, (T)(s_final)))"}
_UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
IDENTITY = Chain("fold", ("v0",), (), (), ("v0",))

CHUNK = 16384  # elements per part on a CPU device
GROUP = 256  # work-items per group on a GPU
PART = 1 << 16  # elements that a GPU's group may fold before more groups are worth a second launch
DEPTH = 512  # rows that one item adds up one after the other: bounds the rounding error of column sums
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


class Text(NamedTuple):
    """Everything the program's text depends on besides the chain."""

    fold: str
    final: str
    form: Form
    result: DType
    rows: bool
    kept_rank: int
    walk_rank: int
    group: int


class Stage(NamedTuple):
    """One prepared launch."""

    kernel: Kernel
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    constants: tuple[int, ...]
    shape: Shape
    dtype: DType


class Plan(NamedTuple):
    """The launches of a fold (none when there is nothing to fold: then the result is `fill`) and the result's shape."""

    stages: tuple[Stage, ...]
    shape: Shape
    fill: float


def fold_chain(
    chain: Chain, op: str, tensors: Sequence[Tensor], axis: Axis, keepdims: bool, dtype: DType, final: str = "",
    divisor: float = 1.0, scalars: Sequence[Any] = (), compute: DType | None = None,
) -> Tensor:  # fmt: skip
    """Fold an elementwise chain of tensors (broadcast together) over `axis`: one launch, or two for long folds.

    op: a key of FOLDS. final: "mean" divides each result by `divisor`, "root" takes the square root of that. Chains may
    read `pos`, the row-major position among the folded (not on NumPy). A full fold without `keepdims` has shape (1,).
    """
    queue = tensors[0].queue
    if len(tensors) > 1:
        same_queue(chain.name, *tensors)
    if isinstance(queue, CPUQueue):
        return _on_numpy(chain, op, tensors, axis, keepdims, dtype, tuple(scalars), final, divisor, compute)
    layouts = tuple([(t.shape, t.strides, t.dtype, t.offset >= 1 << 29) for t in tensors])
    axis = tuple(axis) if isinstance(axis, list) else axis
    key = (chain, op, axis, keepdims, dtype, final, compute, layouts)
    plans = queue.netcl_state.plans
    plan = plans.get(key)
    if plan is None:
        if len(plans) > PLANS:
            plans.clear()
        plan = plans[key] = _plan(chain, op, tensors, axis, keepdims, dtype, final, compute)
    if not plan.stages:
        return Tensor.full(queue, plan.shape, plan.fill, dtype)
    operands: Sequence[Tensor] = tensors
    numbers, last = [*scalars], len(plan.stages) - 1
    for i, stage in enumerate(plan.stages):
        out = allocate(queue, stage.shape, stage.dtype)
        launch(
            stage.kernel, queue, stage.global_size, stage.local_size, *[t.buffer for t in operands], out.buffer,
            *[t.offset for t in operands], *stage.constants, *numbers, *([divisor] if final and i == last else []),
        )  # fmt: skip
        operands, numbers = (out,), []
    return Tensor(out.buffer, plan.shape, layout.contiguous_strides(plan.shape), 0, dtype, queue)


def _facts(
    chain: Chain, tensors: Sequence[Tensor], axis: Axis, keepdims: bool, compute: DType | None
) -> tuple[Shape, Shape, Shape, DType]:
    """Broadcast shape, axes to reduce, result shape, compute dtype."""
    where = chain.name.removeprefix("netcl_")
    shape = layout.broadcast(where, *(t.shape for t in tensors))
    axes = layout.as_axes(where, axis, len(shape))
    if keepdims:
        result = tuple(1 if a in axes else n for a, n in enumerate(shape))
    else:
        result = tuple(n for a, n in enumerate(shape) if a not in axes) or (1,)
    return shape, axes, result, compute or compute_dtype(np.result_type(*(t.dtype for t in tensors)))


def _fill(op: str, final: str, dtype: DType) -> float:
    """The result over no elements: of all (a min of truths) True, of any False."""
    return math.nan if final else op == "min" if dtype == BOOL else FOLDS[op][0]


# -- NumPy -------------------------------------------------------------------------------------------------------------


def _on_numpy(
    chain: Chain, op: str, tensors: Sequence[Tensor], axis: Axis, keepdims: bool, dtype: DType,
    scalars: tuple[Any, ...], final: str, divisor: float, compute: DType | None,
) -> Tensor:  # fmt: skip
    shape, axes, result_shape, compute = _facts(chain, tensors, axis, keepdims, compute)
    if layout.size_of(shape) == 0:
        return Tensor.full(tensors[0].queue, result_shape, _fill(op, final, dtype), dtype)
    fn = chain.python(compute, (compute,))

    def fold_array(*arrays: np.ndarray, scalars: tuple[Any, ...]) -> np.ndarray:
        value = fn(*arrays, scalars=scalars)[0]
        total = _UFUNCS[op].reduce(value, axis=axes, dtype=_accumulator(op, value, axes))
        if final:
            total = total / divisor
            total = np.sqrt(total) if final == "root" else total
        return np.asarray(total).astype(dtype, copy=False).reshape(result_shape)

    result: Tensor = cpu.compute(fold_array, *tensors, scalars=scalars)
    return result


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


def _without_ones(lengths: Shape, strides: tuple[Shape, ...]) -> tuple[Shape, tuple[Shape, ...]]:
    return ((), tuple(() for _ in strides)) if lengths == (1,) else (lengths, strides)


def _split(walk: Axes, profile: DeviceProfile, width: int, group: int) -> tuple[Split, tuple[int, ...]]:
    """How to cut the work for a device, and the grid."""
    rows, outer, items = layout.size_of(walk.kept), layout.size_of(walk.walked), 4 * profile.compute_units
    if profile.kind == "cpu":
        return _split_cpu(walk.rows, rows, outer, walk.inner, items, 8 * width)
    return _split_gpu(walk.rows, rows, outer, walk.inner, items, group)


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


def _split_gpu(by_rows: bool, rows: int, outer: int, n: int, items: int, group: int) -> tuple[Split, tuple[int, ...]]:
    wide = -(-n // 4)
    if by_rows:
        lanes = min(group, _power_of_two(-(-outer * wide // 2)))
        groups = -(-rows * lanes // group)
        ostep, istep, iparts = _cut(outer, n, _parts_gpu(groups, items, 16, rows * outer * n), 4)
        parts = -(-outer // ostep) * iparts
        return Split(lanes, ostep, istep, iparts, parts), (groups * parts * group,)
    across = min(32, group, _power_of_two(wide))
    while across > 4 and -(-wide // across) * rows < items // 2:  # 64 bytes in a row are enough for the memory
        across //= 2
    groups = -(-wide // across) * rows
    ostep = -(-outer // min(_parts_gpu(groups, items, 2, rows * outer * n), outer))
    parts = -(-outer // ostep)
    return Split(across, ostep, n, 1, parts), (groups * parts * group,)


def _parts_gpu(groups: int, items: int, most: int, size: int) -> int:
    """Into how many parts a group's work is cut: not at all where all units are busy or would soon be done."""
    if groups >= items // 2 or size <= PART * groups:
        return 1
    wanted = max(min(size // PART, most * items), min(size // (PART // 8), 2 * items))
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
    chain: Chain, op: str, tensors: Sequence[Tensor], axis: Axis, keepdims: bool, dtype: DType, final: str,
    compute: DType | None,
) -> Plan:  # fmt: skip
    shape, axes, result, compute = _facts(chain, tensors, axis, keepdims, compute)
    if layout.size_of(shape) == 0:
        return Plan((), result, _fill(op, final, dtype))
    if not axes:  # nothing to fold: the chain alone, over an axis of length one
        tensors = [t._view((1, *shape), (0, *layout.expand_strides(t.shape, t.strides, shape))) for t in tensors]
        shape, axes = (1, *shape), (0,)
    return Plan(tuple(_stages(chain, op, tensors, shape, axes, compute, dtype, final)), result, 0.0)


def _stages(
    chain: Chain,
    op: str,
    tensors: Sequence[Tensor],
    shape: Shape,
    axes: Shape,
    compute: DType,
    dtype: DType,
    final: str,
) -> list[Stage]:
    """The launches of a fold: one, or more when it is cut into parts."""
    queue = tensors[0].queue
    ordered = any("pos" in args for _, _, args in chain.lines)
    profile = profile_of(queue)
    walk = _axes(tensors, shape, axes, ordered, NARROW if profile.kind == "cpu" else 2)
    group = 1 << min(GROUP, profile.max_work_group).bit_length() - 1
    plain = profile.kind == "cpu"
    wide = plain or any(reach(t) >= 1 << 30 for t in tensors)
    operands = tuple(Operand(t.dtype, access_of(s)) for t, s in zip(tensors, walk.inner_strides, strict=True))
    form = Form(compute, operands, (), 0, wide, plain, False, vector_for(walk.inner, profile.vector))
    split, grid = _split(walk, profile, form.width, group)
    more = split.parts > 1
    ranks = len(walk.kept), len(walk.walked)
    text = Text(op, "" if more else final, form, compute if more else dtype, walk.rows, *ranks, group)
    source, types = _source(chain, text)
    kernel = get_kernel(queue, source, _name(chain, op), types, OPTIONS)
    constants = [s for steps in (walk.kept_strides, walk.walked_strides) for one in steps for s in one]
    constants += [s for s, x in zip(walk.inner_strides, operands, strict=True) if x.access == "strided"]
    constants += [*walk.kept[1:], *walk.walked[1:], layout.size_of(walk.kept), layout.size_of(walk.walked), walk.inner]
    rows = layout.size_of(walk.kept)
    partial = (rows, split.parts) if walk.rows else (rows, split.parts, walk.inner)
    local = (1,) * len(grid) if plain else (group,)
    stage = Stage(kernel, grid, local, (*constants, *split), partial, text.result)
    if not more:
        return [stage]
    parts = Tensor(None, partial, layout.contiguous_strides(partial), 0, compute, queue)
    return [stage, *_stages(IDENTITY, op, (parts,), partial, (1,), compute, dtype, final)]


# -- the program -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _source(chain: Chain, text: Text) -> tuple[str, tuple[DType | None, ...]]:
    """The program's text and the types of its kernel's arguments."""
    form = text.form
    element, width, storage = element_of(form.compute), form.width, C_NAME[text.result]
    names = [str(k) for k in range(len(form.inputs))]
    pointers = [f"__global const {C_NAME[x.dtype]}* restrict in_{k}" for k, x in zip(names, form.inputs, strict=True)]
    pointers.append(f"__global {storage}* restrict out")
    index = _index_arguments(text, names)
    scalars = [f"a_{s}" for s in chain.scalars] + (["s_final"] if text.final else [])
    parameters = [*pointers, *(f"const I {x}" for x in index), *(f"const {element} {s}" for s in scalars)]
    combine = FOLDS[text.fold][1].upper()
    words = {function for _, function, _ in chain.lines} | {combine}
    words |= {"DIV"} if text.final else set()
    words |= {"f_sqrt"} if text.final == "root" else set()
    same = storage == element
    lines = [
        f"#define I {'long' if form.wide else 'int'}\n#define R {storage}\n#define E {element}",
        f"#define W {width}\n#define WG {text.group}\n#define WALK_RANK {text.walk_rank}",
        *(["#define PLAIN"] if form.plain else []), *(["#define ROWS"] if text.rows else []),
        *([f"#define SAME\ntypedef T U_R __attribute__((aligned({np.dtype(text.result).itemsize})));"] if same else []),
        f"#define PUT(i, v) {'vstore_half_rte(v, i, out)' if storage == 'half' else f'(out[i] = ({storage})(v))'}",
        f"#define INIT (T)({_initial(text.fold, form.compute, element)})",
        f"#define COMBINE(a, b) {combine}(a, b)",
        f"#define FINAL(v) {FINALS[text.final].format('v')}",
        f"#define PARAMETERS {', '.join(parameters)}",
        f"#define SCALARS {' '.join(f'const T {s} = (T)(a_{s});' for s in chain.scalars)}",
        f"#define KEPT(row) {_decode(text.kept_rank, names, 'k', 'row', 'o', 'b')}",
        f"#define WALK(row) {_decode(text.walk_rank, names, 'w', 'row', 'b', 'p')}",
        _step(chain, text, full=True), _step(chain, text, full=False),
    ]  # fmt: skip
    head = dialect.preamble(frozenset(words), element, width, form.plain) + vector_types(form)
    if "double" in {element, storage, *(C_NAME[x.dtype] for x in form.inputs)}:
        head = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n" + head
    scalar = np.dtype(np.uint8) if form.compute == BOOL else form.compute
    types = [None] * len(pointers) + [INT64 if form.wide else INT32] * len(index) + [scalar] * len(scalars)
    body = sources.text("reduce.cl").replace("NAME", _name(chain, text.fold))
    return head + "\n".join(lines) + "\n" + body, tuple(types)


def _index_arguments(text: Text, names: Sequence[str]) -> list[str]:
    """Offsets, strides along kept and walked axes, steps, lengths, and the sizes of the split."""
    index = [f"o_{k}" for k in names]
    for kind, rank in (("k", text.kept_rank), ("w", text.walk_rank)):
        index += [f"{kind}_{k}_{axis}" for k in names for axis in range(rank)]
    index += [f"i_{k}" for k, x in zip(names, text.form.inputs, strict=True) if x.access == "strided"]
    index += [f"k_d{a}" for a in range(1, text.kept_rank)] + [f"w_d{a}" for a in range(1, text.walk_rank)]
    return [*index, "rows", "outer", "n", "unit", "ostep", "istep", "iparts", "parts"]


def _name(chain: Chain, op: str) -> str:
    return f"netcl_{op}_{chain.name.removeprefix('netcl_')}"


def _initial(op: str, compute: DType, element: str) -> str:
    """The fold's neutral element as a C literal."""
    value = FOLDS[op][0]
    if is_float(compute) or math.isfinite(value):
        return dialect.constant(value, element)
    limits = np.iinfo(np.uint8 if compute == BOOL else compute)
    suffix = "L" if element == "long" else ""
    return f"{limits.max}{suffix}" if value > 0 else f"-{limits.max}{suffix} - 1" if limits.min else "0"


def _decode(rank: int, names: Sequence[str], kind: str, row: str, base: str, target: str) -> str:
    """C text that decodes `row` into `rank` indices and gives each operand's place `<target>_k` from `<base>_k`."""
    lines = []
    if rank > 1:
        lines.append(f"I {kind}_q = {row};")
        for axis in range(rank - 1, 0, -1):
            lines.append(f"const I {kind}_x{axis} = {kind}_q % {kind}_d{axis}; {kind}_q /= {kind}_d{axis};")
    if rank:
        lines.append(f"const I {kind}_x0 = {f'{kind}_q' if rank > 1 else row};")
    for name in names:
        terms = [f"{base}_{name}", *(f"{kind}_x{axis} * {kind}_{name}_{axis}" for axis in range(rank))]
        lines.append(f"const I {target}_{name} = {' + '.join(terms)};")
    return " ".join(lines)


def _step(chain: Chain, text: Text, full: bool) -> str:
    """The macro that loads one vector of each input, computes the chain and folds it into `acc`."""
    form = text.form
    element, width = element_of(form.compute), form.width
    lines = ["const I c = (at);"] + ([] if full else ["const int count = (count_);"])
    if any("pos" in args for _, _, args in chain.lines):
        lanes = ", ".join(dialect.constant(j if text.rows else 0, element) for j in range(width))
        lines.append(f"const T pos = (T)(({element})(place)) + (T)({lanes});")
    for k, (v, x) in enumerate(zip(chain.inputs, form.inputs, strict=True)):
        lines.append(f"const T {v} = {vector_load(form, x, str(k), full)};")
    for out, function, args in chain.lines:
        lines.append(f"const T {out} = {function}({', '.join(c_argument(a, element) for a in args)});")
    value = chain.outputs[0]
    if not full:
        lanes = ", ".join(str(j) for j in range(width))
        value = f"((M)({lanes}) < (M)(count) ? {value} : INIT)"
    lines.append(f"acc = COMBINE(acc, {value});")
    name = "STEP(acc, at, place)" if full else "PART(acc, at, place, count_)"
    return f"#define {name} {{ \\\n    " + " \\\n    ".join(lines) + " }"
