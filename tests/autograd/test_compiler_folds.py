"""Gradients of broadcast inputs of compiled functions: values, and the launches they take."""

import dataclasses

import numpy as np
import pytest
from families import FAMILIES, POSING, queue_of

import netcl.autograd as ag
from netcl.autograd.compiler import jit_compile
from netcl.core.backend import opencl
from netcl.core.device.profile import override_profile, profile_of
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor

RNG = np.random.default_rng(5)
# name: (shapes of x, s, b; backward launches on a CPU device)
CASES = {
    "columns": ([(64, 48), (48,), (48,)], 1),
    "long": ([(5000, 48), (48,), (48,)], 2),
    "narrow": ([(301, 3), (3,), (3,)], 1),
    "rows": ([(65, 49), (65, 1), (65, 1)], 1),
    "channels": ([(4, 6, 9, 7), (6, 1, 1), (6, 1, 1)], 1),
    "numbers": ([(70, 33), (1,), (1, 1)], 1),
    "rows and columns": ([(64, 48), (64, 1), (48,)], 2),
    "outer": ([(64, 1), (1, 48), (48,)], 2),
}


def function(x, s, b):
    return ag.tanh(x * s + b)


def expected(x, s, b, g):
    """Gradients by NumPy in double precision, each summed along the axes where its input was repeated."""
    x, s, b, g = (np.asarray(a, np.float64) for a in (x, s, b, g))
    d = g * (1 - np.tanh(x * s + b) ** 2)
    return [fitted(full, a.shape) for full, a in ((d * s, x), (d * x, s), (d, b))]


def fitted(full, shape):
    padded = (1,) * (full.ndim - len(shape)) + shape
    axes = tuple(i for i, (n, m) in enumerate(zip(padded, full.shape, strict=True)) if n != m)
    return full.sum(axis=axes, keepdims=True).reshape(shape)


def arrays_of(shapes, dtype=np.float32):
    return [RNG.normal(size=s).astype(dtype) for s in (*shapes, np.broadcast_shapes(*shapes))]


def backward(fn, queue, tensors, g):
    """Gradients of the tensors, and the names of the kernels of the backward pass."""
    nodes, names = [ag.tensor(t, requires_grad=True) for t in tensors], []
    with ag.Tape() as tape:
        y = fn(*nodes)
    hook = lambda kernel, *_: names.append(kernel.name)  # noqa: E731
    opencl.hooks.append(hook)
    try:
        tape.backward(y, g)
    finally:
        opencl.hooks.remove(hook)
    return [n.grad.to_host() for n in nodes], names


def check(queue, arrays, tolerance=1e-4):
    fn = jit_compile(function)
    tensors = [Tensor.from_host(queue, a) for a in arrays]
    for _ in range(2):  # the second time by kept plans
        grads, names = backward(fn, queue, tensors[:-1], tensors[-1])
        for found, wanted, a in zip(grads, expected(*arrays), arrays):
            assert found.dtype == a.dtype and found.shape == a.shape
            np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * max(1, abs(wanted).max()))
    assert fn.cache_info().unfused == 0
    return names


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_and_launches(family, name):
    queue, (shapes, launches) = queue_of(family), CASES[name]
    names = check(queue, arrays_of(shapes))
    if not isinstance(queue, CPUQueue) and not family.startswith(POSING):
        assert len(names) == launches, names


@pytest.mark.parametrize("vector", [8, 16])
@pytest.mark.parametrize("name", ["columns", "rows", "narrow"])
def test_both_widths_of_vectors(cl_queue, name, vector):
    if profile_of(cl_queue).kind != "cpu":
        pytest.skip("vectors are those of CPU devices")
    with override_profile(cl_queue, dataclasses.replace(profile_of(cl_queue), vector=vector)):
        check(cl_queue, arrays_of(CASES[name][0]))


@pytest.mark.parametrize(("dtypes", "tolerance"), [("eee", 5e-3), ("fef", 5e-3), ("ddd", 1e-10)])
def test_dtypes_may_differ(queue, dtypes, tolerance):
    arrays = [a.astype(t) for a, t in zip(arrays_of([(40, 24), (24,), (24,)]), [*dtypes, np.result_type(*dtypes)])]
    check(queue, arrays, tolerance)


def test_views_and_nan(queue):
    """Operands with strides are read in place; a NaN stays in its column."""
    x, s, b, g = arrays_of([(48, 64), (64,), (64,)])
    x[3, 5] = np.nan
    tensors = [Tensor.from_host(queue, a) for a in (x.T.copy(), np.repeat(s, 2), b, g)]
    views = [tensors[0].T, tensors[1][::2], tensors[2]]
    grads, _ = backward(jit_compile(function), queue, views, tensors[3])
    for found, wanted in zip(grads, expected(x, s, b, g)):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_only_what_is_wanted(cl_queue):
    """Without a gradient for x the kernel sums alone; with x alone it is a map."""
    arrays = arrays_of([(64, 48), (48,), (48,)])
    tensors = [Tensor.from_host(cl_queue, a) for a in arrays]
    wanted = expected(*arrays)
    for chosen in ((0,), (1, 2), (0, 2), (2,)):
        nodes = [ag.tensor(t, requires_grad=i in chosen) for i, t in enumerate(tensors[:3])]
        with ag.Tape() as tape:
            y = jit_compile(function)(*nodes)
        tape.backward(y, tensors[3])
        for i, node in enumerate(nodes):
            assert (node.grad is not None) == (i in chosen)
            if i in chosen:
                np.testing.assert_allclose(node.grad.to_host(), wanted[i], rtol=1e-4, atol=1e-4)


def test_explain_and_sources(cl_queue, capsys):
    fn = jit_compile(function)
    arrays = [Tensor.from_host(cl_queue, a) for a in arrays_of([(64, 48), (48,), (48,)])]
    backward(fn, cl_queue, arrays[:3], arrays[3])
    assert "fused_0_backward (map and fold)" in fn.explain()
    assert "netcl_sum_fused_0_backward" in fn.sources()[-1]
