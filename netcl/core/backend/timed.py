"""Queues that take time stamps, in place of ordinary ones while somebody measures.

A GPU's launches cost up to twice as much on a queue that takes time stamps, so ordinary queues do not. `start` makes
every command go to a twin of its queue that does (same context and device) until `stop`; the two never overlap. Queues
that take time stamps anyway are left alone: NETCL_PROFILE=1 makes netcl open such ones. What a program sends to
the ordinary queue by itself, past netcl, are not ordered against the twin's; set NETCL_PROFILE=1 for those programs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from netcl.core import process
from netcl.core.queue import state_of

with contextlib.suppress(ImportError):  # without pyopencl only NumPy runs, and nothing here is called
    import pyopencl as cl

_lock = threading.RLock()
_users = 0
_twins: dict[int, tuple[Any, Any]] = {}  # (queue, twin) in use, by the address of the queue
_before: Callable[[Any], Any] | None = None


def takes_time(queue: Any) -> bool:
    """Whether events of `queue` carry time stamps."""
    return bool(queue.properties & cl.command_queue_properties.PROFILING_ENABLE)


def _twin(queue: Any) -> Any:
    """The queue that the commands of `queue` go to now."""
    process.check()
    found = _twins.get(queue.int_ptr)
    if found is None:
        with _lock:
            state = state_of(queue)
            if state.twin is None:
                enable = cl.command_queue_properties.PROFILING_ENABLE
                ready = queue if takes_time(queue) else cl.CommandQueue(queue.context, queue.device, properties=enable)
                state.twin = ready
            if state.twin is not queue:
                queue.finish()
            found = _twins[queue.int_ptr] = (queue, state.twin)
    return found[1]


def start() -> None:
    """Send every command to a queue that takes time stamps, from now on. Calls nest."""
    global _users, _before
    with _lock:
        _users += 1
        if _users == 1:
            _before, process.gate = process.gate, _twin


def stop() -> None:
    """Undo one `start`; the last one waits for what was sent and goes back to the ordinary queues."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            process.gate = _before
            for _, twin in _twins.values():
                twin.finish()
            _twins.clear()


def queues() -> list[Any]:
    """The queues that were used since `start`."""
    return [queue for queue, _ in list(_twins.values())]


def finish() -> None:
    """Wait for everything sent since `start`."""
    for _, twin in list(_twins.values()):
        twin.finish()
