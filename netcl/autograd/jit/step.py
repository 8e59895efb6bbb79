"""A whole training step as one recording: forward, backward, clipping, optimizer, without Python in between."""

from __future__ import annotations

import functools
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from netcl.autograd.node import Node
from netcl.autograd.state import state
from netcl.core import live, versions
from netcl.core.backend import opencl
from netcl.core.errors import CaptureError, DTypeError, GradientError
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor
from netcl.ops import elementwise
from netcl.runtime.capture.capture import KernelCapture, OutdatedError

Key = tuple[Any, ...]
_recording = threading.Lock()  # steps of several threads are recorded one after the other
_ARRAYS = (Tensor, Node, np.ndarray)


class _Recorded(NamedTuple):
    capture: KernelCapture
    inputs: tuple[Any, ...]  # tensors that batches are copied to; None for arguments that are no tensors
    slots: tuple[Any, ...]  # BufferSlots for those that can be used where they are, else None
    leaves: tuple[tuple[Node, Any], ...]  # parameters and the memory they had
    result: Any

    def holds(self) -> bool:
        """Whether the parameters still have the memory that the recording uses."""
        return all(node.value.buffer is buffer for node, buffer in self.leaves)


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
    Learning rates, step counts, seeds of dropout and loss scales keep changing (they are `core.rebind.Cell`s and
    `each_step` functions).

    Inputs are tensors or nodes, NumPy arrays if `queue` is given, or plain values, which count as constants: another
    value records again, as does a parameter whose `value` was replaced, and an optimizer whose settings ask for another
    update, whose parameters were frozen or whose step counts went apart. What `fn` returns comes back at every call as
    the same objects, overwritten by the next call: read or copy what you want to keep. Threads take turns.

    What cannot be recorded raises CaptureError: reading values on the host inside `fn` (return them instead), two
    queues, and state kept by putting a new tensor in the place of an old one (write into it, as parameters, moments and
    running statistics do). Python code of `fn` does not run in replays: call `reset()` after changing what it decides,
    for example after `model.eval()`.

    Args: warmup: calls that run as always before one is recorded. tier: forces a way to replay (runtime.replay).
        queue: for inputs that are NumPy arrays. keep: recordings kept, one for each combination of input shapes.
    """

    def __init__(
        self, fn: Callable[..., Any], warmup: int = 1, tier: str | None = None, queue: Any = None, keep: int = 8
    ) -> None:
        self.fn, self.warmup, self.tier, self.queue, self.keep = fn, warmup, tier, queue, keep
        self._calls: dict[Key, int] = {}
        self._recorded: OrderedDict[Key, _Recorded] = OrderedDict()
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
        return vars(instance)[name]  # type: ignore[no-any-return]

    def __call__(self, *inputs: Any) -> Any:
        """One step on this batch. Part of another step's recording when that calls it."""
        if live.recording() is not None:
            return self.fn(*[self._on_device(x) for x in inputs])
        key = (state.enabled, *[_describe(x) for x in inputs])
        with self._lock:
            found = self._recorded.get(key)
            if found is None:
                return self._run(key, inputs)
            if not found.holds():
                return self._record(key, inputs)
            self._recorded.move_to_end(key)
            for target, slot, x in zip(found.inputs, found.slots, inputs, strict=True):
                if target is not None:
                    _bring(found.capture, target, slot, x)
            try:
                found.capture.replay()
            except OutdatedError:
                return self._record(key, inputs)
            return found.result

    def _run(self, key: Key, inputs: Sequence[Any]) -> Any:
        """A call with inputs that there is no recording for: the first ones run as always."""
        count = self._calls[key] = self._calls.get(key, 0) + 1
        if count == 1 and len(self._calls) == 4 * self.keep:
            warnings.warn(
                f"CompiledStep: {len(self._calls)} combinations of shapes and plain values so far, each recorded anew; "
                "pass numbers that change as tensors or core.rebind.Cells, and pad batches to few shapes.",
                stacklevel=3,
            )
        if count <= self.warmup:
            return self.fn(*[self._on_device(x) for x in inputs])
        return self._record(key, inputs)

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

    def _record(self, key: Key, inputs: Sequence[Any]) -> Any:
        own: list[Any] = []
        for x in inputs:
            x = self._on_device(x)
            value = x.value if isinstance(x, Node) else x
            own.append(elementwise.copy(value) if isinstance(value, Tensor) else None)
        arguments = [
            x if t is None else Node(t) if isinstance(x, Node) else t for x, t in zip(inputs, own, strict=True)
        ]
        capture = KernelCapture(self.tier)
        result, leaves = self._captured(capture, arguments)
        del arguments
        lost = capture.recording.abandoned() if capture.recording is not None else 0
        if lost:
            raise CaptureError(
                f"CompiledStep: expected {self.__dict__.get('__name__', 'fn')} to write its state in place, got {lost} "
                "bytes of tensors that it used and then replaced by new ones, where a replay would use the old; use "
                "ops.elementwise.assign(old, new), or reset gradients inside the step with zero_grad()."
            )
        slots = tuple(None if t is None else capture.slot_of(t.buffer) for t in own)
        capture.warm_up()
        self._recorded[key] = _Recorded(capture, tuple(own), slots, leaves, result)
        while len(self._recorded) > self.keep:
            self._recorded.popitem(last=False)
        return result

    def _captured(self, capture: KernelCapture, arguments: list[Any]) -> tuple[Any, tuple[tuple[Node, Any], ...]]:
        """What `fn` returned while `capture` recorded it, and the parameters it used with their memory."""
        before, state.leaves = state.leaves, []
        try:
            with _recording, capture:
                result = self.fn(*arguments)
            found = {node.key: node for node in state.leaves if node.requires_grad}
        finally:
            state.leaves = before
        return result, tuple((node, node.value.buffer) for node in found.values())

    def reset(self) -> None:
        """Drop every recording and its memory; the next call starts over."""
        self._recorded.clear()
        self._calls.clear()

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def captures(self) -> tuple[KernelCapture, ...]:
        """The recordings, the one used last at the end."""
        return tuple(r.capture for r in self._recorded.values())

    @property
    def num_launches(self) -> int:
        """Launches of the recording used last, 0 before there is one."""
        return self.captures[-1].num_launches if self._recorded else 0

    def explain(self) -> str:
        """For each recording: inputs, launches, bytes, and how it is replayed."""
        if not self._recorded:
            return f"nothing recorded yet after {sum(self._calls.values())} calls; {self.warmup} a shape run as always"
        parts = []
        for key, found in self._recorded.items():
            inputs = ", ".join(
                f"{d[2]}{list(d[1])}" if d[0] in ("tensor", "node", "array") else repr(d) for d in key[1:]
            )
            parts.append(f"inputs: {inputs or 'none'}\n{found.capture.explain()}")
        return "\n\n".join(parts)


def _describe(x: Any) -> Any:
    """What a recording depends on: kind, shape, dtype and queue of a tensor; a plain value itself."""
    if isinstance(x, Node):
        return "node", x.value.shape, x.value.dtype, id(x.value.queue), x.requires_grad
    if isinstance(x, Tensor):
        return "tensor", x.shape, x.dtype, id(x.queue)
    if isinstance(x, np.ndarray):
        return "array", x.shape, x.dtype, None
    if isinstance(x, (list, dict, set)) or (isinstance(x, tuple) and any(isinstance(e, _ARRAYS) for e in x)):
        raise DTypeError(
            f"CompiledStep: expected tensors, arrays or plain values as inputs, got a {type(x).__name__}; pass its "
            "elements as arguments of their own."
        )
    return "value", type(x), x


def _bring(capture: KernelCapture, target: Tensor, slot: Any, x: Any) -> None:
    """Make the recording read `x` as its input `target`: where it is if it can, else from a copy.

    What the recording itself writes, such as the result of the call before, has to be copied.
    """
    queue = target.queue
    if slot is not None:
        t = x.value if isinstance(x, Node) else x
        if isinstance(t, Tensor) and t.offset == 0 and t.is_contiguous and not capture.uses(t.buffer):
            slot.bind(t.buffer)
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
