"""How many operations a launch does, for the kernels where that is a formula of its arguments.

Products and convolutions take their sizes as one packed argument that begins with m, n, k: the structs called Dims and
Job in netcl/ops/kernels. What a launch computes several times (batch, groups), and into how many parts it divides k,
is in its axes and in that argument. Winograd counts the products it makes, not those it saves. Other kernels are
limited by memory, where bytes say enough.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

Count = Callable[[bytes, Sequence[int]], float]


def _sizes(dims: bytes) -> float:
    """2 m n k of 64-bit sizes."""
    return 2.0 * math.prod(map(int, struct.unpack_from("3q", dims)))


def _last_axis(dims: bytes, size: Sequence[int]) -> float:
    return _sizes(dims) * (size[-1] if len(size) > 1 else 1)


def _gemm(dims: bytes, size: Sequence[int]) -> float:
    """On GPUs the second of two axes counts products times parts."""
    parts = struct.unpack_from("i", dims, 15 * 8 + 3 * 4)[0] if len(size) == 2 else 1
    return _last_axis(dims, size) / parts


def _conv_weights(dims: bytes, size: Sequence[int]) -> float:
    """On GPUs the second of two axes counts groups times parts of `depth` pixels."""
    pixels, depth = struct.unpack_from("q", dims, 8)[0], struct.unpack_from("q", dims, 20 * 8)[0]
    return _last_axis(dims, size) / (-(-pixels // depth) if len(size) == 2 else 1)


def _gemm_mma(dims: bytes, size: Sequence[int]) -> float:
    m, n, k, _, _, _, parts = struct.unpack_from("7i", dims)
    return float(2.0 * m * n * k * size[1] / parts)


def _gemm_wgmma(dims: bytes, size: Sequence[int]) -> float:
    m, n, _, _, tiles_m, tiles_n, tiles, _, parts = struct.unpack_from("9i", dims, 64 * 4)
    one, other = struct.unpack_from("2i", dims, 64 * 4 + 17 * 4 + 12)  # rows and k of A, the axis in memory first
    return float(2.0 * m * n * (one if other == m else other) * tiles / (tiles_m * tiles_n * parts))


OPERATIONS: dict[str, Count] = {
    "gemm": _gemm,
    "gemm_simple": _last_axis,
    "gemm_mma": _gemm_mma,
    "gemm_wgmma": _gemm_wgmma,
    "conv": _last_axis,
    "conv_weights": _conv_weights,
    "winograd": _last_axis,
    "winograd_weights": _last_axis,
}


def operations(kernel: str, args: Sequence[Any], size: Sequence[int]) -> float:
    """Operations of one launch, 0 where unknown."""
    count, dims = OPERATIONS.get(kernel), next((a for a in args if isinstance(a, bytes)), None)
    return count(dims, size) if count and dims else 0
