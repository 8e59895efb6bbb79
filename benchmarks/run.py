"""Runs cases: child processes, one command at a time, alternately; one record a case."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.case import Case, Work
from benchmarks.ceilings import share
from benchmarks.timing import summary

ROOT = Path(__file__).resolve().parents[1]
WRONG = 1e-2  # an error from which no time counts
TIMEOUT = 180.0  # seconds a child may take for one command; building kernels is the longest


Sample = tuple[float, float]
# glibc gives the memory of large arrays back and takes it again, page by page, at each call. These keep it.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(1 << 28)}


class Failed(RuntimeError):
    """A case, or a child, that could not do what was asked."""


@dataclass(frozen=True)
class Options:
    """How to run: see `python -m benchmarks --help`."""

    suite: str = "cpu"
    reference: str = "torch"
    repeat: int = 11
    threads: int = 2
    twice: bool = True
    device: str = "auto"
    python: str = field(default_factory=lambda: os.environ.get("NETCL_BENCH_PYTHON") or sys.executable)


class Child:
    """A worker process; started again after it died."""

    def __init__(self, role: str, options: Options) -> None:
        self.role, self.options = role, options
        self.process: subprocess.Popen[str] | None = None

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command and wait for the answer. Raises Failed with the reason."""
        if self.process is not None and self.process.poll() is not None:
            self.close()
        if self.process is None:
            self.process = self._start()
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        watch = threading.Timer(TIMEOUT, process.kill)
        watch.start()
        try:
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            watch.cancel()
        if not line:
            raise Failed(f"the {self.role} process ended with status {process.wait()} during {command['do']!r}")
        answer = json.loads(line)
        if "failed" in answer:
            if os.environ.get("NETCL_BENCH_TRACE") == "1":
                print(answer["trace"], file=sys.stderr)
            raise Failed(answer["failed"])
        return answer

    def _start(self) -> subprocess.Popen[str]:
        n = str(self.options.threads)
        pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POCL_MAX_PTHREAD_COUNT")
        env = os.environ | dict.fromkeys(pools, n) | {"PYTHONPATH": path_with(str(ROOT))}
        env |= KEEP_MEMORY if self.role == "kept" else {}
        python = sys.executable if self.role == "ours" else self.options.python
        arguments = [python, "-m", "benchmarks.worker", self.role, self.options.device, n]
        return subprocess.Popen(arguments, stdin=-1, stdout=-1, text=True, cwd=ROOT, env=env)

    def close(self) -> None:
        """End the process: closing its input is enough."""
        if self.process is not None:
            self.process.communicate()  # closes both pipes and waits
            self.process = None


def path_with(folder: str) -> str:
    """PYTHONPATH with `folder` in front."""
    return os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])


class Session:
    """The children, what they run on, and the ceilings measured at the start.

    Each case is measured twice: beside the reference as it comes, and beside one that keeps its memory as netcl does.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.ours, self.reference, self.kept = (Child(role, options) for role in ("ours", "reference", "kept"))
        self.facts = self.ours.ask(do="facts")
        self.other_facts = self.reference.ask(do="facts") if options.reference != "none" else {"versions": {}}
        self.ceilings = self.ours.ask(do="ceilings")
        self.common = {
            "device": self.facts["device"], "driver": self.facts["driver"],
            "versions": self.other_facts["versions"] | self.facts["versions"], "commit": commit(),
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "machine": machine(self.facts), "threads": options.threads, "ceilings": self.ceilings,
        }  # fmt: skip

    def close(self) -> None:
        """End both children."""
        for child in (self.ours, self.reference, self.kept):
            child.close()

    def run(self, cases: list[Case], show: Callable[[dict[str, Any]], None]) -> Iterator[dict[str, Any]]:
        """The record of each case; `show` gets it as soon as it is known."""
        for case in cases:
            record = self.record(case)
            show(record)
            yield record

    def record(self, case: Case) -> dict[str, Any]:
        """Measure one case. What cannot run becomes a record with `failed`, its reason."""
        record: dict[str, Any] = {
            "case": case.name, "suite": self.options.suite, "ours_ms": None, "reference": self._side(case) or "none",
            "reference_ms": None, "ratio": None, "target": case.target, "error": None, "note": case.note,
        }  # fmt: skip
        try:
            record |= self._measure(case)
        except Failed as failure:
            record["failed"] = str(failure)
        finally:
            for child in (self.ours, self.reference, self.kept):
                if child.process is not None and child.process.poll() is None:
                    child.ask(do="drop")
        return record | self.common

    def _side(self, case: Case) -> str:
        """Which side ours is compared with, "" for none. --reference replaces torch, "none" also removes NumPy."""
        if case.reference in ("netcl", "limit"):
            return case.reference
        wanted = self.options.reference
        if wanted == "none" or (wanted == "numpy" and type(case.work).numpy is Work.numpy):
            return ""
        return "numpy" if wanted == "numpy" else case.reference

    def _measure(self, case: Case) -> dict[str, Any]:
        name = {"suite": self.options.suite, "case": case.name}
        ours, side = Side(self.ours, "ours", name), self._side(case)
        first: list[Sample] = []
        result: dict[str, Any] = {}
        try:
            if side in ("torch", "numpy"):
                first, theirs = alternate(ours, Side(self.reference, side, name), self.options.repeat)
                result |= compare("reference", first, theirs)
                if self.options.twice:
                    again, theirs = alternate(ours, Side(self.kept, side, name), self.options.repeat)
                    result |= compare("kept", again, theirs) | {"ours_again_ms": summary(again)["ms"]}
            elif side == "netcl":
                first, theirs = alternate(ours, Side(self.ours, "netcl", name), self.options.repeat)
                result |= compare("reference", first, theirs)
        except Failed as failure:  # ours is still worth knowing
            result["failed"] = f"{side}: {failure}"
        first = first or alternate(ours, None, self.options.repeat)[0]
        result |= self._ours(case, ours, first)
        if side == "limit":
            result |= {"reference_ms": 1e3 * case.limit, "ratio": round(1e3 * case.limit / result["ours_ms"], 3)}
        result["error"] = self._error(name, case)
        if result["error"] is not None and not result["error"] < WRONG:
            result["failed"] = f"the result is wrong: error {result['error']}"
        return result

    def _ours(self, case: Case, ours: Side, samples: list[Sample]) -> dict[str, Any]:
        found: dict[str, Any] = {"ours_" + k: v for k, v in summary(samples).items()}
        rate, unit, part = share(self.ceilings, case.work.flops(), case.work.bytes(), 1e-3 * found["ours_ms"])
        if unit:
            found |= {"rate": round(rate, 2), "unit": unit, "share": None if part is None else round(part, 3)}
        return found | {"runs": len(samples), "calls": ours.calls}

    def _error(self, name: dict[str, str], case: Case) -> float | None:
        if case.work.returns_seconds:
            return None
        return float(f"{self.ours.ask(do='error', **name)['error']:.3g}")


class Side:
    """One prepared side of a case."""

    def __init__(self, child: Child, side: str, name: dict[str, str]) -> None:
        self.child, self.side = child, side
        self.calls = child.ask(do="prepare", side=side, **name)["calls"]

    def time(self) -> Sample:
        """(wall, CPU) seconds of one call."""
        answer = self.child.ask(do="time", side=self.side)
        return answer["wall"], answer["cpu"]


def alternate(ours: Side, other: Side | None, repeat: int) -> tuple[list[Sample], list[Sample]]:
    """`repeat` measurements of each side in turn, the first to go changing from round to round."""
    mine: list[Sample] = []
    theirs: list[Sample] = []
    for turn in range(repeat + 1):  # the first round, not counted, brings both back into the caches
        for side, samples in [(ours, mine), (other, theirs)][:: -1 if turn % 2 else 1]:
            if side is not None:
                samples.append(side.time())
    return mine[1:], theirs[1:]


def compare(name: str, ours: list[Sample], other: list[Sample]) -> dict[str, Any]:
    """The other side's figures and the ratios over ours; those of the reference itself are called just `ratio`."""
    mine, theirs = summary(ours), summary(other)
    prefix = "" if name == "reference" else f"{name}_"
    found: dict[str, Any] = {f"{name}_{k}": v for k, v in theirs.items()}
    found[f"{prefix}ratio"] = round(theirs["ms"] / mine["ms"], 3)
    if mine["best_cpu_ms"]:
        found[f"{prefix}cpu_ratio"] = round(theirs["best_cpu_ms"] / mine["best_cpu_ms"], 3)
    return found


def commit() -> str:
    """The commit of the checkout, marked when files differ from it; "" outside git."""
    try:
        return subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine(facts: dict[str, Any]) -> str:
    """The machine's short name in file names: "cpu-pocl", "cpu-intel", "h200"."""
    if facts["kind"] == "gpu":
        return str(facts["device"]).split()[-1].lower()
    vendor = "intel" if str(facts["driver"]).startswith("Intel") else str(facts["vendor"]).lower()
    return "numpy" if facts["kind"] == "numpy" else f"{facts['kind']}-{vendor}"
