"""What the tests of the compiler share: arrays, leaves, gradients, and the comparison with the eager function."""

import numpy as np

import netcl.autograd as ag
from netcl.autograd.compiler import jit_compile
from netcl.core.dtypes import is_float
from netcl.core.tensor import Tensor

RNG = np.random.default_rng(7)


def normal(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


def leaf(queue, array):
    return ag.tensor(Tensor.from_host(queue, array), requires_grad=is_float(array.dtype))


def gradients(fn, queue, arrays, **kwargs):
    """Value and gradients of sum(fn * weights) with fixed weights."""
    nodes = [leaf(queue, a) for a in arrays]
    with ag.Tape() as tape:
        y = fn(*nodes, **kwargs)
    weights = np.cos(np.arange(y.value.size)).reshape(y.shape).astype(y.dtype)
    tape.backward(y, Tensor.from_host(queue, weights))
    return y.value.to_host(), [None if n.grad is None else n.grad.to_host() for n in nodes]


def agree(fn, queue, *arrays, tolerance=1e-5, **kwargs):
    """The compiled function fuses, and equals the eager one in value and gradients."""
    compiled = jit_compile(fn)
    wanted, wanted_grads = gradients(fn, queue, arrays, **kwargs)
    found, grads = gradients(compiled, queue, arrays, **kwargs)
    assert compiled.cache_info().unfused == 0, compiled.reasons
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
    for a, b in zip(grads, wanted_grads, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=10 * tolerance, atol=10 * tolerance)
    return compiled
