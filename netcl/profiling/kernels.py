"""Every kernel and copy with its time on the device, and the table made from them.

Bytes are the sizes of the buffers among a kernel's arguments, each once: an upper bound for kernels that touch only a
part, and above what the memory gives where they come from a cache. Operations are counted where `profiling.work` knows
a formula.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from netcl.core import callers, debug
from netcl.core.backend import cpu, opencl, timed
from netcl.core.device import queue_of
from netcl.core.errors import NetclError
from netcl.core.protocols import Queue
from netcl.profiling.labels import label
from netcl.profiling.totals import KernelStats, Sample, Totals, table
from netcl.profiling.work import operations

PENDING = 4096  # events kept before the older half is read, so that a long run does not pile them up
KEEP = 100_000  # commands kept with their times: about 40 MB, and 70 MB of trace file


_running: set[KernelProfiler] = set()


class KernelProfiler:
    """Times everything sent between `start` and `stop`, or inside a `with` block, on one queue or on all.

    >>> with KernelProfiler() as prof:
    ...     step(x, y)
    >>> print(prof.table())

    Costs nothing while it is not running. Replays of recordings are seen kernel by kernel. The table and the sums count
    every command; `samples` holds the newest `keep` of them and `dropped` says how many went, so memory is bounded.

    Args: queue: the queue to watch, every queue when None. keep: commands kept one by one; 0 keeps the sums only.
    """

    def __init__(self, queue: Any = None, keep: int = KEEP) -> None:
        if not isinstance(keep, int) or keep < 0:
            raise NetclError(f"KernelProfiler: expected keep to be an int of at least 0, got {keep!r}.")
        self.queue = None if queue is None else queue_of("KernelProfiler", queue)
        self.keep = keep
        self.running = False
        self._samples: deque[Sample] = deque(maxlen=keep)
        self._totals = Totals()
        # (event or (start, end), name, kind, queue, sent, nbytes, operations, size, group, thread, label)
        self._pending: list[tuple[Any, ...]] = []
        self._offsets: dict[int, float] = {}  # host minus device clock, by queue
        self._origins: dict[int, int] = {}  # a moment near each queue's first command, on the device's clock
        self._lock = threading.Lock()

    # -- collecting --------------------------------------------------------------------------------------------------

    def start(self) -> KernelProfiler:
        """Begin to collect; what was collected before stays."""
        if self.running:
            raise NetclError(
                "KernelProfiler: expected a profiler that is not running, got one that is; stop() it first."
            )
        self.running = True
        _running.add(self)
        callers.labeller = label
        timed.start()
        opencl.hooks.append(self._launched)
        opencl.copy_hooks.append(self._copied)
        cpu.hooks.append(self._computed)
        return self

    def stop(self) -> KernelProfiler:
        """Stop, and wait for what is still running."""
        if self.running:
            self.running = False
            _running.discard(self)
            callers.labeller = label if _running else None
            opencl.hooks.remove(self._launched)
            opencl.copy_hooks.remove(self._copied)
            cpu.hooks.remove(self._computed)
            timed.stop()
            self._harvest(len(self._pending))
        return self

    def __enter__(self) -> KernelProfiler:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def clear(self) -> None:
        """Forget what was collected."""
        self._harvest(len(self._pending))
        with self._lock:
            self._samples.clear()
            self._totals = Totals()
            self._offsets.clear()  # their queues may now go, and the ids with them to other queues
            self._origins.clear()

    def _wants(self, queue: Queue) -> bool:
        return self.queue is None or queue is self.queue or queue == self.queue

    def _launched(self, kernel: Any, queue: Queue, size: Any, group: Any, args: Any, event: Any) -> None:
        if not self._wants(queue):
            return
        sent, nbytes = time.perf_counter(), sum(debug.memory_of(args).values())
        self._add(event, kernel.name, "kernel", queue, sent, nbytes, operations(kernel.name, args, size), size, group)

    def _copied(self, kind: str, queue: Queue, target: Any, source: Any, nbytes: int, details: Any, event: Any) -> None:
        if event is not None and self._wants(queue):
            moved = 2 * nbytes if kind == "copy" else nbytes  # a copy reads and writes device memory
            self._add(event, kind, kind, queue, time.perf_counter(), moved, 0, (), None)

    def _computed(self, fn: Any, outputs: Any, inputs: Any, attrs: Any, in_place: bool, start: float) -> None:
        end, queue = time.perf_counter(), (*outputs, *inputs)[0].queue
        if self._wants(queue):
            nbytes = sum({id(t.buffer): t.nbytes for t in (*outputs, *inputs)}.values())
            name = getattr(fn, "__name__", type(fn).__name__)
            self._add((start, end), name, "numpy", queue, end, nbytes, 0, outputs[0].shape, None)

    def _add(self, *entry: Any) -> None:
        found = label()
        with self._lock:
            self._pending.append((*entry, threading.get_ident(), found))
        if len(self._pending) > PENDING:
            self._harvest(PENDING // 2)

    def _harvest(self, count: int) -> None:
        """Read the time stamps of the `count` oldest events and let the events go."""
        with self._lock:
            entries, self._pending = self._pending[:count], self._pending[count:]
            read = [(*self._stamps(*entry[:5]), entry) for entry in entries]
            found = []
            for start, end, (_, name, kind, queue, sent, *rest) in read:
                offset = self._offsets.get(id(queue), 0.0)  # only now: the later events may have lowered it
                found.append(Sample(name, kind, queue, sent, start + offset, end + offset, *rest))
            self._totals.add(found, self._offsets)
            self._samples.extend(found)

    def _stamps(self, event: Any, name: str, kind: str, queue: Queue, sent: float) -> tuple[float, float]:
        """Start and end of one command by the clock of its queue; NumPy's is the host's."""
        if isinstance(event, tuple):
            return event
        event.wait()
        stamps = event.profile
        # Nanoseconds since 1970, as some drivers count, are too long for a float: they begin at the first command.
        origin = self._origins.setdefault(id(queue), stamps.queued)
        # queued on the device's clock comes shortly before sent on the host's: the smallest gap is the offset
        known = self._offsets.get(id(queue), float("inf"))
        self._offsets[id(queue)] = min(known, sent - (stamps.queued - origin) * 1e-9)
        return (stamps.start - origin) * 1e-9, (stamps.end - origin) * 1e-9

    # -- results -----------------------------------------------------------------------------------------------------

    @property
    def totals(self) -> Totals:
        """Sums over every command so far. Waits for those that are still running."""
        self._harvest(len(self._pending))
        return self._totals

    @property
    def samples(self) -> list[Sample]:
        """The newest `keep` commands, in the order sent. Waits for those that are still running."""
        self._harvest(len(self._pending))
        with self._lock:
            return list(self._samples)

    @property
    def dropped(self) -> int:
        """How many older commands `samples` no longer holds; the sums count them."""
        return self.totals.calls - len(self._samples)

    @property
    def seconds(self) -> float:
        """Times of all commands added up."""
        return self.totals.seconds

    @property
    def busy_seconds(self) -> float:
        """Time during which at least one command ran, queue by queue."""
        return self.totals.busy_seconds

    def stats(self, with_peak: bool = False, labels: bool = False) -> list[KernelStats]:
        """One row a kernel, the most expensive first; with `labels` one for each module, op and direction as well.

        `with_peak` measures the device's peaks once (about a second).
        """
        return self.totals.stats(with_peak, labels)

    def table(self, limit: int = 30, with_peak: bool = False, labels: bool = False) -> str:
        """The table of `stats` as text; the cheapest rows beyond `limit` are one line."""
        return table(self.stats(with_peak, labels), limit, labels)

    def __str__(self) -> str:
        return self.table()
