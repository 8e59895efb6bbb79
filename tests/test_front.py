"""The front door: what `import netcl as nc` gives, without a queue in sight, and what it says when used wrongly."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import netcl as nc
from netcl.core.errors import CheckpointError, DeviceError, DTypeError, NetclError, ShapeError
from netcl.core.tensor import Tensor
from tools import generate_stubs

QUEUE_FIRST = {
    "zeros": (lambda q: nc.zeros(q, (2, 3)), lambda: nc.zeros(2, 3)),
    "ones": (lambda q: nc.ones(q, (2, 3)), lambda: nc.ones((2, 3))),
    "full": (lambda q: nc.full(q, (2, 3), 7), lambda: nc.full((2, 3), 7)),
    "eye": (lambda q: nc.eye(q, 3), lambda: nc.eye(3)),
    "arange": (lambda q: nc.arange(q, 1, 7, 2), lambda: nc.arange(1, 7, 2)),
    "linspace": (lambda q: nc.linspace(q, 0, 1, 5), lambda: nc.linspace(0, 1, 5)),
}


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("name", QUEUE_FIRST)
def test_factories_take_a_queue_first_by_keyword_or_not_at_all(queue, name):
    with_queue, without = QUEUE_FIRST[name]
    first = with_queue(queue)
    with nc.device(queue):
        second = without()
    assert first.queue is queue and second.queue is queue and first.dtype == second.dtype
    np.testing.assert_array_equal(first.to_host(), second.to_host())


def test_factories_follow_numpy(queue):
    with nc.device(queue):
        np.testing.assert_array_equal(nc.full((2,), True).to_host(), np.full(2, True))
        np.testing.assert_array_equal(nc.full((2,), 3).to_host(), np.full(2, 3))
        assert nc.full((2,), 1.0).dtype == np.float32 and nc.zeros(()).shape == () and nc.zeros(0, 3).shape == (0, 3)
        np.testing.assert_array_equal(nc.eye(2, 3, 1).to_host(), np.eye(2, 3, 1))
        assert nc.arange(3).dtype == np.int64 and nc.arange(0.0, 1.0, 0.25).dtype == np.float32
        x = nc.arange(6, dtype="int32").reshape(2, 3)
        assert all(y.dtype == np.int32 and y.shape == (2, 3) for y in (nc.zeros_like(x), nc.ones_like(x)))
        assert nc.full_like(x, 5).tolist() == [[5] * 3] * 2 and nc.empty_like(x, "float32").dtype == np.float32


def test_draws_repeat_with_the_seed(queue):
    with nc.device(queue):
        nc.seed(3)
        first = [nc.rand(4).to_host(), nc.randn(2, 2).to_host()]
        nc.seed(3)
        again = [nc.rand_like(nc.zeros(4)).to_host(), nc.randn_like(nc.zeros(2, 2)).to_host()]
    for x, y in zip(first, again):
        np.testing.assert_array_equal(x, y)


def test_tensor_keeps_dtypes_of_arrays_and_copies(queue):
    with nc.device(queue):
        assert nc.tensor([1, 2]).dtype == np.int64 and nc.tensor([1.5, 2]).dtype == np.float32
        assert nc.tensor(np.float64([1])).dtype in (np.float64, np.float32) and nc.tensor(3).shape == ()
        array = np.arange(3, dtype=np.int32)
        x = nc.tensor(array)
        array[:] = 0
        assert x.tolist() == [0, 1, 2] and nc.tensor(x) is not x and nc.tensor(x, "float32").dtype == np.float32
        assert isinstance(nc.tensor(nc.ag.tensor(x)), Tensor)


def test_layers_work_without_a_queue(queue):
    with nc.device(queue):
        layer = nc.nn.Linear(4, 2)
        assert layer.weight.value.queue is queue and layer(nc.randn(3, 4)).shape == (3, 2)
        assert (
            nc.nn.Linear(4, 2, False).bias is None and nc.nn.Conv2d(3, 8, 3, padding=1)(nc.randn(1, 3, 4, 4)).ndim == 4
        )
    assert nc.nn.Linear(queue, 4, 2).weight.value.queue is queue
    assert nc.nn.LayerNorm(4, device="cpu").weight.value.backend == "cpu"


def test_modules_of_users_with_a_queue_work_without_it_too(queue):
    class Net(nc.nn.Module):
        def __init__(self, queue, width, depth=1):
            self.inner = nc.nn.Linear(queue, width, width)
            self.depth = depth

        def forward(self, x):
            return self.inner(x)

    with nc.device(queue):
        assert Net(4).inner.weight.value.queue is queue and Net(4, depth=3).depth == 3
    assert Net(queue, 4).inner.weight.value.queue is queue and Net(width=4, queue=queue).depth == 1


def test_saves_a_model_or_named_tensors(queue, tmp_path):
    with nc.device(queue):
        model = nc.nn.Sequential(nc.nn.Linear(4, 3), nc.nn.ReLU())
        nc.save(model, tmp_path / "model.netcl")
        nc.save(model.state_dict(), tmp_path / "weights.safetensors")
        again, state = nc.load(tmp_path / "model.netcl"), nc.load(tmp_path / "weights.safetensors")
        x = nc.randn(2, 4)
        np.testing.assert_array_equal(model(x).value.to_host(), again(x).value.to_host())
        assert set(state) == {"0.weight", "0.bias"} and not model.load_state_dict(state).missing_keys
        nc.io.save_checkpoint(model, tmp_path / "run")
        with pytest.raises(CheckpointError, match="load_checkpoint"):
            nc.load(tmp_path / "run")


WRONG = {
    "no shape": (lambda: nc.zeros(), ShapeError, "zeros: expected a shape such as"),
    "half a length": (lambda: nc.zeros(2.5), ShapeError, "expected a shape of integers, got 2.5"),
    "negative length": (lambda: nc.ones(-1), ShapeError, "at least 0"),
    "ragged lists": (
        lambda: nc.tensor([[1, 2], [3]]),
        DTypeError,
        r"or an array, got \[\[1, 2\], \[3\]\]",
    ),
    "text": (lambda: nc.tensor("abc"), DTypeError, "got 'abc'"),
    "nothing": (lambda: nc.tensor(None), DTypeError, "got None"),
    "queue and device": (lambda: nc.zeros(2, queue="cpu", device="cpu"), TypeError, "got both"),
    "two queues": (lambda: nc.zeros("cpu", 2, queue="cpu"), TypeError, "one as first argument and one by keyword"),
    "unknown device": (lambda: nc.zeros("tpu", 2), DeviceError, "netcl.zeros: expected .auto"),
    "no value": (lambda: nc.full(2), TypeError, "full.shape, value."),
    "too many numbers": (lambda: nc.eye(1, 2, 3, 4), TypeError, "expected eye.n, m, k., got 4"),
    "no stop": (lambda: nc.linspace(1), TypeError, "got no stop"),
    "three sizes for a layer": (lambda: nc.nn.Linear(784, 256, 10), TypeError, "Linear: expected bias True or False"),
    "one size for a layer": (lambda: nc.nn.Linear(784), TypeError, "out_features"),
    "saving a number": (lambda: nc.save(3, "x"), TypeError, "expected a Module or a dict of tensors, got int"),
    "saving a run": (lambda: nc.save({"model": {}}, "x"), TypeError, "save_checkpoint"),
    "no file": (lambda: nc.load("nowhere"), CheckpointError, "found none"),
    "no such name": (lambda: nc.nothing, AttributeError, "no attribute 'nothing'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_says_what_is_expected(case):
    use, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        use()


def test_every_name_of_the_front_door_is_there():
    assert {name for name in nc.__all__ if not hasattr(nc, name)} == set()
    assert (
        set(nc.__all__) <= set(dir(nc)) and nc.ag is nc.autograd and nc.device.manager.default("cpu").backend == "cpu"
    )


def test_packages_load_when_they_are_used():
    loaded = run("import netcl, sys; print([m for m in sys.modules if m in ('netcl.nn', 'netcl.data', 'netcl.optim')])")
    assert loaded == "[]"
    assert run("import netcl as nc; print(nc.nn.ReLU(), nc.optim.SGD.__name__, nc.data.DataLoader.__name__)") == (
        "ReLU() SGD DataLoader"
    )


def test_use_deterministic_refuses_ops_that_add_in_no_fixed_order():
    from netcl.core.deterministic import is_deterministic, refuse_random_order

    refuse_random_order("mine")
    nc.use_deterministic()
    try:
        assert is_deterministic()
        with pytest.raises(NetclError, match="mine: expected an op whose results repeat"):
            refuse_random_order("mine")
    finally:
        nc.use_deterministic(False)
    assert not is_deterministic()


def test_stub_of_layers_is_up_to_date():
    assert Path(generate_stubs.PATH).read_text(encoding="utf-8") == generate_stubs.text(), (
        "netcl/nn/__init__.pyi is out of date: run python tools/generate_stubs.py"
    )
