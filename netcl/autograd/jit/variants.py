"""What `jit_compile` keeps under one key: a program, or the reason for none, for each state of what it depends on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from netcl.autograd.follow import Followed
from netcl.autograd.jit import shapes
from netcl.autograd.jit.program import Program
from netcl.autograd.jit.snapshot import Snapshot

VARIANTS = 32  # kept under one key; those used longest ago are dropped
FUTILE = 32  # traces in a row whose results no call used again, after which a key runs unfused

Looked = tuple[int, ...]  # positions of the floats among the arguments that a function looked at


class Variant:
    """A program, or why there is none, and what it holds for: a snapshot, and the values of floats looked at."""

    __slots__ = ("looked", "program", "reason", "snapshot", "values")

    def __init__(
        self, program: Program | None, reason: str, snapshot: Snapshot, looked: Looked, floats: Sequence[float]
    ) -> None:
        self.program, self.reason, self.snapshot, self.looked = program, reason, snapshot, looked
        self.values = tuple([floats[i] for i in looked])

    def holds(self, floats: Sequence[float]) -> bool:
        """Whether it is right for floats that equal its values, and for the state of everything now."""
        signs = all(v or math.copysign(1, v) == math.copysign(1, floats[i]) for i, v in zip(self.looked, self.values))
        return signs and not self.snapshot.difference()


class Entry:
    """The variants of one key, the one used last in `current`."""

    __slots__ = ("_futile", "_registered", "_traced", "_variants", "current", "plans", "reason", "used")

    def __init__(self, plans: Any) -> None:
        self.plans = plans  # of the queue: kept so that nothing else gets its address, which the key names
        self.current: Variant | None = None
        self.reason = ""  # for running unfused whatever the state is
        self.used = 0  # number of the call that used it last
        self._variants: dict[tuple[Looked, tuple[float, ...]], list[Variant]] = {}  # used longest ago first
        self._registered = shapes.registered.serial
        self._traced, self._futile = 0, 0

    def find(self, floats: Sequence[float]) -> Variant | None:
        """The variant that holds, now the current one."""
        self.current = None
        if self._registered != shapes.registered.serial:  # programs may use primitives that are others now
            self._registered, self.reason = shapes.registered.serial, ""
            self._variants.clear()
        for looked in {looked for looked, _ in self._variants}:
            where = looked, tuple([floats[i] for i in looked])
            for variant in self._variants.get(where, ()):
                if variant.holds(floats):
                    self._variants[where] = self._variants.pop(where)
                    self.current = variant
                    return variant
        return None

    def drop(self, variant: Variant) -> None:
        """Forget a variant."""
        where, self.current = (variant.looked, variant.values), None
        self._variants[where] = [v for v in self._variants.pop(where, ()) if v is not variant]

    def add(self, variant: Variant, now: int) -> None:
        """Keep a new variant, made at call number `now`."""
        self._futile = 0 if self.used > self._traced else self._futile + 1
        self.used = self._traced = now
        if self._futile >= FUTILE:
            self.reason = f"{self._changing(variant)} was another at each of the last {FUTILE} calls"
            self._variants.clear()
            return
        self.current = variant
        self._variants.setdefault((variant.looked, variant.values), []).insert(0, variant)
        while sum(map(len, self._variants.values())) > VARIANTS:
            where = next(iter(self._variants))
            self._variants[where].pop()
            if not self._variants[where]:
                del self._variants[where]

    def _changing(self, new: Variant) -> str:
        """What told the last variants apart, by name."""
        if new.looked:
            return "the value of a float that the function looks at"
        names = (v.snapshot.difference() for group in self._variants.values() for v in group)
        return next((name for name in names if name), "what the function depends on")

    def __len__(self) -> int:
        return sum(map(len, self._variants.values()))

    def modules(self) -> list[Followed]:
        """The modules that the variants depend on."""
        return [m for group in self._variants.values() for v in group for m in v.snapshot.modules()]

    def programs(self) -> list[Program]:
        """The programs among the variants."""
        return [v.program for group in self._variants.values() for v in group if v.program is not None]


def evict(entries: dict[Any, Entry], limit: int) -> None:
    """Drop the entries used longest ago if there are more than `limit` variants."""
    if len(entries) * VARIANTS <= limit:
        return
    count = sum(max(1, len(e)) for e in entries.values())
    if count <= limit:
        return
    for key in sorted(entries, key=lambda k: entries[k].used):
        count -= max(1, len(entries.pop(key)))
        if count <= limit * 3 // 4:
            return
