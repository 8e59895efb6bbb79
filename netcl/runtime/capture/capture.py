"""Recording what is sent to a queue once, and sending it again without the Python that decided it.

Between `begin` and `end` everything runs as always and is recorded: netcl's own launches, raw `cl.Kernel` calls, copies
and fills; on NumPy, the backend's calls. `replay` repeats them on the same memory. A recording has memory of its own:
what it allocates comes from a private pool, reused inside the recording as tensors die and never given to anybody else,
and what it uses from before stays alive with it. So results are found where the recording left them, overwritten by the
next replay. Refused, with the reason: a second queue, nested and concurrent recordings, mapped memory.

A host read inside a recording works and is not part of it: replays read nothing, and what Python decided by a value
stays decided. `host_reads=False` refuses reads instead.

Numbers that must change are `core.rebind.Cell`s. New data goes into the recorded inputs, or see
`replay_with_new_buffers`. Data that the host writes inside the recording is repeated as it was.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from netcl.core import live, process
from netcl.core.backend import opencl
from netcl.core.errors import CaptureError
from netcl.core.protocols import Queue
from netcl.core.queue import CPUQueue, state_of
from netcl.core.versions import Replayed, memory_key, wrote_memory
from netcl.runtime.capture import replay
from netcl.runtime.capture.arguments import Arguments, BufferSlot
from netcl.runtime.capture.host_replay import constant
from netcl.runtime.capture.recording import Recording
from netcl.runtime.capture.replay import COPY, FILL, KERNEL, WRITE, Command


class Launch(NamedTuple):
    """A recorded kernel launch; on NumPy a recorded call, without sizes."""

    name: str
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    args: tuple[Any, ...]


class OutdatedError(CaptureError):
    """A recording of work that would be other work now; nothing was sent."""


_lock = threading.Lock()  # one recording in the process at a time


class KernelCapture:
    """A recording: `begin`, work, `end`, then `replay` as often as wanted.

    >>> cap = KernelCapture()
    >>> cap.begin()
    >>> y = model(x)
    >>> cap.end()           # number of launches
    >>> cap.replay()        # y holds the result for what is in x now

    Also a context manager, which gives the recording up when the block raises.

    Args: tier: forces a way to replay (see `runtime.replay`); by default the fastest is found once per device.
        host_reads: whether the host may read inside the recording; False raises CaptureError.
    """

    def __init__(self, tier: str | None = None, host_reads: bool = True) -> None:
        self._tier, self._host_reads = tier, host_reads
        self._live: Recording | None = None
        self._done: Recording | None = None
        self._reason = ""
        self._lock = threading.Lock()
        self._run: tuple[Any, Callable[[], None]] | None = None  # a queue, and what sends to it
        self._writes: Replayed | None = None
        self._arguments = Arguments()

    # -- recording -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start to record; a recording made before is dropped. Raises CaptureError while any is being made."""
        process.check()
        with _lock:
            found = live.active
            if found is not None:
                kind = "nested" if found.thread == threading.get_ident() else "concurrent"
                raise CaptureError(
                    f"begin: expected no recording in progress, got a {kind} one; end() or abort() that first."
                )
            self._forget()
            self._live = Recording(self._abort, self._host_reads)
            self._live.install()

    def end(self) -> int:
        """Stop and return the number of kernel launches recorded: on NumPy calls, on no backend copies or fills."""
        live = self._live
        if live is None:
            why = f"; the recording was given up: {self._reason}" if self._reason else "; call begin() first"
            raise CaptureError(f"end: expected a recording in progress, got none{why}.")
        live.remove()
        live.numpy.close()
        self._live, self._done, self._writes = None, live, Replayed(live.rewritten())
        self._arguments = Arguments(live.commands)
        return self.num_launches

    def abort(self) -> None:
        """Stop and drop what was recorded."""
        self._abort("abort() was called")

    def _abort(self, reason: str) -> None:
        if self._live is not None:
            self._live.remove()
            self._live = None
        self._reason = reason

    def _forget(self) -> None:
        self._done = self._run = self._writes = None
        self._arguments, self._reason = Arguments(), ""

    def __enter__(self) -> KernelCapture:
        self.begin()
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None:
            self._abort(f"the block raised {kind.__name__}")
        else:
            self.end()

    # -- replaying -------------------------------------------------------------------------------------------------

    def _ready(self, where: str) -> Recording:
        if self._live is not None or live.recording() is not None:
            raise CaptureError(f"{where}: expected no recording in progress, got one; call end() first.")
        if self._done is None:
            why = f" (given up: {self._reason})" if self._reason else ""
            raise CaptureError(f"{where}: expected a recording, got none{why}; call begin() and end() first.")
        return self._done

    def replay(self) -> None:
        """Do again what was recorded, on the same memory. Does not wait."""
        done = self._done
        if done is None or self._live is not None or live.active is not None:
            done = self._ready("replay")
        with self._lock:
            self._prepare(done)
            if done.numpy.steps:
                done.numpy.run(done.queue)
            elif done.commands:
                self._send(done)
            if self._writes is not None:
                self._writes.again()

    def warm_up(self) -> None:
        """Do now what the first replay would do besides sending: find the fastest way on this device, and build it."""
        done = self._ready("warm_up")
        if done.commands and not isinstance(done.queue, CPUQueue):
            self._built(done, process.target(done.queue))

    def replay_with_new_buffers(self, buffer_map: Mapping[int, Any]) -> None:
        """Replay once with other memory in the place of some of the recorded.

        Args: buffer_map: recorded address (`buffer.int_ptr`; on NumPy `buffer.ctypes.data`) to a buffer, or a tensor
            that starts its buffer, at least as large.
        Raises: CaptureError for addresses that are not part of the recording and for memory that is too small.
        """
        done = self._ready("replay_with_new_buffers")
        with self._lock:
            self._prepare(done)
            given = {pointer: _whole_buffer(value) for pointer, value in buffer_map.items()}
            if isinstance(done.queue, CPUQueue):
                known = done.numpy.keys()
                _check_map(given, {p: size for p, (_, size) in known.items()}, lambda b: b.nbytes)
                slots = {known[p][0]: b for p, b in given.items()}
                done.numpy.run(done.queue, slots)
                self._report({memory_key(done.numpy.memory[slot]): b for slot, b in slots.items()})
                return
            asked = {p: n for pool in done.pools.values() for p, n in pool.owned.items()}
            sizes = {p: asked.get(p, held.size) for p, held in done.memory.items()}
            _check_map(given, sizes, lambda b: b.size)
            self._send_replaced(done, given)
            self._report(given)

    def _report(self, replaced: Mapping[int, Any]) -> None:
        """Tell core.versions of a replay that wrote to other memory in the place of some of its own."""
        if self._writes is not None:
            self._writes.again()
            wrote_memory([memory_key(b) for key, b in replaced.items() if key in self._writes.keys])

    def slot_of(self, buffer: Any) -> BufferSlot | None:
        """A slot to put other memory in the place of `buffer`, lasting, and cheaper than a copy.

        None where that is not all: nothing is launched, `buffer` is part of a copy or fill, somebody besides one owner
        and the recording looks at it (a result may be a view of it), or the way to replay has its arguments baked in.
        """
        done = self._ready("slot_of")
        if not done.commands or self.tier == "command buffer" or done.holders(buffer) > 1:
            return None
        pointer, uses = buffer.int_ptr, []
        for c in done.commands:
            if any(getattr(b, "int_ptr", None) == pointer for b in (c.object, c.other) if c.kind != KERNEL):
                return None
            uses += [(c.object, i) for i, a in enumerate(c.args) if getattr(a, "int_ptr", None) == pointer]
        self._run = None
        return self._arguments.slot(buffer, uses)

    def uses(self, buffer: Any) -> bool:
        """Whether an OpenCL buffer is part of the recording."""
        return self._done is not None and buffer.int_ptr in self._done.memory

    def _prepare(self, done: Recording) -> None:
        """Run the bookkeeping of a step and set the arguments that changed."""
        if process.forked:
            process.check()
        for fn in done.conditions:
            if not fn():
                raise OutdatedError(
                    "replay: expected the settings and counts that the recording was made with, got others (an "
                    "optimizer was changed, or stepped its parameters apart); record again."
                )
        for step in done.steps:
            step()
        if self._arguments.cells:
            self._arguments.read()
        if done.arms_flag:
            state_of(done.queue).armed = True

    def _send(self, done: Recording) -> None:
        queue = done.queue if process.gate is None else process.gate(done.queue)
        if opencl.hooks or opencl.copy_hooks:  # a profiler wants every event
            self._arguments.send()
            for command in done.commands:
                _tell(command, done.queue, command.send(queue))
            return
        run = self._run
        if run is None or run[0] is not queue:
            run = self._built(done, queue)
        run[1]()

    def _built(self, done: Recording, queue: Queue) -> tuple[Any, Callable[[], None]]:
        """The fastest way on `queue`, built and kept."""
        self._run = (queue, replay.build(self._tier or replay.best(queue), done.commands, queue, self._arguments))
        return self._run

    def _send_replaced(self, done: Recording, given: Mapping[int, Any]) -> None:
        queue = process.target(done.queue)
        self._arguments.send()
        for c in done.commands:
            if c.kind == KERNEL:
                hits = [(i, a) for i, a in enumerate(c.args) if getattr(a, "int_ptr", None) in given]
                for i, a in hits:
                    c.object.set_arg(i, given[a.int_ptr])
                event = c.send(queue)
                for i, a in hits:
                    c.object.set_arg(i, a)
            else:
                target, source = (None if b is None else given.get(b.int_ptr, b) for b in (c.object, c.other))
                event = Command(c.kind, c.name, target, source, c.start, host=c.host).send(queue)
            _tell(c, done.queue, event)
        self._arguments.forget()

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def is_recording(self) -> bool:
        """Whether a recording is being made."""
        return self._live is not None

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The recorded launches, in order."""
        found = self._live or self._done
        if found is None:
            return ()
        if isinstance(found.queue, CPUQueue):
            calls = (s for s in found.numpy.steps if s.fn is not constant)
            return tuple(Launch(s.name, (), None, tuple(s.attrs.items())) for s in calls)
        return tuple(Launch(c.name, c.global_size, c.local_size, c.args) for c in found.commands if c.kind == KERNEL)

    @property
    def num_launches(self) -> int:
        """How many launches were recorded."""
        return len(self.launches)

    @property
    def recording(self) -> Recording | None:
        """The finished recording."""
        return self._done

    @property
    def peak_bytes(self) -> int:
        """Most bytes of the recording's own memory in use at one time."""
        if self._done is None:
            return 0
        return self._done.numpy.peak_bytes + sum(pool.peak for pool in self._done.pools.values())

    @property
    def held_bytes(self) -> int:
        """Bytes of memory from before the recording that it keeps alive."""
        if self._done is None:
            return 0
        return self._done.numpy.held_bytes + sum(int(b.size) for b in self._done.outside.values())

    @property
    def tier(self) -> str:
        """The way it is replayed."""
        if self._done is None or self._done.queue is None or isinstance(self._done.queue, CPUQueue):
            return "numpy"
        return self._tier or replay.best(self._done.queue)

    def explain(self) -> str:
        """What was recorded, what it keeps and how it is replayed, in a few lines."""
        done = self._ready("explain")
        kinds = [c.kind for c in done.commands]
        lines = [
            f"{self.num_launches} launches, {kinds.count(COPY)} copies, {kinds.count(FILL)} fills, "
            f"{kinds.count(WRITE)} writes of host data that stays as it was",
            f"{len(self._arguments.cells)} numbers read anew and {len(done.steps)} functions run at each replay",
            f"own memory: {self.peak_bytes:,} bytes at the peak; keeps {self.held_bytes:,} bytes from before",
        ]
        if self.tier == "numpy":
            return "\n".join([*lines, "replayed by: NumPy"])
        took = ", ".join(f"{t} {us:.1f}" for t, us in replay.timings(done.queue).items())
        lines.append(f"replayed by: {self.tier} (us a launch when probed: {took})")
        return "\n".join([*lines, *(f"not here: {tier} ({why})" for tier, why in replay.missing(done.queue).items())])


def _tell(command: Command, queue: Queue, event: Any) -> None:
    """Report a replayed command to the hooks, as if it had been launched."""
    if command.kind == KERNEL:
        for hook in opencl.hooks:
            hook(command.kernel, queue, command.global_size, command.local_size, command.args, event)
        return
    source = command.other if command.kind == COPY else command.host
    for hook in opencl.copy_hooks:
        hook(command.name, queue, command.object, source, command.start[2], command.start[:2], event)


def _whole_buffer(value: Any) -> Any:
    """The buffer to use for `value`, a buffer or a tensor."""
    if getattr(value, "offset", 0) and hasattr(value, "strides"):
        raise CaptureError("replay_with_new_buffers: expected a tensor that starts its buffer, got a view; copy() it.")
    return getattr(value, "buffer", value)


def _check_map(given: Mapping[int, Any], known: Mapping[int, int], size: Callable[[Any], int]) -> None:
    for pointer, buffer in given.items():
        if pointer not in known:
            raise CaptureError(
                f"replay_with_new_buffers: expected addresses of recorded buffers, got {pointer:#x}; take "
                "`buffer.int_ptr` of a tensor that was used inside the recording."
            )
        if size(buffer) < known[pointer]:
            raise CaptureError(
                f"replay_with_new_buffers: expected at least {known[pointer]} bytes for {pointer:#x}, "
                f"got {size(buffer)}; another shape needs a recording of its own."
            )


@contextlib.contextmanager
def capture_disabled() -> Iterator[None]:
    """What runs inside is not recorded, and takes memory from the ordinary pool. Without a recording, does nothing."""
    with live.unrecorded():
        yield


_shared: KernelCapture | None = None


def get_capture() -> KernelCapture:
    """The process-wide KernelCapture, made on first use."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = KernelCapture()
        return _shared


def capture_graph(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> KernelCapture:
    """Run fn(*args) once and record it; `replay()` of what comes back does it again on the same memory."""
    capture = KernelCapture()
    with capture:
        fn(*args, **kwargs)
    return capture
