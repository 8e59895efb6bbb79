"""A whole training step as one recording: forward, backward, clipping, optimizer, without Python in between."""

from __future__ import annotations

import functools
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import attrgetter, is_
from typing import Any, NamedTuple

import numpy as np

from netcl.autograd import hooks
from netcl.autograd.follow import Reached, changes
from netcl.autograd.jit.draws import Draws
from netcl.autograd.jit.shapes import registered
from netcl.autograd.jit.snapshot import Binding, Snapshot, data_bindings, known_bindings, moved, without_changed
from netcl.autograd.node import Node
from netcl.autograd.state import state
from netcl.core import layout, live, versions
from netcl.core.backend import opencl
from netcl.core.device import queue_of
from netcl.core.errors import CaptureError, DTypeError, GradientError
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor
from netcl.kernels import route
from netcl.kernels.explain import lines_of
from netcl.kernels.route import Decision
from netcl.ops import elementwise
from netcl.runtime.capture.capture import KernelCapture, OutdatedError

Key = tuple[Any, ...]
_recording = threading.Lock()  # steps of several threads are recorded one after the other
_ARRAYS = (Tensor, Node, np.ndarray)
_BUFFER = attrgetter("value.buffer")
OFTEN = 8  # recordings that were outdated before a warning


class _Recorded(NamedTuple):
    capture: KernelCapture
    inputs: tuple[Any, ...]  # tensors that batches are copied to; None for arguments that are no tensors
    slots: tuple[Any, ...]  # BufferSlots for those that can be used where they are, else None
    leaves: tuple[Node, ...]  # parameters
    buffers: tuple[Any, ...]  # and the memory they had
    gradients: tuple[tuple[Node, Any], ...]  # where some were computed outside: the memory of all, None without one
    owned: frozenset[int]  # ids of those that belong to modules
    result: Any

    def holds(self) -> bool:
        """Whether the parameters, and gradients from outside, still have the memory that the recording uses."""
        same = all(map(is_, map(_BUFFER, self.leaves), self.buffers))  # before each replay, so without a loop in Python
        return same and (not self.gradients or all(_memory(p.grad) is held for p, held in self.gradients))


class _State:
    """One state of modules and variables, for inputs of some shapes: the calls made in it, and their recording."""

    __slots__ = ("calls", "decisions", "recorded", "snapshot")

    def __init__(self, snapshot: Snapshot) -> None:
        self.calls, self.snapshot = 0, snapshot
        self.decisions: list[Decision] = []  # what ops chose whose plans were made in its calls
        self.recorded: _Recorded | None = None


class CompiledStep:
    """Turns `fn(*inputs)` into a recording that later calls replay on a new batch. Also a decorator.

    >>> @ag.CompiledStep
    ... def step(x, y):
    ...     with ag.Tape() as tape:
    ...         loss = ag.cross_entropy(model(ag.tensor(x)), ag.tensor(y))
    ...     tape.backward(loss)
    ...     opt.step()
    ...     opt.zero_grad()
    ...     return loss
    >>> for x, y in batches:
    ...     loss = step(x, y)

    The first call with inputs of some shapes and dtypes runs `fn` as always, so that whatever is made on first use
    exists; the second runs and records it; from the third on the recording is replayed on the batch, which it reads
    where it is, or from a copy if it is no whole contiguous tensor. So programs, memory and the way to replay are paid
    for by the first two calls: a replay allocates nothing. Every call gives, bit for bit, what `fn` would have given.
    Learning rates, step counts, seeds of dropout and loss scales keep changing (they are `core.live.Cell`s and
    `each_step` functions).

    Inputs are tensors or nodes, NumPy arrays if `queue` is given, or plain values, which count as constants: another
    value records again, as does a parameter whose `value` was replaced, and an optimizer whose settings ask for another
    update, whose parameters were frozen or whose step counts went apart, and gradients that `fn` reads and something
    outside replaced. What `fn` returns comes back at every call as
    the same objects, overwritten by the next call: read or copy what you want to keep. Threads take turns.

    Each state has a recording of its own: grad, autocast and anomaly mode, the attributes of all modules that `fn`
    reaches (training flags, numbers, parameters, children), and what its global names and closure variables hold. So
    after `model.eval()` the step runs and is recorded for evaluation, and after `model.train()` the first recording is
    replayed. What `fn` itself changes does not count.

    What cannot be recorded raises CaptureError: reading values on the host inside `fn` (return them instead), two
    queues, and state kept by putting a new tensor in the place of an old one (write into it, as parameters, moments and
    running statistics do). Python code of `fn` does not run in replays: numbers drawn from `random` or `numpy.random`
    stay the same (a warning says so), and after changing a list, a dict or an attribute of an object that is no module
    call `reset()`.

    Args: warmup: calls that run as always before one is recorded. tier: forces a way to replay (runtime.replay).
        queue: for inputs that are NumPy arrays. keep: recordings kept, one for each combination of shapes and state.
    """

    def __init__(
        self, fn: Callable[..., Any], warmup: int = 1, tier: str | None = None, queue: Any = None, keep: int = 8
    ) -> None:
        self.fn, self.warmup, self.tier, self.keep = fn, warmup, tier, keep
        self.queue = None if queue is None else queue_of("CompiledStep", queue)
        self._states: OrderedDict[Key, list[_State]] = OrderedDict()  # used last at the end, and first in its list
        self._last: tuple[Key, _State] | None = None  # what the latest replay was of
        self._seen = 0  # states since the start
        self._outdated = 0  # calls that found a recording that no longer held
        self._places: dict[Any, Binding] = {}  # names that `fn` reads
        self._known: tuple[Any, ...] = ()  # and what they held when they were last looked at
        self._warned: set[str] = set()
        self._lock = threading.RLock()
        functools.update_wrapper(self, fn, updated=())

    def __get__(self, instance: Any, owner: Any = None) -> CompiledStep:
        """As a decorated method: a step of the instance's own, kept in its `__dict__`."""
        if instance is None:
            return self
        name = self.fn.__name__
        if name not in vars(instance):
            fn = self.fn.__get__(instance, owner)
            vars(instance)[name] = CompiledStep(fn, self.warmup, self.tier, self.queue, self.keep)
        step: CompiledStep = vars(instance)[name]
        return step

    def __call__(self, *inputs: Any) -> Any:
        """One step on this batch. Part of another step's recording when that calls it."""
        if state.reached is not None:
            state.reached.functions.append(self)
        if live.active is not None and live.recording() is not None:
            return self.fn(*[self._on_device(x) for x in inputs])
        key = _key(inputs)
        with self._lock:
            if self._known and moved(self._known):
                self._known = known_bindings(self._places.values())
                changes.add()
            last = self._last
            if last is not None and last[1].snapshot.checked == changes.version and last[0] == key:
                found: _State | None = last[1]
            else:
                last, found = None, self._found(key)
            if found is None or found.recorded is None:
                return self._run(key, found, inputs)
            recorded = found.recorded
            if not recorded.holds():
                return self._again(key, found, inputs)
            if last is None:
                self._states.move_to_end(key)
                self._last = key, found
            for target, slot, x in zip(recorded.inputs, recorded.slots, inputs, strict=True):
                if target is not None:
                    _bring(recorded.capture, target, slot, x)
            try:
                recorded.capture.replay()
            except OutdatedError:
                return self._again(key, found, inputs)
            return recorded.result

    def _again(self, key: Key, found: _State, inputs: Sequence[Any]) -> Any:
        """A call for which the recording is outdated; many of them are worth a warning."""
        self._outdated += 1
        if self._outdated == OFTEN:
            self._warn(
                f"CompiledStep: recorded anew {OFTEN} times since what its recording depends on changed between calls: "
                "the memory of parameters, an optimizer's settings or counts, or gradients computed outside; compute "
                "gradients inside, or in another CompiledStep, which writes them in place."
            )
        return self._record(key, found, inputs)

    def _found(self, key: Key) -> _State | None:
        """What there is for these inputs and the state of everything now."""
        states = self._states.get(key, [])
        for i, found in enumerate(states):
            if not found.snapshot.difference():
                if i:
                    states.insert(0, states.pop(i))
                return found
        return None

    def _run(self, key: Key, found: _State | None, inputs: Sequence[Any]) -> Any:
        """A call that there is no recording for: the first ones run as always."""
        if found is None:
            self._count(key)
        if (0 if found is None else found.calls) >= self.warmup:
            return self._record(key, found, inputs)
        arguments = [self._on_device(x) for x in inputs]
        with route.collect() as decisions:
            result, snapshot, _ = self._followed(lambda: self.fn(*arguments))
        made = self._state(key, found, snapshot)
        made.calls += 1
        made.decisions += decisions
        return result

    def _count(self, key: Key) -> None:
        """Count a new combination; many of them are worth a warning."""
        self._seen += 1
        if self._seen == 4 * self.keep:
            changed = next((name for s in self._states.get(key, ()) if (name := s.snapshot.difference())), "")
            self._warn(
                f"CompiledStep: {self._seen} combinations of shapes and plain values, or of what the step depends on"
                f"{changed and f' (last {changed})'}, so far, each recorded anew; pass numbers that change as tensors "
                "or core.live.Cells, and pad batches to few shapes."
            )

    def _state(self, key: Key, found: _State | None, snapshot: Snapshot) -> _State:
        """The state of a call that ran, kept first in its list."""
        self._last = None
        states = self._states.setdefault(key, [])
        self._states.move_to_end(key)
        if found is None:
            found = _State(snapshot)
            states.insert(0, found)
        found.snapshot = snapshot
        while sum(map(len, self._states.values())) > 8 * self.keep:
            self._drop_oldest()
        return found

    def _drop_oldest(self) -> None:
        key = next(iter(self._states))
        self._states[key].pop()
        if not self._states[key]:
            del self._states[key]

    def _followed(self, run: Callable[[], Any]) -> tuple[Any, Snapshot, Reached]:
        """What `run` returns, what it depended on, and what it reached."""
        before = data_bindings(self.fn)
        outer, state.reached = state.reached, Reached()
        try:
            result, reached = run(), state.reached
        finally:
            state.reached = outer
        places = without_changed(before) + [p for f in reached.functions for p, _ in data_bindings(f.fn)]
        self._places = {(id(place.space), place.name): place for place in places}
        self._known = known_bindings(self._places.values())
        inner = [m for f in reached.functions for m in f.reached()]
        roots = [self.fn, *reached.modules, *reached.functions, *inner]
        return result, Snapshot(roots, list(self._places.values()), reached.written), reached

    def reached(self) -> list[Any]:
        """The modules that it depends on."""
        return [m for states in self._states.values() for found in states for m in found.snapshot.modules()]

    def _warn(self, text: str) -> None:
        if text and text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, stacklevel=6)

    def _on_device(self, x: Any) -> Any:
        if isinstance(x, Node) and x.requires_grad:
            raise GradientError(
                "CompiledStep: expected inputs that need no gradient, got one that requires it; make it a Parameter "
                "that fn refers to, or compute and return the gradient inside fn."
            )
        if not isinstance(x, np.ndarray):
            return x
        if self.queue is None:
            raise DTypeError(
                "CompiledStep: expected tensors, got a NumPy array and no queue to put it on; pass queue= or use "
                "Tensor.from_host."
            )
        return Tensor.from_host(self.queue, x)

    def _record(self, key: Key, found: _State | None, inputs: Sequence[Any]) -> Any:
        own: list[Any] = []
        for x in inputs:
            x = self._on_device(x)
            value = x.value if isinstance(x, Node) else x
            own.append(elementwise.copy(value) if isinstance(value, Tensor) else None)
        arguments = [
            x if t is None else Node(t) if isinstance(x, Node) else t for x, t in zip(inputs, own, strict=True)
        ]
        capture, draws = KernelCapture(self.tier, host_reads=False), Draws()
        (result, leaves), snapshot, reached = self._followed(functools.partial(self._captured, capture, arguments))
        del arguments
        name = self.__dict__.get("__name__", "fn")
        lost = capture.recording.abandoned() if capture.recording is not None else 0
        if lost:
            raise CaptureError(
                f"CompiledStep: expected {name} to write its state in place, got {lost} "
                "bytes of tensors that it used and then replaced by new ones, where a replay would use the old; use "
                "ops.elementwise.assign(old, new), or reset gradients inside the step with zero_grad()."
            )
        self._warn(draws.warning(f"CompiledStep: {name}", "recorded"))
        for changed in filter(None, reached.written.values()):
            self._warn(
                f"CompiledStep: {changed} changed while {name} was recorded, and replays run no Python: it stays as it "
                "is; keep it in a core.live.Cell or change it outside the step."
            )
        slots = tuple(None if t is None else capture.slot_of(t.buffer) for t in own)
        capture.warm_up()
        held = snapshot.owned()
        owned = frozenset(id(node) for node in leaves if id(node) in held)
        made, buffers = self._state(key, found, snapshot), tuple(map(_BUFFER, leaves))
        gradients = _from_outside(capture, leaves)
        made.recorded = _Recorded(capture, tuple(own), slots, leaves, buffers, gradients, owned, result)
        # a recording whose parameters left their modules is never used again
        self._states[key] = [s for s in self._states[key] if s.recorded is None or s.recorded.owned <= held.keys()]
        while len(self.captures) > self.keep:
            self._drop_oldest()
        return result

    def _captured(self, capture: KernelCapture, arguments: list[Any]) -> tuple[Any, tuple[Node, ...]]:
        """What `fn` returned while `capture` recorded it, and the parameters it used."""
        before, state.leaves = state.leaves, []
        try:
            with _recording, capture:
                result = self.fn(*arguments)
            read = [] if capture.recording is None else capture.recording.parameters
            found = {p.key: p for p in (*state.leaves, *read) if isinstance(p, Node) and p.requires_grad}
        finally:
            state.leaves = before
        return result, tuple(found.values())

    def reset(self) -> None:
        """Drop every recording and its memory; the next call starts over."""
        self._states.clear()
        self._last = None
        self._seen = 0

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def captures(self) -> tuple[KernelCapture, ...]:
        """The recordings, the one used last at the end."""
        return tuple(recorded.capture for _, recorded in self._recordings())

    def _recordings(self) -> list[tuple[Key, _Recorded]]:
        return [(key, s.recorded) for key, states in self._states.items() for s in states[::-1] if s.recorded]

    @property
    def num_launches(self) -> int:
        """Launches of the recording used last, 0 before there is one."""
        found = self.captures
        return found[-1].num_launches if found else 0

    def explain(self) -> str:
        """For each recording: inputs, launches, bytes, and how it is replayed."""
        found = self._recordings()
        if not found:
            calls = sum(s.calls for states in self._states.values() for s in states)
            return f"nothing recorded yet after {calls} calls; {self.warmup} a shape run as always"
        parts = []
        for key, recorded in found:
            inputs = ", ".join(
                f"{d[2]}{list(d[1])}" if d[0] in ("tensor", "node", "array") else repr(d) for d in key[3:]
            )
            parts.append(f"inputs: {inputs or 'none'}\n{recorded.capture.explain()}")
        decisions = [d for states in self._states.values() for s in states for d in s.decisions]
        if decisions:
            lines = lines_of(decisions)
            parts.append("\n".join(["routes, with costs in cycles of a compute unit:", *(f"  {x}" for x in lines)]))
        return "\n\n".join(parts)


def _memory(x: Tensor | None) -> Any:
    return None if x is None else x.buffer


def _from_outside(capture: KernelCapture, leaves: Sequence[Node]) -> tuple[tuple[Node, Any], ...]:
    """The parameters with the memory of their gradients, if the recording reads some that it did not compute."""
    recording, held = capture.recording, [(p, _memory(p.grad)) for p in leaves]
    if recording is None or not any(buffer is not None and recording.was_before(buffer) for _, buffer in held):
        return ()
    return tuple(held)


def _key(inputs: Sequence[Any]) -> Key:
    """What a recording depends on: modes; kind, shape, dtype and queue of tensors; a plain value itself."""
    modes = (state.enabled, state.autocast, state.anomaly, route.mode)
    found: list[Any] = [modes, registered.serial, hooks.changes.serial]
    for x in inputs:
        if isinstance(x, Node):
            value = x.value
            found.append(("node", value.shape, value.dtype, id(value.queue), x.requires_grad))
        elif isinstance(x, Tensor):
            found.append(("tensor", x.shape, x.dtype, id(x.queue)))
        elif isinstance(x, np.ndarray):
            found.append(("array", x.shape, x.dtype, None))
        elif isinstance(x, (list, dict, set)) or (isinstance(x, tuple) and any(isinstance(e, _ARRAYS) for e in x)):
            raise DTypeError(
                f"CompiledStep: expected tensors, arrays or plain values as inputs, got a {type(x).__name__}; pass its "
                "elements as arguments of their own."
            )
        else:
            found.append(("value", type(x), x))
    return tuple(found)


def _bring(capture: KernelCapture, target: Tensor, slot: Any, x: Any) -> None:
    """Make the recording read `x` as its input `target`: where it is if it can, else from a copy.

    What the recording itself writes, such as the result of the call before, has to be copied.
    """
    queue = target.queue
    if slot is not None:
        t = x.value if isinstance(x, Node) else x
        if isinstance(t, Tensor) and t.offset == 0 and layout.is_contiguous(t.shape, t.strides):
            buffer = t.buffer
            if buffer is slot.bound:
                return
            if not capture.uses(buffer):
                slot.bind(buffer)
                return
        slot.bind(target.buffer)
    if isinstance(x, np.ndarray):
        versions.wrote(target)
        if isinstance(queue, CPUQueue):
            target.array[...] = x
        else:
            opencl.write(queue, target.buffer, x.astype(target.dtype, copy=False))
        return
    source = x.value if isinstance(x, Node) else x
    if source.buffer is target.buffer:
        return
    if not isinstance(queue, CPUQueue) and source.is_contiguous:
        size = target.dtype.itemsize
        versions.wrote(target)
        opencl.copy_buffer(queue, target.buffer, source.buffer, source.nbytes, 0, source.offset * size)
    else:
        elementwise.assign(target, source)


CompiledGraph = CompiledStep
