"""Running sums along an axis, on devices in parts: sums of the parts, their running sums, then each part from there."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from netcl.core import layout
from netcl.core.backend import cpu
from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import C_NAME, FLOAT64, INT32, INT64, DType, compute_dtype, is_float
from netcl.core.protocols import Launch, Queue
from netcl.core.tensor import Tensor, allocate
from netcl.kernels import sources
from netcl.kernels.grid import CHUNK, FAR, GROUP, is_wide, like
from netcl.kernels.plans import remember
from netcl.kernels.program import program

COLUMNS = 16  # that an item of a CPU device walks together
TILE = 4 * GROUP  # elements that a group of a GPU scans at once


def cumsum(x: Tensor, axis: int | None = None) -> Tensor:
    """y[k] = x[0] + ... + x[k] along `axis`; without an axis, of the flattened tensor, as in NumPy.

    Integers and booleans give int64. Sums are kept in double precision where the device has it at no cost, else in
    float32 in blocks.
    """
    if axis is None:
        return cumsum(x.reshape(-1), 0)
    axis = layout.as_axis("cumsum", axis, x.ndim)
    dtype = x.dtype if is_float(x.dtype) else INT64
    if x.backend == "cpu":
        return cpu.compute(_numpy_cumsum, x, axis=axis, dtype=dtype)
    if x.size == 0:
        return allocate(x.queue, x.shape, dtype)
    outer, cols = layout.size_of(x.shape[:axis]), layout.size_of(x.shape[axis + 1 :])
    return _scan(x.reshape(outer, x.shape[axis], cols), dtype, _sum_dtype(dtype, x.queue)).reshape(x.shape)


def _numpy_cumsum(x: np.ndarray, axis: int, dtype: DType) -> np.ndarray:
    return np.cumsum(x, axis, dtype=FLOAT64 if is_float(dtype) else dtype).astype(dtype, copy=False)


def count_marked(mask: Tensor) -> Tensor:
    """How many elements of `mask`, flattened, are true up to each: int32, or int64 where that is too small."""
    dtype = INT32 if mask.size < FAR else INT64
    if mask.backend == "cpu":
        return cpu.compute(_numpy_count, mask, dtype=dtype)
    if mask.size == 0:
        return allocate(mask.queue, (0,), dtype)
    return _scan(mask.reshape(1, -1, 1), dtype, dtype).reshape(-1)


def _numpy_count(mask: np.ndarray, dtype: DType) -> np.ndarray:
    return np.cumsum(mask, dtype=dtype)


def _sum_dtype(dtype: DType, queue: Queue) -> DType:
    profile = profile_of(queue)
    return FLOAT64 if is_float(dtype) and profile.kind == "cpu" and profile.has_fp64 else compute_dtype(dtype)


class Cut(NamedTuple):
    """How a scan is spread: by groups over rows or by items over columns, and in how many parts of the axis."""

    rows: bool
    columns: int
    parts: int


def _cut(profile: DeviceProfile, outer: int, n: int, cols: int) -> Cut:
    units = profile.compute_units
    if profile.kind == "cpu":
        columns = 1 if cols == 1 else COLUMNS
        few = outer * -(-cols // columns) < 2 * units
        return Cut(False, columns, min(4 * units, n // CHUNK) if few and n >= 4 * CHUNK else 1)
    if cols == 1 and n > 64:
        return Cut(True, 1, max(1, min(-(-n // TILE), 8 * units // outer)))
    few = outer * cols < 64 * units and n > 128
    return Cut(False, 1, min(n // 32, -(-256 * units // (outer * cols))) if few else 1)


class Plan(NamedTuple):
    """Launches of a scan: the sums of the parts, where there are several, and the running sums of each part."""

    totals: Launch[Tensor] | None
    scan: Launch[Tensor]


def _scan(x: Tensor, dtype: DType, total: DType) -> Tensor:
    """Running sums of `x` (outer, n, cols) along the middle axis, kept in `total`, as `dtype`."""
    plan = remember(x.queue, ("scan", dtype, total, *like(x)), lambda: _plan(x, dtype, total))
    unused = x.buffer
    if plan.totals is None:
        return plan.scan(x=x, carry=unused)
    carry = _scan(plan.totals(x=x, out=unused), total, total)
    return plan.scan(x=x, carry=carry.buffer)


def _plan(x: Tensor, dtype: DType, total: DType) -> Plan:
    queue, (outer, n, cols), profile = x.queue, x.shape, profile_of(x.queue)
    cut = _cut(profile, outer, n, cols)
    span = -(-n // cut.parts)
    parts = -(-n // span)
    group = profile.group(GROUP)
    source = _source(x.dtype, dtype, total, group if cut.rows else 0, cut.columns, is_wide(profile, x))
    runs, step = outer * parts * -(-cols // cut.columns), 1
    if cut.rows:
        grid, local = runs * group, group
    elif profile.kind == "cpu":
        step = max(1, min(CHUNK // (span * cut.columns), -(-runs // (4 * profile.compute_units))))
        grid, local = -(-runs // step), 1
    else:
        grid, local = -(-runs // group) * group, group
    made, facts = program(queue, source, "scan", ("-w",)), dict(zip(("x_o", "x_n", "x_c"), x.strides))
    facts |= {"n": n, "cols": cols, "outer": outer, "parts": parts, "span": span, "step": step}
    scan = made.bind((grid,), (local,), {"out": (x.shape, dtype)}, totals=0, **facts)
    if parts == 1:
        return Plan(None, scan)
    return Plan(made.bind((grid,), (local,), {"carry": ((outer, parts, cols), total)}, totals=1, **facts), scan)


@cache
def _source(x: DType, out: DType, total: DType, group: int, columns: int, wide: bool) -> str:
    """The program; `group` is 0 for the kernel over columns."""
    extra = {"ROWS": 1, "WG": group} if group else {"COLS": columns}
    return sources.load(
        "scan.cl",
        S=C_NAME[x],
        R=C_NAME[out],
        ACC=C_NAME[total],
        T=C_NAME[compute_dtype(x)],
        I="long" if wide else "int",
        **extra,
    )
