"""Gradients of normalisation: x and two numbers per row or channel are all that is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netcl.autograd.op import register_op
from netcl.core.tensor import Tensor
from netcl.ops import elementwise
from netcl.ops.normalization import batch_norm, group_norm, norm

Gradients = Sequence[Tensor | None]
Optional = Tensor | None
Statistics = tuple[Tensor, Tensor]  # mean and 1 / std


def _padded(needs: Sequence[bool], n: int) -> tuple[bool, ...]:
    return (*needs, *(False,) * (n - len(needs)))


def _layer_norm(
    x: Tensor, weight: Optional = None, bias: Optional = None, *, axes: Any = -1, eps: float = 1e-5
) -> tuple[Tensor, Statistics]:
    y, mean, rstd = norm.layer_norm(x, weight, bias, axes, eps)
    return y, (mean, rstd)


def _layer_norm_grad(
    g: Tensor, y: Any, x: Tensor, weight: Optional = None, bias: Any = None, *, needs: Sequence[bool], aux: Statistics,
    axes: Any = -1, eps: float = 1e-5,
) -> Gradients:  # fmt: skip
    mean, rstd = aux
    return norm.layer_norm_grad(g, x, mean, rstd, weight, _padded(needs, 3))[: len(needs)]


def _rms_norm(x: Tensor, weight: Optional = None, *, axes: Any = -1, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    return norm.rms_norm(x, weight, axes, eps)


def _rms_norm_grad(
    g: Tensor, y: Any, x: Tensor, weight: Optional = None, *, needs: Sequence[bool], aux: Tensor, axes: Any = -1,
    eps: float = 1e-6,
) -> Gradients:  # fmt: skip
    return norm.rms_norm_grad(g, x, aux, weight, _padded(needs, 2))[: len(needs)]


def _group_norm(
    x: Tensor, weight: Optional = None, bias: Optional = None, *, num_groups: int, eps: float = 1e-5
) -> tuple[Tensor, Statistics]:
    y, mean, rstd = group_norm.group_norm(x, num_groups, weight, bias, eps)
    return y, (mean, rstd)


def _group_norm_grad(
    g: Tensor, y: Any, x: Tensor, weight: Optional = None, bias: Any = None, *, needs: Sequence[bool], aux: Statistics,
    num_groups: int, eps: float = 1e-5,
) -> Gradients:  # fmt: skip
    mean, rstd = aux
    return group_norm.group_norm_grad(g, x, mean, rstd, weight, _padded(needs, 3))[: len(needs)]


def _batch_norm(
    x: Tensor, weight: Optional = None, bias: Optional = None, *, running_mean: Optional = None,
    running_var: Optional = None, training: bool = True, momentum: float = 0.1, eps: float = 1e-5,
    activation: str | None = None,
) -> tuple[Tensor, Any]:  # fmt: skip
    """In evaluation backward works with the running statistics of this moment."""
    y, mean, rstd = batch_norm.batch_norm(
        x, weight, bias, running_mean, running_var, training=training, momentum=momentum, eps=eps, activation=activation
    )
    return y, (mean, rstd) if training else (running_mean, running_var)


def _batch_norm_grad(
    g: Tensor, y: Any, x: Tensor, weight: Optional = None, bias: Optional = None, *, needs: Sequence[bool],
    aux: Statistics, training: bool = True, eps: float = 1e-5, activation: str | None = None, **rest: Any,
) -> Gradients:  # fmt: skip
    mean, rstd = aux
    if not training:
        rstd = elementwise.rsqrt(elementwise.add(rstd, eps))
    found = batch_norm.batch_norm_grad(
        g, x, mean, rstd, weight, bias, _padded(needs, 3), training=training, activation=activation
    )
    return found[: len(needs)]


_AFFINE: dict[int | str, tuple[int, ...]] = {0: (0, 1), 1: (0,)}  # the weight is read by the gradient of x alone
_STATISTICS: dict[int | str, tuple[int, ...]] = {"running_mean": (), "running_var": ()}  # aux holds what is read

register_op("batch_norm", _batch_norm, _batch_norm_grad, saves=(0, 1, 2), aux=True, reads=_STATISTICS)
register_op("group_norm", _group_norm, _group_norm_grad, saves=(0, 1), aux=True, reads=_AFFINE)
register_op("layer_norm", _layer_norm, _layer_norm_grad, saves=(0, 1), aux=True, reads=_AFFINE)
register_op("rms_norm", _rms_norm, _rms_norm_grad, saves=(0, 1), aux=True, reads=_AFFINE)
