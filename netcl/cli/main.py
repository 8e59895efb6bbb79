"""`netcl <command>`: finds the command's module, parses its arguments, reports errors without a traceback.

A command is a module of this package named in COMMANDS, with `HELP` (one line), `arguments(parser)` and
`run(args) -> int` (the exit status). Modules import what is heavy inside `run`, so that `netcl --help` stays quick.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

import netcl
from netcl.core.errors import NetclError

COMMANDS = ("devices", "profile", "train", "tune")


def command(name: str) -> ModuleType:
    """The module of a command."""
    return importlib.import_module(f"netcl.cli.{name}")


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(prog="netcl", description="Deep learning on any OpenCL device.")
    parser.add_argument("--version", action="version", version=f"netcl {netcl.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name in COMMANDS:
        module = command(name)
        sub = commands.add_parser(name, help=module.HELP, description=module.__doc__)
        module.arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    args = build_parser().parse_args(argv)
    try:
        return int(args.run(args))
    except NetclError as error:
        print(f"netcl: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `netcl devices | head`: keep the interpreter from complaining when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


if __name__ == "__main__":
    sys.exit(main())
