"""Update rows: the step of an optimizer as assignments in the dialect, run over many tensors in one launch.

A row reads the parameter `p`, its gradient `g`, states that live between steps, and scalars:

    adamw:  m = b1 * m + (1 - b1) * g
            v = b2 * v + (1 - b2) * g * g
            p = (1 - lr * decay) * p - lr / c1 * m / (sqrt(v) * (1 / sqrt(c2)) + eps)

Parts that read only scalars, such as `lr / c1`, are worked out on the host in double precision and passed as numbers.
The same text becomes the OpenCL kernel and the NumPy function. Parameters of float16 and bfloat16 keep a float32 master
copy as one more state; one that was written from outside since the last step is taken over into its master copy.

Sources: Adam, Kingma and Ba 2015, arXiv:1412.6980; AMSGrad, Reddi et al. 2018, arXiv:1904.09237; AdamW, Loshchilov and
Hutter 2019, arXiv:1711.05101; RMSprop, Hinton, lecture 6e; Nesterov momentum, Sutskever et al. 2013.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from netcl.core import versions
from netcl.core.backend import cpu
from netcl.core.dtypes import FLOAT32, NARROW, DType, compute_dtype, is_float
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.kernels import dialect
from netcl.core.layout import is_contiguous
from netcl.core.live import Cell, each_step, recording, unrecorded
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor, same_queue
from netcl.fusion import many as multi
from netcl.ops import elementwise

_HOST = {"sqrt": math.sqrt, "exp": math.exp, "log": math.log, "abs": abs, "__builtins__": {}}


class _Hoist(ast.NodeTransformer):
    """Replaces the largest parts that read scalars only by names k0, k1, ..."""

    def __init__(self, scalars: frozenset[str]) -> None:
        self.scalars, self.found = scalars, {}  # type: tuple[frozenset[str], dict[str, str]]

    def visit(self, node: ast.AST) -> Any:
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - set(dialect.FUNCTIONS)
        if isinstance(node, ast.expr) and names and names <= self.scalars:
            text = ast.unparse(node)
            return ast.Name(self.found.setdefault(text, f"k{len(self.found)}"), ast.Load())
        return super().generic_visit(node)


@dataclass(frozen=True)
class Update:
    """One row. `states` start at zero; `scalars` change from step to step; statements are `name = formula`."""

    name: str
    states: tuple[str, ...]
    scalars: tuple[str, ...]
    text: tuple[str, ...]

    @cached_property
    def compiled(self) -> tuple[tuple[tuple[str, str], ...], int, Callable[..., tuple[float, ...]]]:
        """The statements with k0, k1, ... for what only scalars decide, how many there are, and what gives them."""
        hoist, statements = _Hoist(frozenset(self.scalars)), []
        for line in self.text:
            name, formula = (part.strip() for part in line.split("=", 1))
            tree = ast.parse(formula, mode="eval")
            statements.append((name, ast.unparse(ast.fix_missing_locations(hoist.visit(tree)))))
        given = ", ".join(self.scalars)
        numbers = eval(f"lambda {given}: ({''.join(f'{text}, ' for text in hoist.found)})", _HOST)
        return tuple(statements), len(hoist.found), numbers

    @cached_property
    def reads_gradient(self) -> bool:
        """Whether some formula reads g."""
        return any("g" in dialect.names(formula) for _, formula in self.compiled[0])

    def check(self) -> None:
        """Raise ValueError unless the row is in the dialect."""
        known = {*dialect.FUNCTIONS, "where", "p", "g", *self.states, *self.scalars}
        for line in self.text:
            name, formula = (part.strip() for part in line.split("=", 1))
            dialect._check_formula(self.name, formula, known)
            known.add(name)

    @cached_property
    def _bodies(self) -> dict[tuple[bool, bool], multi.Body]:
        return {}

    def body(self, master: bool, gated: bool) -> multi.Body:
        """The row as a kernel body."""
        if (master, gated) not in self._bodies:
            self._bodies[master, gated] = self._body(master, gated)
        return self._bodies[master, gated]

    def _body(self, master: bool, gated: bool) -> multi.Body:
        statements, count, _ = self.compiled
        reads = ("p", "g") if self.reads_gradient else ("p",)
        states = (*self.states, "master") if master else self.states
        scalars = tuple(f"k{i}" for i in range(count))
        name = f"{self.name}{'_half' * master}{'_gated' * gated}"
        return multi.Body(name, statements, states, scalars, reads, True, None, master, gated)

    def numpy(self, master: bool, gated: bool) -> Callable[..., Any]:
        """The row as fn(p, *states, g[, gate], scalars) -> (p, *states) over arrays."""
        body = self.body(master, gated)
        given = [*body.reads[:1], *body.states, *body.reads[1:], *["gate"] * gated]
        lines = [f"def {body.name}({', '.join(given)}, scalars):"]
        lines += [f"    {', '.join(body.scalars)}, = scalars"] if body.scalars else []
        lines += [f"    if not isfinite(gate[0]): return p, {', '.join(body.states)}", "    g = g * gate[0]"] * gated
        lines += ["    p = where(master.astype(p.dtype) == p, master, p)"] * master
        lines += [f"    {name} = {name}.astype(compute(p.dtype), copy=False)" for name in reversed(body.reads)]
        lines += [f"    {name} = {formula}" for name, formula in body.statements]
        lines.append(f"    return p, {', '.join('p' if s == 'master' else s for s in body.states)}")
        space: dict[str, Callable[..., Any]] = {**dialect.NUMPY, "isfinite": np.isfinite, "compute": compute_dtype}
        exec("\n".join(lines), space)
        return space[body.name]


_ADAM = ("m = b1 * m + (1 - b1) * g", "v = b2 * v + (1 - b2) * g * g")
_DECOUPLED = "(1 - lr * decay) * p"
_RMS = "s = alpha * s + (1 - alpha) * g * g"
_ADAM_SCALARS = ("lr", "b1", "b2", "eps", "decay", "c1", "c2")  # c1 = 1 - b1**step, c2 = 1 - b2**step

ROWS = (
    Update("sgd", (), ("lr", "decay"), ("p = p - lr * (g + decay * p)",)),
    # keep is 1 - dampening, and 1 at the first step, so that the buffer starts as the gradient
    Update("momentum", ("b",), ("lr", "decay", "mu", "keep"),
           ("b = mu * b + keep * (g + decay * p)", "p = p - lr * b")),
    Update("nesterov", ("b",), ("lr", "decay", "mu", "keep"),
           ("d = g + decay * p", "b = mu * b + keep * d", "p = p - lr * (d + mu * b)")),
    Update("rmsprop", ("s",), ("lr", "alpha", "eps", "decay"),
           ("g = g + decay * p", _RMS, "p = p - lr * g / (sqrt(s) + eps)")),
    Update("rmsprop_momentum", ("s", "b"), ("lr", "alpha", "eps", "decay", "mu"),
           ("g = g + decay * p", _RMS, "b = mu * b + g / (sqrt(s) + eps)", "p = p - lr * b")),
    Update("rmsprop_centered", ("s", "a"), ("lr", "alpha", "eps", "decay"),
           ("g = g + decay * p", _RMS, "a = alpha * a + (1 - alpha) * g",
            "p = p - lr * g / (sqrt(where(s > a * a, s - a * a, 0)) + eps)")),
    Update("rmsprop_centered_momentum", ("s", "a", "b"), ("lr", "alpha", "eps", "decay", "mu"),
           ("g = g + decay * p", _RMS, "a = alpha * a + (1 - alpha) * g",
            "b = mu * b + g / (sqrt(where(s > a * a, s - a * a, 0)) + eps)", "p = p - lr * b")),
    # eps is added outside the root, after the bias correction
    Update("adam", ("m", "v"), _ADAM_SCALARS,
           ("g = g + decay * p", *_ADAM, "p = p - lr / c1 * m / (sqrt(v) * (1 / sqrt(c2)) + eps)")),
    Update("adamw", ("m", "v"), _ADAM_SCALARS,
           (*_ADAM, f"p = {_DECOUPLED} - lr / c1 * m / (sqrt(v) * (1 / sqrt(c2)) + eps)")),
    # x is the largest raw second moment so far
    Update("adam_amsgrad", ("m", "v", "x"), _ADAM_SCALARS,
           ("g = g + decay * p", *_ADAM, "x = where(x > v, x, v)",
            "p = p - lr / c1 * m / (sqrt(x) * (1 / sqrt(c2)) + eps)")),
    Update("adamw_amsgrad", ("m", "v", "x"), _ADAM_SCALARS,
           (*_ADAM, "x = where(x > v, x, v)", f"p = {_DECOUPLED} - lr / c1 * m / (sqrt(x) * (1 / sqrt(c2)) + eps)")),
    # not optimizers, but updates in place over many tensors: moving averages, scaling, limiting
    Update("ema", (), ("keep",), ("p = keep * p + (1 - keep) * g",)),
    Update("scale", (), ("factor",), ("p = factor * p",)),
    Update("copy", (), (), ("p = g",)),  # with a gate: times a number on the device
    Update("limit", (), ("most",), ("p = where(p > most, most, where(p < -most, -most, p))",)),
)  # fmt: skip

UPDATES: dict[str, Update] = {row.name: row for row in ROWS}


def add_update(row: Update) -> None:
    """Add a row of assignments, after the dialect check. Raises ValueError if it is not in the dialect."""
    row.check()
    UPDATES[row.name] = row


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
    return flat[start : start + like.size].reshape(like.shape)


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
