"""Tracing: run a Python function on symbols, and get the operations it makes as a graph. No kernel is launched.

While a `TracingContext` is active, `apply_op` appends a `TraceNode` instead of running. Nodes carry a TraceNode as
their value. Whatever needs real values (a branch on a result, a read to the host) raises `Untraceable` with the user's
line.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from netcl.autograd.follow import Followed, Reached
from netcl.autograd.jit import shapes
from netcl.autograd.node import Node
from netcl.autograd.state import state
from netcl.core import layout
from netcl.core.callers import call_site
from netcl.core.dtypes import FLOAT64, DType, is_float
from netcl.core.errors import NetclError
from netcl.core.kernels.primitives import TABLE
from netcl.core.layout import Shape, size_of
from netcl.core.tensor import Tensor
from netcl.ops import promotion
from netcl.ops.product.problem import FROM_RESULT

NUMBERS = (int, float, bool)


class Untraceable(NetclError):
    """The function did something that a trace cannot follow; `jit_compile` then runs it as it is."""


class TraceNode:
    """One operation of a trace: its name, inputs (TraceNodes and numbers), result shape and dtype, and attributes.

    `operands` are the inputs and attributes that are TraceNodes. `differentiable` is False below `no_grad`, `detach`
    and for results that are not floats.
    """

    __slots__ = ("attrs", "compute", "differentiable", "dtype", "inputs", "op_name", "operands", "queue", "shape",
                 "source")  # fmt: skip

    def __init__(
        self, op_name: str, inputs: Sequence[Any], shape: Shape, dtype: Any, attrs: dict[str, Any] | None = None
    ) -> None:
        self.op_name, self.inputs, self.shape = op_name, tuple(inputs), tuple(shape)
        self.dtype: DType = np.dtype(dtype)
        self.attrs = dict(attrs or {})
        self.operands = [x for x in (*self.inputs, *self.attrs.values()) if isinstance(x, TraceNode)]
        self.compute: DType | None = None  # of a row of the table: the dtype that it computes in
        self.queue: Any = None
        self.source: Any = None  # of an input: the position of the argument, or the captured Node
        self.differentiable = is_float(self.dtype)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return size_of(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes the elements take."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"TraceNode({self.op_name}, shape={self.shape}, dtype={self.dtype})"

    def to_host(self) -> NoReturn:
        """Refused: there is no value while tracing."""
        raise Untraceable(f"reads a result on the host at {call_site()}")

    item = numpy = tolist = __array__ = __int__ = to_host

    def __float__(self) -> float:
        self.to_host()

    def __bool__(self) -> bool:
        raise Untraceable(f"branches on a result at {call_site()}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Untraceable(f"uses .value.{name} at {call_site()}")


class Scalar:
    """A float argument while tracing. Arithmetic with numbers stays symbolic, so that another value needs no new trace;
    whoever looks at the value itself (a comparison, float(), math.sqrt) makes it part of the cache key.
    """

    __slots__ = ("_observe", "compute", "index", "known")

    def __init__(
        self, known: float, index: int, compute: Callable[[Any], float], observe: Callable[[int], None]
    ) -> None:
        self.known, self.index, self.compute, self._observe = known, index, compute, observe

    @property  # type: ignore[misc]  # instances pose as floats
    def __class__(self) -> type:
        return float  # isinstance(x, float) is what user code asks

    def look(self) -> float:
        """The value, which from now on is part of the key."""
        self._observe(self.index)
        return self.known

    def _derive(self, function: Callable[..., Any], other: Any, swap: bool) -> Any:
        if isinstance(other, (Node, Tensor)):
            return NotImplemented
        if type(other) is Scalar:
            first, second = (other, self) if swap else (self, other)
            if first.index != second.index:
                return function(first.look(), second.look())
            one, two = first.compute, second.compute
            return Scalar(
                function(first.known, second.known), self.index, lambda v: function(one(v), two(v)), self._observe
            )
        one = self.compute
        if swap:
            return Scalar(function(other, self.known), self.index, lambda v: function(other, one(v)), self._observe)
        return Scalar(function(self.known, other), self.index, lambda v: function(one(v), other), self._observe)

    def __getattr__(self, name: str) -> Any:
        if not hasattr(float, name):
            raise AttributeError(name)
        return getattr(self.look(), name)

    def __hash__(self) -> int:
        return hash(self.look())


def _arithmetic(function: Callable[..., Any], swap: bool) -> Callable[..., Any]:
    return lambda self, other: self._derive(function, other, swap)


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Scalar) -> Scalar:
        one = self.compute
        return Scalar(function(self.known), self.index, lambda v: function(one(v)), self._observe)

    return method


def _looking(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args: function(self.look(), *args)


for _name in ("add", "sub", "mul", "truediv", "pow", "mod", "floordiv"):
    setattr(Scalar, f"__{_name}__", _arithmetic(getattr(operator, _name), False))
    setattr(Scalar, f"__r{_name}__", _arithmetic(getattr(operator, _name), True))
for _name in ("neg", "abs", "pos"):
    setattr(Scalar, f"__{_name}__", _unary(getattr(operator, _name)))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Scalar, f"__{_name}__", _looking(getattr(operator, _name)))
for _name in ("float", "int", "bool", "repr", "str", "round", "trunc", "format"):
    setattr(Scalar, f"__{_name}__", _looking(getattr(float, f"__{_name}__")))
Scalar.__array__ = lambda self, *a, **k: np.asarray(self.look())  # type: ignore[attr-defined]  # added to a class of numbers


class ReachedByTrace(Reached):
    """What a trace reaches. Python that must run at every call is refused: it would run in the trace alone."""

    def enter(self, module: Followed, hooked: bool) -> None:
        """Refuses modules with hooks."""
        super().enter(module, hooked)
        if hooked:
            raise Untraceable(f"calls {type(module).__name__}, which has hooks, at {call_site()}")

    def writing(self, module: Followed, name: str, value: Any, new: bool) -> None:
        """Refuses changes, save those of a module that the function makes for itself."""
        if not new or module._stamp is not None or any(module is m for m in self.modules):
            raise Untraceable(f"changes {type(module).__name__}.{name} at {call_site()}")


NOTHING = Reached()  # between traces


class TracingContext(threading.local):
    """What is being traced in this thread: `nodes` in the order they were made, while `active`."""

    def __init__(self) -> None:
        self.active = False
        self._outer: Reached | None = None
        self._start(NOTHING)

    def _start(self, reached: Reached) -> None:
        self.nodes: list[TraceNode] = []
        self.captured: dict[int, TraceNode] = {}  # by id of a Node or Tensor that the function did not get as argument
        self.queue: Any = None
        self.reached = reached

    def __enter__(self) -> TracingContext:
        self._start(ReachedByTrace())
        self.active, state.tracer = True, self
        self._outer, state.reached = state.reached, self.reached
        return self

    def __exit__(self, *exc: object) -> None:
        self.active, state.tracer = False, None
        self._outer, state.reached = None, self._outer
        self._start(NOTHING)  # a trace that is over keeps nothing alive

    def refuse(self, what: str) -> NoReturn:
        """Give the trace up."""
        raise Untraceable(f"{what} at {call_site()}")

    def add_input(self, value: Any, source: Any) -> TraceNode:
        """The symbol of a Node or Tensor."""
        tensor = value.value if isinstance(value, Node) else value
        if self.queue is not None and tensor.queue is not self.queue and tensor.queue != self.queue:
            raise Untraceable("mixes tensors of several queues")
        node = TraceNode("input", (), tensor.shape, tensor.dtype)
        self.queue = node.queue = tensor.queue
        node.source = source
        self.nodes.append(node)
        return node

    def record(self, name: str, args: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """What `apply_op` does while tracing: a symbolic Node for the result, or a tuple of them."""
        if state.autocast is not None:
            args = state.autocast(name, args)
        operands = [
            a.value
            if type(a) is Node and isinstance(a.value, TraceNode) and a.requires_grad == a.value.differentiable
            else a
            if type(a) in NUMBERS
            else self._operand(name, a)
            for a in args
        ]
        attrs = {k: self._attribute(name, v) for k, v in attrs.items()}
        if name in TABLE:
            return self._row(name, operands, attrs)
        if name in _EXPANSIONS and isinstance(operands[0], TraceNode):
            expanded = _EXPANSIONS[name](self, *operands, **attrs)
            if expanded is not None:
                return expanded
        many, results = shapes.infer(name, operands, attrs, self.queue)
        made = TraceNode(name, operands, *results[0], attrs)
        nodes = [made] if not many else [TraceNode("item", (made,), *r, {"index": i}) for i, r in enumerate(results)]
        enabled = state.enabled and (not made.operands or any(x.differentiable for x in made.operands))
        for node in {id(n): n for n in (made, *nodes)}.values():
            node.queue = self.queue
            node.differentiable = node.differentiable and enabled
            self.nodes.append(node)
        symbols = tuple(Node(n, n.differentiable, name) for n in nodes)  # type: ignore[arg-type]  # a value of the trace
        return symbols if many else symbols[0]

    def _row(self, name: str, operands: list[Any], attrs: dict[str, Any]) -> Node:
        """The result of a row, with numbers that fit, or of the row that takes the place of this one for bools."""
        signature = shapes.signature_of(name, operands, attrs)
        row, compute, dtype = promotion.resolve(name, signature)
        condition = operands[0]
        if name == "where" and type(condition) is TraceNode and promotion.loses_truth(condition.dtype, compute):
            operands = [self._operand(name, self.record("ne", (condition, 0), {})), *operands[1:]]
        same, fitted, attrs = promotion.fitted(name, signature, operands, attrs)
        if same != name or row.name != name or fitted is not operands:
            name = row.name if same == name else same
            compute, dtype = shapes.compute_type(name, fitted, self.queue, attrs)
        elif compute == FLOAT64:
            compute, dtype = shapes.compute_type(name, operands, self.queue, attrs)
        given = [x.shape for x in fitted if type(x) is TraceNode]
        shape = given[0] if len(given) == 1 else layout.broadcast(name, *given)
        made = TraceNode(name, fitted, shape, dtype, attrs)
        made.compute, made.queue = compute, self.queue
        made.differentiable &= state.enabled and (not made.operands or any(x.differentiable for x in made.operands))
        self.nodes.append(made)
        return Node(made, made.differentiable, name)  # type: ignore[arg-type]  # a value of the trace

    def _variance(self, x: TraceNode, axis: Any = None, keepdims: bool = False, correction: float = 0) -> Any:
        """A variance over trailing axes as means, so that it fuses; None for others."""
        axes = shapes.trailing(x, axis)
        count = size_of(x.shape[-len(axes) :]) if axes else 0
        if not axes or not is_float(x.dtype) or count <= correction:
            return None
        symbol = Node(x, x.differentiable)  # type: ignore[arg-type]  # a value of the trace
        mean = self.record("mean", (symbol,), {"axis": axes, "keepdims": True})
        square = self.record("square", (self.record("sub", (symbol, mean), {}),), {})
        result = self.record("mean", (square,), {"axis": axes, "keepdims": keepdims})
        return result if not correction else self.record("mul", (result, count / (count - correction)), {})

    def _linear(self, *operands: TraceNode | None, activation: str | None = None, **attrs: Any) -> Any:
        """A product apart from its activation, which the compiler joins; None where forward joins them in any case."""
        return self._product("linear", operands, activation, attrs)

    def _conv2d(self, *operands: TraceNode | None, activation: str | None = None, **attrs: Any) -> Any:
        return self._product("conv2d", operands, activation, attrs)

    def _product(self, name: str, operands: Sequence[Any], activation: Any, attrs: dict[str, Any]) -> Any:
        if activation in FROM_RESULT:
            return None
        symbols = [Node(x, x.differentiable) if isinstance(x, TraceNode) else x for x in operands]  # type: ignore[arg-type]  # a value of the trace
        return self.record(activation, (self.record(name, symbols, attrs),), {})

    def _softmax(self, x: TraceNode, axis: int = -1) -> Any:
        """A softmax over the last axis from primitives, so that it fuses with what surrounds it; None for others."""
        if not shapes.trailing(x, axis) or not is_float(x.dtype):
            return None
        e = self.record("exp", (self._below_top(x),), {})
        return self.record("div", (e, self.record("sum", (e,), {"axis": -1, "keepdims": True})), {})

    def _log_softmax(self, x: TraceNode, axis: int = -1) -> Any:
        if not shapes.trailing(x, axis) or not is_float(x.dtype):
            return None
        d = self._below_top(x)
        total = self.record("sum", (self.record("exp", (d,), {}),), {"axis": -1, "keepdims": True})
        return self.record("sub", (d, self.record("log", (total,), {})), {})

    def _below_top(self, x: TraceNode) -> Any:
        """x - max(x); the maximum cancels in the result, so it gets no gradient."""
        symbol = Node(x, x.differentiable)  # type: ignore[arg-type]  # a value of the trace
        top = self.record("max", (symbol,), {"axis": -1, "keepdims": True})
        return self.record("sub", (symbol, top.detach()), {})

    def _operand(self, name: str, a: Any) -> Any:
        if isinstance(a, Node) and isinstance(a.value, TraceNode):
            return self._detached(a.value) if a.value.differentiable and not a.requires_grad else a.value
        if isinstance(a, TraceNode):  # `x.value`: the plain tensor, outside the graph
            return self._detached(a) if a.differentiable else a
        if isinstance(a, (Node, Tensor)):
            return self._capture(name, a)
        if type(a) is Scalar or a is None or isinstance(a, (bool, int, float, np.number, np.bool_)):
            return a
        raise Untraceable(f"passes {type(a).__name__} to {name} at {call_site()}")

    def _attribute(self, name: str, a: Any) -> Any:
        """An attribute as the trace keeps it: a tensor, which gets no gradient there, as a symbol."""
        if type(a) is Scalar:
            return a if shapes.takes_scalars(name) else a.look()
        if isinstance(a, (Node, Tensor, TraceNode)):
            found = self._operand(name, a)
            return self._detached(found) if found.differentiable else found
        if isinstance(a, (list, tuple)) and any(isinstance(x, (Node, Tensor, TraceNode)) for x in a):
            raise Untraceable(f"passes tensors inside a {type(a).__name__} to {name} at {call_site()}")
        return a

    def _detached(self, x: TraceNode) -> TraceNode:
        node = TraceNode("stop_gradient", (x,), x.shape, x.dtype)
        node.queue, node.differentiable = x.queue, False
        self.nodes.append(node)
        return node

    def _capture(self, name: str, a: Node | Tensor) -> TraceNode:
        if isinstance(a, Node) and a.tape is not None:
            raise Untraceable(f"uses a result computed outside it in {name} at {call_site()}; pass it as an argument")
        if id(a) not in self.captured:
            self.captured[id(a)] = self.add_input(a, a)
            self.captured[id(a)].differentiable &= isinstance(a, Node)
        return self.captured[id(a)]


_EXPANSIONS: dict[str, Callable[..., Any]] = {
    "var": TracingContext._variance,
    "softmax": TracingContext._softmax,
    "log_softmax": TracingContext._log_softmax,
    "linear": TracingContext._linear,
    "conv2d": TracingContext._conv2d,
}


tracing_context = TracingContext()
