"""Buffer pools: reuse, figures in errors, retry after out-of-memory, flat use over long loops."""

import pyopencl as cl
import pytest

from netcl.core.errors import OutOfMemoryError, ShapeError
from netcl.core.memory import BufferPool, PersistentBufferPool, PinnedBufferPool, pool_of
from netcl.core.tensor import Tensor


def test_blocks_come_back_and_are_reused(cl_queue):
    for pool in (BufferPool(cl_queue), BufferPool(cl_queue.context), PersistentBufferPool(cl_queue.context, cl_queue)):
        first = pool.allocate(1000)
        assert first.nbytes == 1000 and first.bucket_size >= 1000
        first.release()
        first.release()  # harmless
        again = pool.allocate(1000)
        assert (pool.stats.requests, pool.stats.misses, pool.stats.hits) == (2, 1, 1)
        assert pool.stats.hit_rate == 0.5
        again.release()
        pool.free_held()
        assert pool.stats.cached_bytes == 0 and pool.stats.active_bytes == 0
        with pytest.raises(ShapeError, match="at least 0"):
            pool.allocate(-1)
        assert pool.allocate(0).buffer is not None  # never a zero-byte buffer


def test_cap_on_cached_bytes(cl_queue):
    pool = PersistentBufferPool(cl_queue.context, cl_queue, max_cached_bytes=1 << 16)
    handles = [pool.allocate(1 << 16) for _ in range(4)]
    for h in handles:
        h.release()
    assert pool.stats.cached_bytes <= 1 << 16


def test_pinned_blocks_are_mapped_host_memory(cl_queue):
    pool = PinnedBufferPool(cl_queue)
    handle = pool.allocate(5000)
    handle.array[:5000] = 7
    assert handle.array[:5000].sum() == 35000 and handle.bucket_size == 8192
    handle.release()
    assert pool.allocate(6000).bucket_size == 8192 and pool.stats.hits == 1
    for nbytes in (0, 1, 4096, 4097, 65537, 100_000, 128 * 3 * 224 * 224 * 4):
        fresh = PinnedBufferPool(cl_queue)
        block = fresh.allocate(nbytes)
        assert nbytes <= block.bucket_size == block.array.nbytes <= max(4096, nbytes + 4096, nbytes * 9 // 8)
    block.release()
    assert fresh.allocate(nbytes * 2 // 3).bucket_size == block.bucket_size  # a kept one
    assert fresh.allocate(nbytes // 3).bucket_size < nbytes // 2 and fresh.stats.misses == 2


def test_new_memory_does_not_wait_for_the_queue(cl_queue):
    """What makes it waits for a queue, which must not be the one that computes: NVIDIA's driver would crash."""
    queue, held = cl.CommandQueue(cl_queue.context, cl_queue.device), cl.UserEvent(cl_queue.context)
    try:
        blocked = cl.enqueue_barrier(queue, wait_for=[held])
        queue.flush()
        assert PinnedBufferPool(queue).allocate(5000).array.nbytes == 8192
        x = Tensor.full(queue, (5000,), 7.0)
        assert blocked.command_execution_status != cl.command_execution_status.COMPLETE
    finally:
        held.set_status(cl.command_execution_status.COMPLETE)
    assert (x.to_host() == 7).all()


def test_out_of_memory_explains_itself_and_recovers(cl_queue, monkeypatch):
    """Idle blocks are freed and the request retried; else the error has all figures; less still works."""
    pool = BufferPool(cl_queue)
    pool.allocate(4096).release()
    with pytest.raises(
        OutOfMemoryError, match=r"room for [\d,]+ bytes.*in use 0.*cached 0?.*largest single buffer.*split"
    ):
        pool.buffer(1 << 50)  # no device has it: asking for a little too much would starve others that use the device
    with pytest.raises(MemoryError):  # also the built-in kind
        Tensor.empty(cl_queue, (1 << 50,))

    class Refusing:
        """A driver pool that fails once, then has room: what free_held does to a real one."""

        def __init__(self, real):
            self.real, self.refusals = real, 1

        def __getattr__(self, name):
            return getattr(self.real, name)

        def allocate(self, n):
            if self.refusals:
                self.refusals -= 1
                raise cl.MemoryError("allocation failed", -4)
            return self.real.allocate(n)

    monkeypatch.setattr(pool, "_pool", Refusing(pool._pool))
    assert pool.buffer(4096) is not None


def test_flat_memory(cl_queue):
    """10000 in-place fills and 10000 elementwise results leave the pool where it was."""
    x = Tensor.zeros(cl_queue, (1000,))
    for _ in range(100):
        x.fill_(1)
        y = x + 1
    cl_queue.finish()
    before = pool_of(cl_queue).stats
    for i in range(10000):
        x.fill_(i)
        y = x + 1
    assert y.to_host()[0] == 10000
    after = pool_of(cl_queue).stats
    assert after.misses == before.misses and after.active_bytes == before.active_bytes
    assert after.requests - before.requests >= 10000  # all of them served from kept blocks


def test_pinned_memory_that_runs_out(cl_queue, monkeypatch):
    """What is kept goes first; then one error, and counts as before."""
    pool, refusals = PinnedBufferPool(cl_queue), []
    pool.allocate(5000).release()

    def full(*args, original=cl.Buffer, **options):
        refusals.append(pool.stats.cached_bytes)
        if len(refusals) in (1, 3, 4):
            raise cl.MemoryError("full")
        return original(*args, **options)

    monkeypatch.setattr(cl, "Buffer", full)
    block = pool.allocate(50_000)
    assert refusals == [8192, 0]
    before = pool.stats
    with pytest.raises(OutOfMemoryError, match=r"page-locked memory: expected room for 106,496 bytes"):
        pool.allocate(100_000)
    assert pool.stats == before and before.active_bytes == block.bucket_size
