"""Convolutions of few channels as products over columns, forced for small sizes, with the products that GPUs get."""

import dataclasses

import numpy as np
import pytest
from conv_reference import ACTIVATIONS, Reference, best_routes, close, values
from units import TOLERANCE, error

from netcl.core.device import manager
from netcl.core.device.profile import override_profile, profile_of
from netcl.core.tensor import Tensor
from netcl.kernels import tuning
from netcl.kernels.route import force
from netcl.ops.convolution import im2col
from netcl.ops.convolution.op import conv2d, conv2d_input_grad, conv2d_weight_grad
from netcl.ops.convolution.problem import geometry
from netcl.ops.nvidia import probe
from netcl.ops.nvidia.precision import set_matmul_precision

CASES = {
    "stem": ((2, 3, 31, 33), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    "1 channel": ((3, 1, 9, 10), (17, 1, 3, 3), {"padding": 1}),
    "2 channels, stride 3": ((2, 2, 14, 11), (16, 2, 3, 4), {"stride": 3, "padding": 1}),
    "4 channels, rows of 8": ((2, 4, 8, 8), (33, 4, 3, 3), {"padding": 1}),
    "5 channels, 127 pixels": ((1, 5, 127, 1), (18, 5, 3, 1), {"padding": (1, 0)}),
    "6 channels, 129 pixels": ((1, 6, 1, 129), (65, 6, 1, 3), {"padding": (0, 1)}),
    "7 channels, dilation 2": ((2, 7, 13, 9), (16, 7, 3, 3), {"padding": 2, "dilation": 2}),
    "8 channels": ((1, 8, 9, 7), (20, 8, 2, 2), {}),
    "patches": ((3, 3, 16, 24), (40, 3, 8, 8), {"stride": 8}),
    "stride beyond the filter": ((2, 3, 11, 13), (16, 3, 2, 3), {"stride": 4}),
    "stride 2 dilation 3": ((1, 2, 17, 19), (16, 2, 3, 3), {"stride": 2, "padding": 3, "dilation": 3}),
    "stride 4 dilation 2": ((1, 2, 17, 19), (16, 2, 3, 3), {"stride": 4, "padding": 2, "dilation": 2}),
    "all different": (
        (2, 8, 12, 15),
        (34, 4, 2, 5),
        {"stride": (2, 1), "padding": (0, 3), "dilation": (3, 2), "groups": 2},
    ),
    "padding beyond the filter": ((2, 3, 5, 6), (16, 3, 3, 3), {"padding": 4}),
    "one pixel of output": ((4, 3, 4, 5), (16, 3, 4, 5), {}),
}


@pytest.fixture
def queue(cl_queue):
    """A queue with the kernels that GPUs get, at the smallest work-groups."""
    profile = dataclasses.replace(profile_of(cl_queue), kind="gpu", max_work_group=64)
    with override_profile(cl_queue, profile), force("im2col"):
        yield cl_queue


@pytest.fixture
def chunk(monkeypatch):
    """A setter of the bytes of columns in a chunk."""
    known = tuning.parameters

    def limit(size):
        changed = {"CHUNK": size}
        monkeypatch.setattr(tuning, "parameters", lambda k, p: known(k, p) | (changed if k == "im2col" else {}))

    return limit


def settings(g):
    return {"stride": g.stride, "padding": g.padding, "dilation": g.dilation, "groups": g.groups}


def forward(x, w, b, g, activation=None):
    return conv2d(x, w, b, **settings(g), activation=activation)


def gradients(x, w, upstream, g):
    dx = conv2d_input_grad(upstream, w, g.x_shape, **settings(g))
    return dx, conv2d_weight_grad(upstream, x, g.w_shape, **settings(g))


def check(queue, x_shape, w_shape, dtype="float32", groups=1, **options):
    ref = Reference(x_shape, w_shape, groups=groups, **options)
    g = geometry("test", x_shape, w_shape, *(options.get(k, v) for k, v in SETTINGS), groups)
    x, w, upstream = values(x_shape, dtype), values(w_shape, dtype, 1), values(ref.y_shape, dtype, 2)
    tx, tw, tg = (Tensor.from_host(queue, a) for a in (x, w, upstream))
    close(forward(tx, tw, None, g), ref.forward(x, w), dtype, g.taps)
    dx, dw = gradients(tx, tw, tg, g)
    close(dx, ref.input_grad(upstream, w), dtype, g.o * g.kh * g.kw)
    close(dw, ref.weight_grad(upstream, x), dtype, upstream.size // g.o)


SETTINGS = (("stride", 1), ("padding", 0), ("dilation", 1))


@pytest.mark.parametrize("case", list(CASES))
def test_forward_and_gradients(queue, case):
    x_shape, w_shape, options = CASES[case]
    check(queue, x_shape, w_shape, **options)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("case", ["stem", "patches", "all different", "5 channels, 127 pixels"])
def test_other_floats(queue, case, dtype):
    x_shape, w_shape, options = CASES[case]
    check(queue, x_shape, w_shape, dtype, **options)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("images", [1, 2, 5])
@pytest.mark.parametrize("case", ["one image a chunk", "chunks of unequal length", "large filters, few pixels"])
def test_chunks(queue, chunk, case, images, dtype):
    """Few pixels and large filters put all pixels of a chunk in one row for the weight gradient."""
    w_shape = (70, 3, 4, 4) if case.startswith("large") else (17, 3, 3, 3)
    chunk({"one": 1, "chu": 27 * 48 * 4 * 2, "lar": 1 << 20}[case[:3]])
    check(queue, (images, 3, 8, 6), w_shape, dtype, stride=4 if case.startswith("large") else 1, padding=1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize(("groups", "activation"), [(1, None), (1, "relu"), (3, "gelu"), (1, "silu")])
def test_bias_and_activation(queue, dtype, groups, activation):
    x, w, b = (
        values((2, 3 * groups, 9, 8), dtype),
        values((16 * groups, 3, 3, 3), dtype, 1) / 4,
        values((16 * groups,), dtype, 2),
    )
    w = w.astype(dtype)
    ref = Reference(x.shape, w.shape, stride=2, padding=1, groups=groups)
    g = geometry("test", x.shape, w.shape, 2, 1, 1, groups)
    y = forward(*(Tensor.from_host(queue, a) for a in (x, w, b)), g, activation)
    close(y, ACTIVATIONS[activation](ref.forward(x, w) + b.astype("f8")[:, None, None]), dtype, 27)


def test_views(queue):
    x, w = values((4, 9, 12, 10)), values((16, 3, 3, 3), seed=1)
    sliced = (slice(3, 0, -1), slice(7, 1, -2), slice(None, None, 2), slice(None, None, -1))
    expected = x[sliced]
    ref = Reference(expected.shape, w.shape, padding=1)
    g = geometry("test", expected.shape, w.shape, 1, 1, 1, 1)
    view, upstream = Tensor.from_host(queue, x)[sliced], values(ref.y_shape, seed=2)
    transposed = Tensor.from_host(queue, np.ascontiguousarray(upstream.swapaxes(0, 3))).transpose(0, 3)
    tw = Tensor.from_host(queue, w)
    close(forward(view, tw, None, g), ref.forward(expected, w), terms=27)
    dx, _ = gradients(view, tw, transposed.contiguous(), g)
    close(dx, ref.input_grad(upstream, w), terms=144)
    dx, _ = gradients(view, tw, transposed, g)
    close(dx, ref.input_grad(upstream, w), terms=144)
    _, dw = gradients(view, tw, transposed.contiguous(), g)
    close(dw, ref.weight_grad(upstream, expected), terms=180)


def test_halves_are_summed_in_float(queue):
    """Parts beyond the largest half cancel, in both gradients."""
    x = np.full((2, 3, 4, 4), 200.0, "f2")
    upstream = np.full((2, 16, 4, 4), 200.0, "f2")
    upstream[1] = -200.0
    w = np.zeros((16, 3, 3, 3), "f2")
    w[:, :, 0, :], w[:, :, 2, :] = 100.0, -100.0
    g = geometry("test", x.shape, w.shape, 1, 1, 1, 1)
    dx, dw = gradients(*(Tensor.from_host(queue, a) for a in (x, w, upstream)), g)
    np.testing.assert_array_equal(dw.to_host(), 0)
    np.testing.assert_array_equal(dx.to_host()[:, :, 1:3], 0)


def test_nan_and_infinity_reach_what_they_touch(queue):
    x, w = np.ones((2, 3, 9, 9), "f4"), np.ones((16, 3, 3, 3), "f4")
    x[0, 1, 4, 4], x[1, 2, 0, 0] = np.nan, np.inf
    g = geometry("test", x.shape, w.shape, 2, 1, 1, 1)
    tx, tw = (Tensor.from_host(queue, a) for a in (x, w))
    y = forward(tx, tw, None, g).to_host()
    touched = np.zeros((5, 5), bool)
    touched[2, 2] = True
    np.testing.assert_array_equal(np.isnan(y[0]), np.broadcast_to(touched, y[0].shape))
    assert np.isposinf(y[1, :, 0, 0]).all() and np.isfinite(y[1, :, 1:]).all()
    upstream = np.ones(g.y_shape, "f4")
    dx, dw = (t.to_host() for t in gradients(tx, tw, Tensor.from_host(queue, upstream), g))
    middle = np.zeros((16, 3, 3, 3), bool)
    middle[:, 1, 1, 1] = True
    np.testing.assert_array_equal(np.isnan(dw), middle)
    assert np.isposinf(dw[:, 2, 1, 1]).all() and np.isfinite(dw[:, 0]).all() and np.isfinite(dx).all()
    upstream[1, 7, 3, 3] = -np.inf
    dx, _ = (t.to_host() for t in gradients(tx, tw, Tensor.from_host(queue, upstream), g))
    hit = np.zeros((9, 9), bool)
    hit[5:8, 5:8] = True
    np.testing.assert_array_equal(np.isneginf(dx[1]), np.broadcast_to(hit, dx[1].shape))
    assert np.isfinite(dx[0]).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_results_are_the_same_bit_for_bit(queue, chunk, dtype):
    chunk(1 << 16)
    x_shape, w_shape, _ = CASES["stem"]
    g = geometry("test", x_shape, w_shape, 2, 3, 1, 1)
    tensors = [Tensor.from_host(queue, values(s, dtype)) for s in (x_shape, w_shape, g.y_shape)]
    first, second = ([t.to_host() for t in gradients(*tensors, g)] for _ in range(2))
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_which_convolutions_come_this_way(cl_queue, monkeypatch, dtype):
    """Those of few channels with much to do, forward where columns cost less."""
    monkeypatch.setattr(probe, "_probed", lambda profile: probe.FAMILIES)
    h200 = {"name": "NVIDIA H200", "vendor": "NVIDIA", "architecture": "sm_90", "compute_units": 132}
    profile = dataclasses.replace(profile_of(cl_queue), **h200, max_work_group=1024, local_mem=49152)
    rows = [
        (True, (32, 3, 224, 224), (64, 3, 7, 7), 2, 1), (True, (128, 3, 32, 32), (64, 3, 3, 3), 1, 1),
        (True, (64, 3, 224, 224), (768, 3, 16, 16), 16, 1), (False, (1, 3, 9, 9), (64, 3, 3, 3), 1, 1),
        (False, (32, 64, 56, 56), (64, 64, 3, 3), 1, 1), (False, (32, 64, 56, 56), (64, 1, 3, 3), 1, 64),
        (False, (32, 3, 56, 56), (3, 3, 3, 3), 1, 1), (False, (1, 3, 4096, 4096), (64, 3, 7, 7), 1, 1),
    ]  # fmt: skip
    with override_profile(cl_queue, profile):
        for expected, x_shape, w_shape, stride, groups in rows:
            g = geometry("test", x_shape, w_shape, stride, 0, 1, groups)
            assert im2col.pays(g, np.dtype(dtype), cl_queue) == expected
        for expected, (_, x_shape, w_shape, stride, groups) in zip((True, False, True, False), rows):
            g = geometry("test", x_shape, w_shape, stride, 0, 1, groups)
            assert (best_routes(cl_queue, g, dtype)[0] == "im2col") == expected


@pytest.mark.parametrize("much", [False, True])
def test_gradients_with_much_to_do_come_this_way(cl_queue, monkeypatch, much):
    monkeypatch.setattr(im2col, "LARGE", 1 if much else 1 << 60)
    g = geometry("test", (2, 3, 9, 11), (16, 3, 5, 5), 2, 2, 1, 1)
    with override_profile(cl_queue, dataclasses.replace(profile_of(cl_queue), kind="gpu")):
        assert best_routes(cl_queue, g, "float32")[1:] == ("im2col" if much else "implicit_gemm",) * 2


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "precision"), list(TOLERANCE))
@pytest.mark.parametrize(("x_shape", "w_shape", "stride", "padding", "groups"), [
    ((9, 3, 97, 64), (64, 3, 7, 7), 2, 3, 1), ((4, 6, 57, 57), (72, 3, 3, 3), 1, 1, 2),
    ((6, 3, 64, 64), (384, 3, 16, 16), 16, 0, 1),
])  # fmt: skip
def test_on_matrix_units(gpu, precise, dtype, precision, x_shape, w_shape, stride, padding, groups):
    """By products over columns."""
    set_matmul_precision(precision)
    g = geometry("test", x_shape, w_shape, stride, padding, 1, groups)
    rng = np.random.default_rng(9)
    x, w, upstream = (rng.standard_normal(s).astype(dtype) for s in (x_shape, w_shape, g.y_shape))
    how = {"stride": stride, "padding": padding, "groups": groups}
    assert im2col.pays(g, np.dtype(dtype), gpu)
    host = manager.default("cpu").queue
    results = []
    for queue, kind in ((gpu, dtype), (host, "f8")):
        tx, tw, tg = (Tensor.from_host(queue, v.astype(kind)) for v in (x, w, upstream))
        results.append([conv2d(tx, tw, **how), conv2d_input_grad(tg, tw, x_shape, **how),
                        conv2d_weight_grad(tg, tx, w_shape, **how)])  # fmt: skip
    for mine, right in ([t.to_host() for t in pair] for pair in zip(*results)):
        assert error(mine, right) < TOLERANCE[dtype, precision]
