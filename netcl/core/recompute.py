"""Running a function again as it ran before: with the same random draws, and without moving running statistics twice.

Random operations note their draws in every log that is open in this thread, and take those of `again` in its place.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from netcl.core.errors import GradientError


class _State(threading.local):
    logs: tuple[list[Any], ...] = ()
    again: Iterator[Any] | None = None  # set while a function runs again


_state = _State()


def running() -> bool:
    """Whether this thread runs something again."""
    return _state.again is not None


def drawn() -> Any:
    """The draw that was made at this place before; None unless a function runs again."""
    if _state.again is None:
        return None
    found = next(_state.again, None)
    if found is None:
        raise GradientError(
            "checkpoint: expected the function to draw the same random numbers when it runs again, got one draw more; "
            "let it depend on its arguments and on what stays as it was until backward."
        )
    note(found)
    return found


def note(draw: Any) -> None:
    """Put a draw into the open logs."""
    for log in _state.logs:
        log.append(draw)


@contextmanager
def logged(log: list[Any]) -> Iterator[None]:
    """The draws made inside go into `log`, too."""
    outer, _state.logs = _state.logs, (*_state.logs, log)
    try:
        yield
    finally:
        _state.logs = outer


@contextmanager
def repeated(log: Sequence[Any]) -> Iterator[None]:
    """What runs inside makes the draws of `log` again."""
    outer = _state.logs, _state.again
    _state.logs, _state.again = (), iter(log)
    try:
        yield
    finally:
        _state.logs, _state.again = outer
