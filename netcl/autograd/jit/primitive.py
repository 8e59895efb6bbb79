"""Primitives: how the JIT writes each elementwise op. The built-in ones come from the primitive table by a loop.

Expressions are text over variables: `MUL(v0, v1)`, `v0 * 0.5f`, `where(v0 > 0, v0, 0)`, with the functions of
PRIMITIVE_PREAMBLE. A function of one's own is made known by `dialect.define_function`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from netcl.autograd.jit import shapes
from netcl.core.kernels.primitives import TABLE, Primitive

PRIMITIVES: dict[str, AutogradPrimitive] = shapes.PRIMITIVES


@dataclass(frozen=True)
class AutogradPrimitive:
    """How to write one op. `forward(args, attrs)` gives the expression of the result from the inputs' expressions.

    `backward(args, grad_var, attrs, out_var)` gives one expression per input, in order ("" for no gradient). `arity` is
    the number of inputs, None for any. An op that is not `fusible` ends a kernel: it runs as its eager operation.
    """

    name: str
    forward: Callable[[list[str], dict[str, Any]], str]
    backward: Callable[[list[str], str, dict[str, Any], str], list[str]]
    arity: int | None = None
    fusible: bool = True
    row: Primitive | None = None  # of the table that it is: its expressions are one call each


def _row(row: Primitive) -> AutogradPrimitive:
    function, attrs = row.name.upper(), row.attrs

    def forward(args: list[str], given: dict[str, Any]) -> str:
        return f"{function}({', '.join([*args, *(str(given[a]) for a in attrs)])})"

    def backward(args: list[str], grad_var: str, given: dict[str, Any], out_var: str) -> list[str]:
        rest = ", ".join([grad_var, out_var, *args, *(str(given[a]) for a in attrs)])
        grads = row.grads or (None,) * len(row.inputs)
        return [f"{function}_D{i}({rest})" if formula else "" for i, formula in enumerate(grads)]

    return AutogradPrimitive(row.name, forward, backward, len(row.inputs), row=row)


def _with_number(primitive: AutogradPrimitive, name: str, right: bool) -> AutogradPrimitive:
    """A binary primitive whose second (or first) operand is the number attrs["scalar"]."""

    def both(args: list[str], attrs: dict[str, Any]) -> list[str]:
        return [args[0], str(attrs["scalar"])] if right else [str(attrs["scalar"]), args[0]]

    return AutogradPrimitive(
        name,
        lambda args, attrs: primitive.forward(both(args, attrs), attrs),
        lambda args, g, attrs, out: [primitive.backward(both(args, attrs), g, attrs, out)[0 if right else 1]],
        1,
    )


def add_row_primitives(row: Primitive) -> None:
    """The primitives of a row of the table: itself and, for two inputs, its forms with a number on either side."""
    primitive = PRIMITIVES[row.name] = _row(row)
    if len(row.inputs) == 2:
        for side in ("right", "left"):
            name = f"{row.name}_scalar_{side}"
            PRIMITIVES[name] = _with_number(primitive, name, side == "right")


def primitive_of(name: str) -> AutogradPrimitive | None:
    """The primitive of an op, including rows added to the table later; None for other ops."""
    if name not in PRIMITIVES and name in TABLE:
        add_row_primitives(TABLE[name])
    return PRIMITIVES.get(name)


for _r in TABLE.values():
    add_row_primitives(_r)
