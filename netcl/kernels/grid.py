"""How work is laid over a device: vector widths and grids that depend on the device alone."""

from __future__ import annotations

from netcl.core.dtypes import DType


def width_of(compute: DType, vector: int) -> int:
    """Elements per vector on a CPU device whose registers hold `vector` floats."""
    return vector // 2 if compute.itemsize == 8 else vector
