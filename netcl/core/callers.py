"""Which line of the user's program is being executed: for messages that name it."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

labeller: Callable[[], Any] | None = None  # while a profiler runs: what the launch being made is for
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")  # this package's own folder, whatever lies above


def is_own(frame: FrameType) -> bool:
    """Whether the code of `frame` belongs to this package."""
    return frame.f_code.co_filename.startswith(PACKAGE)


def call_site() -> str:
    """The innermost line outside netcl that is being executed, as "file:line: text"; "" when there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_own(frame):
        frame = frame.f_back
    if frame is None:
        return ""
    name, line = frame.f_code.co_filename, frame.f_lineno
    return f"{name}:{line}: {linecache.getline(name, line, frame.f_globals).strip()}"


def raised_at(trace: TracebackType | None) -> str:
    """The innermost line outside netcl of a traceback, as "file:line"; "" when there is none."""
    found = ""
    while trace is not None:
        if not is_own(trace.tb_frame):
            found = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def label() -> Any:
    """What the launch being made is for, where a profiler asks; None without one."""
    return None if labeller is None else labeller()
