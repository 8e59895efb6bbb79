"""The input gradient of a convolution as convolutions over the upstream gradient, on every device.

Pixels of dx whose position leaves the same residue modulo the stride see the same taps of the filter, so each is
an ordinary convolution of stride 1 with turned weights, written to every stride-th pixel: no multiplication is wasted
on the zeros of a dilated gradient, and no two work-items add to one pixel.
"""

from __future__ import annotations

from collections.abc import Callable

from netcl.core.backend.opencl import launch
from netcl.core.dtypes import C_NAME, FLOAT16, INT64
from netcl.core.tensor import Tensor, allocate
from netcl.ops import sources
from netcl.ops.conv_shape import Geometry, residue_geometry, residues
from netcl.runtime.cache import get_kernel

TURN = (None, None, *(INT64,) * 10)


def input_grad(forward: Callable[..., None], dx: Tensor, g: Tensor, w: Tensor, form: Geometry) -> None:
    """Fill dx by `forward(dx, strides, first element, g, turned weights, None, geometry, None)` for every residue."""
    queue = g.queue
    axes = zip((form.h, form.w), (form.kh, form.kw), form.stride, form.padding, form.dilation)
    ys, xs = (list(residues(*axis)) for axis in axes)
    if any(r.taps == 0 for r in (*ys, *xs)) or g.size == 0:
        dx.fill_(0)
    bits = "ushort" if g.dtype == FLOAT16 else C_NAME[g.dtype]  # weights are only moved
    turn = get_kernel(queue, sources.load("conv_turn.cl", S=bits), "conv_turn", TURN)
    per, outs = form.c // form.groups, form.o // form.groups
    n, c, h, _ = dx.strides
    strides = (n, c, h * form.stride[0], form.stride[1])
    for y in ys:
        for x in xs:
            if y.taps * x.taps == 0 or g.size == 0:
                continue
            turned = allocate(queue, (form.c, outs, y.taps, x.taps), g.dtype)
            launch(
                turn, queue, (per, form.groups), (1, 1), turned.buffer, w.buffer, w.offset, outs, form.kh, form.kw,
                y.taps, x.taps, y.start, y.step, x.start, x.step,
            )  # fmt: skip
            forward(dx, strides, y.first * h + x.first, g, turned, None, residue_geometry(form, y, x), None)
