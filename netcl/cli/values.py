"""Types of arguments: what argparse calls to read one, with errors in the user's words."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path


def whole(least: int | None = None) -> Callable[[str], int]:
    """A whole number of at least `least`."""

    def read(text: str) -> int:
        limit = "" if least is None else f" of at least {least}"
        try:
            found = int(text)
        except ValueError:
            found = None
        if found is None or (least is not None and found < least):
            raise argparse.ArgumentTypeError(f"expected a whole number{limit}, got {text!r}")
        return found

    return read


def new_file(text: str) -> Path:
    """The path of a file that can be written: its folder exists, and it is no folder, device or the like itself."""
    path = Path(text)
    try:
        if "\0" in text:
            raise argparse.ArgumentTypeError(f"expected the path of a file, got {text!r}, which holds a NUL")
        if not path.name or os.path.isdir(path):
            raise argparse.ArgumentTypeError(f"expected the path of a file, got the folder {text!r}")
        if path.exists() and not path.is_file():
            raise argparse.ArgumentTypeError(f"expected the path of a file, got a device or the like: {text!r}")
        if not path.parent.is_dir():
            raise argparse.ArgumentTypeError(f"expected a folder that exists, got {str(path.parent)!r}")
    except OSError as error:  # a name that is too long
        raise argparse.ArgumentTypeError(
            f"expected the path of a file, got {text[:80]!r}: {error_text(error)}"
        ) from None
    return path


def error_text(error: Exception) -> str:
    """What an error of the system says, without number and path."""
    return getattr(error, "strerror", None) or str(error)
