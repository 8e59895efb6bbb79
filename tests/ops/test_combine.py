"""Values combined by position against NumPy, one at a time: every mode, with and without what was there."""

import numpy as np
import pytest
from families import FAMILIES, queue_of

import netcl.autograd as ag
from netcl import ops
from netcl.core.errors import DTypeError, IndexOutOfRange, ShapeError
from netcl.core.tensor import Tensor
from netcl.ops.index.scatter import WALK

MODES = {"sum": np.add, "prod": np.multiply, "amax": np.maximum, "amin": np.minimum, "mean": np.add}


@pytest.fixture(params=FAMILIES)
def queue(request):
    """Every device, and one that poses as a GPU."""
    return queue_of(request.param)


def on(queue, array, dtype=None):
    return Tensor.from_host(queue, np.asarray(array, dtype))


def combined(x, index, src, axis, reduce, include_self):
    """The reference: one value after the other, in float64 for floats."""
    y, counts = (x.astype(np.float64) if x.dtype.kind == "f" else x.copy()), np.full(x.shape, int(include_self))
    for place in np.ndindex(index.shape):
        to = (*place[:axis], index[place] % x.shape[axis], *place[axis + 1 :])
        y[to] = src[place] if counts[to] == 0 else MODES[reduce](y[to], src[place])
        counts[to] += 1
    return y / np.maximum(counts, 1) if reduce == "mean" else y


@pytest.mark.parametrize("reduce", MODES)
def test_combined_values_equal_numpy(queue, reduce):
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.int64, np.int8, np.float16) if reduce != "mean" else (np.float32, np.float16):
        for axis, count, rows in ((0, 5, 4), (1, 3, 6), (0, WALK + 60, 4), (1, WALK + 9, 2)):
            shape = (count, 3) if axis == 0 else (3, count)
            full = (rows, 4) if axis == 0 else (4, rows)
            x, src = (rng.integers(-3, 4, s).astype(dtype) for s in (full, shape))
            index = rng.integers(-rows, rows, shape).astype(np.int32 if count % 2 else np.int64)
            for include_self in (True, False):
                views = on(queue, x.T.copy()).T, on(queue, index), on(queue, np.repeat(src, 2, 1))[:, ::2]
                found = ops.scatter_reduce(*views, axis, reduce, include_self)
                with np.errstate(over="ignore"):
                    want = combined(x, index, src, axis, reduce, include_self)
                    assert found.dtype == dtype
                    rtol = 2e-3 if dtype == np.float16 else 1e-5
                    np.testing.assert_allclose(found.to_host(), want.astype(dtype), rtol=rtol)


def test_whole_rows_with_four_columns_each(queue):
    """Index rows that are views of one list, in vectors of four where sorted."""
    rng = np.random.default_rng(1)
    x, src, places = rng.standard_normal((5, 8)), rng.standard_normal((70, 8)), rng.integers(0, 5, 70)
    x, src = x.astype(np.float32), src.astype(np.float32)
    index = on(queue, places).reshape(-1, 1).expand(70, 8)
    for reduce in MODES:
        for include_self in (True, False):
            found = ops.scatter_reduce(on(queue, x), index, on(queue, src), 0, reduce, include_self).to_host()
            want = combined(x, np.repeat(places[:, None], 8, 1), src, 0, reduce, include_self)
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [3, WALK + 40])
def test_nan_and_infinity_where_they_belong(queue, count):
    x = on(queue, np.float32([np.nan, 1, -np.inf, 3, 5]))
    src = np.full(count, 2, np.float32)
    src[0], src[1] = np.nan, np.inf
    index = on(queue, np.int32([1, 2] + [3] * (count - 2)))
    for reduce, want in (("amax", [np.nan, np.nan, np.inf, 3, 5]), ("amin", [np.nan, np.nan, -np.inf, 2, 5])):
        assert np.array_equal(ops.scatter_reduce(x, index, on(queue, src), 0, reduce).to_host(), want, equal_nan=True)
    alone = ops.scatter_reduce(x, index, on(queue, src), 0, "amax", False).to_host()
    assert np.array_equal(alone, [np.nan, np.nan, np.inf, 2, 5], equal_nan=True)
    lowest = on(queue, np.full(count, -np.inf, np.float32))
    zeros = on(queue, np.zeros(5, np.float32))
    assert ops.scatter_reduce(zeros, index, lowest, 0, "amax", False).to_host()[3] == -np.inf


def test_results_repeat_bit_for_bit(queue):
    rng = np.random.default_rng(2)
    x, src = (on(queue, rng.standard_normal(n), np.float32) for n in (3, 5000))
    index = on(queue, rng.integers(0, 3, 5000))
    for reduce in ("sum", "prod", "mean"):
        first, second = (ops.scatter_reduce(x, index, src, 0, reduce).to_host() for _ in range(2))
        assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("form", [lambda fn: fn, ag.jit_compile], ids=["plain", "jit"])
@pytest.mark.parametrize("include_self", [True, False])
def test_gradients_along_random_directions(queue, form, include_self):
    rng = np.random.default_rng(3)
    x, src = (on(queue, rng.standard_normal(s)) for s in ((4, 3), (6, 2)))
    index = on(queue, rng.integers(-4, 4, (6, 2)))
    for reduce in MODES:
        fn = form(lambda x, s, reduce=reduce: ag.scatter_reduce(x, index, s, 0, reduce, include_self))
        assert ag.gradcheck(fn, [x, src], rtol=1e-5)
    fn = form(lambda x, s: ag.scatter_reduce(x[::-1], index.T, s.T, 1, "prod"))
    assert ag.gradcheck(fn, [on(queue, rng.standard_normal((3, 4))), src])


def test_gradients_at_ties_and_zeros(queue):
    x = ag.tensor(on(queue, [2.0, 0.0, 1.0], np.float32), requires_grad=True)
    s = ag.tensor(on(queue, [2.0, 2.0, 3.0, 0.0], np.float32), requires_grad=True)
    index = on(queue, [0, 0, 1, 2])
    for reduce, gx, gs in (
        ("amax", [1 / 3, 0, 1], [1 / 3, 1 / 3, 1, 0]),
        ("prod", [4, 3, 0], [4, 4, 0, 1]),
        ("mean", [1 / 3, 1 / 2, 1 / 2], [1 / 3, 1 / 3, 1 / 2, 1 / 2]),
    ):
        x.grad = s.grad = None
        with ag.Tape() as tape:
            y = ag.sum(ag.scatter_reduce(x, index, s, 0, reduce))
        tape.backward(y)
        np.testing.assert_allclose(x.grad.to_host(), gx, rtol=1e-6)
        np.testing.assert_allclose(s.grad.to_host(), gs, rtol=1e-6)


def test_wrong_input_is_told(queue):
    x, index = on(queue, np.ones((3, 2), np.float32)), on(queue, [[0, 1]])
    with pytest.raises(ValueError, match=r"reduce as one of sum, .*, got 'average'"):
        ops.scatter_reduce(x, index, x[:1], 0, "average")
    with pytest.raises(ShapeError, match=r"src of the index's shape \(1, 2\), got \(3, 2\)"):
        ops.scatter_reduce(x, index, x, 0, "amax")
    with pytest.raises(DTypeError, match="floating dtype for the mean, got int64"):
        ops.scatter_reduce(index, index, index, 0, "mean")
    with pytest.raises(IndexOutOfRange, match=r"scatter_reduce: expected indices in \[-3, 3\), got 3"):
        ops.scatter_reduce(x, on(queue, [[0, 3]]), x[:1], 0, "amax").to_host()
    assert ops.scatter_reduce(x, index[:0], x[:0], 0, "amax").tolist() == x.tolist()
