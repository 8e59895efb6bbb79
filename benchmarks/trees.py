"""Two checkouts beside each other, in convolutions or in the host's time: `python -m benchmarks.trees PATH`.

Each checkout runs in a process of its own, on the same values, and both take turns in one run; what is shown are
medians, and the ratio of the least times, which other work on the machine disturbs less. Convolutions are recorded and
replayed, so that the host's work does not count; matrix units are off unless `--units` is given. `--host` times warm
calls on tensors so small that only the host counts. An older checkout comes of `git worktree add --detach PATH COMMIT`.

    python -m benchmarks.trees ../before --device gpu
    python -m benchmarks.trees ../before --device cl:cpu --threads 16
    python -m benchmarks.trees ../before --host
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import tree_server
from benchmarks.tree_server import DIRECTIONS, HOST, SHAPES

ROOT = Path(__file__).resolve().parents[1]
USUAL = list(SHAPES)[:2]
DIFFERENT = 1e-4  # of the results' mean size, from which on two checkouts do not compute the same


class Tree:
    """The process of a checkout."""

    def __init__(self, root: Path, args: argparse.Namespace) -> None:
        env = os.environ | {"PYTHONPATH": str(root)} | ({} if args.units else {"NETCL_MATRIX_UNITS": "none"})
        env |= {"POCL_MAX_PTHREAD_COUNT": str(args.threads)} if args.threads else {}
        command = [sys.executable, str(Path(tree_server.__file__).resolve()), args.device]
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


def compare(trees: list[Tree], rounds: int, **case: str) -> str:
    """A line of the table."""
    means = [tree.ask(**case)["mean"] for tree in trees]
    times: list[list[float]] = [[], []]
    for turn in range(rounds + 1):
        for i in (0, 1) if turn % 2 else (1, 0):
            times[i].append(trees[i].ask(time=True)["seconds"])
    before, now = (1e6 * statistics.median(t[1:]) for t in times)
    least = min(times[0][1:]) / min(times[1][1:])
    spread = max(max(t[1:]) / min(t[1:]) - 1 for t in times)
    same = abs(means[0] - means[1]) <= DIFFERENT * abs(means[0])
    line = f"{' '.join(case.values()):<37}{before:>11.1f}{now:>11.1f}{before / now:>8.3f}{least:>8.3f}{spread:>8.2f}"
    return line if same else f"{line}  RESULTS DIFFER: mean sizes {means[0]} and {means[1]}"


def main(argv: list[str] | None = None) -> int:
    """Measure all shapes and directions."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trees", description="Two checkouts beside each other.")
    parser.add_argument("other", nargs="?", type=Path, metavar="PATH", help="the other checkout")
    parser.add_argument("--device", default="auto", help="as for manager.default")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=0, help="of PoCL; by default what it takes itself")
    parser.add_argument("--units", action="store_true", help="leave matrix units on")
    parser.add_argument("--host", action="store_true", help="the host's time of warm calls, in place of convolutions")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=USUAL)
    args = parser.parse_args(argv)
    if args.other is None or not (args.other / "netcl" / "__init__.py").is_file():
        parser.error(f"expected the path of a checkout of netcl, got {args.other}")
    trees = [Tree(args.other.resolve(), args), Tree(ROOT, args)]
    print(
        f"{trees[0].device}: microseconds of {args.other}, of this checkout, their ratio, that of the least, spread",
        flush=True,
    )
    try:
        shapes = [] if args.host else [{"shape": s, "direction": d} for s in args.shapes for d in DIRECTIONS]
        for case in shapes or [{"host": name} for name in HOST]:
            print(compare(trees, args.rounds, **case), flush=True)
    finally:
        for tree in trees:
            tree.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
