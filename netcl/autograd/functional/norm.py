"""Normalisation and softmax on nodes. Written by tools/generate_ops.py from the records of ops; do not edit."""

from __future__ import annotations

from typing import Any

from netcl.autograd.node import Node, Value
from netcl.autograd.op import apply_one
from netcl.core.keywords import axis_of

__all__ = ["batch_norm", "group_norm", "layer_norm", "log_softmax", "rms_norm", "softmax"]


def softmax(x: Value, axis: int = -1, *, dim: int | None = None) -> Node:
    """exp(x) / sum(exp(x)) along `axis`, with the maximum taken out first so that nothing overflows.

    Shapes: any; integers become float32. A slice of -inf alone gives NaN, as 0 / 0 does, also in log_softmax; in
    `attention` a query that sees no key gets 0.
    """
    if dim is not None:
        axis = axis_of("softmax", axis, -1, dim)
    return apply_one("softmax", x, axis=axis)


def log_softmax(x: Value, axis: int = -1, *, dim: int | None = None) -> Node:
    """x - log(sum(exp(x))) along `axis`, without forming the softmax."""
    if dim is not None:
        axis = axis_of("log_softmax", axis, -1, dim)
    return apply_one("log_softmax", x, axis=axis)


def batch_norm(
    x: Value,
    weight: Value | None = None,
    bias: Value | None = None,
    running_mean: Value | None = None,
    running_var: Value | None = None,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-05,
    activation: str | None = None,
) -> Node:
    """Normalise each channel (axis 1) over the batch, or with training=False by the running statistics.

    y = act((x - mean) / sqrt(var + eps) * weight + bias)

    In training the running statistics, when given, move in place: running = (1 - momentum) running + momentum batch;
    the variance kept is the unbiased one. activation="relu" is applied in the same kernel. In evaluation backward works
    with the running statistics of this moment.
    Shapes: x (N, C, ...); weight, bias, running statistics (C,). Raises: ShapeError for one value per channel in
    training (it has no variance). Source: Ioffe and Szegedy 2015, arXiv:1502.03167.
    """
    operands = (x,) if weight is None and bias is None else (x, weight) if bias is None else (x, weight, bias)
    return apply_one(
        "batch_norm",
        *operands,
        running_mean=running_mean.value if isinstance(running_mean, Node) else running_mean,
        running_var=running_var.value if isinstance(running_var, Node) else running_var,
        training=training,
        momentum=momentum,
        eps=eps,
        activation=activation,
    )


def group_norm(
    x: Value, num_groups: int, weight: Value | None = None, bias: Value | None = None, eps: float = 1e-05
) -> Node:
    """Normalise each sample over groups of C / num_groups channels: x (N, C, ...), weight and bias (C,).

    Raises: ShapeError when num_groups does not divide C. Source: Wu and He 2018, arXiv:1803.08494.
    """
    operands = (x,) if weight is None and bias is None else (x, weight) if bias is None else (x, weight, bias)
    return apply_one("group_norm", *operands, num_groups=num_groups, eps=eps)


def layer_norm(
    x: Value, weight: Value | None = None, bias: Value | None = None, axes: Any = -1, eps: float = 1e-05
) -> Node:
    """(x - mean) / sqrt(var + eps) * weight + bias over the trailing `axes`, var biased; sums in float32 or better.

    Shapes: x (R..., n...); weight, bias (n...). Raises: ShapeError when `axes` are not the last ones or weight, bias do
    not fit; DTypeError for integers. Source: Ba et al. 2016, arXiv:1607.06450.
    """
    operands = (x,) if weight is None and bias is None else (x, weight) if bias is None else (x, weight, bias)
    return apply_one("layer_norm", *operands, axes=axes, eps=eps)


def rms_norm(x: Value, weight: Value | None = None, axes: Any = -1, eps: float = 1e-06) -> Node:
    """x / sqrt(mean(x^2) + eps) * weight over the trailing `axes`; sums in float32 or better.

    Shapes: x (R..., n...); weight (n...). Raises: ShapeError when `axes` are not the last ones or weight does not fit;
    DTypeError for integers. Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    operands = (x,) if weight is None else (x, weight)
    return apply_one("rms_norm", *operands, axes=axes, eps=eps)
