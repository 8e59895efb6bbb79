"""Parameter, and how layers make theirs."""

from __future__ import annotations

from typing import Any

from netcl.autograd.node import Parameter
from netcl.core.errors import DeviceError
from netcl.core.queue import CPUQueue

__all__ = ["Parameter", "queue_of"]


def queue_of(where: str, queue: Any) -> Any:
    """The queue a layer was given first: a queue, or anything with one such as a device handle. Raises DeviceError."""
    found = getattr(queue, "queue", queue)
    if isinstance(found, CPUQueue) or hasattr(found, "int_ptr"):
        return found
    raise DeviceError(
        f"{where}: expected a queue as the first argument, got {type(queue).__name__} {queue!r}; "
        'take one from manager.default("auto").queue.'
    )
