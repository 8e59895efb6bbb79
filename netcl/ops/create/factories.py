"""Tensors made from nothing: ranges, identity, grids; and triangles of matrices. Queue first, as in every factory."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from netcl.core import layout
from netcl.core.backend import cpu
from netcl.core.device.discovery import queue_of
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import BOOL, C_NAME, FLOAT32, FLOAT64, INT64, DType, as_dtype, compute_dtype, is_float
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.layout import Shape
from netcl.core.protocols import Launch, Queue
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor, same_queue
from netcl.kernels import sources
from netcl.kernels.grid import CHUNK, like, line_of
from netcl.kernels.plans import remember
from netcl.kernels.program import program
from netcl.ops.index.pick import BITS
from netcl.ops.record import Op, alike, register


def arange(queue: Queue, start: float, stop: float | None = None, step: float = 1, dtype: Any = None) -> Tensor:
    """start, start + step, ... below `stop` (above, for a negative step); arange(queue, n) counts from 0.

    int64 when all numbers are whole Python integers, else float32, unless `dtype` says so. Integers go by the
    difference of the first two elements: arange(q, 0, 3, 0.5, "int64") is six zeros, as in NumPy.
    """
    start, stop = (0, start) if stop is None else (start, stop)
    whole = all(isinstance(v, (int, np.integer)) for v in (start, stop, step))
    if step == 0:
        raise ValueError("arange: expected a step other than 0, got 0.")
    n = max(0, -((start - stop) // step) if whole else math.ceil((stop - start) / step))
    dtype = as_dtype((INT64 if whole else FLOAT32) if dtype is None else dtype)
    if not is_float(dtype):  # whole steps, as NumPy: from the first two elements
        start, step = int(start), int(start + step) - int(start)
    return _ramp("arange", queue, dtype, int(n), start, step, start + (n - 1) * step)


def linspace(
    queue: Queue, start: float, stop: float, num: int = 50, endpoint: bool = True, dtype: Any = "float32"
) -> Tensor:
    """`num` numbers spread evenly from `start` to `stop`, which is the last one when `endpoint`."""
    if layout.as_int("linspace", num, "num") < 0:
        raise ShapeError(f"linspace: expected at least 0 numbers, got {num}.")
    if not is_float(as_dtype(dtype)):
        raise DTypeError(f"linspace: expected a floating dtype, got {as_dtype(dtype)}.")
    step = (stop - start) / max(num - 1 if endpoint else num, 1)
    last = stop if endpoint and num > 1 else start + max(num - 1, 0) * step
    return _ramp("linspace", queue, as_dtype(dtype), num, float(start), step, last)


def _ramp(where: str, queue: Any, dtype: DType, n: int, start: float, step: float, last: float) -> Tensor:
    if dtype == BOOL:
        raise DTypeError(f"{where}: expected a dtype of numbers, got bool.")
    facts = (start, step, last) if is_float(dtype) else (int(start), int(step), int(last))
    queue = queue_of(where, queue)
    if isinstance(queue, CPUQueue):
        return cpu.compute(_numpy_ramp, queue=queue, dtype=dtype, n=n, facts=facts)
    if n == 0:
        return Tensor.empty(queue, (0,), dtype)
    start, step, last = facts
    launch = remember(queue, ("ramp", dtype, n), lambda: _ramp_plan(queue, dtype, n))
    return launch(start=start, step=step, last=last)


def _ramp_plan(queue: Queue, dtype: DType, n: int) -> Launch[Tensor]:
    profile = profile_of(queue)
    acc = INT64 if not is_float(dtype) else FLOAT64 if profile.has_fp64 else FLOAT32
    grid, local, span = line_of(profile, n)
    made = program(queue, _ramp_source(dtype, acc), "ramp", ("-w",))
    return made.bind(grid, local, {"out": ((n,), dtype)}, n=n, span=span)


def _numpy_ramp(dtype: DType, n: int, facts: tuple[float, float, float]) -> np.ndarray:
    start, step, last = facts
    ramp = start + np.arange(n) * step
    ramp[n - 1 : n] = last
    return ramp.astype(dtype)


@cache
def _ramp_source(dtype: DType, acc: DType) -> str:
    return sources.load("create.cl", FORM=0, S=C_NAME[dtype], T=C_NAME[compute_dtype(dtype)], ACC=C_NAME[acc])


def eye(queue: Queue, n: int, m: int | None = None, k: int = 0, dtype: Any = "float32") -> Tensor:
    """An n x m matrix (m defaults to n) of zeros with ones on diagonal `k`: y[i, i + k] = 1."""
    out, k = Tensor.zeros(queue, (n, n if m is None else m), dtype), layout.as_int("eye", k, "k")
    rows, cols = out.shape
    length = min(rows + min(k, 0), cols - max(k, 0))
    if length > 0:
        at = k if k >= 0 else -k * cols
        Tensor(out.buffer, (length,), (cols + 1,), at, out.dtype, out.queue).fill_(1)
    return out


def tril(x: Tensor, k: int = 0) -> Tensor:
    """The lower triangle of each matrix of `x` (..., rows, cols): elements with column - row <= k, zeros elsewhere."""
    return _triangle("tril", x, k)


def triu(x: Tensor, k: int = 0) -> Tensor:
    """The upper triangle of each matrix of `x` (..., rows, cols): elements with column - row >= k, zeros elsewhere."""
    return _triangle("triu", x, k)


def _triangle(where: str, x: Tensor, k: int) -> Tensor:
    k = layout.as_int(where, k, "k")
    if x.ndim < 2:
        raise ShapeError(f"{where}: expected matrices (..., rows, cols), got shape {x.shape}.")
    k = layout.as_int(where, k, "k")
    if x.backend == "cpu":
        return cpu.compute(_numpy_triangle, x, where=where, k=k)
    if x.size == 0:
        return Tensor.empty(x.queue, x.shape, x.dtype)
    seen, shape = x.reshape(-1, *x.shape[-2:]), x.shape
    launch = remember(x.queue, (where, k, shape, *like(seen)), lambda: _triangle_plan(where, seen, k, shape))
    return launch(x=seen)


def _triangle_plan(where: str, x: Tensor, k: int, shape: Shape) -> Launch[Tensor]:
    """The launch for x (batch, rows, cols) whose result has `shape`."""
    profile, (batch, rows, cols) = profile_of(x.queue), x.shape
    group, span = (1, CHUNK) if profile.kind == "cpu" else (profile.group(64), 1)
    grid = (-(-cols // (span * group)) * group, batch * rows)
    made = program(x.queue, sources.load("create.cl", FORM=1, U=BITS[x.dtype.itemsize]), "triangle", ("-w",))
    return made.bind(
        grid,
        (group, 1),
        {"out": (shape, x.dtype)},
        x_b=x.strides[0],
        x_r=x.strides[1],
        x_c=x.strides[2],
        rows=rows,
        cols=cols,
        k=k,
        lower=int(where == "tril"),
        span=span,
    )


def _numpy_triangle(x: np.ndarray, where: str, k: int) -> np.ndarray:
    return (np.tril if where == "tril" else np.triu)(x, k)


def meshgrid(*axes: Tensor, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Each of `axes` (one axis each) seen over the grid of all of them, as views. With "xy" the second comes first."""
    if indexing not in ("ij", "xy"):
        raise ValueError(f"meshgrid: expected indexing 'ij' or 'xy', got {indexing!r}.")
    if any(t.ndim != 1 for t in axes):
        raise ShapeError(f"meshgrid: expected tensors of one axis, got {', '.join(str(t.shape) for t in axes)}.")
    same_queue("meshgrid", *axes)
    shape = tuple(t.shape[0] for t in axes)
    views = tuple(
        t.reshape(*[-1 if j == i else 1 for j in range(len(axes))]).expand(shape)
        if 0 not in shape
        else Tensor.empty(t.queue, shape, t.dtype)
        for i, t in enumerate(axes)
    )
    return tuple(v.transpose(0, 1) for v in views) if indexing == "xy" and len(axes) > 1 else views


# -- record ------------------------------------------------------------------------------------------------------------

register(Op("tril", tril, lambda g, y, x, k=0: tril(g, k), (), shape=alike, onnx="Trilu", array_api="tril"))
register(Op("triu", triu, lambda g, y, x, k=0: triu(g, k), (), shape=alike, onnx="Trilu", array_api="triu"))
