"""What a matrix product is to the kernels: sizes, strides and batch axes, described once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from netcl.core import layout
from netcl.core.dtypes import DType
from netcl.core.kernels import primitives
from netcl.core.tensor import Tensor

ACTIVATIONS = ("relu", "gelu", "silu")  # what an epilogue can apply, by the names of the primitive table


assert all(name in primitives.TABLE for name in ACTIVATIONS)


@dataclass(frozen=True)
class Product:
    """C[z] = A[z] B[z] for every batch index z: sizes and strides in elements, and the alignment of the data.

    `batch` holds (length, stride of A, stride of B, stride of C) of at most two axes, outermost first.
    """

    m: int
    n: int
    k: int
    a: tuple[int, int]  # strides along M and K
    b: tuple[int, int]  # strides along K and N
    c: int  # stride along M; along N it is 1
    batch: tuple[tuple[int, int, int, int], ...]
    dtype: DType
    activation: str | None = None
    bias: bool = False
    accumulate: bool = False
    starts: tuple[int, int, int] = (8, 8, 8)  # the first elements of A, B and C lie at multiples of these (8 at most)
    mask: bool = False  # A counts only where a tensor laid out like it is positive
    sums: bool = False  # the sums of A's rows come out as well
    wide: bool = False  # C is of the compute type: float where A and B are half (on GPUs, without a bias)
    keep: bool = False  # what goes into the activation comes out as well, laid out like C (on CPU devices)

    @property
    def count(self) -> int:
        """Number of matrices."""
        return layout.size_of(tuple(axis[0] for axis in self.batch))


def describe(
    a: Tensor, b: Tensor, c: Tensor, activation: str | None, bias: bool, accumulate: bool
) -> list[tuple[tuple[int, int, int], Product]]:
    """The product as one `Product`, or several with (a, b, c) offsets where the batch needs more than two axes."""
    lead = c.shape[:-2]
    strides = [layout.expand_strides(t.shape[:-2], t.strides[:-2], lead) for t in (a, b)]
    axes = _merge([(n, *s) for n, *s in zip(lead, *strides, c.strides[:-2])])
    outer, inner = axes[:-2], axes[-2:]
    (sam, sak), (sbk, sbn) = a.strides[-2:], b.strides[-2:]
    start_a, start_b, start_c = (
        math.gcd(8, t.offset, *(axis[i] for axis in outer)) for t, i in ((a, 1), (b, 2), (c, 3))
    )
    base = Product(
        c.shape[-2], c.shape[-1], a.shape[-1], (sam, sak), (sbk, sbn), c.strides[-2], tuple(inner), a.dtype, activation,
        bias, accumulate, (start_a, start_b, start_c), wide=c.dtype != a.dtype,
    )  # fmt: skip
    offsets = [(0, 0, 0)]
    for n, *steps in outer:
        offsets = [tuple(o + i * s for o, s in zip(base_, steps)) for base_ in offsets for i in range(n)]  # type: ignore[misc]
    return [(o, base) for o in offsets]


def _merge(axes: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Batch axes with those of length one dropped, and neighbours that walk memory as one axis joined."""
    merged: list[tuple[int, int, int, int]] = []
    for n, *steps in (axis for axis in axes if axis[0] != 1):
        if merged and all(p == s * n for p, s in zip(merged[-1][1:], steps)):
            merged[-1] = (merged[-1][0] * n, *steps)  # type: ignore[assignment]
        else:
            merged.append((n, *steps))  # type: ignore[arg-type]
    return merged
