"""What changes the scores of attention beside causal and window: its tensors, checked, and their gradients."""

from __future__ import annotations

import math
from typing import NamedTuple

from netcl.core.dtypes import BOOL, UINT8, DType, compute_dtype, is_float
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.layout import Shape
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor
from netcl.ops import elementwise, reduction
from netcl.ops.attend.bounds import bounds_of
from netcl.ops.attend.problem import BiasGrad, Geometry, Marks, Settings


class Given(NamedTuple):
    """The tensors as they were given, in the order of the gradients."""

    mask: Tensor | None = None
    sinks: Tensor | None = None
    slopes: Tensor | None = None


def marks_of(where: str, queue: Queue, x: Geometry, dtype: DType, given: Given, s: Settings) -> Marks:
    """The tensors as kernels read them. Raises ShapeError and DTypeError as `attention` says."""
    padding = s.key_padding_mask
    if padding is not None and padding.shape != (x.batch, x.keys):
        raise ShapeError(f"{where}: expected key_padding_mask of shape ({x.batch}, {x.keys}), got {padding.shape}.")
    if padding is not None and padding.dtype not in (BOOL, UINT8):
        raise DTypeError(f"{where}: expected a bool key_padding_mask, got {padding.dtype}; compare it with 0 first.")
    mask = None if given.mask is None else _mask(where, x, dtype, given.mask)
    sinks = None if given.sinks is None else _per_head(where, "sinks", dtype, given.sinks, ((x.heads,),))
    slopes = given.slopes
    if slopes is not None:
        slopes = _per_head(where, "alibi_slopes", dtype, slopes, ((x.heads,), (x.batch, x.heads)))
        slopes = slopes if slopes.ndim == 2 else slopes[None]
    return Marks(None if padding is None else _rows(padding), mask, sinks, slopes, bounds_of(where, queue, x, s))


def _mask(where: str, x: Geometry, dtype: DType, mask: Tensor) -> Tensor:
    """The mask with four axes, each whole or of one element."""
    whole = (x.batch, x.heads, x.queries, x.keys)
    shape = (1,) * (4 - mask.ndim) + mask.shape
    if mask.ndim > 4 or any(n not in (1, all_) for n, all_ in zip(shape, whole)):
        raise ShapeError(f"{where}: expected a mask that broadcasts to (B, H, Tq, Tk) = {whole}, got {mask.shape}.")
    if mask.dtype != BOOL and not is_float(mask.dtype):
        raise DTypeError(
            f"{where}: expected a mask of bools, true where a key is seen, or of floats to add, got {mask.dtype}; "
            "compare it with 0 first."
        )
    if mask.dtype not in (BOOL, dtype):
        mask = mask.astype(compute_dtype(dtype))
    for _ in range(4 - mask.ndim):
        mask = mask[None]
    return mask


def _per_head(where: str, name: str, dtype: DType, t: Tensor, shapes: tuple[Shape, ...]) -> Tensor:
    """A tensor with a number per head, contiguous and in the compute dtype."""
    if t.shape not in shapes:
        raise ShapeError(f"{where}: expected {name} of shape {' or '.join(map(str, shapes))}, got {t.shape}.")
    if not is_float(t.dtype):
        raise DTypeError(f"{where}: expected floating {name}, got {t.dtype}; convert them with astype.")
    return t.astype(compute_dtype(dtype)).contiguous()


def _rows(t: Tensor) -> Tensor:
    """`t` itself when the elements of its last axis are neighbours, else a contiguous copy."""
    return t if t.shape[-1] == 1 or t.strides[-1] == 1 else t.contiguous()


# -- gradients ---------------------------------------------------------------------------------------------------------


def sums_of(x: Geometry, marks: Marks, needs: tuple[bool, ...]) -> dict[str, BiasGrad]:
    """The sums that the gradients of a mask and of slopes are made of, where they are wanted."""
    found = {}
    if needs[0] and marks.mask is not None and marks.mask.dtype != BOOL:
        samples, heads, queries, keys = marks.mask.shape
        if (queries, keys) == (x.queries, x.keys):
            shape = samples, heads, queries, keys
        else:
            shape = (x.batch, x.heads, 1, x.keys) if keys > 1 else (x.batch, x.heads, x.queries, 1)
        found["mask"] = BiasGrad(shape, False)
    if needs[2] and marks.slopes is not None:
        found["slopes"] = BiasGrad((x.batch, x.heads, x.queries, 1), True)
    return found


def gradients(
    given: Given, sums: dict[str, Tensor], lse: Tensor, delta: Tensor, needs: tuple[bool, ...]
) -> list[Tensor | None]:
    """Those of mask, sinks and slopes, from the sums of `sums_of` and the dots of g and o."""
    found: list[Tensor | None] = [None, None, None]
    for i, name in ((0, "mask"), (2, "slopes")):
        t = given[i]
        if name in sums and t is not None:
            total = sums[name] if name == "mask" else sums[name].reshape(sums[name].shape[:3])
            found[i] = _added_up(total if name == "mask" else reduction.sum(total, 2), t.shape).astype(t.dtype)
    if needs[1] and given.sinks is not None:
        sinks = given.sinks.astype(lse.dtype).reshape(1, -1, 1)
        p = elementwise.where(lse == -math.inf, 0.0, elementwise.exp(sinks - lse))
        found[1] = (-reduction.sum(p * delta, (0, 2))).astype(given.sinks.dtype)
    return found


def _added_up(t: Tensor, shape: Shape) -> Tensor:
    """The sum of `t` over the axes along which `shape` was broadcast to it."""
    aligned = (1,) * (t.ndim - len(shape)) + shape
    axes = tuple(axis for axis, (n, m) in enumerate(zip(t.shape, aligned)) if n != m)
    return (reduction.sum(t, axes) if axes else t).reshape(shape)
