"""Convolutions of groups with few channels by the kernels that sum strips of rows, against plain loops."""

import numpy as np
import pytest
from conv_reference import ACTIVATIONS, Reference, close, values
from families import FAMILIES, queue_of

from netcl.core.tensor import Tensor
from netcl.kernels.route import force
from netcl.ops.convolution import register_tiled
from netcl.ops.convolution.op import conv2d, conv2d_input_grad, conv2d_weight_grad
from netcl.ops.convolution.problem import geometry

CASES = {
    "rows of vectors": ((2, 3, 9, 32), (3, 1, 3, 3), {"padding": 1}),
    "rows of vectors, stride 2": ((2, 3, 9, 32), (3, 1, 3, 3), {"padding": 1, "stride": 2}),
    "rows of pairs": ((3, 2, 14, 14), (2, 1, 3, 3), {"padding": 1}),
    "odd rows": ((3, 2, 7, 7), (2, 1, 3, 3), {"padding": 1}),
    "5x3 stride (2, 1)": ((2, 2, 13, 24), (2, 1, 5, 3), {"padding": (2, 1), "stride": (2, 1)}),
    "7x7": ((1, 2, 9, 16), (2, 1, 7, 7), {"padding": 3}),
    "no padding": ((1, 2, 6, 18), (2, 1, 3, 3), {}),
    "padding beyond the filter": ((1, 2, 5, 8), (2, 1, 2, 3), {"padding": (3, 4)}),
    "dilation": ((1, 2, 13, 16), (2, 1, 3, 3), {"padding": (2, 3), "dilation": (2, 3), "stride": (3, 2)}),
    "gaps": ((1, 2, 17, 16), (2, 1, 2, 1), {"stride": (5, 4)}),
    "three filters a channel": ((2, 2, 5, 8), (6, 1, 3, 3), {"padding": 1}),
    "two channels, three filters": ((2, 4, 6, 16), (6, 2, 3, 3), {"padding": 1}),
    "five channels, one filter": ((1, 10, 6, 8), (2, 5, 3, 3), {"padding": 1, "stride": 2}),
    "many images": ((300, 2, 2, 4), (2, 1, 3, 3), {"padding": 1}),
}


@pytest.fixture(params=[name for name in FAMILIES if "gpu" in name])
def gpu(request):
    """Queues with the kernels of GPUs, which do not fall back here."""
    with force("depthwise"):
        yield queue_of(request.param)


def check(queue, x_shape, w_shape, options, dtype="float32"):
    groups = x_shape[1] // w_shape[1]
    ref = Reference(x_shape, w_shape, **options, groups=groups)
    x, w, g = values(x_shape, dtype), values(w_shape, dtype, 1), values(ref.y_shape, dtype, 2)
    put, taps = [Tensor.from_host(queue, a) for a in (x, w, g)], int(np.prod(w_shape[1:]))
    options = {**options, "groups": groups}
    close(conv2d(put[0], put[1], **options), ref.forward(x, w), dtype, taps)
    close(conv2d_input_grad(put[2], put[1], x_shape, **options), ref.input_grad(g, w), dtype, taps * w_shape[0])
    pixels = ref.y_shape[0] * ref.y_shape[2] * ref.y_shape[3]
    close(conv2d_weight_grad(put[2], put[0], w_shape, **options), ref.weight_grad(g, x), dtype, pixels)


@pytest.mark.parametrize("case", list(CASES))
def test_sizes(gpu, case):
    check(gpu, *CASES[case])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("case", ["rows of vectors", "rows of vectors, stride 2", "odd rows", "rows of pairs"])
def test_other_floats(gpu, case, dtype):
    check(gpu, *CASES[case], dtype)


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_bias_and_activation(gpu, activation):
    x, w, b = values((2, 2, 5, 8)), values((6, 1, 3, 3), seed=1), values((6,), seed=2)
    y = conv2d(*(Tensor.from_host(gpu, a) for a in (x, w, b)), padding=1, groups=2, activation=activation)
    ref = Reference(x.shape, w.shape, padding=1, groups=2)
    close(y, ACTIVATIONS[activation](ref.forward(x, w) + b.astype("f8")[:, None, None]), terms=9)


def test_views(gpu):
    """Any strides and offsets of x and g, an offset of the weights."""
    x, w = values((8, 3, 9, 2)), values((5, 1, 3, 3), seed=1)
    view, filters = Tensor.from_host(gpu, x).permute(3, 1, 2, 0), Tensor.from_host(gpu, w)[2:]
    ref = Reference((2, 3, 9, 8), (3, 1, 3, 3), padding=1, groups=3)
    array = x.transpose(3, 1, 2, 0)
    close(conv2d(view, filters, padding=1, groups=3), ref.forward(array, w[2:]), terms=9)
    g = values(ref.y_shape, seed=2)
    upstream = Tensor.from_host(gpu, np.ascontiguousarray(g.swapaxes(1, 3))).transpose(1, 3)
    close(conv2d_input_grad(upstream, filters, ref.x_shape, padding=1, groups=3), ref.input_grad(g, w[2:]), terms=9)
    close(conv2d_weight_grad(upstream, view, ref.w_shape, padding=1, groups=3), ref.weight_grad(g, array), terms=144)
    flat = values((600,), seed=3)
    for offset in (1, 2, 4, 8):
        array = flat[offset : offset + 512].reshape(2, 2, 8, 16)
        view = Tensor.from_host(gpu, flat)[offset : offset + 512].reshape(2, 2, 8, 16)
        ref = Reference(array.shape, (2, 1, 3, 3), padding=1, groups=2)
        close(conv2d(view, filters[:2], padding=1, groups=2), ref.forward(array, w[2:4]), terms=9)
        dw = conv2d_weight_grad(view, view, (2, 1, 3, 3), padding=1, groups=2)
        close(dw, ref.weight_grad(array, array), terms=256)


@pytest.mark.parametrize("width", [5, 8, 19])
def test_infinities_stay_where_they_are_read(gpu, width):
    """Neither the rows behind the last tile nor pixels that no output reads at a tap reach the filter's gradient."""
    x = np.ones((1, 2, 3, width), np.float32)
    x[:, :, 1, -1] = np.inf
    g, x = Tensor.from_host(gpu, np.ones_like(x)), Tensor.from_host(gpu, x)
    dw = conv2d_weight_grad(g, x, (2, 1, 3, 3), padding=1, groups=2).to_host()
    assert np.isfinite(dw[..., 0]).all() and np.isinf(dw[..., 1:]).all()
    x = np.ones((1, 2, 5, width), np.float32)
    x[:, :, 4] = np.inf  # below the windows of the only row of outputs
    g = Tensor.ones(gpu, (1, 2, 1, width))
    dw = conv2d_weight_grad(g, Tensor.from_host(gpu, x), (2, 1, 3, 1), groups=2, stride=(3, 1)).to_host()
    np.testing.assert_array_equal(dw, width)


def test_what_suits():
    def suits(c, o, groups):
        return register_tiled.suits(geometry("test", (1, c, 9, 9), (o, c // groups, 3, 3), 1, 0, 1, groups))

    assert suits(8, 8, 8) and suits(8, 64, 8) and suits(64, 8, 8) and suits(6, 6, 2)
    assert not suits(8, 8, 2) and not suits(1, 8, 1)


@pytest.mark.parametrize("form", [((1, 2, 12, 13), (2, 1, 9, 8), 1), ((1, 2, 20, 33), (2, 1, 2, 2), 9)])
def test_tiles_take_what_is_too_large(form):
    """Filters of more taps than registers hold, and gradients whose stride makes tiles too large."""
    x_shape, w_shape, stride = form
    for name in FAMILIES:
        if "gpu" in name:
            check(queue_of(name), x_shape, w_shape, {"stride": stride})
