"""Schedules made of schedules: one after the other, or all at once."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Any

from netcl.core.arguments import whole
from netcl.core.errors import CheckpointError
from netcl.optim.lr_scheduler.base import LRScheduler
from netcl.optim.optimizer import Optimizer


class _Combined(LRScheduler):
    """Holds schedules of one optimizer, whose own counts do not matter; their formulas do."""

    schedulers: list[LRScheduler]

    def _take(self, schedulers: Any) -> Optimizer:
        """Keep the schedules and return their optimizer."""
        where = type(self).__name__
        given = list(schedulers) if isinstance(schedulers, Sequence) else []
        wrong = [s for s in given if not isinstance(s, LRScheduler)]
        if wrong or not given:
            got = type(wrong[0]).__name__ if wrong else repr(schedulers)
            raise TypeError(f"{where}: expected a list of schedules that follow a count, got {got}.")
        if any(s.optimizer is not given[0].optimizer for s in given):
            raise ValueError(f"{where}: expected schedules of one optimizer, got several optimizers.")
        self.schedulers = given
        return self.schedulers[0].optimizer

    def state_dict(self) -> dict[str, Any]:
        """Settings and counts, and those of each schedule in it."""
        found = {k: v for k, v in super().state_dict().items() if k != "schedulers"}
        return {**found, "schedulers": [s.state_dict() for s in self.schedulers]}

    def _checked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        where = f"{type(self).__name__}.load_state_dict"
        parts = state.get("schedulers") if isinstance(state, Mapping) else None
        if isinstance(state, Mapping) and (not isinstance(parts, Sequence) or len(parts) != len(self.schedulers)):
            raise CheckpointError(f"{where}: expected states of {len(self.schedulers)} schedulers, got {parts!r}.")
        found = super()._checked(state)
        for schedule, part in zip(self.schedulers, found.pop("schedulers")):
            schedule.check_state(part)
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the states of all schedules in it, and then its own. Raises CheckpointError, changing nothing."""
        self._checked(state)
        for schedule, part in zip(self.schedulers, state["schedulers"]):
            schedule.load_state_dict(part)
        super().load_state_dict(state)

    def _at(self, schedule: LRScheduler, count: int) -> list[float]:
        """The rates of a schedule at its own `count`, at which it then stands."""
        schedule.step(count)
        return schedule.get_last_lr()

    def others(self, position: int, group: Any) -> dict[str, Any]:
        """Momentum is what the schedules have set."""
        return {}


class SequentialLR(_Combined):
    """Schedules one after the other: the i-th takes over at milestones[i - 1] and counts from 0 there."""

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        own = self._take(schedulers)
        if own is not optimizer:
            raise ValueError(f"{type(self).__name__}: expected schedules of the optimizer given, got those of another.")
        self.milestones = milestones
        super().__init__(optimizer, last_epoch)

    def check(self) -> None:
        """Milestones that rise, one less than there are schedules."""
        super().check()
        where = type(self).__name__
        if not isinstance(self.milestones, Sequence) or isinstance(self.milestones, str):
            raise TypeError(f"{where}: expected milestones as a list of counts, got {self.milestones!r}.")
        self.milestones = [whole(where, "milestones", m, 1) for m in self.milestones]
        if len(self.milestones) != len(self.schedulers) - 1 or sorted(set(self.milestones)) != self.milestones:
            raise ValueError(
                f"{where}: expected {len(self.schedulers) - 1} milestones that rise, one less than schedulers, got "
                f"{self.milestones}."
            )

    def rates(self) -> list[float]:
        """See the class."""
        now = bisect.bisect_right(self.milestones, self.last_epoch)
        return self._at(self.schedulers[now], self.last_epoch - (self.milestones[now - 1] if now else 0))


class ChainedScheduler(_Combined):
    """Schedules all at once: base times the factor (rate / base) of each."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        own = self._take(schedulers)
        if optimizer is not None and own is not optimizer:
            raise ValueError(f"{type(self).__name__}: expected schedules of the optimizer given, got those of another.")
        super().__init__(own, -1)

    def rates(self) -> list[float]:
        """See the class."""
        found = list(self.base_lrs)
        for schedule in self.schedulers:
            rates = self._at(schedule, self.last_epoch)
            found = [f * r / b if b else 0.0 for f, r, b in zip(found, rates, self.base_lrs)]
        return found
