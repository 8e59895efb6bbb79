"""`ProfileContext`: kernels, memory and named regions of a block together."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from netcl.profiling import trace
from netcl.profiling.kernels import KEEP, KernelProfiler
from netcl.profiling.memory import MemoryTimeline
from netcl.profiling.trace import Region

_active: list[ProfileContext] = []


@contextmanager
def region(name: str) -> Iterator[None]:
    """Name a stretch of a program in the traces being made, that of `netcl profile` too; without one, do nothing."""
    start = time.perf_counter()
    try:
        yield
    finally:
        for profile in _active:
            profile.add_region(Region(name, start, time.perf_counter(), threading.get_ident()))


timing_region = region


class ProfileContext:
    """Profile a block; the results stay in `kernels`, `memory` and `regions`.

    >>> with ProfileContext(queue, trace="step.json") as prof:
    ...     with prof.region("forward"):
    ...         loss = model(x)
    >>> print(prof.table())

    Args: queue: whose memory to follow, every queue's when None. Kernels of every queue are timed either way.
        trace: where to write a trace file at the end.
        keep: commands and regions kept for the trace, the newest; trace and table say how many were dropped. The table
        counts all. A command takes 0.4 kB of memory and 0.7 kB of the trace file.
    """

    def __init__(self, queue: Any = None, trace: str | Path | None = None, keep: int = KEEP) -> None:
        self.kernels = KernelProfiler(keep=keep)
        self.memory = MemoryTimeline(queue)
        self.regions: deque[Region] = deque(maxlen=keep)
        self._regions = 0  # all that there were
        self._lock = threading.Lock()
        self.path = trace
        self.seconds = 0.0
        self._began = 0.0

    def __enter__(self) -> ProfileContext:
        self.kernels.start()
        self.memory.start()
        self._began = time.perf_counter()
        _active.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _active.remove(self)
        self.memory.stop()
        self.kernels.stop()
        self.seconds += time.perf_counter() - self._began
        if self.path is not None:
            self.save_trace(self.path)

    def region(self, name: str) -> AbstractContextManager[None]:
        """As the function `region`."""
        return region(name)

    def add_region(self, found: Region) -> None:
        """Keep a region for the trace."""
        with self._lock:
            self.regions.append(found)
            self._regions += 1

    @property
    def dropped(self) -> dict[str, int]:
        """How many commands and regions were too old to be kept for the trace."""
        return {"commands": self.kernels.dropped, "regions": self._regions - len(self.regions)}

    def save_trace(self, path: str | Path) -> Path:
        """Write the trace file; see `profiling.trace`."""
        return trace.write(path, self.kernels.samples, list(self.regions), self.memory.moments, self.dropped)

    def table(self, limit: int = 30, with_peak: bool = False) -> str:
        """Kernels by module, op and direction, a line on time and memory, and one on what the trace lacks."""
        busy, total, peak = self.kernels.busy_seconds, self.seconds or 1.0, self.memory.peak_bytes
        last = f"device busy {busy * 1e3:.1f} ms of {total * 1e3:.1f} ms; memory at the peak {peak:,} bytes"
        gone = [f"the {n:,} oldest {what}" for what, n in self.dropped.items() if n]
        note = f"\nkept for the trace: all but {' and '.join(gone)} (keep={self.kernels.keep})" if gone else ""
        return f"{self.kernels.table(limit, with_peak, labels=True).rstrip()}\n{last}{note}"
