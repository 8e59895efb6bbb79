"""Elements picked by position: gather, take, embedding, one-hot vectors, boolean masks. Their reverse is in scatter.py.

Indices are int32 or int64 in [-n, n): negative ones count from the end, except those of rows of a table and of classes.
Others raise IndexOutOfRange, on NumPy at once, on a device at the next synchronisation; no memory is touched by them.
Nothing is checked when the result has no elements.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from netcl.core import layout
from netcl.core.backend import cpu
from netcl.core.backend.opencl import arm_flag, flag_buffer, index_message
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import BOOL, C_NAME, INT32, INT64, DType, as_dtype
from netcl.core.errors import DTypeError, IndexOutOfRange, ShapeError
from netcl.core.layout import Shape
from netcl.core.live import sized_by_data
from netcl.core.protocols import Launch, Queue
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.fusion.chain import Chain
from netcl.fusion.fold import Fold, run_fold
from netcl.kernels import sources
from netcl.kernels.grid import START, is_wide, like, line_of, matrix_of
from netcl.kernels.plans import remember
from netcl.kernels.program import Program, program
from netcl.ops.elementwise import contiguous
from netcl.ops.index.scan import count_marked

GATHER, ONE_HOT, SELECT, PLACES, RAVEL = range(5)  # FORM in gather.cl
EXACT = START | 15  # of an offset, what decides in which units elements are moved, and as in START
BITS = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong", 16: "uint4"}  # C types by size
_ISIN = Chain("netcl_isin", ("v0", "v1"), (), (("y", "EQ", ("v0", "v1")),), ("y",))


# -- picking -----------------------------------------------------------------------------------------------------------


def take(x: Tensor, index: Tensor, axis: int = 0) -> Tensor:
    """Whole slices of `x` by position: y[.., i.., ..] = x[.., index[i..], ..].

    Shapes: index of any shape; y = x.shape[:axis] + index.shape + x.shape[axis + 1:]. Raises IndexOutOfRange (see the
    module), DTypeError, ShapeError.
    """
    return take_as("take", x, index, axis)


def take_as(where: str, x: Tensor, index: Tensor, axis: int, strict: bool = False) -> Tensor:
    """`take` under the name that errors shall show; `strict` refuses negative indices."""
    same_queue(where, x, index)
    if type(axis) is not int:
        axis = layout.as_axis(where, axis, x.ndim)
    key = ("take", axis, strict, *_alike(x), *_alike(index))
    return remember(x.queue, key, lambda: _take_plan(where, x, index, axis, strict))(where, x, index)


def _take_plan(
    where: str, x: Tensor, index: Tensor, axis: int, strict: bool
) -> Callable[[str, Tensor, Tensor], Tensor]:
    """`take_as` for tensors like these."""
    axis = layout.as_axis(where, axis, x.ndim)
    check_index_dtype(where, index)
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    seen, flat = three(x, axis), index.reshape(1, -1, 1)
    queue, viewed = x.queue, seen.buffer is x.buffer and flat.buffer is index.buffer
    if x.backend == "cpu" or 0 in shape or not viewed:
        return lambda where, x, index: pick(where, three(x, axis), index.reshape(1, -1, 1), shape, strict)
    launch = _plan_of(seen, flat, shape, strict)  # small lookups cost a GPU less than making views of them
    return lambda where, x, index: launch(x, index, arm_flag(queue, where))


def index_select(x: Tensor, index: Tensor, axis: int = 0) -> Tensor:
    """`take` with an index of one axis."""
    if index.ndim != 1:
        raise ShapeError(f"index_select: expected an index of one axis, got shape {index.shape}; use take.")
    return take_as("index_select", x, index, axis)


def gather(x: Tensor, index: Tensor, axis: int) -> Tensor:
    """Elements of `x` along `axis`, one per element of `index`: y[i, j, k] = x[index[i, j, k], j, k] for axis 0.

    Shapes: index has the rank of x and at most its lengths except along `axis`; y has the index's shape. Raises
    IndexOutOfRange (see the module), DTypeError, ShapeError.
    """
    same_queue("gather", x, index)
    axis = layout.as_axis("gather", axis, x.ndim)
    check_index_dtype("gather", index)
    check_gathered("gather", x.shape, index.shape, axis)
    seen = x[tuple(slice(None) if a == axis else slice(n) for a, n in enumerate(index.shape))]
    return pick("gather", three(seen, axis), three(index, axis), index.shape)


def embedding(weight: Tensor, index: Tensor, padding_index: int | None = None) -> Tensor:
    """Rows of a table: y[i..] = weight[index[i..]].

    Row `padding_index` is read like any other; it only gets no gradient. Shapes: weight (rows, D), index of any shape;
    y = index.shape + (D,). Raises IndexOutOfRange (see the module), DTypeError, ShapeError.
    """
    if weight.ndim != 2:
        raise ShapeError(f"embedding: expected a table (rows, D), got shape {weight.shape}.")
    if padding_index is not None and not 0 <= padding_index < weight.shape[0]:
        raise ShapeError(f"embedding: expected padding_index in [0, {weight.shape[0]}), got {padding_index}.")
    return take_as("embedding", weight, index, 0, strict=True)


def pick(where: str, x: Tensor, index: Tensor, shape: Shape, strict: bool = False) -> Tensor:
    """out[o, k, c] = x[o, index[o, k, c], c] as `shape`: x (O, n, C), index (O or 1, K, C or 1), out (O, K, C)."""
    if 0 in shape:
        return empty(x, shape)
    if x.backend == "cpu":
        return cpu.compute(_numpy_pick, x, index, where=where, shape=shape, strict=strict)
    return _plan_of(x, index, shape, strict)(x, index, arm_flag(x.queue, where))


def _alike(x: Tensor) -> tuple[Any, ...]:
    """As `like`, with more of the offset."""
    return x.shape, x.strides, x.dtype, x.offset & EXACT


def _plan_of(x: Tensor, index: Tensor, shape: Shape, strict: bool) -> Launch[Tensor]:
    """The launch of `pick` for tensors like these: of (x, index, code of the flag) to the result.

    It takes no more of the tensors than memory and offsets.
    """
    if x.shape[2] == 1 < index.shape[1]:  # positions along the row make long rows of many short ones
        return _plan_of(x.expand(*x.shape[:2], index.shape[1]), index.transpose(1, 2), shape, strict)
    key = ("pick", shape, strict, *_alike(x), *_alike(index))
    return remember(x.queue, key, lambda: _plan(x, index, shape, strict))


def _plan(x: Tensor, index: Tensor, shape: Shape, strict: bool) -> Launch[Tensor]:
    queue, profile = x.queue, profile_of(x.queue)
    made = (x.shape[0], index.shape[1], x.shape[2])
    steps = layout.expand_strides(index.shape, index.strides, made)
    size = x.dtype.itemsize
    unit = _unit(x) if steps[2] == 0 else size
    rows, cols = made[0] * made[1], made[2] * size // unit
    wide = is_wide(profile, layout.size_of(made), x, index)
    grid, local, (step, chunk) = matrix_of(profile, rows, cols)
    return gather_program(queue, GATHER, unit, index.dtype, wide, per=unit // size).bind(
        grid,
        local,
        {"out": (shape, x.dtype)},
        flag=flag_buffer(queue),
        **dict(zip(("i_o", "i_k", "i_c"), steps)),
        x_o=x.strides[0] * size // unit,
        x_n=x.strides[1] * size // unit,
        x_c=x.strides[2] if unit == size else 1,
        n=x.shape[1],
        low=0 if strict else -x.shape[1],
        count=made[1],
        cols=cols,
        rows=rows,
        step=step,
        chunk=chunk,
    )


def _unit(x: Tensor) -> int:
    """The size of the largest element that rows of `x` can be moved in."""
    size = x.dtype.itemsize
    if x.strides[2] != 1 and x.shape[2] > 1:
        return size
    facts = [n * size for n in (x.shape[2], x.offset, *x.strides[:2])]
    return next(unit for unit in (16, 8, 4, 2, 1) if unit == size or all(n % unit == 0 for n in facts))


def _numpy_pick(x: np.ndarray, index: np.ndarray, where: str, shape: Shape, strict: bool) -> np.ndarray:
    index = from_start(where, index, x.shape[1], strict)
    whole = index.shape[::2] == (1, 1)
    return (np.take(x, index[0, :, 0], axis=1) if whole else np.take_along_axis(x, index, 1)).reshape(shape)


# -- one-hot, masks ----------------------------------------------------------------------------------------------------


def one_hot(index: Tensor, classes: int, dtype: Any = "float32") -> Tensor:
    """y[i.., c] = 1 where c == index[i..], else 0. Shapes: (...) -> (..., classes). Raises IndexOutOfRange."""
    check_index_dtype("one_hot", index)
    classes = layout.as_int("one_hot", classes, "classes", 1)
    queue, dtype = index.queue, as_dtype(dtype)
    if index.backend == "cpu":
        return cpu.compute(_numpy_one_hot, index, classes=classes, dtype=dtype)
    out, index = Tensor.zeros(queue, (*index.shape, classes), dtype), contiguous(index)
    if index.size == 0:
        return out
    launch = remember(queue, ("one_hot", *like(index), *like(out)), lambda: _one_hot_plan(index, out))
    launch(index=index, out=out.buffer, code=arm_flag(queue, "one_hot"))
    return out


def _one_hot_plan(index: Tensor, out: Tensor) -> Launch[Tensor]:
    queue, profile, size = out.queue, profile_of(out.queue), out.dtype.itemsize
    grid, local, step = line_of(profile, index.size)
    one = int(np.ones(1, out.dtype).view(f"u{size}")[0])
    return gather_program(queue, ONE_HOT, size, index.dtype, is_wide(profile, out, index)).bind(
        grid, local, flag=flag_buffer(queue), n=out.shape[-1], rows=index.size, step=step, one=one
    )


def _numpy_one_hot(index: np.ndarray, classes: int, dtype: DType) -> np.ndarray:
    from_start("one_hot", index, classes, strict=True)
    hit: np.ndarray = index[..., None] == np.arange(classes)
    return hit.astype(dtype)


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """The elements of `x` where `mask` is true, in row-major order, as one axis; x and mask broadcast.

    The length of the result depends on the data: on a device this waits for the queue to read the count.
    """
    return select_marked(x, mask)[0]


def select_marked(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The marked elements, and the running count of the mask (one axis, int32 or int64), which says where they went."""
    same_queue("masked_select", x, mask)
    sized_by_data("masked_select", "use where or masked_fill with the mask, or select outside of the step")
    if mask.dtype != BOOL:
        raise DTypeError(f"masked_select: expected a bool mask, got {mask.dtype}; compare with something, or astype.")
    shape = layout.broadcast("masked_select", x.shape, mask.shape)
    x, mask = contiguous(x.expand(shape)), contiguous(mask.expand(shape))
    count = count_marked(mask)
    if x.backend == "cpu":
        return cpu.compute(lambda a, m: a[m], x, mask), count
    out = allocate(x.queue, (int(count[-1:].item()) if x.size else 0,), x.dtype)
    if out.size:
        launch = remember(x.queue, ("select", *like(x), *like(mask)), lambda: _select_plan(x, mask, count.dtype))
        launch(x=x, mask=mask, count=count.buffer, out=out.buffer)
    return out, count


def _select_plan(x: Tensor, mask: Tensor, count: DType) -> Launch[Tensor]:
    profile = profile_of(x.queue)
    grid, local, step = line_of(profile, x.size)
    made = gather_program(x.queue, SELECT, x.dtype.itemsize, count, is_wide(profile, x, mask))
    return made.bind(grid, local, size=x.size, step=step)


def isin(x: Tensor, values: Tensor) -> Tensor:
    """Whether each element of `x` equals one of `values` (any shape); bool. Compares all pairs, storing none."""
    same_queue("isin", x, values)
    if x.backend == "cpu":
        return cpu.compute(_numpy_isin, x, values)
    if x.size == 0 or values.size == 0:
        return Tensor.zeros(x.queue, x.shape, BOOL)
    pairs = (x.unsqueeze(-1), values.reshape(-1))
    return run_fold(Fold(_ISIN, "max", -1, False, (BOOL,)), pairs)[0].reshape(x.shape)


def _numpy_isin(x: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.isin(x, values)


# -- shared with scatter.py --------------------------------------------------------------------------------------------


def three(x: Tensor, axis: int) -> Tensor:
    """`x` as (what is before `axis`, axis, what is after); a view where strides allow."""
    outer, cols = layout.size_of(x.shape[:axis]), layout.size_of(x.shape[axis + 1 :])
    return x.reshape(outer, x.shape[axis], cols)


def empty(like: Tensor, shape: Shape) -> Tensor:
    """A tensor without elements."""
    return allocate(like.queue, shape, like.dtype)


def check_index_dtype(where: str, index: Tensor) -> None:
    """Raise DTypeError unless `index` holds int32 or int64."""
    if index.dtype not in (INT32, INT64):
        raise DTypeError(f"{where}: expected int32 or int64 indices, got {index.dtype}; use astype.")


def check_gathered(where: str, shape: Shape, index: Shape, axis: int) -> None:
    """Raise ShapeError unless an index of this shape fits `shape` off `axis`."""
    fits = len(index) == len(shape) and all(n <= m or a == axis for a, (n, m) in enumerate(zip(index, shape)))
    if not fits:
        raise ShapeError(
            f"{where}: expected an index of {len(shape)} axes, at most {shape} except along axis {axis}, got {index}."
        )


def from_start(where: str, index: np.ndarray, n: int, strict: bool) -> np.ndarray:
    """`index` without negative ones. Raises IndexOutOfRange for the first outside [-n, n), [0, n) where `strict`."""
    bad = index[(index < (0 if strict else -n)) | (index >= n)]
    if bad.size:
        raise IndexOutOfRange(index_message(where, int(bad.flat[0]), n if strict else -n))
    return index if strict or not (index < 0).any() else np.where(index < 0, index + n, index)


@cache
def _source(kernel: int, bits: str, index: DType, wide: bool, on_cpu: bool, per: int) -> str:
    extra = {"PLAIN": 1} if on_cpu else {}
    return sources.load(
        "index.cl", "gather.cl", FORM=kernel, U=bits, INDEX=C_NAME[index], I="long" if wide else "int", PER=per, **extra
    )


def gather_program(queue: Queue, kernel: int, size: int, index: DType, wide: bool, per: int = 1) -> Program:
    """A kernel of gather.cl for elements of `size` bytes, `per` of which are moved at once."""
    source = _source(kernel, BITS[size], index, wide, profile_of(queue).kind == "cpu", per)
    return program(queue, source, ("gather", "one_hot", "select_marked", "mark_places", "ravel")[kernel], ("-w",))
