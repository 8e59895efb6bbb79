"""Batch norm over the channels (axis 1) of (N, C, ...), with gradients and an optional fused relu.

Sums run in float32 for half and float32, in double for double. Kernels: batch_norm_cpu.cl and batch_norm_gpu.cl.
"""

from __future__ import annotations

import numpy as np

from netcl.core import versions
from netcl.core.backend import cpu
from netcl.core.dtypes import DType
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.tensor import Tensor
from netcl.kernels import route
from netcl.kernels.plans import remember
from netcl.ops.normalization import channels, host
from netcl.ops.normalization.problem import (
    Needs,
    Optional,
    check_affine,
    check_float,
    check_parameter,
    check_same,
    layouts,
    sizes_of,
)

ACTIVATIONS = (None, "relu")
Operands = tuple[Tensor, Tensor, Tensor, Tensor, Optional, Optional]  # g, x, mean, rstd, weight, bias


def batch_norm(
    x: Tensor,
    weight: Optional = None,
    bias: Optional = None,
    running_mean: Optional = None,
    running_var: Optional = None,
    *,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    activation: str | None = None,
) -> tuple[Tensor, Optional, Optional]:
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
    g: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Optional = None,
    bias: Optional = None,
    needs: Needs = (True, True, True),
    *,
    training: bool = True,
    activation: str | None = None,
) -> tuple[Optional, Optional, Optional]:
    """(dx, dweight, dbias) of `batch_norm`, None where `needs` says so.

    With h = (x - mean) rstd, u = g (0 where relu gave 0), n = values per channel: dbias = sum u, dweight = sum u h,
    dx = weight rstd (u - dbias / n - h dweight / n); training=False: mean and rstd are constants, dx = weight rstd u.
    `bias` is read only with an activation, to find again where it was 0. dweight has weight's dtype, dbias the same.
    """
    needs = tuple(map(bool, needs))
    tensors = (g, x, mean, rstd, weight, bias)
    key = ("batch_norm_grad", needs, training, activation, *layouts(x.queue, *tensors))
    plan = remember(x.queue, key, lambda: _plan_backward(tensors, needs, training, activation))
    return plan(*tensors)


# -- plans -------------------------------------------------------------------------------------------------------------


def _plan_forward(
    x: Tensor, weight: Optional, bias: Optional, statistics: list[Tensor], training: bool, activation: str | None
) -> channels.Forward:
    _check_forward(x, weight, bias, statistics, training, activation)
    if x.backend == "cl":
        plan = channels.plan_train if training else channels.plan_apply
        return plan(x, weight, bias, statistics, activation)
    if route.special:
        route.sole(channels.BATCH_NORM)
    return (_numpy_train if training else _numpy_apply)(_view(x), activation == "relu")


def _plan_backward(tensors: Operands, needs: Needs, training: bool, activation: str | None) -> channels.Backward:
    g, x, mean, rstd, weight, bias = tensors
    _check_batch("batch_norm_grad", activation, weight, bias, x, g, mean, rstd)
    check_same("batch_norm_grad", "g", g, x)
    for name, t in (("mean", mean), ("rstd", rstd)):
        check_parameter("batch_norm_grad", name, t, x.shape[1:2])
    if not any(needs):
        return lambda *_: (None, None, None)
    if x.backend == "cl":
        return channels.plan_backward(g, x, weight, bias, needs, training, activation)
    return host.plan_backward(_view(x), needs, relu=activation == "relu", fixed=not training)


def _view(x: Tensor) -> host.View:
    n, c, span = sizes_of(x)
    return host.view_of((n, c, span), (0, 2), (1, c, 1), (c,))


def _numpy_train(view: host.View, relu: bool) -> channels.Forward:
    batch = host.plan_forward(view, relu=relu)

    def run(
        x: Tensor, weight: Optional, bias: Optional, statistics: list[Tensor], momentum: float, eps: float
    ) -> tuple[Tensor, Optional, Optional]:
        y, mean, rstd, var = batch(x, weight, bias, eps)
        if statistics:
            cpu.update(_moved, statistics, mean, var, momentum=float(momentum))
        return y, mean, rstd

    return run


def _moved(mean: np.ndarray, var: np.ndarray, *batch: np.ndarray, momentum: float) -> tuple[np.ndarray, ...]:
    """The running statistics with `momentum` of the batch's."""
    m = mean.dtype.type(momentum)
    return tuple(old * (1 - m) + new * m for old, new in zip((mean, var), batch))


def _numpy_apply(view: host.View, relu: bool) -> channels.Forward:
    def run(
        x: Tensor, weight: Optional, bias: Optional, statistics: list[Tensor], _: float, eps: float
    ) -> tuple[Tensor, Optional, Optional]:
        given, tensors = (weight is not None, bias is not None), [t for t in (x, weight, bias) if t is not None]
        y = cpu.compute(host.apply, *tensors, *statistics, view=view, given=given, eps=float(eps), relu=relu)
        return y, None, None

    return run


def _check_forward(
    x: Tensor, weight: Optional, bias: Optional, statistics: list[Tensor], training: bool, activation: str | None
) -> None:
    compute = _check_batch("batch_norm", activation, weight, bias, x, *statistics)
    if len(statistics) == 1 or (not training and not statistics):
        raise ShapeError(f"batch_norm: expected running_mean and running_var, got {len(statistics)} of the two.")
    for t in statistics:
        check_parameter("batch_norm", "running statistics", t, x.shape[1:2])
        if t.dtype != compute:
            raise DTypeError(f"batch_norm: expected {compute} running statistics for {x.dtype}, got {t.dtype}.")
    if training and x.size <= x.shape[1]:
        raise ShapeError(
            f"batch_norm: expected more than one value per channel in training, got shape {x.shape}; "
            "use a larger batch or eval mode."
        )


def _check_batch(
    where: str, activation: str | None, weight: Optional, bias: Optional, x: Tensor, *others: Tensor
) -> DType:
    compute = check_float(where, x)
    if x.ndim < 2:
        raise ShapeError(f"{where}: expected (N, C, ...), got shape {x.shape}.")
    check_affine(where, x.shape[1:2], weight, bias, x, *others)
    if activation not in ACTIVATIONS:
        raise ValueError(f"{where}: expected an activation of {ACTIVATIONS}, got {activation!r}.")
    return compute
