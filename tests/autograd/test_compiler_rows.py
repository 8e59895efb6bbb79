"""Reductions inside compiled functions: row patterns in one kernel, folds of maps, and their gradients."""

import numpy as np
import pytest
from scipy import special

import netcl.autograd as ag
from netcl.autograd.compiler import jit_compile
from netcl.core.backend import opencl
from netcl.core.device.profile import profile_of
from netcl.core.tensor import Tensor

RNG = np.random.default_rng(11)


def softmax(x):
    e = ag.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x, w, b):
    return (x - x.mean(-1, keepdims=True)) / ag.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b


def rms_norm(x, w):
    return x * ag.rsqrt(ag.square(x).mean(-1, keepdims=True) + 1e-6) * w


def cross_entropy(z, p):
    top = z.max(-1, keepdims=True)
    return (-(z - top - ag.log(ag.exp(z - top).sum(-1, keepdims=True))) * p).sum(-1)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


P = np.float32(special.softmax(RNG.normal(size=(33, 10)), axis=-1))
# name: (function, arrays, value by NumPy or SciPy, kernels forward, kernels backward that are not folds)
PATTERNS = {
    "softmax": (softmax, [normal(33, 50)], lambda x: special.softmax(x, axis=-1)),
    "layer_norm": (
        layer_norm, [normal(33, 50), normal(50), normal(50)],
        lambda x, w, b: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b,
    ),
    "rms_norm": (rms_norm, [normal(33, 50), normal(50)],
                 lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w),
    "cross_entropy": (cross_entropy, [normal(33, 10), P], lambda z, p: -(special.log_softmax(z, axis=-1) * p).sum(-1)),
    "logsumexp": (lambda z: z - ag.logsumexp(z * 0.5, -1, keepdims=True), [normal(8, 21)],
                  lambda z: z - special.logsumexp(z * 0.5, axis=-1, keepdims=True)),
    "two_axes": (lambda x: x / (ag.abs(x).sum((1, 2), keepdims=True) + 1.0), [normal(9, 5, 4)],
                 lambda x: x / (np.abs(x).sum((1, 2), keepdims=True) + 1)),
    "max_min": (lambda x: (x - x.min(-1, keepdims=True)) / (x.max(-1, keepdims=True) - x.min(-1, keepdims=True)),
                [normal(9, 7)],
                lambda x: (x - x.min(-1, keepdims=True)) / (x.max(-1, keepdims=True) - x.min(-1, keepdims=True))),
    "per_row": (lambda x, s: ag.unsqueeze(ag.exp(-(x * x).sum(-1)) * s, -1) * x, [normal(9, 4), normal(9)],
                lambda x, s: (np.exp(-(x * x).sum(-1)) * s)[:, None] * x),
    "small_loss": (lambda a, b: -(ag.log(ag.sigmoid(a)) * b).mean(), [normal(33, 10), P],
                   lambda a, b: -(np.log(special.expit(a)) * b).mean().reshape(1)),
}  # fmt: skip


def gradients(fn, queue, arrays):
    leaves = [ag.tensor(Tensor.from_host(queue, a), requires_grad=True) for a in arrays]
    names: list[str] = []
    hook = lambda kernel, *_: names.append(kernel.name)  # noqa: E731
    opencl.hooks.append(hook)
    with ag.Tape() as tape:
        y = fn(*leaves)
    forward = list(names)
    g = np.cos(np.arange(y.value.size)).reshape(y.shape).astype(np.float32)
    tape.backward(y, Tensor.from_host(queue, g))
    opencl.hooks.remove(hook)
    return y.value.to_host(), [n.grad.to_host() for n in leaves], forward, names[len(forward) :]


@pytest.mark.parametrize("name", PATTERNS)
def test_a_row_pattern_is_one_kernel(queue, name):
    fn, arrays, reference = PATTERNS[name]
    compiled = jit_compile(fn)
    value, grads, forward, backward = gradients(compiled, queue, arrays)
    wanted, eager, *_ = gradients(fn, queue, arrays)
    assert compiled.cache_info().unfused == 0, compiled.reasons
    np.testing.assert_allclose(value, reference(*(a.astype(np.float64) for a in arrays)), rtol=1e-4, atol=1e-5)
    assert value.shape == wanted.shape
    for found, grad in zip(grads, eager, strict=True):
        np.testing.assert_allclose(found, grad, rtol=1e-3, atol=1e-4)
    if forward:
        assert forward == ["fused_0"]
        assert [k for k in backward if k.startswith("fused")] == ["fused_0_backward"]


@pytest.mark.parametrize("axis", [None, -1, 0, (0, 2)])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_a_reduction_fuses_with_its_map(queue, op, axis):
    def fn(a, b):
        return getattr(ag, op)(ag.square(a - b) * 0.5, axis)

    arrays = [normal(70, 5, 130), normal(130)]
    value, grads, forward, _ = gradients(jit_compile(fn), queue, arrays)
    wanted, eager, *_ = gradients(fn, queue, arrays)
    np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
    for found, grad in zip(grads, eager, strict=True):
        np.testing.assert_allclose(found, grad, rtol=1e-4, atol=1e-4)
    if forward and axis in (None, -1):
        assert forward[0] in ("fused_0", "netcl_sum_fused_0")
        assert len(forward) <= 2


def test_ties_of_a_maximum_share_its_gradient(queue):
    x = np.float32([[1, 3, 3], [2, 2, 2]])
    _, (found,), *_ = gradients(jit_compile(lambda t: (t * 2.0).max(-1)), queue, [x])
    np.testing.assert_allclose(found, np.float32([[0, 1, 1], [2 / 3] * 3]) * np.cos([[0], [1]]), rtol=1e-5)


def test_a_mean_of_rows_after_a_row_kernel(queue):
    fn = lambda z, p: cross_entropy(z, p).mean()  # noqa: E731
    arrays = [normal(33, 10), P]
    value, grads, forward, backward = gradients(jit_compile(fn), queue, arrays)
    np.testing.assert_allclose(value, [-(special.log_softmax(arrays[0], axis=-1) * P).sum(-1).mean()], rtol=1e-5)
    np.testing.assert_allclose(grads[0], (special.softmax(arrays[0], axis=-1) - P) / 33, rtol=1e-3, atol=1e-6)
    if forward:
        assert len(forward) == 2
        assert len(backward) == 2


def test_a_row_value_needed_outside_and_inside(queue):
    def fn(x):
        total = x.sum(-1, keepdims=True)
        return ag.matmul(total, ag.permute(total)) + (x / total).sum()

    arrays = [np.abs(normal(6, 5)) + 1]
    value, grads, *_ = gradients(jit_compile(fn), queue, arrays)
    wanted, eager, *_ = gradients(fn, queue, arrays)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    np.testing.assert_allclose(grads[0], eager[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", None])
@pytest.mark.parametrize("product", ["matmul", "linear", "conv2d"])
def test_a_chain_becomes_the_epilogue_of_its_product(queue, product, activation):
    act = getattr(ag, activation) if activation else lambda t: t

    def fn(x, w, b):
        if product == "conv2d":
            return act(ag.conv2d(x, w, b, padding=1))
        return act(getattr(ag, product)(x, w) + b)

    arrays = {"matmul": [normal(7, 8), normal(8, 5), normal(5)], "linear": [normal(7, 8), normal(5, 8), normal(5)],
              "conv2d": [normal(2, 3, 6, 6), normal(4, 3, 3, 3), normal(4)]}[product]  # fmt: skip
    compiled = jit_compile(fn)
    value, grads, *_ = gradients(compiled, queue, arrays)
    wanted, eager, *_ = gradients(fn, queue, arrays)
    np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5)
    for found, grad in zip(grads, eager, strict=True):
        np.testing.assert_allclose(found, grad, rtol=1e-3, atol=1e-4)
    tensors = [Tensor.from_host(queue, a) for a in arrays]
    names = []
    hook = lambda kernel, *_: names.append(kernel.name)  # noqa: E731
    opencl.hooks.append(hook)
    found = compiled(*tensors)
    opencl.hooks.remove(hook)
    np.testing.assert_allclose(found.value.to_host(), wanted, rtol=1e-4, atol=1e-5)
    assert not [name for name in names if name.startswith("fused")]


@pytest.mark.parametrize("lead", [(7,), (3, 4)])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_an_epilogue_stays_one_launch_with_gradients(cl_queue, activation, lead):
    """And what goes into gelu and silu comes out of the same launch on CPU devices."""
    fn = lambda x, w, b: getattr(ag, activation)(ag.matmul(x, w) + b)  # noqa: E731
    arrays = [normal(*s) for s in ((*lead, 8), (8, 5), (5,))]
    value, grads, forward, _ = gradients(jit_compile(fn), cl_queue, arrays)
    wanted, eager, *_ = gradients(fn, cl_queue, arrays)
    if profile_of(cl_queue).kind == "cpu":
        assert forward == ["gemm"]
    for found, one_by_one in zip((value, *grads), (wanted, *eager), strict=True):
        np.testing.assert_allclose(found, one_by_one, rtol=1e-4, atol=1e-5)
