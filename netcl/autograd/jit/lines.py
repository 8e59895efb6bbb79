"""From a trace to lines `v2 = MUL(v0, v1)`: expressions taken apart, common lines found once, gradients written down.

A `Body` holds the lines of one kernel. Names: `v0 v1 ...` inputs and lines in order, `s0 s1 ...` numbers.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from netcl.autograd.jit.primitive import PRIMITIVES, primitive_of
from netcl.autograd.jit.trace import Scalar, TraceNode
from netcl.core.errors import BuildError
from netcl.core.kernels import dialect
from netcl.fusion.chain import COUNT, Line, number
from netcl.ops import reduction  # noqa: F401  (defines HIT and SHARE)

_SUFFIX = re.compile(r"(?<![\w.])(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)[fF](?!\w)")
_OPERATORS = {
    ast.Add: "ADD",
    ast.Sub: "SUB",
    ast.Mult: "MUL",
    ast.Div: "DIV",
    ast.Lt: "LT",
    ast.Gt: "GT",
    ast.LtE: "LE",
    ast.GtE: "GE",
    ast.Eq: "EQ",
    ast.NotEq: "NE",
    ast.BitAnd: "BITWISE_AND",
    ast.BitOr: "BITWISE_OR",
    ast.BitXor: "BITWISE_XOR",
}
ALIASES = ("astype", "stop_gradient", "unsqueeze", "reshape", "getitem")  # inside a kernel these change nothing


def is_number(text: str) -> bool:
    """Whether an argument of a line is a number rather than a variable."""
    return not (text[0].isalpha() or text[0] == "_") or text in ("inf", "nan")


def literal(value: Any) -> str:
    """A Python number as an argument of a line."""
    return repr(int(value)) if isinstance(value, (int, np.integer, np.bool_)) else repr(float(value))


class Body:
    """The lines of one kernel. With `numbers_as_arguments` no number is written into the text."""

    def __init__(self, numbers_as_arguments: bool = False) -> None:
        self.lines: list[Line] = []
        self.inputs: list[str] = []
        self.scalars: dict[str, Any] = {}  # name -> number or Scalar
        self.statistics: list[str] = []  # results of the reductions, in order
        self.given: list[str] = []  # inputs that hold such results already
        self._numbers_as_arguments = numbers_as_arguments
        self._known: dict[tuple[str, tuple[str, ...]], str] = {}
        self._names = map("v{}".format, itertools.count())

    def input(self) -> str:
        """A new input variable."""
        self.inputs.append(next(self._names))
        return self.inputs[-1]

    def number(self, value: Any) -> str:
        """The text of a number: a literal, or the name of a kernel argument."""
        if type(value) is not Scalar and not self._numbers_as_arguments:
            return repr(value) if type(value) in (int, float) else literal(value)
        return self.argument(value)

    def argument(self, value: Any) -> str:
        """The name of a kernel argument that holds a number."""
        for name, known in self.scalars.items():
            if known is value:
                return name
        name = f"s{len(self.scalars)}"
        self.scalars[name] = value
        return name

    def call(self, function: str, *args: str) -> str:
        """The variable that holds `function(args)`; arguments its formula does not read are left out as 0."""
        found = dialect.DEFINITIONS.get(function)
        if found is not None:
            parameters, formula = found
            if len(parameters) != len(args):
                raise BuildError(f"{function}: expected {len(parameters)} arguments {parameters}, got {len(args)}.")
            if formula in parameters:
                return args[parameters.index(formula)]
            read = dialect.names(formula)
            args = tuple(a if p in read else "0" for p, a in zip(parameters, args, strict=True))
        key = (function, args)
        if key not in self._known:
            self._known[key] = next(self._names)
            self.lines.append((self._known[key], function, args))
        return self._known[key]

    def reduce(self, function: str, arg: str) -> str:
        """The variable that holds a reduction of `arg` along the row."""
        known = self._known.get((function, (arg,)))
        if known is not None:
            return known
        if len(self.statistics) < len(self.given):
            name = self.given[len(self.statistics)]
        else:
            name = next(self._names)
            self.lines.append((name, function, (arg,)))
        self._known[function, (arg,)] = name
        self.statistics.append(name)
        return name

    # -- expressions -----------------------------------------------------------------------------------------------

    def expression(self, where: str, text: str, names: Sequence[str]) -> str:
        """The variable (or number) that holds an expression over the variables `names`."""
        try:
            tree = ast.parse(_without_question_marks(_SUFFIX.sub(r"\1", text)).strip(), mode="eval")
        except SyntaxError:
            raise BuildError(f"{where}: expected an expression such as MUL(v0, v1), got {text!r}.") from None
        return self._visit(where, text, tree.body, {*names, *self.scalars, COUNT})

    def _visit(self, where: str, text: str, n: ast.expr, names: set[str]) -> str:
        def visit(child: ast.expr) -> str:
            return self._visit(where, text, child, names)

        if isinstance(n, ast.Constant) and type(n.value) in (int, float):
            return literal(n.value)
        if isinstance(n, ast.Name):
            if n.id in names or n.id in ("inf", "nan"):
                return n.id
            raise BuildError(f"{where}: unknown variable {n.id!r} in {text!r}; known are {sorted(names)}.")
        if isinstance(n, ast.UnaryOp) and isinstance(n.op, (ast.USub, ast.UAdd)):
            value = visit(n.operand)
            if isinstance(n.op, ast.UAdd):
                return value
            return literal(-number(value)) if is_number(value) else self.call("NEG", value)
        if isinstance(n, ast.BinOp) and type(n.op) in _OPERATORS:
            return self.call(_OPERATORS[type(n.op)], visit(n.left), visit(n.right))
        if isinstance(n, ast.Compare) and len(n.ops) == 1 and type(n.ops[0]) in _OPERATORS:
            return self.call(_OPERATORS[type(n.ops[0])], visit(n.left), visit(n.comparators[0]))
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name):
            return self.call(_function(where, text, n.func.id), *(visit(a) for a in n.args))
        raise BuildError(
            f"{where}: {type(n).__name__} is outside the dialect in {text!r}; write it with + - * / and calls."
        )

    # -- a trace ---------------------------------------------------------------------------------------------------

    def emit(self, node: TraceNode, args: list[str]) -> str:
        """The variable that holds a node's value, given its operands'."""
        name = node.op_name
        if name in ALIASES:
            return args[0]
        if name in ("sum", "mean"):
            total = self.reduce("SUM", args[0])
            return self.call("DIV", total, COUNT) if name == "mean" else total
        if name in ("max", "min"):
            return self.reduce(name.upper(), args[0])
        if name == "logsumexp":
            top = self.reduce("MAX", args[0])
            return self.call("LOG_ABOVE", self.reduce("SUM", self.call("EXP_BELOW", args[0], top)), top)
        primitive = PRIMITIVES.get(name) or primitive_of(name)
        assert primitive is not None
        given = self.attributes(node) if node.attrs else {}
        if primitive.row is not None:
            return self.call(name.upper(), *args, *[str(given[a]) for a in primitive.row.attrs])
        return self.expression(name, primitive.forward(args, given), args)

    def attributes(self, node: TraceNode) -> dict[str, Any]:
        """A node's attributes with numbers as text."""
        return {
            k: self.number(v) if type(v) is Scalar or isinstance(v, (int, float)) else v for k, v in node.attrs.items()
        }

    def gradients(self, node: TraceNode, args: list[str], out: str, g: str) -> list[str | None]:
        """The variable of each operand's gradient, None where there is none."""
        name = node.op_name
        if name == "stop_gradient":
            return [None]
        if name in ALIASES or name == "sum":
            return [g]
        if name == "mean":
            return [self.call("DIV", g, COUNT)]
        if name == "logsumexp":
            return [self.call("LOGSUMEXP_D0", g, args[0], out)]
        if name in ("max", "min"):
            ties = self.reduce("SUM", self.call("HIT", args[0], out))
            return [self.call("SHARE", g, args[0], out, ties)]
        primitive = PRIMITIVES.get(name) or primitive_of(name)
        assert primitive is not None
        texts = primitive.backward(args, g, self.attributes(node), out)
        if len(texts) != len(args):
            raise BuildError(f"{name}: expected {len(args)} gradients from its primitive, got {len(texts)}.")
        names = [*args, g, out]
        needed = zip(texts, [isinstance(x, TraceNode) for x in node.inputs], strict=True)
        return [self.expression(f"backward of {name}", t, names) if t and need else None for t, need in needed]

    def cone(self, outputs: Sequence[str]) -> tuple[tuple[Line, ...], list[str], list[str]]:
        """The lines, inputs and scalars that `outputs` need."""
        needed = set(outputs)
        kept = []
        for line in reversed(self.lines):
            if line[0] in needed:
                kept.append(line)
                needed.update(line[2])
        return tuple(reversed(kept)), [v for v in self.inputs if v in needed], [s for s in self.scalars if s in needed]


def _function(where: str, text: str, name: str) -> str:
    """The defined function behind a name in an expression."""
    if dialect.definition(name) is not None:
        return name
    if name == "where" or name in dialect.FUNCTIONS:
        return name.upper()
    raise BuildError(
        f"{where}: {name!r} in {text!r} is not a function of PRIMITIVE_PREAMBLE; define it first, for example "
        f"netcl.core.kernels.dialect.define_function({name!r}, ('a', 'b'), 'MUL(a, b)')."
    )


def _without_question_marks(text: str) -> str:
    """C's `c ? a : b` as where(c, a, b), at every depth of parentheses."""
    if "?" not in text:
        return text
    depth, mark, start = 0, -1, 0
    for i, ch in enumerate(text):
        if ch == "(":
            if depth == 0:
                start = i
            depth += 1
        elif ch == ")":
            depth -= 1
            if depth == 0 and "?" in text[start:i]:
                inner = _without_question_marks(text[start + 1 : i])
                return _without_question_marks(f"{text[: start + 1]}{inner}{text[i:]}")
        elif ch == "?" and depth == 0 and mark < 0:
            mark = i
    if mark < 0:
        return text
    depth, nested = 0, 0
    for i in range(mark + 1, len(text)):
        ch = text[i]
        depth += (ch == "(") - (ch == ")")
        if depth == 0 and ch == "?":
            nested += 1
        elif depth == 0 and ch == ":":
            if nested == 0:
                yes, no = _without_question_marks(text[mark + 1 : i]), _without_question_marks(text[i + 1 :])
                return f"where({text[:mark]}, {yes}, {no})"
            nested -= 1
    return text
