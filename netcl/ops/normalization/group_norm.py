"""Group and instance norm of (N, C, ...), with gradients.

A group of channels is one contiguous row, so these run on the row kernels of norm_cpu.cl and norm_gpu.cl.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from netcl.core.backend import cpu
from netcl.core.dtypes import compute_dtype
from netcl.core.errors import ShapeError
from netcl.core.layout import as_int
from netcl.core.tensor import Tensor, same_queue
from netcl.kernels.plans import remember
from netcl.ops.normalization import rows
from netcl.ops.normalization.batch_norm import per_channel, scale_and_shift
from netcl.ops.normalization.problem import (
    Needs,
    Optional,
    Rows,
    check_float,
    check_parameter,
    check_same,
    layouts,
    sizes_of,
)


def group_norm(
    x: Tensor, num_groups: int, weight: Optional = None, bias: Optional = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """y = (x - mean) * rstd * weight + bias with statistics per sample and group of C / num_groups channels.

    Shapes: x (N, C, ...); weight, bias (C,); returns y like x, mean and rstd (N, num_groups) in the compute dtype.
    Raises: ShapeError when num_groups does not divide C. Source: Wu and He 2018, arXiv:1803.08494.
    """
    num_groups = num_groups if type(num_groups) is int else as_int("group_norm", num_groups, "num_groups", 1)
    key = ("group_norm", num_groups, *layouts(x.queue, x, weight, bias))
    plan = remember(x.queue, key, lambda: _plan_forward(x, num_groups, weight, bias))
    return plan(x, weight, bias, eps)


def group_norm_grad(
    g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Optional = None, needs: Needs = (True, True, True)
) -> tuple[Optional, Optional, Optional]:
    """(dx, dweight, dbias) of `group_norm`, None where `needs` says so; mean, rstd (N, num_groups) of the forward pass.

    The formula of `layer_norm_grad` per group; dweight and dbias sum over samples and positions, in weight's dtype.
    """
    needs = tuple(map(bool, needs))
    key = ("group_norm_grad", needs, *layouts(x.queue, g, x, mean, rstd, weight))
    plan = remember(x.queue, key, lambda: _plan_backward(g, x, mean, rstd, weight, needs))
    return plan(g, x, mean, rstd, weight)


def instance_norm(
    x: Tensor, weight: Optional = None, bias: Optional = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """`group_norm` with one channel per group. Its gradient is `group_norm_grad`. Source: arXiv:1607.08022."""
    if x.ndim < 3:
        raise ShapeError(f"instance_norm: expected (N, C, ...) with at least three axes, got shape {x.shape}.")
    return group_norm(x, x.shape[1], weight, bias, eps)


# -- plans -------------------------------------------------------------------------------------------------------------


def _plan_forward(x: Tensor, groups: int, weight: Optional, bias: Optional) -> rows.Forward:
    _check_groups("group_norm", x, groups, weight, bias)
    same_queue("group_norm", x, *[p for p in (weight, bias) if p is not None])
    if x.backend == "cl":
        return rows.plan_forward(x, weight, bias, (x.shape[0], groups), _rows_of(x, groups))

    def run(x: Tensor, weight: Optional, bias: Optional, eps: float) -> Any:
        tensors = [t for t in (x, weight, bias) if t is not None]
        given = (weight is not None, bias is not None)
        return cpu.compute(_numpy_group, *tensors, groups=groups, given=given, eps=float(eps))

    return run


def _plan_backward(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Optional, needs: Needs) -> rows.Backward:
    check_float("group_norm_grad", x)
    check_same("group_norm_grad", "g", g, x)
    if mean.ndim != 2 or mean.shape != rstd.shape or mean.shape[:1] != x.shape[:1]:
        raise ShapeError(f"group_norm_grad: expected mean and rstd (N, groups), got {mean.shape} and {rstd.shape}.")
    _check_groups("group_norm_grad", x, mean.shape[1], weight, None)
    same_queue("group_norm_grad", g, x, mean, rstd, *([] if weight is None else [weight]))
    if not any(needs):
        return lambda *_: (None, None, None)
    if x.backend == "cl":
        return rows.plan_backward(g, x, mean, weight, _rows_of(x, mean.shape[1]), needs, x.shape[1:2])

    def run(g: Tensor, x: Tensor, mean: Optional, rstd: Tensor, weight: Optional) -> Any:
        tensors = [t for t in (g, x, mean, rstd, weight) if t is not None]
        found = cpu.compute(_numpy_group_grad, *tensors, weighted=weight is not None)
        return tuple(t if need else None for t, need in zip(found, needs))

    return run


def _rows_of(x: Tensor, groups: int) -> Rows:
    """A group of channels of one sample is a row."""
    n, c, span = sizes_of(x)
    per = c // groups
    return Rows(n * groups, per * span, groups, per, span)


def _check_groups(where: str, x: Tensor, groups: int, weight: Optional, bias: Optional) -> None:
    check_float(where, x)
    if x.ndim < 2:
        raise ShapeError(f"{where}: expected (N, C, ...), got shape {x.shape}.")
    if as_int(where, groups, "num_groups") < 1 or x.shape[1] % groups:
        raise ShapeError(f"{where}: expected a number of groups that divides {x.shape[1]} channels, got {groups}.")
    check_parameter(where, "weight", weight, x.shape[1:2])
    check_parameter(where, "bias", bias, x.shape[1:2])


# -- NumPy -------------------------------------------------------------------------------------------------------------


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
