"""Attention on GPUs: matrix units where they serve (mma.py), else attention_gpu.cl.

A work-group computes a block of queries, and for the gradients of k and v a block of keys.
"""

from __future__ import annotations

from typing import Any

from netcl.core.backend.opencl import launch
from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import C_NAME, FLOAT32, INT64, DType, compute_dtype
from netcl.core.tensor import Tensor, allocate
from netcl.kernels import sources
from netcl.kernels.tuning import parameters
from netcl.ops.attend import mma as attention_mma
from netcl.ops.attend.problem import OPTIONS, RECORD, Geometry, dims_of, number
from netcl.runtime.cache import get_kernel

Defines = dict[str, Any]


def geometry(rows: int, size: int, itemsize: int, profile: DeviceProfile, most: int = 4) -> Defines:
    """Work-items (GX, GY) of a group, rows of each (TR), elements per slice (DC) and padded head size (DP) that fit.

    A work-item holds TR rows x 4 columns: `most`, 4 or 8, where there are enough rows. So a group of 16 x 16, or of
    16 x 8, holds 64 x 64; few rows (decoding) take flat groups.
    """
    for gx, gy, dc in ((16, 16, 16), (8, 8, 16), (8, 8, 8), (4, 4, 8), (2, 2, 8)):
        width = -(-size // (4 * gx)) * 4 * gx
        held = max(dc * (4 * gx + 4 * gy + 8), width) + 4 * gx * (4 * gy + 4) + 4 * gy * (gx + 2)
        if gx * gy <= profile.max_work_group and held * itemsize <= min(profile.local_mem, 32 << 10):
            break
    flat = gy
    while flat > 1 and flat * 2 >= rows:  # half of the rows would stay empty
        flat //= 2
    if most == 8 and flat == gy:
        return {"GX": gx, "GY": gy // 2, "TR": 8, "DC": dc, "DP": width}
    return {"GX": gx, "GY": flat, "TR": 4, "DC": dc, "DP": width}


def _geometry(use: str, rows: int, x: Geometry, compute: DType, profile: DeviceProfile) -> Defines:
    most = parameters("attention_gpu", profile)[use] if compute == FLOAT32 else 4
    return geometry(rows, x.size, compute.itemsize, profile, most)


def _text(use: str, q: Tensor, mask: Tensor | None, sizes: Defines, *rows: Tensor) -> str:
    compute = compute_dtype(q.dtype)
    defines: Defines = {f"USE_{use}": 1, **sizes}
    if mask is not None:
        defines["MASK"] = 1
    if all(t.offset % 4 == 0 and t.shape[3] % 4 == 0 and all(s % 4 == 0 for s in t.strides[:3]) for t in (q, *rows)):
        defines["ALIGNED"] = 1
    return sources.load("attention_rows.cl", "attention_gpu.cl", S=C_NAME[q.dtype], E=C_NAME[compute], **defines)


def _grid(sizes: Defines, rows: int, heads: int, batch: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Global and local size for blocks of TR GY rows."""
    blocks = -(-rows // (sizes["TR"] * sizes["GY"]))
    return (blocks * sizes["GX"], heads * sizes["GY"], batch), (sizes["GX"], sizes["GY"], 1)


def forward(
    queue: Any, o: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, x: Geometry
) -> None:
    """Launch `attend`."""
    family = attention_mma.family_of(queue, x, q, k, v)
    if family is not None and attention_mma.forward(queue, family, o, lse, q, k, v, mask, x):
        return
    compute = lse.dtype
    sizes = _geometry("ATTEND", x.queries, x, compute, profile_of(queue))
    text = _text("ATTEND", q, mask, sizes, k, v)
    kernel = get_kernel(queue, text, "attend", [None] * 6 + [INT64] * 4 + [number(compute), RECORD], OPTIONS)
    buffers = [t.buffer for t in (o, lse, q, k, v, lse if mask is None else mask)]
    offsets = (q.offset, k.offset, v.offset, 0 if mask is None else mask.offset)
    grid = _grid(sizes, x.queries, x.heads, x.batch)
    launch(kernel, queue, *grid, *buffers, *offsets, x.scale, dims_of(x, q, k, v, None, mask))


def backward(
    queue: Any, g: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, mask: Tensor | None, x: Geometry
) -> tuple[Tensor, Tensor, Tensor]:
    """Launch `dots`, `query_grad` and `key_grad`."""
    compute, profile = lse.dtype, profile_of(queue)
    dq, dk, dv = (allocate(queue, t.shape, t.dtype) for t in (q, k, v))
    delta = allocate(queue, lse.shape, compute)
    dims = dims_of(x, q, k, v, g, mask)
    sizes = geometry(x.queries, x.size, compute.itemsize, profile)
    local = (sizes["GX"], sizes["GY"], 1)
    text = _text("DOTS", q, None, sizes, g, o)
    kernel = get_kernel(queue, text, "dots", [None] * 3 + [INT64] * 2 + [RECORD], OPTIONS)
    grid = (local[0], -(-x.heads * x.queries // local[1]) * local[1], x.batch)
    launch(kernel, queue, grid, local, delta.buffer, g.buffer, o.buffer, g.offset, o.offset, dims)
    outs = (dq, dk, dv)
    family = attention_mma.family_of(queue, x, q, k, v, g)
    if family is not None and attention_mma.backward(queue, family, outs, g, q, k, v, lse, delta, mask, x):
        return outs
    inputs = [t.buffer for t in (q, k, v, g, lse, delta, lse if mask is None else mask)]
    offsets = (q.offset, k.offset, v.offset, g.offset, lse.offset, 0 if mask is None else mask.offset)
    tail = [INT64] * 6 + [number(compute), RECORD]
    sizes = _geometry("QUERY_GRAD", x.queries, x, compute, profile)
    kernel = get_kernel(queue, _text("QUERY_GRAD", q, mask, sizes, k, v, g), "query_grad", [None] * 8 + tail, OPTIONS)
    launch(kernel, queue, *_grid(sizes, x.queries, x.heads, x.batch), dq.buffer, *inputs, *offsets, x.scale, dims)
    sizes = _geometry("KEY_GRAD", x.keys, x, compute, profile)
    kernel = get_kernel(queue, _text("KEY_GRAD", q, mask, sizes, k, v, g), "key_grad", [None] * 9 + tail, OPTIONS)
    grids = _grid(sizes, x.keys, x.heads // x.group, x.batch)
    launch(kernel, queue, *grids, dk.buffer, dv.buffer, *inputs, *offsets, x.scale, dims)
    return outs
