"""Large fills on GPUs: one kernel that stores 16 bytes an item.

A driver's own fill may be far from that: NVIDIA's (580.159, H200) reaches 1.7 TB/s with patterns of four bytes and 0.8
with two, a kernel 4.5, and it loses the context on 2^31 elements of two bytes.
"""

from __future__ import annotations

import numpy as np

from netcl.core.backend import opencl
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import INT64
from netcl.core.tensor import Tensor
from netcl.kernels import sources
from netcl.ops.index.pick import line_of
from netcl.runtime.cache import get_kernel

WORD = 16


def fill(x: Tensor, pattern: np.generic) -> None:
    """Set every element of `x`, which is contiguous and on a GPU, to `pattern` (of its dtype's size)."""
    queue, size = x.queue, x.dtype.itemsize
    start, end = x.offset * size, (x.offset + x.size) * size
    first, last = -(-start // WORD), end // WORD  # whole words; the few bytes round them are the driver's
    if first >= last:
        opencl.fill_buffer(queue, x.buffer, pattern, end - start, start)
        return
    opencl.fill_buffer(queue, x.buffer, pattern, first * WORD - start, start)
    opencl.fill_buffer(queue, x.buffer, pattern, end - last * WORD, last * WORD)
    low, high = (int(v) for v in np.full(WORD // size, pattern).view(np.int64))
    kernel = get_kernel(queue, sources.load("create.cl", FORM=2), "fill", (None, INT64, INT64, INT64, INT64), ("-w",))
    grid, local, _ = line_of(profile_of(queue), last - first)
    opencl.launch(kernel, queue, grid, local, x.buffer, low, high, first, last - first)
