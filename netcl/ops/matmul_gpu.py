"""Matrix products on GPUs: geometry and launch of matmul_gpu.cl."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from netcl.core.backend.opencl import launch
from netcl.core.dtypes import C_NAME, FLOAT32, INT64, compute_dtype, is_float
from netcl.core.kernels import dialect
from netcl.core.profile import profile_of
from netcl.core.tensor import Tensor
from netcl.ops import matmul_simple, sources, tuning
from netcl.runtime.cache import get_kernel

if TYPE_CHECKING:
    from netcl.ops.matmul import Product

ACTS = {None: 0, "relu": 1, "gelu": 2, "silu": 3}
OPTIONS = ("-cl-mad-enable",)
DIMS = struct.Struct("18q")  # Dims of matmul_gpu.cl
TYPES = (*(None,) * 4, *(INT64,) * 4, FLOAT32, np.dtype(f"V{DIMS.size}"))


def plan(queue: Any, p: Product) -> Any:
    """A function (queue, c, a, b, bias, offsets of c a b, alpha) that launches `p`."""
    if not is_float(p.dtype):
        return matmul_simple.plan(queue, p)
    row = tuning.parameters("matmul_gpu", profile_of(queue))
    element = C_NAME[compute_dtype(p.dtype)]
    defines: dict[str, Any] = {"S": C_NAME[p.dtype], "E": element, **row}
    functions = ""
    if p.bias or p.activation is not None:
        functions, defines["EPILOGUE"] = dialect.preamble(frozenset({"RELU", "GELU", "SILU"}), element, 1), 1
    kernel = get_kernel(queue, sources.load("matmul_gpu.cl", preamble=functions, **defines), "gemm", TYPES, OPTIONS)
    items = (row["BN"] // row["RN"], row["BM"] // row["RM"])
    grid = (-(-p.n // row["BN"]) * items[0], -(-p.m // row["BM"]) * items[1], p.count)
    outer, inner = ((1, 0, 0, 0), (1, 0, 0, 0), *p.batch)[-2:]
    dims = DIMS.pack(
        p.m, p.n, p.k, *p.a, *p.b, p.c, inner[0], outer[1], inner[1], outer[2], inner[2], outer[3], inner[3],
        p.accumulate, ACTS[p.activation], p.bias,
    )  # fmt: skip

    def run(
        queue: Any, c: Tensor, a: Tensor, b: Tensor, bias: Tensor | None, oc: int, oa: int, ob: int, alpha: float
    ) -> None:
        extra = a if bias is None else bias
        launch(
            kernel, queue, grid, (*items, 1), c.buffer, a.buffer, b.buffer, extra.buffer,
            oc, oa, ob, extra.offset, alpha, dims,
        )  # fmt: skip

    return run
