"""Where a tensor is not zero, elements filled by a mask, elements taken along an axis with broadcasting."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from netcl.core import layout
from netcl.core.backend import cpu
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import BOOL, INT64, DType
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.layout import Shape
from netcl.core.live import sized_by_data
from netcl.core.protocols import Launch
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.kernels.grid import is_wide, like, line_of
from netcl.kernels.plans import remember
from netcl.ops import promotion
from netcl.ops.elementwise import Operand, contiguous, ne, where
from netcl.ops.index.pick import PLACES, gather, gather_program
from netcl.ops.index.scan import count_marked


def nonzero(x: Tensor) -> Tensor:
    """The positions of the elements that are not zero, in row-major order: int64 (count, axes of x). NaN is not zero.

    The length of the result depends on the data: on a device this waits for the queue to read the count.
    """
    return _found("nonzero", x)


def argwhere(x: Tensor) -> Tensor:
    """`nonzero` by its name in NumPy."""
    return _found("argwhere", x)


def _found(name: str, x: Tensor) -> Tensor:
    same_queue(name, x)
    sized_by_data(name, "find positions outside of the step, or use where with the mask")
    mask = contiguous(x if x.dtype == BOOL else ne(x, 0))
    if x.backend == "cpu":
        return cpu.compute(_numpy_nonzero, mask)
    count = count_marked(mask)
    out = allocate(x.queue, (int(count[-1:].item()) if x.size else 0, x.ndim), INT64)
    for axis in range(x.ndim if out.size else 0):
        key = ("nonzero", axis, *like(mask), *like(out))
        launch = remember(x.queue, key, partial(_places_plan, mask, out, axis, count.dtype))
        launch(mask=mask, count=count.buffer, out=out.buffer)
    return out


def _places_plan(mask: Tensor, out: Tensor, axis: int, count: DType) -> Launch[Tensor]:
    """The launch that writes the positions along one axis."""
    profile = profile_of(mask.queue)
    grid, local, step = line_of(profile, mask.size)
    made = gather_program(mask.queue, PLACES, 8, count, is_wide(profile, mask, out))
    facts = {"inner": layout.size_of(mask.shape[axis + 1 :]), "n": mask.shape[axis], "axis": axis, "axes": mask.ndim}
    return made.bind(grid, local, size=mask.size, step=step, **facts)


def _numpy_nonzero(mask: np.ndarray) -> np.ndarray:
    return np.argwhere(mask).astype(np.int64, copy=False)


def masked_fill(x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    """`value` where `mask` (bool) is true, else `x`, in the dtype of x. All broadcast; the value is a number
    or a tensor.

    Raises DTypeError for a mask that is not bool, or a value that the dtype of x does not hold.
    """
    check_fill(x, mask, value)
    return where(mask, value, x)


def check_fill(x: Any, mask: Any, value: Any) -> None:
    """Raise DTypeError or ShapeError unless masked_fill of these gives the dtype of `x`."""
    if mask.dtype != BOOL:
        raise DTypeError(f"masked_fill: expected a bool mask, got {mask.dtype}; compare with something, or astype.")
    shapes = (x.shape, mask.shape, *([value.shape] if hasattr(value, "shape") else []))
    layout.broadcast("masked_fill", *shapes)
    is_number = isinstance(value, np.generic) or not hasattr(value, "dtype")
    kind = promotion.kind("masked_fill", value) if is_number else value.dtype
    found = promotion.resolve("where", (BOOL, kind, x.dtype))[2]
    if found != x.dtype:
        got = type(value).__name__ if is_number else kind
        raise DTypeError(f"masked_fill: expected a value that {x.dtype} holds, got {got}; convert x with astype.")


def take_along_dim(x: Tensor, indices: Tensor, axis: int | None = None) -> Tensor:
    """Elements of `x` along `axis`, one per element of `indices`: `gather` where the other axes broadcast.

    Without an axis both are flattened, as in NumPy's take_along_axis. The gradient is added where it came from. Raises
    IndexOutOfRange for indices outside [-length, length), DTypeError, ShapeError.
    """
    if axis is None:
        return gather(x.reshape(-1), indices.reshape(-1), 0)
    seen, places = along(x.shape, indices.shape, axis)
    return gather(x.expand(seen), indices.expand(places), axis)


def along(shape: Shape, indices: Shape, axis: int) -> tuple[Shape, Shape]:
    """The shapes of x and indices after broadcasting all axes but one."""
    if len(shape) != len(indices):
        raise ShapeError(f"take_along_dim: expected indices of {len(shape)} axes, as x has, got shape {indices}.")
    axis = layout.as_axis("take_along_dim", axis, len(shape))
    off, past = slice(axis), slice(axis + 1, None)
    before = layout.broadcast("take_along_dim", shape[off], indices[off])
    after = layout.broadcast("take_along_dim", shape[past], indices[past])
    return (*before, shape[axis], *after), (*before, indices[axis], *after)
