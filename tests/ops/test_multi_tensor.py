"""Launches over many tensors: both kernel families, offsets, sizes that cross vectors and chunks."""

import dataclasses
import math

import numpy as np
import pytest

from netcl.core.backend import opencl
from netcl.core.backend.signature import signature
from netcl.core.device.profile import override_profile, profile_of
from netcl.core.dtypes import FLOAT32
from netcl.core.tensor import Tensor
from netcl.fusion import many as multi
from netcl.fusion.walk import Operand, Walk
from netcl.ops.total_norm import total_norm
from netcl.ops.update import Updater, update

SIZES = (1, 7, 8, 9, 63, 64, 65, 4095, 4097, 8191, 8193, 20000)


@pytest.fixture(params=[("cpu", 4096), ("gpu", 256), ("gpu", 12)], ids=["cpu", "gpu", "gpu of small groups"])
def family(request, cl_queue):
    """A queue of every device, run by each of the two kernel families; launches keep to the size of groups."""
    kind, most = request.param
    groups = []
    hook = lambda kernel, queue, size, local, *_: groups.append(math.prod(local or ()))  # noqa: E731
    opencl.hooks.append(hook)
    try:
        with override_profile(cl_queue, dataclasses.replace(profile_of(cl_queue), kind=kind, max_work_group=most)):
            yield cl_queue
    finally:
        opencl.hooks.remove(hook)
    assert max(groups) <= most


def tensors(queue, dtype, seed, sizes=SIZES, shift=5):
    """Tensors inside larger buffers at offsets 0 ... shift - 1, and those buffers."""
    rng, found, bases = np.random.default_rng(seed), [], []
    for i, n in enumerate(sizes):
        base = Tensor.from_host(queue, rng.standard_normal(n + 16).astype(dtype))
        bases.append(base)
        found.append(base[i % shift : i % shift + n])
    return found, bases


@pytest.mark.parametrize("shift", [1, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_states_and_neighbours(family, dtype, shift):
    params, bases = tensors(family, dtype, 0, shift=shift)
    grads, _ = tensors(family, dtype, 1, shift=shift)
    before, given = [b.to_host() for b in bases], [g.to_host().astype(float) for g in grads]
    updater = Updater("momentum", params)
    for _ in range(2):
        updater.run(params, grads, lambda: {"lr": 0.1, "decay": 0.01, "mu": 0.9, "keep": 1.0})
    tol = {"bfloat16": 1e-2, "float16": 3e-3}.get(dtype, 1e-5)
    for i, (n, base, old, g) in enumerate(zip(SIZES, bases, before, given)):
        here = slice(i % shift, i % shift + n)
        p, b = old.astype(float)[here], 0.0
        for _ in range(2):
            b = 0.9 * b + g + 0.01 * p
            p = p - 0.1 * b
        new = base.to_host()
        np.testing.assert_allclose(new[here], p, rtol=tol, atol=tol)
        np.testing.assert_array_equal(np.delete(new, here), np.delete(old, here))  # nothing beside it was written
        np.testing.assert_allclose(updater.states["b"][i].to_host(), b, rtol=tol, atol=tol)


@pytest.mark.parametrize("order", [1.0, 2.0, 2.5, math.inf])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_norms(family, order, dtype):
    parts, _ = tensors(family, dtype, 0, SIZES * 5)  # more than one launch
    flat = np.concatenate([t.to_host().astype(float) for t in parts])
    np.testing.assert_allclose(total_norm(parts, order).to_host(), [np.linalg.norm(flat, order)], rtol=1e-5)


def test_norms_keep_nan_and_infinity(queue):
    for bad in (np.nan, np.inf):
        for order in (0.5, 1.0, 2.0, 3.0, math.inf):
            parts = [Tensor.from_host(queue, np.array([1, bad, 2], np.float32)), Tensor.ones(queue, (70,))]
            np.testing.assert_array_equal(total_norm(parts, order).to_host(), [bad])


@pytest.mark.parametrize("order", [0.5, 1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("sizes", [(1e19,), (1e-30,), (1e30, 1.0), (1e25, 1e-25, 1e-12, 1e12), (1e-41,), (0.0, 1e-22)])
def test_norms_hold_over_the_range_of_floats(family, order, sizes):
    """Where squares overflow, where they vanish, and both beside each other."""
    rng = np.random.default_rng(3)
    arrays = [(s * (1 + rng.random((5, 33)))).astype(np.float32) for s in sizes]
    flat = np.concatenate([a.ravel() for a in arrays]).astype(float)
    expected = np.linalg.norm(flat / flat.max(), order) * flat.max()
    norm = total_norm([Tensor.from_host(family, a) for a in arrays], order).to_host()
    assert norm.dtype == np.float32
    np.testing.assert_allclose(norm, [expected], rtol=1e-3 if sizes == (1e-41,) else 1e-5)


@pytest.mark.parametrize("order", [0.5, 1.0, 2.0, 3.0, math.inf])
def test_norms_of_doubles_and_of_mixed_dtypes(queue, order):
    doubles = [Tensor.from_host(queue, np.full(128, v)) for v in (1e200, 3e-200)]
    largest, count = 1e200, 128
    expected = largest * (1 if order == math.inf else float(count) ** (1 / order))
    np.testing.assert_allclose(total_norm(doubles, order).to_host(), [expected], rtol=1e-12)
    floats = [np.full(50, 2e22, np.float32), np.full((4, 5), 6e4, np.float16), np.full(7, 1e23, "bfloat16")]
    flat = np.concatenate([a.astype(float).ravel() for a in floats])
    norm = total_norm([Tensor.from_host(queue, a) for a in floats], order).to_host()
    np.testing.assert_allclose(norm, [np.linalg.norm(flat / 1e23, order) * 1e23], rtol=1e-5)


@pytest.mark.parametrize("order", [0.5, 1.0, 2.0, 3.0])
def test_a_norm_beyond_the_dtype_is_infinite(queue, order):
    parts = [Tensor.from_host(queue, np.full(128, 3e38, np.float32))]
    assert total_norm(parts, order).to_host()[0] == np.inf
    parts.append(Tensor.from_host(queue, np.full(3, np.nan, np.float32)))
    assert np.isnan(total_norm(parts, order).to_host()[0])


def test_an_empty_tensor_takes_no_part(queue):
    parts = [Tensor.empty(queue, (0,)), Tensor.ones(queue, (4,)), Tensor.empty(queue, (3, 0))]
    np.testing.assert_allclose(total_norm(parts).to_host(), [2.0])
    np.testing.assert_allclose(total_norm(parts[:1]).to_host(), [0.0])
    update("scale", parts, factor=3.0)
    np.testing.assert_allclose(parts[1].to_host(), np.full(4, 3.0))


def test_arguments_fit_the_device(cl_queue):
    assert multi.slots(cl_queue) == 48
    body = Updater("adam_amsgrad", [Tensor.ones(cl_queue, (3,), "float16")]).row.body(True, True)
    source = multi.render(body, Walk(FLOAT32, True, 8, (Operand(np.dtype(np.float16), "vector"),) * 48))
    types = signature(source, f"netcl_{body.name}").types
    size = sum(8 if t is None else t.itemsize for t in types)
    assert size <= cl_queue.device.max_parameter_size


def test_large_groups_are_split(cl_queue):
    parts = [Tensor.ones(cl_queue, (2,)) for _ in range(62)] + [Tensor.ones(cl_queue, (2,), "float16")]
    assert [len(b) for b in multi.batches(parts)] == [48, 14, 1]
