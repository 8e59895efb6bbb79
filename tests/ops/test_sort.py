"""Sorting against NumPy's stable sort on every backend and kernel family."""

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


def on(queue, array):
    return Tensor.from_host(queue, np.asarray(array))


def same(tensor, array):
    assert tensor.shape == array.shape and tensor.dtype == array.dtype
    assert np.array_equal(tensor.to_host(), array, equal_nan=is_float(array.dtype))


def order(x, axis=-1, descending=False):
    """The reference: a stable sort of (is NaN, rank from the wanted end), with ranks from the distinct values."""
    ranks = np.unique(np.where(x == 0, 0, x), return_inverse=True)[1].reshape(x.shape)
    ranks = -ranks if descending else ranks
    ranks = np.where(x != x, ranks.max(initial=0) + 1, ranks)
    return np.argsort(ranks, axis, kind="stable")


@pytest.mark.parametrize("n", [1, 2, 7, 48, 49, 63, 64, 65, 1000, 1025, 5000])
def test_lengths(queue, n):
    x = np.random.default_rng(n).integers(-20, 20, (3, n)).astype(np.float32)
    x[0, ::5], x[1, ::3], x[2, ::2] = np.nan, -0.0, -np.inf
    x[0, 1::7] = np.inf
    for descending in (False, True):
        same(ops.argsort(on(queue, x), -1, descending), order(x, -1, descending))
        same(ops.sort(on(queue, x), -1, descending), np.take_along_axis(x, order(x, -1, descending), -1))


@pytest.mark.parametrize("shape", [(1, 33000), (2, 70000)])
def test_rows_of_many_blocks(queue, shape):
    """All runs merged at once, and in several passes; many equal elements."""
    x = np.random.default_rng(2).integers(-300, 300, shape)
    for dtype in ("int32", "float64"):
        same(ops.argsort(on(queue, x.astype(dtype))), np.argsort(x, -1, kind="stable"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int64", "int8", "bool"])
def test_dtypes(queue, dtype):
    x = np.random.default_rng(0).integers(-99, 99, (4, 130)).astype(dtype)
    if np.dtype(dtype).kind == "i":
        x[0, :2] = np.iinfo(dtype).min, np.iinfo(dtype).max
    same(ops.argsort(on(queue, x)), np.argsort(x, -1, kind="stable"))
    same(ops.sort(on(queue, x), descending=True), np.sort(x, -1)[:, ::-1])


def test_axes_and_views(queue):
    x = np.random.default_rng(1).integers(0, 9, (6, 50, 7)).astype(np.float32)
    t = on(queue, x)
    for view, array in [(t, x), (t.transpose(0, 2), x.swapaxes(0, 2)), (t[:, ::-2, 1:], x[:, ::-2, 1:])]:
        for axis in range(3):
            same(ops.argsort(view, axis), order(array, axis))
            same(ops.sort(view, axis), np.sort(array, axis))
    same(ops.argsort(t[0, 0, :1].expand(9)), np.arange(9))


def test_many_short_rows(queue):
    x = np.random.default_rng(2).standard_normal((3000, 5)).astype(np.float32)
    same(ops.argsort(on(queue, x)), np.argsort(x, -1, kind="stable"))


def test_long_rows(queue):
    x = np.random.default_rng(3).standard_normal(200003).astype(np.float32)
    same(ops.argsort(on(queue, x)), np.argsort(x, kind="stable"))


def test_nothing_to_sort(queue):
    for shape in [(0,), (3, 0), (0, 3)]:
        x = np.empty(shape, np.float32)
        same(ops.argsort(on(queue, x)), np.empty(shape, np.int64))
        same(ops.sort(on(queue, x)), x)
    with pytest.raises(ShapeError, match="axis"):
        ops.sort(on(queue, x), 2)


def test_topk(queue):
    x = np.random.default_rng(4).integers(0, 30, (4, 60, 3)).astype(np.float32)
    x[0, :55] = np.nan
    for axis, k, largest in [(1, 10, True), (1, 60, False), (0, 2, True), (-1, 1, False), (1, 0, True)]:
        values, places = ops.topk(on(queue, x), k, axis, largest)
        want = np.take(order(x, axis, largest), np.arange(k), axis)
        same(places, want)
        same(values, np.take_along_axis(x, want, axis))
    with pytest.raises(ShapeError, match=r"expected k in \[0, 60\]"):
        ops.topk(on(queue, x), 61, 1)


@settings(max_examples=25)
@given(st.integers(1, 6), st.integers(1, 1500), st.integers(1, 2000), st.booleans(), st.integers(0, 99))
def test_sizes(queue, rows, n, distinct, descending, seed):
    x = np.random.default_rng(seed).integers(0, distinct, (rows, n)).astype(np.int32)
    same(ops.argsort(on(queue, x), -1, descending), order(x, -1, descending))
