"""Matrix products on CPU devices: geometry and launch of matmul_cpu.cl."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from netcl.core.backend.opencl import launch
from netcl.core.dtypes import C_NAME, FLOAT16, FLOAT32, INT64, DType, compute_dtype, is_float
from netcl.core.kernels import dialect
from netcl.core.profile import profile_of
from netcl.core.tensor import Tensor, allocate
from netcl.ops import matmul_simple, sources, tuning
from netcl.runtime.cache import get_kernel

if TYPE_CHECKING:
    from netcl.ops.matmul import Product

MR = 6  # rows of the register tile; its width is two vectors
VECTOR = {"float": 8, "double": 4}  # elements of a 256-bit vector
MASKS = {"float": "int", "double": "long"}  # integers as wide as an element
ACTS = {None: 0, "relu": 1, "gelu": 2, "silu": 3}
GRAIN = 1 << 20  # multiply-adds that are worth a work-item of their own
ITEMS_PER_UNIT = 4  # work-items per compute unit, so that a core that is late leaves little to wait for
OPTIONS = ("-cl-mad-enable",)
DIMS = struct.Struct("20q")  # Dims of matmul_cpu.cl
TYPES = (*(None,) * 5, *(INT64,) * 4, FLOAT32, np.dtype(f"V{DIMS.size}"))

Run = Callable[..., None]


def plan(queue: Any, p: Product) -> Run:
    """A function (queue, c, a, b, bias, offsets of c a b, alpha) that launches `p`."""
    if not is_float(p.dtype):
        return matmul_simple.plan(queue, p)
    profile = profile_of(queue)
    element = C_NAME[compute_dtype(p.dtype)]
    row = tuning.parameters("matmul_cpu", profile)
    size = compute_dtype(p.dtype).itemsize
    row["KC"] = row["KC"] * 4 // size
    source = program("matmul_cpu.cl", p.dtype, p.bias or p.activation is not None, **row)
    kernel = get_kernel(queue, source, "gemm", TYPES, OPTIONS)
    mc, nc = macro_tile(p.m, p.n, p.k, p.count, profile.compute_units, row["MC"], 2 * VECTOR[element])
    grid = (-(-p.m // mc), -(-p.n // nc), p.count)
    outer, inner = ((1, 0, 0, 0), (1, 0, 0, 0), *p.batch)[-2:]
    dims = DIMS.pack(
        p.m, p.n, p.k, *p.a, *p.b, p.c, mc, nc, inner[0], outer[1], inner[1], outer[2], inner[2], outer[3], inner[3],
        p.accumulate, ACTS[p.activation], p.bias,
    )  # fmt: skip
    partial = (p.count * p.m * p.n,) if p.dtype == FLOAT16 and p.k > row["KC"] else None

    def run(
        queue: Any, c: Tensor, a: Tensor, b: Tensor, bias: Tensor | None, oc: int, oa: int, ob: int, alpha: float
    ) -> None:
        part = c if partial is None else allocate(queue, partial, FLOAT32)
        extra = a if bias is None else bias
        launch(
            kernel, queue, grid, (1, 1, 1), c.buffer, part.buffer, a.buffer, b.buffer, extra.buffer,
            oc, oa, ob, extra.offset, alpha, dims,
        )  # fmt: skip

    return run


def program(file: str, dtype: DType, epilogue: bool, **defines: Any) -> str:
    """The text of panel_cpu.cl and `file` for a storage type, with the activations when there is an epilogue."""
    element = C_NAME[compute_dtype(dtype)]
    width = VECTOR[element]
    defines |= {"S": C_NAME[dtype], "E": element, "VW": width, "MASK": MASKS[element]}
    defines["VECTOR"] = f"{element}{width}"
    if not epilogue:
        return sources.load("panel_cpu.cl", file, **defines)
    functions = dialect.preamble(frozenset({"RELU", "GELU", "SILU"}), element, width, plain=True)
    return sources.load("panel_cpu.cl", file, preamble=functions, EPILOGUE=1, **defines)


def macro_tile(m: int, n: int, k: int, batch: int, units: int, most: int, panel: int) -> tuple[int, int]:
    """Rows and columns of C per work-item: enough items for every unit, none too small, blocks as even as possible.

    Columns are split first: every item copies its rows of A, which costs a share of 1 / nc, and its columns of B.
    """
    rows = -(-m // most)  # the copied block of A holds `most` rows
    wanted = min(max(1, batch * m * n * max(k, 1) // GRAIN), ITEMS_PER_UNIT * units)
    parts = max(1, -(-wanted // (rows * batch)))
    columns = min(parts, max(1, n // (4 * panel)) if rows * batch >= units else -(-n // panel))
    if rows * columns * batch < wanted:
        rows = min(max(rows, -(-wanted // (columns * batch))), -(-m // MR))
    mc = -(-m // (rows * MR)) * MR
    nc = -(-n // (columns * panel)) * panel
    return mc, nc
