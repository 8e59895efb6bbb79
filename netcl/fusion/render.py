"""OpenCL C of the generator's kernels: loads, lines and stores of one vector, and the frame around a kernel's body."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

from netcl.core.dtypes import C_NAME
from netcl.core.kernels import dialect
from netcl.fusion.chain import Chain, Line
from netcl.fusion.walk import Operand, Walk
from netcl.kernels import sources
from netcl.kernels.sources import NARROW

OPTIONS = ("-cl-mad-enable", "-w")  # -w: remarks of the compiler belong to us, not to users
_VARIABLE = re.compile(r"(?!inf$|nan$)[^\W\d]")
_WHOLE = re.compile(r"-?\d+$")
_SIZE = {"char": 1, "uchar": 1, "short": 2, "int": 4, "float": 4, "long": 8, "double": 8}


# -- loads and stores --------------------------------------------------------------------------------------------------


def vector_load(walk: Walk, operand: Operand, name: str, full: bool, at: str = "c") -> str:
    """C text of type T that loads one vector of operand `name`; lanes past `count` are 1 when not `full`.

    at: where a whole vector starts along the row.
    """
    element, width, storage = walk.element, walk.width, C_NAME[operand.dtype]
    if operand.access == "vector" and full:
        pointer = f"{name} + p_{name} + {at}"
        if storage in NARROW:
            text, storage = f"LOAD_{NARROW[storage]}{width}{'A' * walk.aligned}({pointer})", "float"
        else:
            text = f"*(__global const U_{storage}*)({pointer})"
        return text if storage == element else f"convert_{element}{width}({text})"
    one = f"LOAD_{NARROW[storage]}({name}, %s)" if storage in NARROW else f"{name}[%s]"
    if operand.access == "repeat":
        return f"(T)(({element}){one % f'p_{name}'})"
    step = "" if operand.access == "vector" else f" * i_{name}"
    lanes = [f"({element}){one % f'p_{name} + (c + {j}){step}'}" for j in range(width)]
    if not full:
        lanes[1:] = [f"({j} < count ? {lane} : ({element})1)" for j, lane in enumerate(lanes[1:], 1)]
    return f"(T)({', '.join(lanes)})"


def vector_store(walk: Walk, operand: Operand, name: str, value: str, full: bool) -> list[str]:
    """C lines that store vector `value` to operand `name`; only the first `count` lanes when not `full`."""
    element, width, storage = walk.element, walk.width, C_NAME[operand.dtype]
    if operand.access == "vector" and full:
        pointer = f"{name} + p_{name} + c"
        if storage == "half" and element == "double":
            return [f"vstore_half{width}({value}, 0, {pointer});"]  # other ways the compiler calls what PoCL lacks
        if storage in NARROW:
            value = value if element == "float" else f"convert_float{width}({value})"
            return [f"STORE_{NARROW[storage]}{width}{'A' * walk.aligned}({value}, {pointer});"]
        if walk.stream:
            return [f"STREAM_TO(T, {pointer}, {value});"]
        value = value if storage == element else f"convert_{storage}{width}({value})"
        return [f"*(__global U_{storage}*)({pointer}) = {value};"]
    one = f"STORE_{NARROW[storage]}({name}, %s, (float)%s);" if storage in NARROW else f"{name}[%s] = ({storage})%s;"
    if operand.access == "row":
        return [one % (f"p_{name}", f"{value}.s0")]
    step = "" if operand.access == "vector" else f" * i_{name}"
    lanes = [one % (f"p_{name} + (c + {j}){step}", f"{value}.s{j:x}") for j in range(width)]
    return [text if full or j == 0 else f"if ({j} < count) {text}" for j, text in enumerate(lanes)]


@cache
def c_argument(text: str, element: str) -> str:
    """A line's argument in C: a variable as it is, a number as a literal of the compute type."""
    if _VARIABLE.match(text):
        return text
    return f"(T)({dialect.constant(int(text) if _WHOLE.match(text) else float(text), element)})"


def assignments(lines: Iterable[Line], element: str) -> list[str]:
    """`T v2 = MUL(v0, v1);` for each line."""
    found = []
    for out, function, args in lines:
        arguments = [a if _VARIABLE.match(a) else c_argument(a, element) for a in args]
        found.append(f"T {out} = {function}({', '.join(arguments)});" if function else f"T {out} = {arguments[0]};")
    return found


def memory_of(text: str) -> str:
    """The files of what `text` uses to load and to store."""
    names = [name for name, form in NARROW.items() if re.search(rf"\b{name}\b|_{form}", text)]
    used = sources.storage(names) if names else ""
    return used + (sources.text("memory.cl") if re.search(r"\b(STREAM_TO|AHEAD)\(", text) else "")


# -- the frame of every kernel -----------------------------------------------------------------------------------------


def head(words: Iterable[str], walk: Walk, types: Iterable[str] = ()) -> str:
    """The functions `words` and the vector types that a kernel needs; `types`: C names of others that it stores.

    Vectors may start at any element, and move at full width where they are `aligned`.
    """
    text = dialect.preamble(frozenset(words), walk.element, walk.width, walk.on_cpu, walk.doubles)
    if "double" in {walk.element, *types, *(C_NAME[x.dtype] for x in walk.operands.values())}:
        text = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n" + text
    lines = [text, f"typedef {'long' if walk.wide else 'int'} I;\n"]
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
