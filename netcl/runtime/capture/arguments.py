"""The arguments of recorded kernels that change between replays: numbers of cells, and memory in the place of other."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from netcl.core.backend import native
from netcl.core.errors import DeviceError

VALUE = attrgetter("value")


class _Use(NamedTuple):
    """One argument of one kernel."""

    kernel: Any
    position: int
    nbytes: int
    word: ctypes.c_uint64  # what the driver is given: the bytes of a number, or the address of memory
    content: Callable[[], Any]  # what pyopencl is given


class BufferSlot:
    """The kernel arguments that one recorded buffer is behind, to put another in its place without a copy."""

    __slots__ = ("bound", "word")

    def __init__(self, buffer: Any) -> None:
        self.bound = buffer  # what is used now; arguments do not keep memory alive
        self.word = ctypes.c_uint64(buffer.int_ptr)

    def bind(self, buffer: Any) -> None:
        """Use `buffer` from the next replay on."""
        self.bound, self.word.value = buffer, buffer.int_ptr


class Record(ctypes.Structure):
    """One argument as `_send.c` reads it."""

    _fields_ = (
        ("kernel", native.P),
        ("word", native.P),
        ("index", native.UINT),
        ("nbytes", native.UINT),
        ("known", ctypes.c_uint64),
        ("sent", ctypes.c_uint64),
    )


class Arguments:
    """The changing arguments of one recording: `read` takes new numbers over, `send` sets what differs from last time.

    `_send.c` does what `send` does, before it sends the commands in the same call; both know what was set last by
    `records`.
    """

    def __init__(self, commands: Sequence[Any] = ()) -> None:
        """Args: commands: those of the recording (replay.Command)."""
        found = [(c.object, i, dtype, cell) for c in commands for i, dtype, cell in c.cells]
        self.cells = tuple(cell for *_, cell in found)
        block = bytearray(8 * len(found))
        self._numbers = [np.frombuffer(block, dtype, 1, 8 * i) for i, (_, _, dtype, _) in enumerate(found)]
        layout = "".join(native.PADDED[dtype] for _, _, dtype, _ in found)
        self._pack = partial(struct.Struct("=" + layout).pack_into, block, 0)
        self._uses: list[_Use] = []
        for i, (kernel, index, dtype, _) in enumerate(found):
            word, number = ctypes.c_uint64.from_buffer(block, 8 * i), self._numbers[i]
            self._uses.append(_Use(kernel, index, dtype.itemsize, word, partial(number.__getitem__, 0)))
        self._list()

    def slot(self, buffer: Any, uses: Sequence[tuple[Any, int]]) -> BufferSlot:
        """A slot for `buffer`, an argument of each (kernel, index) in `uses`. Runners built before do not know it."""
        slot = BufferSlot(buffer)
        self._uses += [
            _Use(kernel, i, ctypes.sizeof(native.P), slot.word, partial(getattr, slot, "bound")) for kernel, i in uses
        ]
        self._list()
        return slot

    def _list(self) -> None:
        rows = [Record(u.kernel.int_ptr, ctypes.addressof(u.word), u.position, u.nbytes, 0, 0) for u in self._uses]
        self.records = (Record * len(rows))(*rows)

    def forget(self) -> None:
        """Set all of them next time: somebody else set some."""
        for record in self.records:
            record.known = 0

    def read(self) -> None:
        """Take over the numbers that the cells hold now."""
        try:
            self._pack(*map(VALUE, self.cells))
        except (struct.error, OverflowError):  # NumPy makes integers of floats, and infinity of what is too large
            for number, cell in zip(self._numbers, self.cells, strict=True):
                number[0] = cell.value

    def send(self) -> None:
        """Set what differs from last time."""
        api = native.library()
        for i, (use, record) in enumerate(zip(self._uses, self.records, strict=True)):
            value, status = use.word.value, 0
            if record.known and record.sent == value:
                continue
            record.known = 0
            if api is None:
                use.kernel.set_arg(use.position, use.content())
            else:
                status = api.clSetKernelArg(record.kernel, use.position, use.nbytes, record.word)
            self.check(i, status)
            record.known, record.sent = 1, value

    def check(self, position: int, status: int) -> None:
        """Raise DeviceError unless the driver took the argument at `position`."""
        if status:
            kernel, index = self._uses[position][:2]
            raise DeviceError(
                f"replay: expected argument {index} of {kernel.function_name} in the context of the recording, got "
                f"OpenCL error {status}; pass inputs of the queue that was recorded."
            )
