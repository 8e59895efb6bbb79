"""Every kernel and copy with its time on the device, and the table made from them.

Bytes are the sizes of the buffers among a kernel's arguments, each once: an upper bound for kernels that touch only a
part, and above what the memory gives where they come from a cache. Operations are counted where `profiling.work` knows
a formula.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from netcl.core import debug
from netcl.core.backend import cpu, opencl, timed
from netcl.core.errors import NetclError
from netcl.profiling.peak import peaks
from netcl.profiling.work import operations

PENDING = 4096  # events kept before the older half is read, so that a long run does not pile them up


class Sample(NamedTuple):
    """One command. Times in seconds of the host's `time.perf_counter`; `sent` is when the host was done with it."""

    name: str
    kind: str  # "kernel", "copy", "fill", "write", "read" or "numpy"
    queue: Any
    sent: float
    start: float
    end: float
    nbytes: int
    operations: float  # 0 where unknown
    size: tuple[int, ...]
    group: tuple[int, ...] | None
    thread: int


class KernelStats(NamedTuple):
    """What all calls of one kernel took: `share` of the time of all kernels, `of_peak` of what the device can do."""

    name: str
    calls: int
    seconds: float
    nbytes: int
    operations: float
    share: float
    of_peak: float | None

    @property
    def mean(self) -> float:
        """Seconds a call."""
        return self.seconds / self.calls

    @property
    def gbs(self) -> float:
        """10^9 bytes a second."""
        return self.nbytes / self.seconds * 1e-9 if self.seconds else 0.0

    @property
    def gflops(self) -> float:
        """10^9 operations a second, 0 where unknown."""
        return self.operations / self.seconds * 1e-9 if self.seconds else 0.0


class KernelProfiler:
    """Times everything sent between `start` and `stop`, or inside a `with` block, on one queue or on all.

    >>> with KernelProfiler() as prof:
    ...     step(x, y)
    >>> print(prof.table())

    Costs nothing while it is not running. Replays of recordings are seen kernel by kernel.
    """

    def __init__(self, queue: Any = None) -> None:
        self.queue = queue
        self.running = False
        self._samples: list[Sample] = []
        self._pending: list[
            tuple[Any, ...]
        ] = []  # (event, name, kind, queue, sent, nbytes, operations, size, group, thread)
        self._offsets: dict[int, float] = {}  # host minus device clock, by queue
        self._lock = threading.Lock()

    # -- collecting --------------------------------------------------------------------------------------------------

    def start(self) -> KernelProfiler:
        """Begin to collect; what was collected before stays."""
        if self.running:
            raise NetclError(
                "KernelProfiler: expected a profiler that is not running, got one that is; stop() it first."
            )
        self.running = True
        timed.start()
        opencl.hooks.append(self._launched)
        opencl.copy_hooks.append(self._copied)
        cpu.hooks.append(self._computed)
        return self

    def stop(self) -> KernelProfiler:
        """Stop, and wait for what is still running."""
        if self.running:
            self.running = False
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
        self._samples.clear()

    def _wants(self, queue: Any) -> bool:
        return self.queue is None or queue is self.queue or queue == self.queue

    def _launched(self, kernel: Any, queue: Any, size: Any, group: Any, args: Any, event: Any) -> None:
        if not self._wants(queue):
            return
        sent, nbytes = time.perf_counter(), sum(debug.memory_of(args).values())
        self._add(event, kernel.name, "kernel", queue, sent, nbytes, operations(kernel.name, args, size), size, group)

    def _copied(self, kind: str, queue: Any, target: Any, source: Any, nbytes: int, details: Any, event: Any) -> None:
        if event is not None and self._wants(queue):
            moved = 2 * nbytes if kind == "copy" else nbytes  # a copy reads and writes device memory
            self._add(event, kind, kind, queue, time.perf_counter(), moved, 0, (), None)

    def _computed(self, fn: Any, outputs: Any, inputs: Any, attrs: Any, in_place: bool, start: float) -> None:
        end, queue = time.perf_counter(), (*outputs, *inputs)[0].queue
        if self._wants(queue):
            nbytes = sum({id(t.buffer): t.nbytes for t in (*outputs, *inputs)}.values())
            name = getattr(fn, "__name__", type(fn).__name__)
            self._samples.append(
                Sample(name, "numpy", queue, end, start, end, nbytes, 0, outputs[0].shape, None, threading.get_ident())
            )

    def _add(self, *entry: Any) -> None:
        with self._lock:
            self._pending.append((*entry, threading.get_ident()))
        if len(self._pending) > PENDING:
            self._harvest(PENDING // 2)

    def _harvest(self, count: int) -> None:
        """Read the time stamps of the `count` oldest events and let the events go."""
        with self._lock:
            entries, self._pending = self._pending[:count], self._pending[count:]
            read = []
            for event, *facts in entries:
                event.wait()
                stamps = event.profile
                queued, start, end = stamps.queued * 1e-9, stamps.start * 1e-9, stamps.end * 1e-9
                queue, sent = facts[2], facts[3]
                # queued on the device's clock comes shortly before sent on the host's: the smallest gap is the offset
                known = self._offsets.get(id(queue), float("inf"))
                self._offsets[id(queue)] = min(known, sent - queued)
                read.append((facts, start, end))
            for (name, kind, queue, sent, nbytes, operations, size, group, thread), start, end in read:
                offset = self._offsets[id(queue)]
                self._samples.append(
                    Sample(
                        name, kind, queue, sent, start + offset, end + offset, nbytes, operations, size, group, thread
                    )
                )

    # -- results -----------------------------------------------------------------------------------------------------

    @property
    def samples(self) -> list[Sample]:
        """Every command so far, in the order sent. Waits for those that are still running."""
        self._harvest(len(self._pending))
        return self._samples

    @property
    def seconds(self) -> float:
        """Times of all commands added up."""
        return sum(s.end - s.start for s in self.samples)

    @property
    def busy_seconds(self) -> float:
        """Time during which at least one command ran, queue by queue."""
        return sum(_covered([s for s in self.samples if s.queue is q]) for q in _queues(self.samples))

    def stats(self, with_peak: bool = False) -> list[KernelStats]:
        """One row a kernel, the most expensive first. `with_peak` measures the device's peaks once (about a second)."""
        samples, total = self.samples, self.seconds or 1.0
        groups: dict[str, list[Sample]] = {}
        for s in samples:
            groups.setdefault(s.name, []).append(s)
        known = {id(q): peaks(q) for q in _queues(samples)} if with_peak else {}
        rows = []
        for name, calls in groups.items():
            took = sum(s.end - s.start for s in calls)
            nbytes, operations = sum(s.nbytes for s in calls), sum(s.operations for s in calls)
            best = known.get(id(calls[0].queue))
            rows.append(
                KernelStats(name, len(calls), took, nbytes, operations, took / total,
                            None if best is None or not took else best.share(nbytes / took, operations / took))
            )  # fmt: skip
        return sorted(rows, key=lambda r: -r.seconds)

    def table(self, limit: int = 30, with_peak: bool = False) -> str:
        """The table of `stats` as text; the cheapest kernels beyond `limit` are one line."""
        from rich.console import Console

        console = Console(width=110, highlight=False)
        with console.capture() as caught:
            console.print(_table(self.stats(with_peak), limit))
        return caught.get()

    def __str__(self) -> str:
        return self.table()


def _queues(samples: Iterable[Sample]) -> list[Any]:
    return list({id(s.queue): s.queue for s in samples}.values())


def _covered(samples: list[Sample]) -> float:
    """Length of the union of the samples' intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted((s.start, s.end) for s in samples):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _table(rows: list[KernelStats], limit: int) -> Any:
    from rich.table import Table

    table = Table(title=None)
    for title, side in (("kernel", "left"), ("calls", "right"), ("total ms", "right"), ("mean us", "right"),
                        ("time", "right"), ("GB/s", "right"), ("GFLOP/s", "right"), ("of peak", "right")):  # fmt: skip
        table.add_column(title, justify=side, no_wrap=title != "kernel", overflow="fold")  # type: ignore[arg-type]
    rest = rows[limit:]
    if rest:
        calls, took = sum(r.calls for r in rest), sum(r.seconds for r in rest)
        rows = [*rows[:limit], KernelStats(f"{len(rest)} more", calls, took, 0, 0, sum(r.share for r in rest), None)]
    for r in rows:
        table.add_row(
            r.name, f"{r.calls:,}", f"{r.seconds * 1e3:.3f}", f"{r.mean * 1e6:.1f}", f"{r.share:.1%}",
            f"{r.gbs:.1f}" if r.nbytes else "-", f"{r.gflops:.1f}" if r.operations else "-",
            "-" if r.of_peak is None else f"{r.of_peak:.0%}",
        )  # fmt: skip
    return table
