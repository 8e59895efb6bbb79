"""Moving elements: joining, splitting, padding, flipping, rolling, repeating. Views where possible, else copies."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_index
from typing import Any

import numpy as np

from netcl.core import layout
from netcl.core.backend import cpu
from netcl.core.dtypes import check_number, common_dtype
from netcl.core.errors import ShapeError
from netcl.core.layout import Shape
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.ops.elementwise import assign, copy

PAD_MODES = ("constant", "reflect", "replicate")


def _along(axis: int, start: int | None, stop: int | None, step: int | None = None) -> tuple[slice, ...]:
    """The key x[:, :, start:stop:step] that cuts `axis`."""
    return (slice(None),) * axis + (slice(start, stop, step),)


def concat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The tensors one after the other along `axis`; dtypes are promoted.

    Shapes: equal except along `axis`. One copy per tensor. Raises ShapeError otherwise, or when none is given.
    """
    tensors = list(tensors)
    if not tensors:
        raise ShapeError("concat: expected at least one tensor, got none.")
    queue = same_queue("concat", *tensors)
    axis = layout.as_axis("concat", axis, tensors[0].ndim)
    rests = {t.shape[:axis] + t.shape[axis + 1 :] for t in tensors}
    if len(rests) > 1 or any(t.ndim != tensors[0].ndim for t in tensors):
        shapes = ", ".join(str(t.shape) for t in tensors)
        raise ShapeError(f"concat: expected shapes that differ only along axis {axis}, got {shapes}.")
    dtype = common_dtype(*[t.dtype for t in tensors])
    if tensors[0].backend == "cpu":
        return cpu.compute(_concatenate, *tensors, axis=axis, dtype=dtype)
    shape = list(tensors[0].shape)
    shape[axis] = sum(t.shape[axis] for t in tensors)
    out, start = allocate(queue, tuple(shape), dtype), 0
    for t in tensors:
        assign(out[_along(axis, start, start + t.shape[axis])], t)
        start += t.shape[axis]
    return out


def _concatenate(*arrays: np.ndarray, axis: int, dtype: Any) -> np.ndarray:
    return np.concatenate([a.astype(dtype, copy=False) for a in arrays], axis)


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The tensors side by side along a new `axis`; all of one shape."""
    tensors = list(tensors)
    if not tensors:
        raise ShapeError("stack: expected at least one tensor, got none.")
    same_queue("stack", *tensors)
    if len({t.shape for t in tensors}) > 1:
        raise ShapeError(f"stack: expected equal shapes, got {', '.join(str(t.shape) for t in tensors)}.")
    axis = layout.as_axis("stack", axis, tensors[0].ndim + 1)
    return concat([t.unsqueeze(axis) for t in tensors], axis)


def split(x: Tensor, sizes: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
    """Views of consecutive parts along `axis`: parts of the given size (the last may be shorter) or of given sizes."""
    axis = layout.as_axis("split", axis, x.ndim)
    parts, start = [], 0
    for n in part_sizes(x.shape[axis], sizes):
        parts.append(x[_along(axis, start, start + n)])
        start += n
    return tuple(parts)


def part_sizes(length: int, sizes: Any) -> list[int]:
    """The lengths of the parts that an axis is split into."""
    if not isinstance(sizes, (tuple, list)):
        size = layout.as_int("split", sizes, "sizes", 1)
        return [min(size, length - i) for i in range(0, max(length, 1), size)]  # of nothing, one part
    lengths = [layout.as_int("split", n, "sizes") for n in sizes]
    if min(lengths, default=0) < 0 or sum(lengths) != length:
        raise ShapeError(f"split: expected sizes that add up to {length}, got {tuple(lengths)}.")
    return lengths


def chunk(x: Tensor, chunks: int, axis: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` views of equal size along `axis` (the last may be shorter)."""
    axis = layout.as_axis("chunk", axis, x.ndim)
    return split(x, chunk_size(x.shape[axis], chunks), axis)


def chunk_size(length: int, chunks: int) -> int:
    """The length of the parts that make at most `chunks` of an axis."""
    return max(1, -(-length // layout.as_int("chunk", chunks, "chunks", 1)))


def flip(x: Tensor, axis: Any = None) -> Tensor:
    """A copy reversed along `axis` (an axis, several, or all)."""
    axes = layout.as_axes("flip", axis, x.ndim)
    return copy(x[tuple(slice(None, None, -1 if a in axes else None) for a in range(x.ndim))])


def roll(x: Tensor, shift: int | Sequence[int], axis: Any = None) -> Tensor:
    """A copy moved by `shift` along `axis`, what falls off the end coming back at the start; without an axis, flat."""
    if axis is None:
        if not isinstance(shift, (int, np.integer)):
            raise ShapeError(f"roll: expected one shift when no axis is given, got {shift!r}.")
        return roll(x.reshape(-1), shift, 0).reshape(x.shape)
    axes: list[Any] = list(axis) if isinstance(axis, (tuple, list)) else [axis]
    shifts: list[Any] = list(shift) if isinstance(shift, (tuple, list)) else [shift] * len(axes)
    if len(shifts) != len(axes):
        raise ShapeError(f"roll: expected as many shifts as axes, got {len(shifts)} and {len(axes)}.")
    for s, a in zip(shifts, axes, strict=True):
        a = layout.as_axis("roll", a, x.ndim)
        n = layout.as_int("roll", s, "shift") % x.shape[a] if x.shape[a] else 0
        if n:
            x = concat([x[_along(a, -n, None)], x[_along(a, None, -n)]], a)
    return copy(x)


def repeat(x: Tensor, repeats: int, axis: int | None = None) -> Tensor:
    """Each element `repeats` times in place along `axis` (NumPy's repeat); without an axis the tensor is flattened."""
    check_repeats("repeat", repeats)
    if axis is None:
        return repeat(x.reshape(-1), repeats, 0)
    axis = layout.as_axis("repeat", axis, x.ndim)
    wide = x.unsqueeze(axis + 1).expand(*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :])
    return copy(wide).reshape(*x.shape[:axis], x.shape[axis] * repeats, *x.shape[axis + 1 :])


def check_repeats(where: str, *repeats: int) -> None:
    """Raise unless each is a whole number from 0 on."""
    for n in repeats:
        layout.as_int(where, n, "repeats", 0)


def tiling_of(shape: Shape, repeats: int | Sequence[int]) -> tuple[Shape, Shape]:
    """`shape` and `repeats` filled up with ones at the front to one rank."""
    times = tuple(repeats) if isinstance(repeats, (tuple, list)) else (repeats,)
    check_repeats("tile", *times)
    rank = max(len(times), len(shape))
    return (1,) * (rank - len(shape)) + shape, (1,) * (rank - len(times)) + times


def tile(x: Tensor, repeats: int | Sequence[int]) -> Tensor:
    """The whole tensor `repeats[i]` times along axis i (NumPy's tile)."""
    shape, times = tiling_of(x.shape, repeats)
    pairs = x.reshape(*[n for m in shape for n in (1, m)])
    wide = pairs.expand(*[n for m, r in zip(shape, times, strict=True) for n in (r, m)])
    return copy(wide).reshape(*[m * r for m, r in zip(shape, times, strict=True)])


def pad(x: Tensor, widths: Any, mode: str = "constant", value: float = 0.0) -> Tensor:
    """`x` with `widths` = ((before, after), ...) more elements on its last axes; negative widths cut.

    mode: "constant" (filled with `value`), "reflect" (mirrored without the edge; needs width < length) or "replicate"
    (the edge repeated). Raises ShapeError for widths that do not fit.
    """
    cut, pairs = padding_of(x.shape, widths, mode)
    x = x[cut]
    check_number("pad", value, x.dtype)
    if mode == "constant":
        return _pad_constant(x, pairs, value)
    for axis, (before, after) in enumerate(pairs):
        if before or after:
            x = concat(_edges(x, axis, before, after, mode), axis)
    return copy(x)


def padding_of(shape: Shape, widths: Any, mode: str) -> tuple[tuple[slice, ...], tuple[tuple[int, int], ...]]:
    """What of an array of `shape` stays, and the (before, after) to put on each axis then."""
    if mode not in PAD_MODES:
        raise ValueError(f"pad: expected a mode of {', '.join(PAD_MODES)}, got {mode!r}.")
    pairs = _pairs(widths, len(shape))
    if any(before + n + after < 0 for (before, after), n in zip(pairs, shape, strict=True)):
        raise ShapeError(f"pad: expected widths that leave at least nothing of {shape}, got {pairs}.")
    cut = tuple(slice(max(-b, 0), n - max(-a, 0)) for (b, a), n in zip(pairs, shape, strict=True))
    return cut, tuple((max(b, 0), max(a, 0)) for b, a in pairs)


def _pairs(widths: Any, ndim: int) -> tuple[tuple[int, int], ...]:
    if isinstance(widths, (int, np.integer)):
        return ((int(widths), int(widths)),) * ndim
    try:
        pairs = tuple((as_index(b), as_index(a)) for b, a in widths)
    except (TypeError, ValueError):
        raise ShapeError(
            f"pad: expected widths as an int or ((before, after), ...), got {layout.shown(widths)}."
        ) from None
    if len(pairs) > ndim:
        raise ShapeError(f"pad: expected widths for at most {ndim} axes, got {len(pairs)}.")
    return ((0, 0),) * (ndim - len(pairs)) + pairs


def _pad_constant(x: Tensor, pairs: tuple[tuple[int, int], ...], value: float) -> Tensor:
    if not pairs:
        return copy(x)
    if x.backend == "cpu":
        return cpu.compute(_numpy_pad, x, pairs=pairs, value=value)
    shape = tuple(b + n + a for (b, a), n in zip(pairs, x.shape, strict=True))
    out = Tensor.full(x.queue, shape, value, x.dtype)
    if x.size:
        assign(out[tuple(slice(b, b + n) for (b, _), n in zip(pairs, x.shape, strict=True))], x)
    return out


def _numpy_pad(x: np.ndarray, pairs: tuple[tuple[int, int], ...], value: float) -> np.ndarray:
    return np.pad(x, pairs, constant_values=value)


def _edges(x: Tensor, axis: int, before: int, after: int, mode: str) -> list[Tensor]:
    """The parts that make up the padded axis."""
    n = x.shape[axis]
    if mode == "reflect":
        if max(before, after) >= n:
            raise ShapeError(
                f"pad: expected reflect widths below the length {n} of axis {axis}, got {(before, after)}."
            )
        first = x[_along(axis, before, 0, -1)] if before else x[_along(axis, 0, 0)]
        last = x[_along(axis, n - 2, n - 2 - after if n - 2 - after >= 0 else None, -1)]
        last = last if after else x[_along(axis, 0, 0)]
    else:
        if n == 0:
            raise ShapeError(f"pad: expected something to replicate on axis {axis}, got length 0.")
        shape = list(x.shape)
        shape[axis] = before
        first = x[_along(axis, 0, 1)].expand(*shape)
        shape[axis] = after
        last = x[_along(axis, n - 1, n)].expand(*shape)
    return [first, x, last]
