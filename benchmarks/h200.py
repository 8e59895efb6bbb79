"""The whole suite and benchmarks on a machine with an NVIDIA GPU and PyTorch: `python -m benchmarks.h200`.

Times are medians of interleaved rounds (ours, theirs, ours, ...), many calls each with one wait at the end, so that
clocks and heat are alike. Records are appended to benchmarks/results/h200-gpu.jsonl (--save) with date, device and
driver, each as soon as it is there.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import re
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu_cases import Call, Env, GpuCase

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "h200-gpu.jsonl"
TABLES = (
    "gpu_cases",
    "gpu_norm_attention",
    "gpu_moving",
    "gpu_feed",
    "gpu_steps",
)  # modules of benchmarks with a tuple CASES


def cases(pattern: str = "", targets: bool = False) -> list[GpuCase]:
    """The cases of all tables whose name matches; with `targets` only those that have one."""
    listed = [case for module in TABLES for case in importlib.import_module(f"benchmarks.{module}").CASES]
    return [case for case in listed if re.search(pattern, case.name) and (case.target or not targets)]


def sample(call: Call, finish: Call, calls: int) -> float:
    """Seconds of `calls` calls and the wait for their end."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    finish()
    return time.perf_counter() - start


def measure(env: Env, case: GpuCase, rounds: int, seconds: float) -> dict[str, Any]:
    """The record of one case: median times in microseconds, their ratio, errors and rates."""
    pair = case.make(env)
    ours_error, their_error = pair.errors()
    sides = [
        pair.seconds or partial(sample, pair.ours, env.queue.finish),
        partial(sample, pair.theirs, env.torch.cuda.synchronize),
    ]
    calls = []
    for side in sides:
        side(3)
        calls.append(max(3, min(400, int(seconds / max(side(3) / 3, 1e-6)))))
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for i, side in enumerate(sides):
            times[i].append(side(calls[i]) / calls[i])
            time.sleep(seconds / 2)
    ours, theirs = (statistics.median(t) for t in times)
    return {
        "case": case.name, "ours_us": round(1e6 * ours, 2), "torch_us": round(1e6 * theirs, 2),
        "ratio": round(theirs / ours, 3), "target": case.target, "error": float(f"{ours_error:.3g}"),
        "torch_error": float(f"{their_error:.3g}"), "tflops": round(pair.flops / ours / 1e12, 1),
        "torch_tflops": round(pair.flops / theirs / 1e12, 1), "gbs": round(pair.bytes / ours / 1e9, 1),
        "spread": round(max(times[0]) / min(times[0]) - 1, 3),
    }  # fmt: skip


def row(record: dict[str, Any]) -> str:
    """A line of the table."""
    if "failed" in record:
        return f"{record['case']:<40} FAILED {record['failed']}"
    mark = "" if record["target"] is None else ("ok  " if record["ratio"] >= record["target"] else "LOW ")
    return (
        f"{record['case']:<40}{record['ours_us']:>10.1f}{record['torch_us']:>10.1f}{record['ratio']:>8.2f}"
        f"{record['target'] or '':>6} {mark:<4}{record['error']:>9.1e}{record['torch_error']:>9.1e}"
        f"{record['tflops']:>8.1f}{record['torch_tflops']:>8.1f}{record['gbs']:>8.0f}{record['spread']:>7.2f}"
    )


def run(args: argparse.Namespace) -> None:
    """Measure the chosen cases, print the table and keep each record."""
    import torch

    from netcl.core.device import manager

    handle = manager.default(args.device)
    env = Env(torch, handle.queue)
    facts = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": handle.profile.name, "driver": handle.profile.driver, "torch": torch.__version__,
        "rounds": args.rounds,
    }  # fmt: skip
    print(" ".join(str(v) for v in facts.values()), "(us, ratio torch/ours, errors, TFLOP/s, GB/s, spread)")
    for case in cases(args.filter, args.targets):
        try:
            record = measure(env, case, args.rounds, args.seconds)
        except Exception as error:  # one case that fails must not hide the others
            record = {"case": case.name, "failed": f"{type(error).__name__}: {error}"[:400]}
        record |= facts
        for path in (RESULTS if args.save else None, args.json):
            if path is not None:
                with path.open("a") as file:
                    file.write(json.dumps(record) + "\n")
        print(row(record), flush=True)
        torch.cuda.empty_cache()


def main(argv: list[str] | None = None) -> int:
    """Tests, then benchmarks; 1 when a test failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.h200", description="Tests and times on an NVIDIA GPU.")
    parser.add_argument("--filter", default="", metavar="RE", help="only cases whose name matches")
    parser.add_argument("--device", default="gpu", help="as for manager.default")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.04, help="of one measurement")
    parser.add_argument("--targets", action="store_true", help="only cases with a target")
    parser.add_argument("--workers", type=int, default=8, help="processes that run tests")
    parser.add_argument("--no-tests", action="store_true")
    parser.add_argument("--tests-only", action="store_true")
    parser.add_argument("--save", action="store_true", help=f"append the records to {RESULTS.relative_to(ROOT)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the records to FILE")
    args = parser.parse_args(argv)
    status = 0
    if not args.no_tests:
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(args.workers)]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if not args.tests_only:
        run(args)
    return min(status, 1)


if __name__ == "__main__":
    sys.exit(main())
