"""Kernels for CPU devices with vectors of the other width: 16 floats where registers hold 8, and the reverse."""

import dataclasses

import numpy as np
import pytest
from scipy import special

from netcl.core.device import manager
from netcl.core.device.profile import override_profile, profile_of
from netcl.core.tensor import Tensor
from netcl.ops import elementwise, reduction
from netcl.ops.normalization.batch_norm import batch_norm, batch_norm_grad
from netcl.ops.normalization.norm import layer_norm, layer_norm_grad
from netcl.ops.normalization.softmax import softmax
from netcl.ops.total_norm import total_norm

CPUS = [i for i, profile in enumerate(manager.profiles) if profile.kind == "cpu"]
TOLERANCE = {"bfloat16": 0.032, "float16": 4e-3, "float32": 1e-5, "float64": 1e-11}
DTYPES = list(TOLERANCE)


@pytest.fixture(params=CPUS)
def queue(request):
    """A CPU device's queue that claims registers of the other width."""
    queue = manager.default(request.param).queue
    profile = profile_of(queue)
    with override_profile(queue, dataclasses.replace(profile, vector=24 - profile.vector)):
        yield queue


def sample(queue, dtype, *shapes):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(dtype) for s in shapes]
    return [a.astype(np.float64) for a in arrays], [Tensor.from_host(queue, a) for a in arrays]


def close(found, wanted, dtype):
    wanted = np.asarray(wanted)
    np.testing.assert_allclose(found.to_host(), wanted, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_maps(queue, dtype):
    """Whole vectors, tails of every length class, steps and broadcasts."""
    (x, y), (tx, ty) = sample(queue, dtype, (5, 75), (75,))
    close(elementwise.tanh(tx), np.tanh(x), dtype)
    close(elementwise.tanh(tx[:, ::-1]), np.tanh(x[:, ::-1]), dtype)
    close(elementwise.mul(tx[:, 3:], ty[3:]), x[:, 3:] * y[3:], dtype)
    close(elementwise.mul(tx, ty[:1]), x * y[:1], dtype)


def test_integers(queue):
    for dtype in ("int32", "int64", "uint8"):
        x = np.arange(75, dtype=dtype)
        t = Tensor.from_host(queue, x)
        np.testing.assert_array_equal(elementwise.add(t, t).to_host(), x + x)
        np.testing.assert_array_equal(reduction.max(t).to_host(), [74])


@pytest.mark.parametrize("dtype", DTYPES)
def test_folds(queue, dtype):
    """Rows, columns, tails, and a fold in two launches."""
    (x,), (t,) = sample(queue, dtype, (37, 331))
    for axis in (0, 1, None):
        close(reduction.sum(t, axis), x.sum(axis).reshape(-1), dtype)
        close(reduction.max(t, axis), x.max(axis).reshape(-1), dtype)
    close(reduction.sum(t[::-1, 1:].T, 1), x[::-1, 1:].sum(0), dtype)
    long = np.random.default_rng(1).standard_normal(200_003).astype(dtype)
    close(reduction.sum(Tensor.from_host(queue, long)), [long.astype(np.float64).sum()], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows(queue, dtype):
    (x,), (t,) = sample(queue, dtype, (9, 331))
    close(softmax(t), special.softmax(x, -1), dtype)
    close(softmax(t[:, :5]), special.softmax(x[:, :5], -1), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms(queue, dtype):
    (x, w, b, g), (tx, tw, tb, tg) = sample(queue, dtype, (40, 331), (331,), (331,), (40, 331))
    y, mean, rstd = layer_norm(tx, tw, tb)
    m, r = x.mean(-1, keepdims=True), 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    h, u = (x - m) * r, g * w
    close(y, h * w + b, dtype)
    dx, dw, db = layer_norm_grad(tg, tx, mean, rstd, tw)
    close(dx, r * (u - u.mean(-1, keepdims=True) - h * (u * h).mean(-1, keepdims=True)), dtype)
    close(dw, (g * h).sum(0), dtype)
    close(db, g.sum(0), dtype)


@pytest.mark.parametrize("span", [1, 83])
def test_batch_norm(queue, span):
    (x, g), (tx, tg) = sample(queue, "float32", (40, 19, span), (40, 19, span))
    y, mean, rstd = batch_norm(tx)[:3]
    m, r = x.mean((0, 2), keepdims=True), 1 / np.sqrt(x.var((0, 2), keepdims=True) + 1e-5)
    h = (x - m) * r
    close(y, h, "float32")
    dx, dw, db = batch_norm_grad(tg, tx, mean, rstd)
    close(dx, r * (g - g.mean((0, 2), keepdims=True) - h * (g * h).mean((0, 2), keepdims=True)), "float32")
    close(dw, (g * h).sum((0, 2)), "float32")
    close(db, g.sum((0, 2)), "float32")


def test_many_tensors(queue):
    arrays, tensors = sample(queue, "float32", (3,), (75,), (9001,))
    close(total_norm(tensors), [np.linalg.norm(np.concatenate(arrays))], "float32")
