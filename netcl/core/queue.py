"""Command queues: the NumPy stand-in, and what netcl remembers about each queue."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from typing import Any

from netcl.core.kernels import dialect
from netcl.core.protocols import Queue


class Plans(dict[Any, Any]):
    """Prepared launches by key; when there are too many the older half goes, so that ever new shapes fill no memory."""

    LIMIT = 4096

    def __setitem__(self, key: Any, plan: Any) -> None:
        if len(self) >= self.LIMIT and key not in self:
            for old in list(itertools.islice(self, self.LIMIT // 2)):
                self.pop(old, None)  # another thread may have dropped it
        super().__setitem__(key, plan)


_states: weakref.WeakSet[QueueState] = weakref.WeakSet()


class QueueState:
    """What belongs to one queue: its memory pools, pending host copies, the index-error flag and the device profile."""

    __slots__ = (
        "__weakref__",
        "armed",
        "flag",
        "lock",
        "maker",
        "pending",
        "persistent",
        "pinned",
        "plans",
        "pool",
        "profile",
        "sites",
        "twin",
    )

    def __init__(self) -> None:
        self.pool: Any = None  # a memory.BufferPool
        self.pinned: Any = None  # a memory.PinnedBufferPool
        self.persistent: Any = None  # a memory.PersistentBufferPool
        self.pending: deque[tuple[Any, Any]] = deque()  # (event, host memory that must outlive it)
        self.flag: Any = None  # device buffer of four ints that index kernels report errors in
        self.sites: list[str] = [""]  # sites[code] names the op that armed the flag with `code`
        self.armed = False
        self.plans = Plans()  # prepared launches by what is computed over which layouts
        self.profile: Any = None
        self.maker: Any = None  # what makes device memory for the pools of the queue
        self.twin: Any = None  # a queue of the same device that takes time stamps (backend/timed.py)
        self.lock = threading.RLock()
        _states.add(self)


class CPUQueue:
    """Stands in for a command queue on the NumPy backend; work on it is done when a call returns."""

    __slots__ = ("netcl_state",)
    device = context = None
    int_ptr = 0

    def __init__(self) -> None:
        self.netcl_state = QueueState()

    def finish(self) -> None:
        """Nothing to wait for."""

    def flush(self) -> None:
        """Nothing to send."""

    def __repr__(self) -> str:
        return "CPUQueue()"


_creation = threading.Lock()


def _drop_plans() -> None:
    for state in list(_states):
        state.plans.clear()


dialect.forget.append(_drop_plans)


def state_of(queue: Queue) -> QueueState:
    """The state of `queue`, made on first use; pyopencl queues carry it as an attribute, so it dies with them."""
    try:
        state: QueueState = queue.netcl_state
    except AttributeError:
        with _creation:
            if not hasattr(queue, "netcl_state"):
                vars(queue)["netcl_state"] = QueueState()
            state = queue.netcl_state
    return state
