"""Results that a CPU writes past its caches: no line is read before it is overwritten, and nothing else is evicted.

It pays where the result would not stay in the caches until it is read again, and costs where it would.
"""

from __future__ import annotations

from netcl.core import layout
from netcl.core.device.profile import DeviceProfile
from netcl.core.dtypes import DType
from netcl.core.layout import Shape
from netcl.kernels.grid import width_of

LEAST = 16 << 20  # bytes of such a result; drivers differ in which cache they report
SHARE = 6  # of the cache, inverted: a step's inputs and other results want room as well


def is_streamed(profile: DeviceProfile, shape: Shape, row: int, dtype: DType, compute: DType) -> bool:
    """Whether a new result of `shape`, written in rows of `row` elements from the start of its memory, is streamed.

    Streaming stores take whole aligned vectors of the compute type.
    """
    large = layout.size_of(shape) * dtype.itemsize >= max(LEAST, profile.cache // SHARE)
    return profile.kind == "cpu" and large and dtype == compute and row % width_of(compute, profile.vector) == 0
