"""3x3 convolutions of values of very different sizes: what a sum does not meet must not show in it.

Winograd's transforms share a tile's rounding between all of its sums. Bounds here are those of plain sums: a multiple
of the spacing of float32, times the sum of |x w| over what a result meets itself; a sum that meets nothing but padding
may round as a usual one.
"""

import dataclasses

import numpy as np
import pytest
from conv_reference import ACTIVATIONS, Reference, check, values

from netcl.core.device.profile import override_profile, profile_of
from netcl.core.tensor import Tensor
from netcl.kernels import sources
from netcl.kernels.route import force
from netcl.ops import elementwise as E
from netcl.ops.convolution.op import conv2d, conv2d_input_grad, conv2d_weight_grad
from netcl.ops.nvidia import probe
from netcl.runtime.capture import KernelCapture

LOST = 2e-5  # of the sum of |x w|: 256 times the spacing of float32
ROUNDING = 1e-6
X, W = (2, 12, 9, 10), (16, 12, 3, 3)
PLACES = {"x": ((0, 3, 0, 0), (1, 0, 4, 5), (0, 11, 8, 3)), "w": ((3, 4, 0, 0), (0, 0, 1, 1), (15, 11, 2, 1))}
PLACES["g"] = PLACES["x"]


@pytest.fixture(params=["own kernels", "gpu-kernels-on-cpu"])
def posing(request):
    """Which kernels a device runs: its own, or those for GPUs."""
    return request.param


@pytest.fixture
def forced():
    """All goes by transforms."""
    with force("winograd"):
        yield


@pytest.fixture
def device(cl_queue, posing, forced):
    """An OpenCL queue, with its own kernels and with those for GPUs."""
    if posing == "own kernels":
        yield cl_queue
        return
    gpu = dataclasses.replace(profile_of(cl_queue), kind="gpu", max_work_group=64)
    with probe.only(), override_profile(cl_queue, gpu):
        yield cl_queue


@pytest.fixture
def spread(device, monkeypatch):
    """A setter of the bits by which a value may be larger than what is usual; with 49 only those of 2^50 do not."""
    load = sources.load

    def limit(bits):
        device.netcl_state.plans.clear()
        monkeypatch.setattr(sources, "load", lambda *files, **how: load(*files, **how, SPREAD=bits))

    yield limit
    device.netcl_state.plans.clear()


def results(queue, x, w, g, **how):
    """Forward, gradient of the input and of the weights."""
    x, w, g = (a if isinstance(a, Tensor) else Tensor.from_host(queue, a) for a in (x, w, g))
    return (
        conv2d(x, w, **how),
        conv2d_input_grad(g, w, x.shape, **how),
        conv2d_weight_grad(g, x, w.shape, **how),
    )


def expected(x, w, g, **how):
    """The same in double precision."""
    ref = Reference(x.shape, w.shape, **how)
    with np.errstate(all="ignore"):
        return ref.forward(x, w), ref.input_grad(g, w), ref.weight_grad(g, x)


def sound(found, x, w, g, lost=LOST, storage=0.0, **how):
    """No result is further from its own sum than a plain sum of float32 might be; those of infinities are equal."""
    sizes = expected(*(np.abs(a) for a in (x, w, g)), **how)
    for y, wanted, size in zip(found, expected(x, w, g, **how), sizes):
        y, finite = y.to_host().astype("f8"), np.isfinite(wanted)
        np.testing.assert_array_equal(y[~finite], wanted[~finite])
        with np.errstate(invalid="ignore"):
            bound = lost * size + storage * np.abs(wanted) + ROUNDING * np.median(size[finite])
            assert (np.abs(y - wanted) <= bound)[finite].all()


def positive(shape, seed=0):
    """Values as behind a ReLU and a bias: none is negative, a third is zero."""
    return np.maximum(values(shape, seed=seed) + 0.4, 0).astype("f4")


def inputs(x=X, w=W, padding=1, make=positive):
    ref = Reference(x, w, padding=padding)
    return {"x": make(x), "w": values(w, seed=1), "g": make(ref.y_shape, seed=2)}


@pytest.mark.parametrize("where", ["x", "w", "g"])
@pytest.mark.parametrize("make", [positive, values])
def test_a_large_value_shows_in_its_own_sums_alone(device, where, make):
    for size in (1e2, 1e3, 1e4, 1e6, 1e8, -1e30):
        for place in PLACES[where]:
            a = inputs(make=make)
            a[where][place] = size
            sound(results(device, **a, padding=1), **a, padding=1)


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("vector", [8, 16])
def test_every_width_of_vectors(cl_queue, vector):
    """Of the kernels for CPU devices, which look at 8 channels at a time."""
    with override_profile(cl_queue, dataclasses.replace(profile_of(cl_queue), vector=vector)):
        for channels in (12, 35):
            for where, value in (("x", 1e8), ("g", np.inf), ("w", 1e6)):
                a = inputs((2, channels, 9, 19), (16, channels, 3, 3), make=values)
                a[where][PLACES[where][1]] = value
                sound(results(cl_queue, **a, padding=1), **a, padding=1)


def test_outputs_that_miss_the_pixel_stay_positive(device):
    """Non-negative pixels and weights around one of 1e8."""
    x, w = np.abs(values((1, 12, 8, 8))), np.abs(values((12, 12, 3, 3), seed=1))
    x[0, 5, 3, 3] = 1e8
    y = conv2d(*(Tensor.from_host(device, a) for a in (x, w)), padding=1).to_host()
    met = np.zeros((8, 8), bool)
    met[2:5, 2:5] = True
    assert (y[..., ~met] > 0).all() and y[..., ~met].max() < 1e3 and y[..., met].min() > 1e3
    np.testing.assert_allclose(y, Reference(x.shape, w.shape, padding=1).forward(x, w), rtol=1e-5)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("where", ["x", "g"])
def test_what_is_not_finite_shows_in_its_own_sums_alone(device, where, value):
    for place in PLACES[where]:
        a = inputs(make=values)
        a[where][place] = value
        sound(results(device, **a, padding=1), **a, padding=1)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_weights_that_are_not_finite_act_as_in_plain_sums(device, value):
    a = inputs(make=values)
    a["w"][3, 4, 0, 2] = value
    found = results(device, **a, padding=1)
    with force("implicit_gemm"):
        plain = results(device, **a, padding=1)
    for y, wanted in zip(found, plain):
        y, wanted = y.to_host(), wanted.to_host()
        assert np.isfinite(wanted).any()
        np.testing.assert_array_equal(np.isnan(y), np.isnan(wanted))
        np.testing.assert_array_equal(y[np.isinf(wanted)], wanted[np.isinf(wanted)])
        np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)


def test_one_pixel_among_zeros(device):
    """What misses it is exactly zero."""
    a = inputs(make=lambda shape, seed=0: np.zeros(shape, "f4"))
    a["x"][0, 3, 4, 5] = a["g"][1, 2, 7, 8] = 1e8
    a["g"][0] = 1
    for y, wanted in zip(results(device, **a, padding=1)[:2], expected(**a, padding=1)):
        assert (y.to_host()[wanted == 0] == 0).all()
    sound(results(device, **a, padding=1), **a, padding=1)


@pytest.mark.parametrize(
    ("x", "w", "padding"),
    [
        ((1, 8, 3, 3), (18, 8, 3, 3), 1),
        ((3, 18, 7, 5), (8, 18, 3, 3), (1, 2)),
        ((2, 17, 13, 6), (33, 17, 3, 3), 0),
        ((1, 16, 5, 33), (16, 16, 3, 3), (2, 3)),
        ((5, 130, 4, 4), (20, 130, 3, 3), 1),
    ],
)
def test_edges_of_batches_channels_and_images(device, x, w, padding):
    a = inputs(x, w, padding)
    for name, size in (("x", 1e8), ("g", 1e6)):
        for edge in (0, -1):
            b = {k: v.copy() for k, v in a.items()}
            b[name][(edge,) * 4] = size
            sound(results(device, **b, padding=padding), **b, padding=padding)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_storage(device, dtype):
    for where in ("x", "w", "g"):
        a = inputs()
        a = {name: v.astype(dtype) for name, v in a.items()}
        a[where][PLACES[where][1]] = 6e3
        storage = 1e-2 if dtype == "bfloat16" else 1.5e-3
        with np.errstate(over="ignore"):
            found = results(device, **a, padding=1)
        a = {name: v.astype("f4") for name, v in a.items()}
        sizes = expected(*(np.abs(v) for v in a.values()), padding=1)
        for y, wanted, size in zip(found, expected(**a, padding=1), sizes):
            error = np.abs(y.to_host().astype("f8") - wanted)
            assert (error <= LOST * size + storage * np.abs(wanted) + ROUNDING).all()


def test_groups_views_bias_and_activation(device):
    """Two groups, a window that infinities surround, and what is done behind the sums."""
    big = np.full((3, 30, 14, 29), np.inf, "f4")
    big[:2, 3:27, 2:13, 5:26] = positive((2, 24, 11, 21))
    window = np.s_[:2, 3:27, 2:13, 5:26]
    big[1, 20, 6, 9] = 1e8
    x, w, b = big[window], values((32, 12, 3, 3), seed=1), values((32,), seed=2)
    g = values((2, 32, 11, 21), seed=3)
    view = Tensor.from_host(device, big)[window]
    sound(results(device, view, w, g, padding=1, groups=2), x, w, g, padding=1, groups=2)
    y = conv2d(view, *(Tensor.from_host(device, a) for a in (w, b)), padding=1, groups=2, activation="relu").to_host()
    ref = Reference(x.shape, w.shape, padding=1, groups=2)
    wanted = ACTIVATIONS["relu"](ref.forward(x, w) + b.astype("f8")[:, None, None])
    assert (np.abs(y - wanted) <= LOST * (ref.forward(np.abs(x), np.abs(w)) + np.abs(b)[:, None, None])).all()


@pytest.mark.parametrize(
    ("x", "w", "padding"),
    [
        ((2, 17, 7, 9), (19, 17, 3, 3), 1),
        ((2, 20, 11, 12), (22, 20, 3, 3), 0),
        ((1, 18, 5, 6), (17, 18, 3, 3), 4),
        ((1, 150, 4, 7), (150, 150, 3, 3), 1),
        ((9, 16, 3, 3), (16, 16, 3, 3), 2),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_tiles_computed_directly(device, spread, x, w, padding, dtype):
    spread(-30)
    check(device, x, w, dtype, padding=padding)


@pytest.mark.parametrize("make", [positive, values])
def test_usual_values_go_by_transforms(device, spread, make):
    """Bit for bit what comes when no tile is computed directly; also where few pixels are not zero, as in drawings."""
    a = inputs((4, 16, 17, 18), (16, 16, 3, 3), make=make)
    sparse = a | {name: np.where(values(a[name].shape, seed=5) > 1.5, a[name], 0).astype("f4") for name in ("x", "g")}
    kinds = (a, a | {"x": a["x"] * 1e-20}, sparse)
    found = [[y.to_host() for y in results(device, **kind, padding=1)] for kind in kinds]
    for bits, same in ((49, True), (-30, False)):
        spread(bits)
        for kind, known in zip(kinds, found):
            for y, wanted in zip(results(device, **kind, padding=1), known):
                assert np.array_equal(y.to_host(), wanted) == same


def test_the_bound_holds_at_the_limit(device):
    """Values just below the limit, at every distance from a tile's border."""

    def bright(shape, seed=0):
        return np.abs(values(shape, seed=seed)) + 0.5

    for size in (100.0, 250.0, 500.0):
        for row in range(4):
            for name, place in (("x", (0, 3, 4 + row, 5)), ("g", (0, 7, 4, 4 + row))):
                a = inputs((1, 16, 12, 12), (16, 16, 3, 3), make=bright)
                a[name][place] = size
                sound(results(device, **a, padding=1), **a, lost=2 * LOST, padding=1)


def test_replays_look_at_the_values_of_their_time(device):
    """A recording of usual values, replayed with a large one and an infinity."""
    a = inputs()
    x, w, g = (Tensor.from_host(device, v) for v in a.values())
    capture = KernelCapture()
    capture.begin()
    found = results(device, x, w, g, padding=1)
    capture.end()
    sound(found, **a, padding=1)
    for value in (1e8, np.inf, 1.0):
        for name, t in (("x", x), ("g", g)):
            a[name][PLACES[name][1]] = value
            E.assign(t, Tensor.from_host(device, a[name]))
        capture.replay()
        sound(found, **a, padding=1)


def test_results_are_the_same_bit_for_bit(device):
    a = inputs()
    a["x"][0, 3, 4, 5], a["g"][1, 5, 2, 2], a["x"][1, 4, 0, 0] = 1e8, 1e6, -1e5
    first, second = ([y.to_host() for y in results(device, **a, padding=1)] for _ in range(2))
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a, b)
