"""The tape: what was computed in order, and the walk back that turns it into gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from netcl.autograd.node import Node
from netcl.autograd.state import state
from netcl.core import layout, versions
from netcl.core.dtypes import DType, is_float
from netcl.core.errors import DTypeError, GradientError
from netcl.core.layout import Shape
from netcl.core.tensor import Tensor
from netcl.ops import elementwise, reduction


class Edge(NamedTuple):
    """Where the gradient of one input goes: the node's key and shape, and the node itself when it is a leaf."""

    key: int
    shape: Shape
    dtype: DType
    leaf: Node | None


class Record(NamedTuple):
    """One op on the tape. It holds keys, not nodes, so values that backward does not need are freed early."""

    name: str
    outputs: tuple[int, ...]
    inputs: tuple[Edge | None, ...]
    pullback: Callable[[Any], Sequence[Tensor | None]]
    site: str  # the line that called the op, kept in anomaly mode
    saved: Sequence[Any]  # the tensors that pullback reads, as they are or in tuples, among other things
    version: int  # versions.now when they were saved
    module: str = ""  # the module that called the op, kept while a profiler runs


class Tape:
    """Records operations between nodes inside its `with` block, in this thread; `backward` may come after the block."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.retained: dict[int, Node] = {}
        self.early: list[Tensor] | None = None  # a gradient that forward left for backward to take
        self._outer: list[Tape | None] = []
        self._spent = False

    def __enter__(self) -> Tape:
        self._outer.append(state.tape)
        state.tape = self
        return self

    def __exit__(self, *exc: object) -> None:
        state.tape = self._outer.pop()

    def __len__(self) -> int:
        return len(self.records)

    def add(self, record: Record) -> None:
        """Append one operation."""
        self._spent = False
        self.records.append(record)

    def reset(self) -> None:
        """Forget everything recorded."""
        self.records.clear()
        self.retained.clear()
        self.early = None
        self._spent = False

    def backward(self, loss: Node, grad: Tensor | None = None, retain_graph: bool = False) -> None:
        """Add d loss / d leaf to `.grad` of every leaf that requires a gradient.

        `grad` is the upstream gradient, by default ones of the loss's shape. The recorded graph is freed as it is
        walked, so a second call raises GradientError unless the first had `retain_graph=True`. It also raises
        where a saved tensor was written in place since forward (by an optimizer, assign, fill_, out=, a replay).
        """
        if type(loss) is not Node or loss.tape is not self:
            _check_loss(self, loss)
        if self._spent:
            raise GradientError(
                "backward: expected a recorded graph, got one already used; pass retain_graph=True before."
            )
        if not loss.requires_grad:
            raise GradientError(
                "backward: expected a node that depends on something requiring a gradient, got one that does not; "
                "compute it inside `with Tape():` from Parameters or tensor(x, requires_grad=True)."
            )
        if loss.tape is not None and not self._holds(loss.key):
            raise GradientError(
                "backward: expected a node whose graph is on this tape, got one recorded before reset() or freed by an "
                "earlier backward; compute it again, or pass retain_graph=True to the earlier one."
            )
        seed = _ones(loss) if grad is None else _upstream(grad, loss)
        outer, state.tape = state.tape, None
        try:
            leaves = self._walk({loss.key: seed}, loss, retain_graph)
        finally:
            state.tape = outer
        self._spent = not retain_graph
        if self._spent:
            self.retained.clear()
            self.early = None  # of a loss that this backward did not come from
        _store(leaves, seed)

    def _holds(self, key: int) -> bool:
        """Whether some record made the node of this key, most likely the last."""
        records = self.records
        return bool(records) and (key in records[-1].outputs or any(key in record.outputs for record in records))

    def _walk(self, grads: dict[int, Tensor], loss: Node, retain: bool) -> dict[int, tuple[Node, Tensor]]:
        """Pop each gradient where it is consumed; return those of leaves and retained nodes."""
        found: dict[int, tuple[Node, Tensor]] = {}
        if loss.tape is None:
            found[loss.key] = (loss, grads[loss.key])
        records = list(self.records) if retain else self.records
        retained, anomaly = self.retained, state.anomaly
        while records:
            record = records.pop()
            name, outputs, inputs, pullback, site, saved, version, _ = record
            if len(outputs) == 1:
                upstream: Any = grads.pop(outputs[0], None)
                if upstream is None:
                    continue
            else:
                upstream = tuple([grads.pop(key, None) for key in outputs])
                if all(g is None for g in upstream):
                    continue
            if retained:
                self._retain(outputs, upstream, found)
            if version != versions.now:
                _check_saved(record, saved)
            gradients = pullback(upstream)
            if anomaly:
                check_finite(f"backward of {name}", [g for g in gradients if g is not None], site)
            if len(gradients) != len(inputs):
                _check_count(record, gradients)
            for edge, dx in zip(inputs, gradients):
                if edge is None or dx is None:
                    continue
                key, shape, dtype, leaf = edge
                if type(dx) is not Tensor or dx.shape != shape or dx.dtype is not dtype:
                    dx = _fitted(name, dx, shape, dtype)
                if leaf is not None:
                    known = found.get(key)
                    found[key] = (leaf, dx if known is None else elementwise.add(known[1], dx))
                else:
                    grads[key] = elementwise.add(grads[key], dx) if key in grads else dx
        return found

    def _retain(self, keys: tuple[int, ...], upstream: Any, found: dict[int, tuple[Node, Tensor]]) -> None:
        """Note the gradients of those nodes that asked for theirs."""
        for key, g in zip(keys, upstream if type(upstream) is tuple else (upstream,), strict=True):
            if key in self.retained and g is not None:
                found[key] = (self.retained[key], g)


def _check_saved(record: Record, saved: Sequence[Any]) -> None:
    """Raise GradientError if memory that backward is about to read was written since forward."""
    for x in saved:
        if isinstance(x, tuple):
            _check_saved(record, x)
        elif isinstance(x, Tensor) and versions.changed(x, record.version):
            where = f"called at {record.site}" if record.site else "detect_anomaly() names its line"
            raise GradientError(
                f"backward of {record.name}: expected its saved tensor of shape {x.shape} as forward read it, got one "
                "written in place since (by an optimizer, assign, fill_, out=, running statistics or a replay); call "
                f"backward before writing, or give {record.name} a copy ({where})."
            )


def _check_count(record: Record, gradients: Sequence[Any]) -> None:
    """Raise GradientError unless there is a gradient or None for every input that wants one, and no other."""
    wanted = max((i for i, edge in enumerate(record.inputs) if edge is not None), default=-1) + 1
    if len(gradients) < wanted or any(g is not None for g in gradients[len(record.inputs) :]):
        raise GradientError(
            f"backward of {record.name}: expected a gradient or None for each of {len(record.inputs)} inputs, got "
            f"{len(gradients)}; return a tuple with one entry an input."
        )


def _fitted(name: str, dx: Any, shape: Shape, dtype: DType) -> Tensor:
    """`dx` as the gradient of an input: summed where that was broadcast, in its dtype. Raises GradientError."""
    if not isinstance(dx, Tensor):
        raise GradientError(f"backward of {name}: expected tensors as gradients, got {type(dx).__name__}.")
    if dx.shape != shape and (len(dx.shape) < len(shape) or not _broadcasts(shape, dx.shape)):
        raise GradientError(
            f"backward of {name}: expected a gradient of the input's shape {shape}, or one that it broadcasts to, got "
            f"{dx.shape}."
        )
    return fit(dx, shape, dtype)


def _broadcasts(shape: Shape, to: Shape) -> bool:
    """Whether `shape` broadcasts to `to`, which has as many axes or more."""
    return all(n in (1, m) for n, m in zip(shape, to[len(to) - len(shape) :]))


def _check_loss(tape: Tape, loss: Any) -> None:
    """Raise unless `loss` is a node that `tape` can go back from."""
    if not hasattr(loss, "requires_grad"):
        raise DTypeError(
            f"backward: expected a node, got {type(loss).__name__}; pass the loss that was computed inside "
            "`with Tape():` from Parameters or tensor(x, requires_grad=True)."
        )
    if loss.tape is not None and loss.tape is not tape:
        raise GradientError(
            "backward: expected a node recorded on this tape, got one of another; call loss.backward(), or backward "
            "of the tape whose block computed it."
        )


def _upstream(grad: Any, loss: Node) -> Tensor:
    """The gradient that backward starts from, checked, in the loss's dtype."""
    if not isinstance(grad, Tensor):
        raise DTypeError(
            f"backward: expected a Tensor as the upstream gradient, got {type(grad).__name__}; make one with "
            "Tensor.from_host(queue, data)."
        )
    if grad.shape != loss.shape:
        raise GradientError(f"backward: expected an upstream gradient of shape {loss.shape}, got {grad.shape}.")
    return grad.astype(loss.dtype)


def _ones(loss: Node) -> Tensor:
    value = loss.value
    if value.shape == (1,):
        return reduction.one(value.queue, value.dtype)
    return Tensor.ones(value.queue, value.shape, value.dtype)


def _store(leaves: dict[int, tuple[Node, Tensor]], seed: Tensor) -> None:
    """Write or add the gradients; each leaf gets memory of its own, since optimizers and clipping work in place."""
    taken = {id(seed.buffer)}
    if state.leaves is not None:
        state.leaves += [node for node, _ in leaves.values()]
    for node, grad in leaves.values():
        if node.grad is not None:
            node.grad = elementwise.add(node.grad, grad)
        elif id(grad.buffer) in taken or grad.offset or not layout.is_contiguous(grad.shape, grad.strides):
            node.grad = elementwise.copy(grad)
        else:
            node.grad = grad
        taken.add(id(node.grad.buffer))


def fit(g: Tensor, shape: Shape, dtype: DType) -> Tensor:
    """`g` summed over the axes along which an input of `shape` was broadcast, in the input's dtype."""
    if g.shape != shape:
        lead = g.ndim - len(shape)
        axes = (*range(lead), *(lead + i for i, n in enumerate(shape) if n == 1 and g.shape[lead + i] != 1))
        g = reduction.sum(g, axis=axes, keepdims=True).reshape(shape)
    return g if g.dtype == dtype else g.astype(dtype)


def check_finite(name: str, tensors: Sequence[Tensor], site: str) -> None:
    """Raise GradientError naming the op and its line if a result holds NaN or infinity. Waits for the device."""
    for t in tensors:
        if is_float(t.dtype) and t.size and not bool(reduction.all(elementwise.isfinite(t)).item()):
            raise GradientError(
                f"{name}: expected finite values, got NaN or infinity in a result of {t.shape}; at {site}"
            )


def get_current_tape() -> Tape | None:
    """The active tape of this thread."""
    found: Tape | None = state.tape
    return found


def set_current_tape(tape: Tape | None) -> None:
    """Make `tape` the active tape of this thread."""
    state.tape = tape
