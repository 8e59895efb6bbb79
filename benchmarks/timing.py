"""Clocks: one measurement of a closure, how many calls it should hold, and the wait until a thread pool is quiet."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

SHORTEST = 3e-3  # seconds a measurement should take: shorter work is called several times with one wait at the end
MOST_CALLS = 500


def measure(call: Callable[[], Any], calls: int, finish: Callable[[], None], waits: bool = True) -> tuple[float, float]:
    """(wall, CPU) seconds of one call, over `calls` calls and the wait for their end; CPU time is that of all threads.

    With `waits` False the clocks stop when the last call returns, and CPU time is that of the calling thread.
    """
    clock = time.process_time if waits else time.thread_time
    cpu, wall = clock(), time.perf_counter()
    for _ in range(calls):
        call()
    if waits:
        finish()
    wall, cpu = time.perf_counter() - wall, clock() - cpu
    if not waits:
        finish()
    return wall / calls, cpu / calls


def calls_for(seconds: float) -> int:
    """How many calls of this length make one measurement."""
    return max(1, min(MOST_CALLS, math.ceil(SHORTEST / max(seconds, 1e-7))))


def rouse(call: Callable[[], Any], finish: Callable[[], None], seconds: float = 0.03) -> None:
    """Work for a while: after the other side's turn kernels of virtual machines leave all threads on one core."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        call()
        finish()


def settle(limit: float = 0.4, pause: float = 2e-3) -> None:
    """Wait until no thread of this process runs: OpenMP pools spin on for a while, and would beside the other side."""
    end = time.perf_counter() + limit
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(pause)
        if time.process_time() - before < 0.1 * pause:
            return


def summary(samples: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Medians and bests of wall and CPU time in ms; on a busy machine the best CPU time is nearest to true."""
    walls, cpus = [wall for wall, _ in samples], [cpu for _, cpu in samples]
    return {
        "ms": round(1e3 * statistics.median(walls), 5),
        "best_ms": round(1e3 * min(walls), 5),
        "cpu_ms": round(1e3 * statistics.median(cpus), 5),
        "best_cpu_ms": round(1e3 * min(cpus), 5),
    }
