"""Files that appear at once: written beside their place under a name of their own, then moved over what was there.

A draft is locked while it is written. One that nobody has locked was left by a process that was killed, and the next
save to the same place removes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from typing import BinaryIO

from netcl.core.errors import CheckpointError

try:
    import fcntl
except ImportError:  # Windows, where nobody can remove a file that is open
    fcntl = None  # type: ignore[assignment]  # a module elsewhere

NAME_CHARACTERS = 50  # of the target's name in a draft's: file systems allow 255 bytes, and a character takes up to 4
KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` when the block ends without an error.

    Links are followed. A new file gets the permissions that the umask leaves, an existing one keeps its own. Raises
    CheckpointError for what is there and is no regular file, OSError and ValueError for paths that the system refuses.
    """
    target = _target(path)
    _remove_stale(target)
    file = _draft(target)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            with contextlib.suppress(FileNotFoundError):
                os.chmod(file.name, stat.S_IMODE(os.stat(target).st_mode))
            if fcntl is None:
                file.close()
            os.replace(file.name, target)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(file.name)


def _target(path: str | os.PathLike[str]) -> str:
    """The file behind `path`, which need not exist yet."""
    text = os.fsdecode(path)
    target, found = os.path.realpath(text), None
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(target).st_mode
        found = None if stat.S_ISREG(mode) else KINDS.get(stat.S_IFMT(mode), "a device")
    if not text:
        found = "an empty name"
    elif found is None and text.endswith(os.sep):
        found = "the name of a folder"
    if found is not None:
        raise CheckpointError(f"save: expected the path of a file, got {found}: {text!r}.")
    return target


def _draft(target: str) -> BinaryIO:
    """A new file beside `target`, open and locked."""
    folder, name = os.path.split(target)
    while True:
        path = os.path.join(folder, f".{name[:NAME_CHARACTERS]}.{secrets.token_hex(8)}.draft")
        file = open(path, "x+b")  # noqa: SIM115  (the caller closes it)
        _lock(file, wait=True)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        file.close()  # another save took it for a stale one before it was locked


def _remove_stale(target: str) -> None:
    """Remove the drafts of `target` that nobody writes any more."""
    folder, name = os.path.split(target)
    pattern = re.compile(re.escape(f".{name[:NAME_CHARACTERS]}.") + r"[0-9a-f]{16}\.draft")
    with os.scandir(folder) as entries:
        drafts = [e.path for e in entries if pattern.fullmatch(e.name) and e.is_file(follow_symlinks=False)]
    for path in drafts:
        with contextlib.suppress(OSError):
            if fcntl is None:
                os.unlink(path)
                continue
            with open(path, "rb") as file:
                if _lock(file, wait=False):
                    os.unlink(path)


def _lock(file: BinaryIO, wait: bool) -> bool:
    """Whether this process has `file` for itself; False as well where the file system knows no locks."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return True
    except OSError:
        return False
