"""Trace files in the JSON form that Perfetto (ui.perfetto.dev) and chrome://tracing open.

One process row is the host, with a thread for each Python thread (regions, and when each command was sent); each queue
is another, with its commands as the device ran them; memory is a counter. A long profile keeps the newest commands and
regions: where the trace's commands begin a mark says how many older ones were dropped, and so does "otherData".
"""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from netcl.core.device.profile import profile_of
from netcl.profiling.memory import Moment
from netcl.profiling.totals import Sample

HOST, COMMANDS = 1, 1  # the host's process, and the thread of each queue's process


class Region(NamedTuple):
    """A named stretch of a program, in seconds of `time.perf_counter`."""

    name: str
    start: float
    end: float
    thread: int


def events(samples: Sequence[Sample], regions: Iterable[Region] = (), moments: Iterable[Moment] = ()) -> list[Any]:
    """The trace's events; times in microseconds from the first."""
    regions, moments = list(regions), list(moments)
    times = [s.start for s in samples] + [r.start for r in regions] + [m.time for m in moments]
    zero = min(times, default=0.0)
    queues = list({id(s.queue): s.queue for s in samples}.values())
    rows = {id(q): HOST + 1 + i for i, q in enumerate(queues)}
    found = [_named("process_name", HOST, 0, "host")]
    for thread in dict.fromkeys([*(s.thread for s in samples), *(r.thread for r in regions)]):
        found.append(_named("thread_name", HOST, thread, _thread_name(thread)))
    for queue in queues:
        found.append(_named("process_name", rows[id(queue)], 0, f"queue on {profile_of(queue).name}"))
        found.append(_named("thread_name", rows[id(queue)], COMMANDS, "commands"))
    for i, s in enumerate(samples):
        args = {"bytes": s.nbytes, "operations": s.operations, "global": list(s.size), "local": list(s.group or ())}
        row, host, sent = rows[id(s.queue)], (HOST, s.thread), s.sent - zero
        found.append(_span(s.name, s.kind, (row, COMMANDS), s.start - zero, s.end - s.start, args))
        if s.kind != "numpy":
            found.append(_event("i", s.name, host, sent, cat="sent", s="t"))
            for phase, place, at in (("s", host, sent), ("f", (row, COMMANDS), max(s.start - zero, sent))):
                found.append(_event(phase, "sent", place, at, cat="sent", bp="e", id=i))
    for r in regions:
        found.append(_span(r.name, "region", (HOST, r.thread), r.start - zero, r.end - r.start, {}))
    for m in moments:
        counts = {"active": m.active, "cached": m.cached}
        found.append(_event("C", "device memory", (HOST, 0), m.time - zero, args=counts))
    return found


def _thread_name(ident: int) -> str:
    """The name of a Python thread that still runs, else its number."""
    return next((t.name for t in threading.enumerate() if t.ident == ident), f"thread {ident}")


def _event(phase: str, name: str, place: tuple[int, int], seconds: float, **more: Any) -> dict[str, Any]:
    """An event of a process and thread."""
    return {"name": name, "ph": phase, "pid": place[0], "tid": place[1], "ts": seconds * 1e6, **more}


def _named(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _span(name: str, kind: str, place: tuple[int, int], start: float, length: float, args: Any) -> dict[str, Any]:
    return _event("X", name, place, start, cat=kind, dur=length * 1e6, args=args)


def _mark(found: Sequence[dict[str, Any]], gone: dict[str, int]) -> dict[str, Any]:
    """A line through the whole trace where its first command or region begins: what came before is not all here."""
    name = ", ".join(f"{n:,} older {what.split()[1]} dropped" for what, n in gone.items() if n)
    start = min((e["ts"] for e in found if e["ph"] == "X"), default=0.0)
    return _event("i", name, (HOST, 0), start * 1e-6, cat="dropped", s="g", args=gone)


def write(
    path: str | Path,
    samples: Sequence[Sample],
    regions: Iterable[Region] = (),
    moments: Iterable[Moment] = (),
    dropped: Mapping[str, int] | None = None,
) -> Path:
    """Write a trace file, compressed when its name ends in ".gz". `dropped`: what is not in it, by what it is."""
    path, gone = Path(path), {f"dropped {what}": n for what, n in (dropped or {}).items()}
    found = events(samples, regions, moments)
    if any(gone.values()):
        found.append(_mark(found, gone))
    text = json.dumps({"traceEvents": found, "displayTimeUnit": "ms", "otherData": gone})
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path
