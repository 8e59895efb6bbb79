"""A sequencer: callables and events, collected into plans and run in the order they were submitted.

    sched = Scheduler()
    sched.submit(lambda: copy_to_device(x), plan=ExecutionPlan(description="h2d copy"))
    sched.submit(lambda: run_kernel(x), plan=ExecutionPlan(description="compute"))
    events = sched.run(wait=True)

What a callable returns, unless it is None, counts as an event (or a list of them): it is waited for and returned.
With `async_mode=True` every plan runs in a thread of its own, so that plans which use different queues overlap; the
steps inside a plan stay in order.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from netcl.core.errors import add_note


@dataclass
class ExecutionPlan:
    """Callables and events in order, with a label for messages."""

    ops: list[Any] = field(default_factory=list)
    description: str = ""


class Scheduler:
    """Runs plans in order of submission, or side by side with `async_mode=True`."""

    def __init__(self, async_mode: bool = False) -> None:
        self.async_mode = async_mode
        self.plans: list[ExecutionPlan] = []

    def submit(self, op: Callable[[], Any] | Any, plan: ExecutionPlan | None = None) -> ExecutionPlan:
        """Add a callable or an event to `plan`, or to a plan of its own; returns the plan."""
        plan = ExecutionPlan() if plan is None else plan
        if not callable(op) and not hasattr(op, "wait"):
            raise TypeError(
                f"submit: expected a callable or an event with wait(), got {type(op).__name__} for {_title(plan)}."
            )
        plan.ops.append(op)
        if not any(p is plan for p in self.plans):
            self.plans.append(plan)
        return plan

    def run(self, wait: bool = True) -> list[Any]:
        """Run all plans and forget them; the events in order of submission.

        Args: wait: wait for every event before returning.
        Raises: what a step raised, with the plan and the step named in a note on the exception. Plans after it are not
            run (in async mode all run, and the first error in order of submission is raised).
        """
        plans, self.plans = self.plans, []
        if self.async_mode and len(plans) > 1:
            with ThreadPoolExecutor(len(plans), "netcl-plan") as threads:
                futures = [threads.submit(_run, plan) for plan in plans]
            events = [event for future in futures for event in future.result()]
        else:
            events = [event for plan in plans for event in _run(plan)]
        if wait:
            for event in events:
                if hasattr(event, "wait"):
                    event.wait()
        return events


class Stream:
    """Callables and events by priority: the largest first, equal ones in order of submission."""

    def __init__(self) -> None:
        self._ops: list[tuple[float, Any]] = []
        self._before: list[Any] = []

    def submit(self, op: Callable[[], Any] | Any, priority: float = 0) -> None:
        """Add a callable or an event."""
        self._ops.append((priority, op))

    def wait_for(self, other: Any) -> None:
        """Have the next `run` wait for an event first, or run and wait for another stream."""
        self._before.append(other)

    def run(self, wait: bool = True) -> list[Any]:
        """Run everything and forget it; the events, in the order of running. Raises what an op raised."""
        before, self._before = self._before, []
        for other in before:
            other.run() if isinstance(other, Stream) else other.wait()
        ops, self._ops = sorted(self._ops, key=lambda entry: -entry[0]), []
        scheduler, plan = Scheduler(), ExecutionPlan(description="stream")
        for _, op in ops:
            scheduler.submit(op, plan)
        return scheduler.run(wait)


def _title(plan: ExecutionPlan) -> str:
    return f"plan {plan.description!r}" if plan.description else "a plan without description"


def _run(plan: ExecutionPlan) -> list[Any]:
    events: list[Any] = []
    for i, op in enumerate(plan.ops):
        try:
            result = op() if callable(op) else op
        except Exception as error:
            add_note(error, f"in step {i + 1} of {len(plan.ops)} of {_title(plan)}")
            raise
        if isinstance(result, (list, tuple)):
            events += result
        elif result is not None:
            events.append(result)
    return events
