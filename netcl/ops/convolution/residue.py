"""The input gradient of a convolution as convolutions over the upstream gradient, on every device.

Pixels of dx whose position leaves the same residue modulo the stride see the same taps of the filter, so each is
an ordinary convolution of stride 1 with turned weights, written to every stride-th pixel: no multiplication is wasted
on the zeros of a dilated gradient, and no two work-items add to one pixel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netcl.core.backend.opencl import launch
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import C_NAME, INT64, NARROW
from netcl.core.tensor import Tensor, allocate
from netcl.kernels import sources
from netcl.kernels.plans import remember
from netcl.ops.convolution.problem import Geometry, residue_geometry, residues
from netcl.runtime.cache import get_kernel

TURN = (None, None, *(INT64,) * 10)
ITEMS = 64  # of a group that turns filters, on GPUs


def input_grad(forward: Callable[..., None], dx: Tensor, g: Tensor, w: Tensor, form: Geometry) -> None:
    """Fill dx by `forward(dx, strides, first element, g, turned weights, None, geometry, None)` for every residue."""
    queue = g.queue
    key = ("conv_residue", form, dx.strides, g.dtype)
    turn, grid, group, clear, parts = remember(queue, key, lambda: _plan(queue, form, dx, g))
    if clear:
        dx.fill_(0)
    for shape, sizes, strides, start, part in parts:
        turned = allocate(queue, shape, g.dtype)
        launch(turn, queue, grid, group, turned.buffer, w.buffer, w.offset, *sizes)
        forward(dx, strides, start, g, turned, None, part, None)


def _plan(queue: Any, form: Geometry, dx: Tensor, g: Tensor) -> Any:
    """The kernel that turns filters, its sizes, whether dx has pixels that no tap reaches, and a row for each residue.

    A row: shape of the turned filters, arguments that turn them, strides and first element in dx, geometry.
    """
    axes = zip((form.h, form.w), (form.kh, form.kw), form.stride, form.padding, form.dilation)
    ys, xs = (list(residues(*axis)) for axis in axes)
    bits = "ushort" if g.dtype in NARROW else C_NAME[g.dtype]  # filters are only moved
    turn = get_kernel(queue, sources.load("conv_turn.cl", S=bits), "conv_turn", TURN)
    outs, profile = form.o // form.groups, profile_of(queue)
    items = 1 if profile.kind == "cpu" else profile.group(min(outs, ITEMS))
    grid = (form.c // form.groups, form.groups, -(-outs // items) * items if profile.kind != "cpu" else 1)
    n, c, h, _ = dx.strides
    strides = (n, c, h * form.stride[0], form.stride[1])
    parts = []
    for y in ys:
        for x in xs:
            if y.taps * x.taps and g.size:
                sizes = (outs, form.kh, form.kw, y.taps, x.taps, y.start, y.step, x.start, x.step)
                start = y.first * h + x.first
                parts.append(((form.c, outs, y.taps, x.taps), sizes, strides, start, residue_geometry(form, y, x)))
    return turn, grid, (1, 1, items), len(parts) < len(ys) * len(xs), parts
