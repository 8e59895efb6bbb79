"""What lanes_cpu.cl needs to know of a convolution: rows of unit stride, and the record of its sizes."""

from __future__ import annotations

import struct

import numpy as np

from netcl.core.layout import Shape
from netcl.core.tensor import Tensor
from netcl.ops.convolution.problem import Geometry
from netcl.ops.elementwise import contiguous

DIMS = struct.Struct("29q")  # Dims of lanes_cpu.cl
RECORD = np.dtype(f"V{DIMS.size}")


def unit_rows(x: Tensor) -> Tensor:
    """x with unit stride along its rows and no reversed axis."""
    return x if x.strides[-1] == 1 and min(x.strides) >= 0 else contiguous(x)


def pack_dims(g: Geometry, xs: Shape, ys: Shape, mc: int, nc: int, kstep: int, act: int, bias: bool) -> bytes:
    """Dims of lanes_cpu.cl."""
    span = 1 + sum((n - 1) * s for n, s in zip((g.n, g.c // g.groups, g.h, g.w), xs))
    return DIMS.pack(
        g.o // g.groups, g.n * g.out[0] * g.out[1], g.taps, g.c // g.groups, g.h, g.w, g.kh, g.kw, *g.stride,
        *g.padding, *g.dilation, *g.out, *xs[:3], span, *ys, mc, nc, kstep, act, bias,
    )  # fmt: skip
