"""Batch norm over the channels (axis 1) of (N, C, ...), with gradients and an optional fused relu.

Sums run in float32 for half and float32, in double for double. Kernels: batch_norm_cpu.cl and batch_norm_gpu.cl.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from netcl.core import versions
from netcl.core.backend import cpu
from netcl.core.dtypes import DType, compute_dtype
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.tensor import Tensor, same_queue
from netcl.kernels.plans import remember
from netcl.ops.normalization import channels
from netcl.ops.normalization.problem import (
    Needs,
    Optional,
    check_float,
    check_parameter,
    check_same,
    layouts,
)

ACTIVATIONS = (None, "relu")


def batch_norm(
    x: Tensor, weight: Optional = None, bias: Optional = None, running_mean: Optional = None,
    running_var: Optional = None, *, training: bool = True, momentum: float = 0.1, eps: float = 1e-5,
    activation: str | None = None,
) -> tuple[Tensor, Optional, Optional]:  # fmt: skip
    """y = act((x - mean) * rstd * weight + bias) per channel (axis 1), rstd = 1 / sqrt(var + eps).

    Training: mean and the biased var of the batch; the running statistics, when given, move in place,
    running = (1 - momentum) running + momentum batch, the variance by the unbiased one. Returns (y, mean, rstd).
    Eval: the running statistics, one launch. Returns (y, None, None).
    Shapes: x (N, C, ...); weight, bias, running statistics, mean, rstd (C,). activation: None or "relu", fused.
    Raises: ShapeError for one value per channel in training (it has no variance) and for shapes that do not fit.
    Source: Ioffe and Szegedy 2015, arXiv:1502.03167.
    """
    statistics = [t for t in (running_mean, running_var) if t is not None]
    key = ("batch_norm", training, activation, *layouts(x.queue, x, weight, bias, running_mean, running_var))
    plan = remember(x.queue, key, lambda: _plan_forward(x, weight, bias, statistics, training, activation))
    if training and statistics:
        versions.wrote(*statistics, where="batch_norm")
    return plan(x, weight, bias, statistics, momentum, eps)


def batch_norm_grad(
    g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Optional = None, bias: Optional = None,
    needs: Needs = (True, True, True), *, training: bool = True, activation: str | None = None,
) -> tuple[Optional, Optional, Optional]:  # fmt: skip
    """(dx, dweight, dbias) of `batch_norm`, None where `needs` says so.

    With h = (x - mean) rstd, u = g (0 where relu gave 0), n = values per channel: dbias = sum u, dweight = sum u h,
    dx = weight rstd (u - dbias / n - h dweight / n); training=False: mean and rstd are constants, dx = weight rstd u.
    `bias` is read only with an activation, to find again where it was 0. dweight has weight's dtype, dbias the same.
    """
    needs = tuple(map(bool, needs))
    key = ("batch_norm_grad", needs, training, activation, *layouts(x.queue, g, x, mean, rstd, weight, bias))
    plan = remember(x.queue, key, lambda: _plan_backward(g, x, mean, rstd, weight, bias, needs, training, activation))
    return plan(g, x, mean, rstd, weight, bias)


# -- plans -------------------------------------------------------------------------------------------------------------


def _plan_forward(
    x: Tensor, weight: Optional, bias: Optional, statistics: list[Tensor], training: bool, activation: str | None
) -> channels.Forward:
    _check_forward(x, weight, bias, statistics, training, activation)
    if x.backend == "cl":
        plan = channels.plan_train if training else channels.plan_apply
        return plan(x, weight, bias, statistics, activation)
    return partial(_numpy_training if training else _numpy_eval, activation)


def _plan_backward(
    g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Optional, bias: Optional, needs: Needs, training: bool,
    activation: str | None,
) -> channels.Backward:  # fmt: skip
    _check_batch("batch_norm_grad", x, weight, bias, activation)
    check_same("batch_norm_grad", "g", g, x)
    for name, t in (("mean", mean), ("rstd", rstd)):
        check_parameter("batch_norm_grad", name, t, x.shape[1:2])
    same_queue("batch_norm_grad", g, x, mean, rstd, *[p for p in (weight, bias) if p is not None])
    if not any(needs):
        return lambda *_: (None, None, None)
    if x.backend == "cl":
        return channels.plan_backward(g, x, weight, bias, needs, training, activation)

    def run(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Optional, bias: Optional) -> Any:
        given = (weight is not None, bias is not None)
        tensors = [t for t in (g, x, mean, rstd, weight, bias) if t is not None]
        found = cpu.compute(_numpy_batch_grad, *tensors, given=given, training=training, relu=activation == "relu")
        return tuple(t if need else None for t, need in zip(found, needs))

    return run


def _check_forward(
    x: Tensor, weight: Optional, bias: Optional, statistics: list[Tensor], training: bool, activation: str | None
) -> None:
    compute = _check_batch("batch_norm", x, weight, bias, activation)
    if len(statistics) == 1 or (not training and not statistics):
        raise ShapeError(f"batch_norm: expected running_mean and running_var, got {len(statistics)} of the two.")
    for t in statistics:
        check_parameter("batch_norm", "running statistics", t, x.shape[1:2])
        if t.dtype != compute:
            raise DTypeError(f"batch_norm: expected {compute} running statistics for {x.dtype}, got {t.dtype}.")
    same_queue("batch_norm", x, *statistics, *[p for p in (weight, bias) if p is not None])
    if training and x.size <= x.shape[1]:
        raise ShapeError(
            f"batch_norm: expected more than one value per channel in training, got shape {x.shape}; "
            "use a larger batch or eval mode."
        )


def _check_batch(where: str, x: Tensor, weight: Optional, bias: Optional, activation: str | None) -> DType:
    compute = check_float(where, x)
    if x.ndim < 2:
        raise ShapeError(f"{where}: expected (N, C, ...), got shape {x.shape}.")
    check_parameter(where, "weight", weight, x.shape[1:2])
    check_parameter(where, "bias", bias, x.shape[1:2])
    if activation not in ACTIVATIONS:
        raise ValueError(f"{where}: expected an activation of {ACTIVATIONS}, got {activation!r}.")
    return compute


# -- batch norm on NumPy -----------------------------------------------------------------------------------------------


def per_channel(a: np.ndarray, ndim: int, dtype: DType) -> np.ndarray:
    """`a` (C,) shaped to broadcast over (N, C, ...)."""
    return a.astype(dtype, copy=False).reshape((1, -1) + (1,) * (ndim - 2))


def _numpy_training(
    activation: str | None, x: Tensor, weight: Optional, bias: Optional, statistics: list[Tensor], momentum: float,
    eps: float,
) -> tuple[Tensor, Optional, Optional]:  # fmt: skip
    tensors, attrs = _numpy_operands(activation, x, weight, bias, eps)
    y, mean, rstd, var = cpu.compute(_numpy_train, *tensors, **attrs)
    if statistics:
        cpu.update(_numpy_running, statistics, mean, var, momentum=float(momentum))
    return y, mean, rstd


def _numpy_eval(
    activation: str | None, x: Tensor, weight: Optional, bias: Optional, statistics: list[Tensor], _: float, eps: float
) -> tuple[Tensor, Optional, Optional]:
    tensors, attrs = _numpy_operands(activation, x, weight, bias, eps)
    return cpu.compute(_numpy_apply, *tensors, *statistics, **attrs), None, None


def _numpy_operands(
    activation: str | None, x: Tensor, weight: Optional, bias: Optional, eps: float
) -> tuple[list[Tensor], dict[str, Any]]:
    given = (weight is not None, bias is not None)
    attrs = {"given": given, "eps": float(eps), "relu": activation == "relu"}
    return [t for t in (x, weight, bias) if t is not None], attrs


def scale_and_shift(h: np.ndarray, parameters: list[np.ndarray], given: tuple[bool, bool], relu: bool) -> np.ndarray:
    """h * weight + bias per channel, those that are `given`, then relu."""
    parameters = list(parameters)
    if given[0]:
        h = h * per_channel(parameters.pop(0), h.ndim, h.dtype)
    if given[1]:
        h = h + per_channel(parameters.pop(0), h.ndim, h.dtype)
    return np.where(h < 0, 0, h) if relu else h


def _numpy_train(x: np.ndarray, *affine: np.ndarray, given: Any, eps: float, relu: bool) -> tuple[np.ndarray, ...]:
    compute = compute_dtype(x.dtype)
    axes = (0, *range(2, x.ndim))
    v = x.astype(compute, copy=False)
    n = compute.type(x.size // x.shape[1])
    mean = v.sum(axis=axes) / n
    v = v - per_channel(mean, x.ndim, compute)
    squares = (v * v).sum(axis=axes)
    rstd = 1 / np.sqrt(squares / n + compute.type(eps))
    y = scale_and_shift(v * per_channel(rstd, x.ndim, compute), list(affine), given, relu)
    return y.astype(x.dtype, copy=False), mean, rstd, squares / (n - 1)


def _numpy_running(
    old_mean: np.ndarray, old_var: np.ndarray, mean: np.ndarray, var: np.ndarray, momentum: float
) -> tuple[np.ndarray, np.ndarray]:
    m = old_mean.dtype.type(momentum)
    return old_mean * (1 - m) + mean * m, old_var * (1 - m) + var * m


def _numpy_apply(x: np.ndarray, *rest: np.ndarray, given: Any, eps: float, relu: bool) -> np.ndarray:
    compute = compute_dtype(x.dtype)
    *affine, mean, var = rest
    rstd = per_channel(1 / np.sqrt(var + compute.type(eps)), x.ndim, compute)
    h = (x.astype(compute, copy=False) - per_channel(mean, x.ndim, compute)) * rstd
    return scale_and_shift(h, affine, given, relu).astype(x.dtype, copy=False)


def _numpy_batch_grad(
    g: np.ndarray, x: np.ndarray, mean: np.ndarray, rstd: np.ndarray, *affine: np.ndarray, given: Any, training: bool,
    relu: bool,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    compute, ndim = compute_dtype(x.dtype), x.ndim
    axes = (0, *range(2, ndim))
    k = per_channel(rstd, ndim, compute)
    h = (x.astype(compute, copy=False) - per_channel(mean, ndim, compute)) * k
    u = g.astype(compute, copy=False)
    if relu:
        v = scale_and_shift(h, list(affine), given, False)
        u = np.where(v > 0, u, np.where(v <= 0, 0, v)).astype(compute, copy=False)
    db, dw = u.sum(axis=axes), (u * h).sum(axis=axes)
    stored = affine[0].dtype if given[0] else compute
    if training:
        n = compute.type(x.size // max(x.shape[1], 1))
        u = u - per_channel(db / n, ndim, compute) - h * per_channel(dw / n, ndim, compute)
    k = k * per_channel(affine[0], ndim, compute) if given[0] else k
    return (u * k).astype(x.dtype), dw.astype(stored), db.astype(stored)
