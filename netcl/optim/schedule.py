"""Learning-rate schedules. Each rate is a closed formula of the count, so resuming cannot drift.

The count of a new schedule is 0 and the optimizer has the rate of count 0; each `step()` adds one. With `last_epoch=n`
the first count is n + 1. `base` is the rate a group had when its first schedule was made, kept in the group as
"initial_lr", so that a new cycle on the same optimizer starts from it and not from the decayed rate.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from netcl.core.arguments import number, whole
from netcl.core.errors import CheckpointError
from netcl.optim.optimizer import Optimizer


class _Rated:
    """What every schedule can say, and how a saved one is looked at before anything changes."""

    optimizer: Optimizer
    last_epoch: int

    def check(self) -> None:
        """Raise ValueError or TypeError for settings that make no sense; numbers become Python's."""
        self._number("last_epoch", whole, -1)

    def state_dict(self) -> dict[str, Any]:
        """The settings and counts that decide the rates, as plain data."""
        plain = {k: v for k, v in self.__dict__.items() if k != "optimizer" and not _has_functions(v)}
        return {"kind": type(self).__name__, **plain}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise CheckpointError for what `load_state_dict` would refuse."""
        self._checked(state)

    def _checked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes that a saved state stands for."""
        where, kind = f"{type(self).__name__}.load_state_dict", type(self).__name__
        if not isinstance(state, Mapping) or state.get("kind", kind) != kind:
            got = f"one of {state.get('kind')}" if isinstance(state, Mapping) else type(state).__name__
            raise CheckpointError(f"{where}: expected a state of {kind}, got {got}.")
        found = {k: v for k, v in state.items() if k != "kind"}
        known = [k for k in self.state_dict() if k != "kind"]
        if set(found) != set(known):
            raise CheckpointError(
                f"{where}: expected {', '.join(known)}, got {', '.join(map(str, found)) or 'nothing'}."
            )
        trial = copy.copy(self)
        trial.__dict__.update(found)
        try:
            trial.check()
            trial._number("last_epoch", whole, 0)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{where}: {str(error).partition(': ')[2]}") from None
        return {k: trial.__dict__[k] for k in found}

    def _number(self, name: str, kind: Callable[..., Any], *limits: Any) -> None:
        """Check the attribute `name` by `arguments.number` or `arguments.whole`."""
        setattr(self, name, kind(type(self).__name__, name, getattr(self, name), *limits))

    def _rates(self, name: str, rates: Any) -> list[float]:
        """`rates` as one rate for each group of the optimizer."""
        where, groups = type(self).__name__, len(self.optimizer.param_groups)
        if not isinstance(rates, (list, tuple)) or len(rates) != groups:
            raise ValueError(f"{where}: expected {name} as {groups} rates, one for each group, got {rates!r}.")
        return [number(where, name, rate, 0) for rate in rates]

    def get_last_lr(self) -> list[float]:
        """The rates the optimizer has."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(last_epoch={self.last_epoch}, lr={self.get_last_lr()})"


class Schedule(_Rated):
    """Base of the schedules that follow a formula: subclasses say `rate(base, count)`."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer, self.last_epoch = _optimizer(self, optimizer), last_epoch
        self.base_lrs: list[float] = [{"initial_lr": g["lr"], **g}["initial_lr"] for g in optimizer.param_groups]
        self.check()
        self.step()
        for group, base in zip(optimizer.param_groups, self.base_lrs):
            group["initial_lr"] = base

    def check(self) -> None:
        """A count, and one base rate for each group."""
        super().check()
        self.base_lrs = self._rates("base_lrs", self.base_lrs)

    def rate(self, base: float, count: int) -> float:
        """The rate at `count` of a group that started with `base`."""
        raise NotImplementedError

    def rates(self) -> list[float]:
        """The rate of each group now."""
        return [self.rate(base, self.last_epoch) for base in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        """Go to the next count (or to `epoch`) and give the optimizer its rates.

        Raises ValueError, changing nothing, where the formula gives a rate below 0, NaN or infinity.
        """
        before = self.last_epoch
        count = before + 1 if epoch is None else whole(f"{type(self).__name__}.step", "epoch", epoch, 0)
        try:
            self.last_epoch = count
            rates = [number(f"{type(self).__name__} at count {count}", "a rate", rate, 0) for rate in self.rates()]
        except BaseException:
            self.last_epoch = before
            raise
        for group, rate in zip(self.optimizer.param_groups, rates):
            group["lr"] = rate

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state and give the optimizer the rate it had.

        Raises CheckpointError, changing nothing, for the state of another kind of schedule, for missing entries, and
        for values that the constructor would refuse.
        """
        found, before = self._checked(state), dict(self.__dict__)
        self.__dict__.update(found)
        try:
            self.step(self.last_epoch)
        except (TypeError, ValueError) as error:  # a function of LambdaLR
            self.__dict__.update(before)
            raise CheckpointError(str(error)) from None


def _optimizer(owner: Any, optimizer: Any) -> Optimizer:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(owner).__name__}: expected an Optimizer, got {type(optimizer).__name__}.")
    return optimizer


def _has_functions(value: Any) -> bool:
    return callable(value) or (isinstance(value, list) and any(callable(v) for v in value))


class StepLR(Schedule):
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


class LambdaLR(Schedule):
    """base * lr_lambda(count), with one function or one per group. Functions are not part of the state."""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        groups = len(_optimizer(self, optimizer).param_groups)
        given = [lr_lambda] * groups if callable(lr_lambda) else lr_lambda
        if not isinstance(given, Sequence) or len(given) != groups or not all(callable(f) for f in given):
            raise ValueError(f"LambdaLR: expected {groups} functions, one per group, got {given!r}.")
        self.lr_lambdas = list(given)
        super().__init__(optimizer, last_epoch)

    def rates(self) -> list[float]:
        """See the class."""
        where = f"{type(self).__name__} at count {self.last_epoch}"
        factors = [number(where, "the result of lr_lambda", f(self.last_epoch)) for f in self.lr_lambdas]
        return [base * factor for base, factor in zip(self.base_lrs, factors)]


class CosineAnnealingLR(Schedule):
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


class WarmupCosine(Schedule):
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
        self.optimizer, self.mode, self.factor, self.patience = _optimizer(self, optimizer), mode, factor, patience
        self.threshold, self.threshold_mode, self.cooldown = threshold, threshold_mode, cooldown
        self.min_lr, self.eps = min_lr, eps
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = 0
        self.last_epoch = 0
        self.check()

    def check(self) -> None:
        """factor in [0, 1), everything else that is a number at least 0."""
        super().check()
        for name, choices in (("mode", ("min", "max")), ("threshold_mode", ("rel", "abs"))):
            if getattr(self, name) not in choices:
                where = type(self).__name__
                raise ValueError(f"{where}: expected {name} among {choices}, got {getattr(self, name)!r}.")
        self._number("factor", number, 0, 1)
        for name in ("threshold", "min_lr", "eps"):
            self._number(name, number, 0)
        for name in ("patience", "cooldown", "num_bad_epochs", "cooldown_counter", "last_epoch"):
            self._number(name, whole, 0)
        self._number("best", number, None, None, True)

    def better(self, metric: float) -> bool:
        """Whether `metric` beats the best so far. NaN never does."""
        sign = 1.0 if self.mode == "min" else -1.0
        if math.isinf(self.best):
            return sign * metric < sign * self.best
        margin = self.threshold * (abs(self.best) if self.threshold_mode == "rel" else 1.0)
        return sign * metric < sign * self.best - margin

    def step(self, metrics: Any) -> None:
        """Look at a new value of the metric: a number, or a tensor of one element (which waits for the device)."""
        metric = metrics.item() if getattr(metrics, "size", 0) == 1 else metrics
        if isinstance(metric, bool) or not isinstance(metric, (int, float)):
            raise TypeError(f"{type(self).__name__}.step: expected metrics as one number, got {metrics!r}.")
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
        return {**super().state_dict(), "lrs": self.get_last_lr()}

    def _checked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        found = super()._checked(state)
        try:
            return {**found, "lrs": self._rates("lrs", found["lrs"])}
        except (TypeError, ValueError) as error:
            where, _, what = str(error).partition(": ")
            raise CheckpointError(f"{where}.load_state_dict: {what}") from None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state and give the optimizer the rates it had. Raises CheckpointError, changing nothing."""
        found = self._checked(state)
        for group, rate in zip(self.optimizer.param_groups, found.pop("lrs")):
            group["lr"] = rate
        self.__dict__.update(found)
