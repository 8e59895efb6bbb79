"""Chains of elementwise primitives as one kernel: an eager op is a chain of length one, a fused function a longer one.

A chain is a list of lines `v2 = MUL(v0, v1)`. Rendered to OpenCL C it becomes one kernel that reads each input once and
writes each output once; rendered to Python, one function over NumPy arrays.

Launch geometry. CPU devices: local size 1, each work-item walks about CHUNK elements in vectors of 8. GPUs: one vector of 4
per work-item. The text holds no sizes, only ranks and access patterns, so a new shape reuses the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from netcl.core import layout
from netcl.core.backend import cpu
from netcl.core.backend.opencl import Kernel, launch
from netcl.core.dtypes import BOOL, C_NAME, FLOAT16, INT32, INT64, DType
from netcl.core.kernels import dialect
from netcl.core.layout import Shape
from netcl.core.profile import profile_of
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.ops.broadcast import broadcast_index_lines, collapse
from netcl.runtime.cache import get_kernel

CHUNK = 8192  # elements per work-item on a CPU device
GROUP = 256  # work-items per group on a GPU
PLANS = 4096  # prepared launches kept per queue
OPTIONS = ("-cl-mad-enable", "-w")  # -w: remarks of the compiler belong to us, not to users

Line = tuple[str, str, tuple[str, ...]]  # (variable, FUNCTION, arguments: variables or numbers)


@dataclass(frozen=True, eq=False)
class Chain:
    """`lines` computing `outputs` from the tensors `inputs` and the numbers `scalars`, all of them variable names."""

    name: str
    inputs: tuple[str, ...]
    scalars: tuple[str, ...]
    lines: tuple[Line, ...]
    outputs: tuple[str, ...]
    functions: dict[DType, Any] = field(default_factory=dict)  # the NumPy form by compute dtype

    def python(self, compute: DType, results: tuple[DType, ...]) -> Any:
        """The chain as `fn(*arrays, scalars) -> tuple of arrays`, computing in `compute`."""
        key = (compute, results)
        if key not in self.functions:
            self.functions[key] = _render_python(self, compute, results)
        return self.functions[key]


def _render_python(chain: Chain, compute: DType, results: tuple[DType, ...]) -> Any:
    text = [f"def chain({', '.join((*chain.inputs, 'scalars'))}):"]
    text += [f"    {v} = {v}.astype(compute, copy=False)" for v in chain.inputs]
    text += [f"    {', '.join(chain.scalars)}, = scalars"] if chain.scalars else []
    text += [f"    {out} = {function}({', '.join(args)})" for out, function, args in chain.lines]
    stored = [f"as_dtype({v}, results[{i}])" for i, v in enumerate(chain.outputs)]
    text.append(f"    return {', '.join(stored)},")
    space = {**dialect.NUMPY, "compute": compute, "results": results, "as_dtype": _as_dtype}
    exec("\n".join(text), space)
    return space["chain"]


def _as_dtype(value: Any, dtype: DType) -> np.ndarray:
    return np.asarray(value).astype(dtype, copy=False)


# -- OpenCL C ----------------------------------------------------------------------------------------------------------


class Operand(NamedTuple):
    """How a kernel meets one tensor: its dtype and whether its last axis is walked by vector, repeated, or strided."""

    dtype: DType
    access: str  # "vector" (step 1), "repeat" (step 0) or "strided"


class Form(NamedTuple):
    """Everything the text of a kernel depends on."""

    compute: DType
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    rank: int  # outer axes
    wide: bool  # 64-bit index arithmetic
    plain: bool  # a CPU device
    aligned: bool  # vectors start at multiples of their length

    @property
    def width(self) -> int:
        """Elements per vector: 256 bits on CPU devices (wider ones change calling conventions), four on GPUs."""
        return 8 if self.plain and self.compute.itemsize < 8 else 4


def element_of(dtype: DType) -> str:
    return "float" if dtype == FLOAT16 else C_NAME[dtype]


def vector_load(form: Form, operand: Operand, name: str, full: bool) -> str:
    """C text of type T that loads one vector of operand `name`; lanes past `count` are 1 when not `full`."""
    element, width = element_of(form.compute), form.width
    pointer = f"in_{name} + p_{name}"
    if operand.access == "vector" and full:
        if operand.dtype == FLOAT16:
            text = f"vload_half{width}(0, {pointer} + c)"
            return text if element == "float" else f"convert_{element}{width}({text})"
        text = f"*(__global const U_{C_NAME[operand.dtype]}*)({pointer} + c)"
        return text if C_NAME[operand.dtype] == element else f"convert_{element}{width}({text})"
    if operand.access == "repeat":
        return f"(T)({_scalar(operand, element, name, f'p_{name}')})"
    step = "" if operand.access == "vector" else f" * i_{name}"
    lanes = []
    for j in range(width):
        value = _scalar(operand, element, name, f"p_{name} + (c + {j}){step}")
        lanes.append(value if full or j == 0 else f"({j} < count ? {value} : ({element})1)")
    return f"(T)({', '.join(lanes)})"


def _scalar(operand: Operand, element: str, name: str, index: str) -> str:
    if operand.dtype == FLOAT16:
        return f"({element})vload_half({index}, in_{name})"
    return f"({element})in_{name}[{index}]"


def _store(form: Form, operand: Operand, name: str, value: str, full: bool) -> list[str]:
    """C lines that store vector `value` to output `name`."""
    element, width, storage = element_of(form.compute), form.width, C_NAME[operand.dtype]
    pointer = f"out_{name} + p_{name}"
    if operand.access == "vector" and full:
        if operand.dtype == FLOAT16:
            value = value if element in ("float", "double") else f"convert_float{width}({value})"
            return [f"vstore_half{width}({value}, 0, {pointer} + c);"]
        value = value if storage == element else f"convert_{storage}{width}({value})"
        return [f"*(__global U_{storage}*)({pointer} + c) = {value};"]
    step = "" if operand.access == "vector" else f" * i_{name}"
    lines = []
    for j in range(width):
        lane, index = f"{value}.s{j}", f"p_{name} + (c + {j}){step}"
        if operand.dtype == FLOAT16:
            text = f"vstore_half((float){lane}, {index}, out_{name});"
        else:
            text = f"out_{name}[{index}] = ({storage}){lane};"
        lines.append(text if full or j == 0 else f"if ({j} < count) {text}")
    return lines


def c_argument(text: str, element: str) -> str:
    """A chain's argument in C: a variable as it is, a number as a literal of the compute type."""
    if text[0].isalpha() or text[0] == "_":
        return text if text not in ("inf", "nan") else f"(T)({dialect.constant(float(text), element)})"
    return f"(T)({dialect.constant(float(text), element)})"


def _names(form: Form) -> list[tuple[str, Operand]]:
    """Operands by the suffix their variables carry: 0, 1, ... for inputs and w0, w1, ... for outputs."""
    inputs = [(f"{k}", x) for k, x in enumerate(form.inputs)]
    return inputs + [(f"w{k}", x) for k, x in enumerate(form.outputs)]


def render(chain: Chain, form: Form) -> str:
    """The OpenCL C program of `chain`, with one kernel called `chain.name`."""
    element, width = element_of(form.compute), form.width
    operands = _names(form)
    parameters = [f"__global const {C_NAME[x.dtype]}* restrict in_{k}" for k, x in enumerate(form.inputs)]
    parameters += [f"__global {C_NAME[x.dtype]}* restrict out_w{k}" for k, x in enumerate(form.outputs)]
    parameters += [f"I o_{name}" for name, _ in operands]
    parameters += [f"I t_{name}_{axis}" for name, _ in operands for axis in range(form.rank)]
    parameters += [f"I i_{name}" for name, x in operands if x.access == "strided"]
    parameters += [f"I d{axis}" for axis in range(1, form.rank)] + ["I rows", "I cols"]
    parameters += ["I step", "I chunk"] if form.plain else []
    parameters += [f"{element} a_{s}" for s in chain.scalars]
    full, part = _block(chain, form, True), _block(chain, form, False)
    index = broadcast_index_lines(form.rank, [name for name, _ in operands])
    scalars = [f"T {s} = (T)(a_{s});" for s in chain.scalars]
    body = _cpu_loop(index, full, part, form) if form.plain else _gpu_item(index, full, part, form)
    words = frozenset(w for _, function, _ in chain.lines for w in (function,))
    head = dialect.preamble(words, element, width, form.plain)
    if "double" in {element, *(C_NAME[x.dtype] for _, x in operands)}:
        head = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n" + head
    head += f"typedef {'long' if form.wide else 'int'} I;\n" + vector_types(form)
    arguments = ",\n    ".join(parameters)
    return f"{head}__kernel void {chain.name}(\n    {arguments}\n) {{\n" + _indent(scalars + body) + "}\n"


def _block(chain: Chain, form: Form, full: bool) -> list[str]:
    """Load, compute, store one vector."""
    element = element_of(form.compute)
    lines = [f"T {v} = {vector_load(form, x, str(k), full)};" for k, (v, x) in enumerate(zip(chain.inputs, form.inputs))]
    for out, function, args in chain.lines:
        lines.append(f"T {out} = {function}({', '.join(c_argument(a, element) for a in args)});")
    for k, (v, x) in enumerate(zip(chain.outputs, form.outputs)):
        lines += _store(form, x, f"w{k}", v, full)
    return lines


def vector_types(form: Form) -> str:
    """Vector types that may start at any element (`aligned` vectors may use full-width moves)."""
    lines = []
    for name in sorted({C_NAME[x.dtype] for _, x in _names(form)} - {"half"}):
        size = np.dtype({"uchar": "u1", "char": "i1", "int": "i4", "long": "i8"}.get(name, name)).itemsize
        align = "" if form.aligned else f" __attribute__((aligned({size})))"
        lines.append(f"typedef {name}{form.width} U_{name}{align};\n")
    return "".join(lines)


def _cpu_loop(index: list[str], full: list[str], part: list[str], form: Form) -> list[str]:
    width = form.width
    inner = ["I c = first;", f"for (; c + {width} <= last; c += {width}) {{", *_tab(full), "}",
             "if (c < last) {", *_tab(["int count = (int)(last - c);", *part]), "}"]  # fmt: skip
    span = ["I first = (I)get_global_id(0) * chunk;", "I last = first + chunk < cols ? first + chunk : cols;"]
    if form.rank == 0:
        return [*index, *span, *inner]
    rows = ["I r = (I)get_global_id(1) * step;", "I end = r + step < rows ? r + step : rows;"]
    return [*span, *rows, "for (; r < end; r++) {", *_tab([*index, *inner]), "}"]


def _gpu_item(index: list[str], full: list[str], part: list[str], form: Form) -> list[str]:
    width = form.width
    if form.rank == 0:
        place = [f"I c = (I)get_global_id(0) * {width};", "if (c >= cols) return;"]
    else:
        place = [f"I across = (cols + {width - 1}) / {width};", "I g = (I)get_global_id(0);", "I r = g / across;",
                 "if (r >= rows) return;", f"I c = (g - r * across) * {width};"]  # fmt: skip
    return [*place, *index, "I count = cols - c;", f"if (count >= {width}) {{", *_tab(full), "} else {",
            *_tab(part), "}"]  # fmt: skip


def _tab(lines: Sequence[str]) -> list[str]:
    return ["    " + line for line in lines]


def _indent(lines: Sequence[str]) -> str:
    return "".join(f"    {line}\n" for line in lines)


# -- launching ---------------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """A prepared launch: everything but the buffers, offsets and scalars."""

    kernel: Kernel | None  # None when there is nothing to compute
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    constants: tuple[int, ...]
    shape: Shape


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
    if len(tensors) > 1 or out:
        same_queue(chain.name, *tensors, *(out or ()))
    if isinstance(queue, CPUQueue):
        return _run_numpy(chain, compute, dtypes, tensors, scalars, out)
    layouts = tuple((t.shape, t.strides, t.dtype, t.offset & 3) for t in (tensors if out is None else (*tensors, *out)))
    plans = queue.netcl_state.plans
    key = (chain, compute, dtypes, layouts)
    plan = plans.get(key)
    if plan is None:
        if len(plans) > PLANS:
            plans.clear()
        plan = plans[key] = _plan(chain, compute, dtypes, tensors, out, queue)
    results = out if out is not None else [allocate(queue, plan.shape, dtype) for dtype in dtypes]
    if plan.kernel is not None:
        operands = (*tensors, *results)
        launch(
            plan.kernel, queue, plan.global_size, plan.local_size,
            *[t.buffer for t in operands], *[t.offset for t in operands], *plan.constants, *scalars,
        )  # fmt: skip
    return tuple(results)


def _run_numpy(
    chain: Chain,
    compute: DType,
    dtypes: tuple[DType, ...],
    tensors: Sequence[Tensor],
    scalars: Sequence[Any],
    out: Sequence[Tensor] | None,
) -> tuple[Tensor, ...]:
    layout.broadcast(_title(chain), *(t.shape for t in tensors))
    fn = chain.python(compute, dtypes)
    if out is None:
        return cpu.compute(fn, *tensors, scalars=tuple(scalars))  # type: ignore[no-any-return]
    n = len(out)
    cpu.update(lambda *arrays, **kw: fn(*arrays[n:], **kw), out, *tensors, scalars=tuple(scalars))
    return tuple(out)


def _title(chain: Chain) -> str:
    return chain.name.removeprefix("netcl_")


def access_of(step: int) -> str:
    return "vector" if step == 1 else "repeat" if step == 0 else "strided"


def _plan(
    chain: Chain,
    compute: DType,
    dtypes: tuple[DType, ...],
    tensors: Sequence[Tensor],
    out: Sequence[Tensor] | None,
    queue: Any,
) -> Plan:
    shape = layout.broadcast(_title(chain), *(t.shape for t in tensors)) if out is None else out[0].shape
    size = layout.size_of(shape)
    if size == 0:
        return Plan(None, (), (), (), shape)
    steps = [layout.expand_strides(t.shape, t.strides, shape) for t in tensors]
    steps += [layout.contiguous_strides(shape)] * len(dtypes) if out is None else [o.strides for o in out]
    lengths, strides = collapse(shape, tuple(steps))
    if lengths == (1,):  # a single element: walk it as a vector axis, whatever the strides were
        strides = tuple((1,) for _ in strides)
    profile = profile_of(queue)
    plain = profile.kind == "cpu"
    offsets = [t.offset for t in tensors] + [o.offset for o in out or ()]
    aligned = not plain and all(o % 4 == 0 for o in offsets) and all(s % 4 == 0 for st in strides for s in st[:-1])
    wide = plain or size >= 1 << 31 or any(reach(t) >= 1 << 31 for t in (*tensors, *(out or ())))
    accesses = [access_of(s[-1]) for s in strides]
    accesses[len(tensors) :] = ["vector" if a == "vector" else "strided" for a in accesses[len(tensors) :]]
    operands = [Operand(t, a) for t, a in zip((*(t.dtype for t in tensors), *dtypes), accesses, strict=True)]
    form = Form(
        compute,
        tuple(operands[: len(tensors)]),
        tuple(operands[len(tensors) :]),
        len(lengths) - 1,
        wide,
        plain,
        aligned,
    )
    rows, cols = layout.size_of(lengths[:-1]), lengths[-1]
    global_size, local_size, extra = _geometry(form, rows, cols, profile.max_work_group)
    constants = [step for s in strides for step in s[:-1]]
    constants += [s[-1] for s, x in zip(strides, operands, strict=True) if x.access == "strided"]
    constants += [*lengths[1:-1], rows, cols, *extra]
    return Plan(_kernel(queue, chain, form), global_size, local_size, tuple(constants), shape)


def reach(t: Tensor) -> int:
    """One more than the largest distance of an element from the start of the buffer."""
    return t.offset + sum((n - 1) * max(s, 0) for n, s in zip(t.shape, t.strides, strict=True)) + 1


def _geometry(form: Form, rows: int, cols: int, limit: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Global size, local size, and the CPU loop's (rows per item, columns per item)."""
    if form.plain:
        chunk = min(CHUNK, cols)
        step = max(1, CHUNK // max(chunk, 1)) if form.rank else 1
        columns = -(-cols // chunk)
        return (
            ((columns,) if form.rank == 0 else (columns, -(-rows // step))),
            (1,) * (1 + (form.rank > 0)),
            (step, chunk),
        )
    items = rows * -(-cols // form.width)
    group = min(GROUP, limit)
    return (-(-items // group) * group,), (group,), ()


@lru_cache(maxsize=4096)
def _source(chain: Chain, form: Form) -> tuple[str, tuple[DType | None, ...]]:
    """The program's text and the types of its kernel's arguments."""
    index = INT64 if form.wide else INT32
    operands = [x for _, x in _names(form)]
    count = len(operands) * (1 + form.rank) + sum(x.access == "strided" for x in operands)
    count += max(form.rank - 1, 0) + (4 if form.plain else 2)
    scalar = (
        np.dtype(np.float32)
        if form.compute == FLOAT16
        else np.dtype(np.uint8)
        if form.compute == BOOL
        else form.compute
    )
    types = [None] * len(operands) + [index] * count + [scalar] * len(chain.scalars)
    return render(chain, form), tuple(types)


def _kernel(queue: Any, chain: Chain, form: Form) -> Kernel:
    source, types = _source(chain, form)
    return get_kernel(queue, source, chain.name, types, OPTIONS)
