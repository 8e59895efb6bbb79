"""Batch norm on CPU devices over maps of every size: vectors, ends that overlap, blocks of channels, slabs of rows."""

import dataclasses

import numpy as np
import pytest

from netcl.core.device import manager
from netcl.core.device.profile import override_profile, profile_of
from netcl.core.tensor import Tensor
from netcl.ops.normalization.batch_norm import batch_norm, batch_norm_grad

CPUS = [i for i, profile in enumerate(manager.profiles) if profile.kind == "cpu"]
TOLERANCE = {"bfloat16": 0.032, "float16": 4e-3, "float32": 1e-5, "float64": 1e-11}


@pytest.fixture(params=[(i, width) for i in CPUS for width in (8, 16)], ids=str)
def queue(request):
    """A CPU device's queue with registers of 8 or 16 floats and one unit, so that work-items take many channels."""
    number, width = request.param
    queue = manager.default(number).queue
    with override_profile(queue, dataclasses.replace(profile_of(queue), vector=width, compute_units=1)):
        yield queue


def lift(a):
    return a[None, :, None]


def expected(g, x, mean, rstd, w, b, training, relu):
    """(dx, dw, db) in float64 by the formula of the docstring."""
    h, n = (x - lift(mean)) * lift(rstd), x.shape[0] * x.shape[2]
    u = np.where(h * lift(w) + lift(b) > 0, g, 0) if relu else g
    db, dw = u.sum((0, 2)), (u * h).sum((0, 2))
    dx = lift(w * rstd) * (u - lift(db) / n - h * lift(dw) / n if training else u)
    return dx, dw, db


def close(found, wanted, dtype):
    np.testing.assert_allclose(
        found.to_host().astype(np.float64), wanted, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(wanted).max())
    )


def arrays_of(shape, dtype, seed=0):
    rng, stats = np.random.default_rng(seed), "float64" if dtype == "float64" else "float32"
    made = [rng.standard_normal(shape).astype(dtype) for _ in range(2)]
    made += [rng.uniform(0.5, 1.5, shape[1]).astype(stats) for _ in range(2)]
    return made + [rng.standard_normal(shape[1]).astype(dtype) for _ in range(2)]


@pytest.mark.parametrize("span", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 49, 50, 1100])
def test_maps_of_every_size(queue, span):
    """37 channels: blocks of 8, or of 2 where maps are large, and a rest; as columns, vectors and a rest of them."""
    for channels, relu, training in ((37, False, True), (37, True, True), (64, False, False), (130, True, False)):
        arrays = arrays_of((5, channels, span), "float32", span)
        tensors = [Tensor.from_host(queue, a) for a in arrays]
        found = batch_norm_grad(*tensors, training=training, activation="relu" if relu else None)
        for y, wanted in zip(found, expected(*(a.astype("f8") for a in arrays), training, relu), strict=True):
            close(y, wanted, "float32")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("span", [1, 2, 6, 21])
@pytest.mark.parametrize("channels", [3, 35])  # one by one, and in blocks
def test_dtypes(queue, channels, span, dtype):
    arrays = arrays_of((3, channels, span), dtype)
    found = batch_norm_grad(*(Tensor.from_host(queue, a) for a in arrays))
    for y, wanted in zip(found, expected(*(a.astype("f8") for a in arrays), True, False), strict=True):
        close(y, wanted, dtype)


@pytest.mark.parametrize("place", range(21))
def test_an_infinity_counts_once_wherever_it_lies(queue, place):
    """With constant statistics dw of its channel is infinite, not NaN: what is read twice counts once."""
    g, x, mean, rstd, w, b = arrays_of((2, 33, 21), "float32")
    g, x[1, 4, place], g[1, 4, place] = np.abs(g) + 1, np.inf, 2.0
    g[0, 6, place] = np.nan
    arrays = (g, x, mean, rstd, w, b)
    _, dw, db = batch_norm_grad(*(Tensor.from_host(queue, a) for a in arrays), training=False)
    wanted = expected(*(a.astype("f8") for a in arrays), False, False)
    np.testing.assert_allclose(dw.to_host(), wanted[1], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(db.to_host(), wanted[2], rtol=1e-4, atol=1e-4)
    assert dw.to_host()[4] == np.inf and np.isnan(dw.to_host()[6]) and np.isnan(dw.to_host()).sum() == 1


@pytest.mark.parametrize("rows", [2, 63, 64, 65, 129, 1000])
@pytest.mark.parametrize("channels", [5, 64, 130])
def test_statistics_of_columns(queue, rows, channels):
    """Slabs of 64 rows are joined: means far from zero cost no digits, whatever the slabs' own means are."""
    rng = np.random.default_rng(rows)
    steps = np.where(np.arange(rows) < 70, 0, 30)[:, None]  # the slabs differ
    x = (rng.standard_normal((rows, channels)) + 1000 + steps).astype("f4")
    w, b = rng.standard_normal((2, channels)).astype("f4")
    running = [Tensor.full(queue, (channels,), v) for v in (0.5, 2.0)]
    tensors = [Tensor.from_host(queue, a) for a in (x, w, b)]
    y, mean, rstd = batch_norm(*tensors, *running, momentum=0.25, activation="relu")
    x = x.astype("f8")
    m, v = x.mean(0), x.var(0)
    np.testing.assert_allclose(mean.to_host(), m, rtol=1e-6)
    np.testing.assert_allclose(rstd.to_host(), 1 / np.sqrt(v + 1e-5), rtol=1e-4 if rows > 2 else 1e-3)
    np.testing.assert_allclose(running[0].to_host(), 0.75 * 0.5 + 0.25 * m, rtol=1e-6)
    np.testing.assert_allclose(running[1].to_host(), 0.75 * 2 + 0.25 * v * rows / (rows - 1), rtol=1e-4)
    close(y, np.maximum((x - m) / np.sqrt(v + 1e-5) * w + b, 0), "float16")  # x has three digits behind the point


@pytest.mark.parametrize("row", [0, 63, 64, 129])
def test_columns_that_are_not_finite_stay_by_themselves(queue, row):
    x = np.random.default_rng(0).standard_normal((130, 70)).astype("f4")
    x[row, 3], x[row, 66], x[row, 20] = np.inf, -np.inf, np.nan
    y, mean, rstd = (t.to_host() for t in batch_norm(Tensor.from_host(queue, x)))
    assert mean[3] == np.inf and mean[66] == -np.inf and np.isnan(mean[20])
    assert np.isnan(rstd[[3, 66, 20]]).all() and np.isnan(y[:, [3, 66, 20]]).all()
    rest = [c for c in range(70) if c not in (3, 66, 20)]
    wanted = x[:, rest].astype("f8")
    np.testing.assert_allclose(y[:, rest], (wanted - wanted.mean(0)) / np.sqrt(wanted.var(0) + 1e-5), atol=1e-5)
