"""Losses against their definitions in float64, values and gradients, on every backend."""

import numpy as np
import pytest
from scipy import special

import netcl.autograd as ag
from netcl import nn
from netcl.autograd.compiler import jit_compile
from netcl.core.errors import DTypeError, IndexOutOfRange, ShapeError
from netcl.core.tensor import Tensor
from netcl.ops.losses import loss

SIGNS = np.array([-1.0, 1.0])


def smooth_l1(x, t, beta=1.0):
    d = np.abs(x - t)
    return np.where(d < beta, d * d / (2 * beta), d - beta / 2)


def huber(x, t, delta=1.0):
    d = np.abs(x - t)
    return np.where(d <= delta, d * d / 2, delta * (d - delta / 2))


def bce(p, t):
    return -(t * np.log(p) + (1 - t) * np.log(1 - p))


# name, definition, range of predictions, range of targets, attributes
CASES = [
    ("mse_loss", lambda x, t: (x - t) ** 2, (-2, 2), (-2, 2), {}),
    ("l1_loss", lambda x, t: np.abs(x - t), (-2, 2), (-2, 2), {}),
    ("smooth_l1_loss", smooth_l1, (-2, 2), (-2, 2), {}),
    ("smooth_l1_loss", smooth_l1, (-2, 2), (-2, 2), {"beta": 0.5}),
    ("huber_loss", huber, (-2, 2), (-2, 2), {"delta": 0.7}),
    ("binary_cross_entropy", bce, (0.05, 0.95), (0, 1), {}),
    ("binary_cross_entropy_with_logits", lambda x, t: bce(special.expit(x), t), (-5, 5), (0, 1), {}),
    ("kl_div", lambda x, t: special.xlogy(t, t) - t * x, (-3, 0), (0.01, 1), {}),
    ("kl_div", lambda x, t: np.exp(t) * (t - x), (-3, 0), (-3, 0), {"log_target": True}),
    ("hinge_loss", lambda x, t: np.maximum(0, 1 - t * x), (-2, 2), None, {}),
]


def samples(low_high, shape, rng):
    return rng.choice(SIGNS, shape) if low_high is None else rng.uniform(*low_high, shape)


def reduced(values, reduction):
    return values if reduction == "none" else np.reshape(values.mean() if reduction == "mean" else values.sum(), 1)


def on(queue, array, dtype=np.float32):
    return Tensor.from_host(queue, np.asarray(array).astype(dtype))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_value_and_gradients(queue, case, reduction):
    name, f, xs, ts, attrs = case
    rng = np.random.default_rng(3)
    x, t = samples(xs, (7, 33), rng), samples(ts, (7, 33), rng)
    px, pt = (ag.Parameter(on(queue, a)) for a in (x, t))
    plain = {k: v for k, v in attrs.items() if k != "log_target"}
    want = reduced(f(x, t, **plain), reduction)
    with ag.Tape() as tape:
        y = getattr(ag, name)(px, pt, reduction=reduction, **attrs)
    np.testing.assert_allclose(y.value.to_host(), want, rtol=2e-5, atol=1e-6)
    g = rng.uniform(0.5, 1.5, want.shape)
    tape.backward(y, on(queue, g))
    eps = 1e-5
    for node, direction in ((px, (eps, 0)), (pt, (0, eps))):
        numeric = (
            (f(x + direction[0], t + direction[1], **plain) - f(x - direction[0], t - direction[1], **plain)) / 2 / eps
        )
        numeric = numeric * (g if reduction == "none" else g[0] / (x.size if reduction == "mean" else 1))
        np.testing.assert_allclose(node.grad.to_host(), numeric, rtol=2e-3, atol=2e-5)


def test_views_and_whole_targets(queue):
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(30, 9)), rng.integers(0, 2, (15, 9))
    got = loss.mse_loss(on(queue, x.T).T[::2], on(queue, t, np.int32)).to_host()
    np.testing.assert_allclose(got, [((x[::2] - t) ** 2).mean()], rtol=1e-5)


def test_a_target_that_is_broadcast_with_intent(queue):
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(30, 9)), rng.normal(size=(1, 9))
    p, target = ag.Parameter(on(queue, x)), ag.Parameter(on(queue, t))
    with ag.Tape() as tape:
        y = ag.mse_loss(p, ag.expand(target, 30, 9))
    tape.backward(y)
    np.testing.assert_allclose(y.to_host(), [((x - t) ** 2).mean()], rtol=1e-5)
    np.testing.assert_allclose(
        target.grad.to_host(), (2 * (t - x)).sum(0, keepdims=True) / x.size, rtol=1e-4, atol=1e-6
    )


PAIRWISE = {
    "mse_loss": nn.MSELoss, "l1_loss": nn.L1Loss, "smooth_l1_loss": nn.SmoothL1Loss, "huber_loss": nn.HuberLoss,
    "binary_cross_entropy": nn.BCELoss, "binary_cross_entropy_with_logits": nn.BCEWithLogitsLoss,
    "kl_div": nn.KLDivLoss, "hinge_loss": nn.HingeLoss,
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRWISE)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_unequal_shapes_are_refused(queue, name, reduction):
    """(4, 1) against (4,) would compare every prediction with every target."""
    one = lambda *shape: on(queue, np.full(shape, 0.5))  # noqa: E731
    function = getattr(ag, name)
    forms = (
        lambda x, t: getattr(loss, name)(x, t, reduction=reduction),
        lambda x, t: function(x, t, reduction=reduction),
        lambda x, t: PAIRWISE[name](reduction=reduction)(ag.tensor(x), ag.tensor(t)),
        jit_compile(lambda x, t: ag.mul(function(x, t, reduction=reduction), 1.0)),
    )
    for x, t in (((4, 1), (4,)), ((4,), (4, 1)), ((4, 3), (3,)), ((4, 3), (1, 3)), ((2, 2), (1,)), ((4,), ())):
        for form in forms:
            with pytest.raises(ShapeError, match=f"{name}: expected a prediction and a target of one shape, got"):
                form(one(*x), one(*t))
    assert forms[1](one(4, 1), one(4, 1)).shape == ((4, 1) if reduction == "none" else (1,))


def test_unequal_shapes_are_refused_with_log_targets_and_by_weights(queue):
    one = lambda *shape: on(queue, np.full(shape, 0.5))  # noqa: E731
    with pytest.raises(ShapeError, match=r"kl_div_log: expected .* got \(4, 1\) and \(4,\)"):
        ag.kl_div(one(4, 1), one(4), log_target=True)
    for wrong in ((4,), (2, 4, 3)):
        with pytest.raises(ShapeError, match="with_logits: expected"):
            ag.binary_cross_entropy_with_logits(one(4, 3), one(4, 3), pos_weight=one(*wrong))
    assert ag.binary_cross_entropy_with_logits(one(4, 3), one(4, 3), pos_weight=one(3)).shape == (1,)


def test_what_is_no_tensor_is_refused(queue):
    x = on(queue, np.zeros(3))
    for wrong in (np.zeros(3), [0.0] * 3, None, "x"):
        with pytest.raises(DTypeError, match="mse_loss: expected tensors, got"):
            loss.mse_loss(x, wrong)
        with pytest.raises(DTypeError, match="mse_loss: expected tensors, got"):
            loss.mse_loss(wrong, x)
    assert loss.mse_loss(x, 2.0).item() == 4


def test_logits_far_out_and_positive_weight(queue):
    x, t = np.array([1000.0, -1000, 3, -3]), np.array([1.0, 0, 0, 1])
    p = ag.Parameter(on(queue, x))
    with ag.Tape() as tape:
        y = ag.binary_cross_entropy_with_logits(p, on(queue, t), pos_weight=on(queue, [2, 2, 2, 5]), reduction="none")
    np.testing.assert_allclose(y.value.to_host(), [0, 0, 3.0485874, 5 * 3.0485874], rtol=1e-6)
    tape.backward(y, on(queue, np.ones(4)))
    np.testing.assert_allclose(p.grad.to_host(), [0, 0, 0.95257413, -5 * 0.95257413], rtol=1e-5, atol=1e-7)
    got = loss.binary_cross_entropy_with_logits(on(queue, x), on(queue, t), 5.0, "none").to_host()
    np.testing.assert_allclose(got[3], 5 * 3.0485874, rtol=1e-6)


def test_edges(queue):
    certain = loss.binary_cross_entropy(on(queue, [0, 1, 0, 1]), on(queue, [0, 1, 1, 0]), "none").to_host()
    np.testing.assert_allclose(certain, [0, 0, 100, 100])
    none = loss.kl_div(on(queue, [-np.inf, -1]), on(queue, [0, 0]), "sum").to_host()
    np.testing.assert_allclose(none, [0])
    batch = loss.kl_div(on(queue, -np.ones((4, 5))), on(queue, np.full((4, 5), 0.2)), "batchmean").to_host()
    np.testing.assert_allclose(batch, [np.log(0.2) + 1], rtol=1e-5)
    for dtype in ("float16", "bfloat16"):
        narrow = loss.mse_loss(on(queue, np.full(10, 3), dtype), on(queue, np.zeros(10), dtype))
        assert narrow.dtype == dtype and narrow.item() == 9
    assert np.isnan(loss.l1_loss(on(queue, [np.nan, 1]), on(queue, [0, 0])).to_host()).all()
    x = on(queue, np.zeros(3))
    with pytest.raises(ValueError, match="reduction"):
        loss.mse_loss(x, x, "median")
    with pytest.raises(ValueError, match="delta"):
        loss.huber_loss(x, x, 0)
    with pytest.raises(ShapeError):
        loss.mse_loss(x, on(queue, np.zeros(4)))
    with pytest.raises(DTypeError, match="floating"):
        loss.mse_loss(on(queue, np.zeros(3), np.int32), x)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(9, 10), (3, 5, 4, 2)])
def test_nll(queue, shape, weighted, reduction):
    rng = np.random.default_rng(1)
    x = special.log_softmax(rng.normal(size=shape), 1)
    t = rng.integers(0, shape[1], shape[:1] + shape[2:])
    t.flat[2] = -100
    w = rng.uniform(0.5, 2, shape[1])
    kept = t != -100
    y = np.where(kept, t, 0)
    weights = kept * (w[y] if weighted else 1)
    values = -weights * np.take_along_axis(x, y[:, None], 1)[:, 0]
    scale = 1 / weights.sum() if reduction == "mean" else 1
    want = values if reduction == "none" else np.reshape(values.sum() * scale, 1)
    p = ag.Parameter(on(queue, x))
    with ag.Tape() as tape:
        got = ag.nll_loss(p, Tensor.from_host(queue, t), on(queue, w) if weighted else None, reduction=reduction)
    np.testing.assert_allclose(got.value.to_host(), want, rtol=1e-5)
    tape.backward(got, on(queue, np.full(want.shape, 2)))
    dx = np.zeros(shape)
    np.put_along_axis(dx, y[:, None], (-2 * weights * scale)[:, None], 1)
    np.testing.assert_allclose(p.grad.to_host(), dx, rtol=1e-5, atol=1e-7)


def test_nll_refuses_bad_labels(queue):
    x = on(queue, np.zeros((2, 3)))
    with pytest.raises(IndexOutOfRange, match=r"nll_loss: expected indices in \[0, 3\), got 7"):
        loss.nll_loss(x, Tensor.from_host(queue, np.array([0, 7])))[0].to_host()
    with pytest.raises(ShapeError, match="nll_loss"):
        loss.nll_loss(x, on(queue, np.zeros((2, 3))))


def test_a_mean_is_one_fold_and_its_gradient_one_launch(cl_queue):
    from netcl.core.backend import opencl

    x, t, names = on(cl_queue, np.ones((16, 16))), on(cl_queue, np.zeros((16, 16))), []
    hook = lambda kernel, *_: names.append(kernel.name)  # noqa: E731
    opencl.hooks.append(hook)
    try:
        y = loss.mse_loss(x, t)
        loss.loss_grad("mse_loss", y, (x, t), (True, True))
    finally:
        opencl.hooks.remove(hook)
    assert names == ["netcl_sum_mse_loss", "netcl_mse_loss_grad"]
