"""What memory of the host this process may still take: the system's, its control group's, its address space's.

Linux hands out memory that it does not have, and ends a process that then touches it; some drivers for CPUs crash where
the system refuses. So whoever makes large blocks asks here before. Systems without /proc are taken as unlimited: there
the driver's own refusal has to do.
"""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from netcl.core.dtypes import DType
from netcl.core.errors import OutOfMemoryError
from netcl.core.layout import Shape, size_of

with contextlib.suppress(ImportError):  # Windows has no such limits
    import resource

ENDLESS = 1 << 62
ROOT = Path("/")
RESERVE = (
    256 << 20
)  # bytes left for what a process needs besides: compiling kernels, threads; an eighth of small limits
LARGE = 64 << 20  # bytes from which an array is worth a look at what there is
FIX = "use a smaller batch, or drop arrays and tensors you no longer need"


class Room(NamedTuple):
    """Bytes that may still be taken, and what sets the limit."""

    nbytes: int
    limit: str


class _Group(NamedTuple):
    """The files of one control group."""

    limit: Path
    used: Path
    details: Path
    reclaimable: str  # the line of `details` with the file cache that gives way


def room(promised: int = 0) -> Room:
    """What may still be taken, when `promised` bytes of those taken before were not touched yet."""
    found = [_system(), *map(_group, _groups(ROOT))]
    touched = [r._replace(nbytes=r.nbytes - promised) for r in found]
    least = min((*touched, _address_space()), key=lambda r: r.nbytes)
    return least._replace(nbytes=max(0, least.nbytes))


def resident() -> int:
    """Bytes of this process that are in memory, 0 where the system does not tell."""
    return _statm()[1]


def empty(where: str, shape: Shape | int, dtype: DType) -> np.ndarray:
    """`np.empty` for `where`. Raises OutOfMemoryError also where the system would promise what it does not have."""
    size = shape if isinstance(shape, int) else size_of(shape)
    nbytes = size * dtype.itemsize
    if nbytes < LARGE or nbytes <= room().nbytes:
        with contextlib.suppress(MemoryError, ValueError):  # ValueError: more than an address can hold
            return np.empty(shape, dtype)
    raise exhausted(where, f"{nbytes:,} bytes")


def converted(where: str, array: np.ndarray, dtype: DType) -> np.ndarray:
    """`array` as `dtype`, itself where it already is."""
    if array.dtype == dtype:
        return array
    with contextlib.suppress(MemoryError):
        return array.astype(dtype)
    raise exhausted(where, f"{array.size * dtype.itemsize:,} bytes")


def exhausted(where: str, what: str) -> OutOfMemoryError:
    """The error for host memory that cannot be had."""
    return OutOfMemoryError(f"{where}: expected room on the host for {what}, got none: {room().limit}; {FIX}.")


def _left(limit: int, used: int) -> int:
    return limit - used - min(RESERVE, limit // 8)


def _system() -> Room:
    fields = dict(line.split(":", 1) for line in _read(ROOT / "proc/meminfo").splitlines() if ":" in line)
    total, free = (_kilobytes(fields.get(name, "")) for name in ("MemTotal", "MemAvailable"))
    if total is None or free is None:
        return Room(ENDLESS, "the system does not tell what it has left")
    return Room(_left(total, total - free), f"the system has {free:,} of {total:,} bytes left")


def _kilobytes(text: str) -> int | None:
    words = text.split()
    return int(words[0]) * 1024 if words and words[0].isdigit() else None


@cache
def _groups(root: Path) -> tuple[_Group, ...]:
    """The control groups that count the memory of this process: its own and those around it, versions 1 and 2."""
    found: list[_Group] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        own = base / path.strip("/")
        folders = [own, *own.parents[: len(own.parts) - len(base.parts)]]
        found += [_Group(f / names[0], f / names[1], f / "memory.stat", names[2]) for f in folders]
    return tuple(g for g in found if g.limit.exists())


def _group(group: _Group) -> Room:
    limit, used = _read(group.limit).strip(), _read(group.used).strip()
    if not limit.isdigit() or not used.isdigit() or int(limit) >= ENDLESS:  # "max", or version 1's largest number
        return Room(ENDLESS, "the system does not tell what it has left")
    lines = (line.split() for line in _read(group.details).splitlines())
    cached = next((int(words[1]) for words in lines if words[:1] == [group.reclaimable]), 0)
    left = _left(int(limit), int(used) - cached)
    return Room(left, f"the control group of this process has {int(limit):,} bytes, {int(used):,} of them in use")


def _address_space() -> Room:
    if "resource" not in globals():
        return Room(ENDLESS, "the system does not tell what it has left")
    limit, used = resource.getrlimit(resource.RLIMIT_AS)[0], _statm()[0]
    if limit == resource.RLIM_INFINITY or not used:
        return Room(ENDLESS, "the system does not tell what it has left")
    return Room(_left(limit, used), f"the address space (ulimit -v) has {limit:,} bytes, {used:,} of them in use")


def _statm() -> tuple[int, int]:
    """Bytes of this process: address space, and what of it is in memory."""
    words = _read(ROOT / "proc/self/statm").split()
    if "resource" not in globals() or len(words) < 2:
        return 0, 0
    page = resource.getpagesize()
    return int(words[0]) * page, int(words[1]) * page


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
