"""A pipeline of named steps, described first and run later, with intermediate memory given back as early as possible.

    pool = BufferPool(queue)
    graph = Graph()
    a = graph.add_op("add", add_fn, [x, y], shape=(4,), dtype="float32")
    b = graph.add_op("relu", relu_fn, [a], shape=(4,), dtype="float32")
    result = GraphExecutor(pool).run(graph)

Each step's `fn(inputs, out)` gets tensors and fills `out` in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from netcl.core import layout
from netcl.core.dtypes import as_dtype
from netcl.core.errors import DeviceError, ShapeError, add_note
from netcl.core.layout import Shape
from netcl.core.memory import BufferHandle, BufferPool
from netcl.core.tensor import Tensor


@dataclass(frozen=True, eq=False)
class TensorRef:
    """Stands for the output of a step until the graph runs."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the output."""
        return layout.size_of(self.shape) * self.dtype.itemsize


@dataclass(eq=False)
class _Step:
    name: str
    fn: Callable[[list[Tensor], Tensor], Any]
    inputs: list[Tensor | TensorRef]
    output: TensorRef


@dataclass(eq=False)
class Graph:
    """Steps in the order they were added; they may refer to steps added later through `set_inputs`."""

    steps: list[_Step] = field(default_factory=list)

    def add_op(
        self,
        name: str,
        fn: Callable[[list[Tensor], Tensor], Any],
        inputs: Sequence[Tensor | TensorRef],
        shape: Any = None,
        dtype: Any = "float32",
    ) -> TensorRef:
        """Add a step and return the stand-in for its output.

        Args: fn: called as fn(inputs, out). inputs: tensors, or the refs of other steps. shape, dtype: of the output;
            the shape of the first input when None.
        """
        inputs = _checked("add_op", name, inputs)
        if not callable(fn):
            raise TypeError(f"add_op: expected a function fn(inputs, out) for {name!r}, got {type(fn).__name__}.")
        if shape is None:
            if not inputs:
                raise ShapeError(f"add_op: expected a shape for {name!r}, which has no inputs to take it from.")
            shape = inputs[0].shape
        ref = TensorRef(name, layout.as_shape("add_op", shape), as_dtype(dtype))
        self.steps.append(_Step(name, fn, inputs, ref))
        return ref

    def set_inputs(self, ref: TensorRef, inputs: Sequence[Tensor | TensorRef]) -> None:
        """Replace the inputs of the step behind `ref`."""
        step = next((s for s in self.steps if s.output is ref), None)
        if step is None:
            raise ValueError(f"set_inputs: expected the ref of a step of this graph, got {ref.name!r}.")
        step.inputs = _checked("set_inputs", ref.name, inputs)

    def order(self) -> list[_Step]:
        """The steps so that each comes after those it needs, otherwise as added. Raises ValueError naming a cycle."""
        by_output = {id(s.output): s for s in self.steps}
        done: set[int] = set()
        path: dict[int, _Step] = {}  # from the step asked for to the one being looked at
        result: list[_Step] = []
        for first in self.steps:
            stack: list[tuple[_Step, bool]] = [(first, False)]
            while stack:
                step, finished = stack.pop()
                if finished:
                    path.popitem()
                    done.add(id(step))
                    result.append(step)
                elif id(step) not in done:
                    if id(step) in path:
                        names = [s.name for s in list(path.values())[list(path).index(id(step)) :]]
                        raise ValueError(f"graph: expected no cycle, got {' -> '.join([*names, step.name])}.")
                    path[id(step)] = step
                    stack.append((step, True))
                    stack += [(self._source(x, step, by_output), False) for x in reversed(step.inputs) if _is_ref(x)]
        return result

    @staticmethod
    def _source(ref: Any, user: _Step, by_output: dict[int, _Step]) -> _Step:
        if id(ref) not in by_output:
            raise ValueError(f"graph: expected {user.name!r} to use refs of this graph, got {ref.name!r} of another.")
        return by_output[id(ref)]


def _checked(where: str, name: str, inputs: Sequence[Any]) -> list[Tensor | TensorRef]:
    for x in inputs:
        if not isinstance(x, (Tensor, TensorRef)):
            raise TypeError(f"{where}: expected tensors or refs as inputs of {name!r}, got {type(x).__name__}.")
    return list(inputs)


def _is_ref(x: Any) -> bool:
    return isinstance(x, TensorRef)


class GraphExecutor:
    """Runs graphs with memory from `pool`. `peak_bytes` is the most that outputs of the last run took at one time."""

    def __init__(self, pool: BufferPool) -> None:
        self.pool = pool
        self.peak_bytes = 0

    def run(self, graph: Graph) -> Tensor:
        """Run every step and return the output of the one added last; it is yours to keep.

        An output goes back to the pool after the last step that needs it, or at once when nothing does. An exception in
        a step gives every buffer back and goes on to the caller, with the step named in a note. Raises ValueError for
        cycles and empty graphs.
        """
        order = graph.order()
        if not order:
            raise ValueError("graph: expected at least one step, got none; add_op() first.")
        final = graph.steps[-1].output
        users = {id(step.output): 0 for step in order}
        for step in order:
            for ref in {id(x): x for x in step.inputs if _is_ref(x)}.values():
                users[id(ref)] += 1
        users[id(final)] += 1  # the caller
        live: dict[int, tuple[Tensor, BufferHandle]] = {}
        held = 0
        self.peak_bytes = 0
        try:
            for step in order:
                inputs = [live[id(x)][0] if isinstance(x, TensorRef) else x for x in step.inputs]
                out = live[id(step.output)] = self._allocate(step.output, inputs)
                held += step.output.nbytes
                self.peak_bytes = max(self.peak_bytes, held)
                self._call(step, inputs, out[0])
                for ref in {id(x): x for x in [*step.inputs, step.output] if isinstance(x, TensorRef)}.values():
                    users[id(ref)] -= ref is not step.output
                    if users[id(ref)] == 0:
                        held -= ref.nbytes
                        self._release(live.pop(id(ref)))
            return live.pop(id(final))[0]
        finally:
            for entry in live.values():
                self._release(entry)

    @staticmethod
    def _call(step: _Step, inputs: list[Tensor], out: Tensor) -> None:
        try:
            result = step.fn(inputs, out)
            if isinstance(result, Tensor) and result is not out:
                raise TypeError("graph: expected fn(inputs, out) to fill `out`, got a new tensor; assign(out, result).")
        except Exception as error:
            add_note(error, f"in step {step.output.name!r} of the graph")
            raise

    def _allocate(self, ref: TensorRef, inputs: list[Tensor]) -> tuple[Tensor, BufferHandle]:
        queue = self.pool.queue or next((x.queue for x in inputs), None)
        if queue is None:
            raise DeviceError(
                f"graph: expected a pool made from a queue, or a tensor among the inputs of {ref.name!r}."
            )
        handle = self.pool.allocate(ref.nbytes)
        return Tensor(handle.buffer, ref.shape, layout.contiguous_strides(ref.shape), 0, ref.dtype, queue), handle

    @staticmethod
    def _release(entry: tuple[Tensor, BufferHandle]) -> None:
        tensor, handle = entry
        tensor.buffer = None  # a step that kept the tensor must not see the memory of others
        handle.release()
