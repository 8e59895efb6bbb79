"""Running sums against NumPy in float64 on every backend and kernel family."""

import numpy as np
import pytest
from families import FAMILIES, queue_of
from hypothesis import given, settings
from hypothesis import strategies as st

from netcl import ops
from netcl.core.dtypes import is_float
from netcl.core.errors import ShapeError
from netcl.core.tensor import Tensor


@pytest.fixture(params=FAMILIES)
def queue(request):
    return queue_of(request.param)


def check(queue, x, axis, t=None):
    y = ops.cumsum(Tensor.from_host(queue, x) if t is None else t, axis)
    want = np.cumsum(x, axis, dtype=np.float64 if is_float(x.dtype) else np.int64)
    assert y.shape == want.shape and y.dtype == (x.dtype if is_float(x.dtype) else np.int64)
    if is_float(x.dtype):
        tolerance = {2: 2e-3, 4: 1e-5, 8: 1e-12}[x.itemsize]
        scale = np.abs(x.astype(np.float64)).sum(axis).max(initial=1)
        np.testing.assert_allclose(y.to_host(), want, rtol=tolerance, atol=tolerance * scale)
    else:
        assert np.array_equal(y.to_host(), want)


@pytest.mark.parametrize("n", [1, 7, 63, 64, 65, 1023, 1024, 1025, 40000, 1000003])
def test_lengths(queue, n):
    check(queue, np.random.default_rng(n).standard_normal(n).astype(np.float32), 0)


@pytest.mark.parametrize(
    "shape", [(3, 5, 7), (2, 400, 3), (300, 70), (1, 70000, 2), (4, 9, 40), (70, 1, 20), (5000, 4)]
)
def test_axes(queue, shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for axis in [None, *range(len(shape)), -1]:
        check(queue, x, axis)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "bool"])
def test_dtypes(queue, dtype):
    x = np.random.default_rng(1).integers(-9, 9, (6, 500)).astype(dtype)
    check(queue, x, 1)
    check(queue, x, 0)


def test_views(queue):
    x = np.random.default_rng(2).standard_normal((6, 40, 30)).astype(np.float32)
    t = Tensor.from_host(queue, x)
    for view, array in [
        (t.transpose(0, 2), x.swapaxes(0, 2)), (t[:, ::2, ::-1], x[:, ::2, ::-1]), (t[1:5, 3, 1:], x[1:5, 3, 1:]),
        (t[:, :1].expand(6, 50, 30), np.broadcast_to(x[:, :1], (6, 50, 30))),
    ]:  # fmt: skip
        for axis in range(array.ndim):
            check(queue, array, axis, view)


def test_nothing_and_bad_axes(queue):
    for shape in [(0,), (3, 0), (0, 3)]:
        check(queue, np.empty(shape, np.float32), 0)
        check(queue, np.empty(shape, np.int32), None)
    with pytest.raises(ShapeError, match="axis"):
        ops.cumsum(Tensor.zeros(queue, (3,)), 1)


def test_it_is_a_method_and_keeps_infinities(queue):
    x = np.array([1, np.inf, 2, -np.inf, 3], np.float32)
    assert np.array_equal(
        Tensor.from_host(queue, x).cumsum(0).to_host(), [1, np.inf, np.inf, np.nan, np.nan], equal_nan=True
    )


@settings(max_examples=25)
@given(st.integers(1, 5), st.integers(1, 3000), st.integers(1, 40))
def test_sizes(queue, outer, n, cols):
    check(queue, np.random.default_rng(n).integers(-9, 9, (outer, n, cols)).astype(np.int32), 1)
