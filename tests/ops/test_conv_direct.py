"""Convolutions of filters with few taps, by the kernel that sums out of registers, against plain loops."""

import numpy as np
import pytest
from conv_reference import ACTIVATIONS, Reference, close, values
from families import FAMILIES, queue_of

from netcl.core.tensor import Tensor
from netcl.kernels.route import force
from netcl.ops.convolution import direct
from netcl.ops.convolution.op import conv2d
from netcl.ops.convolution.problem import geometry

CASES = {
    "first layer": ((2, 3, 9, 11), (20, 3, 3, 3), {"padding": 1}),
    "patches": ((2, 3, 9, 13), (5, 3, 4, 4), {"stride": 4, "padding": 2}),
    "most taps": ((1, 1, 15, 70), (17, 1, 8, 8), {"stride": (1, 2), "padding": (3, 5)}),
    "one tap": ((3, 1, 5, 7), (33, 1, 1, 1), {}),
    "one output": ((1, 5, 40, 41), (1, 5, 2, 3), {"dilation": (3, 2)}),
    "padding alone": ((1, 2, 2, 2), (3, 2, 2, 2), {"stride": 3, "padding": 5}),
}


@pytest.fixture(params=[name for name in FAMILIES if "gpu" in name])
def gpu(request):
    """Queues with the kernels of GPUs, which do not fall back here."""
    with force("direct"):
        yield queue_of(request.param)


def run(queue, case, dtype="float32", bias=False, activation=None):
    x_shape, w_shape, options = CASES[case]
    x, w, b = values(x_shape, dtype), values(w_shape, dtype, 1), values(w_shape[:1], dtype, 2)
    tensors = [Tensor.from_host(queue, a) for a in (x, w, b)[: 3 if bias else 2]]
    wanted = Reference(x_shape, w_shape, **options).forward(x, w)
    wanted = wanted + b.astype(np.float64).reshape(-1, 1, 1) if bias else wanted
    got = conv2d(*tensors, **options, activation=activation)
    close(got, ACTIVATIONS[activation](wanted) if activation else wanted, dtype, int(np.prod(w_shape[1:])))


@pytest.mark.parametrize("case", list(CASES))
def test_sizes(gpu, case):
    run(gpu, case)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types(gpu, dtype):
    run(gpu, "first layer", dtype)


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_bias_and_activation(gpu, activation):
    run(gpu, "patches", bias=True, activation=activation)


def test_views(gpu):
    """Any strides of x, an offset of the weights."""
    x, w = values((9, 3, 8, 2)), values((7, 3, 3, 3), seed=1)
    view, filters = Tensor.from_host(gpu, x).permute(3, 1, 0, 2), Tensor.from_host(gpu, w)[2:]
    got = conv2d(view, filters, padding=1)
    wanted = Reference((2, 3, 9, 8), (5, 3, 3, 3), padding=1).forward(x.transpose(3, 1, 0, 2), w[2:])
    close(got, wanted, terms=27)


def test_infinities_stay_where_they_are_read(gpu):
    """Zeros of the padding and of the rows' fill are never multiplied by what is not finite."""
    x, w = values((1, 3, 6, 6)), values((2, 3, 3, 3), seed=1)
    x[0, 1, 2, 3] = np.inf
    w[1, 2, 2, 2] = np.nan
    got = conv2d(Tensor.from_host(gpu, x), Tensor.from_host(gpu, w)).to_host()
    touched = np.zeros((4, 4), bool)
    touched[0:3, 1:4] = True
    np.testing.assert_array_equal(~np.isfinite(got[0, 0]), touched)
    assert np.isnan(got[0, 1]).all()


def test_what_suits():
    def suits(x_shape, w_shape, groups=1, dtype="float32"):
        return direct.suits(geometry("test", x_shape, w_shape, 1, 0, 1, groups), np.dtype(dtype))

    assert suits((1, 3, 9, 9), (64, 3, 3, 3))
    assert not suits((1, 8, 9, 9), (64, 8, 3, 3))
    assert not suits((1, 0, 9, 9), (64, 0, 3, 3))  # no arrays without elements
    assert not suits((1, 2, 9, 9), (64, 1, 3, 3), groups=2)
    assert suits((1 << 11, 1, 1 << 10, 1 << 9), (1, 1, 1, 1))
    assert not suits((1, 1, (1 << 31) - 1, 1), (1, 1, 1, 1))  # the last group would count beyond 31 bits
    assert not suits((1, 3, 9, 9), (64, 3, 3, 3), dtype="float64")
