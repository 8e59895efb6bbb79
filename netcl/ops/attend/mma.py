"""Launches of attention_mma.cl: attention on NVIDIA's matrix units, for the layouts that their copies can read."""

from __future__ import annotations

from typing import Any

from netcl.core.backend.opencl import Kernel, launch
from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import BFLOAT16, C_NAME, FLOAT16, FLOAT32, INT64, NARROW
from netcl.core.errors import BuildError
from netcl.core.tensor import Tensor
from netcl.kernels import sources
from netcl.kernels.tuning import parameters
from netcl.ops.attend.problem import RECORD, Geometry, dims_of
from netcl.ops.nvidia import probe
from netcl.ops.nvidia.edit import UnknownProgram, activate
from netcl.ops.nvidia.precision import UNIT_TYPE, matmul_precision
from netcl.ops.nvidia.wgmma import product_macro
from netcl.runtime.cache import get_kernel

FILES = ("ptx.cl", "attention_rows.cl", "attention_tile.cl", "attention_mma.cl")
LARGEST = {FLOAT16: 128, BFLOAT16: 128, FLOAT32: 64}  # head sizes whose sums fit in registers


def family_of(queue: Any, x: Geometry, *tensors: Tensor) -> str | None:
    """The units that compute `x` for `tensors` (each with rows of the head size) on this device, None where none do."""
    dtype = tensors[0].dtype
    if x.size > LARGEST.get(dtype, 0) or x.scale <= 0 or (dtype == FLOAT32 and matmul_precision() == "highest"):
        return None
    each = 16 // dtype.itemsize
    if x.size % each or any(t.offset % each or any(s % each for s in t.strides[:3]) for t in tensors):
        return None
    profile = profile_of(queue)
    found = [f for f in probe.attention(profile) if f == "mma" or dtype in NARROW]
    return next((f for f in reversed(found) if probe.serves(f, C_NAME[dtype], profile)), None)


def tile(family: str, use: str, narrow: bool, size: int, profile: DeviceProfile) -> dict[str, int]:
    """The head size padded to rows of 128 bytes, and from the tuning table the shape of a group's work.

    WARPS of 16 MT rows each, BC columns of a tile, RESIDENT groups that share a multiprocessor's registers.
    """
    least = 64 if narrow else 32
    padded = least if size <= least else 2 * least
    row = parameters(f"{use.lower()}_{family}_{padded if narrow else 'float'}", profile)
    return {"DP": padded, **row}


def _kernel(
    queue: Any, family: str, use: str, types: list[Any], q: Tensor, size: int, mask: Tensor | None
) -> tuple[Kernel, int, int]:
    """The kernel, its work-items and the rows of a group."""
    narrow, kind = q.dtype in NARROW, UNIT_TYPE[C_NAME[q.dtype]]
    sizes = tile(family, use, narrow, size, profile_of(queue))
    defines: dict[str, Any] = {f"USE_{use}": 1, "S": C_NAME[q.dtype], "E": "float", "KIND": f'"{kind}"', "ALIGNED": 1}
    defines |= sizes
    if not narrow:
        defines["TF32"] = 1
    if mask is not None:
        defines["MASK"] = 1
    macros, edit = "", None
    if family == "wgmma":
        defines["WARPGROUP"], edit = 1, activate
        macros = product_macro(sizes["BC"], kind, name="WG_SCORES", rows_of_four=True)
        macros += product_macro(sizes["DP"], kind, along_n=True, held=True, name="WG_SPREAD", rows_of_four=True)
    text = macros + sources.load(*FILES, **defines)
    kernel = get_kernel(queue, text, use.lower(), types, edit=edit)
    return kernel, sizes["WARPS"] * 32, sizes["WARPS"] * sizes["MT"] * 16


def forward(
    queue: Any, family: str, o: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, x: Geometry
) -> bool:
    """Launch `attend`; False, with a warning, where the driver does not build it."""
    types = [None] * 6 + [INT64] * 4 + [FLOAT32, RECORD]
    try:
        kernel, items, rows = _kernel(queue, family, "ATTEND", types, q, x.size, mask)
    except (BuildError, UnknownProgram) as error:
        probe.give_up(f"attention {family}", error)
        return False
    buffers = [t.buffer for t in (o, lse, q, k, v, lse if mask is None else mask)]
    offsets = (q.offset, k.offset, v.offset, 0 if mask is None else mask.offset)
    grid = (-(-x.queries // rows) * items, x.batch * x.heads)
    launch(kernel, queue, grid, (items, 1), *buffers, *offsets, x.scale, dims_of(x, q, k, v, None, mask))
    return True


def backward(
    queue: Any, family: str, outs: tuple[Tensor, Tensor, Tensor], g: Tensor, q: Tensor, k: Tensor, v: Tensor,
    lse: Tensor, delta: Tensor, mask: Tensor | None, x: Geometry,
) -> bool:  # fmt: skip
    """Launch `query_grad` and `key_grad` into `outs` = (dq, dk, dv); False, with a warning, where they do not build."""
    dq, dk, dv = outs
    tail = [INT64] * 6 + [FLOAT32, RECORD]
    try:
        queries = _kernel(queue, family, "QUERY_GRAD", [None] * 8 + tail, q, x.size, mask)
        keys = _kernel(queue, family, "KEY_GRAD", [None] * 9 + tail, q, x.size, mask)
    except (BuildError, UnknownProgram) as error:
        probe.give_up(f"attention {family}", error)
        return False
    inputs = [t.buffer for t in (q, k, v, g, lse, delta, lse if mask is None else mask)]
    offsets = (q.offset, k.offset, v.offset, g.offset, lse.offset, 0 if mask is None else mask.offset)
    dims = dims_of(x, q, k, v, g, mask)
    for (kernel, items, rows), results, length, heads in (
        (queries, (dq,), x.queries, x.heads), (keys, (dk, dv), x.keys, x.heads // x.group),
    ):  # fmt: skip
        grid = (-(-length // rows) * items, x.batch * heads)
        launch(kernel, queue, grid, (items, 1), *[t.buffer for t in results], *inputs, *offsets, x.scale, dims)
    return True
