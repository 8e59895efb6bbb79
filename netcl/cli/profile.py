"""Run a Python script and show what its kernels cost: calls, time, GB/s, GFLOP/s, and a trace file for Perfetto."""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys
import traceback

from netcl.cli.values import error_text, whole

HELP = "run a script and show what its kernels cost"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options, the script, and the script's own arguments."""
    parser.add_argument(
        "--trace", metavar="FILE", help="write a trace for ui.perfetto.dev (compressed if it ends in .gz)"
    )
    parser.add_argument(
        "--keep",
        type=whole(0),
        default=100_000,
        metavar="N",
        help="commands kept for the trace, the newest (default 100000); the table counts all",
    )
    parser.add_argument("--limit", type=whole(0), default=30, metavar="N", help="rows of the table (default 30)")
    parser.add_argument("--peak", action="store_true", help="compare with the device's peaks (takes a second)")
    parser.add_argument(
        "-m", dest="module", action="store_true", help="SCRIPT is the name of a module, as in python -m"
    )
    parser.add_argument("script", help="the script to run")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="what the script gets as sys.argv[1:]")


def run(args: argparse.Namespace) -> int:
    """Run the script under a ProfileContext; its exit status."""
    os.environ["NETCL_PROFILE"] = "1"  # before any device is opened: its queues then take time stamps themselves
    from netcl.profiling import ProfileContext

    before = sys.argv, sys.path[:]
    sys.argv = [args.script, *args.args]
    sys.path.insert(0, os.getcwd() if args.module else os.path.dirname(os.path.abspath(args.script)))
    try:
        _check(args)
        with ProfileContext(keep=args.keep) as prof:
            status = _execute(args.script, args.module)
    finally:
        sys.argv, sys.path[:] = before
    print(prof.table(args.limit, args.peak))
    if args.trace is not None:
        prof.save_trace(args.trace)
        print(f"trace: {args.trace} (open it at ui.perfetto.dev)")
    return status


def _check(args: argparse.Namespace) -> None:
    """Say before a long run what would fail at its end."""
    from netcl.core.errors import NetclError

    if args.module:
        try:
            found = importlib.util.find_spec(args.script)
            if found is not None and found.submodule_search_locations is not None:  # a package
                found = importlib.util.find_spec(f"{args.script}.__main__")
        except (ImportError, ValueError):  # of a package above it
            found = None
        if found is None:
            raise NetclError(f"profile: expected the name of a module after -m, got {args.script!r}, which is none.")
    elif not os.path.isfile(args.script):
        raise NetclError(f"profile: expected a Python script, got {args.script!r}, which is not a file.")
    if args.trace is not None:
        try:
            with open(args.trace, "ab"):
                pass
        except OSError as error:
            raise NetclError(
                f"profile: expected a trace file that can be written, got {args.trace!r}: {error_text(error)}."
            ) from None


def _execute(script: str, module: bool) -> int:
    """Run it as the main program; its exit status. The table is wanted also when it stops early."""
    try:
        if module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as leave:
        if isinstance(leave.code, str):
            print(leave.code, file=sys.stderr)
        return leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        _show(error)
        return 1
    return 0


def _show(error: Exception) -> None:
    """The script's traceback, as Python itself would show it: without the frames that ran it."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        found = found.tb_next
    traceback.print_exception(type(error), error, found)
