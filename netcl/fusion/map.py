"""Maps: chains of elementwise primitives as one kernel that reads each input once and writes each output once.

Launch geometry. CPU devices: local size 1, each work-item walks a block of about CHUNK elements in full vectors. GPUs:
one vector of 4 per work-item, or of 8 of elements of at most 16 bits: 16 bytes per access; a square of vectors where an
input lies across the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from netcl.core import layout, versions
from netcl.core.backend import cpu
from netcl.core.backend.opencl import Kernel
from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import DType
from netcl.core.kernels.dialect import of_formulas
from netcl.core.layout import Shape
from netcl.core.protocols import Launch, Queue
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.fusion.chain import Chain
from netcl.fusion.render import OPTIONS, assignments, c_argument, kernel, tab, vector_load, vector_store
from netcl.fusion.walk import Axes, Extent, Operand, Walk, collapse
from netcl.kernels.grid import CHUNK, FAR, GROUP, START
from netcl.kernels.program import program
from netcl.kernels.streaming import is_streamed

SQUARE = 8  # least sides of what is worth turning in blocks
TURNED = 32  # columns of an item where neighbours in memory lie in other rows: their lines stay in the caches


def run(
    chain: Chain,
    compute: DType,
    dtypes: tuple[DType, ...],
    tensors: Sequence[Tensor],
    scalars: Sequence[Any] = (),
    out: Sequence[Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Compute `chain` over `tensors` broadcast together; new tensors of `dtypes`, or `out` written in place.

    Raises ShapeError for shapes that do not broadcast and DeviceError for operands on different queues.
    """
    queue = tensors[0].queue
    for t in tensors if out is None else (*tensors, *out):
        if t.queue is not queue:
            same_queue(chain.name, *tensors, *(out or ()))
    if out is not None:
        versions.wrote(*out, where=chain.title if chain.lines else "assign")
    if isinstance(queue, CPUQueue):
        return _run_numpy(chain, compute, dtypes, tensors, scalars, out)
    launch = plan_of(queue, chain, compute, dtypes, tensors, out)
    if out is None:
        found = launch(*tensors, *scalars)
        return found if type(found) is tuple else (found,)
    launch(*tensors, *out, *scalars)
    return tuple(out)


def plan_of(
    queue: Queue,
    chain: Chain,
    compute: DType,
    dtypes: tuple[DType, ...],
    tensors: Sequence[Tensor],
    out: Sequence[Tensor] | None = None,
) -> Launch[Any]:
    """The launch of `chain` over these layouts, made on first use and kept with the queue.

    `launch(*tensors, *numbers)` gives the new tensor, or a tuple of several; with results to write in place, it takes
    those between tensors and numbers.
    """
    known = tensors if out is None else (*tensors, *out)
    layouts = tuple([(t.shape, t.strides, t.dtype, t.offset & START) for t in known])
    plans = queue.netcl_state.plans
    key = (chain, compute, dtypes, layouts)
    launch: Launch[Any] | None = plans.get(key)
    if launch is None:
        launch = plans[key] = _plan(queue, chain, compute, dtypes, tensors, out)
    return launch


# -- planning ----------------------------------------------------------------------------------------------------------


def _plan(
    queue: Queue,
    chain: Chain,
    compute: DType,
    dtypes: tuple[DType, ...],
    tensors: Sequence[Tensor],
    out: Sequence[Tensor] | None,
) -> Launch[Any]:
    shape = tensors[0].shape if out is None else out[0].shape
    if out is None and len(tensors) > 1:
        shape = layout.broadcast(chain.title, *[t.shape for t in tensors])
    if layout.size_of(shape) == 0:
        return partial(_empty, shape, dtypes)
    profile = profile_of(queue)
    walk, extent = _walk(profile, shape, compute, dtypes, tensors, out)
    grid, local, sizes = _grid(walk, extent, profile)
    new = {f"out_{k}": (shape, t) for k, t in enumerate(dtypes)} if out is None else None
    made = program(queue, _source(chain, walk), chain.name, OPTIONS)
    return made.bind(grid, local, new, **sizes, **extent.arguments(walk))


def _empty(shape: Shape, dtypes: tuple[DType, ...], *given: Any) -> Any:
    """In the place of a launch over no elements."""
    made = tuple([allocate(given[0].queue, shape, t) for t in dtypes])
    return made if len(made) > 1 else made[0]


def _walk(
    profile: DeviceProfile,
    shape: Shape,
    compute: DType,
    dtypes: tuple[DType, ...],
    tensors: Sequence[Tensor],
    out: Sequence[Tensor] | None = None,
) -> tuple[Walk, Extent]:
    n, on_cpu = len(tensors), profile.kind == "cpu"
    steps = [layout.expand_strides(t.shape, t.strides, shape) for t in tensors]
    steps += [layout.contiguous_strides(shape)] * len(dtypes) if out is None else [o.strides for o in out]
    if out is not None and not on_cpu:  # neighbours in the result are neighbours in the walk
        order = sorted(range(len(shape)), key=lambda a: -abs(out[0].strides[a]))
        shape, steps = tuple(shape[a] for a in order), [tuple(s[a] for a in order) for s in steps]
    lengths, strides = collapse(shape, tuple(steps))
    if lengths == (1,):  # a single element: walk it as a vector axis, whatever the strides were
        strides = tuple((1,) for _ in strides)
    turned = None if on_cpu else _turned_axis(lengths, strides, n)
    if turned is not None:
        lengths, strides = _before_last(lengths, turned), tuple([_before_last(s, turned) for s in strides])
    accesses = ["vector" if s[-1] == 1 else "repeat" if s[-1] == 0 else "strided" for s in strides]
    if turned is not None:
        accesses = ["turned" if a == "strided" and s[-2] == 1 else a for a, s in zip(accesses, strides, strict=True)]
    accesses[n:] = ["vector" if a == "vector" else "strided" for a in accesses[n:]]
    operands = [Operand(t, a) for t, a in zip((*(t.dtype for t in tensors), *dtypes), accesses, strict=True)]
    beside = [(*s[:-2], s[-1]) if a == "turned" else s[:-1] for a, s in zip(accesses, strides, strict=True)]
    row = lengths[-1] if len(lengths) > 1 else 0
    stream = out is None and all(is_streamed(profile, shape, row, d, compute) for d in dtypes)
    inputs, outputs, ranks = tuple(operands[:n]), tuple(operands[n:]), (len(lengths) - 1,)
    walk = Walk(
        compute, on_cpu, profile.vector, inputs, outputs, ranks, on_cpu, stream=stream, doubles=profile.has_fp64
    )
    axes = Axes(lengths[:-1], tuple([s[:-1] for s in strides]))
    extent = Extent((axes,), lengths[-1], tuple([s[-1] for s in strides]))
    return walk.over((*tensors, *(out or ())), beside, layout.size_of(shape), FAR), extent


def source_of(queue: Queue, chain: Chain, compute: DType, dtypes: tuple[DType, ...], tensors: Sequence[Tensor]) -> str:
    """The text of the kernel that `run` would launch."""
    shape = layout.broadcast(chain.title, *(t.shape for t in tensors))
    return _source(chain, _walk(profile_of(queue), shape, compute, dtypes, tensors)[0])


def kernel_of(
    queue: Queue, chain: Chain, compute: DType, dtypes: tuple[DType, ...], tensors: Sequence[Tensor]
) -> Kernel:
    """The kernel that `run` would launch."""
    return program(queue, source_of(queue, chain, compute, dtypes, tensors), chain.name, OPTIONS).kernel


def _turned_axis(lengths: Shape, strides: Sequence[Shape], inputs: int) -> int | None:
    """The axis along which an input that lies across a contiguous result is contiguous itself, if both are long."""
    if len(lengths) < 2 or lengths[-1] < SQUARE or any(s[-1] != 1 for s in strides[inputs:]):
        return None
    axes = [a for s in strides[:inputs] if s[-1] not in (0, 1) for a, step in enumerate(s) if step == 1]
    return next((a for a in axes if lengths[a] >= SQUARE), None)


def _before_last(items: Shape, axis: int) -> Shape:
    """`items` with the one of `axis` moved to the last but one place."""
    return (*items[:axis], *items[axis + 1 : -1], items[axis], items[-1])


def _grid(
    walk: Walk, extent: Extent, profile: DeviceProfile
) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, int]]:
    """Global size, local size, and the CPU loop's rows and columns per item."""
    (lengths, strides), cols, rows = extent.axes[0], extent.cols, layout.size_of(extent.axes[0].lengths)
    if walk.on_cpu:
        near = [(abs(s[-1]), abs(step)) for s, step in zip(strides, extent.steps, strict=True) if s]
        shared = any(0 < across < along for across, along in near)  # a line of the cache serves many rows
        chunk = min(TURNED if shared else CHUNK, cols)
        step = max(1, CHUNK // max(chunk, 1)) if lengths else 1
        columns = -(-cols // chunk)
        items: tuple[int, ...] = (columns, -(-rows // step)) if lengths else (columns,)
        return items, (1,) * len(items), {"step": step, "chunk": chunk}
    vectors, group = rows * -(-cols // walk.width), profile.group(GROUP)
    if any(x.access == "turned" for x in walk.inputs):
        high = lengths[-1]
        vectors = rows // high * -(-high // (walk.across * walk.width)) * walk.across * -(-cols // walk.width)
    return (-(-vectors // group) * group,), (group,), {}


# -- text --------------------------------------------------------------------------------------------------------------


@of_formulas(4096)
def _source(chain: Chain, walk: Walk) -> str:
    """The program of a map: each input read once, each output written once."""
    lines = assignments(chain.lines, walk.element)
    full, part = [_block(chain, walk, lines, whole) for whole in (True, False)]
    index = walk.decode(0, "r")
    if walk.on_cpu:
        return kernel(chain, walk, ("step", "chunk"), _cpu_loop(index, full, part, walk))
    if any(x.access == "turned" for x in walk.inputs):
        return kernel(chain, walk, (), _gpu_block(index, chain, lines, part, walk))
    return kernel(chain, walk, (), _gpu_item(index, full, part, walk))


def _block(chain: Chain, walk: Walk, assigned: list[str], full: bool, turned: bool = False) -> list[str]:
    """Load, compute, store one vector; those of turned operands lie in registers when `turned`."""
    lines = []
    for k, (v, x) in enumerate(zip(chain.inputs, walk.inputs, strict=True)):
        ready = turned and x.access == "turned"
        lines.append(f"T {v} = {f'block_{k}[y]' if ready else vector_load(walk, x, f'in_{k}', full)};")
    lines += assigned
    for k, (v, x) in enumerate(zip(chain.outputs, walk.outputs, strict=True)):
        lines += vector_store(walk, x, f"out_{k}", c_argument(v, walk.element), full)
    return lines


def _cpu_loop(index: list[str], full: list[str], part: list[str], walk: Walk) -> list[str]:
    width = walk.width
    inner = [
        "I c = first;",
        f"for (; c + {width} <= last; c += {width}) {{",
        *tab(full),
        "}",
        "if (c < last) {",
        *tab(["int count = (int)(last - c);", *part]),
        "}",
    ]
    span = ["I first = (I)get_global_id(0) * chunk;", "I last = first + chunk < cols ? first + chunk : cols;"]
    if walk.ranks[0] == 0:
        return [*index, *span, *inner]
    rows = ["I r = (I)get_global_id(1) * step;", "I end = r + step < rows ? r + step : rows;"]
    return [*span, *rows, "for (; r < end; r++) {", *tab([*index, *inner]), "}"]


def _gpu_item(index: list[str], full: list[str], part: list[str], walk: Walk) -> list[str]:
    width = walk.width
    if walk.ranks[0] == 0:
        place = [f"I c = (I)get_global_id(0) * {width};", "if (c >= cols) return;"]
    else:
        place = [
            f"I across = (cols + {width - 1}) / {width};",
            "I g = (I)get_global_id(0);",
            "I r = g / across;",
            "if (r >= rows) return;",
            f"I c = (g - r * across) * {width};",
        ]
    return [*place, *index, "I count = cols - c;", f"if (count >= {width}) {{", *tab(full), "} else {", *tab(part), "}"]


def _gpu_block(index: list[str], chain: Chain, lines: list[str], part: list[str], walk: Walk) -> list[str]:
    """A work-item maps a square of vectors: it turns what lies across the rows, so that all accesses are vectors."""
    width, across, high = walk.width, walk.across, f"r_d{walk.ranks[0] - 1}" if walk.ranks[0] > 1 else "rows"
    place = [
        f"I g = (I)get_global_id(0), across = (cols + {width - 1}) / {width};",
        f"I high = {high}, down = (high + {across * width - 1}) / {across * width};",
        f"I tile = g / {across} / across, batch = tile / down, c = (g / {across} - tile * across) * {width};",
        f"I top = ((tile - batch * down) * {across} + g % {across}) * {width}, r = batch * high + top;",
        "if (batch * high >= rows || top >= high) return;",
    ]
    down = [f"p_{s} += r_{s}_{walk.ranks[0] - 1};" for s in walk.operands]
    loads, lanes = [], [f"{j:x}" for j in range(width)]
    for k, x in enumerate(walk.inputs):
        if x.access == "turned":
            whole = x._replace(access="vector")
            loads += [f"T block_{k}[{width}];", "{"]
            for j in range(width):
                loads.append(f"    T b{j} = {vector_load(walk, whole, f'in_{k}', True, f'(c + {j}) * i_in_{k}')};")
            loads += [
                f"    block_{k}[{y}] = (T)({', '.join(f'b{j}.s{s}' for j in range(width))});"
                for y, s in enumerate(lanes)
            ] + ["}"]
    full = [*_block(chain, walk, lines, True, True), *down]
    return [
        *place,
        *index,
        "I count = cols - c;",
        f"if (count >= {width} && high - top >= {width}) {{",
        *tab(loads),
        "    #pragma unroll",
        f"    for (int y = 0; y < {width}; y++) {{",
        *tab(tab(full)),
        "    }",
        "} else {",
        f"    for (I y = top; y < high && y < top + {width}; y++) {{",
        *tab(tab([*part, *down])),
        "    }",
        "}",
    ]


# -- NumPy -------------------------------------------------------------------------------------------------------------


def _run_numpy(
    chain: Chain,
    compute: DType,
    dtypes: tuple[DType, ...],
    tensors: Sequence[Tensor],
    scalars: Sequence[Any],
    out: Sequence[Tensor] | None,
) -> tuple[Tensor, ...]:
    layout.broadcast(chain.title, *(t.shape for t in tensors))
    fn = chain.python(compute, dtypes)
    if out is None:
        return cpu.compute(fn, *tensors, scalars=tuple(scalars))
    n = len(out)
    cpu.update(lambda *arrays, **kw: fn(*arrays[n:], **kw), out, *tensors, scalars=tuple(scalars))
    return tuple(out)
