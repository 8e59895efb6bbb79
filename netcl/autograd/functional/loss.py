"""Softmax and losses on nodes. Losses have shape (1,) unless reduction is "none"."""

from __future__ import annotations

from typing import Any

from netcl.autograd.node import Node
from netcl.autograd.op import apply_op
from netcl.core.tensor import Tensor

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "hinge_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "log_softmax",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
    "softmax",
]

Value = Any  # a Node or a Tensor


def _tensor(x: Any) -> Tensor | None:
    """The value of something that gets no gradient."""
    return x.value if isinstance(x, Node) else x


def softmax(x: Value, axis: int = -1) -> Node:
    """exp(x) / sum(exp(x)) along `axis`. A slice of -inf alone gives NaN; `attention` gives 0 where nothing is seen."""
    return apply_op("softmax", x, axis=axis)  # type: ignore[no-any-return]


def log_softmax(x: Value, axis: int = -1) -> Node:
    """log(softmax(x)) along `axis`, without forming the softmax."""
    return apply_op("log_softmax", x, axis=axis)  # type: ignore[no-any-return]


def cross_entropy(
    logits: Value,
    target: Value,
    weight: Value | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Node:
    """Mean of -log softmax(logits)[label] in nats.

    Shapes: logits (N, C, ...); labels (N, ...), or probabilities shaped like the logits. The mean is over the labels
    that are not `ignore_index`, weighted by the class weights if given, which get no gradient. A label that is not a
    class raises IndexOutOfRange, on OpenCL at the next synchronisation.
    """
    settings = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": reduction}
    return apply_op("cross_entropy", logits, target, weight=_tensor(weight), **settings)  # type: ignore[no-any-return]


def nll_loss(
    x: Value, target: Value, weight: Value | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> Node:
    """Mean of -x[label] for log-probabilities x (N, C, ...) and labels (N, ...); weights as in cross_entropy."""
    settings = {"weight": _tensor(weight), "ignore_index": ignore_index, "reduction": reduction}
    return apply_op("nll_loss", x, target, **settings)  # type: ignore[no-any-return]


def mse_loss(x: Value, target: Value, reduction: str = "mean") -> Node:
    """Mean of (x - target)^2."""
    return apply_op("mse_loss", x, target, reduction=reduction)  # type: ignore[no-any-return]


def l1_loss(x: Value, target: Value, reduction: str = "mean") -> Node:
    """Mean of |x - target|."""
    return apply_op("l1_loss", x, target, reduction=reduction)  # type: ignore[no-any-return]


def smooth_l1_loss(x: Value, target: Value, beta: float = 1.0, reduction: str = "mean") -> Node:
    """Mean of d^2 / (2 beta) where d = |x - target| < beta, else d - beta / 2."""
    return apply_op("smooth_l1_loss", x, target, beta=beta, reduction=reduction)  # type: ignore[no-any-return]


def huber_loss(x: Value, target: Value, delta: float = 1.0, reduction: str = "mean") -> Node:
    """Mean of d^2 / 2 where d = |x - target| < delta, else delta (d - delta / 2)."""
    return apply_op("huber_loss", x, target, delta=delta, reduction=reduction)  # type: ignore[no-any-return]


def binary_cross_entropy(p: Value, target: Value, reduction: str = "mean") -> Node:
    """Mean of -(t log p + (1 - t) log(1 - p)); logarithms are taken as -100 at least."""
    return apply_op("binary_cross_entropy", p, target, reduction=reduction)  # type: ignore[no-any-return]


def binary_cross_entropy_with_logits(
    x: Value, target: Value, pos_weight: Value | None = None, reduction: str = "mean"
) -> Node:
    """Binary cross entropy of sigmoid(x), without overflow; `pos_weight` multiplies the term of positive targets."""
    operands = (x, target) if pos_weight is None else (x, target, pos_weight)
    return apply_op("binary_cross_entropy_with_logits", *operands, reduction=reduction)  # type: ignore[no-any-return]


def kl_div(x: Value, target: Value, reduction: str = "mean", log_target: bool = False) -> Node:
    """Mean of t (log t - x) for log-probabilities x; "batchmean" divides the sum by the batch size instead."""
    return apply_op("kl_div", x, target, reduction=reduction, log_target=log_target)  # type: ignore[no-any-return]


def hinge_loss(x: Value, target: Value, reduction: str = "mean") -> Node:
    """Mean of max(0, 1 - t x) for targets -1 and 1."""
    return apply_op("hinge_loss", x, target, reduction=reduction)  # type: ignore[no-any-return]
