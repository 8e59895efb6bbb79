"""One recording in the making: what is sent to a queue, and the memory it uses.

`Recording` sits in the hooks of core while it listens and takes itself out again, also when it has to refuse something.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from netcl.core import live, memory
from netcl.core.backend import cpu, opencl
from netcl.core.errors import CaptureError
from netcl.core.layout import Shape
from netcl.core.protocols import Queue
from netcl.core.queue import CPUQueue, state_of
from netcl.runtime.capture.host_replay import NumpySteps, references
from netcl.runtime.capture.intercept import RawCalls
from netcl.runtime.capture.replay import COPY, FILL, KERNEL, WRITE, Command

with contextlib.suppress(ImportError):  # without pyopencl only NumPy runs, and nothing here is called
    import pyopencl as cl


class RecordingPool(memory.BufferPool):
    """The memory of one recording. Notes what it gave out."""

    idle_is_free = False  # replays write to it

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue)
        self.owned: dict[int, int] = {}  # bytes asked for, by address
        self.peak = 0

    def buffer(self, nbytes: int) -> Any:
        """A block of at least `nbytes`."""
        found = super().buffer(nbytes)
        pointer = found.int_ptr
        self.owned[pointer] = max(nbytes, self.owned.get(pointer, 0))
        self.peak = max(self.peak, self.stats.active_bytes)
        return found


class _Passing:
    """The ordinary pool while a recording pauses; notes that what it gives out is new."""

    def __init__(self, pool: memory.BufferPool, recording: Recording) -> None:
        self.pool, self.recording = pool, recording

    def buffer(self, nbytes: int) -> Any:
        self.recording._passing = True
        try:
            found = self.pool.buffer(nbytes)
        finally:
            self.recording._passing = False
        self.recording.scratch.add(found.int_ptr)
        return found


class Recording:
    """What one `begin`/`end` saw. Installs itself into the hooks of core and takes itself out again."""

    def __init__(self, on_refusal: Callable[[str], None], host_reads: bool = True) -> None:
        self.thread, self.paused, self.host_reads = threading.get_ident(), 0, host_reads
        self.queue: Any = None
        self.commands: list[Command] = []
        self.numpy = NumpySteps()
        self.steps: list[Callable[[], None]] = []
        self.conditions: list[Callable[[], bool]] = []
        self.memory: dict[int, Any] = {}  # every buffer used, by address
        self.outside: dict[int, Any] = {}  # those of them that were there before
        self.pools: dict[int, RecordingPool] = {}  # by the pool each stands for
        self.scratch: set[int] = set()  # addresses given out while paused
        self.written: set[int] = set()  # memory that is written in place, as core.versions tells it
        self.parameters: list[Any] = []  # whose gradients an optimizer or clipping read
        self.arms_flag = self._passing = False
        self._raw = RawCalls(self)
        self._on_refusal = on_refusal

    # -- life ------------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Start to listen."""
        live.active = self
        memory.substitute = self._substitute
        opencl.hooks.append(self._launched)
        opencl.copy_hooks.append(self.copied)
        cpu.hooks.append(self._computed)
        self._raw.install()

    def remove(self) -> None:
        """Stop to listen; nothing stays patched."""
        self._raw.remove()
        added = ((opencl.hooks, self._launched), (opencl.copy_hooks, self.copied), (cpu.hooks, self._computed))
        for hooks, hook in added:
            if hook in hooks:
                hooks.remove(hook)
        if live.active is self:
            live.active = memory.substitute = None

    def listening(self) -> bool:
        """Whether what this thread does now belongs to the recording."""
        return not self.paused and threading.get_ident() == self.thread

    def refuse(self, reason: str) -> NoReturn:
        """Give the recording up."""
        self._on_refusal(reason)
        raise CaptureError(f"recording: {reason}; the recording was given up.")

    def on_step(self, fn: Callable[[], None]) -> None:
        """Run `fn` before each replay."""
        self.steps.append(fn)

    def only_while(self, fn: Callable[[], bool]) -> None:
        """Refuse replays once `fn` says False."""
        self.conditions.append(fn)

    def _substitute(self, pool: memory.BufferPool) -> Any:
        if isinstance(pool, RecordingPool) or threading.get_ident() != self.thread or pool.queue is None:
            return pool
        if self.paused:
            return pool if self._passing else _Passing(pool, self)
        if id(pool) not in self.pools:
            self.pools[id(pool)] = RecordingPool(pool.queue)
        return self.pools[id(pool)]

    def holders(self, buffer: Any) -> int:
        """How many others hold `buffer`, besides this recording and the caller's one name for it."""
        uses = sum(x is buffer for c in self.commands for x in (*c.args, c.object, c.other))
        tables = (self.memory, self.outside)
        uses += sum(table.get(buffer.int_ptr) is buffer for table in tables)
        return references(buffer) - uses - 3  # the caller's name, this argument's and that of getrefcount

    def was_before(self, buffer: Any) -> bool:
        """Whether it uses `buffer`, which was there before."""
        return self.numpy.was_before(buffer) if isinstance(buffer, np.ndarray) else buffer.int_ptr in self.outside

    def abandoned(self) -> int:
        """Bytes of memory that was there before, was used, and that only the recording still holds.

        A program that puts a new tensor in the place of an old one leaves such memory: a replay would read the old.
        """
        lost = self.numpy.abandoned()
        for pointer in list(self.outside):
            buffer = self.outside[pointer]
            if pointer not in self.scratch and self.holders(buffer) <= 0:
                lost += int(buffer.size)
        return lost

    def rewritten(self) -> set[int]:
        """The memory that each replay writes: all of its own, and what it writes in place."""
        owned = {pointer for pool in self.pools.values() for pointer in pool.owned}
        return self.written | owned | self.numpy.rewritten()

    # -- what happens ------------------------------------------------------------------------------------------------

    def _on(self, queue: Queue) -> None:
        if self.queue is None:
            self.queue = queue
        elif queue is not self.queue and queue != self.queue:
            self.refuse("expected all work on the queue of the first command, got another queue")

    def _hold(self, buffer: Any) -> Any:
        """The memory object behind `buffer`, kept alive; does not keep a pool from reusing the recording's own."""
        pointer = buffer.int_ptr
        if pointer not in self.memory:
            if any(pointer in pool.owned for pool in self.pools.values()):
                self.memory[pointer] = cl.MemoryObject.from_int_ptr(pointer, True)
            else:
                self.memory[pointer] = self.outside[pointer] = buffer
        return self.memory[pointer]

    def _held(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(self._hold(a) if isinstance(a, cl.MemoryObjectHolder) else a for a in args)

    def _launched(
        self,
        kernel: Any,
        queue: Queue,
        size: tuple[int, ...],
        local: tuple[int, ...] | None,
        args: tuple[Any, ...],
        _: Any,
    ) -> None:
        if not self.listening():
            return
        self._on(queue)
        own = cl.Kernel(kernel.handle.program, kernel.name)
        cells = []
        for i, (dtype, value) in enumerate(zip(kernel.types, args, strict=True)):
            if isinstance(value, live.Cell):
                cells.append((i, dtype, value))
                value = value.value
            self._raw.set_arg(own, i, value if dtype is None else dtype.type(value))
        held = self._held(args)
        self.commands.append(Command(KERNEL, kernel.name, own, None, (), size, local, None, kernel, held, cells))
        flag = state_of(queue).flag
        self.arms_flag = self.arms_flag or (flag is not None and any(h is flag for h in held))

    def raw_kernel(self, queue: Queue, own: Any, grid: tuple[Shape, Shape, Shape | None], args: Sequence[Any]) -> None:
        """A kernel called without `launch`: `own` is the recording's object of it, `grid` (start, global, local)."""
        self._on(queue)
        held = self._held(tuple(getattr(a, "base_data", a) for a in args))  # of pyopencl's arrays
        named = _RawKernel(own.function_name)
        self.commands.append(Command(KERNEL, named.name, own, None, *grid, None, named, held))

    def copied(
        self, kind: str, queue: Queue, target: Any, source: Any, nbytes: int, details: tuple[int, ...], _: Any
    ) -> None:
        """A copy, fill, write or read."""
        if not self.listening():
            return
        if kind == "read":
            self.read("a tensor (to_host, item, print, bool); return it and read it after the step")
            return
        self._on(queue)
        if isinstance(queue, CPUQueue):
            self.numpy.write(target, source)
            return
        offset, other = details[0], details[1] if len(details) > 1 else 0
        start, held = (offset, other, nbytes), self._hold(target)
        if kind == "copy":
            self.commands.append(Command(COPY, "copy", held, self._hold(source), start))
        else:
            host = np.array(source, order="C")  # pinned memory goes back to its pool
            self.commands.append(Command(FILL if kind == "fill" else WRITE, kind, held, None, start, host=host))

    def read(self, what: str) -> None:
        """The host read `what`: nothing that a replay does."""
        if not self.host_reads:
            self.refuse(f"the host reads {what}")

    def _computed(self, fn: Any, outputs: Any, inputs: Any, attrs: Mapping[str, Any], in_place: bool, _: float) -> None:
        if self.listening():
            self._on((*outputs, *inputs)[0].queue)
            self.numpy.add(fn, outputs, inputs, attrs, in_place)


class _RawKernel(NamedTuple):
    """What launch hooks are told of a raw kernel."""

    name: str
