"""Positions along several axes, sorted rows, different values, histograms, against NumPy on every kind of device."""

import numpy as np
import pytest
from families import FAMILIES, queue_of

import netcl.autograd as ag
from netcl import ops
from netcl.core.errors import DTypeError, IndexOutOfRange, ShapeError
from netcl.core.tensor import Tensor
from netcl.ops.index.counts import PART
from netcl.ops.index.scatter import WALK

FORMS = pytest.mark.parametrize("form", [lambda fn: fn, ag.jit_compile], ids=["plain", "jit"])


@pytest.fixture(params=FAMILIES)
def queue(request):
    """Every device, and one that poses as a GPU."""
    return queue_of(request.param)


def on(queue, array, dtype=None):
    return Tensor.from_host(queue, np.asarray(array, dtype))


def same(tensor, array):
    array = np.asarray(array)
    assert tensor.shape == array.shape
    np.testing.assert_array_equal(tensor.to_host(), array)


# -- several axes ------------------------------------------------------------------------------------------------------


def test_gather_nd_equals_numpy(queue):
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    t = on(queue, x.transpose(2, 0, 1).copy()).permute(1, 2, 0)
    i = np.random.default_rng(1).integers(-3, 3, (2, 3, 3)).astype(np.int32)
    for k in (1, 2, 3):
        same(ops.gather_nd(t, on(queue, i)[:, ::-1, :k]), x[tuple(np.moveaxis(i[:, ::-1, :k], -1, 0))])
    same(ops.gather_nd(t, on(queue, np.zeros((2, 0), np.int64))), np.stack([x, x]))
    same(ops.gather_nd(t, on(queue, np.zeros((0, 2), np.int64))), np.zeros((0, 5), np.float32))
    batched = np.random.default_rng(2).integers(-4, 4, (3, 6, 1))
    same(ops.gather_nd(t, on(queue, batched), 1), np.stack([a[b[:, 0]] for a, b in zip(x, batched, strict=True)]))
    same(ops.gather_nd(t, on(queue, batched[:, :4]), batch_dims=1)[1], x[1][batched[1, :4, 0]])
    pairs = np.random.default_rng(3).integers(-4, 4, (3, 4, 2, 1))
    want = np.stack([[a[b[:, 0]] for a, b in zip(m, n, strict=True)] for m, n in zip(x, pairs, strict=True)])
    same(ops.gather_nd(t, on(queue, pairs), 2), want)


@pytest.mark.parametrize("count", [4, WALK + 20])
def test_scatter_nd_equals_numpy(queue, count):
    rng = np.random.default_rng(count)
    x = rng.integers(-3, 4, (3, 4, 5)).astype(np.float32)
    for k in (1, 2, 3):
        i = rng.integers(-3, 3, (count, k))
        u = rng.integers(-2, 3, (count, *x.shape[k:])).astype(np.float32)
        place = tuple(i.T)
        for reduction, function in (
            ("none", None),
            ("add", np.add),
            ("mul", np.multiply),
            ("max", np.maximum),
            ("min", np.minimum),
        ):
            want = x.copy()
            if function is None:
                want[place] = u
            else:
                function.at(want, place, u)
            same(ops.scatter_nd(on(queue, x), on(queue, i), on(queue, u), reduction), want)


def test_index_put_equals_numpy(queue):
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (3, 4, 5))
    t, a, b = on(queue, x), rng.integers(-3, 3, (2, 1)), rng.integers(-4, 4, 3)
    for values in (rng.integers(0, 9, (2, 3, 5)), rng.integers(0, 9, 5), np.int64([7])):
        want = x.copy()
        want[a, b] = values
        same(t.index_put((on(queue, a), on(queue, b, np.int32)), on(queue, values)), want)
        want = x.copy()
        np.add.at(want, (a, b), values)
        same(ops.index_put(t, (on(queue, a), on(queue, b)), on(queue, values), accumulate=True), want)
    mask = rng.random((3, 4)) < 0.5
    want = x.copy()
    want[mask] = -1
    same(ops.index_put(t, on(queue, mask), -1), want)
    want[:, 0, 1] = 9
    same(
        ops.index_put(
            on(queue, np.where(mask[..., None], -1, x)), [on(queue, [0, 1, 2]), on(queue, [0]), on(queue, [1])], 9
        ),
        want,
    )


def test_masked_scatter_equals_numpy(queue):
    rng = np.random.default_rng(0)
    x, mask, source = rng.standard_normal((4, 5)), rng.random((4, 5)) < 0.4, rng.standard_normal((3, 7))
    want = x.copy()
    want[mask] = source.reshape(-1)[: mask.sum()]
    same(ops.masked_scatter(on(queue, x), on(queue, mask), on(queue, source)), want)
    row = mask[:1]
    wide = np.broadcast_to(row, x.shape)
    want = x.copy()
    want[wide] = source.reshape(-1)[: wide.sum()]
    same(on(queue, x).masked_scatter(on(queue, row), on(queue, source)), want)
    none = on(queue, np.zeros(0))
    same(ops.masked_scatter(on(queue, x), on(queue, mask & False), none), x)
    with pytest.raises(IndexOutOfRange, match=r"take: expected indices in \[-2, 2\), got 2"):
        ops.masked_scatter(on(queue, x), on(queue, mask | True), on(queue, source)[0, :2]).to_host()
    with pytest.raises(IndexOutOfRange):
        ops.masked_scatter(on(queue, x), on(queue, mask | True), none).to_host()


def test_repeat_interleave_equals_numpy(queue):
    x, counts = np.arange(12.0).reshape(3, 4), np.int64([2, 0, 3])
    t = on(queue, x)
    same(ops.repeat_interleave(t, on(queue, counts), 0), np.repeat(x, counts, 0))
    same(ops.repeat_interleave(t, on(queue, np.int32([1, 0, 0, 4])), -1, output_size=5), np.repeat(x, [1, 0, 0, 4], 1))
    same(t.repeat_interleave(on(queue, counts).reshape(3), 0)[:, ::2], np.repeat(x, counts, 0)[:, ::2])
    same(ops.repeat_interleave(t, 2), np.repeat(x, 2))
    same(ops.repeat_interleave(t, on(queue, [2])), np.repeat(x, 2))
    same(ops.repeat_interleave(t, on(queue, [0, 0, 0]), 0), x[:0])
    for size in (4, 7):
        with pytest.raises(IndexOutOfRange):
            ops.repeat_interleave(t, on(queue, counts), 0, output_size=size).to_host()
    with pytest.raises(ValueError, match="counts of at least 0, got -1"):
        ops.repeat_interleave(t, on(queue, [1, -1, 1]), 0)
    with pytest.raises(ShapeError, match=r"expected 3 counts, got shape \(2,\)"):
        ops.repeat_interleave(t, on(queue, [1, 1]), 0)


def test_bad_positions_raise_under_the_name_of_the_op(queue):
    """Of one axis, even where the flat position would be legal."""
    x, i = on(queue, np.zeros((2, 3))), on(queue, [[0, 4]])
    for name, op in (
        ("gather_nd", lambda: ops.gather_nd(x, i)),
        ("scatter_nd", lambda: ops.scatter_nd(x, i, x[0, :1])),
        ("index_put", lambda: ops.index_put(x, (i[:, 0], i[:, 1]), 1.0)),
        ("ravel_index", lambda: ops.ravel_index(i, (2, 3))),
    ):
        with pytest.raises(IndexOutOfRange, match=rf"{name}: expected indices in \[-3, 3\), got 4"):
            op().to_host()
    with pytest.raises(ShapeError, match="gather_nd: expected indices"):
        ops.gather_nd(x, on(queue, [[0, 0, 0]]))
    with pytest.raises(ShapeError, match=r"scatter_nd: expected updates \(1,\), got \(1, 3\)"):
        ops.scatter_nd(x, i, x[:1])
    with pytest.raises(ValueError, match="scatter_nd: expected a reduction of none, add, mul, max, min, got 'mean'"):
        ops.scatter_nd(x, i, x[0, :1], "mean")
    with pytest.raises(DTypeError, match="index_put: expected int32 or int64 indices, got float64"):
        ops.index_put(x, (x,), 1.0)


@FORMS
def test_gradients_along_random_directions(queue, form):
    rng = np.random.default_rng(0)
    x, u, s = (on(queue, rng.standard_normal(shape)) for shape in ((3, 4, 2), (5, 2), (24,)))
    i, mask = on(queue, rng.integers(-3, 3, (5, 2))), on(queue, rng.random((3, 4, 2)) < 0.5)
    counts = on(queue, np.int64([2, 0, 1]))
    assert ag.gradcheck(form(lambda x: ag.gather_nd(x, i)), x)
    assert ag.gradcheck(form(lambda x: ag.gather_nd(x[..., ::-1], i[:3, :1].reshape(3, 1, 1), 1)), x)
    for reduction in ("none", "add", "mul", "max", "min"):
        fn = form(lambda x, u, reduction=reduction: ag.scatter_nd(x, i, u, reduction))
        assert ag.gradcheck(fn, [x, u])
    for accumulate in (False, True):
        fn = form(lambda x, u, a=accumulate: ag.index_put(x, (i[:, 0], i[:, 1]), u, a))
        assert ag.gradcheck(fn, [x, u])
        assert ag.gradcheck(lambda x, u: ag.index_put(x[..., 0], (i[:, 0],), u[0, 0], accumulate), [x, u])  # noqa: B023
    assert ag.gradcheck(form(lambda x, s: ag.masked_scatter(x, mask, s)), [x, s])
    assert ag.gradcheck(form(lambda x: ag.repeat_interleave(x, counts, 0)), x)


# -- sorted rows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted_equals_numpy(queue, side):
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64, np.int8, np.int64, np.float16):
        row, values = np.sort(rng.integers(-9, 9, 20).astype(dtype)), rng.integers(-12, 12, (3, 5)).astype(dtype)
        same(
            ops.searchsorted(on(queue, row), on(queue, values.T.copy()).T, side=side),
            np.searchsorted(row, values, side),
        )
    rows, values = np.sort(rng.integers(0, 9, (2, 3, 8)), -1), rng.integers(-2, 12, (2, 3, 4))
    want = [[np.searchsorted(a, v, side) for a, v in zip(*ab, strict=True)] for ab in zip(rows, values, strict=True)]
    same(ops.searchsorted(on(queue, rows), on(queue, values), side == "right"), want)
    loose = rng.standard_normal(30).astype(np.float32)
    order = ops.argsort(on(queue, loose))
    values = rng.standard_normal(9).astype(np.float32)
    found = ops.searchsorted(on(queue, loose), on(queue, values), sorter=order, side=side)
    same(found, np.searchsorted(loose, values, side, sorter=np.argsort(loose)))
    special = np.float32([-np.inf, -0.0, 0.0, 1, np.inf, np.nan, np.nan])
    wanted = np.float32([np.nan, np.inf, 0.0, -0.0, -np.inf, 2])
    same(
        ops.searchsorted(on(queue, special), on(queue, wanted), side == "right"), np.searchsorted(special, wanted, side)
    )
    same(
        ops.bucketize(on(queue, wanted[1:]), on(queue, special[:5]), side == "right"),
        np.searchsorted(special[:5], wanted[1:], side),
    )
    same(ops.searchsorted(on(queue, special[:0]), on(queue, wanted)), np.zeros(6, int))
    same(ops.searchsorted(on(queue, special), on(queue, wanted[:0])), np.zeros(0, int))
    same(ops.searchsorted(on(queue, np.int32([1, 2, 3])), on(queue, np.float32([1.5, 2]))), [1, 1])


def test_wrong_rows_are_told(queue):
    x = on(queue, np.zeros((2, 3)))
    with pytest.raises(ShapeError, match=r"searchsorted: expected sorted \(n,\), or .* got \(2, 3\) for \(3, 3\)"):
        ops.searchsorted(x, on(queue, np.zeros((3, 3))))
    with pytest.raises(ShapeError, match=r"bucketize: expected boundaries of one axis, got shape \(2, 3\)"):
        ops.bucketize(x, x)
    with pytest.raises(ValueError, match="expected side 'left' or 'right', got 'middle'"):
        ops.searchsorted(x[0], x, side="middle")
    with pytest.raises(ShapeError, match=r"expected a sorter of shape \(3,\), got \(2,\)"):
        ops.searchsorted(x[0], x, sorter=on(queue, [0, 1]))


# -- different values, histograms --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 9, 500])
def test_unique_equals_numpy(queue, n):
    rng = np.random.default_rng(n)
    for x in (rng.integers(-4, 4, (n, 2)), rng.integers(-20, 20, (2, n)).astype(np.float32), rng.random((n, 2)) < 0.5):
        t = on(queue, x.T.copy()).T
        for axis in (None, 0, 1):
            if axis is not None and x.shape[1 - axis] > 20:
                continue
            found = ops.unique(t, return_inverse=True, return_counts=True, axis=axis)
            want = np.unique(x, return_inverse=True, return_counts=True, axis=axis)
            for f, w in zip(found, want, strict=True):
                same(f, w.reshape(f.shape))
            same(t.unique(axis=axis), want[0])
            values, first, inverse, counts = ops.unique(t, False, True, True, axis, return_index=True)
            want = np.unique(x, True, True, True, axis)
            order = np.argsort(want[1])
            same(first, want[1][order])
            same(values, np.take(want[0], order, axis or 0))
            same(counts, want[3][order])
            same(inverse, np.argsort(order)[want[2]].reshape(inverse.shape))
            assert found[0].dtype == x.dtype


def test_unique_of_nan_zeros_and_nothing(queue):
    values, counts = ops.unique(on(queue, np.float32([np.nan, 0.0, -0.0, np.nan, 1])), return_counts=True)
    assert counts.tolist() == [2, 1, 1, 1] and np.isnan(values.to_host()).tolist() == [False, False, True, True]
    values, inverse = ops.unique(on(queue, np.zeros((2, 0))), return_inverse=True)
    assert values.shape == (0,) and inverse.shape == (2, 0)
    values, inverse, counts = ops.unique(on(queue, np.zeros((3, 0))), True, True, True, 0)
    assert values.shape == (1, 0) and inverse.tolist() == [0, 0, 0] and counts.tolist() == [3]


def test_histograms_equal_numpy(queue):
    rng = np.random.default_rng(0)
    for x in (rng.standard_normal((20, 30)).astype(np.float32), rng.integers(-9, 9, 70), np.float64([1, 1, 1])):
        t, w = on(queue, x), rng.integers(0, 5, x.shape).astype(np.float32)
        for bins, limits in ((10, None), (7, (-1.5, 2.0)), (np.sort(rng.standard_normal(6)).astype(np.float32), None)):
            given = on(queue, bins) if isinstance(bins, np.ndarray) else bins
            counts, edges = ops.histogram(t, given, limits)
            want, places = np.histogram(x, bins, limits)
            same(counts, want)
            np.testing.assert_allclose(edges.to_host(), places, rtol=1e-6, atol=1e-6)
            same(
                ops.histogram(t, given, limits, on(queue, w))[0],
                np.histogram(x, bins, limits, weights=w)[0].astype(np.float32),
            )
            with np.errstate(invalid="ignore"):
                want = np.histogram(x, bins, limits, weights=w, density=True)[0]
            found = ops.histogram(t, given, limits, on(queue, w), density=True)[0].to_host()
            np.testing.assert_allclose(found, want, rtol=1e-5)
        same(ops.histc(t, 5, -2, 2), np.histogram(x, 5, (-2, 2))[0].astype(x.dtype))
        same(t.histc(5), np.histogram(x, 5)[0].astype(x.dtype))
    same(ops.histogram(on(queue, np.float32([np.nan, 1, np.inf, -np.inf, 3])), 2, (1, 3))[0], [1, 1])
    assert ops.histogram(on(queue, np.zeros(0)), 3)[0].tolist() == [0, 0, 0]


def test_wrong_bins_are_told(queue):
    x = on(queue, np.float32([np.nan, 1]))
    with pytest.raises(ValueError, match="histogram: expected a finite range that rises, got nan to nan"):
        ops.histogram(x)
    with pytest.raises(ValueError, match=r"histc: expected a finite range that rises, got 2\.0 to 1\.0"):
        ops.histc(x, 3, 2, 1)
    with pytest.raises(ShapeError, match="histogram: expected bins of at least 1, got 0"):
        ops.histogram(x, 0)
    with pytest.raises(ShapeError, match=r"histogram: expected weights of the shape \(2,\), got \(1,\)"):
        ops.histogram(x, 3, weights=x[:1])
    with pytest.raises(DTypeError, match="histogram: expected weights that are numbers, got bool"):
        ops.histogram(x, 3, (0, 1), weights=x.astype("bool"))


def test_long_counts_are_exact_and_repeat(queue):
    """CPU devices count them in parts, GPUs by atomics, near while there are few."""
    rng = np.random.default_rng(0)
    many = rng.integers(0, 1 << 15, 8 * PART)
    same(ops.bincount(on(queue, np.repeat(many, 2), np.int32)[::2]), np.bincount(many))
    x, w = rng.integers(0, 50, 8 * PART + 3), rng.standard_normal(8 * PART + 3).astype(np.float32)
    same(ops.bincount(on(queue, x)), np.bincount(x))
    first, second = (ops.bincount(on(queue, x), on(queue, w)).to_host() for _ in range(2))
    assert first.tobytes() == second.tobytes()
    np.testing.assert_allclose(first, np.bincount(x, w), rtol=1e-4, atol=1e-4)
    with pytest.raises(IndexOutOfRange, match=r"bincount: expected indices in \[0, \d+\), got -1"):
        ops.bincount(on(queue, np.where(np.arange(x.size) == 7, -1, x))).to_host()


def test_values_that_are_one_row_repeated_are_looked_up_in_each_row(queue):
    """A step of 0 between rows does not make them one row."""
    row, value = np.sort(np.random.default_rng(0).integers(0, 9, (5, 7))), np.array([[4, 0, 3]])
    rows = Tensor.from_host(queue, row)
    found = ops.searchsorted(rows, Tensor.from_host(queue, value).expand(5, 3)).to_host()
    np.testing.assert_array_equal(found, [np.searchsorted(r, value[0]) for r in row])
