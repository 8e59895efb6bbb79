"""Timers on the host and on the device."""

import time

import numpy as np
import pytest

from netcl.core import process
from netcl.core.backend import cpu, opencl
from netcl.core.errors import NetclError
from netcl.core.tensor import Tensor
from netcl.ops import elementwise as E
from netcl.profiling import EventTimer, Timer


def test_a_timer_counts_blocks_calls_and_nests(queue, monkeypatch):
    now = iter([1.0, 3.0, 3.5, 11.0])
    with monkeypatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: next(now))
        timer = Timer("work", queue)
        with timer, timer:
            pass
    assert timer.count == 2 and timer.times == [0.5, 10.0] and timer.seconds == 10.0
    assert timer.total == 10.5 and timer.mean == 5.25 and timer.ms == 10e3
    assert str(timer) == "work: 2 x 5250.000 ms (best 500.000 ms)"

    @timer
    def work():
        return E.neg(Tensor.ones(queue, (3,)))

    assert work().to_host().sum() == -3 and timer.count == 3
    timer.start()
    assert timer.stop() == timer.seconds == timer.elapsed
    assert Timer().seconds == Timer().mean == 0.0
    with pytest.raises(NetclError, match="expected start"):
        Timer().stop()


def test_device_time_of_a_block(queue):
    x = Tensor.ones(queue, (1 << 18,))
    before = len(opencl.hooks), len(cpu.hooks)
    with EventTimer(queue) as timer:
        y = E.exp(E.mul(x, 0.5))
    assert timer.commands == 2 and 0 < timer.busy <= timer.elapsed and timer.ms == timer.elapsed * 1e3
    assert (len(opencl.hooks), len(cpu.hooks)) == before and process.gate is None
    np.testing.assert_allclose(y.to_host()[:2], np.exp(0.5), rtol=1e-6)
    calls = []
    assert timer.measure(lambda: calls.append(E.neg(x)), repeat=2) > 0 and len(calls) == 3
    with timer:
        pass
    assert timer.elapsed == timer.busy == timer.commands == 0
    with pytest.raises(NetclError, match="expected start"):
        timer.stop()


def test_an_event_of_a_profiled_queue(cl_queue):
    import pyopencl as cl

    queue = cl.CommandQueue(cl_queue.context, properties=cl.command_queue_properties.PROFILING_ENABLE)
    buffer = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 1 << 20)
    assert EventTimer.of(cl.enqueue_fill_buffer(queue, buffer, np.float32(1), 0, 1 << 20)) > 0
