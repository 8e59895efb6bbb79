"""The bandwidth and the arithmetic rate that a device reaches at best, measured once per device and process."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from netcl.core.backend import opencl
from netcl.core.device import queue_of
from netcl.core.device.profile import profile_of
from netcl.core.memory import empty_buffer
from netcl.core.protocols import Queue
from netcl.core.queue import CPUQueue
from netcl.runtime.cache import get_kernel

ROUNDS = 5


class Peaks(NamedTuple):
    """Bytes a second (read and written) and float operations a second."""

    bandwidth: float
    operations: float

    def share(self, bandwidth: float, operations: float) -> float:
        """How much of the nearer limit these rates reach."""
        return max(bandwidth / self.bandwidth, operations / self.operations)


_known: dict[Any, Peaks] = {}


def peaks(queue: Any) -> Peaks:
    """The peaks of the device behind `queue`. Takes about half a second the first time."""
    queue = queue_of("peaks", queue)
    key = "numpy" if isinstance(queue, CPUQueue) else queue.device.int_ptr
    if key not in _known:
        _known[key] = _measure_numpy() if isinstance(queue, CPUQueue) else _measure(queue)
    return _known[key]


def _best(run: Callable[[], None], finish: Callable[[], None]) -> float:
    """Least seconds of a run, after one that is not counted."""
    best = float("inf")
    for i in range(ROUNDS + 1):
        start = time.perf_counter()
        run()
        finish()
        best = min(best, time.perf_counter() - start) if i else best
    return best


def _measure(queue: Queue) -> Peaks:
    profile = profile_of(queue)
    cpu = profile.kind == "cpu"
    width, group, chunk = (profile.vector, 1, 4096) if cpu else (4, profile.group(256), 1)
    text = f"#define W {width}\n" + (resources.files("netcl.profiling") / "peak.cl").read_text(encoding="utf-8")
    stream = get_kernel(queue, text, "stream")
    chains = get_kernel(queue, text, "fma_chains", ("-cl-mad-enable",))

    def finish() -> None:
        opencl.finish(queue)

    # beyond any cache, and long enough that the launch does not count
    room = min(profile.max_alloc // 2, profile.global_mem // 16, (64 if cpu else 512) << 20)
    items = max(group, room // (4 * width * chunk) // group * group)
    nbytes = items * chunk * width * 4
    x, y = empty_buffer(queue, nbytes), empty_buffer(queue, nbytes)
    opencl.fill_buffer(queue, x, np.float32(1), nbytes)
    took = _best(lambda: opencl.launch(stream, queue, (items,), (group,), x, y, chunk), finish)
    workers = profile.compute_units * (4 if cpu else 16 * group)
    workers = min(workers // group * group, nbytes // (4 * width))
    rounds = 20000 if cpu else 4096
    work = _best(lambda: opencl.launch(chains, queue, (workers,), (group,), y, rounds, 0.25), finish)
    return Peaks(2 * nbytes / took, workers * rounds * 16 * width * 2 / work)


def _measure_numpy() -> Peaks:
    source = np.ones(8 << 20, np.float32)
    target, a = np.empty_like(source), np.ones((512, 512), np.float32)
    took = _best(lambda: np.copyto(target, source), lambda: None)
    work = _best(lambda: _product(a), lambda: None)
    return Peaks(2 * source.nbytes / took, 2 * 512**3 / work)


def _product(a: np.ndarray) -> None:
    np.matmul(a, a)
