"""Picking and adding by position against NumPy on every backend and kernel family; bad indices; the embedding cases."""

import numpy as np
import pytest
from families import FAMILIES, queue_of
from hypothesis import given, settings
from hypothesis import strategies as st

from netcl import ops
from netcl.core.backend import opencl
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import is_float
from netcl.core.errors import DTypeError, IndexOutOfRange, ShapeError
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor
from netcl.kernels import grid
from netcl.ops.index.scatter import WALK, gather_grad, take_grad

X = np.random.default_rng(0).standard_normal((5, 7, 12)).astype(np.float32)


@pytest.fixture(params=FAMILIES)
def queue(request):
    return queue_of(request.param)


def on(queue, array, dtype=None):
    return Tensor.from_host(queue, np.asarray(array, dtype))


def same(tensor, array):
    assert tensor.shape == array.shape and tensor.dtype == array.dtype
    assert np.array_equal(tensor.to_host(), array)


def added(x, index, src, axis):
    """The reference of scatter_add: one addition at a time, in float64 for floats."""
    y = x.astype(np.float64) if is_float(x.dtype) else x.copy()
    at = list(np.indices(index.shape))
    at[axis] = index
    np.add.at(y, tuple(at), src)
    return y


# -- picking -----------------------------------------------------------------------------------------------------------


def test_take_from_views(queue):
    t = on(queue, X)
    views = [
        (t, X),
        (t.transpose(0, 2), X.swapaxes(0, 2)),
        (t[:, ::2, ::-1], X[:, ::2, ::-1]),
        (t[1:, :, 4:], X[1:, :, 4:]),
    ]
    for view, array in views:
        for axis in (0, 1, -1):
            i = np.random.default_rng(axis + 1).integers(0, array.shape[axis], (3, 4))
            same(ops.take(view, on(queue, i), axis), np.take(array, i, axis))
    same(ops.take(t, on(queue, [4, 0]).expand(3, 2).T, 0), np.take(X, np.broadcast_to([4, 0], (3, 2)).T, 0))
    same(ops.index_select(t, on(queue, [6, 6, 0], np.int32), 1), X[:, [6, 6, 0]])
    same(ops.take(t, on(queue, 3)[...], 1), X[:, 3])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "bool", "int8"])
def test_take_moves_any_dtype(queue, dtype):
    for cols in (1, 3, 16):
        x = (np.arange(9 * cols) % 5 - 2).reshape(9, cols).astype(dtype)
        same(ops.take(on(queue, x), on(queue, [8, 0, 3], np.int32)), x[[8, 0, 3]])


def test_gather(queue):
    t, rng = on(queue, X), np.random.default_rng(1)
    for axis in range(3):
        shape = list(X.shape)
        shape[axis] = 9
        i = rng.integers(0, X.shape[axis], shape)
        same(ops.gather(t, on(queue, i), axis), np.take_along_axis(X, i, axis))
    i = rng.integers(0, 7, (2, 3, 5))
    same(ops.gather(t, on(queue, i), 1), np.take_along_axis(X[:2, :, :5], i, 1))
    same(ops.gather(t.T, on(queue, i.T), 1), np.take_along_axis(X[:2, :, :5], i, 1).T)


@settings(max_examples=25)
@given(st.integers(1, 4), st.integers(1, 70), st.integers(1, 9), st.integers(1, 70), st.integers(0, 99))
def test_gather_and_take_sizes(queue, outer, n, cols, count, seed):
    rng = np.random.default_rng(seed)
    x, i = rng.standard_normal((outer, n, cols)).astype(np.float32), rng.integers(0, n, count)
    same(ops.take(on(queue, x), on(queue, i), 1), np.take(x, i, 1))
    j = rng.integers(0, n, (outer, count, cols))
    same(ops.gather(on(queue, x), on(queue, j), 1), np.take_along_axis(x, j, 1))


def test_large_take(queue):
    x, i = np.arange(1000003, dtype=np.float32), np.random.default_rng(2).permutation(1000003)
    same(ops.take(on(queue, x), on(queue, i)), x[i])


def test_nothing_to_pick(queue):
    t = on(queue, X)
    same(ops.take(t, on(queue, [], np.int64), 1), X[:, []])
    same(ops.take(t[:, :, :0], on(queue, [1, 2]), 1), X[:, [1, 2], :0])
    same(ops.gather(t, on(queue, np.empty((5, 0, 12), np.int32)), 1), X[:, :0])
    same(ops.embedding(t[0], on(queue, np.empty((2, 0), np.int64))), np.empty((2, 0, 12), np.float32))
    same(ops.scatter_add(t, on(queue, np.empty((5, 0, 12), np.int32)), t[:, :0], 1), X)
    same(ops.one_hot(on(queue, [], np.int32), 4), np.empty((0, 4), np.float32))
    same(take_grad("take", t[:, :0], on(queue, [], np.int64), X.shape, 1), np.zeros_like(X))
    with pytest.raises(IndexOutOfRange, match=r"expected indices in \[0, 0\), got 0"):
        ops.take(t[:0], on(queue, [0])).to_host()


def test_what_is_refused(queue):
    t, i = on(queue, X), on(queue, [0, 1])
    with pytest.raises(DTypeError, match="take: expected int32 or int64 indices, got float32"):
        ops.take(t, on(queue, [0.0]).astype("float32"))
    with pytest.raises(ShapeError, match="index_select: expected an index of one axis"):
        ops.index_select(t, on(queue, [[0]]))
    with pytest.raises(ShapeError, match="gather: expected an index of 3 axes"):
        ops.gather(t, i, 0)
    with pytest.raises(ShapeError, match="gather: expected an index of 3 axes"):
        ops.gather(t, on(queue, np.zeros((1, 8, 1), np.int64)), 0)
    with pytest.raises(ShapeError, match="embedding: expected a table"):
        ops.embedding(t, i)
    with pytest.raises(ShapeError, match="padding_index"):
        ops.embedding(t[0], i, padding_index=7)
    with pytest.raises(ShapeError, match="src of the index's shape"):
        ops.scatter_add(t[0, 0], i, t[0, 0], 0)
    with pytest.raises(DTypeError, match="scatter_add: expected numbers, got bool"):
        ops.scatter_add(i.astype("bool"), i, i.astype("bool"), 0)


# -- bad indices -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [999, -4, -(1 << 40), 1 << 40])
def test_bad_indices_raise_alike_everywhere(queue, bad):
    table, index = on(queue, np.ones((3, 4), np.float32)), on(queue, [0, bad, 2])
    for where, op in [
        ("embedding", lambda: ops.embedding(table, index)),
        ("take", lambda: ops.take(table, index)),
        ("gather", lambda: ops.gather(table, index.unsqueeze(1), 0)),
        ("scatter_add", lambda: ops.scatter_add(table, index.reshape(3, 1).expand(3, 4), table, 0)),
        ("scatter", lambda: ops.scatter(table, index.reshape(3, 1).expand(3, 4), table, 0)),
        ("index_copy", lambda: ops.index_copy(table, index, table)),
        ("index_add", lambda: ops.index_add(table, index, table)),
        ("one_hot", lambda: ops.one_hot(index, 3)),
        ("embedding", lambda: ops.embedding(table, index)),
        ("embedding", lambda: take_grad("embedding", table, index, (3, 4), 0)),
        ("take", lambda: take_grad("take", table, index, (3, 4), 0)),
        ("gather", lambda: gather_grad(table, index.reshape(3, 1).expand(3, 4).contiguous(), (3, 4), 0)),
    ]:
        with pytest.raises(IndexOutOfRange) as caught:
            op().to_host()
        low = 0 if where in ("embedding", "one_hot") else -3
        assert str(caught.value) == f"{where}: expected indices in [{low}, 3), got {bad}."
    same(ops.embedding(table, index[::2]), np.ones((2, 4), np.float32))  # and the flag is clear again


def test_negative_indices_count_from_the_end(queue):
    """Also in 64-bit and strided ones, along every axis, forward and backward, with many equal ones."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 7, 5)).astype(np.float32)
    for dtype, count in ((np.int32, 4), (np.int64, WALK + 30)):
        i = rng.integers(-7, 7, count).astype(dtype)
        t, index = on(queue, x), on(queue, np.repeat(i, 2))[::2]
        src = rng.standard_normal((6, count, 5)).astype(np.float32)
        same(ops.take(t, index, 1), x[:, i])
        same(ops.index_select(t, index, 1), x[:, i])
        grid = rng.integers(-7, 7, (6, count, 5)).astype(dtype)
        same(ops.gather(t, on(queue, grid), 1), np.take_along_axis(x, grid, 1))
        want = x.copy()
        want[:, i] = src
        same(ops.index_copy(t, index, on(queue, src), 1), want)
        want = x.astype(np.float64)
        np.add.at(want, (slice(None), i), src)
        np.testing.assert_allclose(ops.index_add(t, index, on(queue, src), 1).to_host(), want, rtol=1e-5, atol=1e-5)
        places = np.meshgrid(*map(np.arange, grid.shape), indexing="ij")
        want = x.copy()
        want[places[0], grid, places[2]] = src
        same(ops.scatter(t, on(queue, grid), on(queue, src), 1), want)
        want = x.astype(np.float64)
        np.add.at(want, (places[0], grid, places[2]), src)
        found = ops.scatter_add(t, on(queue, grid), on(queue, src), 1)
        np.testing.assert_allclose(found.to_host(), want, rtol=1e-5, atol=1e-5)
        want = np.zeros(x.shape)
        np.add.at(want, (slice(None), i), src)
        found = take_grad("take", on(queue, src), index, x.shape, 1)
        np.testing.assert_allclose(found.to_host(), want, rtol=1e-5, atol=1e-5)


def test_bad_indices_leave_the_rest_right(cl_queue):
    table, index = on(cl_queue, np.arange(12).reshape(3, 4)), on(cl_queue, [2, -5, 0])
    y = ops.take(table, index)
    with pytest.raises(IndexOutOfRange):
        y.to_host()
    assert y.to_host().tolist() == [[8, 9, 10, 11], [0] * 4, [0, 1, 2, 3]]


# -- adding ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [9, WALK + 100])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_scatter_add(queue, count, dtype):
    rng = np.random.default_rng(3)
    x = (X * 10).astype(dtype)
    for axis in range(3):
        shape = list(X.shape)
        shape[axis] = count
        i, src = rng.integers(0, X.shape[axis], shape), (rng.standard_normal(shape) * 10).astype(dtype)
        y = ops.scatter_add(on(queue, x), on(queue, i), on(queue, src), axis)
        np.testing.assert_allclose(y.to_host(), added(x, i, src, axis), rtol=1e-5, atol=1e-4)


def test_scatter_add_to_a_part_of_views(queue):
    rng = np.random.default_rng(4)
    i, src = rng.integers(0, 7, (3, 20, 5)), rng.standard_normal((3, 20, 5)).astype(np.float32)
    want = added(X, i, src, 1)
    y = ops.scatter_add(on(queue, X.T.copy()).T, on(queue, i.T.copy()).T, on(queue, src[:, ::-1].copy())[:, ::-1], 1)
    np.testing.assert_allclose(y.to_host(), want, rtol=1e-5, atol=1e-5)
    g = gather_grad(on(queue, src), on(queue, i), X.shape, 1)
    np.testing.assert_allclose(g.to_host(), want - X, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3, 40, 5000])
@pytest.mark.parametrize("shape", [(2, 1100, 3), (1, 4000, 1)])
def test_scatter_add_of_runs_that_cross_blocks(queue, rows, shape):
    rng = np.random.default_rng(rows)
    i, src = rng.integers(0, rows, shape), rng.integers(-9, 9, shape).astype(np.float32)
    x = rng.integers(-9, 9, (shape[0], rows, shape[2])).astype(np.float32)
    same(ops.scatter_add(on(queue, x), on(queue, i), on(queue, src), 1), added(x, i, src, 1).astype(np.float32))
    same(gather_grad(on(queue, src), on(queue, i), x.shape, 1), added(0 * x, i, src, 1).astype(np.float32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_types_are_summed_in_float(queue, dtype):
    i, src = np.zeros((3000, 2), np.int64), np.full((3000, 2), 0.1).astype(dtype)
    y = ops.scatter_add(on(queue, np.zeros((2, 2)).astype(dtype)), on(queue, i), on(queue, src), 0)
    assert y.dtype == dtype
    total = 3000 * float(src[0, 0])
    np.testing.assert_array_equal(y.to_host(), np.array([[total, total], [0, 0]]).astype(dtype))


@pytest.mark.parametrize("rows", [1, 3, 40, 5000])
@pytest.mark.parametrize("shape", [(2, 0, 3), (1, 0, 5), (1, 0, 24)])
def test_take_grad_of_runs_that_cross_blocks(queue, rows, shape):
    rng, (outer, _, cols) = np.random.default_rng(rows), shape
    for count in (WALK + 1, 2048, 4000):
        i, g = rng.integers(0, rows, count), rng.integers(-9, 9, (outer, count, cols)).astype(np.float32)
        want = np.zeros((outer, rows, cols), np.float32)
        for o in range(outer):
            np.add.at(want[o], i, g[o])
        same(take_grad("take", on(queue, g), on(queue, i), want.shape, 1), want)
        want[:, rows // 2] = 0
        same(take_grad("take", on(queue, g), on(queue, i), want.shape, 1, rows // 2), want)


@pytest.mark.parametrize("count", [768, 769, 5000])
def test_no_gradient_for_the_padding_row(queue, count):
    grad = take_grad("embedding", on(queue, np.ones((count, 8), np.float32)), on(queue, [0] * count), (10, 8), 0, 0)
    assert not grad.to_host().any()


def test_repeated_indices_add_up(queue):
    grad = take_grad("embedding", on(queue, np.ones((4, 8), np.float32)), on(queue, [1, 1, 1, 2]), (10, 8), 0, 0)
    assert grad.to_host()[:, 0].tolist() == [0, 3, 1, *[0] * 7]


def test_one_index_65536_times(queue):
    index = on(queue, np.full(65536, 3, np.int32))
    ones, rising = np.ones((65536, 8), np.float32), np.repeat(1e-3 * np.arange(65536, dtype=np.float32), 8)
    grad = take_grad("embedding", on(queue, ones), index, (10, 8), 0).to_host()
    assert (grad[3] == 65536.0).all() and grad.sum() == 65536.0 * 8
    upstream = on(queue, rising.reshape(65536, 8))
    runs = [take_grad("embedding", upstream, index, (10, 8), 0).to_host() for _ in range(2)]
    assert np.array_equal(*runs)
    np.testing.assert_allclose(runs[0][3], 1e-3 * 65535 * 65536 / 2, rtol=1e-3)


def test_no_index_costs_more_than_others(queue):
    """The same launches however often an index occurs, and on GPUs no work-item that adds up many rows."""
    if isinstance(queue, CPUQueue):
        return
    g = on(queue, np.ones((65536, 8), np.float32))
    launches = []
    hook = lambda kernel, queue, size, local, args, _: launches[-1].append((kernel.name, size, local, args[-3]))  # noqa: E731
    opencl.hooks.append(hook)
    try:
        for index in (np.full(65536, 3), np.arange(65536) % 10):
            launches.append([])
            take_grad("embedding", g, on(queue, index), (10, 8), 0)
    finally:
        opencl.hooks.remove(hook)
    assert launches[0] == launches[1]
    if profile_of(queue).kind == "gpu":
        spans = [span for name, *_, span in launches[0] if name in ("sum_blocks", "sum_rows")]
        assert spans == [85, 85]  # of blocks: at most 65536 / 85 of them and 84 rows before and after are added


def test_64_bit_positions(queue, monkeypatch):
    monkeypatch.setattr(grid, "FAR", 0)
    i, g = np.arange(2000) % 7, np.ones((5, 2000, 2), np.float32)
    same(ops.take(on(queue, X), on(queue, i), 1), np.take(X, i, 1))
    want = np.zeros((5, 7, 2), np.float32)
    want += np.bincount(i)[:, None]
    same(take_grad("take", on(queue, g), on(queue, i), want.shape, 1), want)


# -- one-hot, masks ----------------------------------------------------------------------------------------------------


def test_one_hot(queue):
    i = np.random.default_rng(5).integers(0, 11, (6, 50))
    for dtype in ("float32", "float16", "bfloat16", "bool"):
        same(ops.one_hot(on(queue, i), 11, dtype), np.eye(11)[i].astype(dtype))
    same(ops.one_hot(on(queue, i, np.int32).T, 11, "int64"), np.eye(11, dtype=np.int64)[i.T])
    with pytest.raises(ShapeError, match="one_hot: expected classes of at least 1, got 0"):
        ops.one_hot(on(queue, i), 0)


@pytest.mark.parametrize("n", [0, 1, 7, 64, 65, 1000003])
def test_masked_select(queue, n):
    rng = np.random.default_rng(n)
    x = rng.standard_normal(n).astype(np.float32)
    for mask in (x > 0.5, x < 99, x > 99):
        same(ops.masked_select(on(queue, x), on(queue, mask)), x[mask])


def test_masked_select_broadcasts_and_takes_views(queue):
    t, mask = on(queue, X), np.arange(12) % 3 == 1
    same(ops.masked_select(t, on(queue, mask)), X[:, :, mask].reshape(-1))
    same(ops.masked_select(t.T[:, ::-1], on(queue, X.T[:, ::-1] > 0)), X.T[:, ::-1][X.T[:, ::-1] > 0])
    with pytest.raises(DTypeError, match="expected a bool mask, got int64"):
        ops.masked_select(t, on(queue, mask, np.int64))
    with pytest.raises(ShapeError, match="broadcast"):
        ops.masked_select(t, on(queue, mask[:5]))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (65,), (4, 5, 6), (1, 1)])
def test_nonzero(queue, shape):
    x = np.random.default_rng(0).integers(-1, 2, shape).astype(np.float32)
    same(ops.nonzero(on(queue, x)), np.argwhere(x))
    same(ops.argwhere(on(queue, x).T), np.argwhere(x.T))
    same(ops.nonzero(on(queue, np.float32([np.nan, -0.0]))), np.array([[0]]))


def test_masked_fill_and_take_along_dim_refuse(queue):
    t, i = on(queue, X), on(queue, [[[0]]])
    mask, whole = on(queue, X > 0), on(queue, [1, 2])
    same(ops.masked_fill(whole, on(queue, [True, False]), -3), np.array([-3, 2]))
    with pytest.raises(DTypeError, match="masked_fill: expected a bool mask, got float32"):
        ops.masked_fill(t, t, 0)
    with pytest.raises(DTypeError, match="masked_fill: expected a value that int64 holds, got float"):
        ops.masked_fill(whole, on(queue, [True, False]), 0.5)
    with pytest.raises(DTypeError, match="masked_fill: expected a value that float32 holds, got float64"):
        ops.masked_fill(t, mask, on(queue, X.astype(np.float64)))
    with pytest.raises(ShapeError, match="take_along_dim: expected indices of 3 axes"):
        ops.take_along_dim(t, i[0], 0)
    with pytest.raises(ShapeError, match="take_along_dim"):
        ops.take_along_dim(t, i.expand(1, 5, 1), 2)
    same(ops.take_along_dim(t, i, -1), X[:, :, :1])


def put(x, index, src, axis):
    """The reference of scatter: one element at a time, in the order of the positions."""
    y = x.copy()
    for at, k in np.ndenumerate(index):
        y[(*at[:axis], k, *at[axis + 1 :])] = src[at]
    return y


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count", [0, 1, 9, WALK + 100])
@pytest.mark.parametrize("dtype", ["float32", "int64", "float16"])
def test_the_last_of_what_is_put_stays(family, count, dtype):
    queue, rng = queue_of(family), np.random.default_rng(count)
    x = (X * 10).astype(dtype)[:, ::2].copy()
    t = on(queue, x[:, ::-1].copy())[:, ::-1]
    for axis in range(3):
        shape = list(x.shape)
        shape[axis] = count
        i, src = rng.integers(0, x.shape[axis], shape), (rng.standard_normal(shape) * 10).astype(dtype)
        for kind in (np.int32, np.int64):
            same(ops.scatter(t, on(queue, i, kind), on(queue, src), axis), put(x, i, src, axis))
        part = tuple(slice(None) if a == axis else slice(n - 1) for a, n in enumerate(shape))
        same(ops.scatter(t, on(queue, i)[part], on(queue, src)[part], axis), put(x, i[part], src[part], axis))
        line = rng.integers(0, x.shape[axis], count)
        wide = np.broadcast_to(np.expand_dims(line, [a for a in range(3) if a != axis]), shape)
        same(ops.index_copy(t, on(queue, line), on(queue, src), axis - 3), put(x, wide, src, axis))
        y = ops.index_add(t, on(queue, line), on(queue, src), axis, alpha=2)
        want = added(x, wide, 2 * src, axis)
        np.testing.assert_allclose(
            y.to_host().astype(float), want, rtol=2e-3 if dtype == "float16" else 1e-5, atol=1e-4
        )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count", [0, 1, 9, WALK + 100])
def test_bincount(family, count):
    queue, rng = queue_of(family), np.random.default_rng(count)
    i, w = rng.integers(0, 12, count), rng.integers(-9, 9, count).astype(np.float32)
    same(ops.bincount(on(queue, i)[::-1], on(queue, w)[::-1]), np.bincount(i, w).astype(np.float32))
    same(ops.bincount(on(queue, i, np.int32), minlength=20), np.bincount(i, minlength=20))


def test_bincount_refuses(queue):
    i = on(queue, [3, -2])
    with pytest.raises(IndexOutOfRange, match=r"bincount: expected indices in .0, 4., got -2"):
        ops.bincount(i).to_host()
    with pytest.raises(ShapeError, match="bincount: expected x, and weights, of one axis and length"):
        ops.bincount(i, on(queue, X[0, 0]))
    with pytest.raises(ShapeError, match="bincount: expected minlength of at least 0, got -1"):
        ops.bincount(i, minlength=-1)
    with pytest.raises(DTypeError, match="bincount: expected weights that are numbers, got bool"):
        ops.bincount(i, on(queue, [True, False]))


def test_putting_refuses_what_does_not_fit(queue):
    t, i = on(queue, X), on(queue, [0, 1])
    with pytest.raises(ShapeError, match=r"index_copy: expected src .2, 7, 12. for x .5, 7, 12. and 2 positions"):
        ops.index_copy(t, i, t)
    with pytest.raises(ShapeError, match="index_add: expected an index of one axis"):
        ops.index_add(t, i.reshape(2, 1), t)
    with pytest.raises(DTypeError, match="index_copy: expected x and src of one dtype, got float32 and int64"):
        ops.index_copy(t, i, t[:2].astype("int64"))
    with pytest.raises(DTypeError, match="scatter: expected int32 or int64 indices"):
        ops.scatter(t, t, t, 0)


def test_isin(queue):
    x = np.arange(30).reshape(5, 6)
    same(ops.isin(on(queue, x).T, on(queue, [[3, 29], [0, 77]])), np.isin(x.T, [3, 29, 0]))
    same(ops.isin(on(queue, x), on(queue, [], np.int64)), np.zeros((5, 6), bool))


# -- nothing runs on the host ------------------------------------------------------------------------------------------


def test_no_op_goes_through_the_host(cl_queue, monkeypatch):
    t, i, mask = on(cl_queue, X), on(cl_queue, [[0, 3], [4, 1]]), on(cl_queue, X > 0)
    kinds = []
    monkeypatch.setattr(opencl, "copy_hooks", [lambda kind, *_: kinds.append(kind)])
    ops.gather(t, ops.argsort(t, 1), 1), ops.take(t, i), ops.embedding(t[0], i), ops.index_select(t, i[0])
    ops.scatter_add(t, ops.argsort(t, 1), t, 1), ops.one_hot(i, 5), ops.isin(t, t[0]), ops.topk(t, 3)
    ops.scatter(t, ops.argsort(t, 1), t, 1), ops.index_copy(t, i[0], t[:2]), ops.index_add(t, i[0], t[:2], alpha=2)
    ops.cumsum(t, 1), ops.tril(t), ops.arange(cl_queue, 9), ops.linspace(cl_queue, 0, 1, 9), ops.eye(cl_queue, 3)
    assert set(kinds) <= {"copy", "fill"}
    ops.masked_select(t, mask)  # reads the length of its result, and nothing else
    ops.nonzero(t)
    assert [kind for kind in kinds if kind not in ("copy", "fill")] == ["read", "read"]
