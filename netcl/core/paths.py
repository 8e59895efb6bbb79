"""Where netcl may keep files between runs, and which folders it may take programs from."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from netcl.core import settings

with contextlib.suppress(ImportError):  # not on Windows, whose folders have no such owners and modes
    import grp
    import pwd


def cache_dir() -> Path | None:
    """The folder for programs and other things that can be made again, or None where there is no home.

    `NETCL_CACHE_DIR` if set, else the platform's cache folder (`~/.cache/netcl` on Linux). Nothing is created here.
    """
    chosen = settings.value("NETCL_CACHE_DIR")
    try:
        if chosen:
            return Path(chosen).expanduser()
        if sys.platform == "linux":  # what platformdirs says, without loading it
            return Path(os.environ.get("XDG_CACHE_HOME", "").strip() or "~/.cache").expanduser() / "netcl"
        from platformdirs import user_cache_dir

        return Path(user_cache_dir("netcl", appauthor=False))
    except (ImportError, RuntimeError, OSError):
        return None


def distrust(place: str | os.PathLike[str] | int, kind: Callable[[int], bool] = stat.S_ISDIR) -> str:
    """Why programs in a folder may be somebody else's; "" where only this user can have put them there.

    Programs run as whoever loads them, so the folder has to be the user's and closed to others. What is not of the
    `kind`, a folder, or does not exist yet, holds none. An open file goes by its number.
    """
    try:
        found = os.stat(place)
    except OSError:
        return ""
    if "pwd" not in globals() or not kind(found.st_mode):
        return ""
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}"
    if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _private(found.st_gid)):
        return "can be written by other users"
    return ""


def _private(group: int) -> bool:
    """Whether a group is the one that Linux gives each user, with nobody else in it."""
    with contextlib.suppress(KeyError):
        user, found = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
        return found.gr_name == user and not set(found.gr_mem) - {user}
    return False


def own_temporary() -> Path | None:
    """A folder of this user's among the temporary files, None where somebody else was there first."""
    owner = os.geteuid() if "pwd" in globals() else "user"
    try:
        folder = Path(tempfile.gettempdir()) / f"netcl-{owner}"
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    return None if folder.is_symlink() or distrust(folder) else folder


def read_regular(path: Path, most: int) -> bytes | None:
    """The content of a regular file of the user's, b"" for anything else of that name, None where nothing opens.

    Links are not followed, and pipes, devices and files above `most` bytes are not read.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags)
    except OSError as error:
        return b"" if error.errno == errno.ELOOP else None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_size > most or distrust(handle, stat.S_ISREG):
            os.close(handle)
            return b""
        with os.fdopen(handle, "rb") as file:
            return file.read(most)
    except OSError:
        return b""
