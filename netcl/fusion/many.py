"""One launch over many tensors: optimizer steps, moving averages, gradient scaling, and norms over all gradients.

OpenCL has no arrays of pointers, so a kernel names up to SLOTS tensors as arguments and finds its own by a `switch`.
Work is cut into chunks; a table on the device says of each which tensor it belongs to and where it starts. States
(momentum, second moments, float32 master weights) lie one after the other in one flat buffer per state.

Launch geometry. CPU devices: one work-item per chunk, full vectors. GPUs: one group per chunk, vectors of 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from netcl.core.device.profile import profile_of
from netcl.core.dtypes import C_NAME, FLOAT64, DType, compute_dtype
from netcl.core.kernels import dialect
from netcl.core.kernels.dialect import of_formulas
from netcl.core.layout import size_of
from netcl.core.live import unrecorded
from netcl.core.protocols import Launch, Queue
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor, allocate
from netcl.fusion.render import OPTIONS, memory_of
from netcl.fusion.walk import Operand, Walk, swizzles
from netcl.kernels.plans import remember
from netcl.kernels.program import program
from netcl.kernels.sources import NARROW

SLOTS = (1, 2, 4, 8, 16, 32, 48)  # tensors per launch: few programs, and 48 fit the 1024 bytes of arguments PoCL takes
CHUNK = {True: 8192, False: 4096}  # elements per chunk on CPU devices, on others
GROUP = 256
PAD = 64  # elements that states are padded to, so that they are read in whole vectors
FIELDS = 5  # of a table row: slot, start in p, start in g, start in the states, count


def padded(size: int) -> int:
    """`size` rounded up to whole vectors."""
    return -(-size // PAD) * PAD


def slots(queue: Queue) -> int:
    """How many tensors one launch takes on this device."""
    if isinstance(queue, CPUQueue):
        return SLOTS[-1]
    return remember(queue, "tensors of a launch", lambda: _fitting(queue.device.max_parameter_size))


def _fitting(nbytes: int) -> int:
    """How many tensors the arguments of a kernel have room for."""
    return max((n for n in SLOTS if n <= (nbytes - 192) // 16), default=1)


def batches(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Positions of `tensors` grouped by queue and dtype, each group no longer than one launch takes."""
    groups: dict[Any, list[int]] = {}
    for i, t in enumerate(tensors):
        groups.setdefault((id(t.queue), t.dtype), []).append(i)
    result = []
    for members in groups.values():
        n = slots(tensors[members[0]].queue)
        result += [members[i : i + n] for i in range(0, len(members), n)]
    return result


class Table(NamedTuple):
    """The chunks of a launch, on the device."""

    rows: Tensor
    chunks: int


def table(queue: Queue, sizes: tuple[int, ...], offsets: tuple[tuple[int, int], ...], starts: tuple[int, ...]) -> Table:
    """Cut tensors of `sizes` elements into chunks; `offsets`: where p and g start, `starts`: where the states do."""
    length = CHUNK[profile_of(queue).kind == "cpu"]

    def make() -> Table:
        rows = [
            (slot, p + first, g + first, s + first, min(length, size - first))
            for slot, (size, (p, g), s) in enumerate(zip(sizes, offsets, starts, strict=True))
            for first in range(0, size, length)
        ]
        with unrecorded():
            return Table(Tensor.from_host(queue, np.array(rows, np.int64).reshape(-1, FIELDS)), len(rows))

    return remember(queue, ("multi", length, sizes, offsets, starts), make)


# -- text --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Body:
    """What a kernel does to one vector. `reads`: p, or p and g; `writes`: whether p is stored; `scalars`: arguments."""

    name: str
    statements: tuple[tuple[str, str], ...]  # (variable, formula in the dialect)
    states: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    reads: tuple[str, ...] = ("p", "g")
    writes: bool = True
    combine: str | None = None  # fold the last variable over the chunk: a formula in a and b
    master: bool = False  # p is kept in float in a state `master` and stored rounded
    gated: bool = False  # g is multiplied by a number on the device; nothing happens where it is not finite
    unit: bool = False  # formulas may use `unit`, a number on the device
    folded: tuple[str, ...] = ()  # variables that `combine` folds, by default the last
    quick: tuple[str, float, float] | None = None  # (formula, least, most): a sum of it in these bounds is the second
    # folded variable of a chunk, and the others are 0

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # worked out once: a body is looked up at each launch
        return hash(
            (self.name, self.statements, self.states, self.scalars, self.reads, self.combine, self.folded, self.quick)
        )

    @cached_property
    def totals(self) -> dict[str, str]:
        """The C variable that each folded variable is added up in."""
        names = (self.folded or (self.statements[-1][0],)) if self.combine else ()
        return {name: f"total{k or ''}" for k, name in enumerate(names)}


def _helpers(walk: Walk) -> str:
    """Loads and stores of whole and of partial vectors; partial loads fill with ones."""
    storage, width, element = C_NAME[walk.inputs[0].dtype], walk.width, walk.element
    size = 8 if element == "double" else 4
    text = f"typedef {element}{width} U{'' if walk.aligned else f' __attribute__((aligned({size})))'};\n"
    text += f"typedef {element}{width} V{f' __attribute__((aligned({size})))' if walk.on_cpu else ''};\n"
    if storage in NARROW:
        name = NARROW[storage]
        lanes = f"{name}{width}{'A' * walk.aligned}"
        text += f"#define LOAD(q) LOAD_{lanes}(q)\n#define STORE(q, x) STORE_{lanes}(x, q)\n"
        text += f"#define rounded(x) ROUND_{name}{width}(x)\n"
        one, put = f"LOAD_{name}(q, {{j}})", f"STORE_{name}(q, {{j}}, x.s{{j:x}})"
    else:
        text += "#define LOAD(q) (*(__global const U*)(q))\n#define STORE(q, x) (*(__global U*)(q) = (x))\n"
        one, put = "q[{j}]", "q[{j}] = x.s{j:x}"
    lanes = ", ".join(f"{j} < n ? {one.format(j=j)} : 1" for j in range(width))
    stores = " ".join(f"if ({j} < n) {put.format(j=j)};" for j in range(width))
    text += f"static inline T load_part(__global const {storage}* q, long n) {{ return (T)({lanes}); }}\n"
    return text + f"static inline void store_part(__global {storage}* q, long n, T x) {{ {stores} }}\n"


def _vector(body: Body, walk: Walk, full: bool) -> list[str]:
    """Load, compute and store one vector at `i`."""
    lines = [f"T {r} = " + (f"LOAD({r}_ + i);" if full else f"load_part({r}_ + i, n - i);") for r in body.reads]
    for s in body.states:
        lines.append(f"T {s} = *(__global const V*)({s}_ + i);")
    if body.master:
        # where something else wrote the parameter, its value counts and not the copy
        lines += ["T stored = p;", "p = rounded(master) == stored ? master : stored;"]
    if body.gated:
        lines.append("g = g * gate;")
    known = {*body.reads, *body.states}
    for name, formula in body.statements:
        lines.append(f"{'' if name in known else 'T '}{name} = {dialect.to_c(formula, walk.element)};")
        known.add(name)
    fold = dialect.to_c(body.combine, walk.element) if body.combine else ""
    for name, total in body.totals.items():
        if not full:
            lines.append(f"{name} = where(LANES < (T)(n - i), {name}, (T)({dialect.constant(0, walk.element)}));")
        lines.append(f"{{ T a = {total}, b = {name}; {total} = {fold}; }}")
    for s in body.states:
        lines.append(f"*(__global V*)({s}_ + i) = {'p' if s == 'master' else s};")
    if body.writes:
        lines.append("STORE(p_ + i, p);" if full else "store_part(p_ + i, n - i, p);")
    return lines


def _loop(body: Body, walk: Walk) -> list[str]:
    """C lines that run over the chunk vector by vector."""
    first, step = (
        ("0", walk.width) if walk.on_cpu else (f"(long)get_local_id(0) * {walk.width}", walk.group * walk.width)
    )
    inner = {full: ["    " + line for line in _vector(body, walk, full)] for full in (True, False)}
    return [
        *(f"T {total} = (T)(0);" for total in body.totals.values()),
        f"long i = {first};",
        f"for (; i + {walk.width} <= n; i += {step}) {{",
        *inner[True],
        "}",
        "if (i < n) {",
        *inner[False],
        "}",
    ]


def _fold(body: Body, walk: Walk, total: str) -> list[str]:
    """C lines that fold the vector `total` of every work-item into `sum`, which all of them get."""
    fold = dialect.to_c(body.combine or "", walk.element)
    lines = [f"{{ T a = {total}, b = {total}.s{turned}; {total} = {fold}; }}" for turned in swizzles(walk.width)]
    if walk.on_cpu:
        return [*lines, f"sum = {total}.s0;"]
    return [
        *lines,
        f"room[id] = {total}.s0;",
        f"for (int span = {walk.group} / 2; span > 0; span /= 2) {{",
        "    barrier(CLK_LOCAL_MEM_FENCE);",
        "    if (id < span) { T a = (T)(room[id]), b = (T)(room[id + span]);",
        f"        {total} = {fold}; room[id] = {total}.s0; }}",
        "}",
        "barrier(CLK_LOCAL_MEM_FENCE);",
        "sum = room[0];",
        "barrier(CLK_LOCAL_MEM_FENCE);",
    ]


def _quick(body: Body, walk: Walk) -> list[str]:
    """C lines that leave a chunk whose sum of one formula lies in the bounds."""
    if body.quick is None:
        return []
    formula, least, most = body.quick
    one = replace(body, statements=(("x", formula),), folded=(), quick=None)
    low, high = (dialect.constant(v, walk.element) for v in (least, most))
    puts = " ".join(f"put({k}, {'sum' if k == 1 else 0});" for k in range(len(body.totals)))
    return [
        "{",
        *(f"    {line}" for line in (*_loop(one, walk), *_fold(one, walk, "total"))),
        f"    if (sum >= {low} && sum <= {high}) {{ {puts} return; }}",
        "}",
    ]


def _folds(body: Body, walk: Walk) -> list[str]:
    """C lines that fold the totals of every work-item into partial[chunk], one number after the other."""
    return [
        line for k, total in enumerate(body.totals.values()) for line in (*_fold(body, walk, total), f"put({k}, sum);")
    ]


def _found(body: Body, walk: Walk) -> list[str]:
    """C lines that find the memory of a chunk, and what its formulas read besides."""
    storage = C_NAME[walk.inputs[0].dtype]
    cases = [" ".join(f"{r}_ = {r}{k};" for r in body.reads) for k in range(len(walk.inputs))]
    gate = ["float gate_ = gates[0];", "if (!(gate_ - gate_ == 0.0f)) return;", "T gate = (T)(gate_);"]
    return [
        "size_t chunk = get_global_id(0);" if walk.on_cpu else "size_t chunk = get_group_id(0);",
        f"__global const long* row = table + chunk * {FIELDS};",
        "long n = row[4];",
        *(gate if body.gated else []),
        *(f"__global {'' if r == 'p' and body.writes else 'const '}{storage}* {r}_;" for r in body.reads),
        "switch ((int)row[0]) {",
        *(f"case {k}: {text} break;" for k, text in enumerate(cases[:-1])),
        f"default: {cases[-1]}",
        "}",
        *(f"{r}_ += row[{1 if r == 'p' else 2}];" for r in body.reads),
        *(f"__global {walk.element}* {s}_ = flat_{s} + row[3];" for s in body.states),
        *(f"T {k} = (T)(a_{k});" for k in body.scalars),
        *["T unit = (T)(units[0]);"] * body.unit,
    ]


@of_formulas(512)
def render(body: Body, walk: Walk) -> str:
    """The program of `body`, with one kernel called netcl_<name>, over as many tensors as the walk has inputs.

    Aligned means that tensors start at whole vectors, as states always do; the items of a group share a chunk.
    """
    storage, element, width = C_NAME[walk.inputs[0].dtype], walk.element, walk.width
    parameters = [
        f"__global {'' if r == 'p' and body.writes else 'const '}{storage}* {r}{k}"
        for r in body.reads
        for k in range(len(walk.inputs))
    ]
    parameters += [f"__global {element}* flat_{s}" for s in body.states] + ["__global const long* table"]
    parameters += ["__global const float* gates"] * body.gated + [f"__global const {element}* units"] * body.unit
    parameters += [f"__global {element}* partial"] * bool(body.combine)
    parameters += ["int base"] * bool(body.combine) + [f"{element} a_{k}" for k in body.scalars]
    lines = _found(body, walk)
    if body.combine:
        owner = "" if walk.on_cpu else "if (id == 0) "
        text = f"{owner}partial[(base + (int)chunk) * {len(body.totals)} + (k)] = (v)"
        shared = [] if walk.on_cpu else ["int id = (int)get_local_id(0);", f"__local E room[{walk.group}];"]
        lines += [*shared, "E sum;", f"#define put(k, v) {text}"]
    lines += [*_quick(body, walk), *_loop(body, walk), *(_folds(body, walk) if body.combine else ())]
    words = frozenset(f"f_{w}" for _, f in body.statements for w in dialect.names(f) if w in dialect.FUNCTIONS)
    helpers = _helpers(walk)
    head = dialect.preamble(words, element, width, walk.on_cpu) + f"typedef {element} E;\n"
    head = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n" * (walk.compute == FLOAT64) + head
    head += f"#define LANES ((T)({', '.join(map(str, range(width)))}))\n{memory_of(helpers)}{helpers}"
    text = f"{head}__kernel void netcl_{body.name}({', '.join(parameters)}) {{\n" + "".join(f"    {x}\n" for x in lines)
    return text + "}\n"


# -- launching ---------------------------------------------------------------------------------------------------------


class Planned(NamedTuple):
    """A body's launch over tensors of certain sizes, which takes the memory of `slots` tensors; None for no chunks."""

    launch: Launch[None] | None
    slots: int
    chunks: int


def plan_of(body: Body, arrays: Sequence[Sequence[Tensor]], starts: tuple[int, ...] = ()) -> Planned:
    """The launch of `body` over contiguous tensors (see `run`), made on first use and kept with the queue."""
    first, last = arrays[0], arrays[-1]
    queue, dtype = first[0].queue, first[0].dtype
    sizes = tuple([size_of(t.shape) for t in first])
    offsets = tuple([(p.offset, g.offset) for p, g in zip(first, last, strict=True)])
    plans = queue.netcl_state.plans
    key = (body, dtype, sizes, offsets, starts)
    found: Planned | None = plans.get(key)
    if found is None:
        found = plans[key] = _plan(queue, body, dtype, sizes, offsets, starts)
    return found


def _plan(
    queue: Queue,
    body: Body,
    dtype: DType,
    sizes: tuple[int, ...],
    offsets: tuple[tuple[int, int], ...],
    starts: tuple[int, ...],
) -> Planned:
    rows, chunks = table(queue, sizes, offsets, starts or (0,) * len(sizes))
    if not chunks:
        return Planned(None, 0, 0)
    slots, profile = next(n for n in SLOTS if n >= len(sizes)), profile_of(queue)
    on_cpu = profile.kind == "cpu"
    group = 1 if on_cpu else profile.group(GROUP)
    aligned = not on_cpu and all(p % 4 == 0 and g % 4 == 0 for p, g in offsets)
    named = (Operand(dtype, "vector"),) * slots
    walk = Walk(compute_dtype(dtype), on_cpu, profile.vector, named, aligned=aligned, group=group)
    source = render(body, walk)
    kernel = program(queue, source, f"netcl_{body.name}", OPTIONS)
    return Planned(kernel.bind((chunks * group,), (group,), table=rows.buffer), slots, chunks)


def run(
    body: Body,
    arrays: Sequence[Sequence[Tensor]],
    starts: tuple[int, ...] = (),
    extra: Sequence[Any] = (),
    flats: Sequence[Tensor] = (),
    scalars: Sequence[Any] = (),
) -> None:
    """Launch `body` over contiguous tensors, `arrays` holding those of each name it reads.

    `starts` says where each tensor's states begin in `flats`; `extra` are the arguments between table and scalars.
    """
    _send(plan_of(body, arrays, starts), arrays, extra, flats, scalars)


def _send(
    plan: Planned,
    arrays: Sequence[Sequence[Tensor]],
    extra: Sequence[Any],
    flats: Sequence[Tensor],
    scalars: Sequence[Any],
) -> None:
    launch, slots, _ = plan
    if launch is not None:  # arguments that no chunk refers to repeat the last tensor
        memory = [t.buffer for ts in arrays for t in (*ts, *[ts[-1]] * (slots - len(ts)))]
        launch(*memory, *[f.buffer for f in flats], *extra, *scalars)


def partials(tensors: Sequence[Tensor], body: Body, *scalars: float, unit: Tensor | None = None) -> Tensor:
    """The folded variables of `body` over each chunk of the tensors: (chunks, variables), or (chunks,) of one."""
    queue, compute, many = tensors[0].queue, compute_dtype(tensors[0].dtype), len(body.totals)
    groups = [[tensors[i] for i in members] for members in batches(tensors)]
    plans = [plan_of(body, [group]) for group in groups]
    count = sum([plan.chunks for plan in plans])
    out = allocate(queue, (count, many) if many > 1 else (count,), compute)
    units = () if unit is None else (unit.buffer,)
    base = 0
    for group, plan in zip(groups, plans, strict=True):
        _send(plan, [group], (*units, out.buffer, base), (), scalars)
        base += plan.chunks
    return out
