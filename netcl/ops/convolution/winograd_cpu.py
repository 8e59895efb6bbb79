"""3x3 convolutions of stride 1 on CPU devices by Winograd's F(4x4, 3x3): geometry and launches of winograd_cpu.cl."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from netcl.core.backend.opencl import Kernel, launch
from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import FLOAT32, INT32, INT64, DType
from netcl.core.layout import Shape
from netcl.core.tensor import Tensor, allocate
from netcl.kernels import tuning
from netcl.kernels.plans import remember
from netcl.ops.convolution.problem import Geometry
from netcl.ops.convolution.winograd import POINTS, suits, tile_count, tiles
from netcl.ops.product.cpu import ACTS, ITEMS_PER_UNIT, OPTIONS, sizes, text
from netcl.runtime.cache import get_kernel

DIMS = struct.Struct("24q")  # Tiles of winograd_cpu.cl
RECORD = np.dtype(f"V{DIMS.size}")
FORWARD = (*(None,) * 5, *(INT64,) * 4, RECORD)
FILTERS = (None, None, INT64, INT32, INT32)
WEIGHTS = (*(None,) * 3, INT64, INT64, RECORD)
MANY = 32  # tiles that pay for writing and reading filters in memory
BAND = 4 * 6 * 73 * (16 + 1)  # bytes of the turned pixels and their peaks
COSTS = {
    "winograd_cpu": tuning.Footprint(
        items=lambda p: 1,
        local=lambda p: BAND + 4 * POINTS * (p["TB"] * (p["CB"] + 16 + p["OB"]) + 32) + 196 * p["TB"] + 32,
        shrink=(("TB", 12), ("OB", 32), ("CB", 16)),
    ),
    "winograd_weights_cpu": tuning.Footprint(
        items=lambda p: 1,
        local=lambda p: (
            BAND + 4 * POINTS * (p["TB"] * (p["CB"] + 16 + p["OB"] + 16) + p["CB"] * p["OB"] + 48) + 384 * p["TB"] + 32
        ),
        shrink=(("TB", 4), ("CB", 8), ("OB", 32)),
    ),
}


def fits(g: Geometry, dtype: DType, queue: Any) -> bool:
    """Whether these kernels can do it, and weight gradients are faster than by the direct ones."""
    local = profile_of(queue).local_mem
    return suits(g, dtype) and all(cost.local(dict(cost.shrink)) <= local for cost in COSTS.values())


def pays(g: Geometry, queue: Any) -> bool:
    """Whether they are also faster forward: transformed filters that no cache holds must serve many tiles."""
    filters = 4 * POINTS * g.o * g.c // g.groups
    return filters <= profile_of(queue).cache or tile_count(g) >= MANY


def _blocks(kernel: str, profile: DeviceProfile) -> tuning.Row:
    """Tiles and channels per block: whole register tiles and panels, as many as local memory holds."""
    row, cost = tuning.parameters(kernel, profile), COSTS[kernel]
    return tuning.shrink(kernel, {name: -(-row[name] // least) * least for name, least in cost.shrink}, cost, profile)


def _dims(g: Geometry, xs: Shape, ys: Shape, each: int, act: int, bias: bool) -> bytes:
    """Tiles of winograd_cpu.cl."""
    per, outs, (down, across) = g.c // g.groups, g.o // g.groups, tiles(g)
    spans = (1 + sum((n - 1) * s for n, s in zip(shape, at)) for shape, at in ((g.x_shape, xs), (g.y_shape, ys)))
    return DIMS.pack(
        outs, g.n * down * across, POINTS * per, per, g.h, g.w, *g.out, *g.padding, down, across, *xs[:3], *ys, *spans,
        each, act, bias,
    )  # fmt: skip


def forward(
    y: Tensor, strides: Any, start: int, x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry, activation: str | None
) -> None:
    """As conv_cpu's `_forward`; rows of x have unit stride."""
    queue = x.queue
    key = ("winograd_cpu", g, x.strides, strides, x.dtype, bias is None, activation)
    filters, kernel, panels, grid, size, dims = remember(
        queue, key, lambda: _plan(queue, g, x.strides, strides, x.dtype, bias is not None, activation)
    )
    u, extra = allocate(queue, (size,), FLOAT32), w if bias is None else bias
    outs, per = g.o // g.groups, g.c // g.groups
    launch(filters, queue, (panels, g.groups), (1, 1), u.buffer, w.buffer, w.offset, outs, per)
    launch(
        kernel, queue, grid, (1, 1, 1), y.buffer, x.buffer, u.buffer, w.buffer, extra.buffer, y.offset + start,
        x.offset, w.offset, extra.offset, dims,
    )  # fmt: skip


def _plan(queue: Any, g: Geometry, xs: Shape, ys: Shape, dtype: DType, bias: bool, activation: str | None) -> Any:
    """Kernels of the filters and of the product, panels, global size, elements of the filters, Dims."""
    profile = profile_of(queue)
    row, width = _blocks("winograd_cpu", profile), sizes(profile, dtype)["VW"]
    outs, count = g.o // g.groups, tile_count(g)
    panels, blocks = -(-outs // (2 * width)), -(-outs // row["OB"])
    wanted = max(1, ITEMS_PER_UNIT * profile.compute_units // (blocks * g.groups))
    each = min(row["TB"], -(-count // (wanted * 4)) * 4)
    kernels = (
        _kernel(queue, name, dtype, row, bias or activation is not None, types)
        for name, types in (("winograd_filters", FILTERS), ("winograd", FORWARD))
    )
    dims = _dims(g, xs, ys, each, ACTS[activation], bias)
    size = g.groups * panels * (POINTS * (g.c // g.groups * 2 * width + width) + 1)
    return *kernels, panels, (-(-count // each), blocks, g.groups), size, dims


def _kernel(queue: Any, name: str, dtype: DType, row: dict[str, int], epilogue: bool, types: Any) -> Kernel:
    file = "winograd_weights_cpu.cl" if name == "winograd_weights" else "winograd_forward_cpu.cl"
    source = text(profile_of(queue), "winograd.cl", "winograd_cpu.cl", file, dtype=dtype, epilogue=epilogue, **row)
    return get_kernel(queue, source, name, types, OPTIONS)


def weight_sums(g: Tensor, x: Tensor, form: Geometry) -> tuple[Tensor, int]:
    """Sums (splits, groups, 9 * C, M) of a weight gradient, and how many splits. Rows of g and x have unit stride."""
    queue = g.queue
    key = ("winograd_cpu weights", form, x.strides, g.strides, g.dtype)
    kernel, grid, dims = remember(queue, key, lambda: _weight_plan(queue, form, x.strides, g.strides, g.dtype))
    part = allocate(queue, (grid[1], form.o * form.taps), FLOAT32)
    launch(kernel, queue, grid, (1, 1, 1), part.buffer, g.buffer, x.buffer, g.offset, x.offset, dims)
    return part, grid[1]


def _weight_plan(queue: Any, form: Geometry, xs: Shape, gs: Shape, dtype: DType) -> Any:
    """Kernel, global size and Dims of a weight gradient."""
    profile = profile_of(queue)
    row = _blocks("winograd_weights_cpu", profile)
    count = tile_count(form)
    blocks = -(-form.c // form.groups // row["CB"]) * -(-form.o // form.groups // row["OB"])
    wanted = max(1, ITEMS_PER_UNIT * profile.compute_units // (blocks * form.groups))
    each = -(-count // (min(wanted, -(-count // row["TB"])) * row["TB"])) * row["TB"]
    kernel = _kernel(queue, "winograd_weights", dtype, row, False, WEIGHTS)
    return kernel, (blocks, -(-count // each), form.groups), _dims(form, xs, gs, each, 0, False)
