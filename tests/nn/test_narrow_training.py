"""Training in float16 and bfloat16 storage: float32 masters, every kind of layer, recorded steps, checkpoints."""

import copy

import numpy as np
import pytest

import netcl
import netcl.autograd as ag
from netcl import nn
from netcl.autograd.jit.step import CompiledStep
from netcl.core.errors import GradientError
from netcl.core.tensor import Tensor
from netcl.io import load_checkpoint, save_checkpoint
from netcl.optim import AdamW

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, 64)
SPOTS = RNG.standard_normal((64, 1, 8, 8)) * 0.3
SPOTS[np.arange(64), 0, LABELS * 2, LABELS * 2] += 3  # where the bright pixel lies says the class
NARROW = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


def mlp(queue):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(queue, 64, 32), nn.ReLU(), nn.LayerNorm(queue, 32), nn.Linear(queue, 32, 16),
        nn.GELU(), nn.RMSNorm(queue, 16), nn.Linear(queue, 16, 3),
    )  # fmt: skip


def images(queue):
    return nn.Sequential(
        nn.Conv2d(queue, 1, 8, 3, padding=1), nn.BatchNorm2d(queue, 8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(queue, 8, 8, 3, padding=1), nn.GroupNorm(queue, 2, 8), nn.SiLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(queue, 32, 3),
    )  # fmt: skip


def training(model, dtype, lr=0.01):
    """The step (x, labels) -> loss of a model whose parameters are of `dtype`, and its optimizer."""
    model.to(dtype)
    optimizer = AdamW(model.parameters(), lr=lr)

    def step(x, labels):
        with ag.Tape() as tape:
            loss = ag.cross_entropy(model(ag.tensor(x)), ag.tensor(labels))
        tape.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, optimizer


def data(queue, dtype, part=slice(None)):
    arrays = SPOTS[part].astype(dtype), LABELS[part].astype(np.int32)
    return tuple(Tensor.from_host(queue, a) for a in arrays)


@pytest.fixture(autouse=True)
def _seeded():
    netcl.seed(7)


@NARROW
@pytest.mark.parametrize("make", [mlp, images])
def test_models_learn_as_in_float32(queue, make, dtype):
    first = make(queue)
    losses = {}
    for kind in ("float32", dtype):
        model = copy.deepcopy(first)
        netcl.seed(8)  # the same elements are dropped
        step, optimizer = training(model, kind)
        x, labels = data(queue, kind)
        losses[kind] = [step(x, labels).item() for _ in range(40)]
        assert {p.value.dtype for p in model.parameters()} == {np.dtype(kind)}
        assert ("master" in optimizer.state[next(model.parameters())]) == (kind == dtype)
        model.eval()
        y = model(ag.tensor(x)).to_host()
        assert y.dtype == kind
        assert (y.astype("f4").argmax(1) == LABELS).mean() > 0.95
    assert losses[dtype][0] == pytest.approx(losses["float32"][0], rel=0.02)
    assert losses[dtype][-1] < max(0.1, 1.5 * losses["float32"][-1])


@NARROW
def test_a_recorded_step_equals_the_eager_one(queue, dtype):
    first = mlp(queue)
    models = [copy.deepcopy(first) for _ in range(2)]
    (eager, _), (step, _) = (training(model, dtype) for model in models)
    compiled = CompiledStep(step)
    for i in range(6):
        pair = data(queue, dtype, slice(8 * i, 8 * i + 8))
        assert eager(*pair).item() == compiled(*pair).item()
    for a, b in zip(*(model.parameters() for model in models), strict=True):
        np.testing.assert_array_equal(a.value.to_host(), b.value.to_host())
    assert len(compiled.captures) == 1


@NARROW
def test_a_checkpoint_keeps_parameters_and_masters(queue, dtype, tmp_path):
    model = mlp(queue)
    step, optimizer = training(model, dtype)
    batch = data(queue, dtype)
    for _ in range(3):
        step(*batch)
    save_checkpoint(model, tmp_path / "run.netcl", optimizer=optimizer)
    straight = [step(*batch).item() for _ in range(3)]
    other = mlp(queue)
    again, fresh = training(other, dtype)
    load_checkpoint(other, tmp_path / "run.netcl", optimizer=fresh)
    assert [again(*batch).item() for _ in range(3)] == straight


def test_anomalies_are_found_in_narrow_tensors(queue):
    x = ag.tensor(Tensor.from_host(queue, np.array([1, 0, 2]).astype("bfloat16")), requires_grad=True)
    with pytest.raises(GradientError, match="log: expected finite values"), ag.detect_anomaly(), ag.Tape():
        ag.log(x)
