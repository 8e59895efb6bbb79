"""RMSprop: gradients divided by a running root mean square."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from netcl.core.arguments import flag, number
from netcl.optim.optimizer import Group, Optimizer


class RMSprop(Optimizer):
    """s = alpha s + (1 - alpha) g^2, p -= lr * g / (sqrt(s) + eps), with g = gradient + weight_decay * p.

    `centered` subtracts the squared running mean of g from s; `momentum` accumulates the steps: b = momentum b + step.

    Source: Hinton, Neural Networks for Machine Learning, lecture 6e; Graves 2013, arXiv:1308.0850 (centered).
    """

    rows = ("rmsprop", "rmsprop_momentum", "rmsprop_centered", "rmsprop_centered_momentum")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        maximize: bool = False,
    ) -> None:
        settings = {"alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(params, lr=lr, **settings, centered=centered, maximize=maximize)

    def check(self, group: Group) -> None:
        """alpha in [0, 1), the rest at least 0."""
        super().check(group)
        where = type(self).__name__
        group["alpha"] = number(where, "alpha", group["alpha"], 0, 1)
        for name in ("eps", "momentum"):
            group[name] = number(where, name, group[name], 0)
        group["centered"] = flag(where, "centered", group["centered"])

    def row(self, group: Group) -> str:
        """rmsprop, with _centered and _momentum."""
        return "rmsprop" + "_centered" * bool(group["centered"]) + "_momentum" * bool(group["momentum"])

    def scalars(self, group: Group, step: int) -> dict[str, float]:
        """None of them changes with the step."""
        values = {"lr": group["lr"], "alpha": group["alpha"], "eps": group["eps"], "decay": group["weight_decay"]}
        return {**values, "mu": group["momentum"]} if group["momentum"] else values


RMSProp = RMSprop
