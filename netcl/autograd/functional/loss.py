"""Losses on nodes. Written by tools/generate_ops.py from the records of ops; do not edit."""

from __future__ import annotations

from netcl.autograd.node import Node, Operand, Value
from netcl.autograd.op import apply_one

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "hinge_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
]


def cross_entropy(
    logits: Value,
    target: Value,
    weight: Value | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Node:
    """Mean of -log softmax(logits)[label] in nats.

    Shapes: logits (N, C, ...) float; labels (N, ...), int32 or int64 in [0, C), or probabilities shaped like the
    logits. The mean is over the labels that are not `ignore_index`, weighted by the class weights (C,) if given, which
    get no gradient. Returns float32 (float64 for float64). A label that is not a class raises IndexOutOfRange, on
    OpenCL at the next synchronisation. Source of label smoothing: Szegedy et al. 2016, arXiv:1512.00567.
    """
    return apply_one(
        "cross_entropy",
        logits,
        target,
        weight=weight.value if isinstance(weight, Node) else weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )


def nll_loss(
    x: Value, target: Value, weight: Value | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> Node:
    """Mean of -w_y x[y] over the labels y that are not `ignore_index`, over their weights; ops add what backward needs.

    Shapes: x (N, C, ...) log-probabilities; target (N, ...) int32 or int64 in [0, C); weight (C,).
    Raises what cross_entropy raises.
    """
    return apply_one(
        "nll_loss",
        x,
        target,
        weight=weight.value if isinstance(weight, Node) else weight,
        ignore_index=ignore_index,
        reduction=reduction,
    )


def mse_loss(x: Value, target: Value, reduction: str = "mean") -> Node:
    """Mean of (x - target)^2."""
    return apply_one("mse_loss", x, target, reduction=reduction)


def l1_loss(x: Value, target: Value, reduction: str = "mean") -> Node:
    """Mean of |x - target|; its gradient is 0 where they are equal."""
    return apply_one("l1_loss", x, target, reduction=reduction)


def smooth_l1_loss(x: Value, target: Value, beta: float = 1.0, reduction: str = "mean") -> Node:
    """Mean of d^2 / (2 beta) where d = |x - target| < beta, else d - beta / 2. arXiv:1504.08083."""
    return apply_one("smooth_l1_loss", x, target, beta=beta, reduction=reduction)


def huber_loss(x: Value, target: Value, delta: float = 1.0, reduction: str = "mean") -> Node:
    """Mean of d^2 / 2 where d = |x - target| < delta, else delta (d - delta / 2). Source: Huber 1964."""
    return apply_one("huber_loss", x, target, delta=delta, reduction=reduction)


def binary_cross_entropy(p: Value, target: Value, reduction: str = "mean") -> Node:
    """Mean of -(t log p + (1 - t) log(1 - p)) for probabilities p; logarithms are taken as -100 at least."""
    return apply_one("binary_cross_entropy", p, target, reduction=reduction)


def binary_cross_entropy_with_logits(
    x: Value, target: Value, pos_weight: Operand | None = None, reduction: str = "mean"
) -> Node:
    """binary_cross_entropy(sigmoid(x), target) without overflow; `pos_weight` multiplies the positive targets' term.

    loss = (1 - t) x + (1 + (w - 1) t) softplus(-x)
    """
    operands = (x, target) if pos_weight is None else (x, target, pos_weight)
    return apply_one("binary_cross_entropy_with_logits", *operands, reduction=reduction)


def kl_div(x: Value, target: Value, reduction: str = "mean", log_target: bool = False) -> Node:
    """Mean of t (log t - x) for log-probabilities x; terms of probability 0 are 0.

    "batchmean" divides the sum by the batch size instead.
    With `log_target` the target holds log-probabilities too.
    """
    return apply_one("kl_div", x, target, reduction=reduction, log_target=log_target)


def hinge_loss(x: Value, target: Value, reduction: str = "mean") -> Node:
    """Mean of max(0, 1 - t x) for targets -1 and 1."""
    return apply_one("hinge_loss", x, target, reduction=reduction)
