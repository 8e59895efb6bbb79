"""A queue, a handle, a device's name and None are taken wherever a queue is asked for, with one clear refusal."""

import numpy as np
import pyopencl as cl
import pytest
from fake_opencl import CPU, FakeOpenCL, FakePlatform
from fake_opencl import device as fake_device

import netcl.autograd as ag
from netcl import nn, ops
from netcl.core.device import DeviceManager, device, discovery, manager, queue_of
from netcl.core.errors import DeviceError, DTypeError
from netcl.core.tensor import Tensor
from netcl.data import DataLoader, TensorDataset
from netcl.io import load_model, save_model
from netcl.nn import init
from netcl.ops.create import random
from netcl.profiling import KernelProfiler, MemoryTimeline, ProfileContext, Timer

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)
USES = {
    "Tensor.empty": lambda q: Tensor.empty(q, (2,)).queue,
    "Tensor.zeros": lambda q: Tensor.zeros(q, (2,)).queue,
    "Tensor.ones": lambda q: Tensor.ones(q, (2,)).queue,
    "Tensor.full": lambda q: Tensor.full(q, (2,), 3).queue,
    "Tensor.from_shape": lambda q: Tensor.from_shape(q, (2,)).queue,
    "Tensor.from_host": lambda q: Tensor.from_host(q, ARRAY).queue,
    "Tensor.to": lambda q: Tensor.from_host("cpu", ARRAY).to(q).queue,
    "arange": lambda q: ops.arange(q, 3).queue,
    "linspace": lambda q: ops.linspace(q, 0, 1, 3).queue,
    "eye": lambda q: ops.eye(q, 3).queue,
    "uniform": lambda q: random.uniform(q, (2,)).queue,
    "normal": lambda q: random.normal(q, (2,)).queue,
    "bernoulli": lambda q: random.bernoulli(q, (2,)).queue,
    "randint": lambda q: random.randint(q, (2,), 0, 5).queue,
    "permutation": lambda q: random.permutation(q, 4).queue,
    "init": lambda q: init.kaiming_uniform(q, (2, 3)).queue,
    "trunc_normal": lambda q: init.trunc_normal(q, (2, 3)).queue,
    "orthogonal": lambda q: init.orthogonal(q, (2, 3)).queue,
    "Linear": lambda q: nn.Linear(q, 3, 2).weight.queue,
    "Conv2d": lambda q: nn.Conv2d(q, 1, 2, 3).weight.queue,
    "Embedding": lambda q: nn.Embedding(q, 3, 2).weight.queue,
    "LayerNorm": lambda q: nn.LayerNorm(q, 3).weight.queue,
    "BatchNorm2d": lambda q: nn.BatchNorm2d(q, 3).weight.queue,
    "Module.to": lambda q: nn.Linear("cpu", 3, 2).to(q).weight.queue,
    "ag.to": lambda q: ag.to(ag.tensor(Tensor.from_host("cpu", ARRAY)), q).queue,
    "DataLoader": lambda q: next(iter(DataLoader(TensorDataset(ARRAY), 2, device_queue=q)))[0].queue,
    "CompiledStep": lambda q: ag.CompiledStep(lambda x: x * 2.0, queue=q)(ARRAY).queue,
    "KernelProfiler": lambda q: KernelProfiler(q).queue,
    "Timer": lambda q: Timer("name", q).queue,
    "MemoryTimeline": lambda q: MemoryTimeline(q).queue,
}
LAYERS = ("Linear", "Conv2d", "Embedding", "LayerNorm", "BatchNorm2d")  # take what is no place for their first size
OPTIONAL = ("DataLoader", "CompiledStep", "KernelProfiler", "Timer", "MemoryTimeline")  # None is something else there


def forms(queue):
    """Everything that means `queue`."""
    handle = next(h for h in (manager.default("cpu"), *manager.handles) if h.queue is queue)
    if handle.backend == "cpu":
        return [queue, handle, "cpu"]
    index = manager.handles.index(handle)
    return [queue, handle, f"{handle.profile.platform}:{handle.device_name}", str(index), handle.device]


@pytest.mark.parametrize("name", USES)
def test_every_form_of_a_device_is_taken(queue, name):
    for given in forms(queue):
        assert USES[name](given) is queue, given


@pytest.mark.parametrize("name", [n for n in USES if n not in OPTIONAL])
def test_none_is_the_default_device(queue, name):
    handle = next(h for h in (manager.default("cpu"), *manager.handles) if h.queue is queue)
    with device(handle):
        assert USES[name](None) is queue
        assert USES[name]("auto") is queue


@pytest.mark.parametrize(
    ("name", "given"),
    [
        (name, given)
        for name in USES
        for given in ("gpu:97", "nowhere:at all", *(() if name in LAYERS else (97, 1.5, [1])))
    ],
)
def test_what_is_no_device_is_refused_in_one_sentence(name, given):
    with pytest.raises(DeviceError, match="expected") as caught:
        USES[name](given)
    assert "got" in str(caught.value) or "found" in str(caught.value)
    assert ": " in str(caught.value)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("given", [1.5, 2j])
def test_a_layer_refuses_what_is_neither_a_device_nor_a_size(name, given):
    with pytest.raises((TypeError, ValueError)):
        USES[name](given)


def test_a_queue_that_netcl_has_not_met(cl_queue):
    queue = cl.CommandQueue(cl_queue.context, cl_queue.device)
    assert queue_of("here", queue) is queue and Tensor.ones(queue, (2,)).queue is queue


def test_a_tensor_means_its_queue(queue):
    x = Tensor.ones(queue, (2,))
    assert Tensor.zeros(x, (3,)).queue is queue and x.to(ag.tensor(x)).queue is queue


def test_a_gpu_where_there_is_none(monkeypatch):
    """The message says what is missing and what there is, not the forms that a request may have."""
    found = DeviceManager(FakeOpenCL(FakePlatform("P", fake_device("one processor", CPU))))
    monkeypatch.setattr(discovery, "manager", found)
    with pytest.raises(DeviceError, match=r"device: expected an OpenCL GPU for 'gpu', found none; choices:") as caught:
        found.default("gpu")
    assert '0: "P:one processor" (cpu)' in str(caught.value) and "driver" in str(caught.value)
    with pytest.raises(DeviceError, match=r"Tensor.empty: expected 3 OpenCL CPU devices for 'cl:cpu:2', found 1"):
        Tensor.empty("cl:cpu:2", (2,))


def test_to_tells_devices_from_dtypes(queue):
    x = Tensor.ones(queue, (2,))
    assert x.to("float16").dtype == np.float16 and x.to(np.int32).dtype == np.int32 and x.to(float).dtype == np.float64
    with pytest.raises(DTypeError, match="to: expected a dtype or a device, got 'flaot32'"):
        x.to("flaot32")
    with pytest.raises(DTypeError, match=r"Linear\.to: expected a dtype or a device, got 'gpuu'"):
        nn.Linear(queue, 2, 2).to("gpuu")
    with pytest.raises(DTypeError, match="expected a queue or a floating dtype"):
        nn.Linear(queue, 2, 2).to("int32")


def test_the_gradient_of_another_dtype_comes_back_in_the_operand_s(queue):
    x = ag.Parameter(Tensor.ones(queue, (2,)))
    with ag.Tape() as tape:
        y = ag.sum(ag.to(x, "float16"))
    tape.backward(y)
    assert x.grad.dtype == np.float32 and x.grad.to_host().tolist() == [1, 1]


def test_models_made_by_name_are_saved_and_loaded_by_name(tmp_path, queue):
    name = forms(queue)[-1]
    model = nn.Sequential(nn.Linear(name, 3, 4), nn.ReLU(), nn.Linear(name, 4, 2))
    save_model(model, tmp_path / "m.netcl")
    for given in forms(queue):
        loaded = load_model(tmp_path / "m.netcl", queue=given)
        assert loaded[0].weight.queue is queue
        assert np.array_equal(loaded[0].weight.to_host(), model[0].weight.to_host())


def test_profiles_take_names():
    assert ProfileContext("cpu").memory.queue is manager.default("cpu").queue
