"""Replays through command buffers, on a loader that adds the extension to drivers without it."""

import gc

import numpy as np
import pytest
from fake_command_buffer import FakeLoader

from netcl.core.errors import DeviceError
from netcl.core.live import Cell
from netcl.core.tensor import Tensor
from netcl.ops import elementwise as E
from netcl.runtime.capture import command_buffer, replay
from netcl.runtime.capture.capture import KernelCapture

EVERYWHERE = "cl_khr_byte_addressable_store"  # stands for the extension: every device has it since OpenCL 1.1


@pytest.fixture
def driver(monkeypatch):
    """Make the extension available: driver(**of FakeLoader) is the loader that replays then use."""

    def make(**how):
        loader = FakeLoader(**how)
        monkeypatch.setattr(replay, "library", lambda: loader)
        monkeypatch.setattr(replay, "_chosen", {})
        monkeypatch.setattr(command_buffer, "EXTENSION", EVERYWHERE)
        return loader

    return make


def vector(queue, n=32):
    return Tensor.from_host(queue, np.linspace(-1, 1, n, dtype=np.float32))


@pytest.mark.parametrize("simultaneous", [True, False])
def test_kernels_run_in_command_buffers_and_the_rest_between(cl_queue, driver, simultaneous):
    loader, step = driver(simultaneous=simultaneous), [2.0]
    x, cap = vector(cl_queue), KernelCapture(tier="command buffer")
    with cap:
        a = E.exp(E.neg(x))  # two kernels: one buffer
        b = E.copy(E.mul(a, Cell(lambda: step[0])))  # a cell and a copy: not in a buffer
        y = E.tanh(E.add(E.sub(b, 1.0), x))  # three kernels: another
    for i in range(3):
        step[0] = 2.0 + i
        E.assign(x, Tensor.from_host(cl_queue, np.linspace(-1, 1, 32, dtype=np.float32) * (i + 1)))
        cap.replay()
        v = np.linspace(-1, 1, 32) * (i + 1)
        np.testing.assert_allclose(y.to_host(), np.tanh(np.exp(-v) * step[0] - 1 + v), rtol=1e-5, atol=1e-6)
    first, second = loader.buffers
    assert loader.runs == [first, second] * 3
    assert [len(loader.buffers[b].commands) for b in (first, second)] == [2, 3]
    for b in loader.buffers.values():  # each waits for the one before
        assert b.simultaneous == simultaneous and b.final
        assert [before for *_, before in b.commands] == [[], *([i] for i in range(1, len(b.commands)))]
    assert "replayed by: command buffer" in cap.explain()


@pytest.mark.parametrize("simultaneous", [True, False])
def test_buffers_are_released_when_they_are_done(cl_queue, driver, simultaneous):
    loader, x = driver(simultaneous=simultaneous), vector(cl_queue)
    cap = KernelCapture(tier="command buffer")
    with cap:
        E.exp(E.neg(x))
    cap.replay(), cap.replay()
    (handle,) = loader.buffers
    del cap
    gc.collect()
    assert loader.buffers == {} and loader.released == [(handle, False)]


def test_a_single_kernel_needs_no_buffer(cl_queue, driver):
    loader, x, cap = driver(), vector(cl_queue), KernelCapture(tier="command buffer")
    with cap:
        y = E.neg(x)
    cap.replay()
    np.testing.assert_array_equal(y.to_host(), -x.to_host())
    assert loader.runs == []


def test_the_probe_takes_it_where_it_works(cl_queue, driver):
    loader = driver()
    assert "command buffer" in replay.timings(cl_queue) and "command buffer" not in replay.missing(cl_queue)
    assert len(set(loader.runs)) == 1 and len(loader.runs) == replay._ROUNDS + 1


@pytest.mark.parametrize(
    ("function", "what"),
    [("create", "creation"), ("command", "netcl_neg"), ("finalize", "finalizing"), ("enqueue", "sending")],
)
def test_a_refusal_says_where(cl_queue, driver, function, what):
    driver(fails={function: -5})
    x, cap = vector(cl_queue), KernelCapture(tier="command buffer")
    with cap:
        E.exp(E.neg(x))
    with pytest.raises(DeviceError, match=f"command buffer: {what} failed with OpenCL error -5"):
        cap.replay()
    assert "not here: command buffer (did not do what it should when it was probed)" in cap.explain()


@pytest.mark.parametrize("missing", command_buffer.FUNCTIONS)
def test_a_driver_without_one_of_the_functions_has_no_command_buffers(cl_queue, driver, missing):
    loader = driver(without=(missing,))
    assert "command buffer" not in replay.available(cl_queue)
    with pytest.raises(DeviceError, match="a driver without it"):
        command_buffer.CommandBuffer(cl_queue, loader, [])
