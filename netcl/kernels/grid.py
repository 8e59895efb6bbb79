"""How work is laid over a device: vector widths, grids, and what of a tensor's place in memory a plan depends on."""

from __future__ import annotations

from typing import Any

from netcl.core.device.profile import DeviceProfile
from netcl.core.dtypes import DType
from netcl.core.layout import Shape
from netcl.core.tensor import Tensor

CHUNK = 8192  # elements per work-item on a CPU device
GROUP = 256  # work-items per group on a GPU
START = ~((1 << 28) - 8)  # of an offset, what plans depend on: where in a vector of eight, in which 2^28 elements
FAR = (1 << 31) - (1 << 28)  # reach from which positions need 64 bits, at some offset that has the same plan


def width_of(compute: DType, vector: int) -> int:
    """Elements per vector on a CPU device whose registers hold `vector` floats."""
    return vector // 2 if compute.itemsize == 8 else vector


def like(x: Tensor) -> tuple[Any, ...]:
    """What a plan for `x` depends on, as part of its key."""
    return x.shape, x.strides, x.dtype, x.offset & START


def reach(t: Tensor) -> int:
    """One more than the largest distance of an element from the start of the buffer."""
    return t.offset + sum([(n - 1) * max(s, 0) for n, s in zip(t.shape, t.strides)]) + 1


def is_wide(profile: DeviceProfile, *what: Tensor | int) -> bool:
    """Whether positions in these tensors, or up to these sizes, need 64 bits; CPU devices lose nothing by them."""
    if profile.kind == "cpu":
        return True
    return any((w if isinstance(w, int) else max(w.size, reach(w))) >= FAR for w in what)


def line_of(profile: DeviceProfile, size: int) -> tuple[Shape, Shape, int]:
    """Global and local size over `size` elements, and how many an item takes."""
    if profile.kind == "cpu":
        step = max(1, min(CHUNK, -(-size // (4 * profile.compute_units))))
        return (-(-size // step),), (1,), step
    group = profile.group(GROUP)
    return (-(-size // group) * group,), (group,), 1


def matrix_of(profile: DeviceProfile, rows: int, cols: int) -> tuple[Shape, Shape, tuple[int, int]]:
    """Global and local size over a matrix, and what a CPU device's item takes of it: (rows, columns)."""
    if profile.kind == "cpu":
        chunk = min(cols, CHUNK)
        step = max(1, min(CHUNK // chunk, -(-rows // (4 * profile.compute_units))))
        return (-(-cols // chunk), -(-rows // step)), (1, 1), (step, chunk)
    group = profile.group(GROUP)
    return (-(-rows * cols // group) * group,), (group,), (1, 1)
