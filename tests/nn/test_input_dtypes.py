"""Layers fed another dtype than that of their parameters: NumPy's default float64, half models, whole numbers."""

import numpy as np
import pytest

import netcl.autograd as ag
from netcl import nn
from netcl.autograd.compiler import jit_compile
from netcl.autograd.jit.step import CompiledStep
from netcl.core.backend import opencl
from netcl.core.dtypes import as_dtype
from netcl.core.errors import DTypeError
from netcl.core.tensor import Tensor
from netcl.optim import SGD

FLOATS = ["float16", "bfloat16", "float32", "float64"]
RNG = np.random.default_rng(3)
IMAGES = RNG.integers(-8, 9, (4, 4, 5, 5)) / 8  # exact in every dtype
ROWS = RNG.integers(-8, 9, (6, 8)) / 8
LAYERS = {
    "Linear": (lambda q, t: nn.Linear(q, 8, 5, dtype=t), ROWS),
    "Conv2d": (lambda q, t: nn.Conv2d(q, 4, 3, 3, padding=1, dtype=t), IMAGES),
    "depthwise": (lambda q, t: nn.Conv2d(q, 4, 4, 3, groups=4, dtype=t), IMAGES),
    "BatchNorm1d": (lambda q, t: nn.BatchNorm1d(q, 8, dtype=t), ROWS),
    "BatchNorm2d": (lambda q, t: nn.BatchNorm2d(q, 4, dtype=t), IMAGES),
    "LayerNorm": (lambda q, t: nn.LayerNorm(q, 8, dtype=t), ROWS),
    "RMSNorm": (lambda q, t: nn.RMSNorm(q, 8, dtype=t), ROWS),
    "GroupNorm": (lambda q, t: nn.GroupNorm(q, 2, 4, dtype=t), IMAGES),
    "fused": (lambda q, t: nn.Sequential(nn.Linear(q, 8, 5, dtype=t), nn.GELU(), nn.Linear(q, 5, 2, dtype=t)), ROWS),
}


def run(queue, layer, array, dtype, compiled=False):
    """Result, gradient of the input and gradients of the parameters, for sum(cos(i) y_i)."""
    x = ag.tensor(Tensor.from_host(queue, array.astype(as_dtype(dtype))), requires_grad=True)
    layer.zero_grad()
    with ag.Tape() as tape:
        y = (jit_compile(lambda x: layer(x)) if compiled else layer)(x)
    weights = np.cos(np.arange(y.value.size)).reshape(y.shape).astype(y.dtype)
    tape.backward(y, Tensor.from_host(queue, weights))
    return y, x.grad, [p.grad for p in layer.parameters()]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_layers_cast_floating_inputs_to_their_dtype(queue, name, compiled):
    make, array = LAYERS[name]
    for kept in FLOATS:
        layer = make(queue, kept)
        wanted = run(queue, layer, array, kept)
        for given in FLOATS:
            if given == kept:
                continue
            y, dx, grads = run(queue, layer, array, given, compiled)
            assert y.dtype == wanted[0].dtype and dx.dtype == as_dtype(given)
            np.testing.assert_array_equal(y.to_host(), wanted[0].to_host())
            np.testing.assert_array_equal(dx.to_host(), wanted[1].to_host().astype(as_dtype(given)))
            for found, expected in zip(grads, wanted[2], strict=True):
                assert found.dtype == expected.dtype
                np.testing.assert_array_equal(found.to_host(), expected.to_host())


def test_a_linear_layer_learns_from_float64_as_from_float32(queue):
    """The right weights after one step are those of NumPy."""
    x, target = ROWS, RNG.integers(-8, 9, (6, 5)) / 8
    layer = nn.Linear(queue, 8, 5)
    w = layer.weight.to_host().astype(np.float64)
    opt = SGD(layer.parameters(), lr=0.5)
    with ag.Tape() as tape:
        loss = ag.mse_loss(layer(Tensor.from_host(queue, x)), Tensor.from_host(queue, target))
    tape.backward(loss)
    opt.step()
    error = 2 * (x @ w.T - target) / target.size
    np.testing.assert_allclose(layer.weight.to_host(), w - 0.5 * error.T @ x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer.bias.to_host(), -0.5 * error.sum(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kept", ["float32", "float16"])
def test_a_recorded_step_takes_float64(queue, kept):
    def train(dtype):
        net = nn.Sequential(nn.Linear(queue, 8, 16), nn.ReLU(), nn.LayerNorm(queue, 16), nn.Linear(queue, 16, 5))
        for i, p in enumerate(net.parameters()):
            values = np.random.default_rng(i).integers(-4, 5, p.shape) / 8
            p.value = Tensor.from_host(queue, values.astype(np.float32))
        net.to(kept)
        opt = SGD(net.parameters(), lr=0.1)

        @CompiledStep
        def step(x, labels):
            with ag.Tape() as tape:
                loss = ag.cross_entropy(net(ag.tensor(x)), labels)
            tape.backward(loss)
            opt.step()
            opt.zero_grad()
            return loss

        labels = Tensor.from_host(queue, np.arange(6) % 5)
        losses = [step(Tensor.from_host(queue, ROWS.astype(dtype)), labels).item() for _ in range(5)]
        return losses, [p.to_host() for p in net.parameters()]

    losses, weights = train(kept)
    found, others = train("float64")
    assert found == losses and losses[-1] < losses[0]
    for a, b in zip(others, weights, strict=True):
        np.testing.assert_array_equal(a, b)


def test_batch_norm_without_weights_follows_its_running_statistics(queue):
    x = Tensor.from_host(queue, IMAGES)
    axes = (0, 2, 3)
    expected = (IMAGES - IMAGES.mean(axes, keepdims=True)) / np.sqrt(IMAGES.var(axes, keepdims=True) + 1e-5)
    for kept, made in (("float32", np.float32), ("float64", np.float64)):
        y = nn.BatchNorm2d(queue, 4, affine=False, dtype=kept)(x)
        assert y.dtype == made
        np.testing.assert_allclose(y.to_host(), expected, atol=1e-5)
    assert nn.BatchNorm2d(queue, 4, affine=False, track_running_stats=False)(x).dtype == np.float64


def test_a_half_model_computes_in_half(queue):
    net = nn.Sequential(nn.Conv2d(queue, 4, 2, 3), nn.BatchNorm2d(queue, 2), nn.ReLU(), nn.Flatten()).half()
    assert net(Tensor.from_host(queue, IMAGES.astype(np.float32))).dtype == np.float16


def test_nothing_is_launched_where_the_dtypes_agree(cl_queue):
    layer, x = nn.Linear(cl_queue, 8, 5), Tensor.from_host(cl_queue, ROWS.astype(np.float32))
    names = []
    opencl.hooks.append(lambda kernel, *_: names.append(kernel.name))
    try:
        layer(x)
    finally:
        opencl.hooks.pop()
    assert names == ["gemm"]


def test_whole_numbers_promote_and_what_is_no_tensor_is_refused(queue):
    layer = nn.Linear(queue, 8, 5)
    counts = RNG.integers(0, 5, (6, 8)).astype(np.uint8)
    expected = counts @ layer.weight.to_host().astype(np.float64).T
    y = layer(Tensor.from_host(queue, counts))
    assert y.dtype == np.float32
    np.testing.assert_allclose(y.to_host(), expected, rtol=1e-5, atol=1e-6)
    for wrong in (ROWS, ROWS.astype(np.float32), ROWS.tolist(), None, "x"):
        with pytest.raises(DTypeError, match="Linear: expected a Node or a Tensor as input, got"):
            layer(wrong)
