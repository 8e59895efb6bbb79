"""Queues on their way to another process: named by their device, found again by that name.

Device memory belongs to a process, so tensors travel through host memory (`Tensor.__reduce__`), and a queue arrives as
the one that `manager` has for the same device: by platform and name, the third of three equal GPUs as the third. Where
there is no such device, the default one is taken.
"""

from __future__ import annotations

import contextlib
import copyreg
from typing import Any

from netcl.core import process
from netcl.core.device.discovery import DeviceHandle, manager
from netcl.core.protocols import Queue
from netcl.core.queue import CPUQueue

with contextlib.suppress(ImportError):  # without pyopencl there are no other queues
    import pyopencl as cl

Place = tuple[str, str, int] | None  # platform, name, and which of those alike; None for NumPy


def place_of(queue: Queue) -> Place:
    """What tells the device of `queue` in another process."""
    if isinstance(queue, CPUQueue):
        return None
    device = queue.device
    alike = [other for other in manager.devices if _names(other) == _names(device)]
    return (*_names(device), alike.index(device) if device in alike else 0)


def _names(device: Any) -> tuple[str, str]:
    return str(device.platform.name).strip(), str(device.name).strip()


def handle_at(place: Place) -> DeviceHandle:
    """The handle of a place in this process."""
    if place is None:
        return manager.default("cpu")
    process.check()  # a driver that was started before a fork fails in its own words, even when asked for names
    alike = [device for device in manager.devices if _names(device) == place[:2]]
    return manager.default(alike[min(place[2], len(alike) - 1)] if alike else "auto")


def queue_at(place: Place) -> Any:
    """The queue of a place in this process."""
    return handle_at(place).queue


def _reduce_queue(queue: Any) -> Any:
    return queue_at, (place_of(queue),)


def _reduce_handle(handle: DeviceHandle) -> Any:
    return handle_at, (place_of(handle.queue),)


copyreg.pickle(CPUQueue, _reduce_queue)
copyreg.pickle(DeviceHandle, _reduce_handle)
if "cl" in globals():
    copyreg.pickle(cl.CommandQueue, _reduce_queue)
