"""First steps in fresh processes, with an empty cache and with a filled one: the demo, and ResNet18.

    python -m benchmarks.cold [--runs 3] [--against CHECKOUT] [--save] [demo] [resnet18]

Each run has a cache folder of its own. "time" is the whole command without imports (demo, one epoch), or from making
the model to the loss of the first step (ResNet18, batches of four 3x64x64); "cpu" is user and system time of the
process and all that it started meanwhile; "start" is the whole process. Shown is the least of the runs. Where cpu on
two cores is far below twice the time, others were busy: --against runs another checkout in turns, and --save
adds the rows with date and commit to results/cold/first-steps.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CASES = ("demo", "resnet18")
FIELDS = ("time", "cpu", "start", "built", "found", "building")


def demo() -> None:
    """One epoch of `netcl train digits`."""
    from netcl.cli.main import main

    if main(["train", "digits", "--epochs", "1", "--fresh", "--quiet", "--out", "cold.netcl"]):
        raise SystemExit("benchmarks.cold: the demo failed")


def resnet18() -> None:
    """The first step of ResNet18 with SGD."""
    import numpy as np

    import netcl.autograd as ag
    from netcl.core.device import manager
    from netcl.core.tensor import Tensor
    from netcl.nn.models import ResNet18
    from netcl.optim import SGD

    queue, rng = manager.default("auto").queue, np.random.default_rng(0)
    model = ResNet18(queue, num_classes=10)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)

    @ag.CompiledStep
    def step(x: Any, y: Any) -> Any:
        with ag.Tape() as tape:
            loss = ag.cross_entropy(model(ag.tensor(x)), ag.tensor(y))
        tape.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    x, y = rng.standard_normal((4, 3, 64, 64), np.float32), rng.integers(0, 10, 4)
    step(Tensor.from_host(queue, x), Tensor.from_host(queue, y)).item()


def worker(case: str) -> None:
    """Run a case in this process and print what it took."""
    from netcl.core.device import manager
    from netcl.runtime.cache import cacher

    _ = manager.default("auto").queue
    began, used = time.perf_counter(), sum(os.times()[:4])
    {"demo": demo, "resnet18": resnet18}[case]()
    took, cpu, stats = time.perf_counter() - began, sum(os.times()[:4]) - used, cacher.stats
    found = {"time": took, "cpu": cpu, "built": stats.builds, "found": stats.disk_hits, "building": stats.seconds}
    print(json.dumps(found))


def process(case: str, folder: Path, root: Path) -> dict[str, float]:
    """A case in a new process of the checkout `root` that keeps its programs in `folder`."""
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    own = {"NETCL_CACHE_DIR": str(folder), "POCL_CACHE_DIR": "", "CUDA_CACHE_PATH": str(folder / "nvidia")}
    environment = {**os.environ, **own, "NETCL_CACHE_MB": "512", "NETCL_QUIET": "1", "PYTHONPATH": path}
    command, began = [sys.executable, "-m", "benchmarks.cold", "--worker", case], time.perf_counter()
    done = subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return {**json.loads(done.stdout.splitlines()[-1]), "start": time.perf_counter() - began}


def measured(case: str, runs: int, roots: list[Path]) -> dict[tuple[Path, str], dict[str, float]]:
    """For each checkout the least of each field, cold and warm; the checkouts take turns."""
    rows: dict[tuple[Path, str], list[dict[str, float]]] = {}
    for _ in range(runs):
        for root in roots:
            with tempfile.TemporaryDirectory() as folder:
                for kind in ("cold", "warm"):
                    rows.setdefault((root, kind), []).append(process(case, Path(folder), root))
    return {key: {field: min(row[field] for row in found) for field in FIELDS} for key, found in rows.items()}


def commit(root: Path) -> str:
    """The short hash of what a checkout holds."""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cases", nargs="*", help=f"among {', '.join(CASES)} (default: all)")
    parser.add_argument("--runs", type=int, default=3, help="cold and warm runs of each (default %(default)s)")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout, to run in turns with this")
    parser.add_argument("--save", action="store_true", help="add the rows to benchmarks/results/cold/first-steps.jsonl")
    parser.add_argument("--worker", choices=CASES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.worker)
    unknown = set(args.cases) - set(CASES)
    if unknown or args.runs < 1:
        parser.error(f"expected cases among {', '.join(CASES)} and at least one run")
    roots = [ROOT, *([args.against.resolve()] if args.against else [])]
    print(f"{'':24}{'time s':>9}{'cpu s':>9}{'start s':>9}{'built':>8}{'found':>8}{'building s':>12}")
    for case in args.cases or CASES:
        for (root, kind), row in measured(case, args.runs, roots).items():
            t, cpu, start, built, hits, building = (row[field] for field in FIELDS)
            name = f"{case} {kind} {commit(root)[:9]}"
            print(f"{name:24}{t:9.2f}{cpu:9.2f}{start:9.2f}{built:8.0f}{hits:8.0f}{building:12.2f}", flush=True)
            if args.save:
                saved = {"date": f"{date.today()}", "commit": commit(root), "case": case, "cache": kind}
                saved |= {field: round(value, 2) for field, value in row.items()} | {"runs": args.runs}
                with open(
                    ROOT / "benchmarks" / "results" / "cold" / "first-steps.jsonl", "a", encoding="utf-8"
                ) as file:
                    file.write(json.dumps(saved) + "\n")


if __name__ == "__main__":
    main()
