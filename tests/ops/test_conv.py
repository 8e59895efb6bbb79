"""conv2d and its gradients against plain loops in double precision; both kernel families; field cases."""

import dataclasses
import itertools
import math

import numpy as np
import pyopencl as cl
import pytest
from conv_reference import ACTIVATIONS, Reference, check, close, values
from families import FAMILIES, queue_of

from netcl.core.backend import opencl
from netcl.core.device.profile import override_profile, profile_of
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.tensor import Tensor
from netcl.kernels import tuning
from netcl.ops.convolution import implicit_gemm, winograd
from netcl.ops.convolution.op import conv2d, conv2d_bias_grad, conv2d_input_grad, conv2d_weight_grad
from netcl.ops.convolution.problem import geometry, residues
from netcl.ops.nvidia import probe

GPU = next(name for name in FAMILIES if "gpu" in name)  # a device that has the kernels of GPUs


CASES = {
    "1x1": ((2, 5, 6, 7), (3, 5, 1, 1), {}),
    "1x1 stride 2": ((2, 5, 7, 7), (3, 5, 1, 1), {"stride": 2}),
    "3x3": ((1, 1, 5, 5), (1, 1, 3, 3), {"padding": 1}),
    "3x3 on rows of 8": ((3, 4, 8, 8), (16, 4, 3, 3), {"padding": 1}),
    "3x3 on rows of 7": ((3, 8, 7, 7), (17, 8, 3, 3), {"padding": 1}),
    "3x3 on rows of 3": ((5, 2, 3, 3), (7, 2, 3, 3), {"padding": 1}),
    "3x3 on single pixels": ((9, 3, 1, 1), (5, 3, 3, 3), {"padding": 1}),
    "3x3 many channels": ((1, 65, 9, 17), (67, 65, 3, 3), {"padding": 1}),
    "more rows than a block": ((1, 3, 5, 6), (200, 3, 3, 3), {"padding": 1}),
    "no padding": ((2, 3, 9, 8), (4, 3, 3, 3), {}),
    "padding beyond the filter": ((2, 3, 5, 6), (4, 3, 3, 3), {"padding": 4}),
    "stride 2": ((2, 3, 11, 13), (4, 3, 3, 3), {"stride": 2, "padding": 1}),
    "stride 3": ((2, 3, 11, 13), (4, 3, 3, 3), {"stride": 3, "padding": 1}),
    "stride beyond the filter": ((2, 3, 11, 13), (4, 3, 2, 2), {"stride": 4}),
    "dilation 2": ((2, 3, 11, 13), (4, 3, 3, 3), {"padding": 2, "dilation": 2}),
    "stride 2 dilation 3": ((1, 2, 17, 19), (3, 2, 3, 3), {"stride": 2, "padding": 3, "dilation": 3}),
    "stride 4 dilation 2": ((1, 2, 17, 19), (3, 2, 3, 3), {"stride": 4, "padding": 2, "dilation": 2}),
    "all different": (
        (2, 4, 12, 15),
        (6, 2, 2, 5),
        {"stride": (2, 1), "padding": (0, 3), "dilation": (3, 2), "groups": 2},
    ),
    "7x7 stride 2": ((1, 3, 33, 40), (8, 3, 7, 7), {"stride": 2, "padding": 3}),
    "patches": ((2, 3, 32, 32), (10, 3, 8, 8), {"stride": 8}),
    "filter as large as the input": ((3, 2, 5, 6), (4, 2, 5, 6), {}),
    "row filter": ((2, 2, 4, 40), (3, 2, 1, 20), {"padding": (0, 9)}),
    "column filter": ((2, 2, 40, 4), (3, 2, 20, 1), {"padding": (9, 0)}),
    "groups": ((2, 6, 9, 10), (9, 2, 3, 3), {"padding": 1, "groups": 3}),
    "depthwise": ((2, 6, 9, 10), (6, 1, 3, 3), {"padding": 1, "groups": 6}),
    "depthwise stride 2": ((2, 6, 9, 10), (6, 1, 3, 3), {"stride": 2, "padding": 1, "groups": 6}),
    "depthwise dilation 2": ((2, 5, 9, 17), (5, 1, 5, 3), {"dilation": 2, "padding": (4, 2), "groups": 5}),
    "depthwise, two filters a channel": ((2, 3, 9, 10), (6, 1, 3, 3), {"padding": 1, "groups": 3}),
    "several images in one block": ((40, 2, 4, 4), (5, 2, 3, 3), {"padding": 1}),
    "1x1 of pixels in fours": ((3, 68, 4, 6), (70, 68, 1, 1), {}),
    "1x1 of pixels in fours, groups": ((3, 142, 4, 5), (18, 71, 1, 1), {"groups": 2}),
    "1x1 of pixels not in fours": ((5, 70, 3, 5), (9, 70, 1, 1), {}),
    "1x1 stride 2, many channels": ((2, 70, 8, 9), (68, 70, 1, 1), {"stride": 2}),
    "3x3 stride 2, many channels": ((3, 17, 9, 8), (72, 17, 3, 3), {"stride": 2, "padding": 1}),
    "5x5, many channels": ((2, 12, 8, 7), (9, 12, 5, 5), {"padding": 2}),
    "5x5, no padding": ((2, 16, 8, 8), (9, 16, 5, 5), {}),
}


@pytest.mark.parametrize("case", list(CASES))
def test_forward_and_gradients(queue, case):
    x_shape, w_shape, options = CASES[case]
    check(queue, x_shape, w_shape, **options)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize(
    "case",
    [
        "3x3 many channels", "3x3 on rows of 7", "stride 2", "all different", "depthwise", "patches",
        "1x1 of pixels in fours", "5x5, many channels",
    ],
)  # fmt: skip
def test_other_floats(queue, case, dtype):
    x_shape, w_shape, options = CASES[case]
    check(queue, x_shape, w_shape, dtype, **options)


@pytest.mark.parametrize("width", [1, 5, 6, 7, 15, 16, 17, 31, 33, 63, 64, 65])
def test_widths_round_the_vectors(queue, width):
    check(queue, (2, 2, 3, width), (7, 2, 3, 3), padding=1)


@pytest.mark.parametrize("vector", [8, 16])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_registers_of_both_widths(cl_queue, monkeypatch, vector, dtype):
    """Direct, strided, depthwise and Winograd forms with 16 floats a vector where registers hold 8, and so on."""
    monkeypatch.setattr(winograd, "FEW", 0)  # tiles of weight gradients by Winograd
    with override_profile(cl_queue, dataclasses.replace(profile_of(cl_queue), vector=vector)):
        check(cl_queue, (2, 3, 9, 21), (13, 3, 5, 3), dtype=dtype, padding=(2, 1))
        check(cl_queue, (2, 20, 9, 37), (29, 20, 3, 3), dtype=dtype, padding=1)
        check(cl_queue, (1, 6, 13, 40), (8, 3, 3, 3), dtype=dtype, stride=2, padding=1, groups=2)
        check(cl_queue, (2, 4, 7, 35), (4, 1, 3, 3), dtype=dtype, padding=1, groups=4)


@pytest.mark.parametrize("vector", [8, 16])
def test_depthwise_rows(cl_queue, vector):
    """Rows shorter and longer than a vector, heights beside multiples of four, filter rows of one to seven taps."""
    forms = [((3, 3), 1, 1), ((3, 4), 1, 2), ((5, 7), 1, 1), ((1, 1), 1, 1), ((3, 3), 2, 1), ((2, 5), 3, 1)]
    with override_profile(cl_queue, dataclasses.replace(profile_of(cl_queue), vector=vector)):
        for width in (3, 8, 16, 23, 40):
            for size, stride, dilation in forms:
                options = {"stride": stride, "dilation": dilation, "padding": (size[0] // 2 * dilation, 3), "groups": 2}
                check(cl_queue, (2, 2, 9, width), (2, 1, *size), **options)


@pytest.mark.parametrize("width", [5, 19, 32])
def test_depthwise_gradients_drop_what_lies_behind_a_row(queue, width):
    """An infinite pixel that no output reads at a tap leaves the tap's gradient finite."""
    x = np.ones((1, 2, 3, width), np.float32)
    x[:, :, 1, -1] = np.inf
    g, x = Tensor.from_host(queue, np.ones_like(x)), Tensor.from_host(queue, x)
    dw = conv2d_weight_grad(g, x, (2, 1, 3, 3), padding=1, groups=2).to_host()
    assert np.isfinite(dw[..., 0]).all() and np.isinf(dw[..., 1:]).all()


@pytest.fixture
def gpu_family(cl_queue):
    """The device's queue with the portable kernels that GPUs get, at groups of at most 64 work-items."""
    faked = dataclasses.replace(profile_of(cl_queue), kind="gpu", max_work_group=64)
    groups = []
    hook = lambda kernel, queue, size, local, *_: groups.append(math.prod(local or ()))  # noqa: E731
    opencl.hooks.append(hook)
    try:
        with override_profile(cl_queue, faked), probe.only():
            yield cl_queue
    finally:
        opencl.hooks.remove(hook)
    assert max(groups) <= 64


@pytest.mark.parametrize("case", list(CASES))
def test_gpu_family(gpu_family, case):
    x_shape, w_shape, options = CASES[case]
    check(gpu_family, x_shape, w_shape, **options)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_gpu_family_of_other_floats(dtype):
    queue = queue_of(GPU)
    for case in (
        "1x1 of pixels in fours",
        "1x1 of pixels not in fours",
        "3x3 stride 2, many channels",
        "all different",
    ):
        x_shape, w_shape, options = CASES[case]
        check(queue, x_shape, w_shape, dtype, **options)
    x, w, b = values((2, 70, 6, 6), dtype), values((9, 70, 1, 1), dtype, 1), values((9,), dtype, 2)
    expected = Reference(x.shape, w.shape, stride=2).forward(x, w) + b.astype("f8")[:, None, None]
    y = conv2d(*(Tensor.from_host(queue, a) for a in (x, w, b)), stride=2, activation="silu")
    close(y, ACTIVATIONS["silu"](expected), dtype, 70)


ROWS = {
    "more work-items than loads": {"BM": 128, "BN": 64, "BK": 8, "RM": 4, "RN": 4},
    "work-items that see several columns": {"BM": 16, "BN": 64, "BK": 8, "RM": 8, "RN": 8},
    "single sums": {"BM": 8, "BN": 12, "BK": 4, "RM": 1, "RN": 3},
    "a line of sums larger than a tile": {"BM": 32, "BN": 16, "BK": 4, "RM": 2, "RN": 4},
    "all sums on their way at once": {"BM": 16, "BN": 16, "BK": 32, "RM": 8, "RN": 2},
}


@pytest.mark.parametrize("row", list(ROWS))
def test_any_row_of_the_tuning_table(monkeypatch, row):
    queue = queue_of(GPU)
    names = [name for name in tuning.tables()[-1] if name.startswith("conv_gpu")]
    table, before = {name: {"default": ROWS[row]} for name in names}, tuning.tables()
    assert len(names) == 5
    monkeypatch.setattr(tuning, "tables", lambda: (table, {k: v for k, v in before[-1].items() if k not in names}))
    with override_profile(queue, profile_of(queue)):  # for plans of its own
        for case in ("1x1 of pixels in fours", "3x3 stride 2, many channels", "5x5, many channels"):
            x_shape, w_shape, options = CASES[case]
            check(queue, x_shape, w_shape, **options)


def test_tiles_of_doubles_fit_in_local_memory(cl_queue, monkeypatch):
    """The tuning table is for floats; tiles of doubles take twice the memory."""
    small = dataclasses.replace(profile_of(cl_queue), kind="gpu", max_work_group=256, local_mem=32 << 10)
    g = geometry("test", (2, 8, 33, 33), (70, 8, 3, 3), 1, 1, 1, 1)
    with override_profile(cl_queue, small):
        x, y = (Tensor.zeros(cl_queue, shape, "float64") for shape in ((2, 8, 33, 33), g.y_shape))
        made, build = [], implicit_gemm.program
        monkeypatch.setattr(implicit_gemm, "program", lambda *given: made.append(build(*given)) or made[-1])
        implicit_gemm.plan(g, x, y.strides, (True,) * 3, False, None)
        implicit_gemm.plan_weights(g, x, y, (True,) * 2)
    assert len(made) == 2
    for one in made:
        size = one.kernel.handle.get_work_group_info(cl.kernel_work_group_info.LOCAL_MEM_SIZE, cl_queue.device)
        assert size <= small.local_mem


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_bias_and_activation(queue, activation, dtype):
    for x_shape, w_shape, groups in (
        ((2, 3, 7, 9), (5, 3, 3, 3), 1),
        ((1, 40, 6, 6), (8, 40, 3, 3), 1),
        ((2, 4, 9, 9), (4, 1, 3, 3), 4),
    ):
        x, w, b = values(x_shape, dtype), values(w_shape, dtype, 1) / 4, values(w_shape[:1], dtype, 2)
        w = w.astype(dtype)
        ref = Reference(x_shape, w_shape, padding=1, groups=groups)
        y = conv2d(*(Tensor.from_host(queue, a) for a in (x, w, b)), padding=1, groups=groups, activation=activation)
        close(y, ACTIVATIONS[activation](ref.forward(x, w) + b.astype("f8")[:, None, None]), dtype, w[0].size)


def test_views(queue):
    x, w = values((3, 9, 12, 10)), values((4, 5, 3, 3), seed=1)
    ref = Reference((3, 5, 6, 10), (4, 5, 3, 3), padding=1)
    tensor, weights = Tensor.from_host(queue, x), Tensor.from_host(queue, w)
    sliced, expected = tensor[:, 2:7, ::2], x[:, 2:7, ::2]
    close(conv2d(sliced, weights, padding=1), ref.forward(expected, w), terms=45)
    last = Tensor.from_host(queue, np.ascontiguousarray(expected.transpose(0, 2, 3, 1))).permute(0, 3, 1, 2)
    close(conv2d(last, weights, padding=1), ref.forward(expected, w), terms=45)
    close(
        conv2d(tensor[:, 6:1:-1, 10::-2, ::-1], weights, padding=1),
        ref.forward(x[:, 6:1:-1, 10::-2, ::-1], w),
        terms=45,
    )
    transposed = Tensor.from_host(queue, np.ascontiguousarray(w.transpose(3, 2, 1, 0))).permute(3, 2, 1, 0)
    g = values(ref.y_shape, seed=2)
    view = Tensor.from_host(queue, np.ascontiguousarray(g.swapaxes(0, 3))).transpose(0, 3)
    close(conv2d_input_grad(view, transposed, ref.x_shape, padding=1), ref.input_grad(g, w), terms=36)
    close(conv2d_weight_grad(view, sliced, ref.w_shape, padding=1), ref.weight_grad(g, expected), terms=180)
    one = Tensor.from_host(queue, x[:1, :5, :6]).expand(3, 5, 6, 10)
    close(conv2d(one, weights, padding=1), ref.forward(np.broadcast_to(x[:1, :5, :6], (3, 5, 6, 10)), w), terms=45)


@pytest.mark.parametrize("device", FAMILIES)
def test_1x1_of_views(device):
    """Pixels in fours, from an element on that vectors may start at or not; steps between channels and images; NaN
    beside what is read."""
    queue, shape = queue_of(device), (2, 66, 4, 6)
    for start, dtype in itertools.product((0, 1, 4), ("float16", "float32")):
        around, strides = np.full(start + 2 * 70 * 28, np.nan, dtype), (70 * 28, 28, 6, 1)
        x, w, b = values(shape, dtype), values((10, 66, 1, 1), dtype, 1), values((10,), dtype, 2)
        place = np.lib.stride_tricks.as_strided(around[start:], shape, [s * around.itemsize for s in strides])
        place[...] = x
        flat = Tensor.from_host(queue, around)
        view = Tensor(flat.buffer, shape, strides, flat.offset + start, flat.dtype, queue)
        ref = Reference(shape, w.shape)
        g = values(ref.y_shape, dtype, 3)
        weights, bias, upstream = (Tensor.from_host(queue, a) for a in (w, b, g))
        expected = np.maximum(ref.forward(x, w) + b.astype("f8")[:, None, None], 0)
        close(conv2d(view, weights, bias, activation="relu"), expected, dtype, 66)
        close(conv2d_weight_grad(upstream, view, w.shape), ref.weight_grad(g, x), dtype, 48)


def test_bias_gradient(queue):
    g = values((3, 5, 6, 7))
    close(conv2d_bias_grad(Tensor.from_host(queue, g)), g.astype("f8").sum((0, 2, 3)), terms=126)


def test_NUM_10_zero_sizes(queue):
    w = Tensor.from_host(queue, values((4, 3, 3, 3)))
    empty = Tensor.zeros(queue, (0, 3, 5, 5))
    assert conv2d(empty, w).to_host().shape == (0, 4, 3, 3)
    g = Tensor.zeros(queue, (0, 4, 3, 3))
    assert conv2d_input_grad(g, w, (0, 3, 5, 5)).shape == (0, 3, 5, 5)
    np.testing.assert_array_equal(conv2d_weight_grad(g, empty, (4, 3, 3, 3)).to_host(), np.zeros((4, 3, 3, 3)))


def test_CNV_01_grouped_strided(queue):
    x = Tensor.from_host(queue, np.arange(32, dtype="f4").reshape(1, 2, 4, 4))
    w = Tensor.from_host(queue, np.stack([np.full((1, 3, 3), 1, "f4"), np.full((1, 3, 3), 2, "f4")]))
    options = {"stride": 2, "padding": 1, "groups": 2}
    y = conv2d(x, w, **options).to_host()
    np.testing.assert_array_equal(y, [[[[10, 24], [51, 90]], [[148, 240], [294, 468]]]])
    ones = Tensor.ones(queue, (1, 2, 2, 2))
    v = np.outer([1, 2, 1, 1], [1, 2, 1, 1])
    np.testing.assert_array_equal(conv2d_input_grad(ones, w, x.shape, **options).to_host(), [[v, 2 * v]])
    dw = conv2d_weight_grad(ones, x, w.shape, **options).to_host()
    first, second = [[5, 10, 12], [10, 20, 24], [18, 36, 40]], [[21, 42, 44], [42, 84, 88], [50, 100, 104]]
    np.testing.assert_array_equal(dw, [[first], [second]])


def test_CNV_02_stride_that_does_not_divide(queue):
    x = Tensor.from_host(queue, np.arange(36, dtype="f4").reshape(1, 1, 6, 6))
    w = Tensor.ones(queue, (1, 1, 3, 3))
    np.testing.assert_array_equal(conv2d(x, w, stride=2).to_host()[0, 0], [[63, 81], [171, 189]])
    dx = conv2d_input_grad(Tensor.ones(queue, (1, 1, 2, 2)), w, x.shape, stride=2).to_host()
    v = [1, 1, 2, 1, 1, 0]
    np.testing.assert_array_equal(dx[0, 0], np.outer(v, v))


def test_CNV_03_height_and_width_are_not_confused(queue):
    x = Tensor.from_host(queue, np.arange(30, dtype="f4").reshape(1, 1, 5, 6))
    w = Tensor.ones(queue, (1, 1, 2, 3))
    y = conv2d(x, w, dilation=(1, 2)).to_host()
    np.testing.assert_array_equal(y[0, 0], [[30, 36], [66, 72], [102, 108], [138, 144]])
    y = conv2d(x, w, dilation=(1, 2), stride=(2, 1), padding=(1, 0)).to_host()
    np.testing.assert_array_equal(y[0, 0], [[6, 9], [66, 72], [138, 144]])


def test_infinities_stay_where_they_are_read(queue):
    x, w = values((2, 2, 6, 9)), values((3, 2, 3, 3), seed=1)
    x[0, 1, 0, 0], x[1, 0, 5, 8], w[2, 1, 0, 2] = np.inf, np.nan, 0
    ref = Reference(x.shape, w.shape, padding=1)
    with np.errstate(all="ignore"):
        expected = ref.forward(x, w)
        expected_dw = ref.weight_grad(g := values(ref.y_shape, seed=2), x)
    y = conv2d(Tensor.from_host(queue, x), Tensor.from_host(queue, w), padding=1).to_host()
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    dw = conv2d_weight_grad(Tensor.from_host(queue, g), Tensor.from_host(queue, x), w.shape, padding=1).to_host()
    np.testing.assert_array_equal(np.isnan(dw), np.isnan(expected_dw))


@pytest.mark.parametrize("channels", [3, 18])
def test_DEV_05_nothing_is_read_outside(cl_queue, channels):
    """NaN lies right before and behind x."""
    x, w = values((2, channels, 7, 9)), values((channels, channels, 3, 3), seed=1)
    around = np.full(x.size + 40, np.nan, "f4")
    around[20:-20] = x.ravel()
    inside = Tensor.from_host(cl_queue, around)[20:-20].reshape(x.shape)
    y = conv2d(inside, Tensor.from_host(cl_queue, w), padding=2)
    close(y, Reference(x.shape, w.shape, padding=2).forward(x, w), terms=9 * channels)


def test_errors_name_the_shapes(queue):
    def zeros(*shape):
        return Tensor.zeros(queue, shape)

    with pytest.raises(ShapeError, match=r"conv2d: expected x \(N, C, H, W\)"):
        conv2d(zeros(3, 5, 5), zeros(4, 3, 3, 3))
    with pytest.raises(ShapeError, match="groups 1 dividing"):
        conv2d(zeros(1, 3, 5, 5), zeros(4, 2, 3, 3))
    with pytest.raises(ShapeError, match="groups 2"):
        conv2d(zeros(1, 4, 5, 5), zeros(3, 2, 3, 3), groups=2)
    with pytest.raises(ShapeError, match="fits the padded input"):
        conv2d(zeros(1, 3, 2, 5), zeros(4, 3, 3, 3))
    with pytest.raises(ShapeError, match="stride"):
        conv2d(zeros(1, 3, 5, 5), zeros(4, 3, 3, 3), stride=0)
    with pytest.raises(ShapeError, match="padding"):
        conv2d(zeros(1, 3, 5, 5), zeros(4, 3, 3, 3), padding=(1, 2, 3))
    with pytest.raises(ShapeError, match=r"bias of shape \(4,\)"):
        conv2d(zeros(1, 3, 5, 5), zeros(4, 3, 3, 3), zeros(3))
    with pytest.raises(ShapeError, match="activation"):
        conv2d(zeros(1, 3, 5, 5), zeros(4, 3, 3, 3), activation="tan")
    with pytest.raises(ShapeError, match=r"output's shape \(1, 4, 3, 3\), got \(1, 4, 2, 3\)"):
        conv2d_input_grad(zeros(1, 4, 2, 3), zeros(4, 3, 3, 3), (1, 3, 5, 5))
    with pytest.raises(DTypeError, match="floating"):
        conv2d(zeros(1, 3, 5, 5).astype("int32"), zeros(4, 3, 3, 3).astype("int32"))


@pytest.mark.parametrize(
    ("stride", "dilation", "k", "padding"), list(itertools.product((1, 2, 3, 4), (1, 2, 3), (1, 2, 3, 5), (0, 1, 4)))
)  # the longest filter spans 13 pixels
def test_residues_partition_the_taps(stride, dilation, k, padding):
    """Every (pixel, tap, output) triple of the definition appears in exactly one residue."""
    length = 17
    out = geometry("t", (1, 1, length, length), (1, 1, k, k), stride, padding, dilation, 1).out[0]
    expected = {(i * stride + u * dilation - padding, u, i) for i in range(out) for u in range(k)}
    found = [
        (r.first + i * stride, r.start + (r.taps - 1 - j) * r.step, i + j * r.dilation - r.padding)
        for r in residues(length, k, stride, padding, dilation) for i in range(r.length) for j in range(r.taps)
    ]  # fmt: skip
    inside = {t for t in found if 0 <= t[2] < out}
    assert len(found) == len(set(found))
    assert inside == {t for t in expected if 0 <= t[0] < length}


@pytest.mark.parametrize("groups", [1, 4])
def test_weight_gradients_read_a_gradient_by_its_own_strides(queue, groups):
    """The plan of the first call must not serve one of other strides, which an axis of length one may have."""
    rng = np.random.default_rng(0)
    channels = 4 if groups > 1 else 3
    x, upstream = rng.standard_normal((1, channels, 6, 5)), rng.standard_normal((1, groups, 4, 3))
    tx, g = (Tensor.from_host(queue, a.astype(np.float32)) for a in (x, upstream))
    wide = Tensor(g.buffer, g.shape, (7, *g.strides[1:]), 0, g.dtype, queue)
    shape = (groups, channels // groups, 3, 3)
    first, second = (conv2d_weight_grad(t, tx, shape, groups=groups).to_host() for t in (g, wide))
    assert np.array_equal(first, second)
    if hasattr(queue, "device") and profile_of(queue).kind == "cpu":
        assert any(wide.strides in key for key in queue.netcl_state.plans if isinstance(key, tuple))
