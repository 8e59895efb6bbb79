"""Text of OpenCL programs: defines, then common.cl, then files of netcl/ops/kernels.

Plain concatenation, so the text is complete: its hash is the key of the program cache, and line numbers in a build log
can be looked up in it.
"""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def text(file: str) -> str:
    """A file of netcl/ops/kernels as it is."""
    return (resources.files("netcl.ops.kernels") / file).read_text(encoding="utf-8")


@cache
def load(*files: str, preamble: str = "", **defines: int | float | str) -> str:
    """The program in `files` with `defines` set before it; the same arguments give the same string object.

    S names the storage type of elements ("half", "float", ...) and T the compute type; common.cl explains them.
    `preamble` is text of `dialect.preamble`, which brings elementwise functions and its own vector type T.
    """
    lines = [f"#define {name} {value}\n" for name, value in sorted(defines.items())]
    lines += ["#define HALF 1\n"] if defines.get("S") == "half" else []
    lines += ["#define HAVE_T 1\n", preamble] if preamble else []
    return "".join(lines) + "".join(text(file) for file in ("common.cl", *files))
