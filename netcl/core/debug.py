"""NETCL_DEBUG, the one switch for messages: 1 devices and fallbacks, 2 launches with time and GB/s, 3 generated source.

Messages go to standard error. Level 2 waits for every launch, so the times are of the kernel alone and the program runs
slower. `set_level` changes the level while a program runs.
"""

from __future__ import annotations

import sys
from typing import Any

from netcl.core import settings
from netcl.core.errors import NetclError
from netcl.core.protocols import Queue

DEVICES, LAUNCHES, SOURCE = 1, 2, 3
level = 0


def log(at: int, message: str) -> None:
    """Print `message` when the level is at least `at`."""
    if level >= at:
        print(f"netcl: {message}", file=sys.stderr)


def set_level(value: int) -> int:
    """Set the level, 0 to 3; returns the level before."""
    global level
    if value not in (0, 1, 2, 3):
        raise NetclError(f"set_level: expected 0, 1, 2 or 3, got {value!r}.")
    before, level = level, value
    if (before >= LAUNCHES) != (value >= LAUNCHES):
        _watch_launches(value >= LAUNCHES)
    return before


def from_environment() -> None:
    """Take the level from NETCL_DEBUG."""
    set_level(settings.value("NETCL_DEBUG"))


def memory_of(args: Any) -> dict[int, int]:
    """Bytes of the buffers among `args`, by address, each once: what a kernel can at most read and write once."""
    return {a.int_ptr: a.size for a in args if hasattr(a, "int_ptr") and hasattr(a, "size")}


def _watch_launches(on: bool) -> None:
    from netcl.core.backend import opencl, timed  # only then: they import pyopencl

    if on:
        timed.start()
        opencl.hooks.append(_print_launch)
        opencl.copy_hooks.append(_print_copy)
    else:
        opencl.hooks.remove(_print_launch)
        opencl.copy_hooks.remove(_print_copy)
        timed.stop()


def _seconds(event: Any) -> float:
    event.wait()
    return float(event.profile.end - event.profile.start) * 1e-9


def _print_launch(kernel: Any, queue: Queue, size: Any, local: Any, args: Any, event: Any) -> None:
    _print(f"{kernel.name} {size} / {local}", sum(memory_of(args).values()), _seconds(event))


def _print_copy(kind: str, queue: Queue, target: Any, source: Any, nbytes: int, details: Any, event: Any) -> None:
    if event is not None:  # None on NumPy, where nothing is sent
        _print(kind, nbytes, _seconds(event))


def _print(what: str, nbytes: int, seconds: float) -> None:
    rate = f"{nbytes / seconds * 1e-9:.1f} GB/s" if seconds else "no time"
    log(LAUNCHES, f"{what}: {seconds * 1e6:.1f} us, {nbytes:,} bytes, {rate}")
