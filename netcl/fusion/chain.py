"""Chains of elementwise primitives as one kernel: an eager op is a chain of length one, a fused function a longer one.

A chain is a list of lines `v2 = MUL(v0, v1)`. Rendered to OpenCL C (render.py) it becomes one kernel that reads each
input once and writes each output once; rendered to Python, one function over NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from netcl.core import layout, versions
from netcl.core.backend import cpu
from netcl.core.backend.opencl import Kernel
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import DType
from netcl.core.layout import Shape
from netcl.core.protocols import Launch
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.fusion.broadcast import collapse
from netcl.fusion.render import (
    STEPPED,
    Chain,
    Form,
    Line,
    Operand,
    c_argument,
    element_of,
    render,
    vector_load,
    vector_types,
)
from netcl.kernels.grid import CHUNK, FAR, GROUP, START, reach
from netcl.kernels.program import Program, program
from netcl.kernels.streaming import is_streamed

__all__ = [
    "CHUNK", "FAR", "GROUP", "OPTIONS", "START", "Chain", "Form", "Line", "Operand", "access_of",
    "c_argument", "element_of", "plan_of", "reach", "run", "source_of", "vector_load", "vector_types",
]  # fmt: skip

SQUARE = 8  # least sides of what is worth turning in blocks
TURNED = 32  # columns of an item where neighbours in memory lie in other rows: their lines stay in the caches
OPTIONS = ("-cl-mad-enable", "-w")  # -w: remarks of the compiler belong to us, not to users


def run(
    chain: Chain, compute: DType, dtypes: tuple[DType, ...], tensors: Sequence[Tensor], scalars: Sequence[Any] = (),
    out: Sequence[Tensor] | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Compute `chain` over `tensors` broadcast together; new tensors of `dtypes`, or `out` written in place.

    Raises ShapeError for shapes that do not broadcast and DeviceError for operands on different queues.
    """
    queue = tensors[0].queue
    for t in tensors if out is None else (*tensors, *out):
        if t.queue is not queue:
            same_queue(chain.name, *tensors, *(out or ()))
    if out is not None:
        versions.wrote(*out, where=title(chain) if chain.lines else "assign")
    if isinstance(queue, CPUQueue):
        return _run_numpy(chain, compute, dtypes, tensors, scalars, out)
    launch = plan_of(queue, chain, compute, dtypes, tensors, out)
    if out is None:
        found = launch(*tensors, *scalars)
        return found if type(found) is tuple else (found,)
    launch(*tensors, *out, *scalars)
    return tuple(out)


def plan_of(
    queue: Any, chain: Chain, compute: DType, dtypes: tuple[DType, ...], tensors: Sequence[Tensor],
    out: Sequence[Tensor] | None = None,
) -> Launch[Any]:  # fmt: skip
    """The launch of `chain` over these layouts, made on first use and kept with the queue.

    `launch(*tensors, *numbers)` gives the new tensor, or a tuple of several; with results to write in place, it takes
    those between tensors and numbers.
    """
    known = tensors if out is None else (*tensors, *out)
    layouts = tuple([(t.shape, t.strides, t.dtype, t.offset & START) for t in known])
    plans = queue.netcl_state.plans
    key = (chain, compute, dtypes, layouts)
    launch = plans.get(key)
    if launch is None:
        launch = plans[key] = _plan(chain, compute, dtypes, tensors, out, queue)
    return launch  # type: ignore[no-any-return]


# -- planning ----------------------------------------------------------------------------------------------------------


def title(chain: Chain) -> str:
    """The chain's name in messages."""
    return chain.name.removeprefix("netcl_")


def access_of(step: int) -> str:
    """How an axis of this stride is walked."""
    return "vector" if step == 1 else "repeat" if step == 0 else "strided"


def is_aligned(tensors: Sequence[Tensor], strides: Sequence[Shape], width: int = 4) -> bool:
    """Whether vectors of `width` along the last axis start at multiples of it."""
    return all(t.offset % width == 0 for t in tensors) and all(s % width == 0 for steps in strides for s in steps[:-1])


def is_short(operands: Sequence[Operand]) -> bool:
    """Whether vectors of eight are no more than 16 bytes."""
    return all(x.access == "repeat" or (x.access != "strided" and x.dtype.itemsize <= 2) for x in operands)


class Walk(NamedTuple):
    """How a map meets its operands: the text's form, the walk's lengths, and each operand's strides along it."""

    shape: Shape
    form: Form
    lengths: Shape
    strides: tuple[Shape, ...]


def _plan(
    chain: Chain, compute: DType, dtypes: tuple[DType, ...], tensors: Sequence[Tensor], out: Sequence[Tensor] | None,
    queue: Any,
) -> Launch[Any]:  # fmt: skip
    shape = layout.broadcast(title(chain), *(t.shape for t in tensors)) if out is None else out[0].shape
    if layout.size_of(shape) == 0:
        return partial(_empty, shape, dtypes)
    _, form, lengths, strides = _walk(shape, compute, dtypes, tensors, out, queue)
    rows, cols = layout.size_of(lengths[:-1]), lengths[-1]
    chunk = TURNED if any(is_turned(s) for s in strides) else CHUNK
    high, group = (1, *lengths)[-2], profile_of(queue).group(GROUP)
    grid, local, sizes = _geometry(form, rows, high, cols, chunk, group)
    sizes |= {"rows": rows, "cols": cols, **{f"d{a}": lengths[a] for a in range(1, form.rank)}}
    for (name, x), steps in zip(form.operands.items(), strides, strict=True):
        sizes |= {f"t_{name}_{a}": step for a, step in enumerate(steps[:-1])}
        sizes |= {f"i_{name}": steps[-1]} if x.access in STEPPED else {}
    new = {f"out_{k}": (shape, t) for k, t in enumerate(dtypes)} if out is None else None
    return _program(queue, chain, form).bind(grid, local, new, **sizes)


def _empty(shape: Shape, dtypes: tuple[DType, ...], *given: Any) -> Any:
    """In the place of a launch over no elements."""
    made = tuple([allocate(given[0].queue, shape, t) for t in dtypes])
    return made if len(made) > 1 else made[0]


def _walk(
    shape: Shape, compute: DType, dtypes: tuple[DType, ...], tensors: Sequence[Tensor], out: Sequence[Tensor] | None,
    queue: Any,
) -> Walk:  # fmt: skip
    steps = [layout.expand_strides(t.shape, t.strides, shape) for t in tensors]
    steps += [layout.contiguous_strides(shape)] * len(dtypes) if out is None else [o.strides for o in out]
    profile = profile_of(queue)
    plain = profile.kind == "cpu"
    if out is not None and not plain:  # neighbours in the result are neighbours in the walk
        order = sorted(range(len(shape)), key=lambda a: -abs(out[0].strides[a]))
        shape, steps = tuple(shape[a] for a in order), [tuple(s[a] for a in order) for s in steps]
    lengths, strides = collapse(shape, tuple(steps))
    if lengths == (1,):  # a single element: walk it as a vector axis, whatever the strides were
        strides = tuple((1,) for _ in strides)
    turned = None if plain else _turned_axis(lengths, strides, len(tensors))
    if turned is not None:
        lengths, strides = _before_last(lengths, turned), tuple([_before_last(s, turned) for s in strides])
    known = (*tensors, *(out or ()))
    wide = plain or layout.size_of(shape) >= FAR or any(reach(t) >= FAR for t in known)
    accesses = [access_of(s[-1]) for s in strides]
    if turned is not None:
        accesses = ["turned" if a == "strided" and s[-2] == 1 else a for a, s in zip(accesses, strides, strict=True)]
    accesses[len(tensors) :] = ["vector" if a == "vector" else "strided" for a in accesses[len(tensors) :]]
    operands = [Operand(t, a) for t, a in zip((*(t.dtype for t in tensors), *dtypes), accesses, strict=True)]
    inputs, outputs = tuple(operands[: len(tensors)]), tuple(operands[len(tensors) :])
    along = [(*s[:-2], s[-1], s[-2]) if a == "turned" else s for a, s in zip(accesses, strides, strict=True)]
    aligned = not plain and is_aligned(known, along)
    eights = aligned and is_short(operands) and is_aligned(known, along, 8)
    row = lengths[-1] if len(lengths) > 1 else 0
    stream = out is None and all(is_streamed(profile, shape, row, d, compute) for d in dtypes)
    form = Form(
        compute, inputs, outputs, len(lengths) - 1, wide, plain, aligned, profile.vector, stream, eights=eights,
        doubles=profile.has_fp64,
    )  # fmt: skip
    return Walk(shape, form, lengths, strides)


def source_of(queue: Any, chain: Chain, compute: DType, dtypes: tuple[DType, ...], tensors: Sequence[Tensor]) -> str:
    """The text of the kernel that `run` would launch."""
    shape = layout.broadcast(title(chain), *(t.shape for t in tensors))
    return _source(chain, _walk(shape, compute, dtypes, tensors, None, queue).form)


def kernel_of(queue: Any, chain: Chain, compute: DType, dtypes: tuple[DType, ...], tensors: Sequence[Tensor]) -> Kernel:
    """The kernel that `run` would launch."""
    shape = layout.broadcast(title(chain), *(t.shape for t in tensors))
    return _program(queue, chain, _walk(shape, compute, dtypes, tensors, None, queue).form).kernel


def is_turned(strides: Shape) -> bool:
    """Whether neighbours in memory lie in neighbouring rows: a line of the cache then serves many rows."""
    return len(strides) > 1 and 0 < abs(strides[-2]) < abs(strides[-1])


def _turned_axis(lengths: Shape, strides: Sequence[Shape], inputs: int) -> int | None:
    """The axis along which an input that lies across a contiguous result is contiguous itself, if both are long."""
    if len(lengths) < 2 or lengths[-1] < SQUARE or any(s[-1] != 1 for s in strides[inputs:]):
        return None
    axes = [a for s in strides[:inputs] if s[-1] not in (0, 1) for a, step in enumerate(s) if step == 1]
    return next((a for a in axes if lengths[a] >= SQUARE), None)


def _before_last(items: Shape, axis: int) -> Shape:
    """`items` with the one of `axis` moved to the last but one place."""
    return (*items[:axis], *items[axis + 1 : -1], items[axis], items[-1])


def _geometry(
    form: Form, rows: int, high: int, cols: int, chunk: int, group: int
) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, int]]:
    """Global size, local size, and the CPU loop's rows and columns (at most `chunk`) per item."""
    if form.plain:
        chunk = min(chunk, cols)
        step = max(1, CHUNK // max(chunk, 1)) if form.rank else 1
        columns = -(-cols // chunk)
        items: tuple[int, ...] = (columns,) if form.rank == 0 else (columns, -(-rows // step))
        return items, (1,) * len(items), {"step": step, "chunk": chunk}
    vectors = rows * -(-cols // form.width)
    if any(x.access == "turned" for x in form.inputs):
        vectors = rows // high * -(-high // (form.across * form.width)) * form.across * -(-cols // form.width)
    return (-(-vectors // group) * group,), (group,), {}


_source = lru_cache(maxsize=4096)(render)


def _program(queue: Any, chain: Chain, form: Form) -> Program:
    return program(queue, _source(chain, form), chain.name, OPTIONS)


# -- NumPy -------------------------------------------------------------------------------------------------------------


def _run_numpy(
    chain: Chain, compute: DType, dtypes: tuple[DType, ...], tensors: Sequence[Tensor], scalars: Sequence[Any],
    out: Sequence[Tensor] | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    layout.broadcast(title(chain), *(t.shape for t in tensors))
    fn = chain.python(compute, dtypes)
    if out is None:
        return cpu.compute(fn, *tensors, scalars=tuple(scalars))
    n = len(out)
    cpu.update(lambda *arrays, **kw: fn(*arrays[n:], **kw), out, *tensors, scalars=tuple(scalars))
    return tuple(out)
