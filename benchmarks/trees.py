"""3x3 convolutions of two checkouts beside each other: `python -m benchmarks.trees PATH`, PATH the other one.

Each checkout runs in a process of its own, on the same values; its convolutions are recorded and replayed, so that the
host's work does not count. Both take turns in one run, and what is shown are medians. Matrix units are off unless
`--units` is given. An older checkout comes from `git worktree add --detach PATH COMMIT`.

    python -m benchmarks.trees ../before --device gpu
    python -m benchmarks.trees ../before --device cl:cpu --threads 16
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SHAPES = {  # of the input and of the filters
    "32 x 64 x 56 x 56 to 64": ((32, 64, 56, 56), (64, 64, 3, 3)),
    "16 x 128 x 28 x 28 to 128": ((16, 128, 28, 28), (128, 128, 3, 3)),
    "2 x 16 x 8 x 8 to 16": ((2, 16, 8, 8), (16, 16, 3, 3)),
}
USUAL = list(SHAPES)[:2]
DIRECTIONS = ("forward", "input", "weights")
DIFFERENT = 1e-4  # of the results' mean size, from which on two checkouts do not compute the same
SECONDS = 0.02  # a measurement should take
MOST = 200  # calls of a recording


# -- one checkout ------------------------------------------------------------------------------------------------------


def prepare(queue: Any, finish: Callable[[], None], shape: str, direction: str) -> tuple[Callable[[], float], float]:
    """A function that measures seconds of a call, and the mean size of its results."""
    from netcl.core.tensor import Tensor
    from netcl.ops.convolution.op import conv2d, conv2d_input_grad, conv2d_weight_grad
    from netcl.runtime.capture import KernelCapture

    (n, c, h, w), filters = SHAPES[shape]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s, np.float32) for s in ((n, c, h, w), filters, (n, filters[0], h, w))]
    x, f, g = (Tensor.from_host(queue, a) for a in arrays)
    call = {
        "forward": lambda: conv2d(x, f, padding=1),
        "input": lambda: conv2d_input_grad(g, f, x.shape, padding=1),
        "weights": lambda: conv2d_weight_grad(g, x, f.shape, padding=1),
    }[direction]
    mean = float(np.abs(call().to_host()).mean())

    def record(calls: int) -> Callable[[], float]:
        capture = KernelCapture()
        capture.begin()
        for _ in range(calls):
            call()
        capture.end()

        def sample() -> float:
            start = time.perf_counter()
            capture.replay()
            finish()
            return (time.perf_counter() - start) / calls

        return sample

    once = record(1)
    calls = max(1, min(MOST, round(SECONDS / min(once() for _ in range(5)))))
    return record(calls), mean


def serve(device: str) -> None:
    """Answer the commands of the parent: to prepare a convolution, or to measure the one that is prepared."""
    import netcl
    from netcl.core.backend import opencl
    from netcl.core.device import manager

    handle = manager.default(device)
    queue, sample = handle.queue, lambda: 0.0
    finish = (lambda: None) if handle.profile.kind == "numpy" else (lambda: opencl.finish(queue))
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any] = {"netcl": netcl.__file__, "device": handle.profile.name}
        if "shape" in command:
            sample, answer["mean"] = prepare(queue, finish, command["shape"], command["direction"])
        elif "time" in command:
            answer["seconds"] = sample()
        channel.write(json.dumps(answer) + "\n")
        channel.flush()


# -- both --------------------------------------------------------------------------------------------------------------


class Tree:
    """The process of a checkout."""

    def __init__(self, root: Path, args: argparse.Namespace) -> None:
        env = os.environ | {"PYTHONPATH": str(root)} | ({} if args.units else {"NETCL_MATRIX_UNITS": "none"})
        env |= {"POCL_MAX_PTHREAD_COUNT": str(args.threads)} if args.threads else {}
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", "--device", args.device]
        self.process = subprocess.Popen(command, stdin=-1, stdout=-1, text=True, cwd=root, env=env)
        known = self.ask()
        self.device = known["device"]
        if Path(known["netcl"]).resolve().parents[1] != root:
            raise SystemExit(f"benchmarks.trees: expected netcl of {root}, got {known['netcl']}.")

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command and wait for the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"benchmarks.trees: a process ended with status {self.process.wait()} during {command}.")
        return dict(json.loads(line))

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def compare(trees: list[Tree], shape: str, direction: str, rounds: int) -> str:
    """A line of the table."""
    means = [tree.ask(shape=shape, direction=direction)["mean"] for tree in trees]
    times: list[list[float]] = [[], []]
    for turn in range(rounds + 1):
        for i in (0, 1) if turn % 2 else (1, 0):
            times[i].append(trees[i].ask(time=True)["seconds"])
    before, now = (1e6 * statistics.median(t[1:]) for t in times)
    spread = max(max(t[1:]) / min(t[1:]) - 1 for t in times)
    same = abs(means[0] - means[1]) <= DIFFERENT * abs(means[0])
    line = f"{shape:<28}{direction:<9}{before:>11.1f}{now:>11.1f}{before / now:>8.3f}{spread:>8.2f}"
    return line if same else f"{line}  RESULTS DIFFER: mean sizes {means[0]} and {means[1]}"


def main(argv: list[str] | None = None) -> int:
    """Measure all shapes and directions."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trees", description="Convolutions of two checkouts.")
    parser.add_argument("other", nargs="?", type=Path, metavar="PATH", help="the other checkout")
    parser.add_argument("--device", default="auto", help="as for manager.default")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=0, help="of PoCL; by default what it takes itself")
    parser.add_argument("--units", action="store_true", help="leave matrix units on")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=USUAL)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve:
        serve(args.device)
        return 0
    if args.other is None or not (args.other / "netcl" / "__init__.py").is_file():
        parser.error(f"expected the path of a checkout of netcl, got {args.other}")
    trees = [Tree(args.other.resolve(), args), Tree(ROOT, args)]
    print(f"{trees[0].device}: microseconds of {args.other}, of this checkout, their ratio, spread", flush=True)
    try:
        for shape in args.shapes:
            for direction in DIRECTIONS:
                print(compare(trees, shape, direction, args.rounds), flush=True)
    finally:
        for tree in trees:
            tree.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
