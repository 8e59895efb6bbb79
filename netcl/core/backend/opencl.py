"""The only place that talks to a command queue: launches, copies, fills, and the flag that carries index errors.

(`netcl.data.feed` sends input batches by a queue of their own.)
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from netcl.core import host_memory, live, process
from netcl.core.backend import native
from netcl.core.backend.signature import Signature
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import transferable
from netcl.core.errors import DeviceError, IndexOutOfRange, NetclError, OutOfMemoryError
from netcl.core.memory import empty_buffer, pinned_pool_of
from netcl.core.protocols import Queue
from netcl.core.queue import QueueState, state_of

with contextlib.suppress(ImportError):  # without pyopencl only NumPy runs, and nothing here is called
    import pyopencl as cl

hooks: list[Callable[..., None]] = []  # called as hook(kernel, queue, global_size, local_size, args, event)
copy_hooks: list[Callable[..., None]] = []  # called as hook(kind, queue, destination, source, nbytes, details, event)

PINNED_FROM = 1 << 15  # bytes from which a discrete GPU's copies go through page-locked memory
FILL_END = (1 << 31) - (1 << 20)  # bytes from a buffer's start that drivers' fills reach safely (ops/create/fill.py)
FLAG_BYTES = 24  # of the buffer that carries an index error
PENDING_LIMIT = 64  # host copies in flight before the oldest is waited for


class Kernel:
    """A built kernel, and what it takes: `types` has None for memory, a dtype for a scalar."""

    __slots__ = ("_kept", "handle", "lock", "name", "sender", "signature", "types")

    def __init__(self, program: cl.Program, name: str, signature: Signature) -> None:
        self.handle = cl.Kernel(program, name)
        self.handle.set_scalar_arg_dtypes(list(signature.types))
        self.name, self.signature, self.types = name, signature, signature.types
        functions = native.extension()
        self.sender = None if functions is None else native.Sender(self.handle, self.types, functions)
        self._kept = self.sender  # prepared launches hold its address
        self.lock = threading.Lock()  # a kernel object holds its arguments, so setting and sending them is one step

    def __repr__(self) -> str:
        return f"Kernel({self.name})"


def launch(
    kernel: Kernel, queue: Queue, global_size: tuple[int, ...], local_size: tuple[int, ...] | None, *args: Any
) -> None:
    """Enqueue `kernel`; the only call site, so capture, profiling and debug printing hook in here. Never waits.

    A `rebind.Cell` may stand for any number: it is read here, and again at each replay of a recording.
    """
    target = queue if process.gate is None else process.gate(queue)
    sender, status, event = kernel.sender, 0, None
    if sender is None:
        event = _enqueue(kernel, target, global_size, local_size, args)
    else:
        n, pointer = sender.memory, target.int_ptr
        try:
            rest = sender.rest(args) if sender.mixed else args[n:]
            values = sender.pack(pointer, *map(native.POINTER, args[:n]), *rest)
        except (OverflowError, struct.error):
            values = sender.packed(kernel.name, pointer, args)
        except AttributeError:  # local memory, which only pyopencl can set
            kernel.sender = None
            return launch(kernel, queue, global_size, local_size, *args)
        values = native.geometry(global_size, local_size) + values
        if hooks:
            status, event = sender.launch_event(values)
        else:
            status = sender.launch(values)
        if status:
            _refuse(kernel, queue, global_size, local_size, status)
    if hooks:
        for hook in hooks:
            hook(kernel, queue, global_size, local_size, args, event)


def _enqueue(kernel: Kernel, queue: Any, global_size: Any, local_size: Any, args: Sequence[Any]) -> Any:
    """A launch through pyopencl; the event."""
    try:
        with kernel.lock:
            kernel.handle.set_args(*args)
            return cl.enqueue_nd_range_kernel(queue, kernel.handle, global_size, local_size)
    except cl.Error as error:
        return _refuse(kernel, queue, global_size, local_size, error.code)


def _refuse(kernel: Kernel, queue: Queue, global_size: Any, local_size: Any, status: int) -> NoReturn:
    """Raise for a launch that the driver refused with `status`."""
    raise failure(f"{kernel.name}: launch over {global_size} in groups of {local_size}", queue, status)


def failure(what: str, queue: Queue, error: Exception | int) -> NetclError:
    """The error for a command that the driver refused: its status, or what pyopencl raised."""
    codes: Any = cl.status_code
    status = error if isinstance(error, int) else int(getattr(error, "code", 0))
    reason = str(codes.to_string(status, "OpenCL error %d"))
    name = queue.device.name.strip()
    if status in (codes.MEM_OBJECT_ALLOCATION_FAILURE, codes.OUT_OF_RESOURCES, codes.OUT_OF_HOST_MEMORY):
        return OutOfMemoryError(
            f"{what} failed on {name}, which ran out of memory ({reason}); use a smaller batch, or drop tensors you no "
            "longer need."
        )
    lost = "" if reason.startswith("INVALID") else "; the queue may stay unusable: then start a new process"
    return DeviceError(f"{what} failed on {name}: {reason}{lost}.")


def write(queue: Queue, buffer: Any, array: np.ndarray, offset: int = 0) -> None:
    """Copy `array` to `buffer` at byte `offset` without waiting; later changes of `array` do not show."""
    if array.nbytes == 0:
        return
    array = transferable(array)
    target = process.target(queue)
    state = state_of(queue)
    keep: Any
    if array.nbytes >= PINNED_FROM and profile_of(queue).discrete:
        keep = pinned_pool_of(queue).allocate(array.nbytes)
        host = keep.array[: array.nbytes].view(array.dtype).reshape(array.shape)
        host[...] = array
    else:
        host = keep = host_memory.empty("copy to the device", array.shape, array.dtype)
        host[...] = array
    try:
        event = cl.enqueue_copy(target, buffer, host, dst_offset=offset, is_blocking=False)
        with state.lock:
            state.pending.append((event, keep))
            _retire(state, len(state.pending) > PENDING_LIMIT)
    except cl.Error as error:
        raise failure(f"copy of {array.nbytes:,} bytes to the device", queue, error) from error
    for hook in copy_hooks:
        hook("write", queue, buffer, host, array.nbytes, (offset,), event)


def _retire(state: QueueState, wait: bool) -> None:
    """Drop host copies whose transfer is done; with `wait`, wait for the oldest first."""
    pending = state.pending
    if wait:
        pending[0][0].wait()
    while pending and pending[0][0].command_execution_status <= cl.command_execution_status.COMPLETE:
        _, keep = pending.popleft()
        if hasattr(keep, "release"):
            keep.release()


def read(queue: Queue, array: np.ndarray, buffer: Any, offset: int = 0) -> None:
    """Copy `buffer` from byte `offset` into the contiguous `array` and wait: one of the few synchronising calls.

    Raises IndexOutOfRange for a bad index that a kernel met since the last synchronisation.
    """
    if array.nbytes == 0:
        return finish(queue)
    array = transferable(array)
    target = process.target(queue)
    state = state_of(queue)
    flag = _read_flag(queue, state) if state.armed else None
    try:
        if array.nbytes >= PINNED_FROM and profile_of(queue).discrete:
            staged = pinned_pool_of(queue).allocate(array.nbytes)
            host = staged.array[: array.nbytes].view(array.dtype).reshape(array.shape)
            event = cl.enqueue_copy(target, host, buffer, src_offset=offset, is_blocking=True)
            array[...] = host
            staged.release()
        else:
            event = cl.enqueue_copy(target, array, buffer, src_offset=offset, is_blocking=True)
    except cl.Error as error:
        raise failure(f"copy of {array.nbytes:,} bytes to the host", queue, error) from error
    if state.pool is not None:
        state.pool.trim()
    for hook in copy_hooks:
        hook("read", queue, array, buffer, array.nbytes, (offset,), event)
    if flag is not None:
        _raise_flag(queue, state, flag)


def finish(queue: Queue) -> None:
    """Wait for everything on `queue`. Raises IndexOutOfRange as `read` does."""
    state = state_of(queue)
    if state.armed:
        _raise_flag(queue, state, _read_flag(queue, state))
    target = process.target(queue)
    try:
        target.finish()
    except cl.Error as error:
        raise failure("waiting for the device", queue, error) from error
    if state.pool is not None:
        state.pool.trim()


def copy_buffer(
    queue: Queue, destination: Any, source: Any, nbytes: int, dst_offset: int = 0, src_offset: int = 0
) -> None:
    """Copy `nbytes` between two buffers of one context, without waiting."""
    if nbytes:
        target = process.target(queue)
        try:
            event = cl.enqueue_copy(
                target, destination, source, byte_count=nbytes, dst_offset=dst_offset, src_offset=src_offset
            )
        except cl.Error as error:
            raise failure(f"copy of {nbytes:,} bytes on the device", queue, error) from error
        for hook in copy_hooks:
            hook("copy", queue, destination, source, nbytes, (dst_offset, src_offset), event)


def fill_buffer(queue: Queue, buffer: Any, pattern: Any, nbytes: int, offset: int = 0) -> None:
    """Fill `nbytes` with a NumPy scalar by the driver, without waiting; they have to end before FILL_END."""
    if nbytes:
        target = process.target(queue)
        try:
            event = cl.enqueue_fill_buffer(target, buffer, pattern, offset, nbytes)
        except cl.Error as error:
            raise failure(f"fill of {nbytes:,} bytes", queue, error) from error
        for hook in copy_hooks:
            hook("fill", queue, buffer, pattern, nbytes, (offset,), event)


def flag_buffer(queue: Queue) -> Any:
    """Six ints on the device: set, site code, bad value, limit, and the high halves of value and limit.

    Kernels set [0] by atomic_cmpxchg from 0: to 1 for 32-bit numbers, to 2 when they write the high halves as well.
    """
    state = state_of(queue)
    if state.flag is None:
        with state.lock:
            if state.flag is None:
                with live.unrecorded():  # a replay must not clear it
                    flag = empty_buffer(queue, FLAG_BYTES)
                    fill_buffer(queue, flag, np.int32(0), FLAG_BYTES)
                state.flag = flag
    return state.flag


def arm_flag(queue: Queue, where: str) -> int:
    """The site code for `where`; from now on the next synchronisation looks at the flag."""
    state = state_of(queue)
    state.armed = True
    try:
        return state.sites.index(where)
    except ValueError:
        state.sites.append(where)
        return len(state.sites) - 1


def _read_flag(queue: Queue, state: QueueState) -> np.ndarray:
    flag = np.zeros(FLAG_BYTES // 4, np.int32)
    target = process.target(queue)
    try:
        cl.enqueue_copy(target, flag, state.flag, is_blocking=True)
    except cl.Error as error:
        raise failure("waiting for the device", queue, error) from error
    return flag


def _raise_flag(queue: Queue, state: QueueState, flag: np.ndarray) -> None:
    state.armed = False
    if flag[0]:
        with live.unrecorded():
            fill_buffer(queue, state.flag, np.int32(0), FLAG_BYTES)
        value, limit = flag[2:4]
        if flag[0] == 2:
            value, limit = (int(high) << 32 | int(low) & 0xFFFFFFFF for low, high in zip(flag[2:4], flag[4:6]))
        raise IndexOutOfRange(index_message(state.sites[flag[1]], int(value), int(limit)))


def index_message(where: str, value: int, limit: int) -> str:
    """The message of an IndexOutOfRange, the same on every backend; `limit` is -n where negative indices are legal."""
    return f"{where}: expected indices in [{min(limit, 0)}, {abs(limit)}), got {value}."


class OpenCLBackend:
    """What netcl does on one OpenCL queue, as an object: launches and copies that never wait, and a read that does."""

    name = "cl"

    def __init__(self, queue: Any) -> None:
        self.queue: Queue = queue

    def launch(self, kernel: Kernel, global_size: Any, local_size: Any, *args: Any) -> None:
        """Enqueue a kernel."""
        launch(kernel, self.queue, tuple(global_size), None if local_size is None else tuple(local_size), *args)

    def write(self, buffer: Any, array: np.ndarray, offset: int = 0) -> None:
        """Copy `array` to `buffer` at byte `offset`; later changes of `array` do not show."""
        write(self.queue, buffer, np.ascontiguousarray(array), offset)

    def read(self, buffer: Any, array: np.ndarray, offset: int = 0) -> np.ndarray:
        """Copy `buffer` from byte `offset` into the contiguous `array`, wait, and return it."""
        read(self.queue, array, buffer, offset)
        return array

    def finish(self) -> None:
        """Wait for everything sent."""
        finish(self.queue)
