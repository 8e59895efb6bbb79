"""Timers: `Timer` on the host's clock, `EventTimer` on the device's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from netcl.core.backend import opencl
from netcl.core.device import queue_of
from netcl.core.errors import NetclError
from netcl.core.queue import CPUQueue
from netcl.profiling.kernels import KernelProfiler


class Timer(contextlib.ContextDecorator):
    """Wall time of a block, a function, or `start` to `stop`; counts over many uses. All times in seconds.

    >>> with Timer("epoch", queue) as t:
    ...     train()
    >>> t.seconds

    Args: queue: waited for at both ends, so that work which was only sent counts too.
    """

    def __init__(self, name: str = "", queue: Any = None) -> None:
        self.name, self.queue = name, None if queue is None else queue_of("Timer", queue)
        self.times: list[float] = []
        self._began: list[float] = []

    def start(self) -> Timer:
        """Begin to measure."""
        self._finish()
        self._began.append(time.perf_counter())
        return self

    def stop(self) -> float:
        """End, and return the seconds since `start`."""
        if not self._began:
            raise NetclError(f"Timer {self.name!r}: expected start() before stop().")
        self._finish()
        self.times.append(time.perf_counter() - self._began.pop())
        return self.times[-1]

    def _finish(self) -> None:
        if self.queue is not None and not isinstance(self.queue, CPUQueue):
            opencl.finish(self.queue)

    def __enter__(self) -> Timer:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def seconds(self) -> float:
        """The last time; while running, the time so far."""
        if self._began:
            return time.perf_counter() - self._began[-1]
        return self.times[-1] if self.times else 0.0

    elapsed = seconds

    @property
    def ms(self) -> float:
        """The last time in milliseconds."""
        return self.seconds * 1e3

    @property
    def count(self) -> int:
        """How often it was stopped."""
        return len(self.times)

    @property
    def total(self) -> float:
        """All times added up."""
        return sum(self.times)

    @property
    def mean(self) -> float:
        """The average, 0 before the first."""
        return self.total / self.count if self.times else 0.0

    def __str__(self) -> str:
        best = min(self.times, default=0.0)
        return f"{self.name or 'timer'}: {self.count} x {self.mean * 1e3:.3f} ms (best {best * 1e3:.3f} ms)"


class EventTimer:
    """Time of a block on the device, by the events of everything that was sent from it.

    `elapsed` runs from the start of the first command to the end of the last; `busy` leaves the gaps out. On NumPy the
    backend's calls are timed in the same way. All times in seconds.
    """

    def __init__(self, queue: Any) -> None:
        self.queue = queue_of("EventTimer", queue)
        self._profiler = KernelProfiler(self.queue, keep=0)
        self.elapsed = self.busy = 0.0
        self.commands = 0

    def start(self) -> EventTimer:
        """Begin to measure."""
        self._profiler.start()
        return self

    def stop(self) -> float:
        """Wait for the device and return `elapsed`."""
        if not self._profiler.running:
            raise NetclError("EventTimer: expected start() before stop().")
        found = self._profiler.stop().totals
        self.commands, self.busy = found.calls, found.busy_seconds
        self.elapsed = found.ended - found.began if found.calls else 0.0
        self._profiler.clear()
        return self.elapsed

    def __enter__(self) -> EventTimer:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def ms(self) -> float:
        """`elapsed` in milliseconds."""
        return self.elapsed * 1e3

    def measure(self, fn: Callable[[], Any], repeat: int = 3, warmup: int = 1) -> float:
        """Mean `elapsed` of `repeat` calls of `fn`, after `warmup` calls that do not count."""
        times = []
        for i in range(warmup + repeat):
            with self:
                fn()
            if i >= warmup:
                times.append(self.elapsed)
        return sum(times) / len(times)

    @staticmethod
    def of(event: Any) -> float:
        """Seconds that the command behind `event` ran; its queue must take time stamps."""
        event.wait()
        return float(event.profile.end - event.profile.start) * 1e-9


class Timing(NamedTuple):
    """Times of repeated calls in seconds."""

    mean: float
    std: float
    times: tuple[float, ...]


def timing(fn: Callable[..., Any], *args: Any, repeat: int = 10, warmup: int = 1, queue: Any = None) -> Timing:
    """Mean, standard deviation and each time of `repeat` calls of fn(*args), after `warmup` calls that do not count.

    With a queue each call is waited for; without one only Python's part of asynchronous work is seen.
    """
    timer = Timer("timing", queue)
    for i in range(warmup + repeat):
        with timer:
            fn(*args)
        if i < warmup:
            timer.times.clear()
    mean = timer.mean
    return Timing(mean, (sum((t - mean) ** 2 for t in timer.times) / repeat) ** 0.5, tuple(timer.times))


PerfCounter = Timer
