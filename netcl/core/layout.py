"""Shapes, strides and offsets: the arithmetic behind zero-copy views. Strides and offsets count elements, not bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from operator import index as as_index
from typing import Any

import numpy as np

from netcl.core.errors import DTypeError, IndexOutOfRange, ShapeError

Shape = tuple[int, ...]


@lru_cache(maxsize=4096)
def size_of(shape: Shape) -> int:
    """Number of elements of `shape`."""
    return math.prod(shape)


@lru_cache(maxsize=4096)
def contiguous_strides(shape: Shape) -> Shape:
    """Row-major strides of `shape`."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


@lru_cache(maxsize=4096)
def extent(shape: Shape) -> tuple[int, Shape]:
    """`size_of` and `contiguous_strides` of `shape`, for memory that is to hold it."""
    strides, size, step = [], 1, 1
    for n in reversed(shape):
        strides.append(step)
        size, step = size * n, step * (n or 1)
    return size, tuple(reversed(strides))


@lru_cache(maxsize=4096)
def is_contiguous(shape: Shape, strides: Shape) -> bool:
    """Whether the elements lie one after the other in row-major order (axes of length one do not matter)."""
    step = 1
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        if n == 0:
            return True
        if n != 1:
            if s != step:
                return False
            step *= n
    return True


def repeats(shape: Shape, strides: Shape) -> bool:
    """Whether several elements lie in one place of memory, as in an expanded tensor."""
    return any(s == 0 and n > 1 for n, s in zip(shape, strides, strict=True)) and 0 not in shape


def as_shape(where: str, shape: Any) -> Shape:
    """`shape` as a tuple of ints: an int, or any sequence of them. Negative lengths are refused."""
    try:
        result = (as_index(shape),) if not isinstance(shape, Sequence) else tuple(as_index(n) for n in shape)
    except TypeError:
        raise ShapeError(f"{where}: expected a shape of integers, got {shape!r}.") from None
    if any(n < 0 for n in result):
        raise ShapeError(f"{where}: expected lengths of at least 0, got {result}.")
    return result


def shown(value: Any) -> str:
    """`value` as messages show it: by its type where it is long."""
    return repr(value) if isinstance(value, (int, float, str, tuple, list, type(None))) else type(value).__name__


def as_int(where: str, value: Any, name: str = "", least: int | None = None) -> int:
    """`value`, the argument `name`, as an int.

    Raises DTypeError for what is no whole number, such as 1.5 and also 1.0, and ShapeError below `least`.
    """
    try:
        number = as_index(value)
    except TypeError:
        wanted = f"{name} as a whole number" if name else "a whole number"
        raise DTypeError(f"{where}: expected {wanted} (int), got {shown(value)}.") from None
    if least is not None and number < least:
        raise ShapeError(f"{where}: expected {name} of at least {least}, got {number}.")
    return number


def as_ints(where: str, values: Any, name: str) -> tuple[int, ...]:
    """`values`, the argument `name`, as ints. Raises DTypeError for what is no sequence of whole numbers."""
    try:
        return tuple([as_index(n) for n in values])
    except TypeError:
        raise DTypeError(f"{where}: expected {name} as whole numbers (int), got {shown(values)}.") from None


def flat_ints(where: str, values: tuple[Any, ...], name: str) -> tuple[int, ...]:
    """f(2, 3) and f((2, 3)) alike."""
    one = len(values) == 1 and not isinstance(values[0], (int, np.integer))
    return as_ints(where, values[0] if one else values, name)


def as_axis(where: str, axis: Any, ndim: int) -> int:
    """`axis` counted from the front. Raises ShapeError outside [-ndim, ndim)."""
    position = as_int(where, axis, "an axis")
    if not -ndim <= position < ndim:
        raise ShapeError(f"{where}: expected an axis in [{-ndim}, {ndim}) for {ndim} axes, got {position}.")
    return position % ndim


def as_axes(where: str, axes: Any, ndim: int) -> tuple[int, ...]:
    """`axes` (None for all, an int, or a sequence) as sorted axes from the front; repeats are refused."""
    if axes is None:
        return tuple(range(ndim))
    given = axes if isinstance(axes, Sequence) and not isinstance(axes, str) else (axes,)
    result = tuple(sorted(as_axis(where, a, ndim) for a in given))
    if len(set(result)) != len(result):
        raise ShapeError(f"{where}: expected each axis once, got {tuple(given)}.")
    return result


@lru_cache(maxsize=4096)
def broadcast_shapes(*shapes: Shape) -> Shape:
    """The shape that `shapes` broadcast to by NumPy's rule. Raises ValueError where they do not."""
    result: list[int] = []
    for i in range(max(map(len, shapes), default=0)):
        lengths = {s[-1 - i] for s in shapes if i < len(s)} - {1}
        if len(lengths) > 1:
            raise ValueError("shapes do not broadcast")
        result.append(lengths.pop() if lengths else 1)
    return tuple(reversed(result))


def broadcast(where: str, *shapes: Shape) -> Shape:
    """`broadcast_shapes` with the error in the house form."""
    try:
        return broadcast_shapes(*shapes)
    except ValueError:
        listed = " and ".join(str(s) for s in shapes)
        raise ShapeError(
            f"{where}: expected shapes that broadcast (equal or 1, counted from the last axis), got {listed}."
        ) from None


def expand_strides(shape: Shape, strides: Shape, to: Shape) -> Shape:
    """Strides of `shape` seen as `to`: stride 0 along every axis that is repeated."""
    lead = len(to) - len(shape)
    return (0,) * lead + tuple(0 if n == 1 and m != 1 else s for n, s, m in zip(shape, strides, to[lead:], strict=True))


def infer_shape(where: str, size: int, shape: Shape) -> Shape:
    """`shape` with its single -1 replaced so that it holds `size` elements."""
    unknown = [i for i, n in enumerate(shape) if n == -1]
    known = size_of(tuple(n for n in shape if n != -1))
    if len(unknown) > 1 or any(n < -1 for n in shape):
        raise ShapeError(f"{where}: expected lengths of at least 0 and at most one -1, got {shape}.")
    if unknown:
        if known == 0 or size % known:
            raise ShapeError(f"{where}: expected a shape for {size} elements, got {shape}.")
        shape = tuple(size // known if n == -1 else n for n in shape)
    elif known != size:
        raise ShapeError(f"{where}: expected a shape for {size} elements, got {shape} with {known}.")
    return shape


@lru_cache(maxsize=4096)
def reshape_strides(shape: Shape, strides: Shape, to: Shape) -> Shape | None:
    """Strides that show the same elements as `to`, or None when that needs a copy."""
    if 0 in shape or is_contiguous(shape, strides):
        return contiguous_strides(to)
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    result: list[int] = []
    i = j = 0
    while i < len(old) and j < len(to):
        group, n, last = [old[i]], to[j], j + 1
        m = old[i][0]
        while m != n:  # grow the shorter side until both groups hold the same number of elements
            if m < n:
                i += 1
                group.append(old[i])
                m *= old[i][0]
            else:
                n *= to[last]
                last += 1
        if any(s != t * c for (_, s), (c, t) in pairwise(group)):
            return None
        step, steps = group[-1][1], []
        for length in reversed(to[j:last]):
            steps.append(step)
            step *= length
        result += reversed(steps)
        i, j = i + 1, last
    return tuple(result) + (1,) * (len(to) - len(result))


@lru_cache(maxsize=4096)
def reshaped(shape: Shape, strides: Shape, wanted: tuple[Any, ...]) -> tuple[Shape, Shape | None]:
    """`wanted` without its -1, and the strides that show the same elements so (None when that needs a copy)."""
    target = infer_shape("reshape", size_of(shape), as_ints("reshape", wanted, "a shape"))
    return target, reshape_strides(shape, strides, target)


@lru_cache(maxsize=4096)
def permuted(shape: Shape, strides: Shape, axes: tuple[Any, ...]) -> tuple[Shape, Shape]:
    """Shape and strides with the axes in another order; reversed when none is given."""
    ndim = len(shape)
    order = tuple(as_axis("permute", a, ndim) for a in axes or reversed(range(ndim)))
    if sorted(order) != list(range(ndim)):
        raise ShapeError(f"permute: expected each of {ndim} axes once, got {order}.")
    return tuple(shape[a] for a in order), tuple(strides[a] for a in order)


@lru_cache(maxsize=4096)
def expanded(shape: Shape, strides: Shape, wanted: Shape) -> tuple[Shape, Shape]:
    """Shape and strides with axes of length one repeated to `wanted`, where -1 keeps a length."""
    lead = len(wanted) - len(shape)
    target = tuple(shape[i - lead] if n == -1 and i >= lead else n for i, n in enumerate(wanted))
    if lead < 0 or any(n not in (1, m) for n, m in zip(shape, target[max(lead, 0) :], strict=False)):
        raise ShapeError(f"expand: expected a shape that {shape} broadcasts to, got {wanted}.")
    return target, expand_strides(shape, strides, target)


def flattened(shape: Shape, start: Any, end: Any) -> Shape:
    """The shape with the axes from `start` to `end` merged into one."""
    if not shape:
        return (1,)
    start, end = as_axis("flatten", start, len(shape)), as_axis("flatten", end, len(shape))
    if start > end:
        raise ShapeError(f"flatten: expected start_axis not behind end_axis, got {start} and {end}.")
    return (*shape[:start], size_of(shape[start : end + 1]), *shape[end + 1 :])


def squeezed(shape: Shape, axis: Any) -> list[int]:
    """The axes that stay without those of length one: without all of them, or the ones named, which must have it."""
    if axis is None:
        return [i for i, n in enumerate(shape) if n != 1]
    gone = as_axes("squeeze", axis, len(shape))
    if any(shape[a] != 1 for a in gone):
        raise ShapeError(f"squeeze: expected axes of length 1, got axis {axis} of shape {shape}.")
    return [i for i in range(len(shape)) if i not in gone]


def select(where: str, shape: Shape, strides: Shape, offset: int, key: Any) -> tuple[Shape, Shape, int]:
    """Shape, strides and offset of basic indexing: integers, slices with any step, Ellipsis and None."""
    keys = key if isinstance(key, tuple) else (key,)
    used = sum(k is not None and k is not Ellipsis for k in keys)
    if used > len(shape) or sum(k is Ellipsis for k in keys) > 1:
        raise ShapeError(
            f"{where}: expected at most {len(shape)} indices and one '...' for shape {shape}, got {key!r}."
        )
    new_shape: list[int] = []
    new_strides: list[int] = []
    axis = 0
    for k in keys if any(k is Ellipsis for k in keys) else (*keys, Ellipsis):
        if k is None:
            new_shape.append(1)
            new_strides.append(0)
        elif k is Ellipsis:
            rest = len(shape) - used
            new_shape += shape[axis : axis + rest]
            new_strides += strides[axis : axis + rest]
            axis += rest
        elif isinstance(k, slice):
            start, stop, step = k.indices(shape[axis])
            new_shape.append(len(range(start, stop, step)))
            new_strides.append(strides[axis] * step)
            offset += start * strides[axis] if new_shape[-1] else 0
            axis += 1
        else:
            offset += _position(where, k, shape[axis], axis) * strides[axis]
            axis += 1
    return tuple(new_shape), tuple(new_strides), offset


def _position(where: str, key: Any, length: int, axis: int) -> int:
    try:
        i = as_index(key)
    except TypeError:
        raise ShapeError(
            f"{where}: expected integers, slices, None or '...', got {key!r}; "
            "for arrays use take, gather or masked_select."
        ) from None
    if not -length <= i < length:
        raise IndexOutOfRange(f"{where}: expected an index in [{-length}, {length}) on axis {axis}, got {i}.")
    return i % length
