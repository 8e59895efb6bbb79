"""Adagrad and Adadelta: gradients divided by the root of their squares' sum, or of a running mean of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from netcl.core.arguments import number
from netcl.optim.optimizer import Group, Optimizer


class Adagrad(Optimizer):
    """s += g^2, p -= lr / (1 + (step - 1) lr_decay) * g / (sqrt(s) + eps), with g = gradient + weight_decay * p.

    s starts at `initial_accumulator_value`.

    Source: Duchi, Hazan and Singer 2011, "Adaptive subgradient methods".
    """

    rows = ("adagrad",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        maximize: bool = False,
    ) -> None:
        settings = {"lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps}
        start = {"initial_accumulator_value": initial_accumulator_value}
        super().__init__(params, lr=lr, **settings, **start, maximize=maximize)

    def check(self, group: Group) -> None:
        """All numbers at least 0."""
        super().check(group)
        for name in ("lr_decay", "initial_accumulator_value", "eps"):
            group[name] = number(type(self).__name__, name, group[name], 0)

    def row(self, group: Group) -> str:
        """adagrad."""
        return "adagrad"

    def scalars(self, group: Group, step: int) -> dict[str, float]:
        """The rate falls with the step; the sum's start counts at the first."""
        rate = group["lr"] / (1.0 + (step - 1) * group["lr_decay"])
        start = group["initial_accumulator_value"] if step == 1 else 0.0
        return {"rate": rate, "decay": group["weight_decay"], "eps": group["eps"], "start": start}


class Adadelta(Optimizer):
    """s = rho s + (1 - rho) g^2, d = sqrt(a + eps) / sqrt(s + eps) * g, a = rho a + (1 - rho) d^2, p -= lr * d.

    g = gradient + weight_decay * p.

    Source: Zeiler 2012, arXiv:1212.5701.
    """

    rows = ("adadelta",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr=lr, rho=rho, eps=eps, weight_decay=weight_decay, maximize=maximize)

    def check(self, group: Group) -> None:
        """rho in [0, 1), eps at least 0."""
        super().check(group)
        group["rho"] = number(type(self).__name__, "rho", group["rho"], 0, 1)
        group["eps"] = number(type(self).__name__, "eps", group["eps"], 0)

    def row(self, group: Group) -> str:
        """adadelta."""
        return "adadelta"

    def scalars(self, group: Group, step: int) -> dict[str, float]:
        """None of them changes with the step."""
        return {"lr": group["lr"], "rho": group["rho"], "eps": group["eps"], "decay": group["weight_decay"]}
