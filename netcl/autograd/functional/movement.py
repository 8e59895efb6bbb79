"""Views and movements of elements on nodes. Written by tools/generate_ops.py from the records of ops; do not edit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netcl.autograd.node import Node, Value
from netcl.autograd.op import apply_many, apply_one
from netcl.core import layout
from netcl.core.keywords import axis_of

__all__ = [
    "astype",
    "concat",
    "contiguous",
    "expand",
    "flip",
    "getitem",
    "permute",
    "reshape",
    "roll",
    "split",
    "squeeze",
    "stack",
    "to",
    "unsqueeze",
]


def reshape(x: Value, *shape: Any) -> Node:
    """The elements in row-major order as `shape` (one length may be -1); copies only when strides demand it."""
    return apply_one("reshape", x, shape=layout.flat_ints("reshape", shape, "a shape"))


def permute(x: Value, *axes: Any) -> Node:
    """The axes in the given order, as NumPy's transpose(axes); without arguments they are reversed."""
    return apply_one("permute", x, axes=layout.flat_ints("permute", axes, "axes"))


def expand(x: Value, *shape: Any) -> Node:
    """Axes of length one repeated to `shape` without a copy; -1 keeps a length."""
    return apply_one("expand", x, shape=layout.flat_ints("expand", shape, "a shape"))


def squeeze(x: Value, axis: Any = None, *, dim: Any | None = None) -> Node:
    """Without the axes of length one (all of them, or those named; a named axis must have length one)."""
    if dim is not None:
        axis = axis_of("squeeze", axis, None, dim)
    return apply_one("squeeze", x, axis=axis)


def unsqueeze(x: Value, axis: int | None = None, *, dim: int | None = None) -> Node:
    """With a new axis of length one before `axis`."""
    if dim is not None:
        axis = axis_of("unsqueeze", axis, None, dim)
    return apply_one("unsqueeze", x, axis=axis)


def getitem(x: Value, key: Any) -> Node:
    """The view at a key of integers, slices, None and Ellipsis."""
    return apply_one("getitem", x, key=key)


def astype(x: Value, dtype: Any) -> Node:
    """The values as `dtype`; itself when it already is. Floats go to integers by truncation, as in NumPy."""
    return apply_one("astype", x, dtype=dtype)


def contiguous(x: Value) -> Node:
    """Itself when contiguous, else a contiguous copy."""
    return apply_one("contiguous", x)


def to(x: Value, queue: Any) -> Node:
    """`x` on another device (a queue, a handle, a device's name), or as another dtype; the gradient travels back."""
    return apply_one("to", x, queue=queue)


def concat(xs: Sequence[Value], axis: int = 0, *, dim: int | None = None) -> Node:
    """The tensors one after the other along `axis`; dtypes are promoted.

    Shapes: equal except along `axis`. One copy per tensor. Raises ShapeError otherwise, or when none is given.
    """
    if dim is not None:
        axis = axis_of("concat", axis, 0, dim)
    return apply_one("concat", *xs, axis=axis)


def stack(xs: Sequence[Value], axis: int = 0, *, dim: int | None = None) -> Node:
    """The tensors side by side along a new `axis`; all of one shape."""
    if dim is not None:
        axis = axis_of("stack", axis, 0, dim)
    return apply_one("stack", *xs, axis=axis)


def split(x: Value, sizes: int | Sequence[int], axis: int = 0, *, dim: int | None = None) -> tuple[Node, ...]:
    """Views of consecutive parts along `axis`: parts of the given size (the last may be shorter) or of given sizes."""
    if dim is not None:
        axis = axis_of("split", axis, 0, dim)
    return apply_many("split", x, sizes=sizes, axis=axis)


def flip(x: Value, axis: Any = None, *, dims: Any | None = None) -> Node:
    """A copy reversed along `axis` (an axis, several, or all)."""
    if dims is not None:
        axis = axis_of("flip", axis, None, dims)
    return apply_one("flip", x, axis=axis)


def roll(x: Value, shift: int | Sequence[int], axis: Any = None, *, dims: Any | None = None) -> Node:
    """A copy moved by `shift` along `axis`, what falls off the end coming back at the start; without an axis, flat."""
    if dims is not None:
        axis = axis_of("roll", axis, None, dims)
    return apply_one("roll", x, shift=shift, axis=axis)
