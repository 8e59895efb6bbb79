"""softmax and log_softmax with gradients against SciPy, along any axis, from views, at row lengths around borders."""

import numpy as np
import pytest
from scipy import special

import netcl.autograd as ag
from netcl.autograd.compiler import jit_compile
from netcl.core.errors import ShapeError
from netcl.core.tensor import Tensor
from netcl.ops.normalization import softmax as sm


def jacobian_product(p, g, axis):
    return p * (g - (g * p).sum(axis, keepdims=True))


@pytest.mark.parametrize("length", [1, 7, 8, 9, 64, 65, 1000, 8193, 33000])
def test_rows(queue, length):
    rng = np.random.default_rng(length)
    x, g = (rng.standard_normal((3, length)).astype(np.float32) * s for s in (4, 1))
    tx, tg = Tensor.from_host(queue, x), Tensor.from_host(queue, g)
    p, logp = special.softmax(x.astype(np.float64), -1), special.log_softmax(x.astype(np.float64), -1)
    y, z = sm.softmax(tx), sm.log_softmax(tx)
    np.testing.assert_allclose(y.to_host(), p, rtol=2e-5, atol=1e-9)
    np.testing.assert_allclose(z.to_host(), logp, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sm.softmax_grad(tg, y).to_host(), jacobian_product(p, g, -1), rtol=2e-5, atol=1e-7)
    expected = g - p * g.sum(-1, keepdims=True, dtype=np.float64)
    np.testing.assert_allclose(sm.log_softmax_grad(tg, z).to_host(), expected, rtol=2e-5, atol=1e-5)


def test_nothing_but_minus_infinity(queue):
    """NaN in softmax, as 0 / 0; 0 in attention, where a query sees no key. Eager and compiled."""
    x = Tensor.from_host(queue, np.array([[-np.inf] * 3, [0, 0, -np.inf]], np.float32))
    for op in (ag.softmax, ag.log_softmax):
        for run in (op, jit_compile(lambda x: op(x))):  # noqa: B023
            y = run(ag.tensor(x)).to_host()
            assert np.isnan(y[0]).all()
            assert not np.isnan(y[1]).any()
    q, mask = Tensor.ones(queue, (1, 1, 1, 8)), Tensor.full(queue, (1, 3), True, "bool")
    kv = Tensor.ones(queue, (1, 1, 3, 8))
    assert (ag.attention(q, kv, kv, key_padding_mask=mask).to_host() == 0).all()


def test_long_columns(queue):
    x = np.random.default_rng(2).standard_normal((300, 20)).astype(np.float32)
    t = Tensor.from_host(queue, x)
    np.testing.assert_allclose(sm.softmax(t, 0).to_host(), special.softmax(x.astype(np.float64), 0), rtol=2e-5)
    np.testing.assert_allclose(sm.softmax(t[::-1], 0).to_host(), special.softmax(x[::-1].astype(float), 0), rtol=2e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64", "int32"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_any_axis_of_a_view(queue, dtype, axis):
    x = (np.random.default_rng(1).standard_normal((5, 4, 6)) * 3).astype(dtype)
    t = Tensor.from_host(queue, x)[:, ::-1].T
    y = sm.softmax(t, axis)
    assert y.dtype == (np.float32 if dtype == "int32" else dtype)
    expected = special.softmax(x[:, ::-1].T.astype(np.float64), axis)
    np.testing.assert_allclose(
        y.to_host(), expected, rtol={"bfloat16": 4e-3, "float16": 2e-3}.get(dtype, 1e-5), atol=1e-6
    )


def test_large_values_and_special_rows(queue):
    """Large scores do not overflow; a row of -inf is 0 / 0, other rows are not touched by it."""
    x = np.array([[1000, 1000.5, -1000], [-np.inf] * 3, [-np.inf, 0, 0], [np.nan, 1, 1]], np.float32)
    y = sm.softmax(Tensor.from_host(queue, x)).to_host()
    np.testing.assert_allclose(y[0], [0.3775407, 0.6224593, 0], rtol=1e-6)
    assert np.isnan(y[1]).all() and np.isnan(y[3]).all()
    np.testing.assert_allclose(y[2], [0, 0.5, 0.5])
    z = sm.log_softmax(Tensor.from_host(queue, x)).to_host()
    np.testing.assert_allclose(z[2], [-np.inf, -np.log(2), -np.log(2)], rtol=1e-6)


def test_empty_and_errors(queue):
    assert sm.softmax(Tensor.zeros(queue, (0, 3))).shape == (0, 3)
    assert sm.softmax(Tensor.zeros(queue, (3, 0))).shape == (3, 0)
    with pytest.raises(ShapeError, match="softmax: expected an axis"):
        sm.softmax(Tensor.zeros(queue, (2, 3)), 2)
