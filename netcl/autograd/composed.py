"""`ag.<op>` by hand: functions on nodes that are made of other ops, or choose among them by their arguments.

All others are written by tools/generate_ops.py, in netcl/autograd/functional.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from netcl.autograd.node import Node, Operand, Value, tensor
from netcl.autograd.op import apply_many, apply_one
from netcl.core import layout
from netcl.core.dtypes import is_float
from netcl.core.errors import DTypeError, ShapeError, unexpected
from netcl.core.keywords import axis_of
from netcl.core.layout import Shape
from netcl.core.tensor import Tensor
from netcl.ops import promotion
from netcl.ops.create.random import Generator
from netcl.ops.elementwise import channels_of
from netcl.ops.index import nd
from netcl.ops.index.find import along, check_fill
from netcl.ops.movement import as_widths, check_repeats, chunk_size, padding_of, tiling_of

__all__ = [
    "chunk",
    "clip",
    "conv2d_gelu",
    "conv2d_relu",
    "conv2d_silu",
    "dropout",
    "flatten",
    "gather_nd",
    "gelu",
    "global_avg_pool2d",
    "index_put",
    "linear_gelu",
    "linear_relu",
    "linear_silu",
    "masked_fill",
    "masked_scatter",
    "nan_to_num",
    "pad",
    "pow",
    "prelu",
    "repeat",
    "repeat_interleave",
    "scatter_nd",
    "sort",
    "take_along_dim",
    "tile",
    "topk",
    "transpose",
    "where",
]


def _shape_of(where: str, x: Value) -> Shape:
    """The shape of `x`. Raises DTypeError for what is no tensor."""
    if isinstance(x, np.ndarray) or not hasattr(x, "shape"):
        raise DTypeError(f"{where}: expected tensors, got {type(x).__name__}; make one with Tensor.from_host.")
    return tuple(x.shape)


# -- elementwise -------------------------------------------------------------------------------------------------------


def where(condition: Operand, a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """`a` where `condition` is true (not zero), else `b`; all three broadcast.

    `a` gets the upstream gradient where it was chosen and exactly 0 elsewhere, `b` the other way round, even where the
    upstream gradient is NaN or infinite. What computed them is still asked for its slope everywhere: behind
    `where(x > 0, sqrt(x), x)` sqrt multiplies that 0 by its NaN at x = -1, as in other frameworks. Keep its argument
    where it is defined: `where(x > 0, sqrt(where(x > 0, x, 1.0)), x)`.
    """
    if unknown:
        raise unexpected("where", unknown, ("condition", "a", "b"))
    return apply_one("where", condition, a, b)


def masked_fill(x: Value, mask: Value, value: Operand) -> Node:
    """`value` where `mask` (bool) is true, else `x`, in the dtype of x: see `ops.masked_fill`."""
    _shape_of("masked_fill", x), _shape_of("masked_fill", mask)
    check_fill(x, mask, value)
    return apply_one("where", mask, value, x)


def pow(a: Operand, b: Operand, **unknown: NoReturn) -> Node:
    """a ** b; the exponent 2 is a product. Integers: see `ops.pow`."""
    if isinstance(b, (int, float)) and isinstance(a, (Node, Tensor)) and promotion.is_square(a.dtype, b):
        return apply_one("pow", a, b, **unknown) if unknown else apply_one("square", a)
    return apply_one("pow", a, b, **unknown)


def clip(a: Value, lo: float | None = None, hi: float | None = None, **unknown: NoReturn) -> Node:
    """min(max(a, lo), hi); None leaves a side open. The gradient is 0 outside. Integers: see `ops.clip`."""
    return apply_one("clip", a, **promotion.open_bounds(a.dtype, lo, hi), **unknown)


def nan_to_num(
    a: Value, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None, **unknown: NoReturn
) -> Node:
    """`a` with numbers for NaN and the infinities, these by default the ends of the dtype's range. Integers stay."""
    if not is_float(a.dtype):
        return apply_one("reshape", a, shape=a.shape)
    return apply_one("nan_to_num", a, nan=nan, **promotion.number_ends(a.dtype, posinf, neginf), **unknown)


def gelu(a: Value, approximate: str = "none", **unknown: NoReturn) -> Node:
    """a * Phi(a): exact, or with the tanh formula (approximate="tanh"). arXiv:1606.08415."""
    if unknown:
        raise unexpected("gelu", unknown, ("a", "approximate"))
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: expected approximate 'none' or 'tanh', got {approximate!r}.")
    return apply_one("gelu" if approximate == "none" else "gelu_tanh", a)


def prelu(a: Value, weight: Operand, **unknown: NoReturn) -> Node:
    """a where a >= 0, else weight * a. Shapes: a (N, C, ...), weight one number or (C,) along axis 1."""
    if unknown:
        raise unexpected("prelu", unknown, ("a", "weight"))
    _shape_of("prelu", a)
    shape = channels_of("prelu", a, weight)
    return apply_one("prelu", a, apply_one("reshape", weight, shape=shape) if shape else weight)


def dropout(x: Any, p: float = 0.5, training: bool = True, generator: Generator | None = None) -> Node:
    """x / (1 - p) where kept, 0 with probability `p`; x itself when not training. Source: Srivastava et al. 2014."""
    if not training or (isinstance(p, (int, float)) and p == 0):
        same: Node = x
        return same
    return apply_one("dropout", x, p=p, generator=generator)


# -- products with an activation ---------------------------------------------------------------------------------------


def linear_relu(x: Value, weight: Value, bias: Value | None = None) -> Node:
    """relu(x @ weight.T + bias), in one kernel: see `linear`."""
    return apply_one("linear", *((x, weight) if bias is None else (x, weight, bias)), activation="relu")


def linear_gelu(x: Value, weight: Value, bias: Value | None = None) -> Node:
    """gelu(x @ weight.T + bias), exact, in one kernel: see `linear`."""
    return apply_one("linear", *((x, weight) if bias is None else (x, weight, bias)), activation="gelu")


def linear_silu(x: Value, weight: Value, bias: Value | None = None) -> Node:
    """silu(x @ weight.T + bias), in one kernel: see `linear`."""
    return apply_one("linear", *((x, weight) if bias is None else (x, weight, bias)), activation="silu")


def conv2d_relu(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Node:
    """relu(conv2d(x, weight, bias, ...)), in one kernel: see `conv2d`."""
    return _conv2d("relu", x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)


def conv2d_gelu(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Node:
    """gelu(conv2d(x, weight, bias, ...)), exact, in one kernel where no gradient is wanted: see `conv2d`."""
    return _conv2d("gelu", x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)


def conv2d_silu(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Node:
    """silu(conv2d(x, weight, bias, ...)), in one kernel where no gradient is wanted: see `conv2d`."""
    return _conv2d("silu", x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)


def _conv2d(activation: str, x: Value, weight: Value, bias: Value | None, **sizes: Any) -> Node:
    return apply_one("conv2d", *((x, weight) if bias is None else (x, weight, bias)), **sizes, activation=activation)


def global_avg_pool2d(x: Value) -> Node:
    """Mean of every channel: x (N, C, H, W) -> (N, C, 1, 1)."""
    return apply_one("adaptive_avg_pool2d", x, output_size=1)


# -- movement ----------------------------------------------------------------------------------------------------------


def flatten(
    x: Value, start_axis: int = 0, end_axis: int = -1, *, start_dim: int | None = None, end_dim: int | None = None
) -> Node:
    """Axes from `start_axis` to `end_axis` merged into one."""
    start, end = axis_of("flatten", start_axis, 0, start_dim), axis_of("flatten", end_axis, -1, end_dim)
    return _reshape(x, *layout.flattened(_shape_of("flatten", x), start, end))


def transpose(x: Value, *axes: Any) -> Node:
    """Two axes exchanged when two are given, else `permute`."""
    if len(axes) != 2:
        return apply_one("permute", x, axes=layout.flat_ints("permute", axes, "axes"))
    order = list(range(len(_shape_of("transpose", x))))
    i, j = (layout.as_axis("transpose", a, len(order)) for a in axes)
    order[i], order[j] = order[j], order[i]
    return apply_one("permute", x, axes=tuple(order))


def chunk(x: Value, chunks: int, axis: int = 0, *, dim: int | None = None) -> tuple[Node, ...]:
    """At most `chunks` parts of equal size along `axis` (the last may be shorter)."""
    axis = axis_of("chunk", axis, 0, dim)
    shape = _shape_of("chunk", x)
    size = chunk_size(shape[layout.as_axis("chunk", axis, len(shape))], chunks)
    return apply_many("split", x, sizes=size, axis=axis)


def repeat(x: Value, repeats: int, axis: int | None = None, *, dim: int | None = None) -> Node:
    """Each element `repeats` times along `axis` (NumPy's repeat); without an axis the value is flattened."""
    check_repeats("repeat", repeats)
    axis = axis_of("repeat", axis, None, dim)
    if axis is None:
        x, axis = _reshape(x, layout.size_of(_shape_of("repeat", x))), 0
    shape = _shape_of("repeat", x)
    axis = layout.as_axis("repeat", axis, len(shape))
    wide = _expand(apply_one("unsqueeze", x, axis=axis + 1), *shape[: axis + 1], repeats, *shape[axis + 1 :])
    return _reshape(wide, *shape[:axis], shape[axis] * repeats, *shape[axis + 1 :])


def tile(x: Value, repeats: int | Sequence[int]) -> Node:
    """The whole value `repeats[i]` times along axis i (NumPy's tile)."""
    shape, times = tiling_of(_shape_of("tile", x), repeats)
    pairs = _reshape(x, *[n for m in shape for n in (1, m)])
    wide = _expand(pairs, *[n for m, r in zip(shape, times) for n in (r, m)])
    return _reshape(wide, *[m * r for m, r in zip(shape, times)])


def pad(x: Value, widths: Any, mode: str = "constant", value: float = 0.0) -> Node:
    """`x` with `widths` = ((before, after), ...) more elements on its last axes; negative widths cut.

    mode: "constant" (filled with `value`), "reflect" (mirrored without the edge) or "replicate" (the edge repeated).
    """
    cut, pairs = padding_of(_shape_of("pad", x), widths, mode)
    if mode == "constant":
        return apply_one("pad", x, widths=as_widths(widths, x.ndim), value=value)
    if any(s != slice(0, n) for s, n in zip(cut, x.shape)):
        x = apply_one("getitem", x, key=cut)
    for axis, (before, after) in enumerate(pairs):
        if before or after:
            x = apply_one("concat", *_edges(x, axis, before, after, mode), axis=axis)
    return x  # type: ignore[return-value]  # a Node by then


def _edges(x: Value, axis: int, before: int, after: int, mode: str) -> list[Value]:
    """The parts that make up an axis padded by mirroring or repeating its edge."""
    n, lead = x.shape[axis], (slice(None),) * axis
    if mode == "reflect" and max(before, after) >= n:
        raise ShapeError(f"pad: expected reflect widths below the length {n} of axis {axis}, got {(before, after)}.")
    if n == 0:
        raise ShapeError(f"pad: expected something to replicate on axis {axis}, got length 0.")
    parts = [x]
    if before:
        first = slice(before, 0, -1) if mode == "reflect" else slice(0, 1)
        parts.insert(0, apply_one("getitem", x, key=(*lead, first)))
    if after:
        last = slice(n - 2, n - 2 - after if n - 2 >= after else None, -1) if mode == "reflect" else slice(n - 1, n)
        parts.append(apply_one("getitem", x, key=(*lead, last)))
    if mode == "replicate":
        lengths = [before] * bool(before) + [n] + [after] * bool(after)
        parts = [p if m == n and p is x else _expand(p, *_with(x.shape, axis, m)) for p, m in zip(parts, lengths)]
    return parts


def _with(shape: Shape, axis: int, length: int) -> Shape:
    return (*shape[:axis], length, *shape[axis + 1 :])


def _reshape(x: Value, *shape: int) -> Node:
    return apply_one("reshape", x, shape=shape)


def _expand(x: Value, *shape: int) -> Node:
    return apply_one("expand", x, shape=shape)


# -- sorting -----------------------------------------------------------------------------------------------------------


def sort(x: Value, axis: int = -1, descending: bool = False, *, dim: int | None = None) -> Node:
    """`x` sorted along `axis`, NaN last."""
    axis = layout.as_axis("sort", axis_of("sort", axis, -1, dim), len(_shape_of("sort", x)))
    return apply_one("gather", x, apply_one("argsort", x, axis=axis, descending=descending), axis=axis)


def topk(x: Value, k: int, axis: int = -1, largest: bool = True, *, dim: int | None = None) -> tuple[Node, Node]:
    """The `k` largest (or smallest) elements along `axis` in order, and their positions."""
    shape = _shape_of("topk", x)
    axis = layout.as_axis("topk", axis_of("topk", axis, -1, dim), len(shape))
    if not 0 <= layout.as_int("topk", k, "k") <= shape[axis]:
        raise ShapeError(f"topk: expected k in [0, {shape[axis]}] for axis {axis} of {shape}, got {k}.")
    order = apply_one("argsort", x, axis=axis, descending=largest)
    places = apply_one("getitem", order, key=(slice(None),) * axis + (slice(k),))
    return apply_one("gather", x, places, axis=axis), places


def take_along_dim(x: Value, indices: Value, axis: int | None = None, *, dim: int | None = None) -> Node:
    """Elements of `x` along `axis`, one per element of `indices`: `gather` where the other axes broadcast."""
    shape, places = _shape_of("take_along_dim", x), _shape_of("take_along_dim", indices)
    axis = axis_of("take_along_dim", axis, None, dim)
    if axis is None:
        flat = _reshape(x, layout.size_of(shape))
        return apply_one("gather", flat, _reshape(indices, layout.size_of(places)), axis=0)
    seen, places = along(shape, places, axis)
    return apply_one("gather", _expand(x, *seen), _expand(indices, *places), axis=axis)


# -- positions along several axes --------------------------------------------------------------------------------------


def gather_nd(x: Value, indices: Value, batch_dims: int = 0) -> Node:
    """Slices of `x` by positions along its first axes: y[i..] = x[tuple(indices[i..])], see `ops.gather_nd`."""
    x, indices = _nodes("gather_nd", x, indices)
    found: Node = nd.gather_nd(x, indices, batch_dims)
    return found


def scatter_nd(x: Value, indices: Value, updates: Value, reduction: str = "none") -> Node:
    """`x` with slices put, or combined, by positions along its first axes: see `ops.scatter_nd`."""
    x, indices, updates = _nodes("scatter_nd", x, indices, updates)
    found: Node = nd.scatter_nd(x, indices, updates, reduction)
    return found


def index_put(x: Value, indices: Sequence[Value], values: Operand, accumulate: bool = False) -> Node:
    """A copy of `x` with x[indices] = values, or += where it accumulates: see `ops.index_put`."""
    several = [indices] if hasattr(indices, "shape") else indices
    places: Any = _nodes("index_put", *several)
    given: Any = _nodes("index_put", values)[0] if hasattr(values, "shape") else values
    found: Node = nd.index_put(_nodes("index_put", x)[0], places, given, accumulate)
    return found


def masked_scatter(x: Value, mask: Value, source: Value) -> Node:
    """`x` where `mask` (bool) is false, else the next element of `source`: see `ops.masked_scatter`."""
    found: Node = nd.masked_scatter(*_nodes("masked_scatter", x, mask, source))
    return found


def repeat_interleave(x: Value, repeats: Any, axis: int | None = None, output_size: int | None = None) -> Node:
    """Each element `repeats` times (a number, or a tensor of one each) in place along `axis`; see ops."""
    found: Node = nd.repeat_interleave(_nodes("repeat_interleave", x)[0], repeats, axis, output_size)
    return found


def _nodes(where: str, *values: Any) -> list[Node]:
    """Tensors as nodes. Raises DTypeError for what is neither."""
    for x in values:
        _shape_of(where, x)
    return [tensor(x) if isinstance(x, Tensor) else x for x in values]
