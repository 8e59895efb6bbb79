"""Chains of elementwise primitives as one kernel: an eager op is a chain of length one, a fused function a longer one.

A chain is a list of lines `v2 = MUL(v0, v1)`. Rendered to OpenCL C (render.py) it becomes one kernel that reads each
input once and writes each output once; rendered to Python, one function over NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from netcl.core import layout, versions
from netcl.core.backend import cpu
from netcl.core.backend.opencl import Kernel
from netcl.core.backend.prepared import Run, prepare
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import BOOL, INT32, INT64, DType, compute_dtype
from netcl.core.layout import Shape
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.fusion.broadcast import collapse
from netcl.fusion.render import (
    MAP_CPU,
    MAP_GPU,
    STEPPED,
    Chain,
    Form,
    Line,
    Operand,
    c_argument,
    count_arguments,
    element_of,
    render,
    vector_load,
    vector_types,
)
from netcl.kernels.grid import CHUNK, FAR, GROUP, START, reach
from netcl.kernels.streaming import is_streamed
from netcl.runtime.cache import get_kernel

__all__ = [
    "CHUNK", "FAR", "GROUP", "OPTIONS", "START", "Chain", "Form", "Line", "Operand", "Plan", "access_of",
    "c_argument", "element_of", "plan_of", "reach", "run", "scalar_type", "source_of", "vector_load", "vector_types",
]  # fmt: skip

SQUARE = 8  # least sides of what is worth turning in blocks
TURNED = 32  # columns of an item where neighbours in memory lie in other rows: their lines stay in the caches
OPTIONS = ("-cl-mad-enable", "-w")  # -w: remarks of the compiler belong to us, not to users


class Plan(NamedTuple):
    """A prepared launch: `run(*tensors, *numbers)` gives new tensors; with results to write in place, those last."""

    kernel: Kernel | None  # None when there is nothing to compute
    run: Run


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
    plan = plan_of(queue, chain, compute, dtypes, tensors, out)
    if out is None:
        return plan.run(*tensors, *scalars)
    plan.run(*tensors, *out, *scalars)
    return tuple(out)


def plan_of(
    queue: Any, chain: Chain, compute: DType, dtypes: tuple[DType, ...], tensors: Sequence[Tensor],
    out: Sequence[Tensor] | None = None,
) -> Plan:  # fmt: skip
    """The prepared launch of `chain` over these layouts, made on first use and kept with the queue."""
    known = tensors if out is None else (*tensors, *out)
    layouts = tuple([(t.shape, t.strides, t.dtype, t.offset & START) for t in known])
    plans = queue.netcl_state.plans
    key = (chain, compute, dtypes, layouts)
    plan = plans.get(key)
    if plan is None:
        plan = plans[key] = _plan(chain, compute, dtypes, tensors, out, queue)
    return plan  # type: ignore[no-any-return]


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
) -> Plan:  # fmt: skip
    shape = layout.broadcast(title(chain), *(t.shape for t in tensors)) if out is None else out[0].shape
    if layout.size_of(shape) == 0:
        return Plan(None, lambda *tensors: tuple([allocate(tensors[0].queue, shape, t) for t in dtypes]))
    _, form, lengths, strides = _walk(shape, compute, dtypes, tensors, out, queue)
    rows, cols = layout.size_of(lengths[:-1]), lengths[-1]
    chunk = TURNED if any(is_turned(s) for s in strides) else CHUNK
    high, group = (1, *lengths)[-2], profile_of(queue).group(GROUP)
    global_size, local_size, extra = _geometry(form, rows, high, cols, chunk, group)
    operands = (*form.inputs, *form.outputs)
    constants = [step for s in strides for step in s[:-1]]
    constants += [s[-1] for s, x in zip(strides, operands, strict=True) if x.access in STEPPED]
    constants += [*lengths[1:-1], rows, cols, *extra]
    kernel, shapes = _kernel(queue, chain, form), (shape,) * len(dtypes)
    geometry = (global_size, local_size, constants)
    if out is None:
        return Plan(kernel, prepare(kernel, queue, *geometry, len(tensors), shapes, dtypes))
    return Plan(kernel, prepare(kernel, queue, *geometry, len(tensors) + len(out), (), ()))


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
    return _source(chain, _walk(shape, compute, dtypes, tensors, None, queue).form)[0]


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
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Global size, local size, and the CPU loop's (rows per item, columns per item, at most `chunk`)."""
    if form.plain:
        chunk = min(chunk, cols)
        step = max(1, CHUNK // max(chunk, 1)) if form.rank else 1
        columns = -(-cols // chunk)
        items: tuple[int, ...] = (columns,) if form.rank == 0 else (columns, -(-rows // step))
        return items, (1,) * len(items), (step, chunk)
    vectors = rows * -(-cols // form.width)
    if any(x.access == "turned" for x in form.inputs):
        vectors = rows // high * -(-high // (form.across * form.width)) * form.across * -(-cols // form.width)
    return (-(-vectors // group) * group,), (group,), ()


def scalar_type(compute: DType) -> DType:
    """The type in which a kernel takes numbers."""
    return np.dtype(np.uint8) if compute == BOOL else compute_dtype(compute)


def argument_types(chain: Chain, form: Form, geometry: int) -> tuple[DType | None, ...]:
    """The types of the arguments that `render.kernel` declares."""
    memory = [None] * (len(form.inputs) + len(form.outputs))
    index = INT64 if form.wide else INT32
    return (*memory, *[index] * count_arguments(form, geometry), *[scalar_type(form.compute)] * len(chain.scalars))


@lru_cache(maxsize=4096)
def _source(chain: Chain, form: Form) -> tuple[str, tuple[DType | None, ...]]:
    """The program's text and the types of its kernel's arguments."""
    return render(chain, form), argument_types(chain, form, len(MAP_CPU if form.plain else MAP_GPU))


def _kernel(queue: Any, chain: Chain, form: Form) -> Kernel:
    source, types = _source(chain, form)
    return get_kernel(queue, source, chain.name, types, OPTIONS)


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
