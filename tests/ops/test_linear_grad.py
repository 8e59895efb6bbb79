"""Gradients of a linear layer: values against NumPy in float64, and the launches they take."""

import numpy as np
import pytest

import netcl.autograd as ag
from netcl.core.backend import opencl
from netcl.core.tensor import Tensor
from netcl.nn import Linear, ReLU, Sequential
from netcl.ops import linear_grad
from netcl.optim import AdamW

SIZES = [(1, 1, 1), (5, 7, 3), (32, 10, 128), (33, 257, 65), (300, 300, 20), (0, 4, 3), (4, 3, 0)]


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("rows", "outs", "ins"), SIZES)
def test_values(queue, rows, outs, ins, relu):
    rng = np.random.default_rng(rows)
    g, y, x, w = (
        rng.standard_normal(s).astype(np.float32) for s in ((rows, outs), (rows, outs), (rows, ins), (outs, ins))
    )
    tg, ty, tx, tw = (Tensor.from_host(queue, a) for a in (g, y, x, w))
    dz = g.astype(np.float64) * (y > 0) if relu else g.astype(np.float64)
    dw, db = linear_grad.weight_grad(tg, tx, ty if relu else None)
    dx = linear_grad.input_grad(tg, tw, ty if relu else None)
    scale = max(1.0, rows**0.5)
    np.testing.assert_allclose(dw.to_host(), dz.T @ x, atol=2e-5 * scale)
    np.testing.assert_allclose(db.to_host(), dz.sum(0), atol=1e-5 * scale)
    np.testing.assert_allclose(dx.to_host(), dz @ w, atol=1e-4)
    assert linear_grad.weight_grad(tg, tx, None, bias=False)[1] is None


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes_and_views(queue, dtype):
    rng = np.random.default_rng(1)
    g, y, x = (rng.standard_normal(s).astype(dtype) for s in ((9, 6), (9, 6), (9, 5)))
    tg, ty, tx = (Tensor.from_host(queue, a[::-1].copy())[::-1] for a in (g, y, x))
    dw, db = linear_grad.weight_grad(tg, tx, ty)
    dz = g.astype(np.float64) * (y > 0)
    tolerance = 2e-2 if dtype == "float16" else 1e-12
    np.testing.assert_allclose(dw.to_host(), dz.T @ x.astype(np.float64), atol=tolerance)
    np.testing.assert_allclose(db.to_host(), dz.sum(0), atol=tolerance)


def test_nan_of_the_output_stays_nan(queue):
    g, y = np.ones((2, 3), np.float32), np.array([[np.nan, 1, -1], [1, 1, np.inf]], np.float32)
    db = linear_grad.weight_grad(*(Tensor.from_host(queue, a) for a in (g, np.ones((2, 2), np.float32), y)))[1]
    assert np.isnan(db.to_host()[0]) and np.array_equal(db.to_host()[1:], [2, 1])


def test_an_mlp_step_takes_twelve_launches(cl_queue):
    """784-256-128-10 with AdamW: three products forward, two launches for the loss, six backward, one update."""
    model = Sequential(
        Linear(cl_queue, 784, 256), ReLU(), Linear(cl_queue, 256, 128), ReLU(), Linear(cl_queue, 128, 10)
    )
    optimizer = AdamW(model.parameters(), lr=1e-3)
    x = Tensor.zeros(cl_queue, (32, 784))
    labels = Tensor.zeros(cl_queue, (32,), "int32")
    names = []

    def step():
        with ag.Tape() as tape:
            loss = ag.cross_entropy(model(ag.tensor(x)), ag.tensor(labels))
        tape.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    step()
    hook = lambda kernel, *rest: names.append(kernel.name)  # noqa: E731
    opencl.hooks.append(hook)
    try:
        step()
    finally:
        opencl.hooks.remove(hook)
    assert len(names) <= 12, names
