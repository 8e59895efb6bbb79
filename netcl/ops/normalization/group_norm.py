"""Group and instance norm of (N, C, ...), with gradients.

A group of channels is one contiguous row, so these run on the row kernels of norm_cpu.cl and norm_gpu.cl.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from netcl.core.backend import cpu
from netcl.core.backend.opencl import launch
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import INT64, DType, compute_dtype
from netcl.core.errors import ShapeError
from netcl.core.layout import as_int
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.ops.normalization.batch_norm import per_channel, scale_and_shift, sizes_of
from netcl.ops.normalization.norm import (
    OPTIONS,
    Needs,
    Optional,
    check_float,
    check_parameter,
    check_same,
    cpu_vector,
    flags_of,
    gpu_vector,
    known,
    layouts,
    parameter_dtype,
    partial_rows,
    plan_rows,
    prepared,
    row_group,
    run_columns,
    source,
    stream_flag,
)
from netcl.runtime.cache import get_kernel


def group_norm(
    x: Tensor, num_groups: int, weight: Optional = None, bias: Optional = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """y = (x - mean) * rstd * weight + bias with statistics per sample and group of C / num_groups channels.

    Shapes: x (N, C, ...); weight, bias (C,); returns y like x, mean and rstd (N, num_groups) in the compute dtype.
    Raises: ShapeError when num_groups does not divide C. Source: Wu and He 2018, arXiv:1803.08494.
    """
    num_groups = num_groups if type(num_groups) is int else as_int("group_norm", num_groups, "num_groups", 1)
    key = ("group_norm", num_groups, *layouts(x, weight, bias))
    run = known(x.queue, key, weight, bias)
    if run is None:
        compute = _check_groups("group_norm", x, num_groups, weight, bias)
        same_queue("group_norm", x, *[p for p in (weight, bias) if p is not None])
        if x.backend == "cpu":
            tensors = [t for t in (x, weight, bias) if t is not None]
            given = (weight is not None, bias is not None)
            return cpu.compute(_numpy_group, *tensors, groups=num_groups, given=given, eps=float(eps))  # type: ignore[no-any-return]
        n, c, span = sizes_of(x)
        per = c // num_groups
        channels = (num_groups, per, span)
        run = plan_rows(x, weight, bias, compute, (n, num_groups), per * span, channels, ("CHANNELS",))
        x.queue.netcl_state.plans[key] = run
    return run(x, weight, bias, eps)  # type: ignore[no-any-return]


def group_norm_grad(
    g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Optional = None, needs: Needs = (True, True, True)
) -> tuple[Optional, Optional, Optional]:
    """(dx, dweight, dbias) of `group_norm`, None where `needs` says so; mean, rstd (N, num_groups) of the forward pass.

    The formula of `layer_norm_grad` per group; dweight and dbias sum over samples and places, in weight's dtype.
    """
    compute = check_float("group_norm_grad", x)
    check_same("group_norm_grad", "g", g, x)
    if mean.ndim != 2 or mean.shape != rstd.shape or mean.shape[:1] != x.shape[:1]:
        raise ShapeError(f"group_norm_grad: expected mean and rstd (N, groups), got {mean.shape} and {rstd.shape}.")
    _check_groups("group_norm_grad", x, mean.shape[1], weight, None)
    queue = same_queue("group_norm_grad", g, x, mean, rstd, *([] if weight is None else [weight]))
    needs = tuple(bool(n) for n in needs)
    if not any(needs):
        return None, None, None
    if x.backend == "cpu":
        tensors = [t for t in (g, x, mean, rstd, weight) if t is not None]
        found = cpu.compute(_numpy_group_grad, *tensors, weighted=weight is not None)
    else:
        tensors = [g.astype(x.dtype), x, mean.astype(compute), rstd.astype(compute)]
        found = _group_grad(queue, [t.contiguous() for t in tensors], weight, needs)
    return tuple(t if need else None for t, need in zip(found, needs))  # type: ignore[return-value]


def instance_norm(
    x: Tensor, weight: Optional = None, bias: Optional = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """`group_norm` with one channel per group. Its gradient is `group_norm_grad`. Source: arXiv:1607.08022."""
    if x.ndim < 3:
        raise ShapeError(f"instance_norm: expected (N, C, ...) with at least three axes, got shape {x.shape}.")
    return group_norm(x, x.shape[1], weight, bias, eps)


def _check_groups(where: str, x: Tensor, groups: int, weight: Optional, bias: Optional) -> DType:
    compute = check_float(where, x)
    if x.ndim < 2:
        raise ShapeError(f"{where}: expected (N, C, ...), got shape {x.shape}.")
    if as_int(where, groups, "num_groups") < 1 or x.shape[1] % groups:
        raise ShapeError(f"{where}: expected a number of groups that divides {x.shape[1]} channels, got {groups}.")
    check_parameter(where, "weight", weight, x.shape[1:2])
    check_parameter(where, "bias", bias, x.shape[1:2])
    return compute


def _group_grad(queue: Any, tensors: list[Tensor], weight: Optional, needs: Needs) -> tuple[Tensor, Tensor, Tensor]:
    x, rstd, compute, profile = tensors[1], tensors[3], tensors[2].dtype, profile_of(queue)
    n, c, span = sizes_of(x)
    dtype = parameter_dtype(compute, weight)
    w = prepared(weight, dtype, rstd)
    dx = allocate(queue, x.shape, x.dtype) if needs[0] else rstd
    dw, db = allocate(queue, (c,), dtype), allocate(queue, (c,), dtype)
    stored = compute if weight is None else weight.dtype
    if x.size == 0:
        dw.fill_(0)
        db.fill_(0)
        return dx, dw.astype(stored), db.astype(stored)
    parts = [allocate(queue, (n, c), compute) for _ in range(2)]
    flags = flags_of(CHANNELS=True, HAS_W=weight is not None, DX=needs[0])
    if profile.kind == "cpu":
        rows, groups = rstd.size, rstd.shape[1]
        flags += stream_flag(dx, span, compute, profile) if needs[0] else ()
        text = source("norm_cpu.cl", "GROUP_GRAD", x.dtype, compute, dtype, flags, **cpu_vector(compute, profile))
        kernel = get_kernel(queue, text, "group_grad", [None] * 8 + [INT64] * 10, OPTIONS)
        step = partial_rows(rows, profile.compute_units)
        inputs = (tensors[0], x, w, *tensors[2:])
        numbers = (*[t.offset for t in inputs], rows, step, groups, c // groups, span)
        launch(kernel, queue, (-(-rows // step),), (1,), *[t.buffer for t in (dx, *parts, *inputs)], *numbers)
    else:
        _gpu_group_grad(queue, dx, parts, tensors, w, flags, dtype)
    if any(needs[1:]):
        run_columns(queue, (dw, db), parts, n, compute, dtype)
    return dx, dw.astype(stored), db.astype(stored)


def _gpu_group_grad(
    queue: Any, dx: Tensor, parts: list[Tensor], tensors: list[Tensor], w: Tensor, flags: tuple[str, ...], dtype: DType
) -> None:
    """Launch `channel_sums` for the partial sums and `norm_grad` over groups for dx."""
    g, x, mean, rstd = tensors
    compute, profile = mean.dtype, profile_of(queue)
    n, c, span = sizes_of(x)
    groups = rstd.shape[1]
    vector = span % 4 == 0 and all(t.offset % 4 == 0 for t in (g, x))
    form = gpu_vector(compute, vector)
    sizes = row_group(span, form["VEC"], profile) | {"PER": 0}
    text = source("norm_gpu.cl", "CHANNEL_SUMS", x.dtype, compute, dtype, ("CHANNELS",), **form, **sizes)
    local, count = (sizes["WG"], sizes["ROWS"]), n * c
    kernel = get_kernel(queue, text, "channel_sums", [None] * 6 + [INT64] * 7, OPTIONS)
    numbers = (*[t.offset for t in tensors], count, span, c // groups)
    global_size = (local[0] * -(-count // local[1]), local[1])
    launch(kernel, queue, global_size, local, *[t.buffer for t in (*parts, *tensors)], *numbers)
    if "DX" not in flags:
        return
    row = c // groups * span
    sizes = row_group(row, form["VEC"], profile)
    text = source("norm_gpu.cl", "NORM_GRAD", x.dtype, compute, dtype, flags, **form, **sizes)
    kernel = get_kernel(queue, text, "norm_grad", [None] * 8 + [INT64] * 10, OPTIONS)
    inputs, local = (g, x, w, mean, rstd), (sizes["WG"], sizes["ROWS"])
    numbers = (*[t.offset for t in inputs], n * groups, row, groups, c // groups, span)
    global_size = (local[0] * -(-n * groups // local[1]), local[1])
    launch(kernel, queue, global_size, local, *[t.buffer for t in (dx, *parts, *inputs)], *numbers)


def _numpy_group(x: np.ndarray, *affine: np.ndarray, groups: int, given: Any, eps: float) -> tuple[np.ndarray, ...]:
    compute = compute_dtype(x.dtype)
    v = x.astype(compute, copy=False).reshape(x.shape[0], groups, x.size // max(x.shape[0] * groups, 1))
    n = compute.type(max(v.shape[2], 1))
    mean = v.sum(axis=2) / n
    v = v - mean[..., None]
    rstd = 1 / np.sqrt((v * v).sum(axis=2) / n + compute.type(eps))
    y = scale_and_shift((v * rstd[..., None]).reshape(x.shape), list(affine), given, False)
    return y.astype(x.dtype, copy=False), mean, rstd


def _numpy_group_grad(
    g: np.ndarray, x: np.ndarray, mean: np.ndarray, rstd: np.ndarray, *affine: np.ndarray, weighted: bool
) -> tuple[np.ndarray, ...]:
    compute, rows = compute_dtype(x.dtype), (*rstd.shape, x.size // max(rstd.size, 1))
    axes = (0, *range(2, x.ndim))
    k = rstd[..., None]
    h = (x.astype(compute, copy=False).reshape(rows) - mean[..., None]) * k
    u = g.astype(compute, copy=False)
    dw, db = (u * h.reshape(x.shape)).sum(axis=axes), u.sum(axis=axes)
    stored = affine[0].dtype if weighted else compute
    u = (u * per_channel(affine[0], x.ndim, compute) if weighted else u).reshape(rows)
    n = compute.type(max(h.shape[2], 1))
    dx = (u - u.sum(axis=2, keepdims=True) / n - h * ((u * h).sum(axis=2, keepdims=True) / n)) * k
    return dx.reshape(x.shape).astype(x.dtype), dw.astype(stored), db.astype(stored)
