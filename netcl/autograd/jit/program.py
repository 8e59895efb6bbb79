"""A compiled function ready to run: its steps, and where each finds what it reads and leaves what it makes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from netcl.autograd.follow import PLAIN
from netcl.autograd.jit import epilogue
from netcl.autograd.jit.epilogue import Epilogue
from netcl.autograd.jit.fused import FusedStep
from netcl.autograd.jit.plan import CallStep, Planner, changes_state
from netcl.autograd.jit.trace import Scalar, TraceNode, Untraceable
from netcl.autograd.node import Node
from netcl.autograd.op import apply_op, edges_of
from netcl.autograd.state import state
from netcl.autograd.tape import Record, check_finite
from netcl.core import callers, versions
from netcl.core.callers import call_site
from netcl.core.dtypes import DType
from netcl.core.errors import NetclError
from netcl.core.layout import Shape
from netcl.core.protocols import Launch, Queue
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor
from netcl.fusion.map import plan_of
from netcl.kernels.route import Decision


class Slot(NamedTuple):
    """A place among the values of a run."""

    place: int


class FusedCall(NamedTuple):
    """A fused step and its slots."""

    step: FusedStep
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    differentiable: tuple[bool, ...]  # of the outputs
    recorded: bool  # some output takes part in backward


class EagerCall(NamedTuple):
    """An operation that runs as it is; arguments are Slots, Scalars or values."""

    name: str
    args: tuple[Any, ...]
    attrs: dict[str, Any]
    outputs: tuple[int, ...]
    reason: str
    moved: int  # bytes of its operands and results
    facts: tuple[Any, ...]  # shape and dtype of each result, as traced
    fixed: bool  # its attributes are the same at every call
    joined: str = ""  # the product that takes a bias or an activation along


Call = FusedCall | EagerCall


class OneLaunch(NamedTuple):
    """A program's only launch, for tensors of one layout."""

    run: Launch[Tensor]
    numbers: tuple[Any, ...]
    name: str


class Captured(NamedTuple):
    """A tensor that the function did not get as argument, and what it was when it was traced."""

    find: Callable[[], Any]  # the Node or Tensor; None once it is gone
    detached: bool  # the value of a Node, which gets no gradient
    shape: Shape
    dtype: DType
    queue: Queue


class Outdated(Exception):
    """A captured tensor is gone, or has another shape, dtype or queue than when the program was made."""


class Program:
    """The steps of one trace; `run` takes the tensors (as Nodes or Tensors) and floats among the arguments."""

    def __init__(self, calls: list[Call], captured: list[Captured], slots: int, result: Any) -> None:
        self.calls, self.captured, self.result = calls, captured, result
        self.spare = [None] * slots
        self.inputs: list[TraceNode] = []
        self.outputs: list[TraceNode] = []
        self.decisions: list[Decision] = []  # of the first run: what ops chose whose plans were made then

    def run(self, leaves: Sequence[Any], floats: Sequence[float]) -> Any:
        """The function's result for these arguments. Raises Outdated, before anything ran, for a new trace."""
        values: list[Any] = [x if isinstance(x, Node) else Node(x) for x in leaves]
        if self.captured:
            values += self._outside()
        values += self.spare
        for call in self.calls:
            if type(call) is FusedCall:
                _run_fused(call, values, floats)
            else:
                _run_eager(call, values, floats)  # type: ignore[arg-type]  # a call of the trace
        result = self.result
        return values[result.place] if type(result) is Slot else _restore(result, values)

    def _outside(self) -> list[Node]:
        """The captured tensors as they are now."""
        found = []
        for find, detached, shape, dtype, queue in self.captured:
            x = find()
            if x is None:
                raise Outdated
            value = x.value if isinstance(x, Node) else x
            kind = value.dtype
            if value.shape != shape or (kind is not dtype and kind != dtype) or value.queue is not queue:
                raise Outdated
            found.append(Node(value) if detached or x is value else x)
        return found

    def written(self, leaves: Sequence[Any]) -> list[Tensor]:
        """Arguments and captured tensors that running the program changes: statistics of batch norms."""
        eager = [call for call in self.calls if type(call) is EagerCall]
        norms = [call for call in eager if call.name == "batch_norm"]
        if not norms:
            return []
        values = [*leaves, *self._outside()]
        same = {call.outputs[0]: call.args[0].place for call in eager if call.name == "stop_gradient"}
        places = [v.place for call in norms for v in call.attrs.values() if type(v) is Slot]
        found = [values[p] for p in (same.get(p, p) for p in places) if p < len(values)]
        return [x.value if isinstance(x, Node) else x for x in found]

    def launch(self, tensors: Sequence[Tensor]) -> OneLaunch | None:
        """Where a single map of the arguments, and no float among them, is all there is: its prepared launch."""
        call, queue = self.calls[0] if len(self.calls) == 1 else None, tensors[0].queue
        if type(call) is not FusedCall or self.captured or type(self.result) is not Slot:
            return None
        step, places = call.step, tuple(range(len(tensors)))
        plain = not (step.axes or step.fold or any(type(n) is Scalar for n in step.numbers))
        if not plain or call.inputs != places or call.outputs != (self.result.place,) or isinstance(queue, CPUQueue):
            return None
        launch = plan_of(queue, step.chain, step.compute, step.dtypes, tensors)
        return OneLaunch(launch, step.numbers, step.name)


def _wants_gradient(nodes: Sequence[Node]) -> bool:
    return any(n.requires_grad for n in nodes)


def _run_fused(call: FusedCall, values: list[Any], floats: Sequence[float]) -> None:
    step = call.step
    nodes = [values[i] for i in call.inputs]
    tensors = [n.value for n in nodes]
    tape = state.tape
    if tape is not None and call.recorded and state.enabled and _wants_gradient(nodes):
        made, saved = step.forward(tensors, floats, step.axes > 0)
        edges = tuple([e if x.differentiable else None for e, x in zip(edges_of(nodes), step.leaves)])
        needs = tuple([e is not None for e in edges])
        kept_leaves = step.backward_of(needs, call.differentiable).kept
        kept = [t if i in kept_leaves else None for i, t in enumerate(tensors)]

        def pullback(g: Any) -> Sequence[Tensor | None]:
            return step.backward(g if isinstance(g, tuple) else (g,), kept, needs, saved, floats)

        outputs = [Node(y, d, step.name, tape if d else None) for y, d in zip(made, call.differentiable)]
        site = call_site() if state.anomaly else ""
        module = "" if callers.labeller is None else callers.labeller().module
        tape.add(Record(step.title, tuple([n.key for n in outputs]), edges, pullback, site, kept, versions.now, module))
    else:
        made, _ = step.forward(tensors, floats)
        outputs = [Node(y, False, step.name) for y in made]
    for i, node in zip(call.outputs, outputs):
        values[i] = node
    if state.anomaly:
        check_finite(step.title, made, call_site())


def _run_eager(call: EagerCall, values: list[Any], floats: Sequence[float]) -> None:
    args = [values[a.place] if type(a) is Slot else _number(a, floats) for a in call.args]
    if call.name == "stop_gradient":
        values[call.outputs[0]] = Node(args[0].value)
        return
    attrs = call.attrs
    if not call.fixed:
        attrs = {k: values[v.place].value if type(v) is Slot else _number(v, floats) for k, v in attrs.items()}
    autocast, state.autocast = state.autocast, None  # the trace holds the casts
    try:
        result = apply_op(call.name, *args, **attrs)
    finally:
        state.autocast = autocast
    found = result if isinstance(result, tuple) else (result,)
    for i, node, facts in zip(call.outputs, found, call.facts, strict=True):
        if (node.value.shape, node.value.dtype) != facts:
            raise NetclError(f"{call.name}: expected a result of {facts} as traced, got {node.shape} {node.dtype}.")
        values[i] = node


def _number(a: Any, floats: Sequence[float]) -> Any:
    return a.compute(floats[a.index]) if type(a) is Scalar else a


def _restore(result: Any, values: list[Any]) -> Any:
    """The structure that the function returned, with values in place of Slots."""
    kind = type(result)
    if kind is Slot:
        return values[result.place]
    if kind is _Plain:
        return values[result.slot.place].value
    if isinstance(result, (tuple, list)):
        return rebuilt(result, [_restore(x, values) for x in result])
    return {k: _restore(x, values) for k, x in result.items()} if kind is dict else result


def rebuilt(like: Any, items: list[Any]) -> Any:
    """A tuple, list or named tuple like another one with these items."""
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)


class _Plain(NamedTuple):
    """A result that the function returned as a Tensor (`node.value`)."""

    slot: Slot


# -- from a trace ------------------------------------------------------------------------------------------------------


def compile_trace(
    nodes: Sequence[TraceNode],
    arguments: int,
    captured: Sequence[TraceNode],
    result: Any,
    numbers_as_arguments: bool,
    owned: Mapping[int, Any],
) -> Program:
    """The program of a trace whose first `arguments` inputs are arguments and the others captured tensors.

    `owned`: by id, what modules and variables hold; the program does not keep that alive.
    """
    outputs: list[TraceNode] = []
    _find_outputs(result, outputs)
    if any(0 in n.shape for n in nodes):
        raise Untraceable("has a tensor without elements")
    inputs = [n for n in nodes if n.op_name == "input"]
    places = [n.source if isinstance(n.source, int) else arguments for n in inputs]
    inputs = [inputs[i] for i in sorted(range(len(inputs)), key=places.__getitem__)]
    slots = {id(n): i for i, n in enumerate([*inputs[:arguments], *captured])}
    first = len(slots)
    steps = _alive(Planner(nodes, outputs, numbers_as_arguments).steps(), outputs)
    for step in steps:
        for n in step.outputs:
            slots[id(n)] = len(slots)
    calls = _calls(steps, outputs, slots)
    by_value = {id(x.value): x for x in owned.values() if isinstance(x, Node)}
    sources = [_captured(n, owned, by_value) for n in captured]
    program = Program(calls, sources, len(slots) - first, _template(result, slots))
    program.inputs, program.outputs = [*inputs[:arguments], *captured], outputs
    for n in captured:
        n.source = None
    return program


def _captured(node: TraceNode, owned: Mapping[int, Any], by_value: Mapping[int, Node]) -> Captured:
    """How a program finds a captured tensor: weakly where somebody else owns it."""
    source = node.source
    holder = by_value.get(id(source), source)  # the value of a parameter is that of each call
    find = weakref.ref(holder) if id(holder) in owned else _always(source)
    return Captured(find, holder is not source, node.shape, node.dtype, node.queue)


def _always(x: Any) -> Callable[[], Any]:
    return lambda: x


def _calls(steps: Sequence[FusedStep | CallStep], outputs: Sequence[TraceNode], slots: dict[int, int]) -> list[Call]:
    found = epilogue.find(steps, outputs)
    taken = {id(e.product) for e in found.values()}
    calls: list[Call] = []
    for s in steps:
        if id(s) in found:
            calls.append(_with_epilogue(found[id(s)], slots))
        elif id(s) not in taken:
            calls.append(_fused(s, slots) if isinstance(s, FusedStep) else _eager(s, slots))
    return calls


def _with_epilogue(e: Epilogue, slots: dict[int, int]) -> EagerCall:
    """A product and the step after it as one operation."""
    product, result = _eager(e.product, slots), e.step.outputs[0]
    args = product.args if e.bias is None else (*product.args, Slot(slots[id(e.bias)]))
    attrs = {**product.attrs, "activation": e.activation}
    name = "gemm" if product.name == "matmul" else product.name
    moved = sum(x.nbytes for x in (*e.product.node.operands, *([] if e.bias is None else [e.bias]), result))
    reason = f"with {' '.join(n.op_name for n in e.step.nodes)} in its epilogue"
    facts = ((result.shape, result.dtype),)
    return EagerCall(name, args, attrs, (slots[id(result)],), reason, moved, facts, product.fixed, product.name)


def _alive(steps: list[FusedStep | CallStep], outputs: list[TraceNode]) -> list[FusedStep | CallStep]:
    """The steps whose results somebody reads."""
    needed = {id(n) for n in outputs}
    kept = []
    for step in reversed(steps):
        if any(id(n) in needed or changes_state(n) for n in step.outputs):
            kept.append(step)
            needed |= {id(x) for x in (step.leaves if isinstance(step, FusedStep) else step.node.operands)}
    return kept[::-1]


def _fused(step: FusedStep, slots: dict[int, int]) -> FusedCall:
    wanted = tuple([n.differentiable for n in step.outputs])
    inputs, outputs = (tuple(slots[id(n)] for n in side) for side in (step.leaves, step.outputs))
    return FusedCall(step, inputs, outputs, wanted, any(wanted))


def _eager(step: CallStep, slots: dict[int, int]) -> EagerCall:
    node = step.node
    args = tuple(Slot(slots[id(x)]) if isinstance(x, TraceNode) else x for x in node.inputs)
    attrs = {k: Slot(slots[id(v)]) if isinstance(v, TraceNode) else v for k, v in node.attrs.items()}
    moved = sum(n.nbytes for n in (*node.operands, *step.outputs))
    facts = tuple((n.shape, n.dtype) for n in step.outputs)
    fixed = not any(type(v) in (Slot, Scalar) for v in attrs.values())
    return EagerCall(
        node.op_name, args, attrs, tuple(slots[id(n)] for n in step.outputs), step.reason, moved, facts, fixed
    )


def _find_outputs(result: Any, found: list[TraceNode]) -> None:
    """Collect the TraceNodes in what the traced function returned."""
    if isinstance(result, Node):
        result = result.value
    if isinstance(result, TraceNode):
        if all(result is not n for n in found):
            found.append(result)
    elif type(result) is Scalar:
        result.look()
    elif type(result) is dict or isinstance(result, (tuple, list)):
        for x in result.values() if isinstance(result, dict) else result:
            _find_outputs(x, found)
    elif not isinstance(result, (*PLAIN, np.ndarray, Tensor)):
        raise Untraceable(f"returns a {type(result).__name__}, which may hold results")


def _template(result: Any, slots: dict[int, int]) -> Any:
    if isinstance(result, Node) and isinstance(result.value, TraceNode):
        return Slot(slots[id(result.value)])
    if isinstance(result, TraceNode):
        return _Plain(Slot(slots[id(result)]))
    if isinstance(result, (tuple, list)):
        return rebuilt(result, [_template(x, slots) for x in result])
    if type(result) is dict:
        return {k: _template(x, slots) for k, x in result.items()}
    return result.known if type(result) is Scalar else result
