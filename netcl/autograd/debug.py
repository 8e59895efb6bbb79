"""Looking at a recorded graph: what made a node, from what, and a table of a whole tape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from netcl.autograd.node import INSPECT, Node
from netcl.autograd.state import state
from netcl.autograd.tape import Edge, Record, Tape
from netcl.core.dtypes import DType
from netcl.core.errors import GradientError
from netcl.core.layout import Shape
from netcl.core.tensor import Tensor


class Parent(NamedTuple):
    """An input of a recorded op that a gradient goes to. `node` is there for leaves; values in between are not kept."""

    op_name: str  # "" for a leaf
    shape: Shape
    dtype: DType
    node: Node | None


class GradFn:
    """How gradients pass the op that made a node: call it with the upstream gradient, a Tensor."""

    __slots__ = ("_record",)

    def __init__(self, record: Record) -> None:
        self._record = record

    @property
    def name(self) -> str:
        """The op's name."""
        return self._record.name

    def __call__(self, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """A gradient per input, None where there is none."""
        return tuple(self._record.pullback(upstream))

    def __repr__(self) -> str:
        return f"<{self.name} backward>"


def record_of(node: Node) -> Record | None:
    """What the tape holds of the op that made `node`; None for a leaf, or after backward freed it."""
    records = () if node.tape is None else reversed(node.tape.records)
    return next((record for record in records if node.key in record.outputs), None)


def parents_of(node: Node) -> tuple[Parent | None, ...]:
    """The inputs of the op that made `node`, None for those without a gradient; () for a leaf."""
    record = record_of(node)
    if record is None:
        return ()
    makers = {key: other.name for other in node.tape.records for key in other.outputs}
    return tuple(None if e is None else _parent(e, makers.get(e.key, "")) for e in record.inputs)


def _parent(edge: Edge, op_name: str) -> Parent:
    return Parent(op_name, edge.shape, edge.dtype, edge.leaf)


def _grad_fn(node: Node) -> GradFn | None:
    record = record_of(node)
    return None if record is None else GradFn(record)


def _site(node: Node) -> str:
    record = record_of(node)
    return "" if record is None else record.site


INSPECT.update(grad_fn=_grad_fn, parents=parents_of, creation_trace=_site)


def debug_tape(tape: Tape | None = None) -> str:
    """A table of what `tape` (by default the active one) holds: op, shapes of inputs, bytes saved for backward.

    Inputs that no gradient goes to are shown as "-". Print it. Raises GradientError when no tape is active.
    """
    tape = state.tape if tape is None else tape
    if tape is None:
        raise GradientError("debug_tape: expected a tape, got none; call it inside `with Tape():`, or pass the tape.")
    rows = [(str(i), r.name, _inputs(r.inputs), f"{_bytes(r.saved, set()):,}") for i, r in enumerate(tape.records)]
    rows = [("#", "op", "gradients go to", "saved bytes"), *rows]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join("  ".join(cell.ljust(n) for cell, n in zip(row, widths)).rstrip() for row in rows)


def _inputs(edges: Sequence[Edge | None]) -> str:
    return " ".join("-" if e is None else f"{e.shape}{' leaf' if e.leaf is not None else ''}" for e in edges)


def _bytes(saved: Any, seen: set[int]) -> int:
    """Bytes of the tensors in `saved`, each once."""
    if isinstance(saved, Tensor):
        if id(saved.buffer) in seen:
            return 0
        seen.add(id(saved.buffer))
        return saved.nbytes
    return sum(_bytes(x, seen) for x in saved) if isinstance(saved, (tuple, list)) else 0
