"""Schedules that fall, rise or warm up once: steps, exponentials, lines, polynomials, half a cosine, any function."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence

from netcl.core.arguments import number, whole
from netcl.optim.lr_scheduler.base import LRScheduler, optimizer_of
from netcl.optim.optimizer import Optimizer


class StepLR(LRScheduler):
    """base * gamma ** (count // step_size)."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def check(self) -> None:
        """step_size at least 1, gamma at least 0."""
        super().check()
        self._number("step_size", whole, 1)
        self._number("gamma", number, 0)

    def rate(self, base: float, count: int) -> float:
        """See the class."""
        return float(base * self.gamma ** (count // self.step_size))


class MultiStepLR(LRScheduler):
    """base * gamma ** (how many milestones were reached). A milestone that is given twice counts twice."""

    def __init__(
        self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = milestones, gamma
        super().__init__(optimizer, last_epoch)

    def check(self) -> None:
        """Milestones at least 0, gamma at least 0."""
        super().check()
        where = type(self).__name__
        if not isinstance(self.milestones, Sequence) or isinstance(self.milestones, str):
            raise TypeError(f"{where}: expected milestones as a list of counts, got {self.milestones!r}.")
        self.milestones = sorted(whole(where, "milestones", m, 0) for m in self.milestones)
        self._number("gamma", number, 0)

    def rate(self, base: float, count: int) -> float:
        """See the class."""
        return float(base * self.gamma ** bisect.bisect_right(self.milestones, count))


class ExponentialLR(LRScheduler):
    """base * gamma ** count."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def check(self) -> None:
        """gamma at least 0."""
        super().check()
        self._number("gamma", number, 0)

    def rate(self, base: float, count: int) -> float:
        """See the class."""
        return float(base * self.gamma**count)


class ConstantLR(LRScheduler):
    """base * factor while count < total_iters, then base."""

    def __init__(
        self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def check(self) -> None:
        """factor at least 0, total_iters at least 0."""
        super().check()
        self._number("factor", number, 0)
        self._number("total_iters", whole, 0)

    def rate(self, base: float, count: int) -> float:
        """See the class."""
        return base * self.factor if count < self.total_iters else base


class LinearLR(LRScheduler):
    """base times a factor that goes from start_factor to end_factor in total_iters steps and stays there."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def check(self) -> None:
        """Factors at least 0, total_iters at least 1."""
        super().check()
        self._number("start_factor", number, 0)
        self._number("end_factor", number, 0)
        self._number("total_iters", whole, 1)

    def rate(self, base: float, count: int) -> float:
        """See the class."""
        done = min(count / self.total_iters, 1.0)
        return base * (self.start_factor + (self.end_factor - self.start_factor) * done)


class PolynomialLR(LRScheduler):
    """base * (1 - count / total_iters) ** power, and 0 from total_iters on."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def check(self) -> None:
        """total_iters at least 1, power at least 0."""
        super().check()
        self._number("total_iters", whole, 1)
        self._number("power", number, 0)

    def rate(self, base: float, count: int) -> float:
        """See the class."""
        return float(base * (1.0 - min(count / self.total_iters, 1.0)) ** self.power)


class LambdaLR(LRScheduler):
    """base * lr_lambda(count), with one function or one per group. Functions are not part of the state."""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        groups = len(optimizer_of(self, optimizer).param_groups)
        given = [lr_lambda] * groups if callable(lr_lambda) else lr_lambda
        if not isinstance(given, Sequence) or len(given) != groups or not all(callable(f) for f in given):
            raise ValueError(f"LambdaLR: expected {groups} functions, one per group, got {given!r}.")
        self.lr_lambdas = list(given)
        self._one = lr_lambda if callable(lr_lambda) else None
        super().__init__(optimizer, last_epoch)

    def follow(self, groups: int) -> None:
        """The one function holds for new groups, too."""
        if self._one is not None:
            self.lr_lambdas = [self._one] * groups
        if len(self.lr_lambdas) != groups:
            raise ValueError(f"LambdaLR: expected {groups} functions, one per group, got {len(self.lr_lambdas)}.")

    def rates(self) -> list[float]:
        """See the class."""
        where = f"{type(self).__name__} at count {self.last_epoch}"
        factors = [number(where, "the result of lr_lambda", f(self.last_epoch)) for f in self.lr_lambdas]
        return [base * factor for base, factor in zip(self.base_lrs, factors)]


class CosineAnnealingLR(LRScheduler):
    """eta_min + (base - eta_min) * (1 + cos(pi * count / T_max)) / 2; past T_max the cosine goes on and rises again.

    Source: Loshchilov and Hutter 2017, arXiv:1608.03983 (without restarts).
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def check(self) -> None:
        """T_max at least 1, eta_min at least 0."""
        super().check()
        self._number("T_max", whole, 1)
        self._number("eta_min", number, 0)

    def rate(self, base: float, count: int) -> float:
        """See the class."""
        return self.eta_min + (base - self.eta_min) * (1.0 + math.cos(math.pi * count / self.T_max)) / 2.0


class WarmupCosine(LRScheduler):
    """base * (count + 1) / (warmup_steps + 1) while count < warmup_steps, then half a cosine down to eta_min.

    The cosine reaches eta_min at `total_steps` and stays there. The first rate is above 0, and the base rate is met
    once.
    """

    def __init__(
        self, optimizer: Optimizer, warmup_steps: int, total_steps: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.warmup_steps, self.total_steps, self.eta_min = warmup_steps, total_steps, eta_min
        super().__init__(optimizer, last_epoch)

    def check(self) -> None:
        """0 <= warmup_steps < total_steps, eta_min at least 0."""
        super().check()
        self._number("warmup_steps", whole, 0)
        self._number("total_steps", whole, 1)
        self._number("eta_min", number, 0)
        if self.warmup_steps >= self.total_steps:
            raise ValueError(
                f"{type(self).__name__}: expected warmup_steps below total_steps, got {self.warmup_steps} and "
                f"{self.total_steps}."
            )

    def rate(self, base: float, count: int) -> float:
        """See the class."""
        if count < self.warmup_steps:
            return base * (count + 1) / (self.warmup_steps + 1)
        done = min((count - self.warmup_steps) / (self.total_steps - self.warmup_steps), 1.0)
        return self.eta_min + (base - self.eta_min) * (1.0 + math.cos(math.pi * done)) / 2.0
