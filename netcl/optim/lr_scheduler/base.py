"""What learning-rate schedules share. Each rate is a closed formula of the count, so resuming cannot drift.

The count of a new schedule is 0 and the optimizer has the rate of count 0; each `step()` adds one. With `last_epoch=n`
the first count is n + 1. `base` is the rate a group had when its first schedule was made, kept in the group as
"initial_lr", so that a new cycle on the same optimizer starts from it and not from the decayed rate. A group that the
optimizer was given later follows from then on, with its own rate as its base.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from netcl.core.arguments import number, whole
from netcl.core.errors import CheckpointError
from netcl.optim.optimizer import Group, Optimizer


class Rated:
    """What every schedule can say, and how a saved one is looked at before anything changes."""

    optimizer: Optimizer
    last_epoch: int

    def check(self) -> None:
        """Raise ValueError or TypeError for settings that make no sense; numbers become Python's."""
        self.check_count(-1)

    def check_count(self, least: int) -> None:
        """Raise TypeError or ValueError unless the count is a whole number, at least `least`."""
        self._number("last_epoch", whole, least)

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
            trial.check_count(0)
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


class LRScheduler(Rated):
    """Base of the schedules that follow a formula: subclasses say `rate(base, count)`."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer, self.last_epoch = optimizer_of(self, optimizer), last_epoch
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
        before, known = self.last_epoch, list(self.base_lrs)
        count = before + 1 if epoch is None else self.count(epoch)
        groups = self.optimizer.param_groups
        try:
            self.last_epoch = count
            self.base_lrs += [{"initial_lr": g["lr"], **g}["initial_lr"] for g in groups[len(known) :]]
            self.follow(len(groups))
            rates = [number(f"{type(self).__name__} at count {count}", "a rate", rate, 0) for rate in self.rates()]
        except BaseException:
            self.last_epoch, self.base_lrs = before, known
            raise
        for i, (group, rate, base) in enumerate(zip(groups, rates, self.base_lrs)):
            group["lr"] = rate
            group.setdefault("initial_lr", base)
            group.update(self.others(i, group))

    def count(self, epoch: Any) -> Any:
        """`epoch` of `step(epoch)` as a count."""
        return whole(f"{type(self).__name__}.step", "epoch", epoch, 0)

    def follow(self, groups: int) -> None:
        """Get ready for so many groups, or raise ValueError where settings were given for each group."""

    def others(self, position: int, group: Group) -> dict[str, Any]:
        """What else changes in a group: momentum, say."""
        return {}

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


def optimizer_of(owner: Any, optimizer: Any) -> Optimizer:
    """`optimizer`, or TypeError for anything else."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(owner).__name__}: expected an Optimizer, got {type(optimizer).__name__}.")
    return optimizer


def _has_functions(value: Any) -> bool:
    return callable(value) or (isinstance(value, list) and any(callable(v) for v in value))
