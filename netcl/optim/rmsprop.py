"""RMSprop: gradients divided by a running root mean square."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from netcl.optim.optimizer import Group, Optimizer, require


class RMSprop(Optimizer):
    """s = alpha s + (1 - alpha) g^2, p -= lr * g / (sqrt(s) + eps), with g = gradient + weight_decay * p.

    `centered` subtracts the squared running mean of g from s; `momentum` accumulates the steps: b = momentum b + step.

    Source: Hinton, Neural Networks for Machine Learning, lecture 6e; Graves 2013, arXiv:1308.0850 (centered).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum, centered=centered
        )

    def check(self, group: Group) -> None:
        """alpha in [0, 1), the rest at least 0."""
        super().check(group)
        require(self, "alpha", group["alpha"], 0 <= group["alpha"] < 1, "in [0, 1)")
        for name in ("eps", "momentum"):
            require(self, name, group[name], group[name] >= 0, "at least 0")

    def row(self, group: Group) -> str:
        """rmsprop, with _centered and _momentum."""
        return "rmsprop" + "_centered" * bool(group["centered"]) + "_momentum" * bool(group["momentum"])

    def scalars(self, group: Group, step: int) -> dict[str, float]:
        """None of them changes with the step."""
        values = {"lr": group["lr"], "alpha": group["alpha"], "eps": group["eps"], "decay": group["weight_decay"]}
        return {**values, "mu": group["momentum"]} if group["momentum"] else values


RMSProp = RMSprop
