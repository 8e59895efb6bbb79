"""Text of OpenCL programs: defines, then common.cl, then the operator's files.

Plain concatenation, so the text is complete: its hash is the key of the program cache, and line numbers in a build log
can be looked up in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _folders() -> dict[str, Path]:
    """Where each OpenCL C file of the package lies, by its name, which no two files share."""
    return {path.name: path for path in Path(__file__).parents[1].rglob("*.cl")}


@cache
def text(file: str) -> str:
    """An OpenCL C file of the package as it is."""
    return _folders()[file].read_text(encoding="utf-8")


NARROW = {"half": "HALF", "bfloat": "BFLOAT"}  # types stored in 16 bits, and what names their loads and stores


def storage(names: Iterable[Any]) -> str:
    """The files that load and store those of the types `names` that are narrow."""
    return "".join(text(f"{name}.cl") for name in NARROW if name in names)


@cache
def load(*files: str, preamble: str = "", **defines: int | float | str) -> str:
    """The program in `files` with `defines` set before it; the same arguments give the same string object.

    S names the storage type of elements ("half", "float", ...) and T the compute type; common.cl explains them. W and R
    may name those of parameters and results.
    `preamble` is text of `dialect.preamble`, which brings elementwise functions and its own vector type T.
    """
    lines = [f"#define {name} {value}\n" for name, value in sorted(defines.items())]
    for name, prefix in (("S", ""), ("W", "W_"), ("R", "R_")):
        if defines.get(name) in NARROW:
            lines.append(f"#define {prefix}NARROW {NARROW[defines[name]]}\n")  # type: ignore[index]  # a text, as it is found there
    lines += ["#define HAVE_T 1\n", preamble] if preamble else []
    return storage(tuple(defines.values())) + "".join(lines) + "".join(text(file) for file in ("common.cl", *files))
