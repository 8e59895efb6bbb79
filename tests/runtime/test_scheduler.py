"""The scheduler: order, events, errors that name their plan, plans side by side."""

import threading

import numpy as np
import pytest

from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor
from netcl.ops import elementwise as E
from netcl.runtime.scheduler import ExecutionPlan, Scheduler


class Event:
    def __init__(self):
        self.waited = 0

    def wait(self):
        self.waited += 1


@pytest.mark.parametrize("async_mode", [False, True])
def test_events_come_back_in_order_and_are_waited_for(async_mode):
    sched, a, b, c, d = Scheduler(async_mode), *(Event() for _ in range(4))
    plan = sched.submit(lambda: a)
    assert isinstance(plan, ExecutionPlan) and plan.ops and plan.description == ""
    sched.submit(b)
    sched.submit(lambda: None)
    sched.submit(lambda: [c, d], plan)
    assert sched.run(wait=False) == [a, c, d, b]
    assert sched.plans == [] and a.waited == 0
    sched.submit(lambda: a)
    assert sched.run() == [a] and a.waited == 1
    assert sched.run() == []


def test_real_events(cl_queue):
    import pyopencl as cl

    buffer = cl.Buffer(cl_queue.context, cl.mem_flags.READ_WRITE, 16)
    sched = Scheduler()
    sched.submit(lambda: cl.enqueue_fill_buffer(cl_queue, buffer, np.float32(2), 0, 16))
    (event,) = sched.run()
    assert event.command_execution_status == cl.command_execution_status.COMPLETE


def test_plans_run_one_after_the_other_and_each_in_order():
    seen, sched = [], Scheduler()
    plan = ExecutionPlan([lambda: seen.append("a")], "first")
    sched.submit(lambda: seen.append("b"), plan)
    sched.submit(lambda: seen.append("c"))
    sched.submit(lambda: seen.append("d"), plan)
    sched.run()
    assert seen == ["a", "b", "d", "c"]
    assert ExecutionPlan().ops is not ExecutionPlan().ops


@pytest.mark.parametrize("async_mode", [False, True])
def test_errors_name_the_plan(async_mode):
    sched = Scheduler(async_mode)
    sched.submit(lambda: None)
    plan = ExecutionPlan(description="compute")
    sched.submit(lambda: None, plan)
    sched.submit(lambda: 1 / 0, plan)
    with pytest.raises(ZeroDivisionError) as caught:
        sched.run()
    said = " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "step 2 of 2 of plan 'compute'" in said
    assert sched.plans == []


def test_what_is_no_operation_is_refused():
    with pytest.raises(TypeError, match="callable or an event"):
        Scheduler().submit(3, ExecutionPlan(description="odd"))


def test_async_plans_overlap():
    barrier = threading.Barrier(2, timeout=10)  # passes only when both plans are inside at once
    sched = Scheduler(async_mode=True)
    for _ in range(2):
        sched.submit(lambda: barrier.wait() and None)
    sched.run()  # a barrier that waits in vain raises
    assert not barrier.broken
    assert barrier.n_waiting == 0


def test_async_plans_on_their_own_queues(queue):
    import pyopencl as cl

    queues = [CPUQueue() if isinstance(queue, CPUQueue) else cl.CommandQueue(queue.context) for _ in range(3)]
    results = [None] * 3

    def work(i):
        x = Tensor.full(queues[i], (1000,), i)
        for _ in range(50):
            x = E.add(x, 1.0)
        results[i] = x

    sched = Scheduler(async_mode=True)
    for i in range(3):
        sched.submit(lambda i=i: work(i), ExecutionPlan(description=f"queue {i}"))
    sched.run()
    for i, result in enumerate(results):
        assert (result.to_host() == 50 + i).all()
