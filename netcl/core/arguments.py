"""Checks of plain arguments, with errors that name the argument as the user wrote it.

`where` is the function or class that was called, `name` its argument. NumPy's numbers count as numbers and come back as
Python's; bools do not count as numbers, because `lr=True` is a slip.
"""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import Any

import numpy as np


def number(
    where: str, name: str, value: Any, least: float | None = None, below: float | None = None, infinite: bool = False
) -> Any:
    """`value` as a Python number at least `least` and below `below`, finite unless `infinite`; NaN never passes.

    Raises TypeError for what is no number, ValueError for a number out of range.
    """
    kind = value.__class__
    if kind is not float and kind is not int and (isinstance(value, (bool, np.bool_)) or not isinstance(value, Real)):
        raise TypeError(f"{where}: expected {name} as a number, got {value!r} ({type(value).__name__}).")
    found: Any = value.item() if isinstance(value, np.generic) else value
    good = (least is None or found >= least) and (below is None or found < below)
    if not good or math.isnan(found) or (math.isinf(found) and not infinite):
        raise ValueError(f"{where}: expected {name} {_range(least, below)}, got {value}.")
    return found


def whole(where: str, name: str, value: Any, least: int | None = None) -> int:
    """`value` as a Python int at least `least`. Raises TypeError for what is no whole number, ValueError below it."""
    try:
        found = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        found = None
    if found is None:
        raise TypeError(f"{where}: expected {name} as a whole number, got {value!r} ({type(value).__name__}).")
    if least is not None and found < least:
        raise ValueError(f"{where}: expected {name} of at least {least}, got {found}.")
    return found


def flag(where: str, name: str, value: Any) -> bool:
    """`value` as True or False. Raises TypeError for anything else: `nesterov="no"` would count as true."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{where}: expected {name} as True or False, got {value!r} ({type(value).__name__}).")
    return bool(value)


def _range(least: float | None, below: float | None) -> str:
    if least is None:
        return "finite" if below is None else f"below {below:g}"
    return f"at least {least:g}" if below is None else f"in [{least:g}, {below:g})"
