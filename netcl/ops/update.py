"""Steps of optimizers over many tensors in one launch: the rows of `update_rows.py`, with their states and numbers.

Parameters of float16 and bfloat16 keep a float32 master copy as one more state; one that was written from outside since
the last step is taken over into its master copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from netcl.core import versions
from netcl.core.backend import cpu
from netcl.core.dtypes import FLOAT32, NARROW, DType, compute_dtype, is_float
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.kernels import dialect
from netcl.core.layout import contiguous_strides, is_contiguous
from netcl.core.live import Cell, each_step, recording, unrecorded
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor, same_queue
from netcl.fusion import many as multi
from netcl.ops import elementwise
from netcl.ops.update_rows import UPDATES, Update, add_update

__all__ = ["UPDATES", "Update", "Updater", "add_update", "update"]


class Updater:
    """The states of one row for some tensors of one queue and dtype, and the step over all of them in one launch.

    Narrow tensors (float16, bfloat16) get a float32 master copy as one more state. `states[name][i]` is the state of
    tensor i, shaped alike: float32 for narrow tensors, else of the tensor's dtype.
    """

    def __init__(self, row: str, tensors: Sequence[Tensor]) -> None:
        self.row = UPDATES[row]
        self.queue = same_queue(row, *tensors)
        self.dtype: DType = tensors[0].dtype
        self.master = self.dtype in NARROW
        if any(t.dtype != self.dtype for t in tensors) or not is_float(self.dtype):
            found = ", ".join(sorted({str(t.dtype) for t in tensors}))
            raise DTypeError(f"{row}: expected tensors of one floating dtype, got {found}.")
        ends = np.cumsum([0, *(multi.padded(t.size) for t in tensors)]).tolist()
        self.starts: tuple[int, ...] = tuple(ends[:-1])
        names = (*self.row.states, "master") if self.master else self.row.states
        with unrecorded():
            dtype = compute_dtype(self.dtype)
            self.flats = {name: Tensor.zeros(self.queue, (ends[-1],), dtype) for name in names}
            self.states = {n: [_part(flat, s, t) for s, t in zip(ends, tensors)] for n, flat in self.flats.items()}
            for state, t in zip(self.states.get("master", ()), tensors):
                elementwise.assign(state, t)
        self._rows = [list(row) for row in zip(*self.states.values())] or [[] for _ in tensors]  # states by tensor

    def run(
        self,
        tensors: Sequence[Tensor],
        gradients: Sequence[Tensor | None],
        scalars: Callable[[], Mapping[str, float]],
        gate: Tensor | None = None,
    ) -> None:
        """Update `tensors` in place; those without a gradient stay as they are.

        `scalars` is asked once now and once before each replay of a recording. `gate` is a number on the device that
        gradients are multiplied by; where it is NaN or infinite nothing changes, states included.
        """
        members = [i for i, g in enumerate(gradients) if g is not None and 0 not in g.shape]
        if members:
            chosen, states, starts = list(tensors), self._rows, self.starts
            if len(members) < len(chosen):
                chosen, states = [tensors[i] for i in members], [states[i] for i in members]
                gradients, starts = [gradients[i] for i in members], tuple([starts[i] for i in members])
            _apply(self.row, chosen, gradients, scalars, gate, self.master, states, starts, tuple(self.flats.values()))


def _apply(
    row: Update, tensors: list[Tensor], gradients: Sequence[Any], scalars: Callable[[], Mapping[str, float]],
    gate: Tensor | None, master: bool = False, states: Sequence[list[Tensor]] = (), starts: tuple[int, ...] = (),
    flats: tuple[Tensor, ...] = (),
) -> None:  # fmt: skip
    """One launch (on NumPy one call a tensor) of `row` over tensors of one queue and dtype, none of them empty."""
    numbers = _numbers(row, scalars)
    versions.wrote(*tensors, *flats, where=row.name)
    grads = [_gradient(row.name, t, g) for t, g in zip(tensors, gradients)]
    gate = None if gate is None else _checked(row.name, gate)
    if isinstance(tensors[0].queue, CPUQueue):
        fn = _numpy(row, master, gate is not None)
        for i, (p, g) in enumerate(zip(tensors, grads)):
            inputs = [*[g] * row.reads_gradient, *([] if gate is None else [gate])]
            cpu.update(fn, [p, *(states[i] if states else ())], *inputs, scalars=numbers)
        return
    work = [t if is_contiguous(t.shape, t.strides) else t.contiguous() for t in tensors]
    arrays = [work, grads] if row.reads_gradient else [work]
    extra = () if gate is None else (gate.buffer,)
    multi.run(row.body(master, gate is not None), arrays, starts, extra, flats, numbers)
    for t, w in zip(tensors, work):
        if w is not t:
            elementwise.assign(t, w)


def _numbers(row: Update, scalars: Callable[[], Mapping[str, float]]) -> tuple[Any, ...]:
    """The row's numbers now; while a recording is made, cells that are filled again before each of its replays."""
    _, count, numbers = row.compiled
    if recording() is None:
        return numbers(**scalars())
    cells = tuple([Cell(0.0) for _ in range(count)])

    def refresh() -> None:
        for cell, value in zip(cells, numbers(**scalars())):
            cell.value = value

    each_step(refresh)
    return cells


def _checked(where: str, gate: Tensor) -> Tensor:
    """The gate as a kernel reads it: one float32 at the start of its buffer."""
    if gate.size != 1 or gate.dtype != FLOAT32:
        raise ShapeError(f"{where}: expected a gate of one float32, got {gate.shape} {gate.dtype}.")
    return gate.copy() if gate.offset else gate


_functions: dict[Any, Callable[..., Any]] = {}
dialect.forget.append(_functions.clear)


def _numpy(row: Update, master: bool, gated: bool) -> Callable[..., Any]:
    key = (row, master, gated)
    if key not in _functions:
        _functions[key] = row.numpy(master, gated)
    return _functions[key]


def _part(flat: Tensor, start: int, like: Tensor) -> Tensor:
    """The elements of `flat`, a contiguous tensor of one axis, from `start` on as a tensor of the shape of `like`."""
    return Tensor(flat.buffer, like.shape, contiguous_strides(like.shape), flat.offset + start, flat.dtype, flat.queue)


def _gradient(name: str, p: Tensor, g: Tensor) -> Tensor:
    """`g` as the kernel reads it, checked against its parameter."""
    if g.shape != p.shape:
        raise ShapeError(f"{name}: expected a gradient of shape {p.shape}, got {g.shape}.")
    if g.dtype != p.dtype:
        g = g.astype(p.dtype)
    return g if is_contiguous(g.shape, g.strides) else g.contiguous()


def update(
    row: str,
    tensors: Sequence[Tensor],
    others: Sequence[Tensor] | None = None,
    gate: Tensor | None = None,
    **scalars: float,
) -> None:
    """Apply a row without states, such as "ema" or "scale", to `tensors` in place; `others` stand for `g`."""
    others = tensors if others is None else others
    same_queue(row, *tensors, *others)
    for members in multi.batches(tensors):
        members = [i for i in members if tensors[i].size]
        if members:
            _apply(UPDATES[row], [tensors[i] for i in members], [others[i] for i in members], lambda: scalars, gate)
