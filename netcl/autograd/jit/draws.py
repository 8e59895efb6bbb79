"""Whether a function that is traced or recorded draws from Python's or NumPy's global random generators.

Its numbers would stay those of that one run.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np


class Draws:
    """The states of the global generators."""

    def __init__(self) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (users draw from it)

    def found(self) -> list[str]:
        """The generators that moved since."""
        names = ["random"] if random.getstate() != self._python else []
        now = np.random.get_state()  # noqa: NPY002
        return names + (["numpy.random"] if _moved(self._numpy, now) else [])

    def undo(self) -> None:
        """Put the generators back."""
        found = self.found()
        if "random" in found:
            random.setstate(self._python)
        if "numpy.random" in found:
            np.random.set_state(self._numpy)  # noqa: NPY002

    def warning(self, where: str, done: str) -> str:
        """What to tell the user of a function that drew numbers, or ""."""
        names = " and ".join(self.found())
        return names and (
            f"{where}: {names} drew numbers while the function was {done}, and later calls use the same ones; draw "
            "outside and pass them as arguments, or use ag.dropout and netcl's other random operations."
        )


def _moved(before: Any, now: Any) -> bool:
    """Whether a state of NumPy's generator is another."""
    if isinstance(before, dict) or isinstance(now, dict):  # another bit generator was put in the place of NumPy's own
        return repr(before) != repr(now)
    return bool(before[0] != now[0] or before[2:] != now[2:] or (before[1] != now[1]).any())
