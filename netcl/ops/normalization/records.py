"""Records of normalisation: x and two numbers per row or channel are all that is kept for the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netcl.core import recompute
from netcl.core.tensor import Tensor
from netcl.ops import elementwise
from netcl.ops.normalization import batch_norm, group_norm, norm
from netcl.ops.normalization.problem import Optional
from netcl.ops.record import FLOATS, Op, alike, register

Gradients = Sequence[Tensor | None]
Statistics = tuple[Tensor, Tensor]  # mean and 1 / std


def _padded(needs: Sequence[bool], n: int) -> tuple[bool, ...]:
    return (*needs, *(False,) * (n - len(needs)))


def _layer_norm(
    x: Tensor, weight: Optional = None, bias: Optional = None, axes: Any = -1, eps: float = 1e-5
) -> tuple[Tensor, Statistics]:
    """(x - mean) / sqrt(var + eps) * weight + bias over the trailing `axes`, var biased; sums in float32 or better.

    Shapes: x (R..., n...); weight, bias (n...). Raises: ShapeError when `axes` are not the last ones or weight, bias do
    not fit; DTypeError for integers. Source: Ba et al. 2016, arXiv:1607.06450.
    """
    y, mean, rstd = norm.layer_norm(x, weight, bias, axes, eps)
    return y, (mean, rstd)


def _layer_norm_grad(
    g: Tensor,
    y: Any,
    x: Tensor,
    weight: Optional = None,
    bias: Any = None,
    *,
    needs: Sequence[bool],
    aux: Statistics,
    **_: Any,
) -> Gradients:
    mean, rstd = aux
    return norm.layer_norm_grad(g, x, mean, rstd, weight, _padded(needs, 3))[: len(needs)]


def _rms_norm(x: Tensor, weight: Optional = None, axes: Any = -1, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """x / sqrt(mean(x^2) + eps) * weight over the trailing `axes`; sums in float32 or better.

    Shapes: x (R..., n...); weight (n...). Raises: ShapeError when `axes` are not the last ones or weight does not fit;
    DTypeError for integers. Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    return norm.rms_norm(x, weight, axes, eps)


def _rms_norm_grad(
    g: Tensor, y: Any, x: Tensor, weight: Optional = None, *, needs: Sequence[bool], aux: Tensor, **_: Any
) -> Gradients:
    return norm.rms_norm_grad(g, x, aux, weight, _padded(needs, 2))[: len(needs)]


def _group_norm(
    x: Tensor, num_groups: int, weight: Optional = None, bias: Optional = None, eps: float = 1e-5
) -> tuple[Tensor, Statistics]:
    """Normalise each sample over groups of C / num_groups channels: x (N, C, ...), weight and bias (C,).

    Raises: ShapeError when num_groups does not divide C. Source: Wu and He 2018, arXiv:1803.08494.
    """
    y, mean, rstd = group_norm.group_norm(x, num_groups, weight, bias, eps)
    return y, (mean, rstd)


def _grouped(
    x: Tensor, weight: Optional = None, bias: Optional = None, *, num_groups: int, eps: float = 1e-5
) -> tuple[Tensor, Statistics]:
    return _group_norm(x, num_groups, weight, bias, eps)


def _group_norm_grad(
    g: Tensor,
    y: Any,
    x: Tensor,
    weight: Optional = None,
    bias: Any = None,
    *,
    needs: Sequence[bool],
    aux: Statistics,
    **_: Any,
) -> Gradients:
    mean, rstd = aux
    return group_norm.group_norm_grad(g, x, mean, rstd, weight, _padded(needs, 3))[: len(needs)]


def _batch_norm(
    x: Tensor,
    weight: Optional = None,
    bias: Optional = None,
    running_mean: Optional = None,
    running_var: Optional = None,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    activation: str | None = None,
) -> tuple[Tensor, Any]:
    """Normalise each channel (axis 1) over the batch, or with training=False by the running statistics.

    y = act((x - mean) / sqrt(var + eps) * weight + bias)

    In training the running statistics, when given, move in place: running = (1 - momentum) running + momentum batch;
    the variance kept is the unbiased one. activation="relu" is applied in the same kernel. In evaluation backward works
    with the running statistics of this moment.
    Shapes: x (N, C, ...); weight, bias, running statistics (C,). Raises: ShapeError for one value per channel in
    training (it has no variance). Source: Ioffe and Szegedy 2015, arXiv:1502.03167.
    """
    if training and recompute.running():  # the statistics moved when it ran first
        running_mean = running_var = None
    y, mean, rstd = batch_norm.batch_norm(
        x, weight, bias, running_mean, running_var, training=training, momentum=momentum, eps=eps, activation=activation
    )
    return y, (mean, rstd) if training else (running_mean, running_var)


def _batch_norm_grad(
    g: Tensor,
    y: Any,
    x: Tensor,
    weight: Optional = None,
    bias: Optional = None,
    *,
    needs: Sequence[bool],
    aux: Statistics,
    training: bool = True,
    eps: float = 1e-5,
    activation: str | None = None,
    **_: Any,
) -> Gradients:
    mean, rstd = aux
    if not training:
        rstd = elementwise.rsqrt(elementwise.add(rstd, eps))
    found = batch_norm.batch_norm_grad(
        g, x, mean, rstd, weight, bias, _padded(needs, 3), training=training, activation=activation
    )
    return found[: len(needs)]


_AFFINE: dict[int | str, tuple[int, ...]] = {0: (0, 1), 1: (0,)}  # the weight is read by the gradient of x alone
_STATISTICS: dict[int | str, tuple[int, ...]] = {"running_mean": (), "running_var": ()}  # aux holds what is read

for _op in (
    Op("batch_norm", _batch_norm, _batch_norm_grad, (0, 1, 2), True, _STATISTICS, alike, dtypes=FLOATS,
       constants=("running_mean", "running_var"), onnx="BatchNormalization"),
    Op("group_norm", _grouped, _group_norm_grad, (0, 1), True, _AFFINE, alike, dtypes=FLOATS, function=_group_norm,
       onnx="GroupNormalization"),
    Op("layer_norm", _layer_norm, _layer_norm_grad, (0, 1), True, _AFFINE, alike, dtypes=FLOATS,
       onnx="LayerNormalization"),
    Op("rms_norm", _rms_norm, _rms_norm_grad, (0, 1), True, _AFFINE, alike, dtypes=FLOATS, onnx="RMSNormalization"),
):  # fmt: skip
    register(_op)
