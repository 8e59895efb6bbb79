"""3x3 convolutions of stride 1 on CPU devices by Winograd's F(2x2, 3x3): geometry and launches of winograd_cpu.cl."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from netcl.core.backend.opencl import launch
from netcl.core.dtypes import FLOAT32, FLOAT64, INT32, INT64, DType
from netcl.core.layout import Shape
from netcl.core.profile import profile_of
from netcl.core.tensor import Tensor, allocate
from netcl.ops.conv_shape import Geometry
from netcl.ops.lanes_cpu import RECORD, pack_dims
from netcl.ops.matmul_cpu import ACTS, ITEMS_PER_UNIT, OPTIONS, program, sizes
from netcl.ops.plans import remember
from netcl.runtime.cache import get_kernel

FORWARD = (*(None,) * 4, *(INT64,) * 3, INT32, RECORD)
FILTERS = (None, None, INT64, INT32, INT32)
LEAST = 16  # channels in and out from which the transforms pay
NARROW = 128  # the same where a vector of tiles covers several rows, which are then gathered and scattered
CHANNELS = 8  # packed at once: PATCH of winograd_cpu.cl


def fits(g: Geometry, dtype: DType, queue: Any) -> bool:
    """Whether these kernels can do it, and are faster than the direct ones."""
    if (g.kh, g.kw, g.stride, g.dilation) != (3, 3, (1, 1), (1, 1)) or dtype == FLOAT64:
        return False
    row = sizes(profile_of(queue), dtype)
    per, outs = g.c // g.groups, g.o // g.groups
    least = LEAST if g.out[1] >= row["VW"] else NARROW
    return min(per, outs) >= least and min(g.out) >= 4 and _local(per, row) <= profile_of(queue).local_mem


def _local(channels: int, row: dict[str, int]) -> int:
    """Bytes of local memory: transformed and packed patches of as many tiles as the register tile has columns."""
    return 4 * 16 * (channels + 1 + CHANNELS) * 2 * row["VW"]


def forward(
    y: Tensor, strides: Any, start: int, x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry, activation: str | None
) -> None:
    """As conv_cpu's `_forward`; rows of x have unit stride."""
    queue = x.queue
    key = ("winograd_cpu", g, x.strides, strides, x.dtype, bias is None, activation)
    filters, kernel, padded, items, dims = remember(
        queue, key, lambda: _plan(queue, g, x.strides, strides, x.dtype, bias is not None, activation)
    )
    per, outs = g.c // g.groups, g.o // g.groups
    u, extra = allocate(queue, (g.groups, 16, padded, per), FLOAT32), w if bias is None else bias
    launch(filters, queue, (padded, g.groups), (1, 1), u.buffer, w.buffer, w.offset, outs, per)
    launch(
        kernel, queue, (items, g.groups), (1, 1), y.buffer, x.buffer, u.buffer, extra.buffer, y.offset + start,
        x.offset, extra.offset, padded, dims,
    )  # fmt: skip


def _plan(queue: Any, g: Geometry, xs: Shape, ys: Shape, dtype: DType, bias: bool, activation: str | None) -> Any:
    """Kernels of the filters and of the product, padded rows, work-items, Dims."""
    profile = profile_of(queue)
    row = sizes(profile, dtype)
    tiles = replace(g, kh=4, kw=4, stride=(2, 2), out=(-(-g.out[0] // 2), -(-g.out[1] // 2)))
    count = g.n * tiles.out[0] * tiles.out[1]
    wanted = max(1, ITEMS_PER_UNIT * profile.compute_units // g.groups)
    panel = 2 * row["VW"]
    each = -(-count // (wanted * panel)) * panel
    dims = pack_dims(tiles, xs, ys, g.out[0], each, g.out[1], ACTS[activation], bias)
    channels = 1 << (g.c // g.groups - 1).bit_length()  # one program for several numbers of channels
    fit = profile.local_mem // (4 * 16 * panel) - 1 - CHANNELS
    vmax = 16 * (min(channels, fit) + 1) * panel
    epilogue = bias or activation is not None
    source = program(
        profile, "lanes_cpu.cl", "winograd_cpu.cl", dtype=dtype, epilogue=epilogue, VMAX=vmax, PATCH=CHANNELS
    )
    kernel = get_kernel(queue, source, "winograd", FORWARD, OPTIONS)
    filters = get_kernel(queue, source, "winograd_filters", FILTERS, OPTIONS)
    return filters, kernel, _padded(g.o // g.groups, row["MR"]), -(-count // each), dims


def _padded(rows: int, tall: int) -> int:
    """Rows when cut into tiles of at most `tall` rows as `tile_rows` of panel_cpu.cl does."""
    done = 0
    while done < rows:
        left = rows - done
        if tall == 12:
            done += 4 if left <= 4 else 8 if left <= 8 or 12 < left <= 16 else 12
        else:
            done += 4 if left <= 4 or left in (7, 8) else 6
    return done
