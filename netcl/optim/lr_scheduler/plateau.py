"""A schedule that follows a metric."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from netcl.core.arguments import number, whole
from netcl.core.errors import CheckpointError
from netcl.optim.lr_scheduler.base import Rated, optimizer_of
from netcl.optim.optimizer import Optimizer


class ReduceLROnPlateau(Rated):
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
        self.optimizer, self.mode, self.factor, self.patience = optimizer_of(self, optimizer), mode, factor, patience
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
