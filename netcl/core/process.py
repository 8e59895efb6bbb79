"""Fork safety: OpenCL started before a fork does not work in the child, so the child is told instead of hanging."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from netcl.core.errors import DeviceError
from netcl.core.protocols import Queue

started = False  # whether OpenCL was used in this process
forked = False  # whether this process is a fork of one that had started OpenCL
gate: Callable[[Any], Any] | None = None  # when set: gives the queue that a command really goes to, or refuses
on_fork: list[Callable[[], None]] = []  # called in a fork of a process that had started OpenCL


def mark_started() -> None:
    """Remember that this process uses OpenCL; a later fork is then unusable."""
    global started
    started = True


def check() -> None:
    """Raise DeviceError in a process forked after OpenCL had started."""
    if forked:
        raise DeviceError(
            "OpenCL: expected a process of its own, got a fork of one that already uses OpenCL, where drivers hang; "
            "start workers with multiprocessing's 'spawn' method, or keep them to NumPy."
        )


def target(queue: Queue) -> Any:
    """The queue that a command for `queue` goes to now."""
    return queue if gate is None else gate(queue)


def _refuse(queue: Queue) -> Any:
    check()
    return queue


def _after_fork() -> None:
    global forked, gate
    forked = forked or started
    if forked:
        gate = _refuse
        for fn in on_fork:
            fn()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
