"""Recording and replaying the NumPy backend: the same functions on the same memory.

Memory that is still in use when the recording ends is written in place; what only lived inside it is made anew by each
replay and dropped after its last use, so a replay needs no more memory than the eager run did.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from netcl.core import callers, live
from netcl.core.backend import cpu
from netcl.core.layout import Shape
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor
from netcl.core.versions import memory_key

Function = Callable[..., Any]
Tensors = Sequence[Tensor]

# How many references an object has; other Pythons do not count, and then nothing is taken for unused.
references: Callable[[Any], int] = getattr(sys, "getrefcount", lambda _: 1 << 30)


class View(NamedTuple):
    """A tensor whose memory is slot `slot` of the recording."""

    slot: int
    shape: Shape
    strides: Shape
    offset: int
    dtype: np.dtype[Any]

    def of(self, memory: np.ndarray, queue: Queue) -> Tensor:
        """The tensor over `memory`."""
        return Tensor(memory, self.shape, self.strides, self.offset, self.dtype, queue)


@dataclass(eq=False)
class Step:
    """One recorded call: `fn` over `inputs`, results to `outputs`; in place when they existed before it."""

    fn: Callable[..., Any]
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]
    attrs: Mapping[str, Any]
    in_place: bool
    last: tuple[int, ...] = ()  # slots that nothing needs after it
    label: Any = field(default_factory=callers.label)

    @property
    def name(self) -> str:
        """The name of the function."""
        return str(getattr(self.fn, "__name__", type(self.fn).__name__))


def constant(*arrays: np.ndarray, value: Any) -> Any:
    """A fill, or data that the host wrote inside the recording."""
    return value.copy()


class NumpySteps:
    """The calls of one recording."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.memory: list[np.ndarray | None] = []  # by slot; None for what a replay makes itself
        self._refs: list[weakref.ref[np.ndarray]] = []
        self._bytes: list[int] = []
        self._slots: dict[int, int] = {}
        self._made: set[int] = set()  # slots whose memory appeared during the recording

    def _view(self, tensor: Tensor) -> View:
        memory = tensor.buffer
        slot = self._slots.get(id(memory))
        if slot is None or self._refs[slot]() is not memory:  # an id may come back for new memory
            slot = self._slots[id(memory)] = len(self._refs)
            self._refs.append(weakref.ref(memory))
            self._bytes.append(memory.nbytes)
            self.memory.append(None)
        return View(slot, tensor.shape, tensor.strides, tensor.offset, tensor.dtype)

    def add(self, fn: Function, outputs: Tensors, inputs: Tensors, attrs: Mapping[str, Any], in_place: bool) -> None:
        """Record a call; called as a hook of `core.backend.cpu`."""
        known = len(self._refs)
        needed = [self._view(t) for t in inputs]
        if in_place:
            results = [self._view(t) for t in outputs]
        else:  # memory met here for the first time as an input existed before the recording
            first = len(self._refs)
            results = [self._view(t) for t in outputs]
            self._made.update(v.slot for v in results if v.slot >= first)
        for view in (*needed, *(results if in_place else ())):
            if view.slot >= known and view.slot not in self._made:
                self.memory[view.slot] = self._refs[view.slot]()
        self.steps.append(Step(fn, tuple(needed), tuple(results), dict(attrs), in_place))

    def write(self, tensor: Tensor, value: Any) -> None:
        """Record a fill, or data from the host; their memory is usually new."""
        known = len(self._refs)
        view = self._view(tensor)
        held = np.array(value).astype(tensor.dtype)
        if view.slot >= known and tensor.nbytes == tensor.buffer.nbytes:
            self._made.add(view.slot)  # all of it is written, so it does not matter what was there
            self.steps.append(Step(constant, (), (view,), {"value": np.broadcast_to(held, view.shape)}, False))
            return
        if view.slot >= known:
            self.memory[view.slot] = tensor.buffer
        self.steps.append(Step(constant, (), (view,), {"value": held}, True))

    def close(self) -> None:
        """Decide what is written in place and what each replay makes and drops."""
        for slot, ref in enumerate(self._refs):
            if self.memory[slot] is None:
                self.memory[slot] = ref()
        seen: set[int] = set()
        for step in reversed(self.steps):
            slots = {v.slot for v in (*step.inputs, *step.outputs) if self.memory[v.slot] is None}
            step.last = tuple(slots - seen)
            seen |= slots

    @property
    def peak_bytes(self) -> int:
        """Most bytes that memory made inside the recording takes at one time."""
        kept = sum(self._bytes[s] for s in self._made if self.memory[s] is not None)
        live, peak, born = kept, kept, set()
        for step in self.steps:
            for view in step.outputs:
                if self.memory[view.slot] is None and view.slot not in born:
                    born.add(view.slot)
                    live += self._bytes[view.slot]
            peak = max(peak, live)
            live -= sum(self._bytes[s] for s in step.last)
        return peak

    @property
    def held_bytes(self) -> int:
        """Bytes of memory from before the recording that it needs."""
        return sum(n for s, n in enumerate(self._bytes) if s not in self._made and self.memory[s] is not None)

    def abandoned(self) -> int:
        """Bytes of memory from before the recording that nothing else holds any more."""
        lost = 0
        for slot in range(len(self.memory)):
            memory = self.memory[slot]
            # held by `memory` here, the list and the argument
            if memory is not None and slot not in self._made and references(memory) <= 3:
                lost += self._bytes[slot]
        return lost

    def was_before(self, memory: np.ndarray) -> bool:
        """Whether it uses memory that was there before the recording."""
        slot = self._slots.get(id(memory))
        return slot is not None and self._refs[slot]() is memory and slot not in self._made

    def keys(self) -> dict[int, tuple[int, int]]:
        """(slot, bytes) of the memory that stays, by address."""
        return {m.ctypes.data: (s, m.nbytes) for s, m in enumerate(self.memory) if m is not None}

    def rewritten(self) -> set[int]:
        """The memory that each replay writes and that somebody may see, as core.versions tells it."""
        results = (self.memory[view.slot] for step in self.steps for view in step.outputs)
        return {memory_key(m) for m in results if m is not None}

    def run(self, queue: Queue, replaced: Mapping[int, np.ndarray] | None = None) -> None:
        """Make the calls again; `replaced` gives other memory for some slots, for this run only."""
        memory: list[Any] = list(self.memory)
        for slot, other in (replaced or {}).items():
            memory[slot] = other
        for step in self.steps:
            tensors = [v.of(memory[v.slot], queue) for v in step.inputs]
            attrs = live.resolve(step.attrs)
            if step.in_place:
                targets = [v.of(memory[v.slot], queue) for v in step.outputs]
                cpu.update(step.fn, targets, *tensors, **attrs)
            else:
                result = cpu.compute(step.fn, *tensors, queue=queue, **attrs)
                for view, new in zip(step.outputs, result if isinstance(result, tuple) else (result,), strict=True):
                    self._keep(memory, view, new, queue)
            for slot in step.last:
                memory[slot] = None

    @staticmethod
    def _keep(memory: list[np.ndarray | None], view: View, new: Tensor, queue: Queue) -> None:
        """Put a result where the recording had it, or take over its memory."""
        old = memory[view.slot]
        if old is None:
            memory[view.slot] = new.buffer
        else:
            view.of(old, queue).array[...] = new.array
