"""Input batches on their way to a GPU while it computes: page-locked memory, and a second queue that copies.

    host      collate batch i + 2 into page-locked memory
    copies    copy batch i + 1 to the device
    queue     compute step i

The host waits nowhere inside a step. The queue waits for the copy of the batch that it is about to read, by an event. A
copy waits, by an event too, until the queue has read what was in its block before. The queue's own pool would not tell
it when: that pool may give memory out anew at once because its queue runs in order. So a feed has blocks of its own.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from netcl.core import process
from netcl.core.backend import opencl
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import SUPPORTED, as_dtype, transferable
from netcl.core.errors import OutOfMemoryError
from netcl.core.layout import contiguous_strides, size_of
from netcl.core.memory import BufferHandle, BufferPool, PinnedBufferPool, pool_of
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor, storable

with contextlib.suppress(ImportError):  # without pyopencl only NumPy runs, and nothing here is called
    import pyopencl as cl


class _Lease:
    """Lives as long as the memory object that a block was lent as."""

    __slots__ = ("__weakref__",)


class _Block:
    """Device memory that batches are copied to in turn."""

    def __init__(self, buffer: Any, nbytes: int) -> None:
        self.buffer, self.nbytes = buffer, nbytes
        self.ready: Any = None  # event behind the last command that could read it; None while it is lent
        self._lease: weakref.ref[_Lease] | None = None

    def lend(self) -> Any:
        """The memory as an object of its own; the lease ends with that."""
        lent: Any = cl.MemoryObject.from_int_ptr(self.buffer.int_ptr, True)
        lease = _Lease()
        lent.lease = lease  # pyopencl's objects cannot be referenced weakly, but have attributes
        self._lease, self.ready = weakref.ref(lease), None
        return lent

    def returned(self) -> bool:
        """Whether it was lent and nobody holds it any more."""
        return self.ready is None and self._lease is not None and self._lease() is None


class Feed:
    """Sends batches to `queue` beside its work; what they take on both sides is kept for the batches to come.

    A batch is a `Shipment`: any thread fills and sends it, the thread that computes takes it with `deliver`. A block is
    written again once its tensors are gone, with their views and the recordings that use them. So a loop that lets go
    of its batches needs, for each array, at most `ahead` + 2 blocks and 2 `ahead` pieces of page-locked memory.
    """

    def __init__(self, queue: Queue, ahead: int) -> None:
        """Args: ahead: batches that may be under way at once."""
        process.check()
        self.queue, self.ahead = queue, ahead
        self.copies: Any = cl.CommandQueue(queue.context, queue.device)
        self.pinned, self.pool = PinnedBufferPool(queue), BufferPool(self.copies)
        self.blocks: list[_Block] = []
        self.sent: deque[tuple[list[Any], list[BufferHandle]]] = deque()  # copies, and what they may still read
        self._lock, self._retiring = threading.Lock(), threading.Lock()

    @staticmethod
    def suits(queue: Queue) -> bool:
        """Whether copies run beside the work of `queue`: on GPUs with memory of their own."""
        return profile_of(queue).discrete

    def shipment(self) -> Shipment:
        """An empty batch. Waits for the oldest copies where more than `ahead` delivered batches wait for theirs."""
        process.check()
        with self._retiring:
            while len(self.sent) > self.ahead:
                self._retire(*self.sent.popleft())
        return Shipment(self)

    def _retire(self, copies: list[Any], handles: list[BufferHandle]) -> None:
        """Wait for the copies and keep the page-locked memory for others."""
        try:
            for event in copies:
                event.wait()
        except cl.Error as error:
            raise opencl.failure("DataLoader: copy of a batch to the device", self.queue, error) from error
        for handle in handles:
            handle.release()

    def lend(self, nbytes: int) -> tuple[Any, list[Any]]:
        """A block, and the events that a copy to it has to wait for."""
        with self._lock:
            free = [b for b in self.blocks if b.ready is not None and nbytes <= b.nbytes <= 2 * nbytes]
            block = min(free, key=lambda b: b.nbytes, default=None)
            if block is None:
                block = _Block(self._allocate(nbytes), nbytes)
                self.blocks.append(block)
            before = [] if block.ready is None else [block.ready]
            return block.lend(), before

    def _allocate(self, nbytes: int) -> Any:
        try:
            return self.pool.buffer(nbytes)
        except OutOfMemoryError:
            pool_of(self.queue).free_held()  # what the queue's pool keeps idle
            return self.pool.buffer(nbytes)

    def reclaim(self, target: Any) -> None:
        """Blocks that nobody holds any more may be written once `target` is done with what it was sent so far."""
        with self._lock:
            returned = [b for b in self.blocks if b.returned()]
            if returned:
                done = cl.enqueue_marker(target)
                target.flush()  # or the copies would wait for what nobody sends
                for block in returned:
                    block.ready = done


class Shipment:
    """One batch between host and device. Its page-locked memory is the feed's again after `deliver` or `drop`."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._handles: list[BufferHandle] = []
        self._copies: list[Any] = []  # events; each keeps its host array

    def empty(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """An array in page-locked memory, or an ordinary one of a dtype that tensors cannot have."""
        dtype = np.dtype(dtype)
        nbytes = size_of(tuple(shape)) * dtype.itemsize
        if dtype not in SUPPORTED or not nbytes:
            return np.empty(shape, dtype)
        handle = self._feed.pinned.allocate(nbytes)
        self._handles.append(handle)
        return np.ndarray(shape, dtype, handle.array)

    def send(self, array: np.ndarray) -> Tensor:
        """`array` as a tensor, to be used after `deliver`. Its dtype is kept where the device can hold it.

        What `empty` gave is copied from where it is, everything else by way of such memory. Raises DTypeError.
        """
        queue = self._feed.queue
        dtype = storable(as_dtype(array.dtype), queue)
        if not array.size:
            return Tensor.empty(queue, array.shape, dtype)
        if not self._holds(array) or array.dtype != dtype:
            staged = self.empty(array.shape, dtype)
            staged[...] = array
            array = staged
        lent = self._copy(transferable(array))
        return Tensor(lent, array.shape, contiguous_strides(array.shape), 0, dtype, queue)

    def _holds(self, array: np.ndarray) -> bool:
        """Whether `array` is page-locked memory of this batch, in one piece."""
        first, last = array.ctypes.data, array.ctypes.data + array.nbytes
        starts = [(h.array.ctypes.data, h.bucket_size) for h in self._handles]
        return array.flags.c_contiguous and any(at <= first and last <= at + size for at, size in starts)

    def _copy(self, host: np.ndarray) -> Any:
        lent, before = self._feed.lend(host.nbytes)
        hooks = list(opencl.copy_hooks)  # those that are there before and after: another thread may begin or end a
        target = process.target(self._feed.copies)  # profile between, which reads no events of a queue without stamps
        try:
            event = cl.enqueue_copy(target, lent, host, wait_for=before, is_blocking=False)
            target.flush()
        except cl.Error as error:
            raise opencl.failure("DataLoader: copy of a batch to the device", target, error) from error
        self._copies.append(event)
        for hook in [h for h in hooks if h in opencl.copy_hooks]:
            hook("write", self._feed.queue, lent, host, host.nbytes, (0,), event)
        return lent

    def deliver(self) -> None:
        """Make the queue wait for the copies. Call it on the thread that computes, and before the tensors are used."""
        queue = self._feed.queue
        target = process.target(queue)
        self._feed.reclaim(target)
        if self._copies:
            cl.enqueue_barrier(target, wait_for=self._copies)
        self.drop()

    def drop(self) -> None:
        """Give the page-locked memory back, once the copies are done."""
        self._feed.sent.append((self._copies, self._handles))  # no way back to the feed: dropped, it goes at once
        self._copies, self._handles = [], []
