"""Normalisation on nodes."""

from __future__ import annotations

from typing import Any

from netcl.autograd.node import Node
from netcl.autograd.op import apply_op

__all__ = ["batch_norm", "group_norm", "layer_norm", "rms_norm"]

Value = Any  # a Node or a Tensor


def _given(*parameters: Any) -> tuple[Any, ...]:
    """Weight and bias, up to the last that is given: a bias keeps its place without a weight."""
    count = max((i for i, p in enumerate(parameters, 1) if p is not None), default=0)
    return parameters[:count]


def layer_norm(
    x: Value, weight: Value | None = None, bias: Value | None = None, axes: Any = -1, eps: float = 1e-5
) -> Node:
    """(x - mean) / sqrt(var + eps) * weight + bias over the trailing `axes`, var biased; sums in float32 or better."""
    return apply_op("layer_norm", x, *_given(weight, bias), axes=axes, eps=eps)  # type: ignore[no-any-return]


def rms_norm(x: Value, weight: Value | None = None, axes: Any = -1, eps: float = 1e-6) -> Node:
    """x / sqrt(mean(x^2) + eps) * weight over the trailing `axes`; sums in float32 or better."""
    return apply_op("rms_norm", x, *_given(weight), axes=axes, eps=eps)  # type: ignore[no-any-return]


def group_norm(
    x: Value, num_groups: int, weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5
) -> Node:
    """Normalise each sample over groups of C / num_groups channels: x (N, C, ...), weight and bias (C,)."""
    return apply_op("group_norm", x, *_given(weight, bias), num_groups=num_groups, eps=eps)  # type: ignore[no-any-return]


def batch_norm(
    x: Value,
    weight: Value | None = None,
    bias: Value | None = None,
    running_mean: Value | None = None,
    running_var: Value | None = None,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    activation: str | None = None,
) -> Node:
    """Normalise each channel (axis 1) over the batch, or with training=False by the running statistics.

    In training the running statistics, when given, move in place; the variance kept is the unbiased one.
    activation="relu" is applied in the same kernel.
    """
    found = {"running_mean": running_mean, "running_var": running_var}
    statistics = {name: x.value if isinstance(x, Node) else x for name, x in found.items()}
    settings = {"training": training, "momentum": momentum, "eps": eps, "activation": activation}
    return apply_op("batch_norm", x, *_given(weight, bias), **statistics, **settings)  # type: ignore[no-any-return]
