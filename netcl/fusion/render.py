"""OpenCL C of the generator's kernels: loads, lines and stores of one vector, and the frame around a kernel's body."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from netcl.core.dtypes import C_NAME
from netcl.core.kernels import dialect
from netcl.fusion.chain import Chain, Line, number
from netcl.fusion.walk import Operand, Walk
from netcl.kernels import sources
from netcl.kernels.sources import NARROW

OPTIONS = ("-cl-mad-enable", "-w")  # -w: remarks of the compiler belong to us, not to users
_SIZE = {"char": 1, "uchar": 1, "short": 2, "int": 4, "float": 4, "long": 8, "double": 8}


# -- loads and stores --------------------------------------------------------------------------------------------------


def vector_load(walk: Walk, operand: Operand, name: str, full: bool, at: str = "c") -> str:
    """C text of type T that loads one vector of operand `name`; lanes past `count` are 1 when not `full`.

    at: where a whole vector starts along the row.
    """
    element, width = walk.element, walk.width
    if operand.access == "vector" and full:
        pointer = f"{name} + p_{name} + {at}"
        storage = C_NAME[operand.dtype]
        if storage in NARROW:
            text, storage = f"LOAD_{NARROW[storage]}{_lanes(walk)}({pointer})", "float"
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


def _lanes(walk: Walk) -> str:
    """What ends the names of loads and stores of vectors of a narrow type."""
    return f"{walk.width}{'A' * walk.aligned}"


def _scalar(operand: Operand, element: str, name: str, index: str) -> str:
    if C_NAME[operand.dtype] in NARROW:
        return f"({element})LOAD_{NARROW[C_NAME[operand.dtype]]}({name}, {index})"
    return f"({element}){name}[{index}]"


def vector_store(walk: Walk, operand: Operand, name: str, value: str, full: bool) -> list[str]:
    """C lines that store vector `value` to operand `name`; only the first `count` lanes when not `full`."""
    element, width, storage = walk.element, walk.width, C_NAME[operand.dtype]
    if operand.access == "vector" and full:
        pointer = f"{name} + p_{name} + c"
        if storage == "half" and element == "double":
            return [f"vstore_half{width}({value}, 0, {pointer});"]  # other ways the compiler calls what PoCL lacks
        if storage in NARROW:
            value = value if element == "float" else f"convert_float{width}({value})"
            return [f"STORE_{NARROW[storage]}{_lanes(walk)}({value}, {pointer});"]
        if walk.stream:
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


def head(words: Iterable[str], walk: Walk, types: Iterable[str] = ()) -> str:
    """The functions `words` and the vector types that a kernel needs; `types`: C names of others that it stores."""
    text = dialect.preamble(frozenset(words), walk.element, walk.width, walk.on_cpu, walk.doubles)
    if "double" in {walk.element, *types, *(C_NAME[x.dtype] for x in walk.operands.values())}:
        text = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n" + text
    return text + f"typedef {'long' if walk.wide else 'int'} I;\n" + vector_types(walk)


def vector_types(walk: Walk) -> str:
    """Vector types of the operands that may start at any element (`aligned` vectors may use full-width moves)."""
    lines = []
    for name in sorted({C_NAME[x.dtype] for x in walk.operands.values()} - NARROW.keys()):
        align = "" if walk.aligned else f" __attribute__((aligned({_SIZE[name]})))"
        lines.append(f"typedef {name}{walk.width} U_{name}{align};\n")
    return "".join(lines)


def kernel(chain: Chain, walk: Walk, geometry: Sequence[str], body: Sequence[str]) -> str:
    """The program: head, parameters (tensors, then the walk's indices, `geometry`, scalars), body.

    Where the kernel relies on the size of its groups it says so: compilers then leave each item registers enough.
    """
    parameters = [*walk.pointers(), *(f"I {x}" for x in (*walk.indices(), *geometry))]
    parameters += [f"{walk.element} a_{s}" for s in chain.scalars]
    lines = [f"T {s} = (T)(a_{s});" for s in chain.scalars] + list(body)
    arguments = ",\n    ".join(parameters)
    text = "".join(f"    {line}\n" for line in lines)
    size = f"__attribute__((reqd_work_group_size({walk.group}, 1, 1))) " if walk.group > 1 else ""
    start = memory_of(text) + head(chain.words, walk)
    return f"{start}__kernel {size}void {chain.name}(\n    {arguments}\n) {{\n{text}}}\n"


def tab(lines: Sequence[str]) -> list[str]:
    """One level further in."""
    return ["    " + line for line in lines]
