"""What lanes_cpu.cl needs to know of a convolution: rows of unit stride, and the record of its sizes."""

from __future__ import annotations

from netcl.core.layout import Shape
from netcl.core.tensor import Tensor
from netcl.kernels.program import Program
from netcl.ops.convolution.problem import Geometry
from netcl.ops.elementwise import contiguous


def unit_rows(x: Tensor) -> Tensor:
    """x with unit stride along its rows and no reversed axis."""
    return x if x.strides[-1] == 1 and min(x.strides) >= 0 else contiguous(x)


def lanes_fields(made: Program, g: Geometry, xs: Shape, ys: Shape, **blocks: int) -> dict[str, int]:
    """The fields of Dims of lanes_cpu.cl; `blocks`: mc, nc, kstep, act and has_bias."""
    span = 1 + sum((n - 1) * s for n, s in zip((g.n, g.c // g.groups, g.h, g.w), xs))
    return {
        **g.fields(made.kernel.signature.records["D"].names, xs, ys),
        "span": span,
        "act": 0,
        "has_bias": 0,
        **blocks,
    }
