"""The suites: which modules list their cases."""

from __future__ import annotations

import importlib
import re

from benchmarks.case import Case

SUITES = {"cpu": ("cases_cpu", "cases_jit"), "step": ("cases_step",)}


def cases(suite: str, pattern: str = "") -> list[Case]:
    """The cases of a suite whose name matches `pattern` (a regular expression, anywhere in the name)."""
    if suite not in SUITES:
        raise ValueError(f"benchmarks: expected a suite of {', '.join(SUITES)}, got {suite!r}.")
    listed = [case for module in SUITES[suite] for case in importlib.import_module(f"benchmarks.{module}").CASES]
    return [case for case in listed if re.search(pattern, case.name)]


def find(suite: str, name: str) -> Case:
    """The case of this name."""
    return next(case for case in cases(suite) if case.name == name)
