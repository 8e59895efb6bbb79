"""2-D convolution and its gradients: cross-correlation with stride, padding, dilation and groups, NCHW.

`Geometry` (problem.py) describes a convolution once; the kernel family of the device does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netcl.core.backend import cpu
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import as_dtype, common_dtype, is_float
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.kernels import route
from netcl.ops import reduction
from netcl.ops.convolution import cpu as conv_cpu
from netcl.ops.convolution import gpu as conv_gpu
from netcl.ops.convolution import host as conv_numpy
from netcl.ops.convolution.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, Geometry, geometry
from netcl.ops.elementwise import apply, before, contiguous
from netcl.ops.product.op import promote
from netcl.ops.product.problem import ACTIVATIONS, FROM_RESULT, OTHER_FACTOR
from netcl.ops.record import FLOATS, HALF, Facts, Op, register


def conv2d(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    activation: str | None = None,
) -> Tensor:
    """Cross-correlation of images with filters, with an optional fused activation.

    y[n, o, i, j] = activation(b[o] + sum_{c, u, v} x[n, c, i s + u d - p, j s + v d - p] w[o, c, u, v])

    with zeros outside x.

    Shapes: x (N, C, H, W), w (O, C / groups, KH, KW), b (O,) -> (N, O, Ho, Wo) with
    Ho = floor((H + 2 p - d (KH - 1) - 1) / s) + 1. Stride, padding and dilation are an int or a (height, width) pair.
    `activation` is None, "relu", "gelu" (exact) or "silu".
    Memory: nothing but y and a copy of one block of pixels per work-item, except that GPUs copy the input pixels of
    each output pixel where groups have up to seven channels, forward not for a single group of up to 64 taps (at most
    128 MiB at a time, an entry of the tuning table).
    3x3 filters of stride 1 between 8 or more channels (144 pairs of them), and their gradients, go by Winograd's
    F(4x4, 3x3) on CPU devices, and on GPUs whose matrix units do not take them where it is cheaper by the tuning table
    (there with four times the filters' elements and at most 128 MiB at a time in float32): two to three times the
    rounding (1e-6 of the outputs' root mean square, 2 to 3e-6 of the largest), and an infinity makes the 4x4 outputs of
    each 6x6 patch that holds it infinite or NaN, and all taps of its channel in the weights' gradient.
    Raises: ShapeError for shapes that do not fit, DTypeError for integers.
    """
    same_queue("conv2d", *((x, w) if b is None else (x, w, b)))
    if activation is not None and activation not in ACTIVATIONS:
        raise ShapeError(f"conv2d: expected an activation of {', '.join(ACTIVATIONS)} or None, got {activation!r}.")
    g = geometry("conv2d", x.shape, w.shape, stride, padding, dilation, groups)
    if b is not None and b.shape != (g.o,):
        raise ShapeError(f"conv2d: expected a bias of shape ({g.o},), got {b.shape}.")
    x, w, *rest = _floats("conv2d", x, w, *(() if b is None else (b,)))
    bias = rest[0] if rest else None
    if x.backend == "cpu":
        operands = (x, w) if bias is None else (x, w, bias)
        if route.special:
            route.sole(FORWARD)
        return cpu.compute(conv_numpy.forward, *operands, g=g, activation=activation)
    y = allocate(x.queue, g.y_shape, x.dtype)
    if y.size:
        _family(x).forward(y, x, contiguous(w), bias if bias is None else contiguous(bias), g, activation)
    return y


def conv2d_input_grad(
    g: Tensor, w: Tensor, x_shape: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    """Gradient of `conv2d` for its input: dx[n, c, y, x] = sum of g[n, o, i, j] w[o, c, u, v] where
    i s + u d - p = y and j s + v d - p = x.

    Shapes: g (N, O, Ho, Wo), w (O, C / groups, KH, KW) -> x_shape. Also the transposed convolution.
    """
    same_queue("conv2d_input_grad", g, w)
    form = geometry("conv2d_input_grad", x_shape, w.shape, stride, padding, dilation, groups)
    _check_gradient("conv2d_input_grad", g, form)
    g, w = _floats("conv2d_input_grad", g, w)
    if g.backend == "cpu":
        if route.special:
            route.sole(INPUT_GRAD)
        return cpu.compute(conv_numpy.input_grad, g, w, form=form)
    dx = allocate(g.queue, form.x_shape, g.dtype)
    if dx.size:
        _family(g).input_grad(dx, g, contiguous(w), form)
    return dx


def conv2d_weight_grad(
    g: Tensor, x: Tensor, w_shape: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    """Gradient of `conv2d` for its weights: dw[o, c, u, v] = sum_{n, i, j} g[n, o, i, j] x[n, c, i s + u d - p, ...].

    Shapes: g (N, O, Ho, Wo), x (N, C, H, W) -> w_shape. Half is summed in float.
    """
    same_queue("conv2d_weight_grad", g, x)
    form = geometry("conv2d_weight_grad", x.shape, w_shape, stride, padding, dilation, groups)
    _check_gradient("conv2d_weight_grad", g, form)
    g, x = _floats("conv2d_weight_grad", g, x)
    if g.backend == "cpu":
        if route.special:
            route.sole(WEIGHT_GRAD)
        return cpu.compute(conv_numpy.weight_grad, g, x, form=form)
    dw = allocate(g.queue, form.w_shape, g.dtype)
    if dw.size and g.size:
        _family(g).weight_grad(dw, contiguous(g), x, form)
    elif dw.size:
        dw.fill_(0)
    return dw


def conv2d_bias_grad(g: Tensor) -> Tensor:
    """Gradient of `conv2d` for its bias: g (N, O, Ho, Wo) summed to (O,)."""
    return reduction.sum(g, axis=(0, 2, 3))


def _family(t: Tensor) -> Any:
    return conv_cpu if profile_of(t.queue).kind == "cpu" else conv_gpu


def _check_gradient(where: str, g: Tensor, form: Geometry) -> None:
    if g.shape != form.y_shape:
        raise ShapeError(f"{where}: expected a gradient of the output's shape {form.y_shape}, got {g.shape}.")


def _floats(where: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    promoted = promote(*tensors)
    if not is_float(promoted[0].dtype):
        raise DTypeError(f"{where}: expected floating dtypes, got {promoted[0].dtype}; convert with astype.")
    return promoted


# -- record ------------------------------------------------------------------------------------------------------------


def _activated(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    activation: str | None = None,
    *,
    recorded: bool,
) -> tuple[Tensor, Tensor | None]:
    """Cross-correlation of images with filters, with an optional fused activation.

    y[n, o, i, j] = activation(bias[o] + sum_{c, u, v} x[n, c, i s + u d - p, j s + v d - p] weight[o, c, u, v])

    Shapes: x (N, C, H, W), weight (O, C / groups, KH, KW), bias (O,) -> (N, O, H', W') with
    H' = floor((H + 2 padding - dilation (KH - 1) - 1) / stride) + 1, and W' alike. Stride, padding and dilation are an
    int or a (height, width) pair. `activation` is None, "relu", "gelu" (exact) or "silu"; the last two take a kernel of
    their own where a gradient is wanted, since it reads what they were given.
    Memory, rounding and errors are those of `netcl.ops.conv.conv2d`.
    """
    if recorded and activation not in FROM_RESULT:
        z = conv2d(x, weight, bias, stride, padding, dilation, groups)
        return apply(activation, z), z
    y = conv2d(x, weight, bias, stride, padding, dilation, groups, activation)
    return y, y if activation else None


def _gradients(
    g: Tensor,
    y: Any,
    x: Tensor,
    w: Tensor,
    b: Any = None,
    *,
    needs: Sequence[bool],
    aux: Tensor | None,
    activation: str | None = None,
    **sizes: Any,
) -> list[Tensor | None]:
    g = before(activation, g, aux)
    dx = conv2d_input_grad(g, w, x.shape, **sizes) if needs[0] else None
    dw = conv2d_weight_grad(g, x, w.shape, **sizes) if needs[1] else None
    return [dx, dw, conv2d_bias_grad(g) if len(needs) > 2 and needs[2] else None]


def _facts(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    **_: Any,
) -> Facts:
    dtype = as_dtype(common_dtype(*(t.dtype for t in (x, weight, bias) if t is not None)))
    return geometry("conv2d", x.shape, weight.shape, stride, padding, dilation, groups).y_shape, dtype


register(
    Op("conv2d", _activated, _gradients, (0, 1), True, OTHER_FACTOR, _facts, dtypes=FLOATS, cast=HALF, onnx="Conv")
)
