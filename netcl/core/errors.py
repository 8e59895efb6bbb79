"""The exceptions of netcl, under one base class. Each is also the built-in exception a user would expect."""

import contextlib
import difflib
from collections.abc import Iterable
from pathlib import Path


class NetclError(Exception):
    """Base of every error netcl raises on purpose."""


class ShapeError(NetclError, ValueError):
    """Shapes, axes or sizes that do not fit."""


class DTypeError(NetclError, TypeError):
    """A dtype that the operation or the device cannot take."""


class NumberOutOfRange(NetclError, OverflowError):
    """A Python number that the dtype of its tensor cannot hold."""


class DeviceError(NetclError, RuntimeError):
    """A device, queue or driver that cannot be used as asked."""


class BuildError(NetclError, RuntimeError):
    """An OpenCL program failed to build; carries what is needed to repeat it."""

    log: str = ""
    options: tuple[str, ...] = ()
    device: str = ""
    source_path: Path | None = None  # a copy of the source, so that line numbers in the log mean something


class SettingError(NetclError, ValueError):
    """An environment variable with a value that is not accepted."""


class RouteError(NetclError, ValueError):
    """A forced route that cannot compute a problem, or a problem that no route computes."""


class OutOfMemoryError(NetclError, MemoryError):
    """The device could not provide a buffer, even after idle blocks were freed."""


class IndexOutOfRange(NetclError, IndexError):
    """A label or index outside its table."""


class CheckpointError(NetclError, ValueError):
    """A checkpoint that is corrupted, foreign or does not fit the model."""


class GradientError(NetclError, RuntimeError):
    """Misuse of the tape, or a gradient that cannot be computed."""


class CaptureError(NetclError, RuntimeError):
    """A recording that cannot be made or replayed."""


class DataError(NetclError, RuntimeError):
    """A dataset, transform or collate function that ended in a way that cannot be passed on as it is."""


def meant(word: str, known: Iterable[str]) -> str:
    """A hint for a message about the unknown `word`: " (did you mean 'x'?)" with the closest of `known`, or nothing."""
    known = list(known)
    close = difflib.get_close_matches(word, known, 1, 0.7) or [
        k for k in known if len(k) > 2 and (k in word or word in k)
    ]
    return f" (did you mean {close[0]!r}?)" if close else ""


def unexpected(where: str, given: Iterable[str], known: Iterable[str]) -> DTypeError:
    """The error, to be raised, for `given` keywords where a function takes the arguments `known`."""
    known, given = tuple(known), tuple(given)
    word = next((w for w in given if w not in known), "")
    got = f"the keyword {word!r}{meant(word, known)}" if word else f"{', '.join(given) or 'none'} by name"
    return DTypeError(f"{where}: expected the arguments {', '.join(known)}, got {got}.")


def add_note(error: Exception, where: str) -> None:
    """Add `where` to an error that a user's function raised: as a note, on Python 3.10 at the end of its message."""
    with contextlib.suppress(Exception):  # of classes that cannot be changed, such as frozen dataclasses
        if hasattr(error, "add_note"):
            error.add_note(where)
        elif error.args and isinstance(error.args[0], str):
            error.args = (f"{error.args[0]} ({where})", *error.args[1:])
