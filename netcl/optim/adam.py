"""Adam and AdamW, with AMSGrad as an option."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from netcl.core.arguments import flag, number
from netcl.optim.optimizer import Group, Optimizer


def check_betas(where: str, group: Group) -> None:
    """Make `betas` two numbers in [0, 1), or raise TypeError or ValueError."""
    betas = group["betas"]
    if not isinstance(betas, Sequence) or isinstance(betas, str) or len(betas) != 2:
        raise ValueError(f"{where}: expected betas as two numbers, got {betas!r}.")
    group["betas"] = tuple(number(where, "betas", b, 0, 1) for b in betas)


class OfMoments(Optimizer):
    """What relatives of Adam share: two betas and eps."""

    def check(self, group: Group) -> None:
        """Two betas in [0, 1), eps at least 0."""
        super().check(group)
        where = type(self).__name__
        check_betas(where, group)
        group["eps"] = number(where, "eps", group["eps"], 0)


class Adam(OfMoments):
    """m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, p -= lr * (m / c1) / (sqrt(v / c2) + eps), ci = 1 - bi^step.

    `weight_decay` is added to the gradient (L2), so it passes through the moments; AdamW decays the weight itself. eps
    is added outside the root, after the bias correction. `amsgrad` divides by the largest v so far, taken before
    correction.

    Source: Kingma and Ba 2015, arXiv:1412.6980; Reddi et al. 2018, arXiv:1904.09237.
    """

    prefix = "adam"
    rows = ("adam", "adam_amsgrad")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, maximize=maximize
        )

    def check(self, group: Group) -> None:
        """amsgrad True or False."""
        super().check(group)
        group["amsgrad"] = flag(type(self).__name__, "amsgrad", group["amsgrad"])

    def row(self, group: Group) -> str:
        """adam or adamw, with _amsgrad."""
        return f"{self.prefix}_amsgrad" if group["amsgrad"] else self.prefix

    def scalars(self, group: Group, step: int) -> dict[str, float]:
        """Bias corrections in double precision, from the step count."""
        b1, b2 = group["betas"]
        rates = {"lr": group["lr"], "b1": b1, "b2": b2, "eps": group["eps"], "decay": group["weight_decay"]}
        return {**rates, "c1": 1.0 - b1**step, "c2": 1.0 - b2**step}


class AdamW(Adam):
    """Adam whose decay acts on the weight itself: p = (1 - lr * weight_decay) * p before the step, from the old weight.

    Source: Loshchilov and Hutter 2019, arXiv:1711.05101.
    """

    prefix = "adamw"
    rows = ("adamw", "adamw_amsgrad")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize)
