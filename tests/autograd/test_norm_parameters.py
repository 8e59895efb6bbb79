"""Norms with any of weight and bias: values and gradients by hand in float64, eager and compiled."""

import numpy as np
import pytest

import netcl.autograd as ag
from netcl.core.tensor import Tensor

X = np.array([[1.0, 2, 3, 5], [2, 0, -1, 4], [0, 1, 1, -3]])
W, B = np.array([2.0, -1, 0.5, 3]), np.array([10.0, 20, 30, -40])
G = np.array([[1.0, -2, 3, 1], [0.5, 1, 2, -1], [1, 1, 0, 2]])  # the upstream gradient
EPS = 1e-5


def fixed(queue):
    return {"running_mean": Tensor.zeros(queue, (4,)), "running_var": Tensor.full(queue, (4,), 4.0)}


NORMS = {  # the function on nodes, the axes of the mean (None: a fixed variance of 4 instead), and whether relu follows
    "layer_norm": (lambda q, x, w, b: ag.layer_norm(x, w, b), (1,), False),
    "group_norm": (lambda q, x, w, b: ag.group_norm(x, 1, w, b), (1,), False),
    "batch_norm": (lambda q, x, w, b: ag.batch_norm(x, w, b), (0,), False),
    "batch_norm_relu": (lambda q, x, w, b: ag.batch_norm(x, w, b, activation="relu"), (0,), True),
    "batch_norm_eval": (lambda q, x, w, b: ag.batch_norm(x, w, b, **fixed(q), training=False), None, False),
    "layer_norm_relu": (lambda q, x, w, b: ag.fused_norm_activation(x, w, b, norm="layer_norm"), (1,), True),
}


def by_hand(axes, relu, w, b):
    """y, dx, dw, db."""
    w, b = (np.ones(4) if w is None else w), (np.zeros(4) if b is None else b)
    mean, var = (0, 4) if axes is None else (X.mean(axes, keepdims=True), X.var(axes, keepdims=True))
    h, rstd = (X - mean) / np.sqrt(var + EPS), 1 / np.sqrt(var + EPS)
    y = h * w + b
    g = G * (y > 0) if relu else G
    u = g * w
    dx = rstd * u
    if axes is not None:
        dx = rstd * (u - u.mean(axes, keepdims=True) - h * (u * h).mean(axes, keepdims=True))
    return (np.maximum(y, 0) if relu else y), dx, (g * h).sum(0), g.sum(0)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("given", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=["none", "bias", "weight", "both"])
@pytest.mark.parametrize("norm", NORMS)
def test_a_bias_is_a_bias_without_a_weight_too(queue, norm, given, compiled):
    function, axes, relu = NORMS[norm]
    w, b = W if given[0] else None, B if given[1] else None
    leaf = lambda a: None if a is None else ag.Parameter(Tensor.from_host(queue, np.float32(a)))  # noqa: E731
    nodes, up = [leaf(a) for a in (X, w, b)], Tensor.from_host(queue, np.float32(G))
    call = lambda x, w, b: function(queue, x, w, b)  # noqa: E731
    with ag.Tape() as tape:
        y = (ag.jit_compile(call) if compiled else call)(*nodes)
    tape.backward(y, up)
    wanted = by_hand(axes, relu, w, b)
    found = [y.value, *(n.grad for n in nodes if n is not None)]
    wanted = [wanted[0], *(d for d, n in zip(wanted[1:], nodes) if n is not None)]
    for f, value in zip(found, wanted, strict=True):
        np.testing.assert_allclose(f.to_host(), value, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("norm", ["rms_norm", "fused"])
def test_rms_norm_with_and_without_parameters(queue, norm):
    x = Tensor.from_host(queue, np.float32(X))
    h = X / np.sqrt((X * X).mean(1, keepdims=True) + EPS)
    w, b = (Tensor.from_host(queue, np.float32(a)) for a in (W, B))
    if norm == "rms_norm":
        np.testing.assert_allclose(ag.rms_norm(x, None, eps=EPS).to_host(), h, rtol=1e-5)
        np.testing.assert_allclose(ag.rms_norm(x, w, eps=EPS).to_host(), h * W, rtol=1e-5)
        return
    for weight, bias, wanted in ((None, None, h), (None, b, h + B), (w, None, h * W), (w, b, h * W + B)):
        y = ag.fused_norm_activation(x, weight, bias, norm="rms_norm")
        np.testing.assert_allclose(y.to_host(), np.maximum(wanted, 0), rtol=1e-5, atol=1e-5)
