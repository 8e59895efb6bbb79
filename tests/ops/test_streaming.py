"""Results written past a CPU's caches: every element arrives, whether rows are whole vectors or not."""

import dataclasses

import numpy as np
import pytest
from scipy import special

from netcl.core.device import manager
from netcl.core.device.profile import override_profile, profile_of
from netcl.core.tensor import Tensor
from netcl.kernels import streaming
from netcl.ops import elementwise
from netcl.ops.normalization.batch_norm import batch_norm, batch_norm_grad
from netcl.ops.normalization.group_norm import group_norm
from netcl.ops.normalization.norm import layer_norm, layer_norm_grad
from netcl.ops.normalization.softmax import softmax

CPUS = [i for i, profile in enumerate(manager.profiles) if profile.kind == "cpu"]


@pytest.fixture(params=CPUS)
def queue(request, monkeypatch):
    """A CPU device's queue for which every result is large."""
    queue = manager.default(request.param).queue
    monkeypatch.setattr(streaming, "LEAST", 0)
    with override_profile(queue, dataclasses.replace(profile_of(queue), cache=0)):
        yield queue


def sample(queue, *shapes):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    return [a.astype(np.float64) for a in arrays], [Tensor.from_host(queue, a) for a in arrays]


def close(found, wanted):
    np.testing.assert_allclose(found.to_host(), wanted, rtol=0, atol=1e-5 * max(1, np.abs(wanted).max()))


def test_which_results(queue, monkeypatch):
    profile = profile_of(queue)
    float32, float16 = np.dtype(np.float32), np.dtype(np.float16)
    assert streaming.is_streamed(profile, (64, 96), 96, float32, float32)
    assert not streaming.is_streamed(profile, (64, 97), 97, float32, float32)
    assert not streaming.is_streamed(profile, (64, 96), 96, float16, float32)
    assert not streaming.is_streamed(dataclasses.replace(profile, kind="gpu"), (64, 96), 96, float32, float32)
    assert not streaming.is_streamed(dataclasses.replace(profile, cache=1 << 20), (64, 96), 96, float32, float32)
    monkeypatch.undo()
    assert not streaming.is_streamed(profile, (64, 96), 96, float32, float32)


def test_maps(queue):
    (x, y), (tx, ty) = sample(queue, (5, 96), (96,))
    close(elementwise.mul(tx, ty), x * y)
    close(elementwise.mul(tx[:, :75], ty[:75]), x[:, :75] * y[:75])
    close(elementwise.mul(tx[:, :75].contiguous(), 2.0), 2 * x[:, :75])


def test_rows(queue):
    (x,), (t,) = sample(queue, (9, 96))
    close(softmax(t), special.softmax(x, -1))
    close(softmax(t[:, 3:]), special.softmax(x[:, 3:], -1))


@pytest.mark.parametrize("n", [96, 75])
def test_norms(queue, n):
    (x, g), (tx, tg) = sample(queue, (40, n), (40, n))
    y, mean, rstd = layer_norm(tx)
    r = 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    h = (x - x.mean(-1, keepdims=True)) * r
    close(y, h)
    dx = layer_norm_grad(tg, tx, mean, rstd, needs=(True, False, False))[0]
    close(dx, r * (g - g.mean(-1, keepdims=True) - h * (g * h).mean(-1, keepdims=True)))


@pytest.mark.parametrize("span", [96, 75])
def test_channels(queue, span):
    (x, g), (tx, tg) = sample(queue, (3, 4, span), (3, 4, span))
    y, mean, rstd = batch_norm(tx)
    r = 1 / np.sqrt(x.var((0, 2), keepdims=True) + 1e-5)
    h = (x - x.mean((0, 2), keepdims=True)) * r
    close(y, h)
    dx = batch_norm_grad(tg, tx, mean, rstd, needs=(True, False, False))[0]
    close(dx, r * (g - g.mean((0, 2), keepdims=True) - h * (g * h).mean((0, 2), keepdims=True)))
    pairs = x.reshape(3, 2, -1)
    wanted = (pairs - pairs.mean(-1, keepdims=True)) / np.sqrt(pairs.var(-1, keepdims=True) + 1e-5)
    close(group_norm(tx, 2)[0], wanted.reshape(x.shape))
