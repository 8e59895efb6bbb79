"""The text of chains of elementwise lines: OpenCL C that loads, computes and stores vectors, or a Python function.

Launch geometry of maps. CPU devices: local size 1, each work-item walks a block of about CHUNK elements in vectors of
8. GPUs: one vector of 4 per work-item, or of 8 of elements of at most 16 bits: 16 bytes per access; a square of vectors
where an input lies across the result. The text holds no sizes, only ranks and access patterns, so that a new shape
reuses the program.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from netcl.core.dtypes import C_NAME, DType, compute_dtype
from netcl.core.kernels import dialect
from netcl.fusion.broadcast import broadcast_index_lines
from netcl.kernels import sources
from netcl.kernels.grid import width_of
from netcl.kernels.sources import NARROW

Line = tuple[str, str, tuple[str, ...]]  # (variable, FUNCTION, arguments: variables or numbers)
REDUCTIONS = {"SUM": ("ADD", "0"), "MAX": ("MAXIMUM", "-inf"), "MIN": ("MINIMUM", "inf")}  # combine, start
SHORT = 64  # elements of a row that wide vectors do not help
STEPPED = ("strided", "turned")  # accesses whose kernels take the step along the row
COUNT = "n"  # in a chain with row reductions: the number of elements they run over


@dataclass(frozen=True, eq=False)
class Chain:
    """`lines` computing `outputs` from the tensors `inputs` and the numbers `scalars`, all of them variable names.

    Lines may reduce over the last `axes` axes of the broadcast shape (`SUM MAX MIN`, see rows.py); their results are
    used along the row like numbers. `kinds` says what each output is: "full" (an element for each), "keep" or "drop"
    (one per row, the reduced axes kept with length one or dropped).
    """

    name: str
    inputs: tuple[str, ...]
    scalars: tuple[str, ...]
    lines: tuple[Line, ...]
    outputs: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    axes: int = 0
    functions: dict[Any, Any] = field(default_factory=dict)  # NumPy forms by compute dtype and result dtypes

    def python(self, compute: DType, results: tuple[DType, ...]) -> Any:
        """The chain as `fn(*arrays, scalars) -> tuple of arrays`, computing in `compute`."""
        key = (compute, results)
        if key not in self.functions:
            space = {**dialect.NUMPY, **_ROWS, "compute": compute, "results": results, "as_dtype": _as_dtype}
            exec(render_python(self), space)
            self.functions[key] = space["chain"]
        return self.functions[key]

    def kind(self, k: int) -> str:
        """What becomes of output `k`."""
        return self.kinds[k] if self.kinds else "full"

    @property
    def words(self) -> frozenset[str]:
        """The functions that the text needs."""
        named = {f for _, f, _ in self.lines}
        named |= {REDUCTIONS[f][0] for f in named & REDUCTIONS.keys()}
        return frozenset(named - REDUCTIONS.keys())


class Operand(NamedTuple):
    """How a kernel meets one tensor: its dtype and whether its last axis is walked by vector, repeated, or strided.

    "turned" is strided with vectors along the axis before (a transposed view): blocks of them are turned in registers.
    """

    dtype: DType
    access: str  # "vector" (step 1), "repeat" (step 0), "strided", "turned", or "row" (an output: one per row)


class Form(NamedTuple):
    """Everything the text of a kernel depends on, the chain aside."""

    compute: DType
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    rank: int  # outer axes
    wide: bool  # 64-bit index arithmetic
    plain: bool  # a CPU device
    aligned: bool  # vectors start at multiples of their length
    vector: int  # floats of a CPU device's vector
    stream: bool = False  # full results bypass a CPU's caches (streaming.py)
    group: int = 0  # work-items that share a row on a GPU
    keep: int = 0  # vectors per work-item that passes over a row may hand on
    eights: bool = False  # a GPU's vectors have eight elements
    doubles: bool = True  # the device computes in double precision

    @property
    def width(self) -> int:
        """Elements per vector: a register of floats on CPU devices, of half as many long elements; 4 or 8 on GPUs."""
        return width_of(self.compute, self.vector) if self.plain else 8 if self.eights else 4

    @property
    def across(self) -> int:
        """Of the work-items that turn blocks so many lie along the turned operands, the next along the row."""
        return 8 if self.aligned and not self.eights else 4

    @property
    def element(self) -> str:
        """C name of the compute type."""
        return element_of(self.compute)

    @property
    def operands(self) -> dict[str, Operand]:
        """The tensors by the names of their arguments: in_0, in_1, ..., out_0, ..."""
        inputs = {f"in_{k}": x for k, x in enumerate(self.inputs)}
        return inputs | {f"out_{k}": x for k, x in enumerate(self.outputs)}


def turns(width: int) -> list[str]:
    """The swizzles by which each lane meets the one half a vector away, then a quarter, ..., then its neighbour."""
    steps = [width >> k for k in range(1, width.bit_length())]
    return ["".join(f"{j ^ step:x}" for j in range(width)) for step in steps]


def vector_for(row: int, vector: int) -> int:
    """Floats of a vector for rows of `row` elements: short ones are mostly tail, which is taken lane by lane."""
    return vector if row >= SHORT else min(vector, 8)


def element_of(dtype: DType) -> str:
    """C name of the type that `dtype` is computed in."""
    return C_NAME[compute_dtype(dtype)]


# -- Python ------------------------------------------------------------------------------------------------------------


def render_python(chain: Chain) -> str:
    """The chain as the text of a Python function."""
    text = [f"def chain({', '.join((*chain.inputs, 'scalars'))}):"]
    text += [f"    {v} = {v}.astype(compute, copy=False)" for v in chain.inputs]
    k = chain.axes
    if k or len(chain.outputs) > 1:
        text += [f"    shape = broadcast_shapes({', '.join(f'{v}.shape' for v in chain.inputs)})"]
    if k:
        text += [f"    {COUNT} = compute.type(prod(shape[-{k}:]))"]
    text += [f"    {', '.join(chain.scalars)}, = scalars"] if chain.scalars else []
    for out, f, args in chain.lines:
        value = f"{f}({', '.join(args)})" if f else args[0]
        text.append(f"    {out} = " + (f"{f}({args[0]}, shape, {k})" if f in REDUCTIONS else value))
    stored = [f"as_dtype({_placed(chain, i)}, results[{i}])" for i in range(len(chain.outputs))]
    text.append(f"    return {', '.join(stored)},")
    return "\n".join(text) + "\n"


def _placed(chain: Chain, i: int) -> str:
    """Output `i` in its final shape."""
    v, k = chain.outputs[i], chain.axes
    if len(chain.outputs) == 1 and not k:
        return v  # all inputs take part in it
    if not k or chain.kinds[i] == "full":
        return f"broadcast_to({v}, shape)"
    return f"per_row({v}, shape, {k})" + (f".reshape(shape[:-{k}] or (1,))" if chain.kinds[i] == "drop" else "")


def _per_row(value: Any, shape: Any, k: int) -> np.ndarray:
    """The first element of each row of a value that is the same along rows."""
    first: tuple[Any, ...] = (..., *(slice(0, 1),) * k)
    return np.broadcast_to(value, shape)[first]


def _over_rows(ufunc: np.ufunc) -> Any:
    """A reduction over the last `k` axes of a value seen as `shape`; the axes stay with length one."""

    def reduce(value: Any, shape: Any, k: int) -> np.ndarray:
        return ufunc.reduce(np.broadcast_to(value, shape), axis=tuple(range(-k, 0)), keepdims=True)

    return reduce


_ROWS = {
    "SUM": _over_rows(np.add), "MAX": _over_rows(np.maximum), "MIN": _over_rows(np.minimum), "prod": math.prod,
    "per_row": _per_row, "inf": math.inf, "nan": math.nan, "broadcast_shapes": np.broadcast_shapes,
    "broadcast_to": np.broadcast_to,
}  # fmt: skip


def _as_dtype(value: Any, dtype: DType) -> np.ndarray:
    return np.asarray(value).astype(dtype, copy=False)


# -- loads and stores --------------------------------------------------------------------------------------------------


def vector_load(form: Form, operand: Operand, name: str, full: bool, at: str = "c") -> str:
    """C text of type T that loads one vector of operand `name`; lanes past `count` are 1 when not `full`.

    at: where a whole vector starts along the row.
    """
    element, width = form.element, form.width
    if operand.access == "vector" and full:
        pointer = f"{name} + p_{name} + {at}"
        storage = C_NAME[operand.dtype]
        if storage in NARROW:
            text, storage = f"LOAD_{NARROW[storage]}{_lanes(form)}({pointer})", "float"
        else:
            text = f"*(__global const U_{storage}*)({pointer})"
        return text if storage == element else f"convert_{element}{width}({text})"
    if operand.access == "repeat":
        return f"(T)({_scalar(operand, element, name, f'p_{name}')})"
    step = "" if operand.access == "vector" else f" * i_{name}"
    lanes = []
    for j in range(width):
        value = _scalar(operand, element, name, f"p_{name} + (c + {j}){step}")
        lanes.append(value if full or j == 0 else f"({j} < count ? {value} : ({element})1)")
    return f"(T)({', '.join(lanes)})"


def _lanes(form: Form) -> str:
    """What ends the names of loads and stores of vectors of a narrow type."""
    return f"{form.width}{'A' * form.aligned}"


def _scalar(operand: Operand, element: str, name: str, index: str) -> str:
    if C_NAME[operand.dtype] in NARROW:
        return f"({element})LOAD_{NARROW[C_NAME[operand.dtype]]}({name}, {index})"
    return f"({element}){name}[{index}]"


def vector_store(form: Form, operand: Operand, name: str, value: str, full: bool) -> list[str]:
    """C lines that store vector `value` to operand `name`; only the first `count` lanes when not `full`."""
    element, width, storage = form.element, form.width, C_NAME[operand.dtype]
    if operand.access == "vector" and full:
        pointer = f"{name} + p_{name} + c"
        if storage == "half" and element == "double":
            return [f"vstore_half{width}({value}, 0, {pointer});"]  # other ways the compiler calls what PoCL lacks
        if storage in NARROW:
            value = value if element == "float" else f"convert_float{width}({value})"
            return [f"STORE_{NARROW[storage]}{_lanes(form)}({value}, {pointer});"]
        if form.stream:
            return [f"STREAM_TO(T, {pointer}, {value});"]
        value = value if storage == element else f"convert_{storage}{width}({value})"
        return [f"*(__global U_{storage}*)({pointer}) = {value};"]
    if operand.access == "row":
        return [_store_lane(operand, name, f"{value}.s0", f"p_{name}")]
    step = "" if operand.access == "vector" else f" * i_{name}"
    lanes = [_store_lane(operand, name, f"{value}.s{j:x}", f"p_{name} + (c + {j}){step}") for j in range(width)]
    return [text if full or j == 0 else f"if ({j} < count) {text}" for j, text in enumerate(lanes)]


def _store_lane(operand: Operand, name: str, lane: str, index: str) -> str:
    storage = C_NAME[operand.dtype]
    if storage in NARROW:
        return f"STORE_{NARROW[storage]}({name}, {index}, (float){lane});"
    return f"{name}[{index}] = ({storage}){lane};"


def c_argument(text: str, element: str) -> str:
    """A line's argument in C: a variable as it is, a number as a literal of the compute type."""
    if (text[0].isalpha() or text[0] == "_") and text not in ("inf", "nan"):
        return text
    return f"(T)({dialect.constant(number(text), element)})"


def number(text: str) -> int | float:
    """The number that an argument of a line is; whole ones keep every digit."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def assignment(line: Line, element: str) -> str:
    """`T v2 = MUL(v0, v1);`"""
    out, function, args = line
    arguments = [c_argument(a, element) for a in args]
    return f"T {out} = {function}({', '.join(arguments)});" if function else f"T {out} = {arguments[0]};"


def memory_of(text: str) -> str:
    """The files of what `text` uses to load and to store."""
    used = sources.storage([name for name, form in NARROW.items() if re.search(rf"\b{name}\b|_{form}", text)])
    return used + (sources.text("memory.cl") if re.search(r"\b(STREAM_TO|AHEAD)\(", text) else "")


# -- the frame of every kernel -----------------------------------------------------------------------------------------


def head(chain: Chain, form: Form) -> str:
    """The functions and types that the kernel of `chain` needs."""
    element = form.element
    text = dialect.preamble(chain.words, element, form.width, form.plain, form.doubles)
    if "double" in {element, *(C_NAME[x.dtype] for x in form.operands.values())}:
        text = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n" + text
    return text + f"typedef {'long' if form.wide else 'int'} I;\n" + vector_types(form)


def vector_types(form: Form) -> str:
    """Vector types of the operands that may start at any element (`aligned` vectors may use full-width moves)."""
    lines = []
    for name in sorted({C_NAME[x.dtype] for x in form.operands.values()} - NARROW.keys()):
        align = "" if form.aligned else f" __attribute__((aligned({_SIZE[name]})))"
        lines.append(f"typedef {name}{form.width} U_{name}{align};\n")
    return "".join(lines)


_SIZE = {"char": 1, "uchar": 1, "short": 2, "int": 4, "float": 4, "long": 8, "double": 8}


def kernel(chain: Chain, form: Form, geometry: Sequence[str], body: Sequence[str], group: int = 0) -> str:
    """The program: head, parameters (tensors, then offsets, strides, lengths, `geometry`, scalars), body.

    `group`: work-items of a group, if the kernel relies on them: compilers then leave each registers enough.
    """
    operands = form.operands.items()
    parameters = [f"__global {'const ' * s.startswith('in')}{C_NAME[x.dtype]}* restrict {s}" for s, x in operands]
    parameters += [f"I o{s}" for s in form.operands]
    parameters += [f"I t_{s}_{axis}" for s, x in operands if x.access != "row" for axis in range(form.rank)]
    parameters += [f"I i_{s}" for s, x in operands if x.access in STEPPED]
    parameters += [f"I d{axis}" for axis in range(1, form.rank)] + ["I rows", "I cols"]
    parameters += [f"I {g}" for g in geometry] + [f"{form.element} a_{s}" for s in chain.scalars]
    lines = [f"T {s} = (T)(a_{s});" for s in chain.scalars] + list(body)
    arguments = ",\n    ".join(parameters)
    text = "".join(f"    {line}\n" for line in lines)
    size = f"__attribute__((reqd_work_group_size({group}, 1, 1))) " if group else ""
    return f"{memory_of(text)}{head(chain, form)}__kernel {size}void {chain.name}(\n    {arguments}\n) {{\n{text}}}\n"


def tab(lines: Sequence[str]) -> list[str]:
    """One level further in."""
    return ["    " + line for line in lines]


# -- maps --------------------------------------------------------------------------------------------------------------


def render(chain: Chain, form: Form) -> str:
    """The program of a map: each input read once, each output written once."""
    full, part = _block(chain, form, True), _block(chain, form, False)
    index = broadcast_index_lines(form.rank, [*form.operands])
    if form.plain:
        return kernel(chain, form, ("step", "chunk"), _cpu_loop(index, full, part, form))
    if any(x.access == "turned" for x in form.inputs):
        return kernel(chain, form, (), _gpu_block(index, chain, part, form))
    return kernel(chain, form, (), _gpu_item(index, full, part, form))


def _block(chain: Chain, form: Form, full: bool, turned: bool = False) -> list[str]:
    """Load, compute, store one vector; those of turned operands lie in registers when `turned`."""
    lines = []
    for k, (v, x) in enumerate(zip(chain.inputs, form.inputs, strict=True)):
        ready = turned and x.access == "turned"
        lines.append(f"T {v} = {f'block_{k}[y]' if ready else vector_load(form, x, f'in_{k}', full)};")
    lines += [assignment(line, form.element) for line in chain.lines]
    for k, (v, x) in enumerate(zip(chain.outputs, form.outputs, strict=True)):
        lines += vector_store(form, x, f"out_{k}", c_argument(v, form.element), full)
    return lines


def _cpu_loop(index: list[str], full: list[str], part: list[str], form: Form) -> list[str]:
    width = form.width
    inner = ["I c = first;", f"for (; c + {width} <= last; c += {width}) {{", *tab(full), "}",
             "if (c < last) {", *tab(["int count = (int)(last - c);", *part]), "}"]  # fmt: skip
    span = ["I first = (I)get_global_id(0) * chunk;", "I last = first + chunk < cols ? first + chunk : cols;"]
    if form.rank == 0:
        return [*index, *span, *inner]
    rows = ["I r = (I)get_global_id(1) * step;", "I end = r + step < rows ? r + step : rows;"]
    return [*span, *rows, "for (; r < end; r++) {", *tab([*index, *inner]), "}"]


def _gpu_item(index: list[str], full: list[str], part: list[str], form: Form) -> list[str]:
    width = form.width
    if form.rank == 0:
        place = [f"I c = (I)get_global_id(0) * {width};", "if (c >= cols) return;"]
    else:
        place = [f"I across = (cols + {width - 1}) / {width};", "I g = (I)get_global_id(0);", "I r = g / across;",
                 "if (r >= rows) return;", f"I c = (g - r * across) * {width};"]  # fmt: skip
    return [*place, *index, "I count = cols - c;", f"if (count >= {width}) {{", *tab(full), "} else {",
            *tab(part), "}"]  # fmt: skip


def _gpu_block(index: list[str], chain: Chain, part: list[str], form: Form) -> list[str]:
    """A work-item maps a square of vectors: it turns what lies across the rows, so that all accesses are vectors."""
    width, across, high = form.width, form.across, f"d{form.rank - 1}" if form.rank > 1 else "rows"
    place = [
        f"I g = (I)get_global_id(0), across = (cols + {width - 1}) / {width};",
        f"I high = {high}, down = (high + {across * width - 1}) / {across * width};",
        f"I tile = g / {across} / across, batch = tile / down, c = (g / {across} - tile * across) * {width};",
        f"I top = ((tile - batch * down) * {across} + g % {across}) * {width}, r = batch * high + top;",
        "if (batch * high >= rows || top >= high) return;",
    ]
    down = [f"p_{s} += t_{s}_{form.rank - 1};" for s in form.operands]
    loads, lanes = [], [f"{j:x}" for j in range(width)]
    for k, x in enumerate(form.inputs):
        if x.access == "turned":
            whole = x._replace(access="vector")
            loads += [f"T block_{k}[{width}];", "{"]
            for j in range(width):
                loads.append(f"    T b{j} = {vector_load(form, whole, f'in_{k}', True, f'(c + {j}) * i_in_{k}')};")
            loads += [f"    block_{k}[{y}] = (T)({', '.join(f'b{j}.s{s}' for j in range(width))});"
                      for y, s in enumerate(lanes)] + ["}"]  # fmt: skip
    full = [*_block(chain, form, True, True), *down]
    return [*place, *index, "I count = cols - c;", f"if (count >= {width} && high - top >= {width}) {{", *tab(loads),
            "    #pragma unroll", f"    for (int y = 0; y < {width}; y++) {{", *tab(tab(full)), "    }", "} else {",
            f"    for (I y = top; y < high && y < top + {width}; y++) {{", *tab(tab([*part, *down])),
            "    }", "}"]  # fmt: skip
