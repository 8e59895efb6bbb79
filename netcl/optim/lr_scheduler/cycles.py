"""Schedules that go up and down: warm restarts, triangles, and one cycle, the last two with momentum the other way."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from netcl.core.arguments import flag, number, whole
from netcl.optim.lr_scheduler.base import LRScheduler, optimizer_of
from netcl.optim.optimizer import Group, Optimizer


class CosineAnnealingWarmRestarts(LRScheduler):
    """eta_min + (base - eta_min) * (1 + cos(pi * c / T)) / 2, c steps after the latest start of a cycle of T steps.

    The first cycle takes T_0 steps, each other one T_mult times as many as the one before. `step(epoch)` takes
    fractions of an epoch.

    Source: Loshchilov and Hutter 2017, arXiv:1608.03983.
    """

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        super().__init__(optimizer, last_epoch)

    def check(self) -> None:
        """T_0 and T_mult at least 1, eta_min at least 0."""
        super().check()
        self._number("T_0", whole, 1)
        self._number("T_mult", whole, 1)
        self._number("eta_min", number, 0)

    def count(self, epoch: Any) -> Any:
        """Fractions count, too."""
        return number(f"{type(self).__name__}.step", "epoch", epoch, 0)

    def check_count(self, least: int) -> None:
        """Fractions count, too."""
        self._number("last_epoch", number, least)

    def rate(self, base: float, count: float) -> float:
        """See the class."""
        start, length = 0, self.T_0
        if self.T_mult == 1:
            start = int(count // length) * length
        while count >= start + length:
            start, length = start + length, length * self.T_mult
        return self.eta_min + (base - self.eta_min) * (1.0 + math.cos(math.pi * (count - start) / length)) / 2.0


class _Cycling(LRScheduler):
    """Shared by schedules that move momentum (of Adam's kind: the first beta) against the rate."""

    cycle_momentum: bool
    max_lr: list[float]  # one for each group

    def momentum(self, position: int) -> float:
        """The momentum of a group now."""
        raise NotImplementedError

    def others(self, position: int, group: Group) -> dict[str, Any]:
        """Momentum, where it cycles."""
        if not self.cycle_momentum:
            return {}
        now = self.momentum(position)
        return {"betas": (now, *group["betas"][1:])} if "betas" in group else {"momentum": now}

    def _each(self, name: str, value: Any, below: float | None = None) -> list[float]:
        """One number for each group of the optimizer: the same for all, or a list."""
        where, groups = type(self).__name__, len(self.optimizer.param_groups)
        given = list(value) if isinstance(value, (list, tuple)) else [value] * groups
        if len(given) != groups:
            raise ValueError(f"{where}: expected {name} as a number or one for each of {groups} groups, got {value!r}.")
        return [number(where, name, v, 0, below) for v in given]

    def _check_momentum(self) -> None:
        self.cycle_momentum = flag(type(self).__name__, "cycle_momentum", self.cycle_momentum)
        without = [g for g in self.optimizer.param_groups if "momentum" not in g and "betas" not in g]
        if self.cycle_momentum and without:
            kind = type(self.optimizer).__name__
            raise ValueError(
                f"{type(self).__name__}: expected an optimizer with momentum or betas, got {kind}; pass "
                "cycle_momentum=False."
            )

    def follow(self, groups: int) -> None:
        """Settings were given for each group."""
        if groups != len(self.max_lr):
            raise ValueError(
                f"{type(self).__name__}: expected the {len(self.max_lr)} groups that it was made for, got {groups}; "
                "make the schedule after the last group."
            )


MODES = ("triangular", "triangular2", "exp_range")


class CyclicLR(_Cycling):
    """base_lr + (max_lr - base_lr) * h * s: h goes from 0 to 1 in step_size_up steps and back in step_size_down.

    s is 1 for mode "triangular", 2^-(cycle - 1) for "triangular2", gamma^count for "exp_range", or `scale_fn` of the
    cycle (from 1 on) or of the count, as `scale_mode` says. Momentum is max_momentum - (max_momentum - base_momentum) *
    h * s.

    Source: Smith 2017, arXiv:1506.01186.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | Sequence[float],
        max_lr: float | Sequence[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.8,
        max_momentum: float | Sequence[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        self.optimizer = optimizer_of(self, optimizer)
        self.base_lr, self.max_lr = self._each("base_lr", base_lr), self._each("max_lr", max_lr)
        self.step_size_up = step_size_up
        self.step_size_down = step_size_up if step_size_down is None else step_size_down
        self.mode, self.gamma, self.scale_fn, self.scale_mode = mode, gamma, scale_fn, scale_mode
        self.cycle_momentum, self.base_momentum, self.max_momentum = cycle_momentum, [], []
        if cycle_momentum:
            self.base_momentum = self._each("base_momentum", base_momentum, 1)
            self.max_momentum = self._each("max_momentum", max_momentum, 1)
        super().__init__(optimizer, last_epoch)

    def check(self) -> None:
        """Sizes at least 1, a known mode."""
        super().check()
        self._number("step_size_up", number, 0)
        self._number("step_size_down", number, 0)
        self._number("gamma", number, 0)
        where = type(self).__name__
        if self.step_size_up + self.step_size_down <= 0:
            raise ValueError(f"{where}: expected a cycle of at least one step, got sizes of 0.")
        choices_of = {"mode": MODES, "scale_mode": ("cycle", "iterations")}
        for name, choices in choices_of.items():
            if getattr(self, name) not in choices and (name == "scale_mode" or self.scale_fn is None):
                raise ValueError(f"{where}: expected {name} among {choices}, got {getattr(self, name)!r}.")
        self._check_momentum()

    def _height(self) -> float:
        """How far from the base now, 0 to 1, scaled."""
        count, total = self.last_epoch, self.step_size_up + self.step_size_down
        cycle = math.floor(1 + count / total)
        x, ratio = 1.0 + count / total - cycle, self.step_size_up / total
        height = x / ratio if x <= ratio and ratio > 0 else (x - 1.0) / (ratio - 1.0)
        if self.scale_fn is not None:
            return height * self.scale_fn(cycle if self.scale_mode == "cycle" else count)
        scales = {"triangular": 1.0, "triangular2": 0.5 ** (cycle - 1), "exp_range": self.gamma**count}
        return height * scales[self.mode]

    def rates(self) -> list[float]:
        """See the class."""
        height = self._height()
        return [low + (high - low) * height for low, high in zip(self.base_lr, self.max_lr)]

    def momentum(self, position: int) -> float:
        """See the class."""
        high = self.max_momentum[position]
        return high - (high - self.base_momentum[position]) * self._height()


class OneCycleLR(_Cycling):
    """From max_lr / div_factor up to max_lr in pct_start of the steps, then down to the first rate / final_div_factor.

    With `three_phase` it comes down to the first rate as fast as it rose, and the rest of the steps take it to the end.
    Momentum goes from max_momentum to base_momentum and back. `total_steps`, or epochs * steps_per_epoch, is how often
    `step` may be called, the last time without effect: going on raises ValueError.

    Source: Smith and Topin 2019, arXiv:1708.07120.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        self.optimizer = optimizer_of(self, optimizer)
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("OneCycleLR: expected total_steps, or epochs and steps_per_epoch, got neither.")
            total_steps = whole("OneCycleLR", "epochs", epochs, 1) * whole(
                "OneCycleLR", "steps_per_epoch", steps_per_epoch, 1
            )
        self.total_steps, self.pct_start, self.anneal_strategy = total_steps, pct_start, anneal_strategy
        self.max_lr, self.div_factor, self.final_div_factor = self._each("max_lr", max_lr), div_factor, final_div_factor
        self.three_phase, self.cycle_momentum, self.base_momentum, self.max_momentum = (
            three_phase,
            cycle_momentum,
            [],
            [],
        )
        if cycle_momentum:
            self.base_momentum = self._each("base_momentum", base_momentum, 1)
            self.max_momentum = self._each("max_momentum", max_momentum, 1)
        super().__init__(optimizer, last_epoch)

    def check(self) -> None:
        """total_steps at least 1, pct_start from 0 to 1, factors above 0."""
        super().check()
        where = type(self).__name__
        self._number("total_steps", whole, 1)
        for name in ("pct_start", "div_factor", "final_div_factor"):
            self._number(name, number, 0)
        if self.pct_start > 1 or not (self.div_factor and self.final_div_factor):
            raise ValueError(
                f"{where}: expected pct_start from 0 to 1 and factors above 0, got {self.pct_start}, {self.div_factor} "
                f"and {self.final_div_factor}."
            )
        if self.anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"{where}: expected anneal_strategy 'cos' or 'linear', got {self.anneal_strategy!r}.")
        self.three_phase = flag(where, "three_phase", self.three_phase)
        self._check_momentum()

    def _between(self, points: Sequence[float]) -> float:
        """The value now of what goes from the first of `points` to the others, one a phase."""
        rise, last = self.pct_start * self.total_steps - 1, self.total_steps - 1
        ends = [rise, 2 * rise, last] if self.three_phase else [rise, last]
        start = 0.0
        for i, end in enumerate(ends):
            if self.last_epoch <= end or i == len(ends) - 1:
                done = min((self.last_epoch - start) / (end - start), 1.0) if end != start else 1.0
                done = (1.0 - math.cos(math.pi * done)) / 2.0 if self.anneal_strategy == "cos" else done
                return points[i] + (points[i + 1] - points[i]) * done
            start = end
        raise AssertionError("the last phase has no end")

    def rates(self) -> list[float]:
        """See the class."""
        if self.last_epoch > self.total_steps:
            raise ValueError(
                f"{type(self).__name__}: expected at most {self.total_steps} steps, as it was made for, got step "
                f"{self.last_epoch}."
            )
        found = []
        for high in self.max_lr:
            low = high / self.div_factor
            middle = [low] if self.three_phase else []
            found.append(self._between([low, high, *middle, low / self.final_div_factor]))
        return found

    def momentum(self, position: int) -> float:
        """See the class."""
        low, high = self.base_momentum[position], self.max_momentum[position]
        return self._between([high, low, high, high] if self.three_phase else [high, low, high])
