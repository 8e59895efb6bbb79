"""Pooling over windows of (N, C, H, W): maximum with indices, average, adaptive average, and their gradients."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from netcl.core.backend import cpu
from netcl.core.backend.opencl import launch
from netcl.core.dtypes import C_NAME, INT32, INT64, NARROW, compute_dtype, is_float
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.layout import Shape
from netcl.core.profile import profile_of
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.ops import pool_numpy, sources
from netcl.ops.conv_shape import Pair, pair
from netcl.ops.elementwise import contiguous
from netcl.ops.plans import remember
from netcl.runtime.cache import get_kernel

DIMS = struct.Struct("22q")  # Dims of pool.cl
CPU_DIMS = struct.Struct("21q")  # Dims of pool_cpu.cl
GRAIN = 4096  # elements of the result per work-item on CPU devices
GROUP = 64


@dataclass(frozen=True)
class Window:
    """Sizes of a pooling: input (n, c, h, w), output (n, c, *out). With `adaptive` the windows follow from them."""

    shape: Shape
    out: Pair
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    with_pad: bool = True
    divisor: int = 0  # 0: the number of elements
    adaptive: bool = False

    @property
    def y_shape(self) -> Shape:
        """Shape of the output."""
        return (*self.shape[:2], *self.out)


def max_pool2d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Largest element of every window; the padding never wins, NaN always does.

    y[n, c, i, j] = max_{u, v} x[n, c, i s + u d - p, j s + v d - p]

    Shapes: x (N, C, H, W) of any dtype -> (N, C, Ho, Wo), Ho = floor((H + 2 p - d (k - 1) - 1) / s) + 1, or ceil with
    `ceil_mode` as long as the last window starts inside x or its front padding. `stride` defaults to the kernel size.
    With `return_indices` also the int32 position y * W + x of each maximum: of equal elements the first one.
    Raises: ShapeError when the padding is more than half the (dilated) window, or for shapes that do not fit.
    """
    form = window("max_pool2d", x.shape, kernel_size, stride, padding, dilation, ceil_mode)
    if x.backend == "cpu":
        y, at = cpu.compute(pool_numpy.max_pool, x, form=form)
        return (y, at) if return_indices else y
    y, at = allocate(x.queue, form.y_shape, x.dtype), allocate(x.queue, form.y_shape, INT32)
    types = (None, None, None, INT64, INT64)
    _launch(x.queue, "max_pool", types, form, form.out, x, (y, at, x), (y.offset, x.offset))
    return (y, at) if return_indices else y


def max_pool2d_grad(
    g: Tensor,
    indices: Tensor,
    x_shape: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Gradient of `max_pool2d`: each element of g goes to the element that `indices` names; overlaps add up.

    Shapes: g and indices (N, C, Ho, Wo) -> x_shape.
    """
    same_queue("max_pool2d_grad", g, indices)
    form = window("max_pool2d_grad", tuple(x_shape), kernel_size, stride, padding, dilation, ceil_mode)
    _check("max_pool2d_grad", form, g, indices)
    if g.backend == "cpu":
        return cpu.compute(pool_numpy.max_pool_grad, g, indices, form=form)  # type: ignore[no-any-return]
    g, indices, dx = contiguous(g), contiguous(indices), allocate(g.queue, form.shape, g.dtype)
    types = (None, None, None, INT64, INT64, INT64)
    offsets = (dx.offset, g.offset, indices.offset)
    _launch(g.queue, "max_pool_grad", types, form, form.shape[2:], dx, (dx, g, indices), offsets)
    return dx


def avg_pool2d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Mean of every window, with zeros in the padding.

    y[n, c, i, j] = sum_{u, v} x[n, c, i s + u - p, j s + v - p] / count

    The count is that of the window's elements inside the padded input, or inside x when `count_include_pad` is off, or
    `divisor_override`. Shapes as for `max_pool2d`; half is summed in float. Raises: ShapeError, DTypeError.
    """
    form = _average("avg_pool2d", x.shape, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return _avg(x, form)


def avg_pool2d_grad(
    g: Tensor,
    x_shape: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Gradient of `avg_pool2d`: g (N, C, Ho, Wo) spread evenly over the windows -> x_shape."""
    form = _average(
        "avg_pool2d_grad", x_shape, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )
    return _avg_grad("avg_pool2d_grad", g, form)


def adaptive_avg_pool2d(x: Tensor, output_size: Any) -> Tensor:
    """Mean over windows that divide x into output_size (an int or a pair).

    Window i goes from floor(i H / Ho) to ceil((i + 1) H / Ho).

    Shapes: x (N, C, H, W) -> (N, C, Ho, Wo).
    """
    return _avg(x, _adaptive("adaptive_avg_pool2d", x.shape, output_size))


def adaptive_avg_pool2d_grad(g: Tensor, x_shape: Any) -> Tensor:
    """Gradient of `adaptive_avg_pool2d`: g (N, C, Ho, Wo) -> x_shape."""
    if g.ndim != 4:
        raise ShapeError(f"adaptive_avg_pool2d_grad: expected g (N, C, Ho, Wo), got {g.shape}.")
    where = "adaptive_avg_pool2d_grad"
    return _avg_grad(where, g, _adaptive(where, x_shape, g.shape[2:]))


def global_avg_pool2d(x: Tensor) -> Tensor:
    """Mean of every channel: x (N, C, H, W) -> (N, C, 1, 1)."""
    return adaptive_avg_pool2d(x, 1)


# -- shapes ------------------------------------------------------------------------------------------------------------


def window(
    where: str, shape: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any = 1, ceil_mode: bool = False
) -> Window:
    """The checked sizes of a pooling. Raises ShapeError for what does not fit."""
    k = pair(where, "kernel_size", kernel_size, 1)
    s = k if stride is None else pair(where, "stride", stride, 1)
    p, d = pair(where, "padding", padding, 0), pair(where, "dilation", dilation, 1)
    return _window(where, tuple(shape), k, s, p, d, ceil_mode)


@lru_cache(maxsize=4096)
def _window(where: str, shape: Shape, k: Pair, s: Pair, p: Pair, d: Pair, ceil_mode: bool) -> Window:
    shape = _images(where, shape)
    reach = tuple(d[i] * (k[i] - 1) + 1 for i in (0, 1))
    if any(2 * p[i] > reach[i] for i in (0, 1)):
        raise ShapeError(f"{where}: expected a padding of at most half the window {reach}, got {p}.")
    out = []
    for length, r, step, pad in zip(shape[2:], reach, s, p):
        room = length + 2 * pad - r
        if room < 0:
            raise ShapeError(
                f"{where}: expected a window that fits the padded input, got {reach} for {shape}, padding {p}."
            )
        count = -(-room // step) + 1 if ceil_mode else room // step + 1
        out.append(count - 1 if ceil_mode and (count - 1) * step >= length + pad else count)
    return Window(shape, (out[0], out[1]), k, s, p, d)


def _images(where: str, shape: Any) -> Shape:
    shape = tuple(shape)
    if len(shape) != 4 or min(shape[2:]) < 1:
        raise ShapeError(f"{where}: expected images (N, C, H, W) of at least one pixel, got shape {shape}.")
    return shape


def _average(
    where: str, shape: Any, k: Any, s: Any, p: Any, ceil_mode: bool, with_pad: bool, divisor: int | None
) -> Window:
    if divisor is not None and divisor < 1:
        raise ShapeError(f"{where}: expected a divisor of at least 1 or None, got {divisor}.")
    form = window(where, shape, k, s, p, 1, ceil_mode)
    return Window(form.shape, form.out, form.kernel, form.stride, form.padding, (1, 1), with_pad, divisor or 0)


def _adaptive(where: str, shape: Any, output_size: Any) -> Window:
    return Window(_images(where, shape), pair(where, "output_size", output_size, 1), adaptive=True)


def _check(where: str, form: Window, *tensors: Tensor) -> None:
    for t in tensors:
        if t.shape != form.y_shape:
            raise ShapeError(f"{where}: expected the output's shape {form.y_shape}, got {t.shape}.")


# -- launching ---------------------------------------------------------------------------------------------------------


def _avg(x: Tensor, form: Window) -> Tensor:
    if not is_float(x.dtype):
        raise DTypeError(f"avg_pool2d: expected a floating dtype, got {x.dtype}; convert with astype.")
    if x.backend == "cpu":
        return cpu.compute(pool_numpy.avg_pool, x, form=form)  # type: ignore[no-any-return]
    y, types = allocate(x.queue, form.y_shape, x.dtype), (None, None, INT64, INT64)
    _launch(x.queue, "avg_pool", types, form, form.out, x, (y, x), (y.offset, x.offset))
    return y


def _avg_grad(where: str, g: Tensor, form: Window) -> Tensor:
    _check(where, form, g)
    if g.backend == "cpu":
        return cpu.compute(pool_numpy.avg_pool_grad, g, form=form)  # type: ignore[no-any-return]
    g, dx, types = contiguous(g), allocate(g.queue, form.shape, g.dtype), (None, None, INT64, INT64)
    _launch(g.queue, "avg_pool_grad", types, form, form.shape[2:], dx, (dx, g), (dx.offset, g.offset))
    return dx


def _launch(
    queue: Any, name: str, types: Any, form: Window, result: Any, x: Tensor, tensors: Any, offsets: Any
) -> None:
    """Launch a kernel of pool.cl, or its twin of pool_cpu.cl, over a result of `result` pixels per plane.

    `x` is the image-shaped tensor, input or gradient; `tensors` and `offsets` are the arguments.
    """
    if form.shape[0] * form.shape[1] * result[0] * result[1] == 0:
        return
    vectors = profile_of(queue).kind == "cpu" and _has_vector_form(name, form, x)
    plan = _plan_vectors if vectors else _plan
    kernel, grid, group, dims = remember(
        queue, (name, form, x.strides, x.dtype), lambda: plan(queue, name, types, form, result, x)
    )
    launch(kernel, queue, grid, group, *(t.buffer for t in tensors), *offsets, dims)


def _plan(queue: Any, name: str, types: Any, form: Window, result: Any, x: Tensor) -> Any:
    """Kernel, global and local size, and Dims of a kernel of pool.cl."""
    (n, c, h, w), (high, wide), profile = form.shape, result, profile_of(queue)
    if profile.kind == "cpu":
        cols, rows, group = wide, max(1, GRAIN // wide), 1
    else:
        cols, rows, group = 1, 1, profile.group(GROUP)
    compute = C_NAME[compute_dtype(x.dtype)]
    lowest = "(-INFINITY)" if is_float(x.dtype) else 0  # never seen by integers: a window has an element, or no meaning
    source = sources.load("pool.cl", S=C_NAME[x.dtype], T=compute, LOWEST=lowest, ADAPTIVE=int(form.adaptive))
    dims = DIMS.pack(
        c, h, w, *form.out, *form.kernel, *form.stride, *form.padding, *form.dilation, *x.strides, n * c, rows, cols,
        form.with_pad, form.divisor,
    )  # fmt: skip
    grid = (-(-wide // (cols * group)) * group, -(-n * c * high // rows))
    return get_kernel(queue, source, name, (*types, np.dtype(f"V{DIMS.size}"))), grid, (group, 1), dims


def _has_vector_form(name: str, form: Window, x: Tensor) -> bool:
    """Whether pool_cpu.cl can do it: fixed windows over rows of floats, and no sums kept in a narrow type."""
    if not is_float(x.dtype) or form.adaptive or x.strides[-1] != 1 or min(x.strides) < 0:
        return False
    return x.dtype not in NARROW or not name.endswith("_grad")


def _plan_vectors(queue: Any, name: str, types: Any, form: Window, result: Any, x: Tensor) -> Any:
    """As `_plan`, of a kernel of pool_cpu.cl."""
    n, c, h, w = form.shape
    compute = C_NAME[compute_dtype(x.dtype)]
    mask = "long" if compute == "double" else "int"
    size, count = (h * w, n * c) if name.endswith("_grad") else (result[1], n * c * result[0])
    rows = max(1, GRAIN // size)
    span = 1 + sum((length - 1) * step for length, step in zip(x.shape, x.strides))
    dims = CPU_DIMS.pack(
        c, h, w, *form.out, *form.kernel, *form.stride, *form.padding, *form.dilation, *x.strides[:3], span, n * c,
        rows, form.with_pad, form.divisor,
    )  # fmt: skip
    vector = _vector(profile_of(queue).vector * 4 // compute_dtype(x.dtype).itemsize, form)
    source = sources.load("memory.cl", "pool_cpu.cl", S=C_NAME[x.dtype], T=compute, MT=mask, VW=vector)
    kernel = get_kernel(queue, source, name, (*types, np.dtype(f"V{CPU_DIMS.size}")))
    return kernel, (-(-count // rows),), (1,), dims


def _vector(most: int, form: Window) -> int:
    """Outputs that are computed at once: as many as registers hold, or fewer where fewer windows lie inside a row."""
    (pad, step), reach = (form.padding[1], form.stride[1]), (form.kernel[1] - 1) * form.dilation[1]
    inner = min((form.shape[3] - 1 - reach + pad) // step + 1, form.out[1]) - -(-pad // step)
    return next((v for v in (16, 8) if v <= min(most, inner)), 4)
