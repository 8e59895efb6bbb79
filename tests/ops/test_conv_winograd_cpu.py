"""3x3 convolutions by Winograd's transforms on CPU devices: against plain loops in double precision."""

import dataclasses

import numpy as np
import pytest
from conv_reference import ACTIVATIONS, Reference, check, close, values

from netcl.core.device.profile import override_profile, profile_of
from netcl.core.tensor import Tensor
from netcl.kernels.route import force
from netcl.ops.convolution import winograd
from netcl.ops.convolution.op import conv2d, conv2d_input_grad, conv2d_weight_grad
from netcl.ops.nvidia.precision import set_matmul_precision


@pytest.fixture
def any_tiles(monkeypatch):
    """Weight gradients by Winograd's form however few tiles there are."""
    monkeypatch.setattr(winograd, "FEW", 0)


WINOGRAD = {
    "even": ((2, 16, 8, 8), (16, 16, 3, 3), {"padding": 1}),
    "odd": ((3, 17, 7, 9), (19, 17, 3, 3), {"padding": 1}),
    "no padding": ((2, 20, 11, 12), (22, 20, 3, 3), {}),
    "wide padding": ((1, 16, 5, 33), (23, 16, 3, 3), {"padding": (2, 3)}),
    "groups": ((2, 32, 9, 10), (48, 16, 3, 3), {"padding": 1, "groups": 2}),
    "many channels": ((1, 130, 6, 8), (64, 130, 3, 3), {"padding": 1}),
    "several blocks of channels": ((1, 150, 4, 7), (150, 150, 3, 3), {"padding": 1}),
    "wider than a band": ((1, 16, 5, 131), (16, 16, 3, 3), {"padding": 1}),
    "fewest channels": ((2, 8, 9, 18), (18, 8, 3, 3), {"padding": 1}),
    "fewest outputs": ((2, 19, 9, 18), (8, 19, 3, 3), {"padding": 1}),
    "many small images": ((50, 16, 3, 5), (16, 16, 3, 3), {"padding": 1}),
}


@pytest.mark.parametrize("case", list(WINOGRAD))
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_winograd_sizes(cl_queue, case, dtype):
    x_shape, w_shape, options = WINOGRAD[case]
    with force("winograd"):
        check(cl_queue, x_shape, w_shape, dtype, **options)


@pytest.mark.usefixtures("any_tiles")
@pytest.mark.parametrize("vector", [8, 16])
@pytest.mark.parametrize("size", [3, 4, 5, 7, 8, 9, 15, 16, 17])
def test_winograd_at_the_borders_of_tiles(cl_queue, size, vector):
    """Heights and widths beside multiples of four, channels beside those of vectors and of register tiles."""
    with override_profile(cl_queue, dataclasses.replace(profile_of(cl_queue), vector=vector)):
        for wide, c, o in ((4, 16, 33), (size, 25, 16), (21, 31, 47)):
            check(cl_queue, (2, c, size, wide), (o, c, 3, 3), padding=1)
        for dtype in ("float16", "bfloat16"):
            check(cl_queue, (1, 18, size + 2, 9), (17, 18, 3, 3), dtype=dtype)


@pytest.mark.usefixtures("any_tiles")
@pytest.mark.parametrize("vector", [8, 16])
def test_winograd_reads_nothing_beside_a_view(cl_queue, vector):
    """A window of a larger batch, which NaN surrounds, and one at the end of its buffer."""
    big = np.full((3, 30, 14, 29), np.nan, "f4")
    big[:2, 3:23, 2:13, 5:26], big[1:, 10:, 3:, 8:] = values((2, 20, 11, 21)), values((2, 20, 11, 21), seed=3)
    with override_profile(cl_queue, dataclasses.replace(profile_of(cl_queue), vector=vector)):
        for batch, window in ((slice(0, 1), np.s_[3:23, 2:13, 5:26]), (slice(2, 3), np.s_[10:, 3:, 8:])):
            x, w = big[(batch, *window)], values((18, 20, 3, 3), seed=1)
            view = Tensor.from_host(cl_queue, big)[(batch, *window)]
            ref = Reference(x.shape, w.shape, padding=1)
            g = values(ref.y_shape, seed=2)
            put = [Tensor.from_host(cl_queue, a) for a in (w, g)]
            close(conv2d(view, put[0], padding=1), ref.forward(x, w), terms=180)
            close(conv2d_weight_grad(put[1], view, w.shape, padding=1), ref.weight_grad(g, x), terms=231)


def test_winograd_for_few_and_for_many_tiles(cl_queue):
    """Filters that no cache holds are transformed for many tiles only."""
    with override_profile(cl_queue, dataclasses.replace(profile_of(cl_queue), cache=1 << 10)):
        check(cl_queue, (1, 16, 9, 9), (20, 16, 3, 3), padding=1)
        check(cl_queue, (9, 16, 9, 9), (20, 16, 3, 3), padding=1)


@pytest.mark.usefixtures("any_tiles")
@pytest.mark.parametrize("local", [1 << 15, 1 << 17, 1 << 18])
def test_winograd_with_little_local_memory(cl_queue, local):
    """Smaller blocks, or the direct form where none fits."""
    with override_profile(cl_queue, dataclasses.replace(profile_of(cl_queue), local_mem=local)):
        check(cl_queue, (2, 70, 9, 9), (70, 70, 3, 3), padding=1)


def test_winograd_rounds_little(cl_queue):
    """Errors against double precision: 1.5e-6 of the root mean square, 5e-6 of the largest."""
    x, w = values((4, 64, 28, 28)), values((64, 64, 3, 3), seed=1)
    ref = Reference(x.shape, w.shape, padding=1)
    g = values(ref.y_shape, seed=2)
    put = [Tensor.from_host(cl_queue, a) for a in (x, w, g)]
    for found, expected in (
        (conv2d(put[0], put[1], padding=1), ref.forward(x, w)),
        (conv2d_input_grad(put[2], put[1], x.shape, padding=1), ref.input_grad(g, w)),
        (conv2d_weight_grad(put[2], put[0], w.shape, padding=1), ref.weight_grad(g, x)),
    ):
        error = found.to_host() - expected
        assert np.sqrt((error**2).mean()) <= 1.5e-6 * np.sqrt((expected**2).mean())
        assert np.abs(error).max() <= 5e-6 * np.abs(expected).max()


def test_weights_that_meet_nothing_have_no_gradient(cl_queue):
    """A few images that are zero but at one pixel: exactly zero, which transforms would not give."""
    x = np.zeros((3, 16, 8, 8), np.float32)
    x[:, :, 0, 0] = values((3, 16))
    g = values((3, 20, 8, 8), seed=1)
    g[:, :, 0, 0] = 0
    dw = conv2d_weight_grad(Tensor.from_host(cl_queue, g), Tensor.from_host(cl_queue, x), (20, 16, 3, 3), padding=1)
    ref = Reference(x.shape, (20, 16, 3, 3), padding=1).weight_grad(g, x)
    met = np.zeros((3, 3), bool)
    met[0, :2] = met[:2, 0] = True  # the outputs beside the pixel
    met[1, 1] = False  # the one at it
    assert (ref[..., met] != 0).any() and (dw.to_host()[..., ~met] == 0).all()
    close(dw, ref, terms=12)


@pytest.mark.usefixtures("any_tiles")
def test_highest_precision_is_plain_arithmetic(cl_queue):
    """No transforms: an infinite pixel reaches the nine outputs beside it and no others."""
    x, w = values((1, 16, 12, 12)), values((16, 16, 3, 3), seed=1)
    x[0, 3, 5, 6] = np.inf
    tensors = [Tensor.from_host(cl_queue, a) for a in (x, w)]
    set_matmul_precision("highest")
    try:
        y = conv2d(*tensors, padding=1).to_host()
        dw = conv2d_weight_grad(Tensor.from_host(cl_queue, np.ones_like(x)), tensors[0], w.shape, padding=1).to_host()
    finally:
        set_matmul_precision("high")
    reached = np.zeros((12, 12), bool)
    reached[4:7, 5:8] = True
    assert np.isfinite(y[:, :, ~reached]).all() and not np.isfinite(y[:, :, reached]).any()
    assert np.isinf(dw[:, 3]).all() and np.isfinite(np.delete(dw, 3, 1)).all()


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
def test_winograd_bias_activation_and_views(queue, activation):
    x, w, b = values((2, 20, 13, 18)), values((18, 20, 3, 3), seed=1) / 8, values((18,), seed=2)
    tensor = Tensor.from_host(queue, x)[:, :, ::-1].transpose(2, 3)
    expected = x[:, :, ::-1].swapaxes(2, 3)
    ref = Reference(expected.shape, w.shape, padding=1)
    y = conv2d(tensor, *(Tensor.from_host(queue, a) for a in (w, b)), padding=1, activation=activation)
    close(y, ACTIVATIONS[activation](ref.forward(expected, w) + b.astype("f8")[:, None, None]), terms=180)
