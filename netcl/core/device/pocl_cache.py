"""The folder in which PoCL keeps what it compiled, where that folder is ours: complete, bounded, and without leftovers.

PoCL writes every file under another name and renames it, so killed builds and several processes leave whole files. What
it does not do is look at them: after a loss of power half a file may stay, which ends every process that loads it. Nor
does it ever remove anything. A program is a folder `XX/<hash>` with `program.bc`, a library for each kernel and group
size, and `last_accessed`, which PoCL touches at each use.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from netcl.core import debug
from netcl.core.driver import own_pocl_folder, pocl_folder

KEEP = 0.9  # eviction goes down to this share of the limit
IN_USE = 3600.0  # seconds after its last use in which a program is not removed
LOOK_BACK = 24 * 3600.0  # seconds before the last look from which programs are looked at again
_STAMP = "netcl"  # its content: number of programs and their bytes; its time: when that was measured
_GROUP, _PROGRAM = re.compile("[A-P]{2}"), re.compile("[A-P]{20,60}")
_tended: set[Path] = set()


class Kept(NamedTuple):
    """A program: when it was used last, and its folder."""

    used: float
    path: str


def programs(folder: Path) -> list[Kept]:
    """Every program in `folder`."""
    found = []
    with contextlib.suppress(OSError):
        for group in os.scandir(folder):
            if _GROUP.fullmatch(group.name):
                found += [_kept(entry.path) for entry in os.scandir(group.path) if _PROGRAM.fullmatch(entry.name)]
    return found


def _kept(path: str) -> Kept:
    for name in ("last_accessed", ""):  # a killed build may have made no more than the folder
        with contextlib.suppress(OSError):
            return Kept(os.stat(os.path.join(path, name)).st_mtime, path)
    return Kept(0.0, path)


def size_of(path: str | Path) -> int:
    """Bytes of all files below `path`."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def tend_once(limit: int) -> None:
    """`tend` before this process loads the first program, where PoCL uses the folder that netcl gave it."""
    folder = pocl_folder()
    if folder not in _tended:
        _tended.add(folder)
        if folder == own_pocl_folder():
            tend(folder, limit)


def tend(folder: Path, limit: int) -> None:
    """Remove incomplete programs, those used longest ago above `limit` bytes, and leftovers of killed builds.

    Programs that were not used since the last look, less a day, are known to be complete; sizes are measured where the
    number of programs changed.
    """
    found = programs(folder)
    looked, count, size = _stamp(folder)
    bad = [kept for kept in found if kept.used >= looked - LOOK_BACK and not _complete(kept.path)]
    for kept in bad:
        debug.log(debug.DEVICES, f"PoCL: {kept.path} was incomplete and is built anew")
        _remove(folder, kept.path)
    found = sorted(set(found) - set(bad))
    if count != len(found):
        size = sum(size_of(kept.path) for kept in found)
    if size > limit:
        while found and size > limit * KEEP and found[0].used < time.time() - IN_USE:
            size -= size_of(found[0].path)
            _remove(folder, found.pop(0).path)
    _sweep(folder)
    with contextlib.suppress(OSError):
        (folder / _STAMP).write_text(f"{len(found)} {size}\n")


def forget(since: float) -> bool:
    """Remove the programs used since `since`, in seconds of the epoch: one of them was damaged. Whether there were any.

    Others do no harm by it: PoCL holds in memory what it needs of programs in use.
    """
    folder = pocl_folder()
    found = [kept for kept in programs(folder) if kept.used >= since - 1 and os.path.exists(f"{kept.path}/program.bc")]
    for kept in found:
        _remove(folder, kept.path)
    return bool(found)


def _stamp(folder: Path) -> tuple[float, int, int]:
    """(time of the last look, programs then, bytes then)."""
    try:
        count, size = map(int, (folder / _STAMP).read_text().split())
        return (folder / _STAMP).stat().st_mtime, count, size
    except (OSError, ValueError):
        return 0.0, -1, 0


def _complete(program: str) -> bool:
    """Whether every file that PoCL would load is as long as it says."""
    try:
        for folder, _, names in os.walk(program):
            for name in names:
                if name == "program.bc" and not _whole_bitcode(os.path.join(folder, name)):
                    return False
                if name.endswith(".so") and not _whole_library(os.path.join(folder, name)):
                    return False
    except OSError:  # another process removes it at this moment
        return True
    return True


def _whole_bitcode(path: str) -> bool:
    """Whether LLVM's bitcode has all its blocks: a word with an abbreviation, one with the length, the content."""
    with open(path, "rb") as file:
        if file.read(4) != b"BC\xc0\xde":
            return False
        end, place = os.fstat(file.fileno()).st_size, 4
        while place < end:
            file.seek(place + 4)
            place += 8 + 4 * int.from_bytes(file.read(4), "little")
    return place == end


def _whole_library(path: str) -> bool:
    """Whether an ELF file reaches to the end of its table of sections, which linkers write last."""
    with open(path, "rb") as file:
        head = file.read(64)
        if len(head) < 64 or head[:4] != b"\x7fELF" or head[4] != 2:  # 32-bit files are left to the loader
            return head[:4] == b"\x7fELF" and head[4:5] == b"\x01"
        start, each, count = (int.from_bytes(head[a:b], "little") for a, b in ((40, 48), (58, 60), (60, 62)))
        return start + each * count <= os.fstat(file.fileno()).st_size


def _remove(folder: Path, program: str) -> None:
    """Take a program away as a whole, then delete it."""
    with contextlib.suppress(OSError):
        away = tempfile.mkdtemp(prefix="tempfile_", dir=folder)
        with contextlib.suppress(OSError):
            os.rename(program, os.path.join(away, "program"))
        shutil.rmtree(away, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove what killed builds left: PoCL names all of it `tempfile_...`, and leaves an empty one for each process."""
    before = time.time() - IN_USE
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name.startswith("tempfile_"):
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < before:
                        shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)
