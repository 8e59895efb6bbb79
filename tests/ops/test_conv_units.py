"""Convolutions on matrix units: packing and adding up, which run anywhere, and results on a GPU that has the units."""

import dataclasses

import numpy as np
import pytest
from units import TOLERANCE, error, families, packed, tf32

from netcl.core.backend.opencl import read
from netcl.core.device import manager
from netcl.core.device.profile import override_profile, profile_of
from netcl.core.dtypes import BFLOAT16, C_NAME, FLOAT16, FLOAT32
from netcl.core.tensor import Tensor
from netcl.kernels.route import force
from netcl.ops.convolution.op import conv2d, conv2d_input_grad, conv2d_weight_grad
from netcl.ops.convolution.problem import geometry
from netcl.ops.nvidia import conv, images, probe, wgmma
from netcl.ops.nvidia.pack import Operand, Pixels, packing, pitch_of
from netcl.ops.nvidia.precision import set_matmul_precision

NARROW = pytest.mark.parametrize("narrow", [FLOAT16, BFLOAT16], ids=str)


CONVOLUTIONS = [
    ((2, 3, 7, 6), (4, 3, 3, 3), 1, 1, 1), ((2, 3, 7, 6), (4, 3, 3, 3), 2, 1, 1),
    ((1, 2, 9, 8), (3, 2, 2, 3), (1, 3), (0, 2), 2), ((2, 2, 5, 5), (3, 2, 1, 1), 2, 0, 1),
    ((1, 1, 4, 4), (1, 1, 4, 4), 1, 3, 1), ((1, 2, 12, 5), (2, 2, 5, 2), 3, (2, 0), (2, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("x_shape", "w_shape", "stride", "padding", "dilation"), CONVOLUTIONS)
def test_packed_images_turn_taps_into_shifts(cl_queue, x_shape, w_shape, stride, padding, dilation):
    """A convolution as products of shifted rows of the packed images, in NumPy, against the definition."""
    g = geometry("test", x_shape, w_shape, stride, padding, dilation, 1)
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal(x_shape).astype("f4"), rng.standard_normal(w_shape).astype("f4")
    layout = images.grid(g, even=True)
    rows, phases, pitch = g.n * layout.pixels, g.stride[0] * g.stride[1], pitch_of(g.c, "float")
    t = Tensor.from_host(cl_queue, x)
    n_step, c_step, h_step, w_step = t.strides
    target = Operand((1, phases, rows, g.c), (phases * rows * pitch, rows * pitch, pitch, 1))
    looks = Pixels("rows", layout.width, layout.height, (g.h, g.w), (n_step, h_step), g.stride, g.n)
    pack = packing(cl_queue, target, (0, 0, w_step, c_step), "float", 1, pixels=looks)
    pixels = packed(cl_queue, pack, t, (phases, rows, pitch), "f4")[..., : g.c].astype("f8")
    y = np.zeros((rows, g.o))
    for (shift, phase), weights in zip(layout.taps, w.reshape(g.o, g.c, -1).transpose(2, 1, 0)):
        index = np.arange(rows) + shift
        inside = (index >= 0) & (index < rows)
        y[inside] += pixels[phase][index[inside]] @ weights
    y = y.reshape(g.n, layout.height, layout.width, g.o)[:, : g.out[0], : g.out[1]].transpose(0, 3, 1, 2)
    host = manager.default("cpu").queue
    wide = [Tensor.from_host(host, v.astype("f8")) for v in (x, w)]
    expected = conv2d(*wide, None, stride, padding, dilation)
    np.testing.assert_allclose(y, expected.to_host(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("x_shape", "w_shape", "stride", "padding", "dilation"), CONVOLUTIONS)
def test_columns_hold_what_a_pixel_reads(cl_queue, x_shape, w_shape, stride, padding, dilation, groups, dtype):
    """A convolution as one product of columns and packed weights, in NumPy, against the definition."""
    x_shape, slots = (x_shape[0], groups * x_shape[1], *x_shape[2:]), 32
    w_shape = (groups * w_shape[0], *w_shape[1:])
    g = geometry("test", x_shape, w_shape, stride, padding, dilation, groups)
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal(x_shape).astype(dtype), rng.standard_normal(w_shape).astype(dtype)
    around = np.full((x_shape[0], x_shape[1], x_shape[2] + 3, x_shape[3] + 2), np.nan, dtype)
    around[:, :, 1:-2, 1:-1] = x
    layout, taps, c, o = images.dense_grid(g, even=True), g.kh * g.kw, x_shape[1] // groups, w_shape[0] // groups
    view, rows = Tensor.from_host(cl_queue, around)[:, :, 1:-2, 1:-1], g.n * layout.pixels
    pack = images.pack_columns(cl_queue, g, layout, view, slots)
    columns = packed(cl_queue, pack, view, (groups, rows, taps * slots), dtype).astype("f8")
    weights = np.zeros((groups, o, taps, slots))
    weights[..., :c] = w.reshape(groups, o, c, taps).swapaxes(2, 3)
    y = columns @ weights.reshape(groups, o, -1).swapaxes(1, 2)
    y = y.reshape(groups, g.n, layout.height, layout.width, o)[:, :, :, : g.out[1]].transpose(1, 0, 4, 2, 3)
    wide = [Tensor.from_host(manager.default("cpu").queue, v.astype("f8")) for v in (x, w)]
    expected = conv2d(*wide, None, stride, padding, dilation, groups)
    np.testing.assert_allclose(y.reshape(g.y_shape), expected.to_host(), rtol=1e-12, atol=1e-12)


H200 = {"name": "NVIDIA H200", "vendor": "NVIDIA", "architecture": "sm_90", "compute_units": 132, "kind": "gpu"}


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "stride", "padding", "forward", "gradient"),
    [
        ((128, 512, 4, 4), (512, 512, 3, 3), 1, 1, True, True), ((32, 64, 56, 56), (64, 64, 3, 3), 1, 1, False, False),
        ((32, 64, 56, 56), (128, 64, 1, 1), 2, 0, True, True), ((32, 96, 28, 28), (512, 96, 1, 1), 1, 0, False, False),
        ((32, 512, 7, 7), (512, 512, 3, 3), 1, 1, False, True),
    ],
)  # fmt: skip
def test_small_images_and_single_taps_become_columns(cl_queue, x_shape, w_shape, stride, padding, forward, gradient):
    g = geometry("test", x_shape, w_shape, stride, padding, 1, 1)
    profile = dataclasses.replace(profile_of(cl_queue), **H200, max_work_group=1024, local_mem=49152)
    with override_profile(cl_queue, profile):
        x = Tensor.empty(cl_queue, (1, 1, 1, 1), "float16")
        slots = -(-g.c // 64) * 64
        assert bool(images.forward_images(cl_queue, [g], x, wgmma.ROWS["half"], slots, True).columns) == forward
        assert bool(images.gradient_images(cl_queue, g, x, wgmma.ROWS["half"], slots).columns) == gradient


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(
    ("groups", "rows", "channels", "window", "taps"),
    [(1, 3, 5, 9, range(9)), (2, 2, 70, 9, (8, 6, 2, 0)), (1, 2, 66, 1, (0,)), (1, 1, 3, 130, range(129, -1, -1))],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_packed_weights_have_channels_along_memory(cl_queue, parts, groups, rows, channels, window, taps, transposed):
    """Also the other way round, as input gradients read them, and with some taps in another order."""
    shape = (groups, channels, rows, window) if transposed else (groups, rows, channels, window)
    w = np.random.default_rng(window).standard_normal(shape).astype("f4")
    steps = (
        (rows * channels * window, window, rows * window)
        if transposed
        else (rows * channels * window, channels * window, window)
    )
    slots = -(-channels // 32) * 32
    pack = conv._pack_weights(cl_queue, "float", parts, (groups, rows, slots, channels), steps, list(taps))
    got = np.empty((2 if parts == 3 else 1, groups, rows, len(taps), slots), "f4")
    read(cl_queue, got, pack(Tensor.from_host(cl_queue, w)).buffer)
    expected = np.zeros(got.shape[1:], "f4")
    expected[..., :channels] = (w.swapaxes(1, 2) if transposed else w)[..., list(taps)].swapaxes(2, 3)
    np.testing.assert_array_equal(got[0], tf32(expected))
    if parts == 3:
        np.testing.assert_array_equal(got[1], tf32(expected - tf32(expected)))


@NARROW
def test_packed_narrow_weights_are_their_bits(cl_queue, narrow):
    w = np.random.default_rng(1).standard_normal((3, 40, 9)).astype(narrow)
    w[0, 0, :3] = np.nan, -np.inf, -0.0
    pack = conv._pack_weights(cl_queue, C_NAME[narrow], 1, (1, 3, 64, 40), (1080, 360, 9), list(range(9)))
    got = np.empty((3, 9, 64), narrow)
    read(cl_queue, got, pack(Tensor.from_host(cl_queue, w)).buffer)
    np.testing.assert_array_equal(got[..., :40].view("u2"), w.swapaxes(1, 2).view("u2"))
    np.testing.assert_array_equal(got[..., 40:], 0)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32])
@pytest.mark.parametrize(
    ("groups", "outs", "channels", "kernel", "splits"),
    [(1, 33, 5, (3, 3), 3), (2, 31, 66, (1, 2), 1), (1, 1, 8, (1, 1), 2), (1, 520, 64, (3, 3), 2)],
)
def test_parts_of_weight_gradients_add_up(cl_queue, dtype, groups, outs, channels, kernel, splits):
    window, slots = kernel[0] * kernel[1], -(-channels // 64) * 64
    g = geometry("test", (1, groups * channels, 9, 9), (groups * outs, channels, *kernel), 1, 0, 1, groups)
    part = np.random.default_rng(outs).integers(-9, 9, (splits, groups, window, slots, outs)).astype("f4")
    dw = Tensor.empty(cl_queue, g.w_shape, dtype)
    conv._adding(cl_queue, g, dtype, slots, splits)(dW=dw, part=Tensor.from_host(cl_queue, part).buffer)
    expected = part.sum(0)[:, :, :channels].transpose(0, 3, 2, 1)
    np.testing.assert_array_equal(dw.to_host(), expected.reshape(g.w_shape))


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "precision"), list(TOLERANCE))
@pytest.mark.parametrize(
    ("stride", "padding", "groups", "kernel"), [(1, 1, 1, 3), (2, 1, 1, 3), (1, 0, 2, (1, 2)), (3, 2, 1, 5)]
)
@pytest.mark.parametrize("columns", [False, True])
def test_convolutions_on_units(monkeypatch, gpu, precise, dtype, precision, stride, padding, groups, kernel, columns):
    """With padded images and with columns, which have at least twice the elements of a pixel."""
    if "wgmma" not in families(gpu):
        pytest.skip("no wgmma here")
    set_matmul_precision(precision)
    monkeypatch.setattr(images, "cost", lambda tiling, queue, g, layout, each, x: (-each, each)[not columns])
    gpu.netcl_state.plans.clear()
    kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
    how = {"stride": stride, "padding": padding, "groups": groups}
    rng = np.random.default_rng(7)
    x, w = (
        rng.standard_normal((3, 32, 17, 14)).astype(dtype),
        rng.standard_normal((48, 32 // groups, *kernel)).astype(dtype),
    )
    b = rng.standard_normal(48).astype(dtype)
    host = manager.default("cpu").queue
    wide = [Tensor.from_host(host, v.astype("f8")) for v in (x, w, b)]
    y = conv2d(*wide, **how).to_host()
    g = rng.standard_normal(y.shape).astype(dtype)
    wide_g, tg = Tensor.from_host(host, g.astype("f8")), Tensor.from_host(gpu, g)
    tx, tw, tb = (Tensor.from_host(gpu, v) for v in (x, w, b))
    with probe.only("wgmma"), force("wgmma"):
        got = [
            conv2d(tx, tw, tb, **how),
            conv2d_input_grad(tg, tw, x.shape, **how),
            conv2d_weight_grad(tg, tx, w.shape, **how),
        ]
    exact = [y, conv2d_input_grad(wide_g, wide[1], x.shape, **how).to_host(),
             conv2d_weight_grad(wide_g, wide[0], w.shape, **how).to_host()]  # fmt: skip
    for mine, right in zip(got, exact):
        assert error(mine.to_host(), right) < TOLERANCE[dtype, precision]
