"""How many operations a launch does, for the kernels where that is a formula of its arguments.

Products and convolutions take their sizes as one packed argument that begins with m, n, k (64-bit); the third axis of
the launch counts products (batch, or groups). Other kernels are limited by memory, where bytes say enough.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

Count = Callable[[Sequence[Any], Sequence[int]], float]


def product(args: Sequence[Any], size: Sequence[int]) -> float:
    """2 m n k a product."""
    dims = next((a for a in args if isinstance(a, bytes)), None)
    if dims is None:
        return 0
    m, n, k = struct.unpack_from("3q", dims)
    return 2.0 * m * n * k * (size[2] if len(size) > 2 else 1)


OPERATIONS: dict[str, Count] = {
    "gemm": product,
    "gemm_simple": product,
    "conv": product,
    "conv_weights": product,
}


def operations(kernel: str, args: Sequence[Any], size: Sequence[int]) -> float:
    """Operations of one launch, 0 where unknown."""
    count = OPERATIONS.get(kernel)
    return count(args, size) if count else 0
