"""Layer, RMS, batch, group and instance norm against float64 NumPy written out, on every queue and kernel family."""

import dataclasses

import numpy as np
import pytest
from families import FAMILIES, POSING, queue_of

from netcl.core.device.profile import override_profile, profile_of
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.tensor import Tensor
from netcl.ops.normalization.batch_norm import batch_norm, batch_norm_grad
from netcl.ops.normalization.group_norm import group_norm, group_norm_grad, instance_norm
from netcl.ops.normalization.norm import layer_norm, layer_norm_grad, rms_norm, rms_norm_grad

TOLERANCE = {"bfloat16": 0.032, "float16": 4e-3, "float32": 1e-5, "float64": 1e-11}
SHAPES = [(1, 1), (3, 7), (2, 5, 8), (33, 9), (5, 63), (3, 64), (9, 65), (2, 129), (40, 1028), (2, 8196), (1, 8207)]
FEW = [(2, 5, 8), (9, 65), (40, 1028)]
TYPED = [(s, "float32") for s in SHAPES] + [(s, t) for s in FEW for t in ("bfloat16", "float16", "float64")]
ROW_CASES = [
    (f, s, t) for f in FAMILIES for s, t in TYPED if t == "float32" or s == FEW[1] or not f.startswith(POSING)
]  # each dtype is a program of its own, and CPU drivers build GPU kernels slowly


@pytest.fixture(params=FAMILIES, scope="session")
def queue(request):
    """A queue of every backend, device and kernel family."""
    return queue_of(request.param)


def close(found, wanted, dtype, n=1):
    """Compare on the scale of the largest value; sums over n terms get room for their rounding."""
    assert found.shape == wanted.shape
    scale = max(1.0, np.abs(wanted).max(initial=0))
    error = np.abs(found.astype(np.float64) - wanted).max(initial=0) / scale
    assert error <= TOLERANCE[dtype] * (1 + n / 2000), error


def sample(queue, dtype, *shapes, seed=0):
    rng = np.random.default_rng(seed)
    arrays = [(rng.standard_normal(s) + 1).astype(dtype) for s in shapes]
    return [a.astype(np.float64) for a in arrays], [Tensor.from_host(queue, a) for a in arrays]


def row_norm(x, w, b, eps, rms=False):
    """y, mean, rstd and the normalised values."""
    m = 0 * x[..., :1] if rms else x.mean(-1, keepdims=True)
    r = 1 / np.sqrt(((x - m) ** 2).mean(-1, keepdims=True) + eps)
    return (x - m) * r * w + b, m[..., 0], r[..., 0], (x - m) * r


def row_grad(g, h, r, w, rms=False):
    u = g * w
    dx = r[..., None] * (u - (0 if rms else u.mean(-1, keepdims=True)) - h * (u * h).mean(-1, keepdims=True))
    axes = tuple(range(g.ndim - 1))
    return dx, (g * h).sum(axes), g.sum(axes)


@pytest.mark.parametrize(("queue", "shape", "dtype"), ROW_CASES, ids=str, indirect=["queue"])
def test_layer_norm(queue, shape, dtype):
    (x, w, b, g), (tx, tw, tb, tg) = sample(queue, dtype, shape, shape[-1:], shape[-1:], shape)
    y, m, r, h = row_norm(x, w, b, 1e-3)
    found = layer_norm(tx, tw, tb, eps=1e-3)
    close(found[0].to_host(), y, dtype)
    stats = "float64" if dtype == "float64" else "float32"
    assert found[1].dtype == found[2].dtype == stats
    close(found[1].to_host(), m, stats)
    close(found[2].to_host(), r, stats)
    for a, e in zip(layer_norm_grad(tg, tx, found[1], found[2], tw), row_grad(g, h, r, w), strict=True):
        assert a.dtype == dtype
        close(a.to_host(), e, dtype, x.size // shape[-1])


@pytest.mark.parametrize(
    ("shape", "dtype"), [((2, 5, 8), "float32"), ((2, 8207), "float32"), ((9, 65), "float16"), ((9, 64), "bfloat16")]
)
def test_rms_norm(queue, shape, dtype):
    (x, w, g), (tx, tw, tg) = sample(queue, dtype, shape, shape[-1:], shape)
    y, _, r, h = row_norm(x, w, 0, 1e-6, rms=True)
    ty, tr = rms_norm(tx, tw)
    close(ty.to_host(), y, dtype)
    dx, dw, _ = row_grad(g, h, r, w, rms=True)
    found = rms_norm_grad(tg, tx, tr, tw)
    close(found[0].to_host(), dx, dtype)
    close(found[1].to_host(), dw, dtype, x.size // shape[-1])


def test_row_norms_take_views_axes_and_float_weights(queue):
    (x, w, g), (tx, tw, tg) = sample(queue, "float32", (6, 4, 5, 3), (5, 4), (3, 6, 5, 4))
    view = tx.permute(3, 0, 2, 1)
    flat = x.transpose(3, 0, 2, 1).reshape(3, 6, 20)
    y, _, r, h = row_norm(flat, w.reshape(-1), 0, 1e-5)
    found = layer_norm(view, tw, axes=(-2, -1))
    close(found[0].to_host(), y.reshape(3, 6, 5, 4), "float32")
    assert found[1].shape == (3, 6)
    got = layer_norm_grad(tg[:, :], view, found[1], found[2], tw)
    dx, dw, db = row_grad(g.reshape(3, 6, 20), h, r, w.reshape(-1))
    for a, e in zip(got, (dx.reshape(3, 6, 5, 4), dw.reshape(5, 4), db.reshape(5, 4)), strict=True):
        close(a.to_host(), e, "float32")
    cut = layer_norm(tx[1:, 1:, :, 1])[0]  # rows of stride 3 at an odd offset
    close(cut.to_host(), row_norm(x[1:, 1:, :, 1], 1, 0, 1e-5)[0], "float32")
    for dtype, weights in (("float16", "float32"), ("bfloat16", "float32"), ("bfloat16", "float16")):
        narrow, ones = tx.astype(dtype), Tensor.ones(queue, (3,), weights)
        y, *_ = row_norm(narrow.to_host().astype(np.float64), np.ones(3), 0, 1e-5)
        got = layer_norm(narrow, ones)
        assert (got[0].dtype, got[1].dtype) == (dtype, np.float32)
        close(got[0].to_host(), y, dtype)
        assert layer_norm_grad(narrow, narrow, got[1], got[2], ones)[1].dtype == weights


def test_needs_and_missing_parameters(queue):
    (x, g), (tx, tg) = sample(queue, "float32", (9, 20), (9, 20))
    y, _, r, h = row_norm(x, 1, 0, 1e-5)
    found = layer_norm(tx)
    close(found[0].to_host(), y, "float32")
    dx, dw, db = row_grad(g, h, r, 1)
    for needs in [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (0, 0, 0)]:
        got = layer_norm_grad(tg, tx, found[1], found[2], None, needs)
        for a, e, need in zip(got, (dx, dw, db), needs, strict=True):
            assert (a is not None) == bool(need)
            if need:
                close(a.to_host(), e, "float32")


def test_small_eps_stays_float32(queue):
    """A half row of zeros with eps 1e-8 gives 0, and a small row is not floored."""
    y, r = rms_norm(Tensor.zeros(queue, (2, 16), "float16"), eps=1e-8)
    assert (y.to_host() == 0).all() and np.isfinite(r.to_host()).all()
    x = np.full((1, 16), np.sqrt(2e-4), np.float32)
    np.testing.assert_allclose(rms_norm(Tensor.from_host(queue, x), eps=1e-6)[1].to_host(), 70.534566, rtol=1e-5)


def test_specials_stay_in_their_row(queue):
    x = np.ones((3, 40), np.float32) * np.arange(40, dtype=np.float32)
    x[0, 3], x[1, 5] = np.nan, np.inf
    found = layer_norm(Tensor.from_host(queue, x))[0].to_host()
    assert np.isnan(found[0]).all() and np.isnan(found[1, 5]) and np.isfinite(found[2]).all()
    assert np.isnan(rms_norm(Tensor.from_host(queue, x))[0].to_host()[0]).all()


def test_large_mean_keeps_its_digits(queue):
    """Two passes: a mean of 4096 with unit spread would lose everything in E[x^2] - E[x]^2."""
    rng = np.random.default_rng(1)
    x = (rng.integers(-8, 9, (4, 1024)) / 4 + 4096).astype(np.float32)
    y = row_norm(x.astype(np.float64), 1, 0, 1e-5)[0]
    close(layer_norm(Tensor.from_host(queue, x))[0].to_host(), y, "float32", 1e5)
    image = Tensor.from_host(queue, x.reshape(4, 2, 512))
    close(group_norm(image, 1)[0].to_host(), y.reshape(4, 2, 512), "float32", 1e5)
    channels = x.reshape(4, 2, 512).astype(np.float64)
    m, v = channels.mean((0, 2), keepdims=True), channels.var((0, 2), keepdims=True)
    close(batch_norm(image)[0].to_host(), (channels - m) / np.sqrt(v + 1e-5), "float32", 1e5)


def test_empty(queue):
    for shape in [(0, 4), (3, 0), (0, 0)]:
        x = Tensor.zeros(queue, shape)
        y, m, r = layer_norm(x, Tensor.ones(queue, shape[1:]))
        assert y.shape == shape and m.shape == r.shape == shape[:1]
        dx, dw, _ = layer_norm_grad(y, x, m, r, Tensor.ones(queue, shape[1:]))
        assert dx.shape == shape and (dw.to_host() == 0).all()
    y, m, r = group_norm(Tensor.zeros(queue, (0, 4, 3)), 2)
    assert y.shape == (0, 4, 3) and m.shape == (0, 2)
    got = group_norm_grad(y, y, m, r)
    assert got[0].shape == y.shape and (got[1].to_host() == 0).all()


def test_row_norm_errors(queue):
    x = Tensor.zeros(queue, (2, 3, 4))
    with pytest.raises(ShapeError, match="last axes"):
        layer_norm(x, axes=0)
    with pytest.raises(ShapeError, match="weight of shape"):
        layer_norm(x, Tensor.ones(queue, (3,)))
    with pytest.raises(ShapeError, match="like x"):
        layer_norm_grad(x[:1], x, x[:, :, 0], x[:, :, 0])
    with pytest.raises(ShapeError, match="leading axes"):
        rms_norm_grad(x, x, Tensor.ones(queue, (3,)))
    with pytest.raises(DTypeError, match="float"):
        rms_norm(Tensor.zeros(queue, (2, 3), "int32"))


# -- batch norm ---------------------------------------------------------------------------------------------------


def over(x):
    return (0, *range(2, x.ndim))


def lift(a, x):
    return a.reshape((1, -1) + (1,) * (x.ndim - 2))


def batch(x, w, b, eps, relu=False):
    m, v = x.mean(over(x)), x.var(over(x))
    h = (x - lift(m, x)) / np.sqrt(lift(v, x) + eps)
    y = h * lift(w, x) + lift(b, x)
    return np.maximum(y, 0) if relu else y, m, v, h


BATCHES = [(2, 3), (9, 8), (65, 17), (3, 2, 7), (2, 5, 4, 4), (4, 3, 7, 9), (3, 33, 1), (2, 2, 64, 65), (40, 4, 20, 20)]
FORMS = [(s, "float32", "relu") for s in BATCHES] + [(s, t, None) for s in BATCHES[2:6:3] for t in TOLERANCE]


@pytest.mark.parametrize(("shape", "dtype", "activation"), FORMS, ids=str)
def test_batch_norm(queue, shape, dtype, activation):
    c = shape[1:2]
    (x, w, b, g), (tx, tw, tb, tg) = sample(queue, dtype, shape, c, c, shape)
    stats = "float64" if dtype == "float64" else "float32"
    running = [Tensor.full(queue, c, v, stats) for v in (0.5, 2.0)]
    y, m, v, h = batch(x, w, b, 1e-3, activation == "relu")
    ty, tm, tr = batch_norm(tx, tw, tb, *running, training=True, momentum=0.25, eps=1e-3, activation=activation)
    n = x.size // shape[1]
    close(ty.to_host(), y, dtype)
    close(running[0].to_host(), 0.75 * 0.5 + 0.25 * m, stats)
    close(running[1].to_host(), 0.75 * 2 + 0.25 * v * n / (n - 1), stats)
    r = 1 / np.sqrt(v + 1e-3)
    close(tm.to_host(), m, stats)
    close(tr.to_host(), r, stats, n)
    u = np.where(y > 0, g, 0) if activation else g
    edge = np.abs(h * lift(w, x) + lift(b, x)) < 1e-6  # where rounding may decide which side of 0 a value is on
    assert not activation or edge.sum() == 0
    db, dw = u.sum(over(x)), (u * h).sum(over(x))
    dx = lift(r * w, x) * (u - lift(db, x) / n - h * lift(dw, x) / n)
    bias = tb if activation else None
    got = batch_norm_grad(tg, tx, tm, tr, tw, bias, activation=activation)
    for a, e in zip(got, (dx, dw, db), strict=True):
        close(a.to_host(), e, dtype, n)
    got = batch_norm_grad(tg, tx, tm, tr, tw, bias, (True, False, False), training=False, activation=activation)
    close(got[0].to_host(), lift(r * w, x) * u, dtype)
    assert got[1] is got[2] is None


@pytest.mark.parametrize("shape", BATCHES, ids=str)
def test_batch_norm_eval(queue, shape):
    c = shape[1:2]
    (x, w, b, m, v), (tx, tw, tb, tm, tv) = sample(queue, "float32", shape, c, c, c, c)
    v, tv = v * v, tv * tv
    y = (x - lift(m, x)) / np.sqrt(lift(v, x) + 1e-5) * lift(w, x) + lift(b, x)
    found, mean, rstd = batch_norm(tx, tw, tb, tm, tv, training=False, activation="relu")
    close(found.to_host(), np.maximum(y, 0), "float32")
    assert mean is None and rstd is None
    plain = batch_norm(tx.astype("float16"), None, None, tm, tv, training=False)[0]
    close(plain.to_host(), (x - lift(m, x)) / np.sqrt(lift(v, x) + 1e-5), "float16")


def test_batch_norm_running_statistics(queue):
    """Biased variance normalises, unbiased variance is stored."""
    x = Tensor.from_host(queue, np.array([[1], [2], [3], [4]], np.float32))
    mean, var = Tensor.zeros(queue, (1,)), Tensor.ones(queue, (1,))
    y = batch_norm(x, None, None, mean, var, training=True, momentum=0.1, eps=1e-5)[0]
    np.testing.assert_allclose(y.to_host()[:, 0], [-1.3416354, -0.4472118, 0.4472118, 1.3416354], rtol=1e-6)
    np.testing.assert_allclose([mean.item(), var.item()], [0.25, 1.0666667], rtol=1e-6)
    y = batch_norm(x[:1], None, None, mean, var, training=False)[0]
    np.testing.assert_allclose(y.item(), 0.7261810, rtol=1e-6)


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1, 1), (0, 3), (2, 3, 0)], ids=str)
def test_batch_norm_needs_two_values(queue, shape):
    """No variance of one value; the running statistics stay as they are, and eval works."""
    x = Tensor.ones(queue, shape)
    stats = [Tensor.zeros(queue, (3,)), Tensor.ones(queue, (3,))]
    with pytest.raises(ShapeError, match="more than one value per channel"):
        batch_norm(x, None, None, *stats, training=True)
    assert (stats[0].to_host() == 0).all() and (stats[1].to_host() == 1).all()
    assert np.isfinite(batch_norm(x, None, None, *stats, training=False)[0].to_host()).all()


def test_batch_norm_views_and_errors(queue):
    (x,), (tx,) = sample(queue, "float32", (5, 6, 7, 4))
    pool = Tensor.zeros(queue, (8, 2))
    view = tx[1:, :, :, :].permute(0, 3, 1, 2)
    stats = [pool[2:6, 0], pool[2:6, 1]]  # strided running statistics move in place
    ref, m, v, _ = batch(x[1:].transpose(0, 3, 1, 2), np.ones(4), np.zeros(4), 1e-5)
    close(batch_norm(view, None, None, *stats, training=True, momentum=1.0)[0].to_host(), ref, "float32")
    n = ref.size // 4
    close(pool.to_host()[2:6], np.stack([m, v * n / (n - 1)], 1), "float32")
    assert (pool.to_host()[:2] == 0).all()
    with pytest.raises(ShapeError, match=r"\(N, C, ...\)"):
        batch_norm(Tensor.zeros(queue, (3,)))
    with pytest.raises(ShapeError, match="running"):
        batch_norm(tx, training=False)
    with pytest.raises(ShapeError, match="weight of shape"):
        batch_norm(tx, Tensor.ones(queue, (4,)))
    with pytest.raises(DTypeError, match="running"):
        batch_norm(tx, None, None, *[Tensor.zeros(queue, (6,), "float16")] * 2)
    with pytest.raises(ValueError, match="activation"):
        batch_norm(tx, activation="gelu")


# -- group norm ---------------------------------------------------------------------------------------------------


GROUPS = [((2, 4), 2), ((3, 6, 7), 3), ((2, 8, 4, 4), 1), ((2, 6, 5, 13), 6), ((1, 2, 65, 64), 2), ((9, 12, 4), 4)]


@pytest.mark.parametrize(
    ("shape", "groups", "dtype"),
    [(*g, "float32") for g in GROUPS] + [(*g, t) for g in GROUPS[1:3] for t in ("bfloat16", "float16", "float64")],
    ids=str,
)
def test_group_norm(queue, shape, groups, dtype):
    c = shape[1:2]
    (x, w, b, g), (tx, tw, tb, tg) = sample(queue, dtype, shape, c, c, shape)
    rows = x.reshape(shape[0], groups, -1)
    _, m, r, h = row_norm(rows, 1, 0, 1e-3)
    h = h.reshape(shape)
    found = group_norm(tx, groups, tw, tb, eps=1e-3)
    close(found[0].to_host(), h * lift(w, x) + lift(b, x), dtype)
    close(found[1].to_host(), m, "float32")
    u = g * lift(w, x)
    dx = row_grad(u.reshape(rows.shape), h.reshape(rows.shape), r, 1)[0].reshape(shape)
    wanted = dx, (g * h).sum(over(x)), g.sum(over(x))
    for a, e in zip(group_norm_grad(tg, tx, *found[1:], tw), wanted, strict=True):
        close(a.to_host(), e, dtype, x.size // c[0])
    only = group_norm_grad(tg, tx, *found[1:], tw, (False, True, False))
    assert only[0] is only[2] is None
    close(only[1].to_host(), wanted[1], dtype, x.size // c[0])


def test_instance_norm_and_group_errors(queue):
    (x,), (tx,) = sample(queue, "float32", (3, 5, 4, 6))
    y = row_norm(x.reshape(3, 5, 24), 1, 0, 1e-5)[0].reshape(x.shape)
    close(instance_norm(tx)[0].to_host(), y, "float32")
    close(instance_norm(tx.permute(1, 0, 3, 2))[0].to_host(), y.transpose(1, 0, 3, 2), "float32")
    with pytest.raises(ShapeError, match="divides 5"):
        group_norm(tx, 2)
    with pytest.raises(ShapeError, match="three axes"):
        instance_norm(tx[:, :, 0, 0])
    with pytest.raises(ShapeError, match=r"\(N, groups\)"):
        group_norm_grad(tx, tx, tx[0, 0], tx[0, 0])


# -- all of them ---------------------------------------------------------------------------------------------------


def slope(f, x, d, step=1e-5):
    """Central difference of f along d."""
    return (f(x + step * d) - f(x - step * d)) / (2 * step)


def test_gradients_by_finite_differences(cpu_queue):
    """Random-direction slopes in float64 on NumPy, all inputs at once."""
    rng = np.random.default_rng(5)
    x, w, g = (rng.standard_normal(s) for s in ((4, 6, 5), (6,), (4, 6, 5)))
    wl = rng.standard_normal(5)
    tensor = lambda a: Tensor.from_host(cpu_queue, a)  # noqa: E731
    forms = {
        "layer": (wl, layer_norm, lambda s, x, w, b: layer_norm_grad(tensor(g), x, *s, w)),
        "rms": (wl, lambda x, w, b: rms_norm(x, w), lambda s, x, w, b: (*rms_norm_grad(tensor(g), x, *s, w), None)),
        "batch": (w, lambda x, w, b: batch_norm(x, w, b, activation="relu"),
                  lambda s, x, w, b: batch_norm_grad(tensor(g), x, *s, w, b, activation="relu")),
        "group": (w, lambda x, w, b: group_norm(x, 2, w, b), lambda s, x, w, b: group_norm_grad(tensor(g), x, *s, w)),
    }  # fmt: skip
    for name, (weight, forward, backward) in forms.items():
        values = [x, weight, rng.standard_normal(weight.shape)]
        _, *stats = forward(*map(tensor, values))
        grads = backward(stats, *map(tensor, values))
        for i, grad in enumerate(grads):
            if grad is None:
                continue
            d = rng.standard_normal(values[i].shape)

            def loss(v, i=i, forward=forward, values=values):
                return (forward(*map(tensor, [*values[:i], v, *values[i + 1 :]]))[0].to_host() * g).sum()

            np.testing.assert_allclose((grad.to_host() * d).sum(), slope(loss, values[i], d), rtol=1e-6, err_msg=name)


def test_small_device(cl_queue):
    """16 work-items per group and no double precision: fewer, smaller groups, the same results."""
    small = dataclasses.replace(profile_of(cl_queue), kind="gpu", max_work_group=16, has_fp64=False)
    with override_profile(cl_queue, small):
        (x, w, b, g), (tx, tw, tb, tg) = sample(cl_queue, "float32", (5, 6, 50), (6,), (6,), (5, 6, 50))
        y, _, _, h = batch(x, w, b, 1e-5)
        ty, tm, tr = batch_norm(tx, tw, tb)
        close(ty.to_host(), y, "float32")
        dw = batch_norm_grad(tg, tx, tm, tr, tw)[1]
        close(dw.to_host(), (g * h).sum((0, 2)), "float32")
        close(layer_norm(tx)[0].to_host(), row_norm(x, 1, 0, 1e-5)[0], "float32")
        close(group_norm_grad(tg, tx, *group_norm(tx, 6)[1:])[2].to_host(), g.sum((0, 2)), "float32")


def test_repeats_exactly(queue):
    (_, _), (tx, tg) = sample(queue, "float32", (300, 70), (300, 70))
    _, m, r = layer_norm(tx)
    first, second = (layer_norm_grad(tg, tx, m, r)[1].to_host() for _ in range(2))
    assert (first == second).all()
