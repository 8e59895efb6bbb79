"""What all commands of a profile add up to, exactly and in little memory, however many there were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from netcl.core.protocols import Queue
from netcl.profiling.labels import Label
from netcl.profiling.peak import peaks


class Sample(NamedTuple):
    """One command. Times in seconds of the host's `time.perf_counter`; `sent` is when the host was done with it."""

    name: str
    kind: str  # "kernel", "copy", "fill", "write", "read" or "numpy"
    queue: Queue
    sent: float
    start: float
    end: float
    nbytes: int
    operations: float  # 0 where unknown
    size: tuple[int, ...]
    group: tuple[int, ...] | None
    thread: int
    label: Label = Label()


class KernelStats(NamedTuple):
    """What all calls of one kernel took: `share` of the time of all kernels, `of_peak` of what the device can do."""

    name: str
    calls: int
    seconds: float
    nbytes: int
    operations: float
    share: float
    of_peak: float | None
    label: Label = Label()

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


class _Kernel(NamedTuple):
    queue: Queue  # that of the first call
    calls: int
    seconds: float
    nbytes: int
    operations: float


class _Busy(NamedTuple):
    queue: Queue
    seconds: float  # length of the union of its commands' intervals
    began: float  # the first start and the latest end, on the queue's own clock
    reached: float
    offset: float  # of the host's clock from it, as known last


class Totals:
    """Sums by kernel and by queue over everything added.

    Batches are sorted by their start. So the busy time is exact for a queue that runs its commands in order; where
    commands overlap across two batches, the part of the later one that lies before the end of the earlier is left out.
    """

    def __init__(self) -> None:
        self.calls = 0
        self._kernels: dict[tuple[str, Label], _Kernel] = {}
        self._busy: dict[int, _Busy] = {}

    def add(self, samples: Sequence[Sample], offsets: dict[int, float]) -> None:
        """Count some commands; `offsets`, host minus device clock by queue, may change from batch to batch."""
        self.calls += len(samples)
        for s in sorted(samples, key=lambda s: s.start):
            one = _Kernel(s.queue, 1, s.end - s.start, s.nbytes, s.operations)
            self._kernels[s.name, s.label] = _joined(self._kernels.get((s.name, s.label)), one)
            offset = offsets.get(id(s.queue), 0.0)
            start, end = s.start - offset, s.end - offset
            b = self._busy.get(id(s.queue)) or _Busy(s.queue, 0.0, start, -float("inf"), offset)
            fresh = max(0.0, end - max(start, b.reached))
            self._busy[id(s.queue)] = _Busy(
                s.queue, b.seconds + fresh, min(b.began, start), max(b.reached, end), offset
            )

    @property
    def began(self) -> float:
        """The first start of a command, by the host's clock."""
        return min((b.began + b.offset for b in list(self._busy.values())), default=float("inf"))

    @property
    def ended(self) -> float:
        """The last end."""
        return max((b.reached + b.offset for b in list(self._busy.values())), default=float("-inf"))

    @property
    def seconds(self) -> float:
        """Times of all commands added up."""
        return sum(k.seconds for k in list(self._kernels.values()))

    @property
    def busy_seconds(self) -> float:
        """Time during which at least one command ran, queue by queue."""
        return sum(b.seconds for b in list(self._busy.values()))

    def stats(self, with_peak: bool = False, labels: bool = False) -> list[KernelStats]:
        """One row a kernel, or a kernel and label, the most expensive first.

        `with_peak` measures the device's peaks once (about a second). What caches serve counts as memory, so a share of
        the peak is cut off at 1.
        """
        kernels: dict[tuple[str, Label], _Kernel] = {}
        for (name, label), k in dict(self._kernels).items():
            key = (name, label if labels else Label())
            kernels[key] = _joined(kernels.get(key), k)
        total, rows = self.seconds or 1.0, []
        for (name, label), k in kernels.items():
            best = peaks(k.queue) if with_peak and k.seconds else None
            share = None if best is None else min(1.0, best.share(k.nbytes / k.seconds, k.operations / k.seconds))
            rows.append(KernelStats(name, k.calls, k.seconds, k.nbytes, k.operations, k.seconds / total, share, label))
        return sorted(rows, key=lambda r: -r.seconds)


def _joined(a: _Kernel | None, b: _Kernel) -> _Kernel:
    if a is None:
        return b
    return _Kernel(a.queue, a.calls + b.calls, a.seconds + b.seconds, a.nbytes + b.nbytes, a.operations + b.operations)


def table(rows: list[KernelStats], limit: int, labels: bool = False) -> str:
    """Rows as text; those beyond `limit` are one line. With `labels` module, op and direction stand first."""
    from rich.console import Console

    console = Console(width=140 if labels else 110, highlight=False)
    with console.capture() as caught:
        console.print(_table(rows, limit, labels))
    return caught.get()


def _table(rows: list[KernelStats], limit: int, labels: bool) -> Any:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE)
    for title in (*(("module", "op", "direction") if labels else ()), "kernel"):
        table.add_column(title, overflow="fold")
    for title in ("calls", "total ms", "mean us", "time", "GB/s", "GFLOP/s", "of peak"):
        table.add_column(title, justify="right", no_wrap=True)
    rest = rows[limit:]
    if rest:
        calls, took = sum(r.calls for r in rest), sum(r.seconds for r in rest)
        rows = [*rows[:limit], KernelStats(f"{len(rest)} more", calls, took, 0, 0, sum(r.share for r in rest), None)]
    for r in rows:
        rates = [f"{r.gbs:.1f}" if r.nbytes else "-", f"{r.gflops:.1f}" if r.operations else "-"]
        rates.append("-" if r.of_peak is None else f"{r.of_peak:.0%}")
        times = [f"{r.seconds * 1e3:.3f}", f"{r.mean * 1e6:.1f}", f"{r.share:.1%}"]
        table.add_row(*(r.label if labels else ()), r.name, f"{r.calls:,}", *times, *rates)
    return table
