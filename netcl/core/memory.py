"""Pools of device memory: released blocks are kept and given out again, and an out-of-memory error explains itself.

The pools stand on `pyopencl.tools.MemoryPool`. A pool belongs to one queue, so a block may be reused as soon as its
last owner is gone: the queue runs in order, and whatever still reads the block was sent before what writes it next.
The first two steps of a loop fill the pool, and later ones of the same shapes ask the driver for nothing.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from netcl.core import host_memory, process, settings
from netcl.core.device.profile import profile_of
from netcl.core.errors import OutOfMemoryError, ShapeError
from netcl.core.protocols import Queue
from netcl.core.queue import CPUQueue, state_of

with contextlib.suppress(ImportError):  # without pyopencl only NumPy runs, and nothing here is called
    import pyopencl as cl
    from pyopencl.tools import ImmediateAllocator, MemoryPool

GIB, PAGE = 1 << 30, 4096
substitute: Callable[[BufferPool], BufferPool] | None = None  # a recording's own pool in place of the one asked
Buffer = Any  # a pyopencl memory object, pooled or plain


def _refuse(pool: BufferPool) -> BufferPool:
    """The substitute in a forked process: new memory would wait for the driver for ever."""
    if pool.context is not None:
        process.check()
    return pool


def _after_fork() -> None:
    global substitute
    substitute = _refuse


process.on_fork.append(_after_fork)


class _Full(Exception):
    """New memory would exceed what the device, or the host behind it, has; nothing was touched."""


class _Budget:
    """What all pools of one device may make. Drivers for CPUs promise more memory than there is, so it is counted here.

    A look costs a hundred microseconds on CPU devices, so there is one per quarter of what was found, not per block.
    """

    def __init__(self, device: Any) -> None:
        self.total, self.on_host = device.global_mem_size, bool(device.type & cl.device_type.CPU)
        self.pools: weakref.WeakSet[BufferPool] = weakref.WeakSet()
        self.free = 0  # bytes that may be made without another look
        self._base = host_memory.resident()  # of the process without device memory
        self._lock = threading.Lock()

    def look(self) -> host_memory.Room:
        """What may still be made, and why no more; renews `free`."""
        with self._lock:
            made = sum(pool.managed_bytes for pool in list(self.pools))
            left = host_memory.Room(max(0, self.total - made), f"device total {self.total:,}")
            self.free = left.nbytes
            if self.on_host:
                resident = host_memory.resident()
                self._base = min(self._base, resident)
                host = host_memory.room(max(0, made - (resident - self._base)))
                self.free = min(left.nbytes, host.nbytes // 4)
                left = min(left, host)
            return left


_budgets: dict[int, _Budget] = {}  # by the address of the device


def _budget_of(device: Any) -> _Budget:
    return _budgets.get(device.int_ptr) or _budgets.setdefault(device.int_ptr, _Budget(device))


class _Maker:
    """Makes device memory by a queue of its own, one block at a time, so that what it sends never has to wait.

    pyopencl makes sure of new memory by a migration. Sent behind a command that waits for an event, that ended the
    process in NVIDIA's driver (580.159); and new memory need not wait for the work of a queue.
    """

    def __init__(self, context: Any, device: Any) -> None:
        self.queue, self.lock = cl.CommandQueue(context, device), threading.Lock()
        self.allocator = ImmediateAllocator(self.queue)
        self.budget = _budget_of(device)

    def allocate(self, pool: Any, nbytes: int) -> Buffer:
        """A block of `pool`, which is on the device by then. Raises _Full, or what the driver raises."""
        with self.lock:
            fits = nbytes <= self.budget.free or self._fits(pool, nbytes)
            before = pool.managed_bytes
            block = pool.allocate(nbytes)
            if pool.managed_bytes != before:
                if not fits:  # no idle block of this size either; the new one is given back untouched
                    del block
                    raise _Full
                self.budget.free -= pool.managed_bytes - before
                self.queue.finish()
            return block

    def _fits(self, pool: Any, nbytes: int) -> bool:
        """Whether there is room for a new block. Raises _Full where no idle block could be as large."""
        if nbytes > self.budget.total:
            raise _Full
        return bool(pool.alloc_size(pool.bin_number(nbytes)) <= self.budget.look().nbytes)


def _maker_of(queue: Queue) -> _Maker:
    """The one that all pools of `queue` share."""
    state = state_of(queue)
    with state.lock:
        if state.maker is None:
            state.maker = _Maker(queue.context, queue.device)
        maker: _Maker = state.maker
        return maker


@dataclass(frozen=True)
class PoolStats:
    """Counts since the pool was made, and bytes now."""

    requests: int
    misses: int  # requests that had to ask the driver
    active_bytes: int  # handed out
    cached_bytes: int  # kept for reuse

    @property
    def hits(self) -> int:
        """Requests served from kept blocks."""
        return self.requests - self.misses

    @property
    def hit_rate(self) -> float:
        """Share of requests served from kept blocks, 0 before the first request."""
        return self.hits / self.requests if self.requests else 0.0


class BufferHandle:
    """A block of `nbytes` from a pool. `release` gives it back; releasing twice is harmless."""

    __slots__ = ("__weakref__", "array", "bucket_size", "buffer", "nbytes", "pool")

    def __init__(self, buffer: Buffer, nbytes: int, bucket_size: int = 0, pool: Any = None, array: Any = None) -> None:
        self.buffer, self.nbytes, self.bucket_size, self.pool = buffer, nbytes, bucket_size or nbytes, pool
        self.array = array  # the mapped host bytes of a pinned block, else None

    def release(self) -> None:
        """Give the block back to its pool."""
        if self.pool is not None:
            self.pool.release(self)

    def __repr__(self) -> str:
        return f"BufferHandle({self.nbytes} bytes, {'released' if self.buffer is None else 'in use'})"


class _HostMemory:
    """NumPy's stand-in for a MemoryPool: keeps nothing, counts what is in use."""

    held_blocks = 0

    def __init__(self) -> None:
        self.active_blocks = self.active_bytes = 0

    @property
    def managed_bytes(self) -> int:
        return self.active_bytes

    def allocate(self, nbytes: int) -> np.ndarray:
        block = np.empty(nbytes, np.uint8)
        self._count(1, nbytes)
        weakref.finalize(block, self._count, -1, -nbytes)
        return block

    def _count(self, blocks: int, nbytes: int) -> None:
        self.active_blocks += blocks
        self.active_bytes += nbytes

    def free_held(self) -> None:
        pass


class BufferPool:
    """Device memory for one queue (or for a context, when only handles are wanted)."""

    context: Any
    queue: Queue | None
    device: Any
    idle_is_free = True  # whether nobody needs what idle blocks hold
    _pool: Any
    _make: Callable[[int], Buffer]
    _budget: _Budget

    def __init__(self, queue: Any, max_cached_bytes: int | None = None) -> None:
        """Args: queue: a queue or a context. max_cached_bytes: most idle bytes to keep (no limit when None)."""
        self._max_cached = max_cached_bytes
        self._requests = self._freed = 0
        self._rounding = 0.0  # bytes that blocks are larger than asked for, per byte in use
        if isinstance(queue, CPUQueue):
            self.context, self.queue, self.device, self._pool, self._limit = None, queue, None, _HostMemory(), 1 << 62
            self._make = self._pool.allocate
            return
        process.check()
        process.mark_started()
        self.context = queue if isinstance(queue, cl.Context) else queue.context
        self.queue = None if isinstance(queue, cl.Context) else queue
        self.device = self.context.devices[0] if self.queue is None else queue.device
        maker = _Maker(self.context, self.device) if self.queue is None else _maker_of(queue)
        self._pool = MemoryPool(maker.allocator)
        self._make = make = partial(maker.allocate, self._pool)
        if max_cached_bytes is not None:
            self._make = partial(self._capped, make)
        self._limit = self.device.max_mem_alloc_size
        self._budget = maker.budget
        self._budget.pools.add(self)

    def buffer(self, nbytes: int) -> Buffer:
        """A block of at least `nbytes` (never none), returned to the pool when the object is dropped."""
        if substitute is not None and (other := substitute(self)) is not self:
            return other.buffer(nbytes)
        self._requests += 1
        try:
            return self._make(nbytes or 4)
        except (cl.Error, _Full) as error:
            return self._retry(nbytes, error)

    def _capped(self, make: Callable[[int], Buffer], nbytes: int) -> Buffer:
        block = make(nbytes)
        self.trim()
        return block

    def _retry(self, nbytes: int, error: Exception) -> Buffer:
        """Free what is idle on the device and try once more before giving up with figures."""
        if nbytes <= self._limit:
            for pool in list(self._budget.pools):
                if pool is self or pool.idle_is_free:
                    pool.free_held()
            try:
                return self._make(nbytes)
            except (cl.Error, _Full) as again:
                error = again
                self._pool.free_held()  # a block that there was no room for
        raise self._exhausted(nbytes) from (None if isinstance(error, _Full) else error)

    def _exhausted(self, nbytes: int) -> OutOfMemoryError:
        stats, name = self.stats, self.device.name.strip()
        fix = "split the tensor" if nbytes > self._limit else "use a smaller batch, or drop tensors you no longer need"
        reason, total = self._budget.look().limit, f"device total {self._budget.total:,}"
        return OutOfMemoryError(
            f"{name}: expected room for {nbytes:,} bytes, got none: in use {stats.active_bytes:,}, "
            f"cached {stats.cached_bytes:,}, largest single buffer {self._limit:,}, {total}"
            f"{'' if reason == total else f'; {reason}'}; {fix}."
        )

    @property
    def managed_bytes(self) -> int:
        """Bytes in use and idle."""
        return int(self._pool.managed_bytes)

    def allocate(self, nbytes: int) -> BufferHandle:
        """A handle on a block of at least `nbytes`. Raises ShapeError for negative sizes, OutOfMemoryError."""
        if nbytes < 0:
            raise ShapeError(f"BufferPool.allocate: expected at least 0 bytes, got {nbytes}.")
        buffer = self.buffer(nbytes)
        return BufferHandle(buffer, nbytes, buffer.size, self)

    def release(self, handle: BufferHandle) -> None:
        """Take the block of `handle` back; a second release does nothing."""
        handle.buffer = None
        self.trim()

    def trim(self) -> None:
        """Free the idle blocks when they hold more than `max_cached_bytes`: at each request, release and host read."""
        if self._max_cached is None:
            return
        active = self._pool.active_bytes
        idle = self._pool.managed_bytes - active * (1 + self._rounding)
        if idle > self._max_cached and self._pool.held_blocks:
            self.free_held()
            active = self._pool.active_bytes
            self._rounding = (self._pool.managed_bytes - active) / max(active, 1)

    def free_held(self) -> None:
        """Return every idle block to the driver, once the queue no longer needs them."""
        if self.context is not None:
            process.check()
        if self.queue is not None:
            self.queue.finish()
        self._freed += self._pool.held_blocks
        self._pool.free_held()

    free_all = free_held

    @property
    def stats(self) -> PoolStats:
        """Requests, hits and bytes."""
        pool = self._pool
        misses = pool.active_blocks + pool.held_blocks + self._freed
        return PoolStats(self._requests, misses, pool.active_bytes, pool.managed_bytes - pool.active_bytes)


class PersistentBufferPool(BufferPool):
    """A BufferPool with caps on what it keeps idle.

    Args: max_cached_bytes: by default NETCL_MAX_CACHED_GB or 4 GiB. max_buffers_per_bucket: most idle blocks for each
        size of block seen so far, on average.
    """

    def __init__(
        self,
        context: Any,
        queue: Any = None,
        max_cached_bytes: int | None = None,
        max_buffers_per_bucket: int | None = None,
    ) -> None:
        if max_buffers_per_bucket is not None and max_buffers_per_bucket < 0:
            raise ShapeError(
                f"PersistentBufferPool: expected max_buffers_per_bucket of at least 0, got {max_buffers_per_bucket}."
            )
        self._most_blocks, self._sizes = max_buffers_per_bucket, set[int]()
        if max_cached_bytes is None:
            gigabytes = settings.value("NETCL_MAX_CACHED_GB")
            max_cached_bytes = int((4 if gigabytes is None else gigabytes) * GIB)
        super().__init__(context if queue is None else queue, max_cached_bytes)

    def allocate(self, nbytes: int) -> BufferHandle:
        """As BufferPool.allocate."""
        handle = super().allocate(nbytes)
        self._sizes.add(handle.bucket_size)
        return handle

    def trim(self) -> None:
        """Free the idle blocks when there are too many bytes or blocks."""
        super().trim()
        if self._most_blocks is not None and self._pool.held_blocks > self._most_blocks * len(self._sizes):
            self.free_held()


class PinnedBufferPool:
    """Page-locked host memory for copies: each handle's `array` is its mapped bytes, to use as one side of a copy.

    While a block is mapped only that array is valid, never the buffer's own device copy. For a CPUQueue blocks are
    arrays.
    """

    def __init__(self, queue: Any) -> None:
        self.context: Any = None
        self._queue: Any = None
        self._free: dict[int, list[tuple[Any, Any]]] = {}
        self._lock = threading.Lock()
        self._requests = self._misses = self._active = self._total = 0
        if isinstance(queue, CPUQueue):
            return
        process.check()
        process.mark_started()
        device: Any = None if isinstance(queue, cl.Context) else queue.device
        self.context = queue if device is None else queue.context
        self._queue = cl.CommandQueue(self.context, device)  # mapping waits for a queue, and this one is idle

    def allocate(self, nbytes: int) -> BufferHandle:
        """A mapped block of at least `nbytes`: a kept one of up to twice the size, or a new one of pages or eighths."""
        if self._queue is not None:
            process.check()
        step = max(PAGE, 1 << nbytes.bit_length() >> 4)
        bucket = max(-(-nbytes // step), 1) * step
        with self._lock:
            kept = [size for size, blocks in self._free.items() if blocks and bucket <= size <= 2 * bucket]
            bucket = min(kept, default=bucket)
            buffer, array = self._free[bucket].pop() if kept else (None, None)
        new = buffer is None
        if new:
            buffer, array = self._map(bucket)
        with self._lock:
            self._requests += 1
            self._misses += new
            self._active += bucket
            self._total += bucket * new
        return BufferHandle(buffer, nbytes, bucket, self, array)

    def _map(self, nbytes: int, again: bool = True) -> tuple[Any, Any]:
        """A new block and its mapped bytes; where there is no room, once more without what is kept."""
        if self._queue is None:
            array = np.empty(nbytes, np.uint8)
            return array, array
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        both: Any = cl.map_flags.READ | cl.map_flags.WRITE
        try:
            buffer = cl.Buffer(self.context, flags, nbytes)
            mapped: Any = cl.enqueue_map_buffer(self._queue, buffer, both, 0, (nbytes,), np.dtype(np.uint8))
            return buffer, mapped[0]
        except (cl.MemoryError, cl.RuntimeError, cl.LogicError) as error:
            self.free_held()
            if again:
                return self._map(nbytes, again=False)
            raise OutOfMemoryError(
                f"page-locked memory: expected room for {nbytes:,} bytes on the host, got none: in use "
                f"{self._active:,}; use smaller batches, or make fewer of them ahead."
            ) from error

    def release(self, handle: BufferHandle) -> None:
        """Keep the block of `handle` for the next request; a second release does nothing."""
        with self._lock:
            if handle.buffer is not None:
                self._free.setdefault(handle.bucket_size, []).append((handle.buffer, handle.array))
                self._active -= handle.bucket_size
                handle.buffer = handle.array = None

    def free_held(self) -> None:
        """Unmap and drop the blocks that are not in use."""
        with self._lock:
            blocks = [b for held in self._free.values() for b in held]
            self._total -= sum(array.nbytes for _, array in blocks)
            self._free.clear()

    @property
    def stats(self) -> PoolStats:
        """Requests, hits and bytes."""
        return PoolStats(self._requests, self._misses, self._active, self._total - self._active)


def pool_of(queue: Queue) -> BufferPool:
    """The pool every tensor on `queue` comes from; its cap on idle memory is NETCL_MAX_CACHED_GB, if set."""
    state = state_of(queue)
    if state.pool is None:
        with state.lock:
            if state.pool is None:
                cap = settings.value("NETCL_MAX_CACHED_GB")
                state.pool = BufferPool(queue, None if cap is None else int(cap * GIB))
    pool: BufferPool = state.pool
    return pool


def pinned_pool_of(queue: Queue) -> PinnedBufferPool:
    """The page-locked staging blocks of `queue`."""
    state = state_of(queue)
    if state.pinned is None:
        with state.lock:
            if state.pinned is None:
                state.pinned = PinnedBufferPool(queue)
    pool: PinnedBufferPool = state.pinned
    return pool


get_pinned_pool = pinned_pool_of


def empty_buffer(queue: Queue, nbytes: int) -> Buffer:
    """A block for `queue`: pooled device memory, or a byte array on the NumPy backend."""
    return (state_of(queue).pool or pool_of(queue)).buffer(nbytes)


def get_persistent_pool(queue: Queue) -> PersistentBufferPool:
    """The PersistentBufferPool of `queue`, made on first use."""
    state = state_of(queue)
    with state.lock:
        if state.persistent is None:
            state.persistent = PersistentBufferPool(queue.context, queue)
    found: PersistentBufferPool = state.persistent
    return found


def is_integrated_gpu(queue: Queue) -> bool:
    """Whether the queue's device is a GPU that shares the host's memory."""
    profile = profile_of(queue)
    return profile.kind == "gpu" and not profile.discrete
