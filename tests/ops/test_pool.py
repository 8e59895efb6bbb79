"""Pooling against plain loops over windows; ties, padding, overlaps, special values, dtypes, field cases."""

import dataclasses
import math

import numpy as np
import pytest
from conftest import DEVICES, handle

from netcl.core.device.profile import override_profile, profile_of
from netcl.core.dtypes import is_float
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.tensor import Tensor
from netcl.ops.pooling.op import (
    adaptive_avg_pool2d,
    adaptive_avg_pool2d_grad,
    avg_pool2d,
    avg_pool2d_grad,
    global_avg_pool2d,
    max_pool2d,
    max_pool2d_grad,
)

TOLERANCE = {"bfloat16": 0.016, "float16": 2e-3, "float32": 2e-6, "float64": 1e-14}


def values(shape, dtype="float32", seed=0):
    rng = np.random.default_rng([seed, *shape])
    return (rng.standard_normal(shape) * (1 if is_float(np.dtype(dtype)) else 20)).astype(dtype)


def two(v):
    return (v, v) if isinstance(v, int) else v


def windows(length, k, s, p, d, ceil_mode):
    """Positions along one axis that each window reads, those in the padding included."""
    room = length + 2 * p - d * (k - 1) - 1
    out = (math.ceil(room / s) if ceil_mode else room // s) + 1
    if ceil_mode and (out - 1) * s >= length + p:
        out -= 1
    return [[i * s - p + u * d for u in range(k)] for i in range(out)]


def axes(shape, kernel, stride=None, padding=0, dilation=1, ceil_mode=False):
    k, p, d = two(kernel), two(padding), two(dilation)
    s = k if stride is None else two(stride)
    return [windows(shape[2 + i], k[i], s[i], p[i], d[i], ceil_mode) for i in (0, 1)]


def max_reference(x, **options):
    """y and the flat position of the first largest element, window by window."""
    h, w = x.shape[2:]
    rows, columns = axes(x.shape, **options)
    y, at = (
        np.empty((*x.shape[:2], len(rows), len(columns)), x.dtype),
        np.empty((*x.shape[:2], len(rows), len(columns)), int),
    )
    for i, ys in enumerate(rows):
        for j, xs in enumerate(columns):
            places = np.array([a * w + b for a in ys for b in xs if 0 <= a < h and 0 <= b < w])
            picked = x.reshape(*x.shape[:2], -1)[:, :, places]
            order = np.where(np.isnan(picked), np.inf, picked) if is_float(x.dtype) else picked
            best = order.argmax(-1)
            at[:, :, i, j] = places[best]
            y[:, :, i, j] = np.take_along_axis(picked, best[..., None], -1)[..., 0]
    return y, at


def avg_reference(x, count_include_pad=True, divisor_override=None, **options):
    """y, and the (window, pixel) weights as a matrix (Ho Wo, H W)."""
    h, w = x.shape[2:]
    p = two(options.get("padding", 0))
    rows, columns = axes(x.shape, **options)
    matrix = np.zeros((len(rows) * len(columns), h * w))
    for i, ys in enumerate(rows):
        for j, xs in enumerate(columns):
            inside = [a * w + b for a in ys for b in xs if 0 <= a < h and 0 <= b < w]
            padded = sum(a < h + p[0] and b < w + p[1] for a in ys for b in xs)
            matrix[i * len(columns) + j, inside] = 1 / (
                divisor_override or (padded if count_include_pad else len(inside))
            )
    y = np.einsum("op,ncp->nco", matrix, x.reshape(*x.shape[:2], -1).astype("f8"))
    return y.reshape(*x.shape[:2], len(rows), len(columns)), matrix


def close(y, expected, dtype="float32"):
    y = y.to_host() if isinstance(y, Tensor) else y
    assert y.shape == expected.shape
    assert y.dtype == np.dtype(dtype)
    np.testing.assert_allclose(y.astype("f8"), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.fixture(params=[*DEVICES, *(f"{name} as gpu" for name in DEVICES[1:])])
def family(request):
    """Each queue, and each device once more with the launch geometry of a GPU with small groups."""
    queue = handle(request.param.removesuffix(" as gpu")).queue
    if not request.param.endswith(" as gpu"):
        yield queue
    else:
        with override_profile(queue, dataclasses.replace(profile_of(queue), kind="gpu", max_work_group=16)):
            yield queue


MAX_CASES = {
    "2x2": ((2, 3, 8, 8), {"kernel": 2}),
    "2x2 odd": ((2, 3, 7, 9), {"kernel": 2}),
    "3x3 stride 2": ((1, 2, 15, 17), {"kernel": 3, "stride": 2, "padding": 1}),
    "overlapping": ((2, 1, 6, 7), {"kernel": 3, "stride": 1, "padding": 1}),
    "gaps": ((1, 2, 11, 11), {"kernel": 2, "stride": 5}),
    "asymmetric": ((2, 2, 9, 13), {"kernel": (2, 5), "stride": (3, 1), "padding": (1, 2)}),
    "ceil": ((1, 2, 6, 7), {"kernel": 2, "stride": 3, "ceil_mode": True}),
    "ceil, last window in the padding": ((1, 1, 5, 5), {"kernel": 2, "stride": 2, "padding": 1, "ceil_mode": True}),
    "dilation": ((1, 2, 12, 13), {"kernel": 3, "stride": 2, "dilation": (2, 3), "padding": 1}),
    "whole image": ((3, 2, 5, 6), {"kernel": (5, 6)}),
    "row of 65": ((1, 1, 3, 65), {"kernel": 3, "stride": 1}),
    "many planes": ((65, 3, 4, 4), {"kernel": 2}),
    "rows of vectors": ((2, 2, 6, 32), {"kernel": 2}),
    "rows of vectors, 3x3 stride 2": ((1, 2, 9, 32), {"kernel": 3, "stride": 2, "padding": 1}),
    "rows of vectors, overlapping": ((2, 1, 5, 24), {"kernel": 3, "stride": 1, "padding": 1}),
    "large window": ((1, 2, 12, 13), {"kernel": (9, 8), "stride": 2}),
    "long stride": ((1, 2, 20, 33), {"kernel": 2, "stride": 9}),
}


WIDE = [
    ((2, 3, 9, 64), {"kernel": 2}),
    ((1, 2, 15, 77), {"kernel": 3, "stride": 2, "padding": 1}),
    ((1, 2, 7, 37), {"kernel": (2, 3), "stride": 1, "padding": (1, 1)}),
    ((2, 1, 6, 19), {"kernel": 2, "stride": 1}),
]


def renamed(options):
    return {("kernel_size" if key == "kernel" else key): value for key, value in options.items()}


@pytest.mark.parametrize("case", list(MAX_CASES))
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int32", "uint8"])
def test_max_pool(family, case, dtype):
    shape, options = MAX_CASES[case]
    x = np.abs(values(shape, dtype)) if dtype == "uint8" else values(shape, dtype)
    y, at = max_pool2d(Tensor.from_host(family, x), **renamed(options), return_indices=True)
    expected, places = max_reference(x, **options)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y.to_host(), expected)
    np.testing.assert_array_equal(at.to_host(), places)
    np.testing.assert_array_equal(max_pool2d(Tensor.from_host(family, x), **renamed(options)).to_host(), expected)
    if not is_float(np.dtype(dtype)):
        return
    g = values(y.shape, dtype, 1)
    dx = np.zeros((*shape[:2], shape[2] * shape[3]))
    for n, c in np.ndindex(*shape[:2]):
        np.add.at(dx[n, c], places[n, c].ravel(), g[n, c].ravel().astype("f8"))
    close(max_pool2d_grad(Tensor.from_host(family, g), at, shape, **renamed(options)), dx.reshape(shape), dtype)


AVG_CASES = {
    "2x2": ((2, 3, 8, 8), {"kernel": 2}),
    "padded": ((1, 2, 7, 9), {"kernel": 3, "stride": 2, "padding": 1}),
    "padding not counted": ((1, 2, 7, 9), {"kernel": 3, "stride": 2, "padding": 1, "count_include_pad": False}),
    "divisor": ((1, 2, 7, 9), {"kernel": 3, "stride": 1, "padding": 1, "divisor_override": 7}),
    "ceil": ((1, 2, 8, 7), {"kernel": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
    "ceil, padding not counted": (
        (1, 2, 8, 7),
        {"kernel": (3, 2), "stride": 2, "ceil_mode": True, "count_include_pad": False},
    ),
    "asymmetric": ((2, 2, 9, 13), {"kernel": (2, 5), "stride": (3, 1), "padding": (1, 2)}),
    "row of 65": ((1, 1, 3, 65), {"kernel": 3, "stride": 1}),
    "rows of vectors": ((2, 2, 6, 32), {"kernel": 2, "padding": (0, 1)}),
    "whole image": ((3, 2, 5, 6), {"kernel": (5, 6)}),
    "whole image, divisor": ((3, 2, 5, 6), {"kernel": (5, 6), "divisor_override": 7}),
    "large window": ((1, 2, 12, 13), {"kernel": (9, 8), "stride": 2}),
}


@pytest.mark.parametrize("case", list(AVG_CASES))
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_avg_pool(family, case, dtype):
    shape, options = AVG_CASES[case]
    x = values(shape, dtype)
    expected, matrix = avg_reference(x, **options)
    close(avg_pool2d(Tensor.from_host(family, x), **renamed(options)), expected, dtype)
    g = values(expected.shape, dtype, 1)
    dx = np.einsum("op,nco->ncp", matrix, g.reshape(*g.shape[:2], -1).astype("f8")).reshape(shape)
    close(avg_pool2d_grad(Tensor.from_host(family, g), shape, **renamed(options)), dx, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize(
    ("size", "output"), [((7, 9), (3, 4)), ((4, 4), 1), ((5, 6), (5, 6)), ((3, 4), (7, 5)), ((13, 5), (5, 5))]
)
def test_adaptive_avg_pool(family, size, output, dtype):
    x = values((2, 3, *size), dtype)
    ho, wo = two(output)
    bounds = [[(i * n // o, -(-(i + 1) * n // o)) for i in range(o)] for n, o in zip(size, (ho, wo))]
    g, dx = values((2, 3, ho, wo), dtype, 1), np.zeros(x.shape)
    expected = np.empty((2, 3, ho, wo))
    for i, (a, b) in enumerate(bounds[0]):
        for j, (c, d) in enumerate(bounds[1]):
            expected[:, :, i, j] = x[:, :, a:b, c:d].astype("f8").mean((2, 3))
            dx[:, :, a:b, c:d] += (g[:, :, i, j].astype("f8") / ((b - a) * (d - c)))[:, :, None, None]
    close(adaptive_avg_pool2d(Tensor.from_host(family, x), output), expected, dtype)
    close(adaptive_avg_pool2d_grad(Tensor.from_host(family, g), x.shape), dx, dtype)


def test_global_avg_pool(queue):
    x = values((2, 3, 5, 7))
    close(global_avg_pool2d(Tensor.from_host(queue, x)), x.astype("f8").mean((2, 3), keepdims=True))


def test_views(family):
    x = values((4, 6, 9, 11))
    tensor = Tensor.from_host(family, x)
    for view, array in (
        (tensor[:, ::2, ::-1, 1:], x[:, ::2, ::-1, 1:]),
        (tensor.transpose(2, 3), x.swapaxes(2, 3)),
        (tensor.permute(1, 0, 2, 3), x.transpose(1, 0, 2, 3)),
        (tensor[::-1, ::-1], x[::-1, ::-1]),
        (tensor[:1, :1].expand(2, 3, 9, 11), np.broadcast_to(x[:1, :1], (2, 3, 9, 11))),
    ):
        y, at = max_pool2d(view, 3, 2, 1, return_indices=True)
        expected, places = max_reference(np.ascontiguousarray(array), kernel=3, stride=2, padding=1)
        np.testing.assert_array_equal(y.to_host(), expected)
        np.testing.assert_array_equal(at.to_host(), places)
        close(avg_pool2d(view, 3, 2, 1), avg_reference(np.ascontiguousarray(array), kernel=3, stride=2, padding=1)[0])
    for offset in (1, 2, 8):
        array = x.ravel()[offset : offset + 512].reshape(1, 2, 8, 32)
        view = Tensor.from_host(family, x.ravel())[offset : offset + 512].reshape(1, 2, 8, 32)
        close(max_pool2d(view, 3, 1, 1), max_reference(array, kernel=3, stride=1, padding=1)[0])
        close(avg_pool2d_grad(view, (1, 2, 8, 64), (1, 2)), np.repeat(array.astype("f8"), 2, 3) / 2)
    g = values((2, 3, 4, 5), seed=1)
    view = Tensor.from_host(family, np.ascontiguousarray(g.swapaxes(0, 3))).transpose(0, 3)
    same = avg_pool2d_grad(Tensor.from_host(family, g), (2, 3, 8, 10), 2).to_host()
    np.testing.assert_array_equal(avg_pool2d_grad(view, (2, 3, 8, 10), 2).to_host(), same)


def test_POL_01_padding_is_minus_infinity(queue):
    x = Tensor.from_host(queue, np.array([[[[-1, -2], [-3, -4]]]], "f4"))
    np.testing.assert_array_equal(max_pool2d(x, 2, 2, 1).to_host(), [[[[-1, -2], [-3, -4]]]])
    with pytest.raises(
        ShapeError, match=r"max_pool2d: expected a padding of at most half the window \(3, 3\), got \(3, 3\)"
    ):
        max_pool2d(x, 3, padding=3)


def test_POL_03_overlaps_add_and_ties_go_to_the_first(queue):
    rows = [[1, 2, 3, 4, 5, 6], [7, 88, 9, 10, 11, 12], [13, 14, 15, 16, 17, 18], [19, 20, 21, 22, 23, 24]]
    x = Tensor.from_host(queue, np.array([[rows]], "f4"))
    y, at = max_pool2d(x, 3, 2, 1, return_indices=True)
    np.testing.assert_array_equal(y.to_host(), [[[[88, 88, 12], [88, 88, 24]]]])
    dx = max_pool2d_grad(Tensor.ones(queue, y.shape), at, x.shape, 3, 2, 1).to_host()[0, 0]
    expected = np.zeros((4, 6))
    expected[1, 1], expected[1, 5], expected[3, 5] = 4, 1, 1
    np.testing.assert_array_equal(dx, expected)
    tie = Tensor.from_host(queue, np.full((1, 1, 1, 2), 2, "f4"))
    y, at = max_pool2d(tie, (1, 2), return_indices=True)
    dx = max_pool2d_grad(Tensor.ones(queue, y.shape), at, tie.shape, (1, 2)).to_host()
    np.testing.assert_array_equal(dx.ravel(), [1, 0])


def test_special_values(family):
    x = values((1, 2, 6, 6))
    x[0, 0, 1, 1], x[0, 0, 4, 4], x[0, 1] = np.nan, -np.inf, -np.inf
    x[0, 1, 5, 5] = np.inf
    y, at = max_pool2d(Tensor.from_host(family, x), 3, 3, 1, return_indices=True)
    expected, places = max_reference(x, kernel=3, stride=3, padding=1)
    np.testing.assert_array_equal(y.to_host(), expected)
    np.testing.assert_array_equal(at.to_host(), places)
    y = avg_pool2d(Tensor.from_host(family, x[:, :1]), 2).to_host()
    assert np.isnan(y).sum() == 1
    assert np.isinf(y).sum() == 1
    two_nans = Tensor.from_host(family, np.array([[[[1, np.nan], [np.nan, 2]]]], "f4"))
    assert max_pool2d(two_nans, 2, return_indices=True)[1].to_host().item() == 1


def test_NUM_10_zero_sizes(family):
    empty = Tensor.zeros(family, (0, 3, 4, 4))
    assert max_pool2d(empty, 2).to_host().shape == (0, 3, 2, 2)
    assert avg_pool2d(empty, 2).to_host().shape == (0, 3, 2, 2)
    assert avg_pool2d_grad(Tensor.zeros(family, (0, 3, 2, 2)), (0, 3, 4, 4), 2).to_host().shape == (0, 3, 4, 4)


def test_errors_name_the_shapes(queue):
    x = Tensor.zeros(queue, (1, 2, 4, 5))
    with pytest.raises(ShapeError, match=r"expected images \(N, C, H, W\)"):
        max_pool2d(x.reshape(2, 4, 5), 2)
    with pytest.raises(ShapeError, match="window that fits the padded input"):
        avg_pool2d(x, 6)
    with pytest.raises(ShapeError, match="kernel_size"):
        max_pool2d(x, 0)
    with pytest.raises(ShapeError, match="divisor"):
        avg_pool2d(x, 2, divisor_override=0)
    with pytest.raises(ShapeError, match=r"output's shape \(1, 2, 2, 2\), got \(1, 2, 3, 2\)"):
        avg_pool2d_grad(Tensor.zeros(queue, (1, 2, 3, 2)), x.shape, 2)
    with pytest.raises(DTypeError, match="floating"):
        avg_pool2d(x.astype("int32"), 2)


@pytest.mark.parametrize("vector", [8, 16])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_registers_of_both_widths(cl_queue, vector, dtype):
    with override_profile(cl_queue, dataclasses.replace(profile_of(cl_queue), vector=vector)):
        for shape, options in WIDE:
            x = values(shape, dtype)
            x[0, 0, 3, 2:9:3] = np.nan
            y, at = max_pool2d(Tensor.from_host(cl_queue, x), **renamed(options), return_indices=True)
            expected, places = max_reference(x, **options)
            close(y, expected, dtype)
            np.testing.assert_array_equal(at.to_host(), places)
            x = values(shape, dtype)
            close(avg_pool2d(Tensor.from_host(cl_queue, x), **renamed(options)), avg_reference(x, **options)[0], dtype)
