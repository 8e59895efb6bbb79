"""What a norm is to the kernels: checks, element types, sizes of rows, and what a plan depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from netcl.core.dtypes import FLOAT32, NARROW, DType, compute_dtype, is_float
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.layout import Shape, size_of
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor, same_queue
from netcl.kernels import route

Needs = Sequence[bool]
Optional = Tensor | None
Normed = tuple[Tensor, Tensor, Tensor]  # y, mean and rstd


class Types(NamedTuple):
    """Element types of x and y, of sums, and of weight and bias as kernels meet them."""

    stored: DType
    compute: DType
    parameters: DType


class Rows(NamedTuple):
    """`rows` rows of `n` elements; of group norm `groups` a sample, each `per` channels of `span` elements."""

    rows: int
    n: int
    groups: int = 1
    per: int = 0
    span: int = 1

    @property
    def stretch(self) -> int:
        """Elements that kernels walk over at once: a row, or a channel of group norm."""
        return self.span if self.per else self.n


def types_of(x: Tensor, *parameters: Optional) -> Types:
    """Weight and bias stay as they are where all are of one narrow type; else they come in the compute dtype."""
    compute = compute_dtype(x.dtype)
    given = {p.dtype for p in parameters if p is not None}
    narrow = len(given) == 1 and compute == FLOAT32 and given <= {*NARROW}
    return Types(x.dtype, compute, given.pop() if narrow else compute)


def sizes_of(x: Tensor) -> tuple[int, int, int]:
    """(N, C, elements per sample and channel)."""
    return x.shape[0], x.shape[1], size_of(x.shape[2:])


def layouts(queue: Queue, *tensors: Optional) -> tuple[Any, ...]:
    """What the plan of a norm on `queue` depends on, and whether the tensors are on it."""
    return route.mode, *(
        [None if t is None else (t.shape, t.strides, t.dtype, t.offset & 3, t.queue is queue) for t in tensors]
    )


def prepared(p: Optional, dtype: DType, stand_in: Tensor) -> Tensor:
    """`p` contiguous in `dtype`; a stand-in that is not read when it is None."""
    return stand_in if p is None else p.astype(dtype).contiguous()


def begins_aligned(t: Optional, dtype: DType) -> bool:
    """Whether `prepared(t, dtype, ...)` begins at a multiple of four elements; copies do."""
    return t is None or t.offset % 4 == 0 or t.dtype != dtype or not t.is_contiguous


def flags_of(**present: Any) -> tuple[str, ...]:
    """The names whose value is true."""
    return tuple(name for name, value in present.items() if value)


# -- checks ------------------------------------------------------------------------------------------------------------


def check_float(where: str, x: Tensor) -> DType:
    """The compute dtype of float tensor `x`. Raises DTypeError for other dtypes."""
    if not is_float(x.dtype):
        raise DTypeError(f"{where}: expected a float tensor, got {x.dtype}; use astype first.")
    return compute_dtype(x.dtype)


def check_same(where: str, name: str, g: Tensor, x: Tensor) -> None:
    """Raise unless gradient `g` has the shape of `x`."""
    if g.shape != x.shape:
        raise ShapeError(f"{where}: expected {name} of shape {x.shape} like x, got {g.shape}.")


def check_affine(where: str, shape: Shape, weight: Optional, bias: Optional, *others: Optional) -> None:
    """Raise unless weight and bias are None or float tensors of `shape`, and all tensors on one queue."""
    check_parameter(where, "weight", weight, shape)
    check_parameter(where, "bias", bias, shape)
    same_queue(where, *[t for t in (*others, weight, bias) if t is not None])


def check_parameter(where: str, name: str, p: Optional, shape: Shape) -> None:
    """Raise unless weight or bias `p` is None or a float tensor of `shape`."""
    if p is None:
        return
    if p.shape != shape:
        raise ShapeError(f"{where}: expected {name} of shape {shape}, got {p.shape}.")
    if not is_float(p.dtype):
        raise DTypeError(f"{where}: expected a float {name}, got {p.dtype}; use astype first.")
