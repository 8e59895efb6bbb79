"""Run a Python script and show what its kernels cost: calls, time, GB/s, GFLOP/s, and a trace file for Perfetto."""

from __future__ import annotations

import argparse
import os
import runpy
import sys

HELP = "run a script and show what its kernels cost"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options, the script, and the script's own arguments."""
    parser.add_argument(
        "--trace", metavar="FILE", help="write a trace for ui.perfetto.dev (compressed if it ends in .gz)"
    )
    parser.add_argument("--limit", type=int, default=30, metavar="N", help="rows of the table (default 30)")
    parser.add_argument("--peak", action="store_true", help="compare with the device's peaks (takes a second)")
    parser.add_argument("script", help="the script to run")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="what the script gets as sys.argv[1:]")


def run(args: argparse.Namespace) -> int:
    """Run the script under a ProfileContext; its exit status."""
    os.environ["NETCL_PROFILE"] = "1"  # before any device is opened: its queues then take time stamps themselves
    from netcl.core.errors import NetclError
    from netcl.profiling import ProfileContext

    if not os.path.isfile(args.script):
        raise NetclError(f"profile: expected a Python script, got {args.script!r}, which is not a file.")
    before, sys.argv = sys.argv, [args.script, *args.args]
    sys.path.insert(0, os.path.dirname(os.path.abspath(args.script)))
    status = 0
    try:
        with ProfileContext(trace=args.trace) as prof:
            try:
                runpy.run_path(args.script, run_name="__main__")
            except SystemExit as leave:  # the table is wanted all the same
                status = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    finally:
        sys.argv = before
        sys.path.pop(0)
    print(prof.table(args.limit, args.peak))
    if args.trace:
        print(f"trace: {args.trace} (open it at ui.perfetto.dev)")
    return status
