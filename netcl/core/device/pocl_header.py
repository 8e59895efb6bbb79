"""Declarations of the built-in functions that a program uses, in the place of PoCL's header of all of them.

Before each program PoCL's compiler reads clang's `opencl-c.h`, 14,500 declarations, which takes five times as long as
reading a kernel. Where the header's guard is defined it skips them, and the program brings those it needs: every
overload of each name in its text, under the header's own conditions, so that the compiler chooses among the same.
A name that the text puts together may be missed; the compiler refuses such a program (OpenCL C has no implicit
declarations), which is then built with the whole header.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

GUARD = "-D_OPENCL_H_"  # the option with which the header is skipped
WHEEL = "pocl-binary-distribution"
Line = tuple[str, str, tuple[str, ...]]  # name ("" for a directive that all need), text, conditions around it
KEPT = ("#define __", "#undef __", "#pragma OPENCL EXTENSION cl_khr_fp")  # directives for what follows them
_ATTRIBUTE = re.compile(r"__attribute__\s*\(\(.*?\)\)")
_PASTED = re.compile(r"\b([a-z]\w*)##|\b([a-z]\w*_),")  # the first part of names that macros put together


def declarations(source: str, device: Any) -> str:
    """What goes before `source` where it is built with GUARD; "" where the whole header has to be read."""
    lines = _lines(str(device.driver_version))
    if not lines:
        return ""
    words = {"", *re.findall(r"\w+", source)}
    parts = {a or b for a, b in _PASTED.findall(source)}
    if parts:  # of vload##N, JOIN(convert_, T): vload4 and convert_float8, not convert_float8_rte
        whole = re.compile("|".join(rf"{part}[a-z]*\d*" if part[-1] == "_" else rf"{part}\d+" for part in parts))
        words |= {name for name in {line[0] for line in lines} if whole.fullmatch(name)}
    return "\n".join([*_nested([line for line in lines if line[0] in words]), "#line 1\n"])


def _nested(lines: list[Line]) -> Iterator[str]:
    """The text of `lines` with their conditions opened and closed."""
    last: tuple[str, ...] = ()
    for _, text, under in (*lines, ("", "#pragma OPENCL EXTENSION all : disable", ())):  # as PoCL leaves it
        same = 0
        while same < min(len(under), len(last)) and under[same] == last[same]:
            same += 1
        yield from ["#endif"] * (len(last) - same)
        yield from under[same:]
        yield text
        last = under


@cache
def _lines(version: str) -> list[Line]:
    """The header of the wheel's PoCL where that is the driver and the header is understood as a whole, else nothing."""
    try:
        wheel = importlib.metadata.distribution(WHEEL)
        path = next(Path(str(file.locate())) for file in wheel.files or [] if file.name == "opencl-c.h")
        return parse(path.read_text(encoding="utf-8")) if version.split("-")[0] == wheel.version else []
    except (importlib.metadata.PackageNotFoundError, StopIteration, OSError, ValueError, IndexError):
        return []


def parse(header: str) -> list[Line]:
    """The lines of clang's header. Raises ValueError for what is neither a declaration nor a directive."""
    first, *others = header.split("/*")
    header = "".join([first, *(part.partition("*/")[2] for part in others)]).replace("\\\n", " ")
    found: list[Line] = []
    under: tuple[str, ...] = ()
    begun = ""
    for line in header[header.index("#define _OPENCL_H_") : header.rindex("#endif")].split("\n"):
        line = line.partition("//")[0].strip()
        if line.startswith("#"):
            if line.startswith("#if"):
                under = (*under, line)
            elif line.startswith("#el"):
                under = (*under[:-1], f"{under[-1]}\n{line}")
            elif line.startswith("#endif"):
                under = under[:-1]
            elif line.startswith(KEPT):
                found.append(("", line, under))
        elif line:
            begun = f"{begun} {line}" if begun else line
            if begun.endswith(";"):
                found.append((_name(begun), begun, under))
                begun = ""
    return found


def _name(declaration: str) -> str:
    """The function that is declared."""
    if "__attribute__" in declaration:
        declaration = _ATTRIBUTE.sub("", declaration)
    name = declaration.partition("(")[0].rsplit(None, 1)[-1]
    if not name.isidentifier() or not declaration.endswith(");"):
        raise ValueError(f"pocl_header: expected a function, got {declaration!r}.")
    return name
