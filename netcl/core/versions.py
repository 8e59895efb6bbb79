"""When memory was last written in place, so that backward can tell whether what it saved is still what forward read.

`now` counts the writes of the process. Whoever saves a tensor notes `now` and asks `changed` later, which is one
comparison as long as nothing was written. Views share the memory and so its count. New memory need not be reported:
whoever saves it saves it after it was filled.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection
from typing import Any, Protocol

import numpy as np

from netcl.core import layout, live
from netcl.core.errors import ShapeError

now = 0
_replay = 0  # the count at the last replay of any recording
_last: dict[int, int] = {}  # the count at the last write, by memory
_lock = threading.Lock()


class Written(Protocol):
    """A Tensor, as far as it is seen here."""

    buffer: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def memory_key(buffer: Any) -> int:
    """What tells the memory of `buffer` from all other memory in use: the driver's address, on NumPy the array's."""
    return id(buffer) if isinstance(buffer, np.ndarray) else buffer.int_ptr


def wrote(*tensors: Written, where: str = "write") -> None:
    """Report that `where` is about to write `tensors` in place, or has. A kernel of one's own has to report it, too.

    Raises ShapeError for a tensor with several elements in one place of memory, as `expand` makes them.
    """
    keys = []
    for t in tensors:
        if 0 in t.strides and layout.repeats(t.shape, t.strides):
            raise ShapeError(
                f"{where}: expected elements with memory of their own to write to, got an expanded tensor of shape "
                f"{t.shape}; write to a copy() of it, or to what was expanded."
            )
        buffer = t.buffer
        keys.append(id(buffer) if isinstance(buffer, np.ndarray) else buffer.int_ptr)  # memory_key, without a call
    wrote_memory(keys)


def wrote_memory(keys: Collection[int]) -> None:
    """`wrote` for memory told by `memory_key`."""
    global now
    with _lock:
        now += 1
        _last.update(dict.fromkeys(keys, now))
    if live.active is not None and (recording := live.recording()) is not None:
        recording.written.update(keys)


def changed(tensor: Written, since: int) -> bool:
    """Whether the memory of `tensor` was written after the count was `since`."""
    key = memory_key(tensor.buffer)
    if _last.get(key, 0) > since:
        return True
    if _replay <= since:
        return False
    with _lock:
        recordings = list(_replayed)
    return any(r.at > since and key in r.keys for r in recordings)


class Replayed:
    """The memory that a recording writes at each replay, under one count: a replay costs the same for any number."""

    def __init__(self, keys: Collection[int]) -> None:
        self.keys, self.at = frozenset(keys), 0
        with _lock:
            _replayed.add(self)

    def again(self) -> None:
        """Report one more replay."""
        global now, _replay
        with _lock:
            now += 1
            self.at = _replay = now

    def __del__(self) -> None:
        for key in self.keys if self.at else ():
            _last[key] = max(self.at, _last.get(key, 0))


_replayed: weakref.WeakSet[Replayed] = weakref.WeakSet()
