"""Numbers that change from step to step although the launches that use them are recorded once and replayed.

A `Cell` stands where a kernel takes a number; a launch reads it when it is sent, a replay reads it anew. `each_step`
runs host-side bookkeeping (a step count, a dropout offset) both now and before every replay. Eager code behaves the
same with and without them, so an optimizer needs no second code path:

    each_step(advance)                              # self.steps += 1
    lr = Cell(lambda: group["lr"])                  # read at every launch and replay
    c1 = Cell(lambda: 1 - beta1**self.steps)
    launch(kernel, queue, size, local, p.buffer, g.buffer, lr, c1)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

Number = int | float


class Recorder(Protocol):
    """What a recording offers to core."""

    thread: int  # of the thread that records
    paused: int  # above 0 while nothing is recorded
    written: set[int]  # memory that is written in place (core.versions)
    parameters: list[Any]  # whose gradients an optimizer or clipping read

    def on_step(self, fn: Callable[[], None]) -> None:
        """Run `fn` before each replay."""

    def only_while(self, fn: Callable[[], bool]) -> None:
        """Refuse replays once `fn` says False."""

    def refuse(self, reason: str) -> NoReturn:
        """Give the recording up and raise CaptureError."""


active: Recorder | None = None  # the recording being made, if any (set by netcl.runtime.capture)


def recording() -> Recorder | None:
    """The recording that work of this thread goes into now, else None."""
    found = active
    return found if found is not None and not found.paused and found.thread == threading.get_ident() else None


class Cell:
    """A number read at each use: `Cell(0.1)`, changed through `value`, or `Cell(fn)`, which calls `fn` each time.

    Launches take it for any scalar argument, `cpu.compute` and `cpu.update` for any attribute. It converts as a number
    does, so other code may read it with `float` or `int`.
    """

    __slots__ = ("value",)  # the number now: no property, because replays read many of them

    def __new__(cls, value: Number | Callable[[], Number] = 0) -> Cell:
        """Its number, or a function that gives it."""
        return super().__new__(_Computed if cls is Cell and callable(value) else cls)

    def __init__(self, value: Number | Callable[[], Number]) -> None:
        self.value: Any = value

    # pyopencl and struct pack whatever has these, so a launch takes a cell without looking for it
    def __float__(self) -> float:
        return float(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)

    def __repr__(self) -> str:
        return f"Cell({self.value})"


class _Computed(Cell):
    """A cell that asks a function at each use, until it is given a number."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], Number]) -> None:
        self._read = read

    @property
    def value(self) -> Number:
        return self._read()

    @value.setter
    def value(self, value: Number) -> None:
        self._read = lambda: value


def each_step(fn: Callable[[], None]) -> None:
    """Run `fn` now and, when a recording is being made, again before each of its replays (in order of registration)."""
    fn()
    found = None if active is None else recording()
    if found is not None:
        found.on_step(fn)


def only_while(fn: Callable[[], bool]) -> None:
    """The recording being made, if any, is right only while `fn()` is true: what it recorded was decided by that."""
    found = recording()
    if found is not None:
        found.only_while(fn)


def sized_by_data(op: str, instead: str) -> None:
    """Refuse in a recording what has a result of a size that the data decide: replays have fixed sizes."""
    found = recording()
    if found is not None:
        found.refuse(f"the size of the result of {op} depends on the data, and a replay's is fixed; {instead}")


def fresh(draw: Callable[[], Number]) -> Cell:
    """A cell holding `draw()`, drawn anew before each replay: for seeds and offsets that several launches share."""
    cell = Cell(0)

    def redraw() -> None:
        cell.value = draw()

    each_step(redraw)
    return cell


@contextmanager
def unrecorded() -> Iterator[None]:
    """What runs inside is not recorded: for state that is made once, on first use, and then kept."""
    found = recording()
    if found is None:
        yield
        return
    found.paused += 1
    try:
        yield
    finally:
        found.paused -= 1


_PLAIN = (float, int, bool, str, type(None))  # types of values that are no cells and hold none


def resolve(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """`attrs` with the numbers now in place of cells, also of those inside tuples and lists."""
    return {name: value if type(value) in _PLAIN else _resolve(value) for name, value in attrs.items()}


def _resolve(value: Any) -> Any:
    if isinstance(value, Cell):
        return value.value
    if isinstance(value, (tuple, list)) and [v for v in value if isinstance(v, Cell)]:
        return type(value)([v.value if isinstance(v, Cell) else v for v in value])
    return value
