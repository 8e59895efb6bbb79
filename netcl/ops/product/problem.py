"""What a matrix product is to the kernels: sizes, strides and batch axes, described once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from netcl.core import layout
from netcl.core.dtypes import DType
from netcl.core.kernels import primitives
from netcl.core.tensor import Tensor
from netcl.kernels.route import declare

MATMUL = declare("matmul", "wgmma", "mma", "tiled", "naive")
ACTIVATIONS = ("relu", "gelu", "silu")  # what an epilogue can apply, by the names of the primitive table


FROM_RESULT = (None, "relu")  # activations whose gradient follows from the result; others read what goes into them
OTHER_FACTOR: dict[int | str, tuple[int, ...]] = {0: (1,), 1: (0,)}  # each is read by the gradient of the other

assert all(name in primitives.TABLE for name in ACTIVATIONS)


class Run(Protocol):
    """What computes a planned product: C = activation(alpha A B + bias), with what the plan asks for besides."""

    def __call__(
        self,
        c: Tensor,
        a: Tensor,
        b: Tensor,
        *,
        bias: Tensor | None = None,
        alpha: float = 1.0,
        mask: Tensor | None = None,
        sums: Tensor | None = None,
    ) -> None: ...


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

    # The outer and the inner batch axis as (length, stride of A, of B, of C), where those missing have one matrix; the
    # number of matrices; sizes and strides as the records of kernels for any device name them.
    axes: tuple[tuple[int, int, int, int], tuple[int, int, int, int]] = field(init=False, repr=False, compare=False)
    count: int = field(init=False, repr=False, compare=False)
    fields: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        outer, inner = ((1, 0, 0, 0), (1, 0, 0, 0), *self.batch)[-2:]
        sizes = {"M": self.m, "N": self.n, "K": self.k, "inner": inner[0], "c_m": self.c}
        (a_m, a_k), (b_k, b_n) = self.a, self.b
        strides = {"a_m": a_m, "a_k": a_k, "b_k": b_k, "b_n": b_n}
        steps = {f"{name}{axis}": x[i] for i, name in enumerate("abc", 1) for axis, x in enumerate((outer, inner))}
        count = math.prod([axis[0] for axis in self.batch])
        vars(self).update(axes=(outer, inner), count=count, fields={**sizes, **strides, **steps})

    @property
    def partial_fields(self) -> dict[str, int]:
        """`fields` with a contiguous C, as parts of a product whose k is divided have it."""
        inner = self.axes[1][0]
        return {**self.fields, "c_m": self.n, "c0": inner * self.m * self.n, "c1": self.m * self.n}

    @property
    def contiguous(self) -> bool:
        """Whether C is, with its batch axes."""
        (outer, *_, c0), (inner, *_, c1) = self.axes
        size = self.m * self.n
        return (self.m == 1 or self.c == self.n) and (inner == 1 or c1 == size) and (outer == 1 or c0 == inner * size)


class Call(NamedTuple):
    """A call of `gemm`: out = activation(alpha a b + bias), or out += alpha a b with `accumulate`."""

    a: Tensor
    b: Tensor
    out: Tensor | None = None
    bias: Tensor | None = None
    activation: str | None = None
    alpha: float = 1.0
    accumulate: bool = False


def describe(
    a: Tensor, b: Tensor, c: Tensor, activation: str | None, bias: bool, accumulate: bool
) -> list[tuple[tuple[int, int, int], Product]]:
    """The product as one `Product`, or several with (a, b, c) offsets where the batch needs more than two axes."""
    lead = c.shape[:-2]
    axes: list[tuple[int, int, int, int]] = []
    if lead:
        strides = [layout.expand_strides(t.shape[:-2], t.strides[:-2], lead) for t in (a, b)]
        axes = _merge([(n, *s) for n, *s in zip(lead, *strides, c.strides[:-2])])
    outer, inner = axes[:-2], axes[-2:]
    (sam, sak), (sbk, sbn) = a.strides[-2:], b.strides[-2:]
    start_a, start_b, start_c = [
        math.gcd(8, t.offset, *[axis[i] for axis in outer]) for t, i in ((a, 1), (b, 2), (c, 3))
    ]
    steps = ((sam, sak), (sbk, sbn), c.strides[-2], tuple(inner))
    epilogue = (activation, bias, accumulate, (start_a, start_b, start_c))
    base = Product(c.shape[-2], c.shape[-1], a.shape[-1], *steps, a.dtype, *epilogue, wide=c.dtype != a.dtype)
    offsets = [(0, 0, 0)]
    for n, sa, sb, sc in outer:
        offsets = [(oa + i * sa, ob + i * sb, oc + i * sc) for oa, ob, oc in offsets for i in range(n)]
    return [(o, base) for o in offsets]


def _merge(axes: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Batch axes with those of length one dropped, and neighbours that walk memory as one axis joined."""
    merged: list[tuple[int, int, int, int]] = []
    for n, sa, sb, sc in (axis for axis in axes if axis[0] != 1):
        before = merged.pop() if merged and merged[-1][1:] == (sa * n, sb * n, sc * n) else (1,)
        merged.append((before[0] * n, sa, sb, sc))
    return merged
