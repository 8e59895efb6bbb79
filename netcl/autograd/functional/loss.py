"""Softmax and losses on nodes. Losses have shape (1,) unless reduction is "none"."""

from __future__ import annotations

from typing import Any

from netcl.autograd.node import Node
from netcl.autograd.op import apply_op
from netcl.core.tensor import Tensor

__all__ = ["cross_entropy", "log_softmax", "softmax"]

Value = Any  # a Node or a Tensor


def _tensor(x: Any) -> Tensor | None:
    """The value of something that gets no gradient."""
    return x.value if isinstance(x, Node) else x


def softmax(x: Value, axis: int = -1) -> Node:
    """exp(x) / sum(exp(x)) along `axis`."""
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
