"""Matrix products of integers and booleans, on every device: one work-item per element of the result."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from netcl.core.backend.opencl import launch
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import BOOL, C_NAME, INT64
from netcl.core.tensor import Tensor
from netcl.kernels import sources
from netcl.ops.product.problem import Product
from netcl.runtime.cache import get_kernel

DIMS = struct.Struct("16q")
TYPES = (*(None,) * 3, *(INT64,) * 4, np.dtype(f"V{DIMS.size}"))
GROUP = 64


def plan(queue: Any, p: Product) -> Any:
    """A function (queue, c, a, b, bias, offsets of c a b, alpha) that launches `p`."""
    source = sources.load("matmul_simple.cl", S=C_NAME[p.dtype], LOGICAL=int(p.dtype == BOOL))
    kernel = get_kernel(queue, source, "gemm_simple", TYPES)
    profile = profile_of(queue)
    group = 1 if profile.kind == "cpu" else profile.group(GROUP)
    outer, inner = ((1, 0, 0, 0), (1, 0, 0, 0), *p.batch)[-2:]
    dims = DIMS.pack(
        p.m,
        p.n,
        p.k,
        *p.a,
        *p.b,
        p.c,
        inner[0],
        outer[1],
        inner[1],
        outer[2],
        inner[2],
        outer[3],
        inner[3],
        p.accumulate,
    )
    grid = (-(-p.n // group) * group, p.m, p.count)

    def run(queue: Any, c: Tensor, a: Tensor, b: Tensor, bias: Any, oc: int, oa: int, ob: int, alpha: float) -> None:
        launch(kernel, queue, grid, (group, 1, 1), c.buffer, a.buffer, b.buffer, oc, oa, ob, int(alpha), dims)

    return run
