"""`python -m benchmarks`: run suites, print the table, keep the records."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import report, suites
from benchmarks.run import Failed, Options, Session

KEEP_RUNS = 9  # a run with fewer repeats is not kept


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    defaults = Options()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Times of netcl beside a reference.")
    parser.add_argument("--suite", choices=[*suites.SUITES, "gpu", "all"], default="all", help="default: cpu and step")
    parser.add_argument("--filter", default="", metavar="RE", help="only cases whose name matches")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the records to FILE, one JSON line a case")
    parser.add_argument("--reference", choices=("torch", "numpy", "none"), help="default: torch, else numpy")
    parser.add_argument("--repeat", type=int, default=defaults.repeat, metavar="N", help="measurements a side (11)")
    parser.add_argument("--threads", type=int, default=defaults.threads, metavar="N", help="of either side (2)")
    parser.add_argument(
        "--once", action="store_true", help="leave out the run against a reference that keeps its memory"
    )
    parser.add_argument("--device", default=defaults.device, help='as for manager.default, by default "auto"')
    parser.add_argument("--python", default=defaults.python, metavar="PATH",
                        help="interpreter of the reference, where torch is; or NETCL_BENCH_PYTHON")  # fmt: skip
    parser.add_argument("--save", action="store_true", help="keep the records in benchmarks/results (full runs only)")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    return parser.parse_args(argv)


def run_suite(suite: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run one suite and print its table."""
    chosen = suites.cases(suite, args.filter)
    if not chosen:
        return []
    how = (args.repeat, args.threads, not args.once, args.device, args.python)
    options = Options(suite, args.reference or "torch", *how)
    session = Session(options)
    try:
        if options.reference == "torch" and not session.other_facts["torch"]:
            if args.reference == "torch":
                sys.exit(f"benchmarks: torch is not installed for {args.python}; choose another with --python PATH.")
            print(f"torch is not installed for {args.python}: NumPy is the reference, cases without it have none")
            session.options = Options(suite, "numpy", *how)
        print(f"suite {suite} | {report.header(session.common)}\n{report.line(report.COLUMNS)}", flush=True)
        records = list(session.run(chosen, report.show))
    finally:
        session.close()
    print(report.closing(records))
    if args.save:
        keep(suite, args, session.options.reference, records)
    return records


def run_gpu(args: argparse.Namespace) -> int:
    """The GPU suite has a harness of its own: one process, since its two sides share no cores."""
    h200 = importlib.import_module("benchmarks.h200")
    passed = ["--no-tests", "--filter", args.filter, *(["--save"] if args.save else [])]
    passed += ["--json", str(args.json)] if args.json else []
    return int(h200.main([*passed, "--device", "gpu" if args.device == "auto" else args.device]))


def keep(suite: str, args: argparse.Namespace, reference: str, records: list[dict[str, Any]]) -> None:
    """Write a full run to benchmarks/results; say why not otherwise."""
    if args.filter or args.once or args.repeat < KEEP_RUNS or reference != "torch":
        print(f"not kept: only runs of all cases against torch with --repeat of at least {KEEP_RUNS} are")
        return
    path = report.path_of(records[0]["machine"], suite)
    report.write(path, records)
    print(f"kept in {path.relative_to(report.ROOT)}")


def main(argv: list[str] | None = None) -> None:
    """Run what the command line asks for."""
    args = arguments(argv)
    if args.suite == "gpu":
        sys.exit(run_gpu(args))
    chosen = list(suites.SUITES) if args.suite == "all" else [args.suite]
    if args.list:
        for suite in chosen:
            for case in suites.cases(suite, args.filter):
                print(f"{suite:<5} {case.name:<44} {case.reference} {'' if case.target is None else case.target}")
        return
    start, records = time.perf_counter(), []
    try:
        for suite in chosen:
            records += run_suite(suite, args)
    except Failed as failure:  # a side that does not even start; a case that fails is a row
        sys.exit(f"benchmarks: {failure}")
    if not records:
        sys.exit(f"benchmarks: no case matches {args.filter!r}; see --list.")
    if args.json:
        report.write(args.json, records)
    print(f"{len(records)} cases in {time.perf_counter() - start:.0f} s, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
