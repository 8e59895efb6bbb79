"""The environment variables of netcl: one table, read and checked here and nowhere else.

`check` runs when netcl is imported; `value` reads a variable when it is needed, so a program may still set it. A value
that is not accepted raises SettingError with those that are. A table for readers is docs/settings.md.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from netcl.core.errors import SettingError, meant

PREFIX = "NETCL_"


class Setting(NamedTuple):
    """One variable. `parse` makes its value of text and raises ValueError for text that is not accepted."""

    name: str
    accepts: str
    default: Any  # the value when it is unset or empty
    otherwise: str  # what happens then
    meaning: str
    parse: Callable[[str], Any]


def _switch(text: str) -> bool:
    return bool(_whole(0, 1)(text))


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        found = int(text)
        if found < least or (most is not None and found > most):
            raise ValueError
        return found

    return parse


def _size(text: str) -> float:
    found = float(text)
    if not 0 <= found < math.inf:
        raise ValueError
    return found


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return parse


SWITCH = "0 or 1"
TABLE = {
    setting.name: setting
    for setting in (
        Setting("NETCL_DEVICE", "a device as `manager.default` takes it", "", '"auto" chooses',
                'the device that "auto" stands for', str),
        Setting("NETCL_PLATFORM_FILTER", "a part of the name of a platform", "", "all platforms",
                "only platforms whose name holds it are looked at", str),
        Setting("NETCL_DEBUG", "0, 1, 2 or 3", 0, "0",
                "messages: 1 devices and fallbacks, 2 launches with their times, 3 generated source", _whole(0, 3)),
        Setting("NETCL_PROFILE", SWITCH, False, "0", "1 opens queues that take time stamps", _switch),
        Setting("NETCL_ASYNC_H2D", SWITCH, True, "1",
                "0 waits for every copy to a device, whatever `async_copy` says", _switch),
        Setting("NETCL_MAX_CACHED_GB", "a number of GiB of at least 0, such as 0.5", None,
                "no cap for tensors, 4 for `PersistentBufferPool`",
                "most idle memory a queue keeps; looked at when memory is asked for and when the host waits", _size),
        Setting("NETCL_CACHE_DIR", "a folder", "", "the user's cache folder", "where built programs are kept", str),
        Setting("NETCL_CACHE_MB", "a whole number of MiB of at least 0", 512, "512",
                "most that kept programs may take, and as much again those that PoCL keeps; 0 keeps none", _whole(0)),
        Setting("NETCL_QUIET", SWITCH, False, "0", "1 says nothing while kernels are built", _switch),
        Setting("NETCL_TUNING", "a file", "", "tuning.json in the user's configuration folder",
                "the tuning table that `netcl tune` writes and kernels read", str),
        Setting("NETCL_MATRIX_UNITS", "none, mma or wgmma", None, "what a check on the device finds",
                "most that is used of NVIDIA's matrix units, without the check", _one_of("none", "mma", "wgmma")),
        Setting("NETCL_TEST_ALL", SWITCH, False, "0", "tests: 1 runs all cases in place of a sample", _switch),
        Setting("NETCL_TEST_CHAINS", "a whole number of at least 1", 24, "24",
                "tests: random chains of elementwise ops that are tried", _whole(1)),
        Setting("NETCL_BENCH_PYTHON", "a Python interpreter", "", "the one that runs",
                "benchmarks: the interpreter of the reference, where torch is installed", str),
        Setting("NETCL_BENCH_TRACE", SWITCH, False, "0", "benchmarks: 1 prints tracebacks of failed cases", _switch),
        Setting("NETCL_OCLGRIND_LOG", "a file", "", "none", "set by `make races` for the tests that it runs", str),
    )
}  # fmt: skip


def value(name: str) -> Any:
    """The value of a variable of the table now. Raises SettingError when it is not accepted."""
    return _parsed(name, os.environ.get(name, "").strip())


@lru_cache(maxsize=256)
def _parsed(name: str, text: str) -> Any:
    setting = TABLE[name]
    if not text:
        return setting.default
    try:
        return setting.parse(text)
    except ValueError:
        raise SettingError(f"{name}: expected {setting.accepts}, got {text!r}; change or unset it.") from None


def check() -> None:
    """Read every variable once. Raises SettingError; warns of a name that is close to one of the table."""
    for name in TABLE:
        value(name)
    for name in os.environ:
        if name.startswith(PREFIX) and name not in TABLE and meant(name, TABLE):
            warnings.warn(f"{name} is no variable of netcl{meant(name, TABLE)}.", stacklevel=3)
