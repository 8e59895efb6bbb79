"""Arguments that change between replays: set once for each change, whatever way the commands go."""

import sys

import numpy as np
import pytest

import netcl.autograd as ag
from netcl import nn, optim
from netcl.core import live
from netcl.core.backend import native, opencl
from netcl.core.errors import DeviceError
from netcl.core.tensor import Tensor
from netcl.runtime.cache import get_kernel
from netcl.runtime.capture import replay
from netcl.runtime.capture.capture import KernelCapture

SOURCE = """
__kernel void number_fill(__global float* y, float value, long n) {
  if (get_global_id(0) < n) y[get_global_id(0)] = value;
}
__kernel void number_add(__global const float* x, __global float* y, float value) {
  y[get_global_id(0)] = x[get_global_id(0)] + value;
}
"""


@pytest.fixture(params=["c", "ctypes", "python"])
def tier(request, monkeypatch):
    """A way to replay, without the loader for Python's."""
    if request.param == "c":
        library = request.getfixturevalue("c_library")
        if library is None:
            return "ctypes"
        monkeypatch.setattr(native, "extension", lambda: library)
    if request.param == "python":
        monkeypatch.setattr(native, "extension", lambda: None)
        monkeypatch.setattr(native, "library", lambda: None)
        monkeypatch.setattr(replay, "library", lambda: None)
    return request.param


def filled(queue, tier, value, count):
    """A recording that fills eight elements from two cells, and what it fills."""
    kernel = get_kernel(queue, SOURCE, "number_fill")
    y = Tensor.zeros(queue, (8,))
    cap = KernelCapture(tier)
    with cap:
        opencl.launch(kernel, queue, (8,), None, y.buffer, value, count)
    return cap, y


def test_numbers_of_any_kind_reach_the_kernel(cl_queue, tier):
    value, count = live.Cell(1.0), live.Cell(8)
    cap, y = filled(cl_queue, tier, value, count)
    for new, first in ((2.5, 8), (np.float64(3.5), np.int64(2)), (4, 1.0), (1e300, 4), (-1e300, 8), (0.0, 3)):
        y.fill_(9.0)
        value.value, count.value = new, first
        with np.errstate(over="ignore"):
            cap.replay()
            expected = np.float32(new)
        assert y.to_host().tolist() == [expected] * int(first) + [9.0] * (8 - int(first))


def test_a_profiler_between_replays_changes_nothing(cl_queue, tier):
    value, seen = live.Cell(1.0), []
    cap, y = filled(cl_queue, tier, value, live.Cell(8))
    for new in (1.0, 2.0, 1.0, 1.0, 3.0):
        value.value = new
        if new == 2.0:
            opencl.hooks.append(lambda *call: seen.append(call[0].name))
        cap.replay()
        opencl.hooks[:] = []
        assert y.to_host().tolist() == [new] * 8
    assert seen == ["number_fill"]


def test_a_slot_keeps_its_memory_after_a_replay_with_other_memory(cl_queue, tier):
    kernel = get_kernel(cl_queue, SOURCE, "number_add")
    x, y, other, third = (Tensor.full(cl_queue, (8,), v) for v in (1.0, 0.0, 5.0, 7.0))
    cap = KernelCapture(tier)
    with cap:
        opencl.launch(kernel, cl_queue, (8,), None, x.buffer, y.buffer, 0.5)
    slot = cap.slot_of(x.buffer)
    cap.replay()
    assert y.to_host()[0] == 1.5
    slot.bind(other.buffer)
    cap.replay()
    assert y.to_host()[0] == 5.5
    cap.replay_with_new_buffers({x.buffer.int_ptr: third})
    assert y.to_host()[0] == 7.5
    cap.replay()
    assert y.to_host()[0] == 5.5


@pytest.mark.parametrize("tier", ["c", "ctypes"], indirect=True)
def test_an_argument_that_the_driver_refuses_is_named(cl_queue, tier):
    cap, _ = filled(cl_queue, tier, live.Cell(1.0), live.Cell(8))
    cap._arguments.records[0].index = 77
    cap._arguments._uses[0] = cap._arguments._uses[0]._replace(position=77)
    with pytest.raises(DeviceError, match=r"argument 77 of number_fill .*OpenCL error -49"):
        cap.replay()


def test_the_host_work_of_a_step_does_not_grow_with_the_model(cl_queue):
    counts = []
    for layers in (1, 6):
        model = nn.Sequential(*[nn.Linear(cl_queue, 4, 4) for _ in range(layers)])
        optimizer = optim.AdamW(model.parameters())

        @ag.CompiledStep
        def step(x, model=model, optimizer=optimizer):
            with ag.Tape() as tape:
                loss = ag.sum(model(ag.tensor(x)))
            tape.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        for _ in range(4):
            step(Tensor.ones(cl_queue, (2, 4)))
        counts.append(calls(step, Tensor.ones(cl_queue, (2, 4))))
    assert counts[0] == counts[1] <= 30


def calls(run, *args):
    """How many Python functions `run` and what it calls are."""
    found = []
    sys.setprofile(lambda frame, event, arg: found.append(event == "call"))
    try:
        run(*args)
    finally:
        sys.setprofile(None)
    return sum(found)
