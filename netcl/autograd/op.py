"""`apply_op`, the one door of every differentiable operation, which reads the records of ops (netcl/ops/record.py).

Only this function knows tape, tracing and autocast. An op is a forward function on tensors and a backward function that
returns one gradient (or None) per tensor input, itself written with tensor ops outside the tape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from netcl.autograd.node import Node
from netcl.autograd.state import state
from netcl.autograd.tape import Edge, Record, check_finite
from netcl.core import callers, versions
from netcl.core.callers import call_site
from netcl.core.dtypes import DType, is_float
from netcl.core.errors import DTypeError, GradientError, NetclError, meant, unexpected
from netcl.core.kernels import dialect
from netcl.core.kernels.primitives import TABLE, Primitive, add_row
from netcl.core.layout import Shape, size_of
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor
from netcl.ops import declared as _declared  # noqa: F401
from netcl.ops import elementwise
from netcl.ops.record import OPS, Op, register


class Spec(NamedTuple):
    """What backward gets for a tensor that was not kept: its facts without its memory."""

    shape: Shape
    dtype: DType
    queue: Queue

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return size_of(self.shape)


def register_op(
    name: str,
    forward: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    *,
    saves: tuple[str | int, ...] | None = None,
    aux: bool = False,
    reads: Mapping[int | str, tuple[int, ...]] | None = None,
    shape: Callable[..., Any] | None = None,
) -> Op:
    """Add an operation (see `Op`), to be used as `apply_op(name, ...)`. A name of the primitive table is refused.

    Without a `shape` an operation that takes the place of another has the other's.
    """
    if name in TABLE:
        raise GradientError(f"register_op: {name!r} is an elementwise primitive; choose another name.")
    known = OPS.get(name)
    if shape is None and known is not None:
        shape = known.shape
    made = register(Op(name, forward, backward, saves, aux, reads or {}, shape))
    if known is not None:
        dialect.defined_anew()
    return made


def register_row(row: Primitive) -> None:
    """Add an elementwise op as a row of formulas; eager, fused and NumPy forms and the gradient follow from it."""
    add_row(row)


def apply_op(name: str, *args: Any, **attrs: Any) -> Any:
    """Run the op `name` on nodes, tensors and numbers; record it if some input needs a gradient. Returns Node(s)."""
    row = TABLE.get(name)
    if row is not None and len(attrs) != len(row.attrs):
        raise unexpected(name, attrs, (*row.inputs, *row.attrs))
    if state.tracer is not None:
        return state.tracer.record(name, args, attrs)
    if state.leaves is not None:
        state.leaves += [a for a in args if isinstance(a, Node) and a.tape is None]
    if state.autocast is not None:
        args = state.autocast(name, args)
    if row is not None:
        return _apply_primitive(row, args, attrs)
    op = OPS.get(name) or _unknown(name)
    xs = [a.value if isinstance(a, Node) else a for a in args]
    edges = edges_of(args) if state.tape is not None and state.enabled and op.backward is not None else ()
    extra = {"recorded": any(edges)} if op.asks else {}
    if op.waits:  # one large gradient a tape: memory holds no more than before
        tape = state.tape
        extra["room"] = tape is not None and not (tape.early or tape.rewrite) and state.autocast is None
    aux: Any
    try:
        result, aux = op.forward(*xs, **attrs, **extra) if op.aux else (op.forward(*xs, **attrs, **extra), None)
    except (AttributeError, TypeError) as error:
        _refuse(name, xs, error)
        raise
    if op.waits and aux.large:
        state.tape.early = aux.ready
    many = isinstance(result, tuple)
    outputs = result if many else (result,)
    if any(edges):
        nodes = _record(op, edges, xs, outputs, many, aux, attrs)
    else:
        nodes = tuple([Node(y, False, name) for y in outputs])
    if state.anomaly:
        check_finite(name, outputs, call_site())
    return nodes if many else nodes[0]


apply_one: Callable[..., Node] = apply_op  # of ops with one result
apply_many: Callable[..., tuple[Node, ...]] = apply_op  # of ops with several


def _unknown(name: str) -> NoReturn:
    raise GradientError(
        f"apply_op: expected the name of an operation, got {name!r}{meant(str(name), (*TABLE, *OPS))}; register_op and "
        "register_row add others."
    )


def _refuse(name: str, xs: Sequence[Any], error: Exception) -> None:
    """Raise DTypeError if `error` came of an operand that is no tensor."""
    if isinstance(error, NetclError):
        return
    wrong = [x for i, x in enumerate(xs) if not isinstance(x, (Tensor, int, float, type(None)) if i else Tensor)]
    if isinstance(error, AttributeError):
        wrong = [x for x in xs if type(x) is type(error.obj) and not isinstance(x, Tensor)]
    if wrong:
        found = type(wrong[0]).__name__
        raise DTypeError(f"{name}: expected tensors, got {found}; make one with Tensor.from_host.") from None


def edges_of(args: Sequence[Any]) -> tuple[Edge | None, ...]:
    """For each argument where its gradient goes, None where it needs none."""
    edges: list[Edge | None] = []
    for a in args:
        if isinstance(a, Node) and a.requires_grad:
            v = a.value
            edges.append(Edge(a.key, v.shape, v.dtype, a if a.tape is None else None))
        else:
            edges.append(None)
    return tuple(edges)


def _record(
    op: Op,
    edges: tuple[Edge | None, ...],
    xs: Sequence[Any],
    outputs: Sequence[Tensor],
    many: bool,
    aux: Any,
    attrs: dict[str, Any],
) -> tuple[Node, ...]:
    tape, keep, backward = state.tape, op.saves, op.backward
    assert tape is not None and backward is not None
    kept: Sequence[Any] = xs
    y: Any = outputs
    if keep is not None:
        kept = [x if i in keep or not isinstance(x, Tensor) else _spec(x) for i, x in enumerate(xs)]
        y = outputs if "y" in keep else [_spec(o) for o in outputs]
    y = tuple(y) if many else y[0]
    extra = attrs
    if op.extras:
        found = {"needs": tuple([e is not None for e in edges]), "aux": aux}
        extra = {**attrs, **{k: found[k] for k in op.extras}}

    def pullback(g: Any) -> Sequence[Tensor | None]:
        if many and type(g) is not tuple:
            g = (g,)
        result = backward(g, y, *kept, **extra)
        return result if isinstance(result, (tuple, list)) else (result,)

    nodes = tuple([Node(o, is_float(o.dtype), op.name, tape) for o in outputs])
    site = call_site() if state.anomaly else ""
    module = "" if callers.labeller is None else callers.labeller().module
    saved = (*op.read(kept, attrs, edges), y, aux)
    tape.add(Record(op.name, tuple([n.key for n in nodes]), edges, pullback, site, saved, versions.now, module))
    return nodes


def passing(name: str, nodes: Sequence[Node], through: Callable[[tuple[Any, ...]], Sequence[Any]]) -> tuple[Node, ...]:
    """The same values behind a record: `through` gets their gradients, None where there is none, and gives others."""
    tape = state.tape
    made = tuple([Node(n.value, n.requires_grad, n.op_name, tape) for n in nodes])
    keys, edges, site = tuple([n.key for n in made]), edges_of(nodes), call_site() if state.anomaly else ""
    pullback: Callable[[Any], Sequence[Any]] = lambda g: through(g if type(g) is tuple else (g,))  # noqa: E731
    module = "" if callers.labeller is None else callers.labeller().module
    tape.add(Record(name, keys, edges, pullback, site, (), versions.now, module))
    return made


def _spec(x: Tensor) -> Spec:
    return Spec(x.shape, x.dtype, x.queue)


def _apply_primitive(row: Primitive, args: Sequence[Any], attrs: dict[str, Any]) -> Node:
    xs = [a.value if isinstance(a, Node) else a for a in args]
    y = elementwise.apply(row.name, *xs, **attrs)
    differentiable = state.tape is not None and state.enabled and row.grads and is_float(y.dtype)
    edges = edges_of(args) if differentiable else ()
    if any(edges):
        node = _record_primitive(row, edges, xs, y, attrs)
    else:
        node = Node(y, False, row.name)
    if state.anomaly:
        check_finite(row.name, (y,), call_site())
    return node


def _record_primitive(
    row: Primitive, edges: tuple[Edge | None, ...], xs: Sequence[Any], y: Tensor, attrs: dict[str, Any]
) -> Node:
    tape, needs = state.tape, tuple([e is not None for e in edges])
    assert tape is not None
    node, reads = Node(y, True, row.name, tape), row.reads(needs)
    kept = [x if n in reads or not isinstance(x, Tensor) else None for n, x in zip(row.inputs, xs, strict=True)]
    kept_y = y if "y" in reads else None

    def pullback(g: Tensor) -> Sequence[Tensor | None]:
        return elementwise.gradients(row.name, g, kept_y, kept, needs, **attrs)

    site = call_site() if state.anomaly else ""
    module = "" if callers.labeller is None else callers.labeller().module
    tape.add(Record(row.name, (node.key,), edges, pullback, site, (*kept, kept_y), versions.now, module))
    return node
