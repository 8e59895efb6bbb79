"""`netcl <command>`: finds the command's module, parses its arguments, reports errors without a traceback.

A command is a module of this package named in COMMANDS, with `HELP` (one line), `arguments(parser)` and
`run(args) -> int` (the exit status). Modules import what is heavy inside `run`, so that `netcl --help` stays quick.

Whatever is wrong is said in one line on stderr: with status 2 for arguments, 1 for what came up while running.
"""

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

import netcl
from netcl.core.errors import NetclError

COMMANDS = ("cache", "devices", "profile", "train", "tune", "warm")


def command(name: str) -> ModuleType:
    """The module of a command."""
    return importlib.import_module(f"netcl.cli.{name}")


class _Parser(argparse.ArgumentParser):
    """Errors in one line; help that fails to be written is an error."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see `{self.prog} --help`.\n")

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file, flush=True)


class _Version(argparse.Action):
    """Print the version and leave."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"netcl {netcl.__version__}", flush=True)
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = _Parser(prog="netcl", description="Deep learning on any OpenCL device.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="command")
    for name in COMMANDS:
        module = command(name)
        sub = commands.add_parser(name, help=module.HELP, description=module.__doc__)
        module.arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    try:
        parser = build_parser()
        args = parser.parse_args(argv)
        if args.command is None:
            parser.print_help()
            return 0
        status = int(args.run(args))
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except NetclError as error:
        return _failed(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `netcl devices | head`
        _let_go_of_stdout()
        return 141
    except OSError as error:
        _let_go_of_stdout()
        name = "" if error.filename is None else f": {error.filename!r}"
        return _failed(f"{error.strerror or error}{name}.")
    except MemoryError as error:
        return _failed(f"not enough memory: {error or 'of the host'}.")


def _failed(message: str) -> int:
    """Say it in one line; the exit status."""
    lines = [line.strip() for line in message.splitlines()]
    text = " ".join(line if line.endswith((":", ".", ";")) else f"{line}," for line in lines).rstrip(",")
    with contextlib.suppress(OSError):
        print(f"netcl: {text}", file=sys.stderr)
    return 1


def _let_go_of_stdout() -> None:
    """Keep the interpreter from complaining when it flushes a stdout that cannot be written."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
