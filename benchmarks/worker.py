"""A child process that holds prepared closures and times one on command: `python -m benchmarks.worker ROLE ...`.

Each side lives in a process of its own, so that one side's idle thread pool does not spin beside the other's work. The
reference forks for every case, so that no case depends on what the one before left in the allocator.
Commands and answers are JSON lines; whatever libraries print goes to stderr.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import suites
from benchmarks.case import Case, Work, to_device
from benchmarks.timing import calls_for, measure, rouse, settle

SPINS = 0.25  # seconds that OpenBLAS' threads spin on after a call, beside the other side, unseen by the CPU clock


class Prepared:
    """A closure ready to run, and how often one measurement calls it."""

    def __init__(self, work: Work, call: Callable[[], Any], finish: Callable[[], None], spins: float = 0.0) -> None:
        self.work, self.call, self.finish, self.calls, self.spins = work, call, finish, 1, spins
        if work.returns_seconds:
            return
        for _ in range(2):  # the first builds, the second fills pools
            measure(call, 1, finish)
        for _ in range(3):  # a count found from few calls is corrected by one found from many
            self.calls = calls_for(min(measure(call, self.calls, finish)[0] for _ in range(3)))
            if self.calls == 1:
                break

    def time(self) -> tuple[float, float]:
        """(wall, CPU) seconds of a call."""
        if self.work.returns_seconds:
            seconds = float(self.call())
            return seconds, seconds
        rouse(self.call, self.finish)
        result = measure(self.call, self.calls, self.finish, self.work.waits)
        time.sleep(self.spins)
        settle()
        return result


class Ours:
    """netcl on the device asked for."""

    def __init__(self, device: str, threads: int) -> None:
        from netcl.core.backend import opencl
        from netcl.core.device import manager

        handle = manager.default(device)
        self.queue, self.profile, self.backend = handle.queue, handle.profile, opencl

    def facts(self) -> dict[str, Any]:
        """The device and what it runs on."""
        p = self.profile
        return {"device": p.name, "driver": f"{p.platform} {p.driver}", "kind": p.kind, "vendor": p.vendor,
                "units": p.compute_units, "versions": versions("netcl", "pyopencl", "numpy")}  # fmt: skip

    def finish(self) -> None:
        """Wait for the queue."""
        if self.profile.kind != "numpy":
            self.backend.finish(self.queue)

    def prepare(self, work: Work, side: str, arrays: Any) -> Prepared:
        """Set up one side of a work."""
        method = work.ours if side == "ours" else work.other
        return Prepared(work, method(self.queue, *to_device(self.queue, arrays)), self.finish)

    def ceilings(self) -> dict[str, Any]:
        """See benchmarks/ceilings.py."""
        from benchmarks.ceilings import ceilings

        return ceilings(self.queue, self.profile)

    def error(self, work: Work) -> float:
        """Distance of our result from float64."""
        return work.error(*work.outputs(self.queue))


class Reference:
    """PyTorch (where it is installed) and NumPy."""

    def __init__(self, device: str, threads: int) -> None:
        try:
            import torch

            torch.set_num_threads(threads)
            self.has_torch = True
        except ImportError:
            self.has_torch = False

    def facts(self) -> dict[str, Any]:
        """What is installed."""
        return {"torch": self.has_torch, "versions": versions("torch", "numpy")}

    def prepare(self, work: Work, side: str, arrays: Any) -> Prepared:
        """Set up one side of a work."""
        if side == "numpy":
            return Prepared(work, work.numpy(*arrays), lambda: None, SPINS)
        import torch

        return Prepared(work, work.torch(*[torch.from_numpy(a) for a in arrays]), lambda: None)


def versions(*packages: str) -> dict[str, str]:
    """Versions of the packages that are installed, and Python's."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # netcl run from a checkout has no metadata
            if name == "netcl":
                import netcl

                found[name] = netcl.__version__
    return found


class Worker:
    """Answers commands for one role."""

    def __init__(self, role: str, device: str, threads: int) -> None:
        self.role: Any = (Ours if role == "ours" else Reference)(device, threads)
        self.prepared: dict[str, Prepared] = {}

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Do what `command["do"]` says."""
        do = command["do"]
        if do == "facts":
            return self.role.facts()
        if do == "ceilings":
            return self.role.ceilings()
        if do == "time":
            wall, cpu = self.prepared[command["side"]].time()
            return {"wall": wall, "cpu": cpu}
        if do == "drop":
            self.prepared.clear()
            gc.collect()
            return {}
        work = self.case(command).work
        if do == "error":
            self.prepared.clear()
            return {"error": self.role.error(work)}
        arrays = work.inputs(np.random.default_rng(0))
        self.prepared[command["side"]] = self.role.prepare(work, command["side"], arrays)
        return {"calls": self.prepared[command["side"]].calls}

    def case(self, command: dict[str, Any]) -> Case:
        """The case a command names."""
        return suites.find(command["suite"], command["case"])


def main(role: str, device: str, threads: str) -> None:
    """Read commands until the input ends."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker, forked = Worker(role, device, int(threads)), False
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "prepare" and role != "ours" and not forked:
            pid = os.fork()
            if pid:
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                if status:  # it died without an answer
                    send(channel, {"failed": f"the {role} process ended with status {status}"})
                continue
            forked = True
        try:
            answer = worker.answer(command)
        except Exception as error:  # a failing case is a row of the table, the next one still runs
            answer = {"failed": f"{type(error).__name__}: {error}".splitlines()[0], "trace": traceback.format_exc()}
        send(channel, answer)
        if forked and command["do"] == "drop":
            os._exit(0)


def send(channel: Any, answer: dict[str, Any]) -> None:
    """Write an answer."""
    channel.write(json.dumps(answer) + "\n")
    channel.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
