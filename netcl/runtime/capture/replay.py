"""Sending recorded OpenCL commands again, in the cheapest way that works here.

Ways ("tiers"), each tried once per device on a tiny recording, checked and timed; the fastest is then used:

    command buffer   runs of kernels as one cl_khr_command_buffer; what changes in between goes one of the ways below
    c                a loop in C (`core/backend/_send.c`, built at installation where a compiler exists)
    ctypes           the driver's functions called through ctypes
    python           pyopencl's enqueue functions, arguments kept

Events are not asked for, except by "python" under a profiler.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import numpy as np

from netcl.core import callers, debug
from netcl.core.backend import native, opencl
from netcl.core.backend.native import NAMES, SIZE, P, library
from netcl.core.errors import DeviceError, NetclError
from netcl.core.protocols import Queue
from netcl.runtime.cache import cacher
from netcl.runtime.capture.arguments import Arguments
from netcl.runtime.capture.command_buffer import EXTENSION, CommandBuffer

with contextlib.suppress(ImportError):  # without pyopencl only NumPy runs, and nothing here is called
    import pyopencl as cl

KERNEL, COPY, FILL, WRITE = range(4)
TIERS = ("command buffer", "c", "ctypes", "python")


class Record(ctypes.Structure):
    """One command as `_send.c` reads it."""

    _fields_ = (
        *(("kind", ctypes.c_int), ("dims", ctypes.c_uint), ("object", P), ("other", P)),
        *((sizes, SIZE * 3) for sizes in ("start", "global_size", "local_size")),
    )


@dataclass(eq=False)
class Command:
    """A kernel launch with a kernel object of its own, or a copy, fill or write.

    `object` is the kernel, else the buffer written to; `other` the buffer that a copy reads. For all but kernels
    `start` is (offset in `object`, offset in `other`, bytes). `cells` are the arguments read anew: (position, dtype,
    cell).
    """

    kind: int
    name: str
    object: Any
    other: Any = None
    start: tuple[int, ...] = ()
    global_size: tuple[int, ...] = ()
    local_size: tuple[int, ...] | None = None
    host: Any = None  # the array that a fill repeats or a write sends
    kernel: Any = None  # what launch hooks are told
    args: tuple[Any, ...] = ()
    cells: list[tuple[int, Any, Any]] = field(default_factory=list)
    label: Any = field(default_factory=callers.label)

    def send(self, queue: Any) -> Any:
        """Enqueue through pyopencl; returns the event."""
        if self.kind == KERNEL:
            return cl.enqueue_nd_range_kernel(queue, self.object, self.global_size, self.local_size, self.start or None)
        offset, other, nbytes = self.start
        if self.kind == COPY:
            return cl.enqueue_copy(
                queue, self.object, self.other, byte_count=nbytes, dst_offset=offset, src_offset=other
            )
        if self.kind == FILL:
            return cl.enqueue_fill_buffer(queue, self.object, self.host, offset, nbytes)
        return cl.enqueue_copy(queue, self.object, self.host, dst_offset=offset, is_blocking=False)

    def record(self) -> Record:
        """The command for `_send.c`."""
        other = self.other.int_ptr if self.other is not None else None
        if self.host is not None:
            other = self.host.ctypes.data
        dims = len(self.global_size) if self.kind == KERNEL else 0 if self.host is None else self.host.nbytes
        sizes = [(SIZE * 3)(*t) for t in (self.start, self.global_size, self.local_size or ())]
        return Record(self.kind, min(dims, 1 << 31), self.object.int_ptr, other, *sizes)


def available(queue: Queue) -> tuple[str, ...]:
    """The tiers that this installation and the driver of `queue` offer, from the most to the least wanted."""
    found = {"python": True, "ctypes": library() is not None}
    found["c"] = native.extension() is not None
    found["command buffer"] = found["ctypes"] and CommandBuffer.supported(queue, library())
    return tuple(t for t in TIERS if found[t])


def missing(queue: Queue) -> dict[str, str]:
    """The tiers that are not used for `queue`: why, and how to get them."""
    offered, usable, found = available(queue), timings(queue), {}
    for tier in TIERS:
        if tier in usable:
            continue
        if tier in offered:
            found[tier] = "did not do what it should when it was probed"
        elif library() is None:
            found[tier] = "the OpenCL loader cannot be called through ctypes"
        else:
            found[tier] = native.absence() if tier == "c" else f"the driver has no {EXTENSION}"
    return found


def build(
    tier: str, commands: Sequence[Command], queue: Queue, arguments: Arguments | None = None
) -> Callable[[], None]:
    """A function that sets what changed of `arguments` and sends `commands` to `queue` once, in order."""
    if tier in TIERS and tier not in available(queue):
        raise DeviceError(f"replay: expected a tier of {available(queue)}, got {tier!r}: {missing(queue)[tier]}.")
    tiers = {"python": _python_tier, "ctypes": _ctypes_tier, "c": _c_tier, "command buffer": _command_buffer_tier}
    if tier not in tiers:
        raise DeviceError(f"replay: expected a tier of {TIERS}, got {tier!r}.")
    return tiers[tier](commands, queue, arguments or Arguments())


def _python_tier(commands: Sequence[Command], queue: Queue, arguments: Arguments) -> Callable[[], None]:
    def run() -> None:
        arguments.send()
        for command in commands:
            try:
                command.send(queue)
            except cl.Error as error:
                _fail(command, queue, error)

    return run


def _fail(command: Command, queue: Queue, error: Exception | int) -> NoReturn:
    raise opencl.failure(f"replay: {command.name}", queue, error)


def _ctypes_tier(commands: Sequence[Command], queue: Queue, arguments: Arguments) -> Callable[[], None]:
    api = library()
    functions, q, none = [getattr(api, name) for name in NAMES], queue.int_ptr, (0, None, None)
    calls: list[Any] = []
    for command in commands:
        r = command.record()
        start, size, local = (ctypes.addressof(a) for a in (r.start, r.global_size, r.local_size))
        s = tuple(r.start)
        given = {
            KERNEL: (q, r.object, r.dims, start, size, local if command.local_size else None, *none),
            COPY: (q, r.other, r.object, s[1], s[0], s[2], *none),
            FILL: (q, r.object, r.other, r.dims, s[0], s[2], *none),
            WRITE: (q, r.object, 0, s[0], s[2], r.other, *none),
        }[command.kind]
        calls.append((functions[command.kind], given, command, r))

    def run() -> None:
        arguments.send()
        for function, given, command, _ in calls:
            status = function(*given)
            if status:
                _fail(command, queue, status)

    return run


class _Batch(ctypes.Structure):
    """A recording as `_send.c` reads it."""

    _fields_ = (
        ("queue", P),
        ("driver", P),
        ("arguments", P),
        ("records", P),
        ("argument_count", ctypes.c_int),
        ("count", ctypes.c_int),
        ("failed", ctypes.c_int),
    )


def _c_tier(commands: Sequence[Command], queue: Queue, arguments: Arguments) -> Callable[[], None]:
    found, driver, changing = native.extension(), native.driver(), arguments.records
    assert found is not None
    records = (Record * len(commands))(*[c.record() for c in commands])
    parts, kept = [ctypes.addressof(part) for part in (driver, changing, records)], list(commands)
    batch = _Batch(queue.int_ptr, *parts, len(changing), len(kept), 0)
    send = partial(found.replay, ctypes.addressof(batch))

    def run() -> None:
        status = send()
        if status:
            if batch.failed < 0:
                arguments.check(-1 - batch.failed, status)
            _fail(kept[batch.failed], queue, status)

    vars(run)["kept"] = (batch, driver, changing, records)  # the loop reads them
    return run


def _command_buffer_tier(commands: Sequence[Command], queue: Queue, arguments: Arguments) -> Callable[[], None]:
    """Runs of two or more kernels without cells become command buffers; the rest goes the next best way."""
    other = next(t for t in available(queue) if t != "command buffer")
    parts: list[Callable[[], None]] = []
    for fixed, group in _runs(commands):
        if fixed:
            parts.append(CommandBuffer(queue, library(), [(c.name, c.record(), bool(c.local_size)) for c in group]).run)
        else:
            parts.append(build(other, group, queue))

    def run() -> None:
        arguments.send()
        for part in parts:
            part()

    return run


def _runs(commands: Sequence[Command]) -> list[tuple[bool, list[Command]]]:
    """`commands` in order, cut into (whether a command buffer takes them, commands)."""
    runs: list[tuple[bool, list[Command]]] = []
    for command in commands:
        fixed = command.kind == KERNEL and not command.cells
        if runs and runs[-1][0] == fixed:
            runs[-1][1].append(command)
        else:
            runs.append((fixed, [command]))
    merged: list[tuple[bool, list[Command]]] = []
    for fixed, group in ((f and len(g) > 1, g) for f, g in runs):
        if merged and not fixed and not merged[-1][0]:
            merged[-1][1].extend(group)
        else:
            merged.append((fixed, group))
    return merged


# -- the probe ---------------------------------------------------------------------------------------------------------

_PROBE = "__kernel void netcl_probe(__global int* count, int by) { count[0] += by; }"
_LAUNCHES, _ROUNDS = 24, 12
_NEAR = 1.2  # times that differ by less are noise: then the tier that does less on the host wins
_LEANEST = ("c", "command buffer", "python", "ctypes")
_chosen: dict[int, dict[str, float]] = {}


def timings(queue: Queue) -> dict[str, float]:
    """Microseconds a launch of each tier that gave the right result on the device of `queue`; measured once."""
    key = queue.device.int_ptr
    if key not in _chosen:
        program = cacher.get_program(queue.context, _PROBE, queue.device)
        probes = {}
        for tier in available(queue):
            with contextlib.suppress(cl.Error, NetclError):  # a tier that does not work here is not chosen
                probes[tier] = _Probe(tier, program, queue)
        for _ in range(_ROUNDS):  # in turn, so that what else the machine does meets all of them
            for probe in probes.values():
                probe.time()
        _chosen[key] = {t: p.best / _LAUNCHES * 1e6 for t, p in probes.items() if p.right()} or {"python": 0.0}
        for text in (f"by {best(queue)}", *(f"not by {tier}: {why}" for tier, why in missing(queue).items())):
            debug.log(debug.DEVICES, f"recordings on {queue.device.name.strip()} are replayed {text}")
    return _chosen[key]


class _Probe:
    """Launches that count, replayed by one tier."""

    def __init__(self, tier: str, program: Any, queue: Any) -> None:
        self.queue, self.best, self.rounds = queue, float("inf"), 0
        self.count = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 4)
        cl.enqueue_fill_buffer(queue, self.count, np.zeros(1, np.int32), 0, 4)
        commands = []
        for _ in range(_LAUNCHES):
            handle = cl.Kernel(program, "netcl_probe")
            handle.set_arg(0, self.count)
            handle.set_arg(1, np.int32(1))
            commands.append(Command(KERNEL, "netcl_probe", handle, global_size=(1,), local_size=(1,)))
        self.run = build(tier, commands, queue)
        self.time()

    def time(self) -> None:
        """One round: seconds on the host, since the device's part is the same for all."""
        self.rounds += 1
        start = time.perf_counter()
        self.run()
        self.best = min(self.best, time.perf_counter() - start)
        self.queue.finish()

    def right(self) -> bool:
        """Whether every launch of every round arrived."""
        result = np.zeros(1, np.int32)
        cl.enqueue_copy(self.queue, result, self.count)
        return bool(result[0] == _LAUNCHES * self.rounds)


def best(queue: Queue) -> str:
    """The fastest tier on the device of `queue`."""
    measured = timings(queue)
    fastest = min(measured.values())
    return next(tier for tier in _LEANEST if measured.get(tier, float("inf")) <= _NEAR * fastest)
