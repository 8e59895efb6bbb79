"""3x3 convolutions by Winograd's transforms with the kernels that GPUs get, forced for small sizes."""

import dataclasses

import numpy as np
import pytest
from conv_reference import ACTIVATIONS, Reference, best_routes, close, values

from netcl.core.backend import opencl
from netcl.core.device.profile import override_profile, profile_of
from netcl.core.tensor import Tensor
from netcl.kernels import tuning
from netcl.kernels.route import force
from netcl.ops.convolution.op import conv2d, conv2d_input_grad, conv2d_weight_grad
from netcl.ops.convolution.problem import geometry
from netcl.ops.nvidia import probe
from netcl.ops.nvidia.precision import set_matmul_precision

CASES = {
    "even": ((2, 16, 8, 8), (16, 16, 3, 3), 1),
    "odd": ((3, 17, 7, 9), (19, 17, 3, 3), 1),
    "no padding": ((2, 20, 11, 12), (22, 20, 3, 3), 0),
    "wide padding": ((1, 16, 5, 33), (23, 16, 3, 3), (2, 3)),
    "padding of two": ((2, 16, 6, 12), (18, 16, 3, 3), 2),
    "no padding, rows of twelve": ((2, 17, 6, 14), (16, 17, 3, 3), 0),
    "padding beyond the filter": ((1, 18, 5, 6), (17, 18, 3, 3), 4),
    "one image, many channels": ((1, 130, 6, 8), (64, 130, 3, 3), 1),
    "fewest channels": ((2, 8, 9, 18), (18, 8, 3, 3), 1),
    "fewest outputs": ((2, 19, 9, 18), (8, 19, 3, 3), 1),
    "many small images": ((50, 16, 3, 5), (16, 16, 3, 3), 1),
    "smallest images": ((9, 16, 1, 1), (16, 16, 3, 3), 2),
}


@pytest.fixture
def gpu(cl_queue):
    """A queue with the kernels that GPUs get, at the smallest work-groups."""
    profile = dataclasses.replace(profile_of(cl_queue), kind="gpu", max_work_group=64)
    with probe.only(), override_profile(cl_queue, profile):
        yield cl_queue


@pytest.fixture
def queue(gpu):
    """The same, where all goes by transforms."""
    with force("winograd"):
        yield gpu


@pytest.fixture
def chunk(monkeypatch):
    """A setter of the bytes between the launches of a chunk."""
    known = tuning.parameters

    def limit(size):
        changed = {"CHUNK": size}
        monkeypatch.setattr(tuning, "parameters", lambda k, p: known(k, p) | (changed if k == "winograd_gpu" else {}))

    return limit


@pytest.fixture
def launches():
    """The names of the kernels that are launched."""
    names = []

    def hook(kernel, *_):
        names.append(kernel.name)

    opencl.hooks.append(hook)
    yield names
    opencl.hooks.remove(hook)


def check(queue, x_shape, w_shape, padding=1, dtype="float32", groups=1):
    """Forward and both gradients."""
    ref, how = Reference(x_shape, w_shape, padding=padding, groups=groups), {"padding": padding, "groups": groups}
    x, w, g = values(x_shape, dtype), values(w_shape, dtype, 1), values(ref.y_shape, dtype, 2)
    tx, tw, tg = (Tensor.from_host(queue, a) for a in (x, w, g))
    close(conv2d(tx, tw, **how), ref.forward(x, w), dtype, w[0].size)
    close(conv2d_input_grad(tg, tw, x_shape, **how), ref.input_grad(g, w), dtype, w.size // w.shape[1])
    close(conv2d_weight_grad(tg, tx, w_shape, **how), ref.weight_grad(g, x), dtype, g.size // g.shape[1])


@pytest.mark.parametrize("case", list(CASES))
def test_forward_and_gradients(queue, case):
    check(queue, *CASES[case])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", ["even", "odd", "no padding, rows of twelve"])
def test_narrow_storage(queue, case, dtype):
    check(queue, *CASES[case], dtype=dtype)


@pytest.mark.parametrize("size", [3, 4, 5, 7, 8, 9])
def test_borders_of_tiles(queue, size):
    """Heights and widths beside multiples of four."""
    for wide, c, o in ((4, 16, 33), (size, 25, 16), (13, 31, 20)):
        check(queue, (2, c, size, wide), (o, c, 3, 3))


def test_groups(queue):
    check(queue, (2, 36, 9, 10), (60, 18, 3, 3), groups=2)


@pytest.mark.parametrize("size", [1, 36 * 36 * 4 * 20, 1 << 20])
def test_chunks(queue, chunk, size):
    """Turns of eight tiles, of unequal length, and one."""
    chunk(size)
    check(queue, (3, 16, 9, 14), (20, 16, 3, 3))


@pytest.mark.parametrize("value", [1e8, np.inf])
def test_tiles_computed_directly_in_chunks(queue, chunk, value):
    """A large value in each image, tiles of which share chunks."""
    chunk(36 * 36 * 4 * 20)
    x, w = values((3, 16, 9, 14)), values((20, 16, 3, 3), seed=1)
    ref = Reference(x.shape, w.shape, padding=1)
    g = values(ref.y_shape, seed=2)
    for n, row in enumerate((0, 8, 4)):
        x[n, 3 * n, row, 4 * n] = g[n, 5 * n, row, 2 + 4 * n] = value
    tx, tw, tg = (Tensor.from_host(queue, a) for a in (x, w, g))
    for y, expected, rtol in (
        (conv2d(tx, tw, padding=1), ref.forward(x, w), 1e-5),
        (conv2d_input_grad(tg, tw, x.shape, padding=1), ref.input_grad(g, w), 1e-5),
        (conv2d_weight_grad(tg, tx, w.shape, padding=1), ref.weight_grad(g, x), 1e-4),
    ):
        y, finite = y.to_host(), np.isfinite(expected)
        np.testing.assert_array_equal(y[~finite], expected[~finite])
        usual = finite & (np.abs(expected) < 1e4)
        np.testing.assert_allclose(y[usual], expected[usual], rtol=rtol, atol=1e-4)
        np.testing.assert_allclose(y[finite], expected[finite], rtol=1e-3, atol=1e-4)


def test_looking_for_large_values_takes_no_launch_of_its_own(queue, launches):
    """Limits come with the filters, or in a launch that transforming both operands in one makes up for."""
    x, g = (Tensor.from_host(queue, values((2, 16, 8, 8), seed=s)) for s in range(2))
    w = Tensor.from_host(queue, values((16, 16, 3, 3)))
    for run in (
        lambda: conv2d(x, w, padding=1),
        lambda: conv2d_input_grad(g, w, x.shape, padding=1),
        lambda: conv2d_weight_grad(g, x, w.shape, padding=1),
    ):
        launches.clear()
        run()
        assert len(launches) == 4, launches


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_bias_and_activation(queue, activation, dtype):
    x, w, b = values((2, 20, 7, 8), dtype), values((18, 20, 3, 3), dtype, 1) / 8, values((18,), dtype, 2)
    w = w.astype(dtype)
    y = conv2d(*(Tensor.from_host(queue, a) for a in (x, w, b)), padding=1, activation=activation)
    expected = Reference(x.shape, w.shape, padding=1).forward(x, w) + b.astype("f8")[:, None, None]
    close(y, ACTIVATIONS[activation](expected), dtype, 180)


def test_views(queue):
    """A transposed window that NaN surrounds, weights and a gradient that lie transposed, and a repeated image."""
    big = np.full((3, 30, 14, 29), np.nan, "f4")
    big[:2, 3:23, 2:13, 5:26] = values((2, 20, 11, 21))
    window = np.s_[1::-1, 3:23, 12:1:-1, 5:26]
    x, w = big[window], values((18, 20, 3, 3), seed=1)
    ref = Reference(x.shape, w.shape, padding=1)
    g = values(ref.y_shape, seed=2)
    tw = Tensor.from_host(queue, np.ascontiguousarray(w.transpose(3, 2, 1, 0))).permute(3, 2, 1, 0)
    tg = Tensor.from_host(queue, np.ascontiguousarray(g.swapaxes(0, 3))).transpose(0, 3)
    view = Tensor.from_host(queue, big)[window]
    close(conv2d(view, tw, padding=1), ref.forward(x, w), terms=180)
    close(conv2d_input_grad(tg, tw, x.shape, padding=1), ref.input_grad(g, w), terms=162)
    close(conv2d_weight_grad(tg, view, w.shape, padding=1), ref.weight_grad(g, x), terms=462)
    one, image = Tensor.from_host(queue, g[:1]).expand(2, *g.shape[1:]), np.broadcast_to(g[:1], g.shape)
    close(conv2d_input_grad(one, tw, x.shape, padding=1), ref.input_grad(image, w), terms=162)


def test_rounds_little(queue):
    """Errors against double precision: 1.5e-6 of the root mean square, 5e-6 of the largest."""
    x, w = values((4, 64, 16, 16)), values((32, 64, 3, 3), seed=1)
    ref = Reference(x.shape, w.shape, padding=1)
    g = values(ref.y_shape, seed=2)
    tx, tw, tg = (Tensor.from_host(queue, a) for a in (x, w, g))
    for found, expected in (
        (conv2d(tx, tw, padding=1), ref.forward(x, w)),
        (conv2d_input_grad(tg, tw, x.shape, padding=1), ref.input_grad(g, w)),
        (conv2d_weight_grad(tg, tx, w.shape, padding=1), ref.weight_grad(g, x)),
    ):
        error = found.to_host() - expected
        assert np.sqrt((error**2).mean()) <= 1.5e-6 * np.sqrt((expected**2).mean())
        assert np.abs(error).max() <= 5e-6 * np.abs(expected).max()


@pytest.mark.parametrize("way", ["winograd", "implicit_gemm"])
def test_an_infinity_reaches_the_outputs_beside_it(gpu, way):
    """Nine of them, by transforms and by plain sums."""
    x, w = values((1, 16, 12, 12)), values((16, 16, 3, 3), seed=1)
    x[0, 3, 5, 6] = np.inf
    with force(way):
        y = conv2d(*(Tensor.from_host(gpu, a) for a in (x, w)), padding=1).to_host()
    reached = np.zeros((12, 12), bool)
    reached[4:7, 5:8] = True
    assert np.isfinite(y[:, :, ~reached]).all() and np.isinf(y[:, :, reached]).all()


def test_results_are_the_same_bit_for_bit(queue, chunk):
    chunk(1 << 16)
    x, g = (Tensor.from_host(queue, values((3, 16, 9, 14), seed=s)) for s in range(2))
    first, second = (conv2d_weight_grad(g, x, (16, 16, 3, 3), padding=1).to_host() for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_which_convolutions_come_this_way(cl_queue):
    """What an H200 is faster at so; a device of unknown memory needs more channels; never with "highest"."""
    gpu = dataclasses.replace(profile_of(cl_queue), kind="gpu", max_work_group=1024, local_mem=49152)
    h200 = dataclasses.replace(gpu, name="NVIDIA H200", vendor="NVIDIA", architecture="sm_90", compute_units=132)
    unknown = dataclasses.replace(gpu, name="Acme 9", vendor="Acme", architecture="", compute_units=96)
    rows = [
        # x, w, stride; on an H200 (forward, input, weights); on the other
        ((32, 64, 56, 56), (64, 64, 3, 3), 1, (1, 1, 1), (0, 0, 0)),
        ((32, 256, 14, 14), (256, 256, 3, 3), 1, (1, 1, 1), (1, 1, 1)),
        ((32, 32, 56, 56), (32, 32, 3, 3), 1, (1, 1, 1), (0, 0, 0)),
        ((1, 16, 32, 32), (16, 16, 3, 3), 1, (0, 0, 0), (0, 0, 0)),
        ((1, 256, 14, 14), (256, 256, 3, 3), 1, (1, 1, 0), (1, 1, 0)),
        ((32, 256, 14, 14), (256, 256, 3, 3), 2, (0, 0, 0), (0, 0, 0)),
        ((32, 256, 14, 14), (256, 256, 1, 1), 1, (0, 0, 0), (0, 0, 0)),
        ((32, 4096, 14, 14), (4096, 4096, 3, 3), 1, (0, 0, 0), (0, 0, 0)),  # filters larger than a chunk
    ]

    def chosen(g, dtype="float32"):
        return tuple(name == "winograd" for name in best_routes(cl_queue, g, dtype))

    for profile, column in ((h200, 3), (unknown, 4)):
        with probe.only(), override_profile(cl_queue, profile):
            for row in rows:
                g = geometry("test", row[0], row[1], row[2], 1, 1, 1)
                assert chosen(g) == row[column], (profile.name, row)
    with probe.only(), override_profile(cl_queue, h200):
        g = geometry("test", *rows[0][:2], 1, 1, 1, 1)
        assert chosen(g, "float16") == (1, 1, 1) and chosen(g, "float64") == (0, 0, 0)
        set_matmul_precision("highest")
        try:
            assert chosen(g) == chosen(g, "float16") == (0, 0, 0)
        finally:
            set_matmul_precision("high")


def test_medium_precision_rounds_no_operands(queue):
    """The products of transforms would suffer more from it than those of the images."""
    x, w = values((2, 32, 8, 8)), values((16, 32, 3, 3), seed=1)
    set_matmul_precision("medium")
    try:
        y = conv2d(*(Tensor.from_host(queue, a) for a in (x, w)), padding=1)
    finally:
        set_matmul_precision("high")
    close(y, Reference(x.shape, w.shape, padding=1).forward(x, w), terms=288)
