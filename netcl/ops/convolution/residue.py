"""The input gradient of a convolution as convolutions over the upstream gradient, on every device.

Pixels of dx whose position leaves the same residue modulo the stride see the same taps of the filter, so each is
an ordinary convolution of stride 1 with transposed filters, written to every stride-th pixel: no multiplication is
wasted on the zeros of a dilated gradient, and no two work-items add to one pixel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from netcl.core.device.profile import profile_of
from netcl.core.dtypes import C_NAME, NARROW
from netcl.core.layout import Shape
from netcl.core.protocols import Launch, Queue
from netcl.core.tensor import Tensor
from netcl.kernels import sources
from netcl.kernels.plans import remember
from netcl.kernels.program import program
from netcl.ops.convolution.problem import Geometry, residue_geometry, residues

ITEMS = 64  # of a group that transposes filters, on GPUs


class Part(NamedTuple):
    """The convolution that gives the pixels of a residue."""

    transpose: Launch[Any]  # makes its filters
    strides: Shape
    start: int  # of its pixels in dx, in elements
    geometry: Geometry


def input_grad(forward: Callable[..., None], dx: Tensor, g: Tensor, w: Tensor, form: Geometry) -> None:
    """Fill dx by `forward(part of dx, g, transposed filters, None, geometry, None)` for every residue."""
    key = ("conv_residue", form, dx.strides, g.dtype)
    clear, parts = remember(g.queue, key, lambda: _plan(g.queue, form, dx, g))
    if clear:
        dx.fill_(0)
    for part in parts:
        pixels = Tensor(dx.buffer, part.geometry.y_shape, part.strides, dx.offset + part.start, dx.dtype, dx.queue)
        forward(pixels, g, part.transpose(Wt=w), None, part.geometry, None)


def _plan(queue: Queue, form: Geometry, dx: Tensor, g: Tensor) -> tuple[bool, list[Part]]:
    """Whether dx has pixels that no tap reaches, and what is computed for each residue."""
    axes = zip((form.h, form.w), (form.kh, form.kw), form.stride, form.padding, form.dilation)
    ys, xs = (list(residues(*axis)) for axis in axes)
    bits = "ushort" if g.dtype in NARROW else C_NAME[g.dtype]  # filters are only moved
    transpose = program(queue, sources.load("transpose_filters.cl", S=bits), "transpose_filters")
    outs, profile = form.o // form.groups, profile_of(queue)
    items = 1 if profile.kind == "cpu" else profile.group(min(outs, ITEMS))
    grid = (form.c // form.groups, form.groups, -(-outs // items) * items if profile.kind != "cpu" else 1)
    n, c, h, _ = dx.strides
    strides = (n, c, h * form.stride[0], form.stride[1])
    parts = []
    for y in ys:
        for x in xs:
            if y.taps * x.taps and g.size:
                filters = {"V": ((form.c, outs, y.taps, x.taps), g.dtype)}
                sizes = {"O": outs, "KH": form.kh, "KW": form.kw, "J": y.taps, "L": x.taps}
                taps = {"h0": y.start, "hs": y.step, "w0": x.start, "ws": x.step}
                launch = transpose.bind(grid, (1, 1, items), filters, **sizes, **taps)
                parts.append(Part(launch, strides, y.first * h + x.first, residue_geometry(form, y, x)))
    return len(parts) < len(ys) * len(xs), parts
