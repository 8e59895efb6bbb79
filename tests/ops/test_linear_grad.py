"""Gradients of a linear layer: values against NumPy in float64, and the launches they take."""

import dataclasses

import numpy as np
import pytest
from families import FAMILIES, POSING, queue_of

import netcl.autograd as ag
from netcl.core.backend import opencl
from netcl.core.device.profile import override_profile, profile_of
from netcl.core.tensor import Tensor
from netcl.nn import Linear, ReLU, Sequential
from netcl.ops.product import linear_grad
from netcl.optim import AdamW

SIZES = [(1, 1, 1), (5, 7, 3), (32, 10, 128), (33, 257, 65), (300, 300, 20), (0, 4, 3), (4, 3, 0)]


POSED = [name for name in FAMILIES if name.startswith(POSING)]


@pytest.fixture(params=FAMILIES)
def queue(request):
    return queue_of(request.param)


@pytest.fixture(params=[2, 132], ids="{} units".format)
def gpu(request):
    """A posing queue with few and with many compute units: many make long sums be divided."""
    if not POSED:
        pytest.skip("needs an OpenCL driver for the CPU")
    posing = queue_of(POSED[0])
    with override_profile(posing, dataclasses.replace(profile_of(posing), compute_units=request.param)):
        yield posing


def operands(queue, rows, outs, ins, dtype="float32"):
    """g, y, x, w as float64, and on the queue."""
    rng = np.random.default_rng(rows)
    shapes = (rows, outs), (rows, outs), (rows, ins), (outs, ins)
    arrays = [rng.standard_normal(s).astype(dtype) for s in shapes]
    return [a.astype(np.float64) for a in arrays], [Tensor.from_host(queue, a) for a in arrays]


def check(queue, arrays, tensors, relu, tolerance=2e-5):
    (g, y, x, w), (tg, ty, tx, tw) = arrays, tensors
    dz = g * (y > 0) if relu else g
    dw, db = linear_grad.weight_grad(tg, tx, ty if relu else None)
    dx = linear_grad.input_grad(tg, tw, ty if relu else None)
    scale = tolerance * max(1.0, len(g) ** 0.5)
    np.testing.assert_allclose(dw.to_host(), dz.T @ x, atol=scale)
    np.testing.assert_allclose(db.to_host(), dz.sum(0), atol=scale)
    np.testing.assert_allclose(dx.to_host(), dz @ w, atol=5 * tolerance)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("rows", "outs", "ins"), SIZES)
def test_values(queue, rows, outs, ins, relu):
    arrays, tensors = operands(queue, rows, outs, ins)
    check(queue, arrays, tensors, relu)
    assert linear_grad.weight_grad(tensors[0], tensors[2], None, bias=False)[1] is None


def launches(fn):
    """The names of the kernels that `fn` launches."""
    names = []
    hook = lambda kernel, *rest: names.append(kernel.name)  # noqa: E731
    opencl.hooks.append(hook)
    try:
        fn()
    finally:
        opencl.hooks.remove(hook)
    return names


@pytest.mark.parametrize(
    ("rows", "outs", "ins", "dtype"),
    [(32, 256, 784, "float32"), (6000, 10, 12, "float32"), (301, 33, 67, "float32"), (700, 7, 9, "float16"),
     (700, 7, 9, "bfloat16"), (600, 12, 5, "float64")],
)  # fmt: skip
def test_gpu_products_mask_and_sum(gpu, rows, outs, ins, dtype):
    arrays, tensors = operands(gpu, rows, outs, ins, dtype)
    tolerance = {"bfloat16": 0.24, "float16": 3e-2, "float32": 2e-5, "float64": 1e-13}[dtype]
    g, y, x, w = tensors
    check(gpu, arrays, tensors, True, tolerance)
    names = launches(lambda: (linear_grad.weight_grad(g, x, y), linear_grad.input_grad(g, w, y)))
    assert set(names) <= {"gemm", "split_k"} and names.count("gemm") == 2
    if profile_of(gpu).compute_units > 2 and rows > 5000:
        assert "split_k" in names


def test_gpu_products_take_views(gpu):
    """Columns along memory, and starts that are not aligned, also after aligned ones of the same shape."""
    arrays, (g, y, x, w) = operands(gpu, 40, 24, 20)
    turned = [Tensor.from_host(gpu, np.ascontiguousarray(a.T).astype(np.float32)).T for a in arrays[:2]]
    check(gpu, arrays, (*turned, x, w), True)
    check(gpu, arrays, (g, y, x, w), True)
    moved = []
    for a, shift in zip(arrays[:2], (0, 3)):
        flat = np.concatenate([np.full(shift, np.nan), a.ravel()]).astype(np.float32)
        moved.append(Tensor.from_host(gpu, flat)[shift:].reshape(a.shape))
    check(gpu, arrays, (*moved, x, w), True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_dtypes_and_views(queue, dtype):
    rng = np.random.default_rng(1)
    g, y, x = (rng.standard_normal(s).astype(dtype) for s in ((9, 6), (9, 6), (9, 5)))
    tg, ty, tx = (Tensor.from_host(queue, a[::-1].copy())[::-1] for a in (g, y, x))
    dw, db = linear_grad.weight_grad(tg, tx, ty)
    dz = g.astype(np.float64) * (y > 0)
    tolerance = {"bfloat16": 0.1, "float16": 2e-2, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(dw.to_host(), dz.T @ x.astype(np.float64), atol=tolerance)
    np.testing.assert_allclose(db.to_host(), dz.sum(0), atol=tolerance)


def test_nan_of_the_output_stays_nan(queue):
    g, y = np.ones((2, 3), np.float32), np.array([[np.nan, 1, -1], [1, 1, np.inf]], np.float32)
    db = linear_grad.weight_grad(*(Tensor.from_host(queue, a) for a in (g, np.ones((2, 2), np.float32), y)))[1]
    assert np.isnan(db.to_host()[0]) and np.array_equal(db.to_host()[1:], [2, 1])


def mlp_step(queue, batch):
    """A training step of 784-256-128-10 with AdamW."""
    model = Sequential(
        Linear(queue, 784, 256), ReLU(), Linear(queue, 256, 128), ReLU(), Linear(queue, 128, 10)
    )  # fmt: skip
    optimizer = AdamW(model.parameters(), lr=1e-3)
    x = Tensor.zeros(queue, (batch, 784))
    labels = Tensor.zeros(queue, (batch,), "int32")

    def step():
        with ag.Tape() as tape:
            loss = ag.cross_entropy(model(ag.tensor(x)), ag.tensor(labels))
        tape.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_a_recorded_mlp_step_takes_ten_launches(cl_queue):
    """Three products forward, the loss with its gradient, five products backward (GPUs: three launches), one update."""
    step = ag.CompiledStep(mlp_step(cl_queue, 32))
    step()
    step()
    names = [launch.name for launch in step.captures[0].launches]
    packs = names.count("gemm_pack")  # of an operand, where a CPU has many cores or little local memory
    assert len(names) - packs == (8 if profile_of(cl_queue).kind == "gpu" else 10), names


@pytest.mark.skipif(not POSED, reason="needs an OpenCL driver for the CPU")
@pytest.mark.parametrize(("units", "batch"), [(2, 32), (132, 32), (132, 512)])
def test_a_recorded_mlp_step_takes_eight_launches_on_gpus(units, batch):
    """Three products forward, the loss with its gradient, three launches of products backward, one update."""
    gpu = queue_of(POSED[0])
    with override_profile(gpu, dataclasses.replace(profile_of(gpu), compute_units=units)):
        step = ag.CompiledStep(mlp_step(gpu, batch), warmup=0)
        step()
    names = [launch.name for launch in step.captures[0].launches]
    assert names == ["gemm"] * 3 + ["reduce_loss"] + ["gemm_pair"] * 2 + ["gemm", "netcl_adamw"]
