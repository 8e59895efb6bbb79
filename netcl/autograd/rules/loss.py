"""Gradients of softmax and of losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netcl.autograd.op import register_op
from netcl.core.tensor import Tensor
from netcl.ops import cross_entropy, elementwise, softmax


def _cross_entropy_grad(
    g: Tensor, y: Any, logits: Tensor, target: Tensor, *, needs: Sequence[bool], aux: Any, **settings: Any
) -> list[Tensor | None]:
    dz = cross_entropy.cross_entropy_grad(g, logits, target, aux, **settings) if needs[0] else None
    return [dz, _probabilities_grad(g, logits, aux, **settings) if needs[1] else None]


def _probabilities_grad(
    g: Tensor, logits: Tensor, kept: Any, weight: Tensor | None = None, label_smoothing: float = 0.0,
    reduction: str = "mean", ignore_index: int = -100,
) -> Tensor:  # fmt: skip
    """Gradient for targets that are probabilities: upstream * (1 - e) * w * -log p."""
    up = elementwise.mul(g, kept.scale) if reduction != "none" else g.unsqueeze(1)
    scaled = elementwise.mul(up, label_smoothing - 1.0)
    if weight is not None:
        scaled = elementwise.mul(scaled, weight.reshape(-1, *(1,) * (logits.ndim - 2)))
    return elementwise.mul(softmax.log_softmax(logits, 1), scaled)


register_op("softmax", softmax.softmax, lambda g, y, x, axis=-1: softmax.softmax_grad(g, y, axis), saves=("y",))
register_op(
    "log_softmax", softmax.log_softmax, lambda g, y, x, axis=-1: softmax.log_softmax_grad(g, y, axis), saves=("y",)
)
register_op("cross_entropy", cross_entropy.cross_entropy, _cross_entropy_grad, saves=(0, 1), aux=True)
