"""Random ops: the published Philox vectors, equal numbers on every backend, moments, ranges, dropout."""

import numpy as np
import pytest
from families import FAMILIES, queue_of

from netcl.core.device import manager
from netcl.core.errors import DTypeError
from netcl.core.tensor import Tensor
from netcl.ops.create import random as rnd


@pytest.fixture(params=FAMILIES)
def queue(request):
    return queue_of(request.param)


def test_philox_known_answers():
    """The test vectors of Random123 for counter and key 0 and for all bits set in the counter's low half."""
    assert [hex(w) for w in rnd.philox(0, 4, 0, 0)] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    assert np.array_equal(rnd.philox(5, 8, 1, 2)[4:], rnd.philox(6, 4, 1, 2))


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 31, 32, 33, 1000, 70001])
def test_equal_on_every_backend(queue, size):
    numpy = manager.default("cpu").queue
    for make, tolerance in [
        (lambda q, g: rnd.uniform(q, (size,), -2, 3, generator=g), 1e-6),
        (lambda q, g: rnd.normal(q, (size,), 1, 2, generator=g), 4e-6),
        (lambda q, g: rnd.bernoulli(q, (size,), 0.3, generator=g), 0),
        (lambda q, g: rnd.randint(q, (size,), -5, 1000, generator=g), 0),
        (lambda q, g: rnd.uniform(q, (size,), dtype="float16", generator=g), 1e-3),
        (lambda q, g: rnd.uniform(q, (size,), dtype="bfloat16", generator=g), 8e-3),
        (lambda q, g: rnd.permutation(q, size, generator=g), 0),
    ]:
        ours, theirs = (make(q, rnd.Generator(123456789012)).to_host() for q in (queue, numpy))
        assert ours.dtype == theirs.dtype and ours.shape == (size,)
        np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float16", "bfloat16", "float64"])
def test_any_dtype_is_equal_on_every_backend(queue, dtype):
    numpy = manager.default("cpu").queue
    for size in (3, 4, 7, 8, 4099):
        for make, facts in ((rnd.bernoulli, (0.3,)), (rnd.randint, (0, 100))):
            generators = [(q, rnd.Generator(5)) for q in (queue, numpy)]
            ours, theirs = (make(q, (size,), *facts, dtype, g).to_host() for q, g in generators)
            assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("start", range(9))
def test_dropout_of_what_starts_anywhere(queue, dtype, start):
    """The same elements go, and the others keep their bits (doubled), wherever vectors of them start and end."""
    x = (np.arange(1050) % 99 + 1).astype(dtype)
    y = rnd.dropout(Tensor.from_host(queue, x)[start:1041], 0.5, rnd.Generator(8))[0].to_host()
    kept = rnd.philox(0, 1041 - start, 8, 0) >= 1 << 31
    assert np.array_equal(y, np.where(kept, 2 * x[start:1041], np.zeros(1, dtype)))


def test_moments_and_ranges(queue):
    g = rnd.Generator(1)
    u = rnd.uniform(queue, (200000,), generator=g).to_host()
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 3e-3 and abs(u.var() - 1 / 12) < 1e-3
    z = rnd.normal(queue, (200000,), generator=g).to_host()
    assert abs(z.mean()) < 1e-2 and abs(z.std() - 1) < 1e-2 and abs((z**4).mean() - 3) < 0.1 and np.isfinite(z).all()
    assert abs(rnd.bernoulli(queue, (100000,), 0.25, generator=g).to_host().mean() - 0.25) < 6e-3
    i = rnd.randint(queue, (100000,), 3, 7, dtype="int32", generator=g).to_host()
    assert set(np.unique(i)) == {3, 4, 5, 6}
    p = rnd.permutation(queue, 1000, generator=g).to_host()
    assert np.array_equal(np.sort(p), np.arange(1000)) and not np.array_equal(p, np.arange(1000))


def test_streams_follow_the_seed(queue):
    a, b = rnd.Generator(3), rnd.Generator(4)
    x, y = rnd.uniform(queue, (64,), generator=a).to_host(), rnd.uniform(queue, (64,), generator=a).to_host()
    assert not np.array_equal(x, y) and not np.array_equal(x, rnd.uniform(queue, (64,), generator=b).to_host())
    state = a.state_dict()
    z = rnd.uniform(queue, (64,), generator=a).to_host()
    a.load_state_dict(state)
    assert np.array_equal(z, rnd.uniform(queue, (64,), generator=a).to_host())
    rnd.seed(3)
    assert np.array_equal(x, rnd.uniform(queue, (64,)).to_host())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_dropout(queue, dtype):
    """Kept values are x / (1 - p), backward draws the same mask, p = 0 is the identity and p = 1 all zeros."""
    x = Tensor.ones(queue, (32, 32), dtype)
    y, draw = rnd.dropout(x, 0.5, rnd.Generator(9))
    host = y.to_host().astype(np.float64)
    assert set(np.unique(host)) == {0, 2} and abs(host.mean() - 1) < 0.15
    assert np.array_equal(rnd.dropout_grad(x, 0.5, draw).to_host(), host)
    assert np.array_equal(rnd.dropout(x.T, 0.0)[0].to_host(), np.ones((32, 32)))
    nan = Tensor.full(queue, (9,), np.nan, dtype)
    assert np.array_equal(rnd.dropout(nan, 1.0)[0].to_host(), np.zeros(9))
    view = Tensor.from_host(queue, np.arange(24).reshape(4, 6).astype(dtype))[1:].T
    dropped, draw = rnd.dropout(view, 0.4)
    kept = dropped.to_host() != 0
    assert np.allclose(
        dropped.to_host()[kept], (view.to_host() / 0.6)[kept], rtol=1e-2 if dtype == "bfloat16" else 2e-3
    )


def test_a_later_seed_changes_no_earlier_draw(queue):
    """The mask of backward is that of forward, whatever is seeded in between."""
    x, generator = Tensor.ones(queue, (64,)), rnd.Generator(1)
    y, draw = rnd.dropout(x, 0.5, generator)
    generator.manual_seed(2)
    np.testing.assert_array_equal(rnd.dropout_grad(x, 0.5, draw).to_host(), y.to_host())


def test_bad_input(queue):
    with pytest.raises(ValueError, match=r"probability in \[0, 1\], got 1.5"):
        rnd.dropout(Tensor.ones(queue, (2,)), 1.5)
    with pytest.raises(ValueError, match="low < high"):
        rnd.randint(queue, (2,), 3, 3)
    with pytest.raises(DTypeError, match="floating"):
        rnd.uniform(queue, (2,), dtype="int32")
    with pytest.raises(ValueError, match="at least 0, got -1"):
        rnd.normal(queue, (2,), std=-1)
