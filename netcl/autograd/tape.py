"""The tape: what was computed in order, and the walk back that turns it into gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from netcl.autograd import hooks
from netcl.autograd.node import Node
from netcl.autograd.state import not_traced, state
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


Found = dict[int, tuple[Node, Tensor]]  # gradients with their nodes, by key


class Tape:
    """Records operations between nodes inside its `with` block, in this thread; `backward` may come after the block."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.retained: dict[int, Node] = {}
        self.hooks: dict[int, hooks.Hooks] = {}  # of results, by key
        self.rewrite: Callable[[int, Record], Record] | None = None  # while a checkpointed function runs
        self.early: list[Tensor] | None = None  # a gradient that forward left for backward to take
        self._outer: list[Tape | None] = []
        self._spent = False

    def __enter__(self) -> Tape:
        not_traced("opens a tape")
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
        self.records.append(record if self.rewrite is None else self.rewrite(len(self.records), record))

    def reset(self) -> None:
        """Forget everything recorded."""
        self.records.clear()
        self._forget()
        self._spent = False

    def _forget(self) -> None:
        self.retained.clear()
        self.hooks.clear()
        self.early = None  # of a loss that this backward did not come from

    def backward(self, loss: Node, grad: Tensor | None = None, retain_graph: bool = False) -> None:
        """Add d loss / d leaf to `.grad` of every leaf that requires a gradient.

        `grad` is the upstream gradient, by default ones of the loss's shape. The recorded graph is freed as it is
        walked, so a second call raises GradientError unless the first had `retain_graph=True`. It also raises
        where a saved tensor was written in place since forward (by an optimizer, assign, fill_, out=, a replay).
        """
        if type(loss) is not Node or loss.tape is not self:
            _check_loss(self, loss)
        seed = self.seed("backward", loss, grad)
        _store(self.walked([(loss, seed)], retain_graph, self.retained), seed)

    def seed(self, where: str, loss: Node, grad: Tensor | None) -> Tensor:
        """The gradient to start from at `loss`. Raises GradientError unless its graph is there."""
        not_traced(f"calls {where}")
        if self._spent:
            raise GradientError(
                f"{where}: expected a recorded graph, got one already used; pass retain_graph=True before."
            )
        if not loss.requires_grad:
            raise GradientError(
                f"{where}: expected a node that depends on something requiring a gradient, got one that does not; "
                "compute it inside `with Tape():` from Parameters or tensor(x, requires_grad=True)."
            )
        if loss.tape is not None and not self._holds(loss.key):
            raise GradientError(
                f"{where}: expected a node whose graph is on this tape, got one recorded before reset() or freed by an "
                "earlier backward; compute it again, or pass retain_graph=True to the earlier one."
            )
        return _ones(loss) if grad is None else _upstream(where, grad, loss)

    def walked(
        self,
        seeds: Sequence[tuple[Node, Tensor]],
        retain: bool,
        asked: dict[int, Node],
        needed: set[int] | None = None,
    ) -> Found:
        """By key, the gradients of the leaves and of the results in `asked`, from those in `seeds`.

        With `needed` only records of those results are walked through, for nothing but what is asked.
        """
        grads: dict[int, Tensor] = {}
        for node, seed in seeds:
            if node.tape is not None:
                grads[node.key] = elementwise.add(grads[node.key], seed) if node.key in grads else seed
        outer, state.tape = state.tape, None
        try:
            found = self._walk(grads, retain, asked, needed)
        finally:
            state.tape = outer
        for node, seed in seeds:
            if node.tape is None:
                found[node.key] = (node, elementwise.add(found[node.key][1], seed) if node.key in found else seed)
        self._spent = not retain
        if self._spent:
            self._forget()
        if needed is not None:
            found = {key: pair for key, pair in found.items() if key in asked}
        for key in asked.keys() & grads.keys():  # results of other tapes, which this one has no record of
            found[key] = (asked[key], grads[key])
        if hooks.LEAVES:
            for key in found.keys() & hooks.LEAVES.keys():
                node, grad = found[key]
                found[key] = (node, hooks.passed(hooks.LEAVES[key], grad))
        return found

    def _holds(self, key: int) -> bool:
        """Whether some record made the node of this key, most likely the last."""
        records = self.records
        return bool(records) and (key in records[-1].outputs or any(key in record.outputs for record in records))

    def _walk(self, grads: dict[int, Tensor], retain: bool, asked: dict[int, Node], needed: set[int] | None) -> Found:
        """Pop each gradient where it is consumed; return those of leaves and of `asked`."""
        found: Found = {}
        records = list(self.records) if retain else self.records
        anomaly, special = state.anomaly, bool(asked or self.hooks)
        while records:
            record = records.pop()
            name, outputs, inputs, pullback, site, saved, version, _ = record
            if len(outputs) == 1:
                upstream: Any = grads.pop(outputs[0], None)
            else:
                several = tuple([grads.pop(key, None) for key in outputs])
                upstream = None if all(g is None for g in several) else several
            if special and upstream is not None:
                upstream = self._seen(outputs, upstream, asked, found, needed)
            if upstream is None:
                continue
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

    def _seen(
        self, keys: tuple[int, ...], upstream: Any, asked: dict[int, Node], found: Found, needed: set[int] | None
    ) -> Any:
        """The gradients of a record's results after their hooks, those of `asked` noted; None where the walk ends."""
        through = needed is None or not needed.isdisjoint(keys)
        if not through and asked.keys().isdisjoint(keys):
            return None
        many = type(upstream) is tuple
        grads = list(upstream) if many else [upstream]
        for i, key in enumerate(keys):
            if grads[i] is None:
                continue
            if key in self.hooks:
                grads[i] = hooks.passed(self.hooks[key], grads[i])
            if key in asked:
                found[key] = (asked[key], grads[i])
        if not through:
            return None
        return tuple(grads) if many else grads[0]


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


def _upstream(where: str, grad: Any, loss: Node) -> Tensor:
    """The gradient that backward starts from, checked, in the loss's dtype."""
    if not isinstance(grad, Tensor):
        raise DTypeError(
            f"{where}: expected a Tensor as the upstream gradient, got {type(grad).__name__}; make one with "
            "Tensor.from_host(queue, data)."
        )
    if grad.shape != loss.shape:
        raise GradientError(f"{where}: expected an upstream gradient of shape {loss.shape}, got {grad.shape}.")
    return grad.astype(loss.dtype)


def _ones(loss: Node) -> Tensor:
    value = loss.value
    if value.shape == (1,):
        return reduction.one(value.queue, value.dtype)
    return Tensor.ones(value.queue, value.shape, value.dtype)


def _store(leaves: Found, seed: Tensor) -> None:
    """Write or add the gradients."""
    taken = {id(seed.buffer)}
    if state.leaves is not None:
        state.leaves += [node for node, _ in leaves.values()]
    for node, grad in leaves.values():
        node.grad = owned(grad, taken) if node.grad is None else elementwise.add(node.grad, grad)
        taken.add(id(node.grad.buffer))


def owned(grad: Tensor, taken: set[int]) -> Tensor:
    """The gradient in contiguous memory that is not in `taken`, since optimizers and clipping work in place."""
    if id(grad.buffer) in taken or grad.offset or not layout.is_contiguous(grad.shape, grad.strides):
        return elementwise.copy(grad)
    return grad


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
