"""Learning-rate schedules. Each rate is a closed formula of the count, so resuming cannot drift.

The count of a new schedule is 0 and the optimizer has the rate of count 0; each `step()` adds one. With `last_epoch=n`
the first count is n + 1. `base` is the rate a group had when its first schedule was made, kept in the group as
"initial_lr", so that a new cycle on the same optimizer starts from it and not from the decayed rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from netcl.optim.optimizer import Optimizer


class _Rated:
    """What every schedule can say."""

    optimizer: Optimizer
    last_epoch: int

    def get_last_lr(self) -> list[float]:
        """The rates the optimizer has."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(last_epoch={self.last_epoch}, lr={self.get_last_lr()})"


class Schedule(_Rated):
    """Base of the schedules that follow a formula: subclasses say `rate(base, count)`."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(self).__name__}: expected an Optimizer, got {type(optimizer).__name__}.")
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self.step()

    def rate(self, base: float, count: int) -> float:
        """The rate at `count` of a group that started with `base`."""
        raise NotImplementedError

    def rates(self) -> list[float]:
        """The rate of each group now."""
        return [self.rate(base, self.last_epoch) for base in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        """Go to the next count (or to `epoch`) and give the optimizer its rates."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        for group, rate in zip(self.optimizer.param_groups, self.rates()):
            group["lr"] = rate

    def state_dict(self) -> dict[str, Any]:
        """The numbers that decide the rates, as plain data."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer" and not _has_functions(v)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state and give the optimizer the rate it had."""
        self.__dict__.update(state)
        self.step(self.last_epoch)


def _has_functions(value: Any) -> bool:
    return callable(value) or (isinstance(value, list) and any(callable(v) for v in value))


class StepLR(Schedule):
    """base * gamma ** (count // step_size)."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = _positive(self, "step_size", step_size), gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, count: int) -> float:
        """See the class."""
        return float(base * self.gamma ** (count // self.step_size))


class LambdaLR(Schedule):
    """base * lr_lambda(count), with one function or one per group. Functions are not part of the state."""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        groups = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * groups if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != groups:
            raise ValueError(f"LambdaLR: expected {groups} functions, one per group, got {len(self.lr_lambdas)}.")
        super().__init__(optimizer, last_epoch)

    def rates(self) -> list[float]:
        """See the class."""
        return [base * f(self.last_epoch) for base, f in zip(self.base_lrs, self.lr_lambdas)]


class CosineAnnealingLR(Schedule):
    """eta_min + (base - eta_min) * (1 + cos(pi * count / T_max)) / 2; past T_max the cosine goes on and rises again.

    Source: Loshchilov and Hutter 2017, arXiv:1608.03983 (without restarts).
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = _positive(self, "T_max", T_max), eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, count: int) -> float:
        """See the class."""
        return self.eta_min + (base - self.eta_min) * (1.0 + math.cos(math.pi * count / self.T_max)) / 2.0


class WarmupCosine(Schedule):
    """base * (count + 1) / (warmup_steps + 1) while count < warmup_steps, then half a cosine down to eta_min.

    The cosine reaches eta_min at `total_steps` and stays there. The first rate is above 0, and the base rate is met
    once.
    """

    def __init__(
        self, optimizer: Optimizer, warmup_steps: int, total_steps: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        if not 0 <= warmup_steps < total_steps:
            raise ValueError(
                f"WarmupCosine: expected 0 <= warmup_steps < total_steps, got {warmup_steps}, {total_steps}."
            )
        self.warmup_steps, self.total_steps, self.eta_min = warmup_steps, total_steps, eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, count: int) -> float:
        """See the class."""
        if count < self.warmup_steps:
            return base * (count + 1) / (self.warmup_steps + 1)
        done = min((count - self.warmup_steps) / (self.total_steps - self.warmup_steps), 1.0)
        return self.eta_min + (base - self.eta_min) * (1.0 + math.cos(math.pi * done)) / 2.0


class ReduceLROnPlateau(_Rated):
    """Multiply the rates by `factor` after more than `patience` steps without a better metric.

    Better means below best - threshold * |best| for mode "min", above best + threshold * |best| for "max"; with
    threshold_mode "abs" the margin is `threshold` itself. After a cut, `cooldown` steps are not counted. Cuts smaller
    than eps are left out.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        for name, value, choices in (
            ("mode", mode, ("min", "max")),
            ("threshold_mode", threshold_mode, ("rel", "abs")),
        ):
            if value not in choices:
                raise ValueError(f"ReduceLROnPlateau: expected {name} among {choices}, got {value!r}.")
        if not factor < 1:
            raise ValueError(f"ReduceLROnPlateau: expected factor below 1, got {factor}.")
        self.optimizer, self.mode, self.factor, self.patience = optimizer, mode, factor, patience
        self.threshold, self.threshold_mode, self.cooldown = threshold, threshold_mode, cooldown
        self.min_lr, self.eps = min_lr, eps
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = 0
        self.last_epoch = 0

    def better(self, metric: float) -> bool:
        """Whether `metric` beats the best so far. NaN never does."""
        sign = 1.0 if self.mode == "min" else -1.0
        if math.isinf(self.best):
            return sign * metric < sign * self.best
        margin = self.threshold * (abs(self.best) if self.threshold_mode == "rel" else 1.0)
        return sign * metric < sign * self.best - margin

    def step(self, metrics: Any) -> None:
        """Look at a new value of the metric: a number, or a tensor of one element (which waits for the device)."""
        metric = float(metrics.item() if hasattr(metrics, "item") else metrics)
        self.last_epoch += 1
        if self.better(metric):
            self.best, self.num_bad_epochs = metric, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group in self.optimizer.param_groups:
                rate = max(group["lr"] * self.factor, self.min_lr)
                if group["lr"] - rate > self.eps:
                    group["lr"] = rate
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def state_dict(self) -> dict[str, Any]:
        """Settings, counts, the best metric, and the rates."""
        return {**{k: v for k, v in self.__dict__.items() if k != "optimizer"}, "lrs": self.get_last_lr()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state and give the optimizer the rates it had."""
        self.__dict__.update({k: v for k, v in state.items() if k != "lrs"})
        for group, rate in zip(self.optimizer.param_groups, state["lrs"]):
            group["lr"] = rate


def _positive(owner: Any, name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{type(owner).__name__}: expected {name} of at least 1, got {value}.")
    return value
