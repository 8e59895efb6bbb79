"""The record of an op: one object that knows what it takes, gives, saves and is called, without tape or tracing.

Operators declare their record beside their function and its gradient, by `register`. Rows of the primitive table are
elementwise ops; `every` and `find` show them, and functions made of other ops, as records of the same kind.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any

from netcl.core.dtypes import DType
from netcl.core.kernels.primitives import HIGH, INTEGER, REFUSED, TABLE, Primitive
from netcl.core.layout import Shape, broadcast
from netcl.core.tensor import Tensor
from netcl.ops import elementwise, promotion, special

Facts = tuple[Shape, DType]  # of a result

NO_METHODS = {"where", "gelu_tanh"}  # rows whose first operand is a condition, or that others stand for
# what an op takes: every dtype, floats, all but bools, integers and bools, int32 and int64 (of its index)
ANY, FLOATS, NUMBERS, INTEGERS, INDICES = "any", "floats", "numbers", "integers", "indices"
HALF, FLOAT = "half", HIGH  # what mixed precision computes an op's floats in; "": as they come


@dataclass(frozen=True)
class Op:
    """forward(*tensors, **attrs) -> tensor or tuple of tensors; with `aux`, (result, anything backward needs).

    A forward that names `recorded` is told whether backward may come; one that names `room`, whether it may leave a
    large gradient for backward: `aux.large` then says whether it did, in the list `aux.ready`.
    backward(g, y, *xs, **attrs) -> a gradient or None per tensor input. If it names them, it also gets `needs` (which
    inputs want a gradient) and `aux`. `saves` lists what stays alive until then: "y" and input positions; the rest
    arrives by shape and dtype alone. `reads` says of a saved input or attribute which inputs' gradients read it, where
    that is not all of them.
    shape(*operands, **attrs) -> (shape, dtype) of the result, or a list of them, from operands known by shape and dtype
    alone; without it a function that is traced runs unfused. It raises NetclError where only the data tells.
    function: the one with the op's public signature and docstring, where that is not `forward`. constants: tensors
    among the attributes, which get no gradient. methods: names of methods and operators of Tensor and Node.
    """

    name: str
    forward: Callable[..., Any]
    backward: Callable[..., Any] | None = None
    saves: tuple[str | int, ...] | None = None
    aux: bool = False
    reads: Mapping[int | str, tuple[int, ...]] = field(default_factory=dict)
    shape: Callable[..., Facts | list[Facts]] | None = None
    function: Callable[..., Any] | None = None
    constants: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    dtypes: str = ANY
    cast: str = ""
    onnx: str = ""  # name of the operator in ONNX, "" where there is none of the same meaning
    array_api: str = ""  # name of the function in the Python array API standard
    extras: frozenset[str] = field(init=False, default=frozenset())
    asks: bool = field(init=False, default=False)
    waits: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        asked = parameters(self.forward) if isinstance(self.forward, FunctionType) else ()
        named = parameters(self.backward) if self.backward else ()
        object.__setattr__(self, "asks", "recorded" in asked)
        object.__setattr__(self, "waits", "room" in asked)
        object.__setattr__(self, "extras", frozenset(n for n in ("needs", "aux") if n in named))

    @property
    def public(self) -> Callable[..., Any]:
        """The function whose signature and docstring `ag.<name>` has."""
        return self.function or self.forward

    def read(self, saved: Sequence[Any], attrs: dict[str, Any], edges: Sequence[Any]) -> Sequence[Any]:
        """Those of the `saved` inputs and `attrs` that the gradients wanted (where there is an edge) read."""
        reads = self.reads
        if not reads:
            return (*saved, *attrs.values())
        found: list[tuple[int | str, Any]] = [*enumerate(saved), *attrs.items()]
        return [x for i, x in found if i not in reads or any(edges[j] is not None for j in reads[i])]


OPS: dict[str, Op] = {}  # all but the rows of the primitive table, by name
COMPOSED: dict[str, Op] = {}  # functions made of ops, which `apply_op` does not know


def register(op: Op) -> Op:
    """Add a record to the table."""
    OPS[op.name] = op
    return op


def compose(op: Op) -> Op:
    """Add the record of a function made of other ops, whose gradients are its own."""
    COMPOSED[op.name] = op
    return op


def alike(x: Any, *_: Any, **__: Any) -> Facts:
    """The shape of a result that is like the first operand."""
    return x.shape, x.dtype


def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's parameters, without *args and **kwargs."""
    inner = inspect.unwrap(function)
    if not isinstance(inner, FunctionType):
        return tuple(inspect.signature(function).parameters)
    code = inner.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


# -- readers -----------------------------------------------------------------------------------------------------------


def every() -> dict[str, Op]:
    """All ops by name: rows of the primitive table, the others, and functions made of them."""
    return {**{name: of_row(row) for name, row in TABLE.items()}, **OPS, **COMPOSED}


def find(name: str) -> Op | None:
    """The record of an op, None for an unknown name."""
    row = TABLE.get(name)
    return OPS.get(name) or COMPOSED.get(name) if row is None else of_row(row)


def methods() -> dict[str, Callable[..., Any]]:
    """The functions on tensors of the ops that are methods of Tensor and Node."""
    rows = {row.name: function_of(row.name) for row in TABLE.values() if methods_of(row)}
    return rows | {op.name: op.public for op in (*OPS.values(), *COMPOSED.values()) if op.methods}


def function_of(name: str) -> Any:
    """The function on tensors of a row, None for users' own."""
    return getattr(elementwise, name, None) or getattr(special, name, None)


def methods_of(row: Primitive) -> tuple[str, ...]:
    """Names of methods and operators of a row: every row is a method by its own name as well."""
    own = row.name not in NO_METHODS and row.name not in row.methods and function_of(row.name) is not None
    return (*row.methods, row.name) if own else row.methods


def of_row(row: Primitive) -> Op:
    """An elementwise op as a record."""

    def backward(g: Tensor, y: Any, *xs: Any, needs: Sequence[bool], **attrs: Any) -> list[Tensor | None]:
        return elementwise.gradients(row.name, g, y, xs, needs, **attrs)

    saves = tuple("y" if n == "y" else row.inputs.index(n) for n in row.saved)
    dtypes = INTEGERS if row.result == INTEGER else NUMBERS if row.bools == REFUSED else ANY
    return Op(
        row.name, partial(elementwise.apply, row.name), backward if row.grads else None, saves,
        shape=partial(_row_shape, row), function=function_of(row.name), dtypes=dtypes,
        methods=methods_of(row), cast=row.cast, onnx=row.onnx, array_api=row.array_api,
    )  # fmt: skip


def _row_shape(row: Primitive, *operands: Any, **attrs: Any) -> Facts:
    """Shape and dtype of a row's result, on a device that holds every dtype."""
    given = (*operands, *(attrs[a] for a in row.attrs))
    signature = tuple(x.dtype if hasattr(x, "dtype") else promotion.kind(row.name, x) for x in given)
    shape = broadcast(row.name, *(x.shape for x in operands if hasattr(x, "shape")))
    return shape, promotion.resolve(row.name, signature)[2]
