"""Following changes of modules: what a trace or a recording depends on besides its arguments.

A change of a module that somebody depends on moves one counter, `changes.version`. A program or a recording looks at
its modules again only when the counter moved since it last looked (see snapshot.py).
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from netcl.autograd.state import state

PLAIN = (type(None), bool, int, float, complex, str, bytes, np.dtype, np.generic)  # values without an inside
MISSING = object()


class Changes:
    """Counts changes of modules that somebody depends on."""

    __slots__ = ("_numbers", "version")

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.version = 0

    def add(self) -> int:
        """Count one change; its number is never used twice, in any thread."""
        self.version = number = next(self._numbers)
        return number


changes = Changes()


class Reached:
    """The modules and compiled functions that ran, and the attributes that changed, while something was recorded."""

    def __init__(self) -> None:
        self.modules: list[Followed] = []
        self.functions: list[Any] = []
        self.written: dict[tuple[int, str], str] = {}  # (id of a module, attribute) -> its full name if a number

    def enter(self, module: Followed, hooked: bool) -> None:
        """Called when a module runs; `hooked` when functions of the user's run with it."""
        self.modules.append(module)

    def writing(self, module: Followed, name: str, value: Any, new: bool) -> None:
        """Called before an attribute changes to `value`; `new` when the module had none of that name."""
        self.written[id(module), name] = f"{type(module).__name__}.{name}" if type(value) in (int, float) else ""


class Followed:
    """Base of objects whose attributes a trace or a recording may depend on: of nn.Module."""

    _stamp: int | None = None  # number of the last change, None while nobody depends on the object

    def __setattr__(self, name: str, value: Any) -> None:
        held = self.__dict__.get(name, MISSING)
        if held is MISSING:
            held = getattr(type(self), name, MISSING)
        kind = type(value)
        if held is not value and not (type(held) is kind and kind in PLAIN and held == value):
            self._before_change(name, value, held is MISSING)
            object.__setattr__(self, name, value)
            self._changed()
        else:
            object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self._before_change(name, None, False)
        object.__delattr__(self, name)
        self._changed()

    def _before_change(self, name: str, value: Any, new: bool) -> None:
        if state.reached is not None:
            state.reached.writing(self, name, value, new)

    def _changed(self) -> None:
        """Something in this object changed, perhaps inside a list or dict that it holds."""
        if self._stamp is not None:
            self.__dict__["_stamp"] = changes.add()
