"""Update rows: the step of an optimizer as assignments in the dialect.

A row reads the parameter `p`, its gradient `g`, states that live between steps, and scalars:

    adamw:  m = b1 * m + (1 - b1) * g
            v = b2 * v + (1 - b2) * g * g
            p = (1 - lr * decay) * p - lr / c1 * m / (sqrt(v) * (1 / sqrt(c2)) + eps)

Parts that read only scalars, such as `lr / c1`, are worked out on the host in double precision and passed as numbers.
The same text becomes the OpenCL kernel and the NumPy function; `update.py` runs it over many tensors in one launch.

Sources: Adam, Kingma and Ba 2015, arXiv:1412.6980; AMSGrad, Reddi et al. 2018, arXiv:1904.09237; AdamW, Loshchilov and
Hutter 2019, arXiv:1711.05101; RMSprop, Hinton, lecture 6e; Nesterov momentum, Sutskever et al. 2013; Adagrad, Duchi et
al. 2011; Adadelta, Zeiler 2012, arXiv:1212.5701; Adamax, with Adam; NAdam, Dozat 2016; RAdam, Liu et al. 2020,
arXiv:1908.03265; Lion, Chen et al. 2023, arXiv:2302.06675.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from netcl.core.dtypes import compute_dtype
from netcl.core.kernels import dialect
from netcl.fusion import many as multi

_HOST = {"sqrt": math.sqrt, "exp": math.exp, "log": math.log, "abs": abs, "__builtins__": {}}


def _hoisted(formula: str, scalars: frozenset[str], found: dict[str, str]) -> str:
    """`formula` with names k0, k1, ... for the largest parts that read scalars only; `found`: the name of each."""
    tree = ast.parse(formula, mode="eval")
    todo: list[tuple[Any, str, Any]] = [(tree, "body", None)]  # an expression: its owner, field, and place in a list
    while todo:
        owner, field, i = todo.pop()
        held = getattr(owner, field)
        node = held if i is None else held[i]
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - set(dialect.FUNCTIONS)
        if names and names <= scalars:
            number = ast.Name(found.setdefault(ast.unparse(node), f"k{len(found)}"), ast.Load())
            if i is None:
                setattr(owner, field, number)
            else:
                held[i] = number
            continue
        inside: list[tuple[Any, str, Any]] = []
        for name, value in ast.iter_fields(node):
            values = value if isinstance(value, list) else [value]
            places = range(len(values)) if isinstance(value, list) else [None]
            inside += [(node, name, place) for place, x in zip(places, values) if isinstance(x, ast.expr)]
        todo += reversed(inside)
    return ast.unparse(tree)


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
        found, statements = dict[str, str](), []
        for line in self.text:
            name, formula = (part.strip() for part in line.split("=", 1))
            statements.append((name, _hoisted(formula, frozenset(self.scalars), found)))
        given = ", ".join(self.scalars)
        numbers = eval(f"lambda {given}: ({''.join(f'{text}, ' for text in found)})", _HOST)
        return tuple(statements), len(found), numbers

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
_NADAM_SCALARS = ("lr", "of_g", "of_m", "b1", "b2", "eps", "decay", "c2")
_NADAM_ROOT = "d = sqrt(v) * (1 / sqrt(c2)) + eps"
_NADAM_STEP = "of_g * g / d - of_m * m / d"
_RADAM_SCALARS = ("lr", "b1", "b2", "eps", "decay", "c1", "scale", "warm")
_RADAM_STEP = "lr / c1 * m * (warm + scale / (sqrt(v) + (eps + warm)))"
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
    # start is what the sum starts with at the first step, and 0 from then on
    Update("adagrad", ("s",), ("rate", "decay", "eps", "start"),
           ("g = g + decay * p", "s = s + start + g * g", "p = p - rate * g / (sqrt(s) + eps)")),
    Update("adadelta", ("s", "a"), ("lr", "rho", "eps", "decay"),
           ("g = g + decay * p", "s = rho * s + (1 - rho) * g * g", "d = sqrt(a + eps) / sqrt(s + eps) * g",
            "a = rho * a + (1 - rho) * d * d", "p = p - lr * d")),
    Update("adamax", ("m", "u"), ("lr", "b1", "b2", "eps", "decay", "c1"),
           ("g = g + decay * p", "m = b1 * m + (1 - b1) * g",
            "u = where(b2 * u > abs(g) + eps, b2 * u, abs(g) + eps)", "p = p - lr / c1 * m / u")),
    # of_g and of_m are the rates of the gradient and of its mean in Nesterov's look-ahead
    Update("nadam", ("m", "v"), _NADAM_SCALARS, ("g = g + decay * p", *_ADAM, _NADAM_ROOT, f"p = p - {_NADAM_STEP}")),
    Update("nadam_decoupled", ("m", "v"), _NADAM_SCALARS, (*_ADAM, _NADAM_ROOT, f"p = {_DECOUPLED} - {_NADAM_STEP}")),
    # warm is 1 while the second moment is too uncertain to divide by, and scale 0 then, else warm is 0
    Update("radam", ("m", "v"), _RADAM_SCALARS, ("g = g + decay * p", *_ADAM, f"p = p - {_RADAM_STEP}")),
    Update("radam_decoupled", ("m", "v"), _RADAM_SCALARS, (*_ADAM, f"p = {_DECOUPLED} - {_RADAM_STEP}")),
    Update("lion", ("m",), ("lr", "b1", "b2", "decay"),
           ("u = b1 * m + (1 - b1) * g", f"p = {_DECOUPLED} - lr * where(u > 0, 1, where(u < 0, -1, u))",
            "m = b2 * m + (1 - b2) * g")),
)  # fmt: skip

# not optimizers, but updates in place over many tensors: moving averages, scaling, limiting
OTHERS = (
    Update("ema", (), ("keep",), ("p = keep * p + (1 - keep) * g",)),
    Update("scale", (), ("factor",), ("p = factor * p",)),
    Update("copy", (), (), ("p = g",)),  # with a gate: times a number on the device
    Update("limit", (), ("most",), ("p = where(p > most, most, where(p < -most, -most, p))",)),
)  # fmt: skip

MAXIMIZE = "_maximize"  # the end of the name of a row that climbs


def _climbing(row: Update) -> Update:
    """The row that goes the other way."""
    return replace(row, name=row.name + MAXIMIZE, text=("g = -g", *row.text))


UPDATES: dict[str, Update] = {row.name: row for row in (*ROWS, *map(_climbing, ROWS), *OTHERS)}


def add_update(row: Update) -> None:
    """Add a row of assignments, after the dialect check. Raises ValueError if it is not in the dialect."""
    row.check()
    UPDATES.update({each.name: each for each in (row, _climbing(row))})
