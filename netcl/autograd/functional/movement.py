"""Views and other movements of elements, on nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netcl.autograd.node import Node
from netcl.autograd.op import apply_op
from netcl.core import layout
from netcl.core.dtypes import as_dtype
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.layout import Shape
from netcl.ops.movement import _pairs as as_widths
from netcl.ops.movement import check_repeats, chunk_size, padding_of, tiling_of

__all__ = [
    "astype", "chunk", "concat", "contiguous", "expand", "flatten", "flip", "getitem", "pad", "permute", "repeat",
    "reshape", "roll", "split", "squeeze", "stack", "tile", "to", "transpose", "unsqueeze",
]  # fmt: skip

Value = Any  # a Node, a Tensor or a Python number


def _ints(where: str, values: tuple[Any, ...], name: str) -> tuple[int, ...]:
    """f(2, 3) and f((2, 3)) alike."""
    one = len(values) == 1 and not isinstance(values[0], (int, np.integer))
    return layout.as_ints(where, values[0] if one else values, name)


def shape_of(where: str, x: Value) -> Shape:
    """The shape of `x`. Raises DTypeError for what is no tensor."""
    if isinstance(x, np.ndarray) or not hasattr(x, "shape"):
        raise DTypeError(f"{where}: expected tensors, got {type(x).__name__}; make one with Tensor.from_host.")
    return tuple(x.shape)


def reshape(x: Value, *shape: Any) -> Node:
    """The elements in row-major order as `shape`; one length may be -1."""
    return apply_op("reshape", x, shape=_ints("reshape", shape, "a shape"))  # type: ignore[no-any-return]


def flatten(x: Value, start_axis: int = 0) -> Node:
    """Axes from `start_axis` on merged into one."""
    shape, axis = shape_of("flatten", x), layout.as_int("flatten", start_axis, "start_axis")
    return reshape(x, *shape[:axis], layout.size_of(shape[axis:]))


def permute(x: Value, *axes: Any) -> Node:
    """The axes in the given order; reversed when none is given."""
    order = _ints("permute", axes, "axes") if axes else tuple(reversed(range(len(shape_of("permute", x)))))
    return apply_op("permute", x, axes=order)  # type: ignore[no-any-return]


def transpose(x: Value, *axes: Any) -> Node:
    """Two axes exchanged when two are given, else `permute`."""
    if len(axes) != 2:
        return permute(x, *axes)
    order = list(range(len(shape_of("transpose", x))))
    i, j = (layout.as_axis("transpose", a, len(order)) for a in axes)
    order[i], order[j] = order[j], order[i]
    return permute(x, *order)


def expand(x: Value, *shape: Any) -> Node:
    """Axes of length one repeated to `shape`, without a copy."""
    return apply_op("expand", x, shape=_ints("expand", shape, "a shape"))  # type: ignore[no-any-return]


def squeeze(x: Value, axis: Any = None) -> Node:
    """Without axes of length one."""
    return apply_op("squeeze", x, axis=axis)  # type: ignore[no-any-return]


def unsqueeze(x: Value, axis: int) -> Node:
    """With a new axis of length one."""
    return apply_op("unsqueeze", x, axis=axis)  # type: ignore[no-any-return]


def getitem(x: Value, key: Any) -> Node:
    """Basic indexing: integers, slices, None and '...'."""
    return apply_op("getitem", x, key=key)  # type: ignore[no-any-return]


def astype(x: Value, dtype: Any) -> Node:
    """The values as `dtype`; the gradient comes back in the input's dtype."""
    return apply_op("astype", x, dtype=as_dtype(dtype))  # type: ignore[no-any-return]


def contiguous(x: Value) -> Node:
    """The value contiguous in memory."""
    return apply_op("contiguous", x)  # type: ignore[no-any-return]


def to(x: Value, queue: Any) -> Node:
    """The value on another device (a queue, a handle, a name), or as another dtype; the gradient travels back."""
    return apply_op("to", x, queue=queue)  # type: ignore[no-any-return]


def concat(xs: Sequence[Value], axis: int = 0) -> Node:
    """Joined along `axis`."""
    return apply_op("concat", *xs, axis=axis)  # type: ignore[no-any-return]


def stack(xs: Sequence[Value], axis: int = 0) -> Node:
    """Joined along a new `axis`."""
    return apply_op("stack", *xs, axis=axis)  # type: ignore[no-any-return]


def flip(x: Value, axis: Any = None) -> Node:
    """Reversed along `axis` (an axis, several, or all)."""
    return apply_op("flip", x, axis=axis)  # type: ignore[no-any-return]


def roll(x: Value, shift: Any, axis: Any = None) -> Node:
    """Moved by `shift` along `axis`; what falls off the end comes back at the start."""
    return apply_op("roll", x, shift=shift, axis=axis)  # type: ignore[no-any-return]


def split(x: Value, sizes: int | Sequence[int], axis: int = 0) -> tuple[Node, ...]:
    """Consecutive parts along `axis`: of one size (the last may be shorter) or of the given sizes."""
    return apply_op("split", x, sizes=sizes, axis=axis)  # type: ignore[no-any-return]


def chunk(x: Value, chunks: int, axis: int = 0) -> tuple[Node, ...]:
    """At most `chunks` parts of equal size along `axis` (the last may be shorter)."""
    shape = shape_of("chunk", x)
    return split(x, chunk_size(shape[layout.as_axis("chunk", axis, len(shape))], chunks), axis)


def repeat(x: Value, repeats: int, axis: int | None = None) -> Node:
    """Each element `repeats` times along `axis` (NumPy's repeat); without an axis the value is flattened."""
    check_repeats("repeat", repeats)
    if axis is None:
        x, axis = reshape(x, layout.size_of(shape_of("repeat", x))), 0
    shape = shape_of("repeat", x)
    axis = layout.as_axis("repeat", axis, len(shape))
    wide = expand(unsqueeze(x, axis + 1), *shape[: axis + 1], repeats, *shape[axis + 1 :])
    return reshape(wide, *shape[:axis], shape[axis] * repeats, *shape[axis + 1 :])


def tile(x: Value, repeats: int | Sequence[int]) -> Node:
    """The whole value `repeats[i]` times along axis i (NumPy's tile)."""
    shape, times = tiling_of(shape_of("tile", x), repeats)
    pairs = reshape(x, *[n for m in shape for n in (1, m)])
    wide = expand(pairs, *[n for m, r in zip(shape, times) for n in (r, m)])
    return reshape(wide, *[m * r for m, r in zip(shape, times)])


def pad(x: Value, widths: Any, mode: str = "constant", value: float = 0.0) -> Node:
    """`x` with `widths` = ((before, after), ...) more elements on its last axes; negative widths cut.

    mode: "constant" (filled with `value`), "reflect" (mirrored without the edge) or "replicate" (the edge repeated).
    """
    cut, pairs = padding_of(shape_of("pad", x), widths, mode)
    if mode == "constant":
        return apply_op("pad", x, widths=as_widths(widths, x.ndim), value=value)  # type: ignore[no-any-return]
    if any(s != slice(0, n) for s, n in zip(cut, x.shape)):
        x = getitem(x, cut)
    for axis, (before, after) in enumerate(pairs):
        if before or after:
            x = concat(_edges(x, axis, before, after, mode), axis)
    return x  # type: ignore[no-any-return]


def _edges(x: Value, axis: int, before: int, after: int, mode: str) -> list[Node]:
    """The parts that make up an axis padded by mirroring or repeating its edge."""
    n, lead = x.shape[axis], (slice(None),) * axis
    if mode == "reflect" and max(before, after) >= n:
        raise ShapeError(f"pad: expected reflect widths below the length {n} of axis {axis}, got {(before, after)}.")
    if n == 0:
        raise ShapeError(f"pad: expected something to replicate on axis {axis}, got length 0.")
    parts = [x]
    if before:
        first = slice(before, 0, -1) if mode == "reflect" else slice(0, 1)
        parts.insert(0, getitem(x, (*lead, first)))
    if after:
        last = slice(n - 2, n - 2 - after if n - 2 >= after else None, -1) if mode == "reflect" else slice(n - 1, n)
        parts.append(getitem(x, (*lead, last)))
    if mode == "replicate":
        lengths = [before] * bool(before) + [n] + [after] * bool(after)
        parts = [p if m == n and p is x else expand(p, *_with(x.shape, axis, m)) for p, m in zip(parts, lengths)]
    return parts


def _with(shape: tuple[int, ...], axis: int, length: int) -> tuple[int, ...]:
    return (*shape[:axis], length, *shape[axis + 1 :])
