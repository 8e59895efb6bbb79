"""Chains: the lines `v2 = MUL(v0, v1)` that one kernel computes, and their form as a function over NumPy arrays.

An eager op is a chain of length one, a fused function a longer one. As OpenCL C it becomes one kernel that reads each
input once and writes each output once (map.py, rows.py, fold.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from netcl.core.dtypes import DType
from netcl.core.kernels import dialect

Line = tuple[str, str, tuple[str, ...]]  # (variable, FUNCTION, arguments: variables or numbers)
REDUCTIONS = {"SUM": ("ADD", "0"), "MAX": ("MAXIMUM", "-inf"), "MIN": ("MINIMUM", "inf")}  # combine, start
COUNT = "n"  # in a chain with row reductions: the number of elements they run over


@dataclass(frozen=True, eq=False)
class Chain:
    """`lines` computing `outputs` from the tensors `inputs` and the numbers `scalars`, all of them variable names.

    Lines may reduce over the last `axes` axes of the broadcast shape (`SUM MAX MIN`, see rows.py); their results are
    used along the row like numbers. `kinds` says what each output is: "full" (an element for each), "keep" or "drop"
    (one per row, the reduced axes kept with length one or dropped).
    """

    name: str
    inputs: tuple[str, ...]
    scalars: tuple[str, ...]
    lines: tuple[Line, ...]
    outputs: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    axes: int = 0
    functions: dict[Any, Any] = field(default_factory=dict)  # NumPy forms by compute dtype and result dtypes

    def python(self, compute: DType, results: tuple[DType, ...]) -> Callable[..., tuple[np.ndarray, ...]]:
        """The chain as `fn(*arrays, scalars) -> tuple of arrays`, computing in `compute`."""
        key = (compute, results)
        if key not in self.functions:
            space = {**dialect.NUMPY, **_ROWS, "compute": compute, "results": results, "as_dtype": as_dtype}
            exec(render_python(self), space)
            self.functions[key] = space["chain"]
        found: Callable[..., tuple[np.ndarray, ...]] = self.functions[key]
        return found

    @property
    def title(self) -> str:
        """The name in messages."""
        return self.name.removeprefix("netcl_")

    @property
    def words(self) -> frozenset[str]:
        """The functions that the text needs."""
        named = {f for _, f, _ in self.lines}
        named |= {REDUCTIONS[f][0] for f in named & REDUCTIONS.keys()}
        return frozenset(named - REDUCTIONS.keys())


def number(text: str) -> int | float:
    """The number that an argument of a line is; whole ones keep every digit."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def render_python(chain: Chain) -> str:
    """The chain as the text of a Python function."""
    text = [f"def chain({', '.join((*chain.inputs, 'scalars'))}):"]
    text += [f"    {v} = {v}.astype(compute, copy=False)" for v in chain.inputs]
    k = chain.axes
    if k or len(chain.outputs) > 1:
        text += [f"    shape = broadcast_shapes({', '.join(f'{v}.shape' for v in chain.inputs)})"]
    if k:
        text += [f"    {COUNT} = compute.type(prod(shape[-{k}:]))"]
    text += [f"    {', '.join(chain.scalars)}, = scalars"] if chain.scalars else []
    for out, f, args in chain.lines:
        value = f"{f}({', '.join(args)})" if f else args[0]
        text.append(f"    {out} = " + (f"{f}({args[0]}, shape, {k})" if f in REDUCTIONS else value))
    stored = [f"as_dtype({_placed(chain, i)}, results[{i}])" for i in range(len(chain.outputs))]
    text.append(f"    return {', '.join(stored)},")
    return "\n".join(text) + "\n"


def _placed(chain: Chain, i: int) -> str:
    """Output `i` in its final shape."""
    v, k = chain.outputs[i], chain.axes
    if len(chain.outputs) == 1 and not k:
        return v  # all inputs take part in it
    if not k or chain.kinds[i] == "full":
        return f"broadcast_to({v}, shape)"
    return f"per_row({v}, shape, {k})" + (f".reshape(shape[:-{k}] or (1,))" if chain.kinds[i] == "drop" else "")


def _per_row(value: Any, shape: Any, k: int) -> np.ndarray:
    """The first element of each row of a value that is the same along rows."""
    first: tuple[Any, ...] = (..., *(slice(0, 1),) * k)
    return np.asarray(np.broadcast_to(value, shape)[first])


def _over_rows(ufunc: np.ufunc) -> Any:
    """A reduction over the last `k` axes of a value seen as `shape`; the axes stay with length one."""

    def reduce(value: Any, shape: Any, k: int) -> np.ndarray:
        return np.asarray(ufunc.reduce(np.broadcast_to(value, shape), axis=tuple(range(-k, 0)), keepdims=True))

    return reduce


_ROWS = {
    "SUM": _over_rows(np.add), "MAX": _over_rows(np.maximum), "MIN": _over_rows(np.minimum), "prod": math.prod,
    "per_row": _per_row, "inf": math.inf, "nan": math.nan, "broadcast_shapes": np.broadcast_shapes,
    "broadcast_to": np.broadcast_to,
}  # fmt: skip


def as_dtype(value: Any, dtype: DType) -> np.ndarray:
    """`value` as an array of `dtype`."""
    return np.asarray(value).astype(dtype, copy=False)
