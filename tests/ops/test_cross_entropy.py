"""Cross-entropy and its gradient against the definition in float64, with labels and probabilities, and bad labels."""

import itertools

import numpy as np
import pytest
from families import FAMILIES, queue_of
from scipy import special

from netcl.core.errors import DTypeError, IndexOutOfRange, ShapeError
from netcl.core.tensor import Tensor
from netcl.ops import elementwise
from netcl.ops import reduction as reduction_ops
from netcl.ops.losses import cross_entropy as ce


@pytest.fixture(params=FAMILIES)
def queue(request):
    return queue_of(request.param)


def reference(z, t, w=None, ignore=-100, e=0.0, reduction="mean"):
    """The definition, with the classes on axis 1."""
    logp = special.log_softmax(z.astype(np.float64), 1)
    classes = z.shape[1]
    w = np.ones(classes) if w is None else w.astype(np.float64)
    wide = w.reshape(1, -1, *(1,) * (z.ndim - 2))
    if t.dtype.kind == "f":
        q = wide * (t * (1 - e) + e / classes)
        loss, weight = -(q * logp).sum(1), np.ones(z.shape[:1] + z.shape[2:])
    else:
        kept = t != ignore
        y = np.where(kept, t, 0)
        picked = np.take_along_axis(logp, np.expand_dims(y, 1), 1).squeeze(1)
        loss = kept * ((1 - e) * w[y] * -picked + e / classes * -(wide * logp).sum(1))
        weight = kept * w[y]
    return loss if reduction == "none" else np.array([loss.sum() / (weight.sum() if reduction == "mean" else 1)])


def numeric_gradient(z, v, f, step=1e-5):
    return (f(z + step * v) - f(z - step * v)) / (2 * step)


CASES = list(itertools.product([False, True], [False, True], [0.0, 0.1], ["mean", "sum", "none"]))


@pytest.mark.parametrize(("labels", "weighted", "smoothing", "reduction"), CASES)
@pytest.mark.parametrize("shape", [(9, 10), (3, 5, 4, 2)])
def test_value_and_gradient(queue, labels, weighted, smoothing, reduction, shape):
    check(queue, labels, weighted, smoothing, reduction, shape)


@pytest.mark.parametrize(("weighted", "smoothing", "reduction"), [c[1:] for c in CASES if c[0] and c[3] != "none"])
def test_labels_of_many_rows(queue, monkeypatch, weighted, smoothing, reduction):
    """As where one group would take too long for all rows."""
    monkeypatch.setattr(ce, "FEW_CLASSES", 0)
    check(queue, True, weighted, smoothing, reduction, (300, 7))


def check(queue, labels, weighted, smoothing, reduction, shape):
    rng = np.random.default_rng(4)
    z = rng.standard_normal(shape)
    rest = shape[:1] + shape[2:]
    if labels:
        t = rng.integers(0, shape[1], rest)
        t.flat[1] = -100
    else:
        t = special.softmax(rng.standard_normal(shape), 1)
    w = rng.uniform(0.2, 2, shape[1]) if weighted else None
    f32 = [None if a is None else a.astype(np.float32) if a.dtype.kind == "f" else a for a in (z, t, w)]
    tz, tt, tw = (None if a is None else Tensor.from_host(queue, a) for a in f32)
    options = {"label_smoothing": smoothing, "reduction": reduction}
    loss, kept = ce.cross_entropy(tz, tt, tw, **options)
    expected = reference(z, t, w, e=smoothing, reduction=reduction)
    assert loss.shape == expected.shape
    np.testing.assert_allclose(loss.to_host(), expected, rtol=1e-5, atol=1e-6)
    g = rng.standard_normal(expected.shape)
    dz = ce.cross_entropy_grad(Tensor.from_host(queue, g.astype(np.float32)), tz, tt, kept, tw, **options).to_host()
    v = rng.standard_normal(shape)
    slope = numeric_gradient(z, v, lambda x: (g * reference(x, t, w, e=smoothing, reduction=reduction)).sum())
    assert abs((dz * v).sum() - slope) < 1e-4 * max(1, abs(slope))


FEW = list(itertools.product([False, True], [0.0, 0.1], ["mean", "sum"], ["bfloat16", "float16", "float32", "float64"]))


@pytest.mark.parametrize(("weighted", "smoothing", "reduction", "dtype"), FEW)
@pytest.mark.parametrize("shape", [(9, 10), (1, 1), (3, 5, 4, 2)])
def test_gradient_of_few_labels_comes_with_the_loss(queue, weighted, smoothing, reduction, dtype, shape):
    check_early(queue, weighted, smoothing, reduction, dtype, shape)


MANY = [(*case, "float32") for case in itertools.product([False, True], [0.0, 0.1], ["mean", "sum"])]
MANY += [
    (True, 0.1, "mean", "bfloat16"),
    (True, 0.1, "mean", "float16"),
    (False, 0.0, "mean", "float16"),
    (True, 0.1, "mean", "float64"),
]


@pytest.mark.parametrize(("weighted", "smoothing", "reduction", "dtype"), MANY)
@pytest.mark.parametrize("shape", [(300, 9), (3, 70, 4, 2)])
def test_gradient_of_many_labels_comes_with_the_loss(
    queue, monkeypatch, weighted, smoothing, reduction, dtype, shape
):  # fmt: skip
    many(monkeypatch)
    check_early(queue, weighted, smoothing, reduction, dtype, shape)


@pytest.mark.parametrize("classes", [1, 40000])
def test_gradient_of_rows_of_all_lengths_comes_with_the_loss(queue, monkeypatch, classes):
    """Also of rows that are too long for a kernel to hand on what it computed."""
    many(monkeypatch)
    check_early(queue, False, 0.0, "mean", "float32", (3, classes))


def many(monkeypatch):
    """From now on treat labels as if there were many."""
    monkeypatch.setattr(ce, "FEW_CLASSES", 0)
    monkeypatch.setattr(ce, "MANY_ON_CPU", 0)
    monkeypatch.setattr(ce, "MANY_ON_GPU", 0)


def check_early(queue, weighted, smoothing, reduction, dtype, shape):
    rng = np.random.default_rng(5)
    z, w = rng.standard_normal(shape).astype(dtype), rng.uniform(0.2, 2, shape[1]).astype(dtype) if weighted else None
    t = rng.integers(0, shape[1], shape[:1] + shape[2:])
    t.flat[1:2] = -100
    given = np.concatenate([np.full(3, np.nan), z[::-1].ravel()]).astype(dtype)
    tz = Tensor.from_host(queue, given)[3:].reshape(shape)[::-1]
    tt, tw = Tensor.from_host(queue, t), None if w is None else Tensor.from_host(queue, w)
    options = {"label_smoothing": smoothing, "reduction": reduction}
    loss, kept = ce.cross_entropy(tz, tt, tw, **options, gradient=True)
    plain = ce.cross_entropy(tz, tt, tw, **options)[0]
    np.testing.assert_allclose(loss.to_host(), plain.to_host(), rtol=1e-6)
    assert bool(kept.ready) == (tz.backend != "cpu")  # NumPy has no launches to save

    def gradient(g, kept=kept):
        return ce.cross_entropy_grad(g, tz, tt, kept, tw, **options)

    one = reduction_ops.one(queue, loss.dtype)
    twice = gradient(elementwise.mul(one, 2.0), ce.cross_entropy(tz, tt, tw, **options, gradient=True)[1])
    first, again = gradient(one), gradient(one)
    assert not kept.ready
    assert first.dtype == dtype
    assert first.shape == shape
    tolerance = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 1e-6, "float64": 1e-13}[dtype]
    for y in (first, again):
        np.testing.assert_allclose(2 * y.to_host(), twice.to_host(), rtol=tolerance, atol=tolerance)
    v = rng.standard_normal(shape)
    z, w = z.astype(np.float64), None if w is None else w.astype(np.float64)
    slope = numeric_gradient(z, v, lambda x: reference(x, t, w, e=smoothing, reduction=reduction).sum())
    assert abs((first.to_host() * v).sum() - slope) < max(1e-4, 10 * tolerance)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("rows", ["few", "many"])
def test_gradient_of_ignored_labels_is_zero_and_infinite_logits_stay_as_they_are(queue, monkeypatch, rows, reduction):
    if rows == "many":
        many(monkeypatch)
    z = np.array([[1, 2, 3], [np.nan, 0, 0], [np.inf, 0, 0], [-np.inf, 0, 0], [np.nan, 1, 1]], np.float32)
    t = np.array([0, -100, 1, 1, 2], np.int32)
    tz, tt = Tensor.from_host(queue, z), Tensor.from_host(queue, t)
    one = reduction_ops.one(queue, tz.dtype)
    made = []
    for gradient in (False, True):
        kept = ce.cross_entropy(tz, tt, reduction=reduction, gradient=gradient)[1]
        made.append(ce.cross_entropy_grad(one, tz, tt, kept, reduction=reduction).to_host())
    np.testing.assert_allclose(*made, rtol=1e-6)
    np.testing.assert_array_equal(made[1][1], 0)
    assert np.isnan(made[1][[2, 4]]).any(1).all()
    ignored = Tensor.full(queue, (5,), -100, "int32")
    kept = ce.cross_entropy(tz, ignored, reduction=reduction, gradient=True)[1]
    np.testing.assert_array_equal(ce.cross_entropy_grad(one, tz, ignored, kept, reduction=reduction).to_host(), 0)


def test_no_gradient_comes_that_is_not_wanted(queue, monkeypatch):
    z, t = Tensor.zeros(queue, (4, 3)), Tensor.zeros(queue, (4,), "int32")
    assert not ce.cross_entropy(z, t)[1].ready
    assert not ce.cross_entropy(z, t, reduction="none", gradient=True)[1].ready
    assert not ce.cross_entropy(z, Tensor.full(queue, (4, 3), 1 / 3), gradient=True)[1].ready
    many(monkeypatch)
    assert not ce.cross_entropy(z, t)[1].ready
    assert not ce.cross_entropy(z, t, gradient=True, room=False)[1].ready
    assert not ce.cross_entropy(z, t, reduction="none", gradient=True)[1].ready
    assert bool(ce.cross_entropy(z, t, gradient=True)[1].ready) == (z.backend != "cpu")


def test_num_05(queue):
    """Label smoothing with class weights and an ignored row."""
    z = Tensor.from_host(queue, np.array([[1, 2], [3, 0.4]], np.float32))
    t = Tensor.from_host(queue, np.array([-100, 1], np.int32))
    w = Tensor.from_host(queue, np.array([0.2, 0.3], np.float32))
    values = [ce.cross_entropy(z, t, w, label_smoothing=0.1, reduction=r)[0].item() for r in ("mean", "sum")]
    np.testing.assert_allclose(values, [2.5404506, 0.7621352], rtol=1e-6)
    np.testing.assert_allclose(ce.cross_entropy(z, t, label_smoothing=0.1)[0].item(), 2.5416447, rtol=1e-6)


@pytest.mark.parametrize("label", [10, -1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("rows", ["few", "many"])
def test_bad_labels_raise_and_read_nothing(queue, monkeypatch, rows, label):
    if rows == "many":
        many(monkeypatch)
    z = Tensor.from_host(queue, np.zeros((4, 10), np.float32))
    t = np.array([1, 2, label, 3], np.int32)
    with pytest.raises(IndexOutOfRange, match=rf"cross_entropy: expected indices in \[0, 10\), got {label}"):
        ce.cross_entropy(z, Tensor.from_host(queue, t), gradient=True)[0].to_host()
    assert np.isclose(ce.cross_entropy(z, Tensor.from_host(queue, np.abs(t) % 10))[0].item(), np.log(10))
    ignored = ce.cross_entropy(z, Tensor.from_host(queue, t), ignore_index=label)[0].item()
    assert np.isclose(ignored, np.log(10))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_dtypes_and_views(queue, dtype):
    z = np.random.default_rng(0).standard_normal((65, 33)).astype(dtype)
    t = np.arange(65) % 33
    view = Tensor.from_host(queue, np.ascontiguousarray(z.T)).T
    loss, kept = ce.cross_entropy(view, Tensor.from_host(queue, t))
    assert loss.dtype == ("float64" if dtype == "float64" else "float32")
    np.testing.assert_allclose(loss.to_host(), reference(z, t), rtol=1e-5)
    dz = ce.cross_entropy_grad(Tensor.ones(queue, (1,), loss.dtype), view, Tensor.from_host(queue, t), kept)
    assert dz.dtype == dtype
    p = special.softmax(z.astype(np.float64), 1)
    p[np.arange(65), t] -= 1
    np.testing.assert_allclose(dz.to_host(), p / 65, rtol=4e-3 if dtype == "bfloat16" else 0, atol=1e-5)


def test_all_ignored_is_not_a_number(queue):
    z, t = Tensor.zeros(queue, (2, 3)), Tensor.full(queue, (2,), -100, "int64")
    assert np.isnan(ce.cross_entropy(z, t)[0].item())
    assert ce.cross_entropy(z, t, reduction="sum")[0].item() == 0


def test_errors(queue):
    z = Tensor.zeros(queue, (2, 3))
    labels = Tensor.zeros(queue, (2,), "int32")
    with pytest.raises(ShapeError, match=r"got \(2, 3\) and \(3,\)"):
        ce.cross_entropy(z, Tensor.zeros(queue, (3,), "int32"))
    with pytest.raises(DTypeError, match="got uint8"):
        ce.cross_entropy(z, labels.astype("uint8"))
    with pytest.raises(ValueError, match="reduction"):
        ce.cross_entropy(z, labels, reduction="median")
    with pytest.raises(ShapeError, match="weights of shape"):
        ce.cross_entropy(z, labels, Tensor.ones(queue, (2,)))
    with pytest.raises(ValueError, match="label_smoothing"):
        ce.cross_entropy(z, labels, label_smoothing=1.5)
