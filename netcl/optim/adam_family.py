"""Relatives of Adam: Adamax, NAdam, RAdam and Lion."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from netcl.core.arguments import flag, number
from netcl.optim.adam import OfMoments, check_betas
from netcl.optim.optimizer import Group, Optimizer


class Adamax(OfMoments):
    """m = b1 m + (1 - b1) g, u = max(b2 u, |g| + eps), p -= lr / (1 - b1^step) * m / u, g = gradient + weight_decay p.

    Source: Kingma and Ba 2015, arXiv:1412.6980, section 7.1.
    """

    rows = ("adamax",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, maximize=maximize)

    def row(self, group: Group) -> str:
        """adamax."""
        return "adamax"

    def scalars(self, group: Group, step: int) -> dict[str, float]:
        """The bias correction of the mean, from the step count."""
        b1, b2 = group["betas"]
        rates = {"lr": group["lr"], "b1": b1, "b2": b2, "eps": group["eps"], "decay": group["weight_decay"]}
        return {**rates, "c1": 1.0 - b1**step}


class _Decoupling(OfMoments):
    """Of Adam's kind, with `decoupled_weight_decay`: decay acts on the weight itself, as in AdamW."""

    name = ""

    def check(self, group: Group) -> None:
        """decoupled_weight_decay True or False."""
        super().check(group)
        flagged = flag(type(self).__name__, "decoupled_weight_decay", group["decoupled_weight_decay"])
        group["decoupled_weight_decay"] = flagged

    def row(self, group: Group) -> str:
        """The name, with _decoupled."""
        return f"{self.name}_decoupled" if group["decoupled_weight_decay"] else self.name


class NAdam(_Decoupling):
    """Adam with Nesterov's look-ahead: p -= lr (1 - u) / (1 - U) * g / d + lr u' / (1 - U u') * m / d.

    d = sqrt(v / (1 - b2^step)) + eps; u = b1 (1 - 0.96^(step * momentum_decay) / 2), u' is that of the next step, and U
    the product of all u so far.

    Source: Dozat 2016, "Incorporating Nesterov momentum into Adam".
    """

    name, rows = "nadam", ("nadam", "nadam_decoupled")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
    ) -> None:
        self._products: dict[tuple[float, float], tuple[int, float]] = {}  # by settings: step and product up to it
        settings = {"eps": eps, "weight_decay": weight_decay, "momentum_decay": momentum_decay}
        flags = {"decoupled_weight_decay": decoupled_weight_decay, "maximize": maximize}
        super().__init__(params, lr=lr, betas=betas, **settings, **flags)

    def check(self, group: Group) -> None:
        """momentum_decay at least 0."""
        super().check(group)
        group["momentum_decay"] = number(type(self).__name__, "momentum_decay", group["momentum_decay"], 0)

    def scalars(self, group: Group, step: int) -> dict[str, float]:
        """The rates of the gradient and of its mean."""
        (b1, b2), lr = group["betas"], group["lr"]
        now, after = (_momentum(b1, group["momentum_decay"], count) for count in (step, step + 1))
        product = self._product(b1, group["momentum_decay"], step)
        of_g, of_m = lr * (1.0 - now) / (1.0 - product), lr * after / (1.0 - product * after)
        rates = {"lr": lr, "of_g": of_g, "of_m": of_m, "b1": b1, "b2": b2, "eps": group["eps"]}
        return {**rates, "decay": group["weight_decay"], "c2": 1.0 - b2**step}

    def _product(self, b1: float, decay: float, step: int) -> float:
        """The product of all momenta up to `step`, going on from where it was asked for last."""
        known, product = self._products.get((b1, decay), (0, 1.0))
        if known > step:
            known, product = 0, 1.0
        for count in range(known + 1, step + 1):
            product *= _momentum(b1, decay, count)
        self._products[b1, decay] = step, product
        return product


def _momentum(b1: float, decay: float, step: int) -> float:
    return float(b1 * (1.0 - 0.5 * 0.96 ** (step * decay)))


class RAdam(_Decoupling):
    """Adam without warm-up: its step is scaled by how certain the second moment is, and is momentum's before that.

    r = R - 2 step b2^step / (1 - b2^step), R = 2 / (1 - b2) - 1. Where r > 5, p -= lr * s * (m / c1) * sqrt(c2) /
    (sqrt(v) + eps), s = sqrt((r - 4) (r - 2) R / ((R - 4) (R - 2) r)), ci = 1 - bi^step; else p -= lr * m / c1.

    Source: Liu et al. 2020, arXiv:1908.03265.
    """

    name, rows = "radam", ("radam", "radam_decoupled")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
    ) -> None:
        flags = {"decoupled_weight_decay": decoupled_weight_decay, "maximize": maximize}
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, **flags)

    def scalars(self, group: Group, step: int) -> dict[str, float]:
        """The scale of the step, or that it is momentum's."""
        (b1, b2), lr = group["betas"], group["lr"]
        c1, c2, longest = 1.0 - b1**step, 1.0 - b2**step, 2.0 / (1.0 - b2) - 1.0
        length = longest - 2.0 * step * b2**step / c2
        scale = 0.0
        if length > 5.0:
            ratio = (length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length)
            scale = math.sqrt(ratio) * math.sqrt(c2)
        rates = {"lr": lr, "b1": b1, "b2": b2, "eps": group["eps"], "decay": group["weight_decay"]}
        return {**rates, "c1": c1, "scale": scale, "warm": float(length <= 5.0)}


class Lion(Optimizer):
    """p = (1 - lr weight_decay) p - lr * sign(b1 m + (1 - b1) g), then m = b2 m + (1 - b2) g.

    Steps have one size for all elements, so the rate is 3 to 10 times smaller than Adam's and the decay as much larger.

    Source: Chen et al. 2023, arXiv:2302.06675.
    """

    rows = ("lion",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize)

    def check(self, group: Group) -> None:
        """Two betas in [0, 1)."""
        super().check(group)
        check_betas(type(self).__name__, group)

    def row(self, group: Group) -> str:
        """lion."""
        return "lion"

    def scalars(self, group: Group, step: int) -> dict[str, float]:
        """None of them changes with the step."""
        b1, b2 = group["betas"]
        return {"lr": group["lr"], "b1": b1, "b2": b2, "decay": group["weight_decay"]}
