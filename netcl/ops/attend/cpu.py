"""Streaming attention on CPU devices: register tiles, blocks and launches of attend_cpu.cl and attend_grad_cpu.cl."""

from __future__ import annotations

from typing import Any, NamedTuple

from netcl.core.backend.opencl import launch
from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import C_NAME, INT64, DType, compute_dtype
from netcl.core.tensor import Tensor, allocate
from netcl.kernels import sources
from netcl.ops.attend.problem import OPTIONS, RECORD, Geometry, dims_of, number
from netcl.runtime.cache import get_kernel

CACHE = 256 << 10  # bytes of the second-level cache that a gradient's blocks may take
FEW = 4  # queries up to which keys and values are read as they are
GRAD_BLOCKS = ((96, 48), (48, 48), (32, 24), (16, 12))  # keys and queries that a gradient takes at once
# Rows and vectors of a row of the register tiles, by the floats of a vector. Sums fill the 16 registers of 8 floats; of
# the 32 of 16 floats half are enough. The rows of the forward pass divide usual head sizes.
FORWARD_TILE = {16: (8, 2), 8: (4, 3)}
GRAD_TILE = {16: (8, 2), 8: (6, 2)}


class Form(NamedTuple):
    """How kernels of attention_cpu.cl compute: dtypes, floats per vector of the device, register tile."""

    stored: DType
    compute: DType
    vector: int
    rows: int
    vectors: int

    @property
    def width(self) -> int:
        """Elements of a vector."""
        return self.vector * 4 // self.compute.itemsize

    @property
    def panel(self) -> int:
        """Columns of the register tile."""
        return self.width * self.vectors

    def source(self, file: str, masked: bool, **sizes: int) -> str:
        """The program in `file`."""
        double = self.compute.itemsize == 8
        flags = {name: 1 for name, given in (("MASK", masked), ("DOUBLE", double)) if given}
        tile = {"VW": self.width, "MR": self.rows, "NV": self.vectors}
        types = {"S": C_NAME[self.stored], "E": C_NAME[self.compute], "LANE": "long" if double else "int"}
        return sources.load(
            "memory.cl", "attention_rows.cl", "attention_cpu.cl", file, **flags, **tile, **types, **sizes
        )


def _form(queue: Any, stored: DType, tiles: dict[int, tuple[int, int]]) -> Form:
    vector = profile_of(queue).vector
    return Form(stored, compute_dtype(stored), vector, *tiles[vector])


def forward(
    queue: Any, o: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, x: Geometry
) -> None:
    form, few = _form(queue, q.dtype, FORWARD_TILE), x.queries <= FEW
    use = {"USE_ATTEND_FEW" if few else "USE_ATTEND": 1}
    widened = q.dtype != lse.dtype and not few
    if widened:
        use["WIDENED"] = 1
    text = form.source("attend_cpu.cl", mask is not None, DP=-(-x.size // 64) * 64, **use)
    if widened:
        k, v = (_widened(queue, text, t, lse.dtype, x) for t in (k, v))
    name = "attend_few" if few else "attend"
    kernel = get_kernel(queue, text, name, [None] * 6 + [INT64] * 4 + [number(lse.dtype), RECORD], OPTIONS)
    grid = (x.queries if few else -(-x.queries // form.panel), x.heads, x.batch)
    masked, offset = (lse, 0) if mask is None else (mask, mask.offset)
    buffers = [t.buffer for t in (o, lse, q, k, v, masked)]
    dims = dims_of(x, q, k, v, None, mask)
    launch(kernel, queue, grid, (1, 1, 1), *buffers, q.offset, k.offset, v.offset, offset, x.scale, dims)


def _widened(queue: Any, text: str, t: Tensor, compute: DType, x: Geometry) -> Tensor:
    """`t`, which is k or v, in the compute dtype: read so often that converting it first is cheaper."""
    wide = allocate(queue, t.shape, compute)
    kernel = get_kernel(queue, text, "widen", [None] * 2 + [INT64] * 4 + [RECORD], OPTIONS)
    grid = (-(-x.keys // 64), t.shape[1], x.batch)
    dims = dims_of(x, t, t, t, None, None)
    launch(kernel, queue, grid, (1, 1, 1), wide.buffer, t.buffer, t.offset, *t.strides[:3], dims)
    return wide


def _grad_sizes(form: Form, width: int, profile: DeviceProfile) -> dict[str, int]:
    """Keys (BK) and queries (BQ) per block of the gradient: the largest whose working set fits in local memory."""
    limit = min(profile.local_mem, CACHE) // form.compute.itemsize
    for keys, queries in GRAD_BLOCKS:
        keys = -(-keys // form.panel) * form.panel
        queries = -(-queries // form.rows) * form.rows
        sums = -(-keys // form.rows) * form.rows
        row = width + form.width
        if 2 * (keys + sums) * width + (keys + 2 * queries) * row + 2 * queries * (keys + form.width) <= limit:
            break
    return {"BK": keys, "BQ": queries}


def backward(
    queue: Any, g: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, mask: Tensor | None, x: Geometry
) -> tuple[Tensor, Tensor, Tensor]:
    form, profile, heads = _form(queue, q.dtype, GRAD_TILE), profile_of(queue), x.heads // x.group
    width = -(-x.size // form.panel) * form.panel
    sizes = _grad_sizes(form, width, profile)
    text = form.source("attend_grad_cpu.cl", mask is not None, DP=width, USE_QUERY_GRAD=1, USE_KEY_GRAD=1, **sizes)
    dq, dk, dv = (allocate(queue, t.shape, t.dtype) for t in (q, k, v))
    splits = max(1, min(-(-4 * profile.compute_units // (x.batch * heads)), -(-x.keys // sizes["BK"])))
    rows = -(-x.queries // form.rows) * form.rows
    parts = allocate(queue, (splits, x.batch * x.heads, rows, width), form.compute)
    delta = allocate(queue, lse.shape, form.compute)
    dims = dims_of(x, q, k, v, g, mask, splits, rows)
    grid = (-(-x.queries // 64), x.heads, x.batch)
    kernel = get_kernel(queue, text, "dots", [None] * 3 + [INT64] * 2 + [RECORD], OPTIONS)
    launch(kernel, queue, grid, (1, 1, 1), delta.buffer, g.buffer, o.buffer, g.offset, o.offset, dims)
    tail = [INT64] * 6 + [number(form.compute), RECORD]
    kernel = get_kernel(queue, text, "attend_grad", [None] * 10 + tail, OPTIONS)
    inputs = [t.buffer for t in (q, k, v, g, lse, delta, lse if mask is None else mask)]
    offsets = (q.offset, k.offset, v.offset, g.offset, lse.offset, 0 if mask is None else mask.offset)
    results = [t.buffer for t in (dk, dv, parts)]
    launch(kernel, queue, (splits, heads, x.batch), (1, 1, 1), *results, *inputs, *offsets, x.scale, dims)
    kernel = get_kernel(queue, text, "join", [None] * 9 + tail, OPTIONS)
    launch(kernel, queue, grid, (1, 1, 1), dq.buffer, parts.buffer, *inputs, *offsets, x.scale, dims)
    return dq, dk, dv
