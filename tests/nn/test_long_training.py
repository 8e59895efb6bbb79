"""Memory over long eager training: nothing of a step outlives it."""

import gc
import tracemalloc
from pathlib import Path

import numpy as np

import netcl.autograd as ag
from netcl.core.memory import pool_of
from netcl.core.queue import CPUQueue, state_of
from netcl.core.tensor import Tensor
from netcl.nn import Linear
from netcl.optim import Adam

STEPS, WARM, TRACED = 10_000, 1_000, 500


class Training:
    """Steps of a tiny model, each with new data."""

    def __init__(self, queue):
        self.queue, rng = queue, np.random.default_rng(0)
        self.x, self.y = rng.normal(size=(16, 4, 3)).astype(np.float32), rng.integers(0, 2, (16, 4), np.int32)
        self.model = Linear(queue, 3, 2)
        self.optimizer = Adam(self.model.parameters(), lr=1e-3)

    def run(self, steps):
        for i in range(steps):
            x, y = (ag.tensor(Tensor.from_host(self.queue, a[i % 16])) for a in (self.x, self.y))
            with ag.Tape() as tape:
                loss = ag.cross_entropy(self.model(x), y)
            tape.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.queue.finish()
        return loss.item()

    def live(self):
        """What a leak would make grow: Python objects, tensors, device blocks and bytes, pending copies, plans."""
        gc.collect()
        objects = gc.get_objects()
        state = state_of(self.queue)
        found = {"tensors": sum(type(x) is Tensor for x in objects), "plans": len(state.plans)}
        if not isinstance(self.queue, CPUQueue):
            pool, stats = pool_of(self.queue)._pool, pool_of(self.queue).stats
            found |= {"blocks": pool.active_blocks, "active": stats.active_bytes, "cached": stats.cached_bytes}
        return len(objects), found


def resident():
    """Bytes of this process in memory; 0 where the system does not say."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * 4096 if path.exists() else 0


def test_memory_is_flat_over_ten_thousand_steps(queue):
    training = Training(queue)
    training.run(WARM)
    objects, found = training.live()
    size = resident()
    training.run(STEPS - WARM - TRACED)
    tracemalloc.start()
    try:
        training.run(TRACED // 5)
        traced = tracemalloc.get_traced_memory()[0]
        loss = training.run(TRACED - TRACED // 5)
        grown = tracemalloc.get_traced_memory()[0] - traced
    finally:
        tracemalloc.stop()
    objects_now, found_now = training.live()
    assert found_now == found
    assert objects_now - objects < STEPS // 20  # not one in twenty steps; what earlier tests left may go meanwhile
    assert grown < 100 * (TRACED - TRACED // 5)  # not 100 bytes a step
    assert resident() - size < 8 << 20  # not a kilobyte a step
    assert np.isfinite(loss)
