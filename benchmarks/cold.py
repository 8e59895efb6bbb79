"""First steps in fresh processes, with an empty cache and with a filled one: the demo, and ResNet18.

    python -m benchmarks.cold [--runs 3] [demo] [resnet18]

Each run has a cache folder of its own. "time" is the whole command without imports (demo, one epoch), or from making
the model to the loss of the first step (ResNet18, batches of four 3x64x64); "cpu" is user and system time of the
process and all that it started meanwhile; "start" is the whole process. Where time is far above cpu, others were busy.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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


def process(case: str, folder: Path) -> dict[str, float]:
    """A case in a new process that keeps its programs in `folder`."""
    root = Path(__file__).resolve().parents[1]
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    own = {"NETCL_CACHE_DIR": str(folder), "POCL_CACHE_DIR": "", "CUDA_CACHE_PATH": str(folder / "nvidia")}
    environment = {**os.environ, **own, "NETCL_CACHE_MB": "512", "NETCL_QUIET": "1", "PYTHONPATH": path}
    command, began = [sys.executable, "-m", "benchmarks.cold", "--worker", case], time.perf_counter()
    done = subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return {**json.loads(done.stdout.splitlines()[-1]), "start": time.perf_counter() - began}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cases", nargs="*", help=f"among {', '.join(CASES)} (default: all)")
    parser.add_argument("--runs", type=int, default=3, help="cold and warm runs of each (default %(default)s)")
    parser.add_argument("--worker", choices=CASES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.worker)
    unknown = set(args.cases) - set(CASES)
    if unknown or args.runs < 1:
        parser.error(f"expected cases among {', '.join(CASES)} and at least one run")
    print(f"{'':14}{'time s':>9}{'cpu s':>9}{'start s':>9}{'built':>8}{'found':>8}{'building s':>12}")
    for case in args.cases or CASES:
        rows: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
        for _ in range(args.runs):
            with tempfile.TemporaryDirectory() as folder:
                for kind in rows:
                    rows[kind].append(process(case, Path(folder)))
        for kind, found in rows.items():
            t, cpu, start, built, hits, building = (statistics.median(row[f] for row in found) for f in FIELDS)
            name = f"{case} {kind}"
            print(f"{name:14}{t:9.2f}{cpu:9.2f}{start:9.2f}{built:8.0f}{hits:8.0f}{building:12.2f}", flush=True)


if __name__ == "__main__":
    main()
