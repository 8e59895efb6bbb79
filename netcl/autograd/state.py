"""What autograd remembers per thread: active tape, whether gradients are wanted, tracer, autocast, anomaly mode."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any


class _State(threading.local):
    tape: Any = None  # the active Tape
    enabled: bool = True
    tracer: Any = None  # the JIT's; when set, apply_op records instead of running
    autocast: Callable[..., Any] | None = None  # (op name, tensors) -> tensors; installed by netcl.amp
    anomaly: bool = False
    leaves: list[Any] | None = None  # when set, collects the leaves that ops use
    reached: Any = (
        None  # a follow.Reached: when set, collects the modules that run: a trace or a recording is being made
    )


state = _State()


def not_traced(what: str) -> None:
    """Say what a function does that a trace would lose: one that is traced runs as it is then."""
    if state.tracer is not None:
        state.tracer.refuse(what)


class set_grad_enabled:
    """Switch recording on or off: as a statement, a `with` block, or a decorator."""

    def __init__(self, enabled: bool) -> None:
        self.enabled, self.before = enabled, state.enabled
        state.enabled = enabled

    def __enter__(self) -> set_grad_enabled:
        state.enabled = self.enabled
        return self

    def __exit__(self, *exc: object) -> None:
        state.enabled = self.before


class _Switch:
    """A reusable context manager and decorator that sets one field of the state."""

    field = ""
    value: Any = None

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        self.function = function
        self.before: list[Any] = []
        if function is not None:
            functools.update_wrapper(self, function)

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        return super().__new__(cls) if function is None else cls()(function)

    def __enter__(self) -> _Switch:
        self.before.append(getattr(state, self.field))
        setattr(state, self.field, self.value)
        return self

    def __exit__(self, *exc: object) -> None:
        setattr(state, self.field, self.before.pop())

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with type(self)():
                return function(*args, **kwargs)

        return wrapped


class no_grad(_Switch):
    """Nothing inside is recorded: `with no_grad():` or `@no_grad`."""

    field, value = "enabled", False


inference_mode = no_grad


class enable_grad(_Switch):
    """Recording inside, even within no_grad."""

    field, value = "enabled", True


class detect_anomaly(_Switch):
    """Name the op, and the line that called it, that first produced NaN or infinity. Slow: it looks at every result."""

    field, value = "anomaly", True


def set_detect_anomaly(mode: bool) -> None:
    """Turn `detect_anomaly` on or off for this thread."""
    state.anomaly = bool(mode)


def is_grad_enabled() -> bool:
    """Whether operations are recorded on the active tape."""
    return state.enabled
