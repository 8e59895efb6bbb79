"""Pooling over windows of (N, C, H, W): maximum with indices, average, adaptive average, and their gradients."""

from __future__ import annotations

from math import gcd
from typing import Any, NamedTuple

import numpy as np

from netcl.core.backend import cpu
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import C_NAME, INT32, NARROW, compute_dtype, is_float
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.layout import size_of
from netcl.core.protocols import Launch
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.kernels import sources
from netcl.kernels import windows as strips
from netcl.kernels.plans import remember
from netcl.kernels.program import program
from netcl.kernels.windows import Pair
from netcl.ops import reduction
from netcl.ops.elementwise import contiguous, div
from netcl.ops.pooling import host as pool_numpy
from netcl.ops.pooling.problem import Window, adaptive_window, average, window_of
from netcl.ops.record import FLOATS, Facts, Op, compose, register

OUTPUTS_PER_ITEM = 4096  # on CPU devices
ITEMS_PER_GROUP = 64  # on GPUs


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
    window = window_of("max_pool2d", x.shape, kernel_size, stride, padding, dilation, ceil_mode)
    if x.backend == "cpu":
        y, at = cpu.compute(pool_numpy.max_pool, x, window=window)
        return (y, at) if return_indices else y
    y = allocate(x.queue, window.y_shape, x.dtype)
    at = allocate(x.queue, window.y_shape, INT32) if return_indices else y
    _launch("max_pool", window, window.out, x, {"Y": y, "At": at.buffer, "X": x}, INDICES=int(return_indices))
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
    window = window_of("max_pool2d_grad", tuple(x_shape), kernel_size, stride, padding, dilation, ceil_mode)
    _check("max_pool2d_grad", window, g, indices)
    if g.backend == "cpu":
        return cpu.compute(pool_numpy.max_pool_grad, g, indices, window=window)
    g, indices, dx = contiguous(g), contiguous(indices), allocate(g.queue, window.shape, g.dtype)
    _launch("max_pool_grad", window, window.size, dx, {"dX": dx, "G": g, "At": indices})
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
    settings = (ceil_mode, count_include_pad, divisor_override)
    window = average("avg_pool2d", x.shape, kernel_size, stride, padding, *settings)
    return _avg("avg_pool2d", x, window)


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
    settings = (ceil_mode, count_include_pad, divisor_override)
    window = average("avg_pool2d_grad", x_shape, kernel_size, stride, padding, *settings)
    return _avg_grad("avg_pool2d_grad", g, window)


def adaptive_avg_pool2d(x: Tensor, output_size: Any) -> Tensor:
    """Mean over windows that divide x into output_size (an int or a pair).

    Window i goes from floor(i H / Ho) to ceil((i + 1) H / Ho).

    Shapes: x (N, C, H, W) -> (N, C, Ho, Wo).
    """
    return _avg("adaptive_avg_pool2d", x, adaptive_window("adaptive_avg_pool2d", x.shape, output_size))


def adaptive_avg_pool2d_grad(g: Tensor, x_shape: Any) -> Tensor:
    """Gradient of `adaptive_avg_pool2d`: g (N, C, Ho, Wo) -> x_shape."""
    if g.ndim != 4:
        raise ShapeError(f"adaptive_avg_pool2d_grad: expected g (N, C, Ho, Wo), got {g.shape}.")
    where = "adaptive_avg_pool2d_grad"
    return _avg_grad(where, g, adaptive_window(where, x_shape, g.shape[2:]))


def global_avg_pool2d(x: Tensor) -> Tensor:
    """Mean of every channel: x (N, C, H, W) -> (N, C, 1, 1)."""
    return adaptive_avg_pool2d(x, 1)


# -- shapes ------------------------------------------------------------------------------------------------------------


def _check(where: str, window: Window, *tensors: Tensor) -> None:
    for t in tensors:
        if t.shape != window.y_shape:
            raise ShapeError(f"{where}: expected the output's shape {window.y_shape}, got {t.shape}.")


# -- launching ---------------------------------------------------------------------------------------------------------


def _avg(where: str, x: Tensor, window: Window) -> Tensor:
    if not is_float(x.dtype):
        raise DTypeError(f"{where}: expected a floating dtype, got {x.dtype}; convert with astype.")
    if x.backend == "cpu":
        return cpu.compute(pool_numpy.avg_pool, x, window=window)
    if _whole(window, x):
        return reduction.mean(x, (2, 3), keepdims=True)
    y = allocate(x.queue, window.y_shape, x.dtype)
    _launch("avg_pool", window, window.out, x, {"Y": y, "X": x})
    return y


def _avg_grad(where: str, g: Tensor, window: Window) -> Tensor:
    _check(where, window, g)
    if g.backend == "cpu":
        return cpu.compute(pool_numpy.avg_pool_grad, g, window=window)
    if _whole(window, g):
        return contiguous(div(g, window.shape[2] * window.shape[3]).expand(window.shape))
    g, dx = contiguous(g), allocate(g.queue, window.shape, g.dtype)
    _launch("avg_pool_grad", window, window.size, dx, {"dX": dx, "G": g})
    return dx


def _whole(window: Window, x: Tensor) -> bool:
    """Whether a GPU takes the mean of each plane, which wants many work-items a window."""
    spans = window.kernel == window.size and window.padding == (0, 0)
    return spans and window.out == (1, 1) and not window.divisor and profile_of(x.queue).kind != "cpu"


class Task(NamedTuple):
    """What a plan of a kernel depends on: see `_launch`; `offset` divides the offsets of all tensors, `read` is one."""

    name: str
    window: Window
    result: Pair
    x: Tensor
    defines: dict[str, int]
    read: Tensor
    offset: int


def _launch(name: str, window: Window, result: Pair, x: Tensor, arguments: dict[str, Any], **more: int) -> None:
    """Launch a kernel of pool.cl or its twin of pool_cpu.cl or pool_gpu.cl, over a result of `result` pixels per plane.

    `x` is the image-shaped tensor, input or gradient; `more` are defines.
    """
    if window.shape[0] * window.shape[1] * result[0] * result[1] == 0:
        return
    queue, plan = x.queue, _plan
    if profile_of(queue).kind != "cpu":
        plan = _plan_strips
    elif _has_vector_form(name, window, x):
        plan = _plan_vectors
    tensors = [t for t in arguments.values() if isinstance(t, Tensor)]
    offset = gcd(8, *[t.offset for t in tensors])
    key = (name, window, x.strides, x.dtype, offset, *more.values())
    launch = remember(queue, key, lambda: plan(Task(name, window, result, x, more, tensors[1], offset)))
    launch(**arguments)


def _sizes(window: Window, x: Tensor) -> dict[str, int]:
    """The fields of Dims that pool.cl and pool_cpu.cl share."""
    (n, c, h, w), (xn, xc, xh, _) = window.shape, x.strides
    names = ("Ho", "Wo", "KH", "KW", "sy", "sx", "py", "px", "dy", "dx")
    values = (*window.out, *window.kernel, *window.stride, *window.padding, *window.dilation)
    fields = {"C": c, "H": h, "W": w, "xn": xn, "xc": xc, "xh": xh, "planes": n * c}
    return {**fields, **dict(zip(names, values)), "with_pad": window.with_pad, "divisor": window.divisor}


def _plan(task: Task) -> Launch[Any]:
    """The launch of a kernel of pool.cl."""
    window, x, profile = task.window, task.x, profile_of(task.x.queue)
    (n, c, h, w), (height, width) = window.shape, task.result
    if profile.kind == "cpu":
        cols, rows, group, sizes = width, max(1, OUTPUTS_PER_ITEM // width), 1, "long"
    else:
        cols, rows, group, sizes = 1, 1, profile.group(ITEMS_PER_GROUP), "int"
    reach = sum(abs(s) * length for s, length in zip(x.strides, x.shape))
    products = ((h + 1) * (window.out[0] + 1), (w + 1) * (window.out[1] + 1))
    if max(size_of(window.shape), size_of(window.y_shape), reach, *products, window.divisor) >= 1 << 30:
        sizes = "long"
    compute = C_NAME[compute_dtype(x.dtype)]
    lowest = "(-INFINITY)" if is_float(x.dtype) else 0  # unused for integers: every window holds an element
    defines = {"S": C_NAME[x.dtype], "T": compute, "I": sizes, "LOWEST": lowest, "ADAPTIVE": int(window.adaptive)}
    made = program(x.queue, sources.load("pool.cl", **defines, **task.defines), task.name)
    grid = (-(-width // (cols * group)) * group, -(-n * c * height // rows))
    return made.bind(grid, (group, 1), D={**_sizes(window, x), "xw": x.strides[3], "rows": rows, "cols": cols})


def _plan_strips(task: Task) -> Launch[Any]:
    """As `_plan`, of a kernel of pool_gpu.cl where that can do it."""
    name, window, x = task.name, task.window, task.x
    windows, shape = (window.kernel, window.stride, window.padding, window.dilation), (*window.shape[:2], *task.result)
    cut = None if window.adaptive else strips.cut(windows, task.read, shape, task.offset, name.endswith("_grad"))
    if cut is None:
        return _plan(task)
    lowest = "(-INFINITY)" if is_float(x.dtype) else np.iinfo(x.dtype if x.dtype.kind != "b" else np.uint8).min
    defines = {f"USE_{name.upper()}": 1, "LOWEST": lowest, **cut.defines, **task.defines}
    made = program(x.queue, sources.load("strips.cl", "pool_gpu.cl", **defines), name)
    return made.bind(cut.grid, cut.group, D=cut.dims(window.shape[1], average=(window.divisor, window.with_pad)))


def _has_vector_form(name: str, window: Window, x: Tensor) -> bool:
    """Whether pool_cpu.cl can do it: fixed windows over rows of floats, and no sums kept in a narrow type."""
    if not is_float(x.dtype) or window.adaptive or x.strides[-1] != 1 or min(x.strides) < 0:
        return False
    return x.dtype not in NARROW or not name.endswith("_grad")


def _plan_vectors(task: Task) -> Launch[Any]:
    """As `_plan`, of a kernel of pool_cpu.cl."""
    (n, c, h, w), window, x = task.window.shape, task.window, task.x
    compute = C_NAME[compute_dtype(x.dtype)]
    mask = "long" if compute == "double" else "int"
    size, count = (h * w, n * c) if task.name.endswith("_grad") else (task.result[1], n * c * task.result[0])
    rows = max(1, OUTPUTS_PER_ITEM // size)
    span = 1 + sum((length - 1) * step for length, step in zip(x.shape, x.strides))
    vector = _vector(profile_of(x.queue).vector * 4 // compute_dtype(x.dtype).itemsize, window)
    types = {"S": C_NAME[x.dtype], "T": compute, "MT": mask}
    made = program(x.queue, sources.load("memory.cl", "pool_cpu.cl", **types, VW=vector, **task.defines), task.name)
    return made.bind((-(-count // rows),), (1,), D={**_sizes(window, x), "span": span, "rows": rows})


def _vector(most: int, window: Window) -> int:
    """Outputs that are computed at once: as many as registers hold, or fewer where fewer windows lie inside a row."""
    (pad, step), reach = (window.padding[1], window.stride[1]), (window.kernel[1] - 1) * window.dilation[1]
    inner = min((window.shape[3] - 1 - reach + pad) // step + 1, window.out[1]) - -(-pad // step)
    return next((v for v in (16, 8) if v <= min(most, inner)), 4)


# -- record ------------------------------------------------------------------------------------------------------------


def _max_pool(
    x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """Largest element of every window; padding never wins, NaN always does. The gradient goes to the first of equals.

    y[n, c, i, j] = max_{u, v} x[n, c, i s + u d - p, j s + v d - p]

    Shapes: x (N, C, H, W) of any dtype -> (N, C, Ho, Wo), Ho = floor((H + 2 p - d (k - 1) - 1) / s) + 1, or ceil with
    `ceil_mode` as long as the last window starts inside x or its front padding. `stride` defaults to the kernel size.
    """
    y, at = max_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode, return_indices=True)
    return y, at


def _windows(
    x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False, **_: Any
) -> Facts:
    return window_of("pooling", x.shape, kernel_size, stride, padding, dilation, ceil_mode).y_shape, x.dtype


def _adaptive(x: Any, output_size: Any) -> Facts:
    return adaptive_window("adaptive_avg_pool2d", x.shape, output_size).y_shape, x.dtype


def _max_pool_grad(g: Tensor, y: Any, x: Any, *, aux: Tensor, **settings: Any) -> Tensor:
    return max_pool2d_grad(g, aux, x.shape, **settings)


for _op in (
    Op("max_pool2d", _max_pool, _max_pool_grad, (), True, shape=_windows, onnx="MaxPool"),
    Op("avg_pool2d", avg_pool2d, lambda g, y, x, **settings: avg_pool2d_grad(g, x.shape, **settings), (),
       shape=_windows, dtypes=FLOATS, onnx="AveragePool"),
    Op("adaptive_avg_pool2d", adaptive_avg_pool2d, lambda g, y, x, output_size: adaptive_avg_pool2d_grad(g, x.shape),
       (), shape=_adaptive, dtypes=FLOATS),
):  # fmt: skip
    register(_op)
compose(Op("global_avg_pool2d", global_avg_pool2d, dtypes=FLOATS, onnx="GlobalAveragePool"))
