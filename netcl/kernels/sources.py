"""Text of OpenCL programs: defines, then common.cl, then the operator's files.

Plain concatenation, so the text is complete: its hash is the key of the program cache, and line numbers in a build log
can be looked up in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

_places: dict[str, Path] = {}  # where each OpenCL C file of the package lies, by its name, which no two files share
_read: dict[str, str] = {}


def texts(*files: str) -> list[str]:
    """OpenCL C files of the package as they are."""
    if not _places:
        _places.update({path.name: path for path in Path(__file__).parents[1].rglob("*.cl")})
    _read.update({f: _places[f].read_text(encoding="utf-8") for f in files if f not in _read})
    return [_read[f] for f in files]


def text(file: str) -> str:
    """One of them."""
    return texts(file)[0]


NARROW = {"half": "HALF", "bfloat": "BFLOAT"}  # types stored in 16 bits, and what names their loads and stores


def storage(names: Iterable[Any]) -> str:
    """The files that load and store those of the types `names` that are narrow."""
    return "".join(texts(*[f"{name}.cl" for name in NARROW if name in names]))


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
    narrow = [f"{name}.cl" for name in NARROW if name in defines.values()]
    found = texts(*narrow, "common.cl", *files)
    return "".join([*found[: len(narrow)], *lines, *found[len(narrow) :]])
