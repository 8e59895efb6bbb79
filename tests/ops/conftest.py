"""A canary after every buffer: no kernel of any op may write past the end of what was allocated."""

import sys

import numpy as np
import pyopencl as cl
import pytest
from units import queues

from netcl.core import memory
from netcl.ops.nvidia.precision import set_matmul_precision

GUARD = 256
PATTERN = 0xA5


@pytest.fixture(autouse=True)
def canary(monkeypatch):
    """Allocate GUARD bytes more than asked, fill them, and look at them again when the test ends."""
    guarded = []

    def empty_buffer(queue, nbytes):
        buffer = memory.pool_of(queue).buffer(nbytes + GUARD)
        cl.enqueue_fill_buffer(queue, buffer, np.uint8(PATTERN), nbytes, GUARD)
        guarded.append((queue, buffer, nbytes))
        if len(guarded) > 500:
            check()
        return buffer

    def check():
        tails = []
        for queue, buffer, nbytes in guarded:
            tail = np.empty(GUARD, np.uint8)
            tails.append((nbytes, tail, cl.enqueue_copy(queue, tail, buffer, src_offset=nbytes, is_blocking=False)))
        for nbytes, tail, event in tails:
            event.wait()
            assert (tail == PATTERN).all(), f"a kernel wrote past the end of a buffer of {nbytes} bytes"
        guarded.clear()

    original = memory.empty_buffer
    for module in [m for name, m in list(sys.modules.items()) if name.startswith("netcl.") and hasattr(m, "__file__")]:
        if getattr(module, "empty_buffer", None) is original:
            monkeypatch.setattr(module, "empty_buffer", empty_buffer)
    yield
    check()


@pytest.fixture(scope="module")
def gpu():
    """The queue of a GPU with matrix units."""
    found = queues()
    if not found:
        pytest.skip("no GPU with matrix units here")
    return found[0]


@pytest.fixture
def precise():
    """Leaves products of floats at their usual precision."""
    yield
    set_matmul_precision("high")
