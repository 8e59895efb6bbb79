"""Device memory over time, sampled whenever something is sent."""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

from netcl.core.backend import cpu, opencl
from netcl.core.device import queue_of
from netcl.core.errors import NetclError
from netcl.core.memory import pool_of
from netcl.core.queue import CPUQueue

LIMIT = 1 << 16  # samples kept; beyond it every second one goes


class Moment(NamedTuple):
    """Bytes at one time (`time.perf_counter`): handed out, and kept by the pool for reuse."""

    time: float
    active: int
    cached: int


class MemoryTimeline:
    """The memory of one queue's pool over time; on NumPy the memory of the process (on Linux, else 0).

    Without a queue, that of every queue which something is sent to, added up. Replays allocate nothing: their memory is
    the recording's (`KernelCapture.peak_bytes`).
    """

    def __init__(self, queue: Any = None) -> None:
        queue = None if queue is None else queue_of("MemoryTimeline", queue)
        self.queue = queue
        self._seen: dict[int, Any] = {} if queue is None else {id(queue): queue}
        self.running = False
        self.moments: list[Moment] = []
        self._every = self._skipped = 0

    def __enter__(self) -> MemoryTimeline:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> MemoryTimeline:
        """Begin to sample; what was sampled before stays."""
        if self.running:
            raise NetclError("MemoryTimeline: expected one that is not running, got one that is; stop() it first.")
        self.running = True
        for hooks in (opencl.hooks, opencl.copy_hooks, cpu.hooks):
            hooks.append(self._sample)
        self._sample()
        return self

    def stop(self) -> None:
        """Take a last sample and stop."""
        if not self.running:
            return
        self.running = False
        self._skipped = self._every
        self._sample()
        for hooks in (opencl.hooks, opencl.copy_hooks, cpu.hooks):
            hooks.remove(self._sample)

    def _sample(self, *args: Any) -> None:
        if self.queue is None and args:  # a hook's second argument is the queue, on NumPy the results
            queue = args[1][0].queue if isinstance(args[1], tuple) else args[1]
            self._seen[id(queue)] = queue
        if self._skipped < self._every:
            self._skipped += 1
            return
        self._skipped = 0
        active = cached = 0
        for queue in self._seen.values():
            if isinstance(queue, CPUQueue):
                active += _process_bytes()
            else:
                stats = pool_of(queue).stats
                active, cached = active + stats.active_bytes, cached + stats.cached_bytes
        self.moments.append(Moment(time.perf_counter(), active, cached))
        if len(self.moments) > LIMIT:
            del self.moments[1::2]
            self._every = 2 * self._every + 1

    @property
    def peak_bytes(self) -> int:
        """Most bytes handed out at a sampled moment."""
        return max((m.active for m in self.moments), default=0)


def _process_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
