"""How products end in all GPU families: the epilogue, and adding the parts of a product whose k was divided."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from netcl.core.backend.opencl import launch
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import C_NAME, FLOAT32, INT64, compute_dtype
from netcl.core.kernels import dialect
from netcl.core.tensor import Tensor
from netcl.kernels import sources
from netcl.ops.product.problem import Product
from netcl.runtime.cache import get_kernel

PARTS = struct.Struct("6q4i")  # Parts of matmul_parts.cl
TYPES = (*(None,) * 3, *(INT64,) * 3, FLOAT32, np.dtype(f"V{PARTS.size}"))
GROUP = 256


def epilogue(bias: bool, activation: str | None, element: str) -> tuple[str, dict[str, int | str]]:
    """Text and defines of what happens to a result before it is stored: ACT(x) and whether there is a bias."""
    if not bias and activation is None:
        return "", {}
    name = "" if activation is None else activation.upper()
    return dialect.preamble(frozenset({name} - {""}), element, 1), {"EPILOGUE": 1, "ACT": name, "HAS_BIAS": int(bias)}


def ending(p: Product, element: str) -> tuple[str, dict[str, int | str]]:
    """`epilogue` of `p`, or ACCUMULATE."""
    return ("", {"ACCUMULATE": 1}) if p.accumulate else epilogue(p.bias, p.activation, element)


def batch_axes(p: Product) -> tuple[tuple[int, int, int, int], tuple[int, int, int, int]]:
    """The outer and the inner batch axis as (length, stride of A, of B, of C)."""
    outer, inner = ((1, 0, 0, 0), (1, 0, 0, 0), *p.batch)[-2:]
    return outer, inner


def sum_parts(queue: Any, p: Product, splits: int) -> Callable[..., None]:
    """A function (queue, c, parts, bias, offset of c, alpha, sums of A's rows) that finishes `p` from its parts.

    Those are (splits, batch, M, N) sums and, where `p` asks for them, (splits, M) sums of A's rows.
    """
    element = C_NAME[compute_dtype(p.dtype)]
    preamble, defines = epilogue(p.bias, p.activation, element)
    defines |= {"SUMS": 1} if p.sums else {}
    storage = element if p.wide else C_NAME[p.dtype]
    source = sources.load("matmul_parts.cl", preamble=preamble, S=storage, E=element, **defines)
    kernel = get_kernel(queue, source, "matmul_parts", (*TYPES, None) if p.sums else TYPES)
    size, group = p.m * p.n * p.count, profile_of(queue).group(GROUP)
    items = size + p.m if p.sums else size
    grid, (outer, inner) = (-(-items // group) * group,), batch_axes(p)
    record = PARTS.pack(p.m, p.n, size, p.c, outer[3], inner[3], inner[0], splits, p.accumulate, 0)

    def run(
        queue: Any, c: Tensor, part: Any, bias: Tensor, oc: int, alpha: float, sums: Tensor | None = None
    ) -> None:  # fmt: skip
        more = () if sums is None else (sums.buffer,)
        launch(kernel, queue, grid, (group,), c.buffer, part, bias.buffer, oc, bias.offset, size, alpha, record, *more)

    return run
