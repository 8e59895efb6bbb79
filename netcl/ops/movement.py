"""Moving elements: joining, splitting, padding, flipping, rolling, repeating. Views where possible, else copies."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_index
from typing import Any

import numpy as np

from netcl.core import layout
from netcl.core.backend import cpu
from netcl.core.dtypes import as_dtype, check_number, common_dtype
from netcl.core.errors import ShapeError
from netcl.core.layout import Shape
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.ops.elementwise import assign, copy
from netcl.ops.record import Facts, Op, alike, compose, register

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
    axis, shape = _joined([t.shape for t in tensors], axis)
    dtype = common_dtype(*[t.dtype for t in tensors])
    if tensors[0].backend == "cpu":
        return cpu.compute(_concatenate, *tensors, axis=axis, dtype=dtype)
    out, start = allocate(queue, shape, dtype), 0
    for t in tensors:
        assign(out[_along(axis, start, start + t.shape[axis])], t)
        start += t.shape[axis]
    return out


def _joined(shapes: Sequence[Shape], axis: int) -> tuple[int, Shape]:
    """The axis from the front, and the shape of tensors of these shapes one after the other along it."""
    axis = layout.as_axis("concat", axis, len(shapes[0]))
    rests = {shape[:axis] + shape[axis + 1 :] for shape in shapes}
    if len(rests) > 1 or any(len(shape) != len(shapes[0]) for shape in shapes):
        found = ", ".join(map(str, shapes))
        raise ShapeError(f"concat: expected shapes that differ only along axis {axis}, got {found}.")
    return axis, (*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])


def _concatenate(*arrays: np.ndarray, axis: int, dtype: Any) -> np.ndarray:
    return np.concatenate([a.astype(dtype, copy=False) for a in arrays], axis)


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The tensors side by side along a new `axis`; all of one shape."""
    tensors = list(tensors)
    if not tensors:
        raise ShapeError("stack: expected at least one tensor, got none.")
    same_queue("stack", *tensors)
    axis = _stacked([t.shape for t in tensors], axis)
    return concat([t.unsqueeze(axis) for t in tensors], axis)


def _stacked(shapes: Sequence[Shape], axis: int) -> int:
    """The new axis from the front. Raises ShapeError for unequal shapes."""
    if len(set(shapes)) > 1:
        raise ShapeError(f"stack: expected equal shapes, got {', '.join(map(str, shapes))}.")
    return layout.as_axis("stack", axis, len(shapes[0]) + 1)


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
    pairs = as_widths(widths, len(shape))
    if any(before + n + after < 0 for (before, after), n in zip(pairs, shape, strict=True)):
        raise ShapeError(f"pad: expected widths that leave at least nothing of {shape}, got {pairs}.")
    cut = tuple(slice(max(-b, 0), n - max(-a, 0)) for (b, a), n in zip(pairs, shape, strict=True))
    return cut, tuple((max(b, 0), max(a, 0)) for b, a in pairs)


def as_widths(widths: Any, ndim: int) -> tuple[tuple[int, int], ...]:
    """`widths` of padding as (before, after) for each axis."""
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


# -- records -----------------------------------------------------------------------------------------------------------


def to(x: Tensor, queue: Any) -> Tensor:
    """`x` on another device (a queue, a handle, a device's name), or as another dtype; the gradient travels back."""
    return x.to(queue)


def _permute_grad(g: Tensor, y: Any, x: Any, axes: tuple[int, ...]) -> Tensor:
    order = [a % len(axes) for a in axes]
    return g.permute(*[order.index(i) for i in range(len(order))])


def _getitem_grad(g: Tensor, y: Any, x: Any, key: Any) -> Tensor:
    dx = Tensor.zeros(g.queue, x.shape, g.dtype)
    assign(dx[key], g)
    return dx


def _concat_grad(g: Tensor, y: Any, *xs: Any, axis: int = 0) -> list[Tensor]:
    axis, start, parts = axis % g.ndim, 0, []
    for x in xs:
        parts.append(g[_along(axis, start, start + x.shape[axis])])
        start += x.shape[axis]
    return parts


def _stack_grad(g: Tensor, y: Any, *xs: Any, axis: int = 0) -> list[Tensor]:
    return [g[(slice(None),) * (axis % g.ndim) + (i,)] for i in range(len(xs))]


def _roll_grad(g: Tensor, y: Any, x: Any, shift: Any, axis: Any = None) -> Tensor:
    return roll(g, tuple(-s for s in shift) if isinstance(shift, (tuple, list)) else -shift, axis)


def _pad_grad(g: Tensor, y: Any, x: Any, widths: Any, value: float = 0.0) -> Tensor:
    """What was put on comes off, and what was cut off comes back as zeros."""
    return pad(g, tuple((-before, -after) for before, after in widths))


def _split_grad(g: tuple[Tensor | None, ...], y: Any, x: Any, sizes: Any, axis: int = 0) -> Tensor:
    """The parts joined again, with zeros for those that nothing came back from."""
    queue, dtype = next((p.queue, p.dtype) for p in g if p is not None)
    return concat([Tensor.zeros(queue, v.shape, dtype) if p is None else p for p, v in zip(g, y)], axis)


def _back(g: Tensor, y: Any, x: Any, **_: Any) -> Tensor:
    return g.reshape(x.shape)


def _unsqueezed(x: Any, axis: int) -> Facts:
    axis = layout.as_axis("unsqueeze", axis, x.ndim + 1)
    return (*x.shape[:axis], 1, *x.shape[axis:]), x.dtype


def _concat_shape(*xs: Any, axis: int = 0) -> Facts:
    return _joined([x.shape for x in xs], axis)[1], common_dtype(*(x.dtype for x in xs))


def _stack_shape(*xs: Any, axis: int = 0) -> Facts:
    axis, shape = _stacked([x.shape for x in xs], axis), xs[0].shape
    return (*shape[:axis], len(xs), *shape[axis:]), common_dtype(*(x.dtype for x in xs))


def _split_shape(x: Any, sizes: Any, axis: int = 0) -> list[Facts]:
    axis = layout.as_axis("split", axis, x.ndim)
    return [((*x.shape[:axis], n, *x.shape[axis + 1 :]), x.dtype) for n in part_sizes(x.shape[axis], sizes)]


def _pad_shape(x: Any, widths: Any, **_: Any) -> Facts:
    cut, pairs = padding_of(x.shape, widths, "constant")
    return tuple(b + s.stop - s.start + a for (b, a), s in zip(pairs, cut)), x.dtype


for _op in (
    Op("reshape", lambda x, shape: Tensor.reshape(x, shape), _back, (),
       shape=lambda x, shape: (layout.infer_shape("reshape", x.size, tuple(shape)), x.dtype), function=Tensor.reshape,
       methods=("reshape",), onnx="Reshape", array_api="reshape"),
    Op("permute", lambda x, axes: Tensor.permute(x, *axes), _permute_grad, (),
       shape=lambda x, axes: (layout.permuted(x.shape, x.shape, tuple(axes))[0], x.dtype), function=Tensor.permute,
       methods=("permute",), onnx="Transpose", array_api="permute_dims"),
    Op("expand", lambda x, shape: Tensor.expand(x, shape), lambda g, y, x, shape: g, (),
       shape=lambda x, shape: (layout.expanded(x.shape, x.shape, tuple(shape))[0], x.dtype), function=Tensor.expand,
       methods=("expand",), onnx="Expand", array_api="broadcast_to"),
    Op("squeeze", Tensor.squeeze, _back, (),
       shape=lambda x, axis=None: (tuple(x.shape[i] for i in layout.squeezed(x.shape, axis)), x.dtype),
       methods=("squeeze",), onnx="Squeeze", array_api="squeeze"),
    Op("unsqueeze", Tensor.unsqueeze, _back, (), shape=_unsqueezed, methods=("unsqueeze",), onnx="Unsqueeze",
       array_api="expand_dims"),
    Op("getitem", Tensor.part, _getitem_grad, (),
       shape=lambda x, key: (layout.select("indexing", x.shape, x.shape, 0, key)[0], x.dtype),
       methods=("__getitem__",), onnx="Slice"),
    Op("astype", Tensor.astype, lambda g, y, x, dtype: g.astype(x.dtype), (),
       shape=lambda x, dtype: (x.shape, as_dtype(dtype)), methods=("astype",), onnx="Cast", array_api="astype"),
    Op("contiguous", Tensor.contiguous, lambda g, y, x: g, (), shape=alike, onnx="Identity"),
    Op("to", to, lambda g, y, x, queue: g.to(x.queue).astype(x.dtype), (), methods=("to",)),
    Op("concat", lambda *xs, axis=0: concat(xs, axis), _concat_grad, (), shape=_concat_shape, function=concat,
       onnx="Concat", array_api="concat"),
    Op("stack", lambda *xs, axis=0: stack(xs, axis), _stack_grad, (), shape=_stack_shape, function=stack,
       array_api="stack"),
    Op("split", split, _split_grad, (), shape=_split_shape, onnx="Split", methods=("split",)),
    Op("flip", flip, lambda g, y, x, axis=None: flip(g, axis), (), shape=alike, array_api="flip", methods=("flip",)),
    Op("roll", roll, _roll_grad, (), shape=alike, array_api="roll", methods=("roll",)),
    Op("pad", lambda x, widths, value=0.0: pad(x, widths, value=value), _pad_grad, (), shape=_pad_shape, function=pad,
       onnx="Pad"),
):  # fmt: skip
    register(_op)
for _op in (
    Op("flatten", Tensor.flatten, methods=("flatten",), onnx="Flatten"),
    Op("transpose", Tensor.transpose, methods=("transpose",), onnx="Transpose"),
    Op("chunk", chunk, methods=("chunk",)),
    Op("repeat", repeat, array_api="repeat", methods=("repeat",)),
    Op("tile", tile, onnx="Tile", array_api="tile", methods=("tile",)),
):
    compose(_op)
