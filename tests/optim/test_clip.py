"""Clipping by norm and by value."""

import numpy as np
import pytest

from netcl.autograd.node import Parameter
from netcl.core.backend import opencl
from netcl.core.errors import GradientError
from netcl.core.tensor import Tensor
from netcl.optim import clip_grad_norm, clip_grad_norm_, clip_grad_norm_device, clip_grad_value_

SHAPES = [(1,), (9,), (8193,), (3, 5, 7), (64, 33)]


def parameters(queue, dtype=np.float32, seed=0):
    rng, found = np.random.default_rng(seed), []
    for shape in SHAPES:
        p = Parameter(Tensor.zeros(queue, shape, dtype))
        p.grad = Tensor.from_host(queue, rng.standard_normal(shape).astype(dtype))
        found.append(p)
    return found


def flat(params):
    return np.concatenate([p.grad.to_host().astype(float).ravel() for p in params])


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_gradients_are_scaled_to_the_norm(queue, order, dtype):
    params = parameters(queue, dtype)
    before = flat(params)
    size = np.linalg.norm(before, order)
    norm = clip_grad_norm_(params, 0.5, order)
    np.testing.assert_allclose(norm.to_host(), [size], rtol=1e-5)
    scaled = before * 0.5 / (size + 1e-6)
    rtol = {"bfloat16": 4e-3, "float16": 1e-3}.get(dtype, 1e-5)
    np.testing.assert_allclose(flat(params), scaled, rtol=rtol, atol=1e-6)


def test_very_large_and_very_small_gradients(queue):
    """128 gradients of 1e19, whose squares float32 does not hold, and of 1e-30, whose squares are 0."""
    for size, norm in ((1e19, 1.1313708e20), (1e-30, 1.1313708e-29)):
        p = Parameter(Tensor.zeros(queue, (128,)))
        p.grad = Tensor.from_host(queue, np.full(128, size, np.float32))
        np.testing.assert_allclose(clip_grad_norm_([p], 2.0).to_host(), [norm], rtol=1e-6)
        np.testing.assert_allclose(p.grad.to_host(), np.full(128, 0.1767767 if size > 1 else size), rtol=1e-5)


def test_gradients_that_are_views(queue):
    """A strided view counts its own elements, and is scaled where it lies."""
    p, base = Parameter(Tensor.zeros(queue, (3, 4))), Tensor.from_host(queue, np.full((4, 6), 1e25, np.float32))
    p.grad = base[:3, 1:5]
    np.testing.assert_allclose(clip_grad_norm_([p], 1.0).to_host(), [np.sqrt(12) * 1e25], rtol=1e-6)
    np.testing.assert_allclose(p.grad.to_host(), np.full((3, 4), 1 / np.sqrt(12)), rtol=1e-5)


def test_small_gradients_stay(queue):
    params = parameters(queue)
    before = flat(params)
    clip_grad_norm(params, 1e6)
    np.testing.assert_array_equal(flat(params), before)


def test_mixed_dtypes_count_as_one_vector(queue):
    params = parameters(queue) + parameters(queue, "float16", 1) + parameters(queue, "bfloat16", 2)
    size = np.linalg.norm(flat(params))
    np.testing.assert_allclose(clip_grad_norm_device(params, 1.0).to_host(), [size], rtol=1e-5)
    assert np.linalg.norm(flat(params)) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_norm_that_is_not_finite_leaves_gradients_alone(queue, bad):
    params = parameters(queue)
    params[1].grad = Tensor.from_host(queue, np.full(9, bad, np.float32))
    before = flat(params)
    assert not np.isfinite(clip_grad_norm_(params, 1.0).item())
    np.testing.assert_array_equal(flat(params), before)
    with pytest.raises(GradientError, match="finite norm"):
        clip_grad_norm_(params, 1.0, error_if_nonfinite=True)


def test_nothing_is_read_back(cl_queue):
    params = parameters(cl_queue)
    copies = []
    hook = lambda kind, *rest: copies.append(kind)  # noqa: E731
    clip_grad_norm_(params, 1.0)
    opencl.copy_hooks.append(hook)
    try:
        clip_grad_norm_(params, 1.0)
    finally:
        opencl.copy_hooks.remove(hook)
    assert "read" not in copies


def test_values_are_limited(queue):
    params = parameters(queue)
    before = flat(params)
    clip_grad_value_(params, 0.3)
    np.testing.assert_allclose(flat(params), np.clip(before, -0.3, 0.3))


def test_parameters_without_gradients(queue):
    p = Parameter(Tensor.zeros(queue, (3,)))
    assert clip_grad_norm_([p], 1.0) is None
    clip_grad_value_([p], 1.0)
    with pytest.raises(ValueError, match="at least one parameter"):
        clip_grad_norm_([], 1.0)
