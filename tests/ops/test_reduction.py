"""Reductions against NumPy in float64, on every backend."""

import dataclasses
import re
import warnings

import numpy as np
import pyopencl as cl
import pytest
from families import FAMILIES, queue_of
from scipy.special import logsumexp as scipy_logsumexp

from netcl.core.device.profile import override_profile, profile_of
from netcl.core.dtypes import is_float
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.queue import state_of
from netcl.core.tensor import Tensor
from netcl.fusion import fold
from netcl.fusion.chain import Chain
from netcl.ops import reduction

SIZES = [1, 7, 8, 9, 63, 64, 65, 1000003]
AXES = [None, 0, 1, 2, -1, (0, 1), (0, 2), (1, 2), (0, 1, 2)]
FLOAT_OPS = ["sum", "mean", "prod", "max", "min", "var"]


@pytest.fixture(params=FAMILIES)
def every_queue(request):
    """The devices, and the GPU kernels where there is no GPU."""
    return queue_of(request.param)


def data(shape, seed=0, dtype=np.float32, low=-2, high=2):
    return np.random.default_rng(seed).uniform(low, high, shape).astype(dtype)


def expected(op, x, axis=None, keepdims=False, **kw):
    y = np.asarray(
        getattr(np, op)(x.astype(np.float64) if is_float(x.dtype) else x, axis=axis, keepdims=keepdims, **kw)
    )
    return y.reshape(1) if y.shape == () else y


@pytest.mark.parametrize("op", FLOAT_OPS)
@pytest.mark.parametrize("n", SIZES)
def test_sizes(every_queue, op, n):
    x = data(n, low=0.99, high=1.01) if op == "prod" else data(n)
    y = getattr(reduction, op)(Tensor.from_host(every_queue, x)).to_host()
    assert y.shape == (1,)
    assert y.dtype == np.float32
    scale = max(1.0, np.abs(x).astype(np.float64).sum()) if op == "sum" else 1.0
    np.testing.assert_allclose(y, expected(op, x), rtol=2e-4 if op == "prod" else 1e-5, atol=1e-6 * scale)


@pytest.mark.parametrize("op", ["sum", "max", "std", "all"])
@pytest.mark.parametrize("axis", AXES)
def test_axes(every_queue, op, axis):
    check_axis(every_queue, op, axis)


@pytest.mark.parametrize("op", ["mean", "min", "any"])
@pytest.mark.parametrize("axis", [None, 0, (0, 2)])
def test_more_ops_on_some_axes(queue, op, axis):
    check_axis(queue, op, axis)


def check_axis(queue, op, axis):
    x = data((9, 33, 17))
    x[x < -1] = 0 if op in ("any", "all") else -1.5
    t = Tensor.from_host(queue, x)
    for keepdims in (False, True):
        y = getattr(reduction, op)(t, axis, keepdims).to_host()
        want = expected(op, x, axis, keepdims)
        assert y.shape == want.shape
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["sum", "argmax"])
@pytest.mark.parametrize("shape", [(70000, 3), (3, 70000), (2, 3, 500, 40), (1000, 2, 5), (5000, 100), (4, 1, 4097)])
def test_shapes_that_take_other_paths(every_queue, op, shape):
    x = data(shape)
    t = Tensor.from_host(every_queue, x)
    axes = range(len(shape)) if op == "argmax" else [*range(len(shape)), None, tuple(range(0, len(shape), 2))]
    for axis in axes:
        y = getattr(reduction, op)(t, axis).to_host()
        want = expected(op, x, axis)
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=2e-6 * x.size**0.5 * 10)


@pytest.mark.parametrize("op", ["sum", "argmin"])
def test_views(every_queue, op):
    x = data((6, 40, 30))
    t = Tensor.from_host(every_queue, x)
    views = [
        (t.transpose(0, 2), x.swapaxes(0, 2)),
        (t[:, ::2, ::-1], x[:, ::2, ::-1]),
        (t[1:5, 3, 1:], x[1:5, 3, 1:]),
        (t[:, :1, :].expand(6, 50, 30), np.broadcast_to(x[:, :1, :], (6, 50, 30))),
        (t.permute(1, 0, 2), x.transpose(1, 0, 2)),
    ]
    for view, array in views:
        for axis in [*range(view.ndim), None]:
            y = getattr(reduction, op)(view, axis).to_host()
            np.testing.assert_allclose(y, expected(op, array, axis), rtol=1e-4, atol=1e-4)


def test_integers_widen(queue):
    """No sum wraps, a mean of integers is a float."""

    def total(values, dtype):
        return reduction.sum(Tensor.from_host(queue, np.array(values, dtype))).to_host()

    assert total([True] * 300, bool).tolist() == [300]
    assert total([100, 100], np.int8).dtype == np.int64
    assert total([100, 100], np.int8).tolist() == [200]
    assert total([2**31 - 1] * 4, np.int32).tolist() == [4 * (2**31 - 1)]
    assert reduction.prod(Tensor.from_host(queue, np.full(40, 2, np.int32))).to_host().tolist() == [2**40]
    y = reduction.mean(Tensor.from_host(queue, np.array([1, 2], np.int32))).to_host()
    assert is_float(y.dtype)
    assert y.tolist() == [1.5]
    x = np.random.default_rng(0).integers(-100, 100, (50, 70)).astype(np.int8)
    t = Tensor.from_host(queue, x)
    for axis in (0, 1, None):
        for op in ("max", "min", "sum"):
            want = expected(op, x, axis)
            y = getattr(reduction, op)(t, axis).to_host()
            assert y.dtype == want.dtype
            np.testing.assert_array_equal(y, want)
        np.testing.assert_array_equal(reduction.argmax(t, axis).to_host(), np.reshape(x.argmax(axis), -1))
    np.testing.assert_allclose(reduction.std(t, 0, correction=1).to_host(), x.std(0, ddof=1), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.bool_])
def test_integer_limits(queue, dtype):
    if dtype == np.bool_:
        x = np.array([True, False, True])
    else:
        x = np.array([np.iinfo(dtype).min, 0, np.iinfo(dtype).max], dtype)
    t = Tensor.from_host(queue, x)
    assert reduction.max(t).to_host()[0] == x.max()
    assert reduction.min(t).to_host()[0] == x.min()
    assert reduction.argmax(t).to_host()[0] == x.argmax()


@pytest.mark.parametrize(("dtype", "rtol"), [("float16", 2e-3), ("bfloat16", 5e-3)])
def test_narrow_types_are_summed_in_float(queue, dtype, rtol):
    x = np.full(5120, 0.5, dtype)
    t = Tensor.from_host(queue, x)
    assert reduction.sum(t).to_host().dtype == dtype
    assert reduction.sum(t).to_host()[0] == 2560
    assert reduction.mean(t).to_host()[0] == 0.5
    m = data((30, 100), dtype=dtype)
    for op in ("var", "max", "sum", "argmax"):
        for axis in (0, 1):
            y = getattr(reduction, op)(Tensor.from_host(queue, m), axis).to_host()
            np.testing.assert_allclose(y, expected(op, m.astype(np.float64), axis), rtol=rtol, atol=rtol / 8)


def test_double(queue):
    x = data((40, 50), dtype=np.float64)
    t = Tensor.from_host(queue, x)
    if t.dtype != np.float64:
        pytest.skip("no double precision")
    for axis in (0, 1, None):
        np.testing.assert_allclose(reduction.var(t, axis).to_host(), expected("var", x, axis), rtol=1e-13)


@pytest.mark.parametrize("op", ["max", "min", "argmax", "argmin", "sum"])
def test_nan_and_infinity(every_queue, op):
    x = data((5, 37))
    x[0, 3], x[1, 36], x[2, 0], x[3, 5] = np.nan, np.inf, -np.inf, np.nan
    x[3, 20] = np.nan
    t = Tensor.from_host(every_queue, x)
    for axis in (1, 0):
        np.testing.assert_allclose(getattr(reduction, op)(t, axis).to_host(), expected(op, x, axis), rtol=1e-5)


def test_first_index_wins(queue):
    x = np.zeros((300, 70), np.float32)
    x[7:, 5] = x[9:, 64] = 1
    t = Tensor.from_host(queue, x)
    for axis in (0, 1, None):
        want = np.reshape(x.argmax(axis), -1)
        np.testing.assert_array_equal(reduction.argmax(t, axis).to_host(), want)
        np.testing.assert_array_equal(reduction.argmax(t, axis, keepdims=True).to_host().reshape(-1), want)
        np.testing.assert_array_equal(reduction.argmin(t.T, axis).to_host(), np.reshape(x.T.argmin(axis), -1))


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int32", "int64"])
def test_places_in_parts(every_queue, op, dtype):
    """Folds long enough to be cut: the first of equals wins among lanes, work-items and parts; NaN before all."""
    start = {"argmax": -100, "argmin": 100}[op]
    if dtype.startswith("float"):
        start = np.inf * start
    x = np.full((600, 516), start, dtype)
    t = lambda: Tensor.from_host(every_queue, x)  # noqa: E731
    find = getattr(reduction, op)
    assert find(t()).to_host().tolist() == [0]
    for places in ([(599, 514)], [(350, 7), (350, 8)], [(2, 515), (3, 0)]):
        for place in places:
            x[place] = 5
        y = t()
        for axis in (None, 0, 1):
            np.testing.assert_array_equal(find(y, axis).to_host(), np.reshape(getattr(np, op)(x, axis), -1))
        assert find(y.T).to_host().tolist() == [getattr(np, op)(x.T)]
        assert find(y[1:, 3:]).to_host().tolist() == [getattr(np, op)(x[1:, 3:])]
    if dtype.startswith("float"):
        x[300, 3] = x[300, 9] = x[500, 1] = np.nan
        assert find(t()).to_host().tolist() == [300 * 516 + 3]


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
@pytest.mark.parametrize("shape", [(8, 6, 16, 40), (5, 3, 7, 9), (2, 300, 8, 24), (70, 4, 96, 8)])
def test_vectors_that_walk_several_axes(every_queue, shape, dtype):
    """Channels' sums as of bias gradients: whole vectors, and those that a row's end cuts; aligned or not."""
    x = np.random.default_rng(1).integers(0, 100, shape).astype(dtype)
    t = Tensor.from_host(every_queue, x)
    for a, b in ((t, x), (t[:, :, 1:], x[:, :, 1:]), (t[..., 1:], x[..., 1:]), (t[..., :-1], x[..., :-1])):
        np.testing.assert_array_equal(reduction.max(a, (0, 2, 3)).to_host(), b.max((0, 2, 3)))
        sums = reduction.sum(a.astype("float32") if dtype == "float16" else a, (0, 2, 3)).to_host()
        np.testing.assert_array_equal(sums, b.sum((0, 2, 3), np.float64))
        np.testing.assert_allclose(reduction.mean(a, (1, 2)).to_host(), b.mean((1, 2), np.float64), rtol=1e-3)


def test_empty(queue):
    """Over nothing there is a sum, a product and no maximum."""
    t = Tensor.empty(queue, (0,))
    assert reduction.sum(t).to_host().tolist() == [0]
    assert reduction.prod(t).to_host().tolist() == [1]
    assert np.isnan(reduction.mean(t).to_host()).all()
    assert np.isnan(reduction.var(t).to_host()).all()
    assert reduction.any(t).to_host().tolist() == [False]
    assert reduction.all(t).to_host().tolist() == [True]
    assert reduction.logsumexp(t).to_host().tolist() == [-np.inf]
    assert reduction.norm(t).to_host().tolist() == [0]
    for op in (reduction.max, reduction.min, reduction.argmax, reduction.argmin):
        with pytest.raises(ShapeError):
            op(t)
    t = Tensor.empty(queue, (3, 0))
    assert reduction.sum(t, 1).to_host().tolist() == [0, 0, 0]
    assert reduction.sum(t, 0).to_host().shape == (0,)
    assert reduction.max(t, 0).to_host().shape == (0,)
    with pytest.raises(ShapeError):
        reduction.max(t, 1)


def test_scalars_and_bad_axes(queue):
    t = Tensor.from_host(queue, np.array(3.0, np.float32))
    assert reduction.sum(t).to_host().tolist() == [3]
    assert reduction.argmax(t).to_host().tolist() == [0]
    m = Tensor.from_host(queue, data((2, 3)))
    for axis in (2, -3, (0, 0)):
        with pytest.raises(ShapeError):
            reduction.sum(m, axis)
    np.testing.assert_array_equal(reduction.sum(m, ()).to_host(), m.to_host())
    with pytest.raises(DTypeError, match="max"):
        reduction.reduce(m, "median")
    with pytest.raises(DTypeError, match="one input"):
        reduction.reduce(m, "sum", map="add")


def test_maps_are_fused(queue):
    x = data((30, 90))
    t = Tensor.from_host(queue, x)
    for axis in (None, 0, 1):
        y = reduction.reduce(t, "sum", axis, map="square").to_host()
        np.testing.assert_allclose(y, expected("sum", np.square(x.astype(np.float64)), axis), rtol=1e-5)
        y = reduction.reduce(t, "max", axis, map="abs").to_host()
        np.testing.assert_allclose(y, expected("max", np.abs(x), axis))


def test_variance_does_not_cancel(queue):
    x = (data((20, 1000)) + 10000).astype(np.float32)
    y = reduction.var(Tensor.from_host(queue, x), 1, correction=1).to_host()
    np.testing.assert_allclose(y, expected("var", x, 1, ddof=1), rtol=1e-4)


def test_long_sums_keep_their_digits(queue):
    x = data(3_000_000, low=0, high=1)
    t = Tensor.from_host(queue, x)
    np.testing.assert_allclose(reduction.sum(t).to_host(), expected("sum", x), rtol=1e-6)
    m = t.reshape(1_000_000, 3)
    np.testing.assert_allclose(reduction.sum(m, 0).to_host(), expected("sum", x.reshape(-1, 3), 0), rtol=1e-6)
    m = t[:2_000_000].reshape(250_000, 8)
    np.testing.assert_allclose(
        reduction.sum(m, 0).to_host(), expected("sum", x[:2_000_000].reshape(-1, 8), 0), rtol=1e-6
    )


def test_logsumexp(queue):
    """Rows of -inf give -inf, an infinite element gives infinity."""
    inf = np.inf

    def of(values, axis=None):
        return reduction.logsumexp(Tensor.from_host(queue, np.array(values, np.float32)), axis).to_host()

    np.testing.assert_allclose(of([[1, 2], [-inf, -inf]], 1), [2.3132617, -inf], rtol=1e-6)
    np.testing.assert_allclose(of([1, inf]), [inf])
    assert np.isnan(of([1, np.nan])).all()
    x = data((4, 50, 3), low=-80, high=80)
    for axis in (0, 1, 2, None, (0, 2)):
        want = np.reshape(scipy_logsumexp(x.astype(np.float64), axis), of(x, axis).shape)
        np.testing.assert_allclose(of(x, axis), want, rtol=1e-6)


def test_norm(queue):
    x = data((12, 33))
    t = Tensor.from_host(queue, x)
    for ord in (1, 2, np.inf):
        want = np.linalg.norm(x.astype(np.float64), ord, axis=1)
        np.testing.assert_allclose(reduction.norm(t, ord, 1).to_host(), want, rtol=1e-5)
        want = [np.linalg.norm(x.ravel().astype(np.float64), ord)]
        np.testing.assert_allclose(reduction.norm(t, ord).to_host(), want, rtol=1e-5)
    with pytest.raises(ShapeError, match="ord"):
        reduction.norm(t, 3)


def numeric_gradient(f, x, g, eps=1e-6):
    """Central differences of sum(g * f(x)), element by element."""
    out = np.zeros_like(x)
    for i in np.ndindex(*x.shape):
        step = np.zeros_like(x)
        step[i] = eps
        out[i] = (g * (f(x + step) - f(x - step))).sum() / (2 * eps)
    return out


@pytest.mark.parametrize("axis", [None, 0, 1, (0, 2)])
def test_gradients(queue, axis):
    x = data((3, 4, 5), dtype=np.float64)
    x[0, 1, 2] = 0
    t = Tensor.from_host(queue, x.astype(np.float32))
    shape = np.sum(x, axis).shape or (1,)
    g = data(shape, 1, np.float64)
    gt = Tensor.from_host(queue, g.astype(np.float32))

    def check(dx, f):
        want = numeric_gradient(f, x, g if axis is not None else g[0])
        np.testing.assert_allclose(dx.to_host(), want, rtol=1e-3, atol=1e-4)

    check(reduction.extreme_grad(gt, t, reduction.max(t, axis), axis), lambda a: a.max(axis))
    check(reduction.prod_grad(gt, t, axis), lambda a: a.prod(axis))
    check(reduction.var_grad(gt, t, axis, 1), lambda a: a.var(axis, ddof=1))
    check(reduction.std_grad(gt, t, reduction.std(t, axis), axis), lambda a: a.std(axis))
    check(reduction.logsumexp_grad(gt, t, reduction.logsumexp(t, axis), axis), lambda a: scipy_logsumexp(a, axis))
    check(reduction.norm_grad(gt, t, reduction.norm(t, 2, axis), 2, axis), lambda a: np.sqrt((a * a).sum(axis)))
    inf = reduction.norm(t, np.inf, axis)
    check(reduction.norm_grad(gt, t, inf, np.inf, axis), lambda a: np.abs(a).max(axis))
    np.testing.assert_array_equal(reduction.spread(gt, x.shape, axis).shape, x.shape)


def test_gradient_rules_at_special_points(queue):
    def at(values):
        return Tensor.from_host(queue, np.array(values, np.float32))

    g, x = at([1.0]), at([1, 3, 3, 2])
    np.testing.assert_array_equal(reduction.extreme_grad(g, x, reduction.max(x)).to_host(), [0, 0.5, 0.5, 0])
    g, x = at([1.0, 1.0]), at([[1, 2], [-np.inf, -np.inf]])
    dx = reduction.logsumexp_grad(g, x, reduction.logsumexp(x, 1), 1).to_host()
    np.testing.assert_allclose(dx, [[0.26894142, 0.7310586], [0, 0]], rtol=1e-6)
    for values in ([0, 2, 3], [0, 0, 3]):
        x = at(values)
        want = [np.prod(np.delete(values, i)) for i in range(3)]
        np.testing.assert_allclose(reduction.prod_grad(at([1.0]), x).to_host(), want)
    x = at([0, 0])
    np.testing.assert_array_equal(reduction.norm_grad(at([1.0]), x, reduction.norm(x)).to_host(), [0, 0])


def test_launches(cl_queue):
    """Fused maps are one launch; nothing waits."""
    from netcl.core.backend import opencl

    t = Tensor.from_host(cl_queue, data((64, 128)))
    names = []
    hook = lambda kernel, *_: names.append(kernel.name)  # noqa: E731
    opencl.hooks.append(hook)
    try:
        reduction.reduce(t, "sum", 1, map="square")
        reduction.mean(t, 0)
    finally:
        opencl.hooks.remove(hook)
    assert len(names) <= 3, names


def test_a_device_without_doubles(cl_queue):
    """Float32 and int64 reductions compile without the word double."""
    queue = cl.CommandQueue(cl_queue.context, cl_queue.device)
    state_of(queue).profile = dataclasses.replace(profile_of(cl_queue), has_fp64=False)
    x = np.arange(-20, 22).reshape(6, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "float64 results are computed in float32", once
        for dtype in (np.float32, np.int64):
            t = Tensor.from_host(queue, x.astype(dtype))
            for op in ("sum", "mean", "max", "var", "argmax", "logsumexp"):
                want = scipy_logsumexp(x, 1) if op == "logsumexp" else getattr(np, op)(x, 1)
                np.testing.assert_allclose(getattr(reduction, op)(t, 1).to_host(), want, rtol=1e-5)
    sources = [source for source, _, _ in queue.netcl_kernels]
    assert sources
    assert not [s for s in sources if re.search(r"\bdouble\d*\b", s)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_many_folds_at_once_fit_in_local_memory(cl_queue, dtype):
    """Column sums of twelve values in one launch for a device with 32 KB: the groups are smaller."""
    names = tuple(f"v{k}" for k in range(1, 13))
    chain = Chain("twelve", ("v0",), (), tuple((v, "ADD", ("v0", v[1:])) for v in names), names, ("fold",) * 12)
    x = data((300, 70), dtype=dtype)
    small = dataclasses.replace(profile_of(cl_queue), kind="gpu", max_work_group=256, local_mem=32 << 10)
    with override_profile(cl_queue, small):
        tensors, types = [Tensor.from_host(cl_queue, x)], (np.dtype(dtype),) * 12
        what = fold.Fold(chain, "sum", 0, False, types, compute=types[0])
        group = fold._walk(what, tensors, fold._facts(what, tensors)).text.walk.group
        sums = fold.run_fold(what, tensors)
    assert group * 12 * 4 * x.itemsize <= small.local_mem
    for k, found in enumerate(sums, 1):
        np.testing.assert_allclose(found.to_host(), (x.astype(np.float64) + k).sum(0), rtol=1e-5)
