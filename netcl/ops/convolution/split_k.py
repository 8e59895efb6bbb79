"""Weight gradients of convolutions whose pixels were divided: adding up the parts (conv_parts.cl)."""

from __future__ import annotations

from netcl.core.backend.opencl import launch
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import C_NAME, INT64
from netcl.core.tensor import Tensor
from netcl.kernels import sources
from netcl.runtime.cache import get_kernel

TYPES = (None, None, *(INT64,) * 3)
LANES, GROUP = 32, 256  # neighbouring elements of a group, and its work-items


def add(dw: Tensor, part: Tensor, parts: int) -> None:
    """dw = the sum of the `parts` arrays of dw's size in `part`; dw is contiguous."""
    queue = dw.queue
    group = profile_of(queue).group(GROUP)
    lanes = min(LANES, group)
    slices = group // lanes
    text = sources.load("conv_parts.cl", S=C_NAME[dw.dtype], E=C_NAME[part.dtype], LANES=lanes, SLICES=slices)
    kernel = get_kernel(queue, text, "conv_weights_sum", TYPES)
    items = -(-dw.size // lanes) * lanes * slices
    launch(kernel, queue, (items,), (lanes * slices,), dw.buffer, part.buffer, dw.offset, dw.size, parts)
