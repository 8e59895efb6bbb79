"""Chains that reduce along rows: softmax, norms, losses written from primitives, as one kernel that passes over a row.

A pass computes what the reductions of its stage need, the next pass uses their results. Values that are dear to compute
(exponentials) are handed on from pass to pass in private memory while rows are short enough. Outputs are full rows or
one element per row.

Launch geometry. CPU devices: local size 1, a work-item takes `step` rows, full vectors, no barriers. GPUs: a group of
WG work-items per row, vectors of 4, reductions through a tree in local memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from netcl.core import layout
from netcl.core.backend import cpu
from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import FLOAT32, DType
from netcl.core.kernels import dialect
from netcl.core.kernels.dialect import of_formulas
from netcl.core.layout import Shape
from netcl.core.protocols import Launch, Queue
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor, same_queue
from netcl.fusion.chain import COUNT, REDUCTIONS, Chain, Line
from netcl.fusion.render import OPTIONS, assignments, c_argument, kernel, tab, vector_load, vector_store
from netcl.fusion.walk import Axes, Extent, Operand, Walk, access_of, collapse, stand_in, swizzles, vector_for
from netcl.kernels import route
from netcl.kernels.grid import CHUNK, FAR, START
from netcl.kernels.program import program
from netcl.kernels.route import declare, kept
from netcl.kernels.streaming import is_streamed

ROWS = declare("rows", "registers", "passes")
KEEP_CPU = (128, 1024)  # vectors of a row that a CPU work-item may hand on
KEEP_GPU = (1, 2, 4, 8)
DOWN = 256  # elements of a column that is copied before it is walked
HANDED_ON = 4  # values, at most
SERIAL_ROWS, SERIAL_COLS = 8, 1 << 15  # fewer and longer rows than this leave most of a device idle


def fits(shape: Shape, axes: int) -> bool:
    """Whether one work-item or group per row is a good walk of `shape`."""
    rows, cols = layout.size_of(shape[:-axes]), layout.size_of(shape[-axes:])
    return rows >= SERIAL_ROWS or cols <= SERIAL_COLS


def run_rows(
    chain: Chain, compute: DType, dtypes: tuple[DType, ...], tensors: Sequence[Tensor], scalars: Sequence[Any] = ()
) -> tuple[Tensor, ...]:
    """Compute a chain with row reductions over `tensors` broadcast together (not empty); new tensors of `dtypes`."""
    queue = tensors[0].queue
    if len(tensors) > 1:
        same_queue(chain.name, *tensors)
    if isinstance(queue, CPUQueue):
        if route.special:
            route.sole(ROWS)
        return cpu.compute(chain.python(compute, dtypes), *tensors, scalars=tuple(scalars))
    layouts = tuple([(t.shape, t.strides, t.dtype, t.offset & START) for t in tensors])
    plans = queue.netcl_state.plans
    key = (chain, compute, dtypes, layouts, route.mode)
    found = plans.get(key)
    if found is None:
        found = plans[key] = _plan(queue, chain, compute, dtypes, tensors)
    launch, copies = found
    if copies:
        tensors = [
            t if shape is None else t.expand(shape).contiguous() for t, shape in zip(tensors, copies, strict=True)
        ]
    made = launch(*tensors, *scalars)
    return made if type(made) is tuple else (made,)


# -- planning ----------------------------------------------------------------------------------------------------------


def _walk(
    queue: Queue, chain: Chain, compute: DType, dtypes: tuple[DType, ...], tensors: Sequence[Tensor]
) -> tuple[Walk, Extent, tuple[Shape | None, ...]]:
    """How a row chain meets its operands, and the shapes to copy inputs in whose reduced axes are no single walk."""
    k, profile = chain.axes, profile_of(queue)
    on_cpu = profile.kind == "cpu"
    shape = layout.broadcast(chain.title, *(t.shape for t in tensors))
    cols = layout.size_of(shape[-k:])
    copied = [not _is_one_walk(t, shape, k) or (on_cpu and _is_down(t, shape, k)) for t in tensors]
    copies = tuple((*t.shape[:-k], *shape[-k:]) if copy else None for t, copy in zip(tensors, copied, strict=True))
    seen = [t if s is None else stand_in(queue, s, t.dtype) for t, s in zip(tensors, copies, strict=True)]
    steps = [layout.expand_strides(t.shape, t.strides, shape) for t in seen]
    steps += [layout.contiguous_strides(shape) for kind in chain.kinds if kind == "full"]
    _, along = collapse(shape[-k:], tuple(s[-k:] for s in steps))
    lengths, outer = collapse(shape[:-k], tuple(s[:-k] for s in steps))
    if lengths == (1,):
        lengths, outer = (), tuple(() for _ in outer)
    extent = Extent((Axes(lengths, outer),), cols, tuple(s[-1] for s in along))
    accesses = [access_of(s) if cols > 1 else "repeat" for s in extent.steps[: len(seen)]]
    inputs = tuple(Operand(t.dtype, a) for t, a in zip(seen, accesses, strict=True))
    outputs = tuple(Operand(d, "vector" if x == "full" else "row") for d, x in zip(dtypes, chain.kinds, strict=True))
    vector, ranks = vector_for(cols, profile.vector), (len(lengths),)
    walk = Walk(compute, on_cpu, vector, inputs, outputs, ranks, doubles=profile.has_fp64)
    walk = replace(walk.over(seen, outer, layout.size_of(shape), FAR), eights=False)
    group, keep = _sharing(cols, walk.width, profile)
    full = [d for d, kind in zip(dtypes, chain.kinds, strict=True) if kind == "full"]
    stream = bool(full) and all(is_streamed(profile, shape, cols, d, compute) for d in full)
    walk = replace(walk, aligned=walk.aligned and cols % 4 == 0, group=group, keep=keep, stream=stream)
    return walk, extent, copies if any(copies) else ()


def _plan(
    queue: Queue, chain: Chain, compute: DType, dtypes: tuple[DType, ...], tensors: Sequence[Tensor]
) -> tuple[Launch[Any], tuple[Shape | None, ...]]:
    """The launch, and the shapes to copy inputs in."""
    walk, extent, copies = _walk(queue, chain, compute, dtypes, tensors)
    shape, rows = layout.broadcast(chain.title, *(t.shape for t in tensors)), extent.rows
    step = max(1, min(CHUNK // extent.cols, -(-rows // (4 * profile_of(queue).compute_units))))
    grid, local = ((-(-rows // step),), (1,)) if walk.on_cpu else ((rows * walk.group,), (walk.group,))
    sizes = extent.arguments(walk) | ({"step": step} if walk.on_cpu else {})
    kinds = zip(chain.kinds, dtypes, strict=True)
    new = {f"out_{k}": (_output_shape(kind, shape, chain.axes), t) for k, (kind, t) in enumerate(kinds)}
    return program(queue, _source(chain, walk), chain.name, OPTIONS).bind(grid, local, new, **sizes), copies


def source_of(queue: Queue, chain: Chain, compute: DType, dtypes: tuple[DType, ...], tensors: Sequence[Tensor]) -> str:
    """The text of the kernel that `run_rows` would launch."""
    return _source(chain, _walk(queue, chain, compute, dtypes, tensors)[0])


def _is_one_walk(t: Tensor, shape: Shape, k: int) -> bool:
    strides = layout.expand_strides(t.shape, t.strides, shape)[-k:]
    return len(collapse(shape[-k:], (strides,))[0]) == 1


def _is_down(t: Tensor, shape: Shape, k: int) -> bool:
    """Whether rows are long columns in memory: a CPU would lose their lines before the next row needs them."""
    strides = [abs(s) for s in layout.expand_strides(t.shape, t.strides, shape)]
    nearest = min((s for s in strides[:-k] if s), default=strides[-1])
    return layout.size_of(shape[-k:]) >= DOWN and nearest < strides[-1]


def _output_shape(kind: str, shape: Shape, k: int) -> Shape:
    rows = shape[:-k]
    return shape if kind == "full" else (*rows, *(1,) * k) if kind == "keep" else rows or (1,)


def _sharing(cols: int, width: int, profile: DeviceProfile) -> tuple[int, int]:
    """Work-items that share a row, and the vectors each may hand on between passes (0: none, the row is too long)."""
    if profile.kind == "cpu":
        return 1, kept(ROWS, next((k for k in KEEP_CPU if cols <= width * k), 0))
    vectors = -(-cols // width)
    limit = profile.group(1024)
    group = min(256, limit, max(32, 1 << max(vectors - 1, 1).bit_length()))
    while -(-vectors // group) > KEEP_GPU[-1] and 2 * group <= limit:
        group *= 2
    each = -(-vectors // group)
    return group, kept(ROWS, next((k for k in KEEP_GPU if each <= k), 0))


# -- the program -------------------------------------------------------------------------------------------------------

_TREE = """#define TREE(F, v) { v = F(v, v.s2301); v = F(v, v.s1032); tree[lid] = v.s0; \\
    for (int w = WG / 2; w > 0; w /= 2) { barrier(CLK_LOCAL_MEM_FENCE); \\
        if (lid < w) { T o = F((T)(tree[lid]), (T)(tree[lid + w])); tree[lid] = o.s0; } } \\
    barrier(CLK_LOCAL_MEM_FENCE); v = (T)(tree[0]); barrier(CLK_LOCAL_MEM_FENCE); }
"""


@of_formulas(1024)
def _source(chain: Chain, walk: Walk) -> str:
    """The program of a chain with row reductions."""
    chain = _divide_once(chain, walk)
    passes = _Passes(chain, walk)
    index = walk.decode(0, "r") + [f"I p_{s} = o{s} + r;" for s, x in walk.operands.items() if x.access == "row"]
    lanes = ", ".join(str(j) for j in range(walk.width))
    fixed = [f"const M LANES = (M)({lanes});", f"const T {COUNT} = (T)(({walk.element})cols);"]
    fixed += [f"T keep_{v}[{walk.keep}];" for v in passes.kept]
    body = [*index, *passes.lines()]
    if walk.on_cpu:
        rows = ["I r = (I)get_global_id(0) * step;", "const I end = r + step < rows ? r + step : rows;"]
        return kernel(chain, walk, ("step",), [*fixed, *rows, "for (; r < end; r++) {", *tab(body), "}"])
    group = [f"__local {walk.element} tree[WG];", "const int lid = get_local_id(0);", "const I r = get_group_id(0);"]
    return f"#define WG {walk.group}\n" + _TREE + kernel(chain, walk, (), [*fixed, *group, *body])


def _divide_once(chain: Chain, walk: Walk) -> Chain:
    """The chain with x / s, where s belongs to the row, as x k (1 / (s k)): a division takes as long as ten products.

    k is a power of two that keeps 1 / (s k) a normal number, so the result is within 1.5 units in the last place, and
    zeros, infinities and NaN are those of the quotient.
    """
    if walk.compute != FLOAT32:
        return chain
    passes, lines, known = _Passes(chain, walk), list[Line](), set[str]()
    for out, function, args in chain.lines:
        if function != "DIV" or out in passes.uniform or args[1] not in passes.uniform & passes.by_name.keys():
            lines.append((out, function, args))
            continue
        x, s = args
        if s not in known:
            known.add(s)
            lines += [
                (f"{s}_size", "ABS", (s,)),
                (f"{s}_small", "LT", (f"{s}_size", repr(2.0**-100))),
                (f"{s}_large", "GT", (f"{s}_size", repr(2.0**100))),
                (f"{s}_less", "WHERE", (f"{s}_large", repr(2.0**-64), "1")),
                (f"{s}_k", "WHERE", (f"{s}_small", repr(2.0**64), f"{s}_less")),
                (f"{s}_near", "MUL", (s, f"{s}_k")),
                (f"{s}_part", "RECIPROCAL", (f"{s}_near",)),
            ]
        lines += [(f"{out}_near", "MUL", (x, f"{s}_k")), (out, "MUL", (f"{out}_near", f"{s}_part"))]
    return replace(chain, lines=tuple(lines), functions={}) if known else chain


class _Passes:
    """Which line is computed in which pass, and the text of the passes."""

    def __init__(self, chain: Chain, walk: Walk) -> None:
        self.chain, self.walk = chain, walk
        self.by_name = {line[0]: line for line in chain.lines}
        self.inputs = {v: (k, x) for k, (v, x) in enumerate(zip(chain.inputs, walk.inputs, strict=True))}
        self.uniform = {v for v, (_, x) in self.inputs.items() if x.access == "repeat"} | {*chain.scalars, COUNT}
        self.stage: dict[str, int] = {}
        for out, function, args in chain.lines:
            stage = max((self.stage.get(a, 0) for a in args), default=0)
            self.stage[out] = stage + (function in REDUCTIONS)
            if function in REDUCTIONS or all(a in self.uniform or not self._varies(a) for a in args):
                self.uniform.add(out)
        ends = [self.stage.get(v, 0) for v in chain.outputs]
        self.cones = [self._cone(p) for p in range(max(ends, default=0) + 1)]
        self.kept = self._kept()

    def _varies(self, name: str) -> bool:
        return name in self.by_name or name in self.inputs

    def reductions(self, p: int) -> list[Line]:
        """The reductions whose argument is known in pass `p`."""
        return [x for x in self.chain.lines if x[1] in REDUCTIONS and self.stage[x[0]] == p + 1]

    def stores(self, p: int) -> list[int]:
        """The full outputs that are stored in pass `p`."""
        chain = self.chain
        return [k for k, v in enumerate(chain.outputs) if chain.kinds[k] == "full" and self.stage.get(v, 0) == p]

    def _cone(self, p: int, stop: Iterable[str] = ()) -> list[str]:
        """Names computed or loaded for each vector in pass `p`, in order."""
        roots = [args[0] for _, _, args in self.reductions(p)] + [self.chain.outputs[k] for k in self.stores(p)]
        seen: dict[str, None] = {}

        def visit(name: str) -> None:
            if name in seen or name in self.uniform or not self._varies(name):
                return
            if name in self.by_name and name not in stop:
                for a in self.by_name[name][2]:
                    visit(a)
            seen[name] = None

        for name in roots:
            visit(name)
        return list(seen)

    def _kept(self) -> tuple[str, ...]:
        """Values worth handing on: needed in two passes and dear, which on a GPU a read of memory is too."""
        if not self.walk.keep:
            return ()
        often = [v for v in dict.fromkeys(v for c in self.cones for v in c) if sum(v in c for c in self.cones) > 1]
        dear = [
            v
            for v in often
            if (v in self.by_name and is_dear(self.by_name[v][1])) or (v in self.inputs and not self.walk.on_cpu)
        ]
        return tuple(dear[-HANDED_ON:])

    # -- text ------------------------------------------------------------------------------------------------------

    def lines(self) -> list[str]:
        """The body for one row."""
        walk, chain = self.walk, self.chain
        text = [
            f"T {v} = {vector_load(walk, x, f'in_{k}', True)};"
            for v, (k, x) in self.inputs.items()
            if v in self.uniform
        ]
        handed: set[str] = set()
        for p in range(len(self.cones)):
            here = [x for x in chain.lines if x[0] in self.uniform and x[1] not in REDUCTIONS and self.stage[x[0]] == p]
            text += assignments(here, walk.element)
            if self.reductions(p) or self.stores(p):
                text += self._pass(p, handed)
                handed |= {v for v in self.kept if v in self.cones[p]}
        for k, (v, x) in enumerate(zip(chain.outputs, walk.outputs, strict=True)):
            if x.access == "row":
                stored = vector_store(walk, x, f"out_{k}", c_argument(v, walk.element), True)
                text += stored if walk.on_cpu else ["if (lid == 0) {", *tab(stored), "}"]
        return text

    def _pass(self, p: int, handed: set[str]) -> list[str]:
        reductions, cone = self.reductions(p), self._cone(p, handed)
        dear = self._is_dear(cone, handed)
        uses = bool(set(cone) & set(self.kept))
        several = 4 if self.walk.on_cpu and reductions and not dear and not uses else 1
        text = [f"T acc{u}_{out} = {self._start(f)};" for out, f, _ in reductions for u in range(several)]
        text += self._over_row(lambda full, u: self._vector(p, cone, handed, full, u), several, uses)
        for out, f, _ in reductions:
            combine = REDUCTIONS[f][0]
            total = f"acc0_{out}"
            for u in range(1, several):
                total = f"{combine}({total}, acc{u}_{out})"
            text += [f"T {out} = {total};", *self._across(out, combine)]
        return text

    def _is_dear(self, cone: list[str], handed: set[str]) -> bool:
        return any(v in self.by_name and is_dear(self.by_name[v][1]) for v in cone if v not in handed)

    def _ahead(self, p: int) -> list[str]:
        """Ask for memory while a CPU computes: what the next row reads first, where later passes of this one write."""
        operands = zip(self.chain.inputs, self.walk.inputs, strict=True)
        reads = [k for k, (v, x) in enumerate(operands) if x.access == "vector" and any(v in c for c in self.cones[:p])]
        later = () if self.walk.stream else range(p + 1, len(self.cones))
        writes = [k for q in later for k in self.stores(q)]
        text = [f"AHEAD(in_{k} + p_in_{k} + cols + c, 0);" for k in reads]
        return text + [f"AHEAD(out_{k} + p_out_{k} + c, 1);" for k in writes]

    def _start(self, function: str) -> str:
        return c_argument(REDUCTIONS[function][1], self.walk.element)

    def _across(self, v: str, combine: str) -> list[str]:
        """Combine the lanes, and on a GPU the work-items, so that every lane holds the result."""
        if self.walk.on_cpu:
            return [f"{v} = {combine}({v}, {v}.s{s});" for s in swizzles(self.walk.width)]
        return [f"TREE({combine}, {v})"]

    def _over_row(self, vector: Callable[[bool, int], list[str]], several: int, uses: bool) -> list[str]:
        """The loop over the row's vectors: whole ones, then the lanes that remain."""
        w = self.walk.width
        if self.walk.on_cpu:
            text = ["I at = 0;", *(["int j = 0;"] if uses else [])]
            if several > 1:
                text.append(f"for (; at + {w * several} <= cols; at += {w * several}) {{")
                for u in range(several):
                    text += ["    {", f"        const I c = at + {w * u};", *tab(tab(vector(True, u))), "    }"]
                text.append("}")
            advance = f"at += {w}, j++" if uses else f"at += {w}"
            text += [f"for (; at + {w} <= cols; {advance}) {{", "    const I c = at;", *tab(vector(True, 0)), "}"]
            rest = ["const I c = at;", "const int count = (int)(cols - at);", *vector(False, 0)]
            return ["{", *tab([*text, "if (at < cols) {", *tab(rest), "}"]), "}"]
        place = [
            "if (c + 4 <= cols) {",
            *tab(vector(True, 0)),
            "} else if (c < cols) {",
            *tab(["const int count = (int)(cols - c);", *vector(False, 0)]),
            "}",
        ]
        if self.walk.keep:
            loop = [f"for (int j = 0; j < {self.walk.keep}; j++) {{", "    const I c = (I)(j * WG + lid) * 4;"]
            return ["#pragma unroll", *loop, *tab(place), "}"]
        return ["for (I c = (I)lid * 4; c < cols; c += WG * 4) {", *tab(place), "}"]

    def _vector(self, p: int, cone: list[str], handed: set[str], full: bool, u: int) -> list[str]:
        """Load or take over, compute, combine and store one vector."""
        walk = self.walk
        text = self._ahead(p) if walk.on_cpu and full and self._is_dear(cone, handed) else []
        for v in cone:
            if v in handed and v in self.kept:
                text.append(f"const T {v} = keep_{v}[j];")
                continue
            if v in self.inputs:
                k, x = self.inputs[v]
                text.append(f"const T {v} = {vector_load(walk, x, f'in_{k}', full)};")
            else:
                text += [f"const {line}" for line in assignments([self.by_name[v]], walk.element)]
            if v in self.kept:
                text.append(f"keep_{v}[j] = {v};")
        for out, function, args in self.reductions(p):
            combine, value = REDUCTIONS[function][0], c_argument(args[0], walk.element)
            value = value if full else f"where(LANES < (M)(count), {value}, {self._start(function)})"
            text.append(f"acc{u}_{out} = {combine}(acc{u}_{out}, {value});")
        for k in self.stores(p):
            text += vector_store(
                walk, walk.outputs[k], f"out_{k}", c_argument(self.chain.outputs[k], walk.element), full
            )
        return text


@of_formulas()
def is_dear(function: str) -> bool:
    """Whether `function` calls more than arithmetic."""
    words = dialect.calls(function) - {"abs", "floor", "ceil", "round", "trunc"}
    return bool(words)
