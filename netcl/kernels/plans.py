"""Prepared launches: what depends only on shapes, strides and dtypes is worked out once per queue, then looked up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from netcl.core.protocols import Queue
from netcl.core.queue import state_of

Plan = TypeVar("Plan")


def remember(queue: Queue, key: Any, make: Callable[[], Plan]) -> Plan:
    """The plan of `key` for `queue`, made on first use (see core.queue.Plans)."""
    try:
        plans = queue.netcl_state.plans
    except AttributeError:  # a queue of the user's own, at its first op
        plans = state_of(queue).plans
    found: Plan | None = plans.get(key)
    if found is None:
        found = plans[key] = make()
    return found
