"""Finding the sizes that make a kernel fast on a device. Never on its own: `netcl tune`, or a call.

`AutoTuner` tries work-group sizes of given kernels, or configs (named sizes) through a function that runs with them,
and writes what it found to the user's tuning table (kernel -> device -> sizes), which ops look into before their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from netcl.core import process
from netcl.core.backend import timed
from netcl.core.device import queue_of
from netcl.core.device.profile import profile_of
from netcl.core.errors import DeviceError, NetclError
from netcl.core.protocols import Queue
from netcl.profiling.timer import EventTimer

with contextlib.suppress(ImportError):  # without pyopencl there is nothing to tune
    import pyopencl as cl

Config = dict[str, int]
MAX_GROUP, RUNS = 256, 3


@dataclass(frozen=True)
class AutotuneResult:
    """The fastest local size of a kernel over one global size. `tried` holds microseconds by local size."""

    best_local_size: tuple[int, ...]
    runtime_us: float
    tried: dict[tuple[int, ...], float] = field(default_factory=dict)


class WorkGroupTuner:
    """Finds the local size of one kernel whose arguments are set (or given as `args`)."""

    def __init__(
        self,
        kernel: Any,
        global_size: Sequence[int],
        candidates: Iterable[Any] | None = None,
        args: Sequence[Any] = (),
    ) -> None:
        self.kernel, self.global_size, self.args = kernel, tuple(global_size), tuple(args)
        self.candidates = candidates

    def tune(self, queue: Queue, candidates: Iterable[Any] | None = None) -> AutotuneResult:
        """Time every candidate that the device takes: one run dropped, then the mean of three.

        Candidates are local sizes (numbers stand for the first axis), by default powers of two to 256.
        """
        given = candidates or self.candidates or [1 << i for i in range(MAX_GROUP.bit_length())]
        limit, tried = profile_of(queue).max_work_group, {}
        for candidate in given:
            local = (candidate,) if isinstance(candidate, int) else tuple(candidate)
            local += (1,) * (len(self.global_size) - len(local))
            items = 1
            for n in local:
                items *= n
            if items > limit or any(g % n for g, n in zip(self.global_size, local, strict=True)):
                continue
            with contextlib.suppress(cl.Error):  # more registers or local memory than the device has
                tried[local] = self._run(queue, local) * 1e6
        if not tried:
            raise DeviceError(f"tune: expected a local size that divides {self.global_size}, up to {limit}, got none.")
        best = min(tried, key=lambda n: tried[n])
        return AutotuneResult(best, tried[best], tried)

    def _run(self, queue: Queue, local: tuple[int, ...]) -> float:
        """Mean seconds; not through `launch`, because the arguments may have been set by the caller."""
        handle, times = self._handle(), []
        timed.start()
        try:
            target = process.target(queue)
            if self.args:
                handle.set_args(*self.args)
            for _ in range(1 + RUNS):
                times.append(EventTimer.of(cl.enqueue_nd_range_kernel(target, handle, self.global_size, local)))
        finally:
            timed.stop()
        return sum(times[1:]) / RUNS

    def _handle(self) -> Any:
        """The kernel object to run: with `args` one of our own, since launches remember what they set on theirs."""
        shared = getattr(self.kernel, "handle", self.kernel)
        if shared is self.kernel or not self.args:
            return shared
        own = cl.Kernel(shared.program, self.kernel.name)
        own.set_scalar_arg_dtypes(list(self.kernel.types))
        return own


def autotune(
    kernel: Any,
    queue: Any,
    global_size: Sequence[int],
    candidates: Iterable[Any] | None = None,
    args: Sequence[Any] = (),
) -> AutotuneResult:
    """The fastest local size of one kernel over `global_size`: `WorkGroupTuner` in one call."""
    return WorkGroupTuner(kernel, global_size, candidates, args).tune(queue_of("autotune", queue))


def _table(path: Path) -> dict[str, dict[str, Config]]:
    """The tuning table at `path`, empty where there is none."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise NetclError(f"tune: expected to read the tuning table {path}, got {error.strerror}.") from None
    except ValueError as error:
        raise NetclError(f"tune: expected a tuning table in {path}, got {error}; repair or delete it.") from None
    if not isinstance(table, dict) or not all(isinstance(devices, dict) for devices in table.values()):
        raise NetclError(f"tune: expected a tuning table in {path}, got other JSON; repair or delete it.")
    return table


class AutoTuner:
    """Results by device; `device` is a queue, or None for that of each call.

    Local sizes: `add` kernels, `tune_all(queue)`, `lookup`. Each (device, kernel, global size) is measured once.
    Named sizes: `search` with configs to try, then `save` to the user's tuning table.
    """

    def __init__(self, device: Any = None) -> None:
        self.queue = device
        self.results: dict[tuple[str, str, tuple[int, ...]], AutotuneResult] = {}  # (device, kernel, global size)
        self.configs: dict[str, dict[str, Config]] = {}  # kernel -> device -> sizes, as in the tuning table
        self._tasks: dict[tuple[str, tuple[int, ...]], WorkGroupTuner] = {}

    # -- local sizes -------------------------------------------------------------------------------------------------

    def add(
        self, name: str, kernel: Any, global_size: Sequence[int], args: Sequence[Any] = (), candidates: Any = None
    ) -> None:
        """Remember a kernel to tune over one global size."""
        self._tasks[name, tuple(global_size)] = WorkGroupTuner(kernel, global_size, candidates, args)

    def tune_all(self, queue: Any = None) -> dict[tuple[str, str, tuple[int, ...]], AutotuneResult]:
        """Measure what was added and not measured on this device before; all results."""
        queue = self._queue(queue)
        device = profile_of(queue).name
        for (name, size), task in self._tasks.items():
            if (device, name, size) not in self.results:
                self.results[device, name, size] = task.tune(queue)
        return self.results

    def lookup(self, name: str, global_size: Sequence[int], queue: Any = None) -> AutotuneResult | None:
        """The result for a kernel over a global size, on the device of `queue` or on any; None when not measured."""
        device = profile_of(queue).name if queue is not None else None
        for (on, found, size), result in self.results.items():
            if (found, size) == (name, tuple(global_size)) and device in (None, on):
                return result
        return None

    def clear(self) -> None:
        """Forget kernels and results."""
        self._tasks.clear()
        self.results.clear()
        self.configs.clear()

    # -- named sizes -------------------------------------------------------------------------------------------------

    def search(
        self, kernel: str, configs: Iterable[Config], run: Callable[[Config], Callable[[], Any]], queue: Any = None
    ) -> tuple[Config, dict[str, float]]:
        """The fastest of `configs` and the seconds of each that ran, by its text.

        Args: run: given a config, prepares the work and returns a function that does it once on the queue. Configs for
            which it, or the work, raises a NetclError (they do not fit the device) are left out.
        """
        queue, best, tried = self._queue(queue), None, {}
        for config in configs:
            with contextlib.suppress(NetclError):
                seconds = EventTimer(queue).measure(run(dict(config)), RUNS)
                tried[str(config)] = seconds
                if best is None or seconds < best[0]:
                    best = (seconds, dict(config))
        if best is None:
            raise DeviceError(f"tune: expected a config of {kernel!r} that runs on {profile_of(queue).name}, got none.")
        self.configs.setdefault(kernel, {})[profile_of(queue).name] = best[1]
        return best[1], tried

    def save(self, path: str | Path) -> Path:
        """Add the configs found to the tuning table at `path`, which need not exist; other entries stay."""
        path = Path(path).expanduser()
        table = _table(path)
        for kernel, devices in self.configs.items():
            table.setdefault(kernel, {}).update(devices)
        draft = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, draft = tempfile.mkstemp(prefix=".draft-", dir=path.parent)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(table, file, indent=2, sort_keys=True)
                file.write("\n")
            os.replace(draft, path)
        except OSError as error:
            if draft is not None:
                Path(draft).unlink(missing_ok=True)
            raise NetclError(f"tune: expected to write the tuning table {path}, got {error.strerror}.") from None
        return path

    def _queue(self, queue: Any) -> Any:
        queue = self.queue if queue is None else queue
        if queue is None:
            raise DeviceError("tune: expected a queue, got none; pass it here or to AutoTuner(queue).")
        return queue_of("tune", queue)


Autotuner = AutoTuner
