"""Stochastic gradient descent, with momentum and Nesterov's look-ahead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from netcl.core.arguments import flag, number
from netcl.optim.optimizer import Group, Optimizer


class SGD(Optimizer):
    """d = g + weight_decay * p; without momentum p -= lr * d, else

    b = momentum * b + (1 - dampening) * d (b = d at the first step), p -= lr * b, with Nesterov lr * (d + momentum *
    b).

    Source: Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning".
    """

    rows = ("sgd", "momentum", "nesterov")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
    ) -> None:
        settings = {"momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, lr=lr, **settings, nesterov=nesterov, maximize=maximize)

    def check(self, group: Group) -> None:
        """Momentum and dampening at least 0; Nesterov needs momentum and no dampening."""
        super().check(group)
        where = type(self).__name__
        for name in ("momentum", "dampening"):
            group[name] = number(where, name, group[name], 0)
        group["nesterov"] = flag(where, "nesterov", group["nesterov"])
        if group["nesterov"] and not (group["momentum"] and not group["dampening"]):
            raise ValueError(
                f"{where}: expected momentum above 0 and dampening 0 with nesterov=True, got {group['momentum']} and "
                f"{group['dampening']}."
            )

    def row(self, group: Group) -> str:
        """sgd, momentum or nesterov."""
        return ("nesterov" if group["nesterov"] else "momentum") if group["momentum"] else "sgd"

    def scalars(self, group: Group, step: int) -> dict[str, float]:
        """The first step takes the whole gradient whatever the dampening."""
        values = {"lr": group["lr"], "decay": group["weight_decay"]}
        if group["momentum"]:
            values |= {"mu": group["momentum"], "keep": 1.0 if step == 1 else 1.0 - group["dampening"]}
        return values


class Momentum(SGD):
    """SGD with momentum 0.9 unless another is given."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, momentum, 0.0, weight_decay, nesterov, maximize)
