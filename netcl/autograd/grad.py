"""`ag.grad`: gradients of some nodes with respect to others, returned in place of being added to `.grad`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from netcl.autograd.node import Node
from netcl.autograd.tape import Tape, owned
from netcl.core.errors import DTypeError, GradientError
from netcl.core.tensor import Tensor


def grad(
    outputs: Node | Iterable[Node],
    inputs: Node | Iterable[Node],
    grad_outputs: Any = None,
    retain_graph: bool = False,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradient of `outputs` (of their sum) with respect to each of `inputs`. No `.grad` changes.

    >>> with ag.Tape():
    ...     y = (x * x).sum()
    >>> (dx,) = ag.grad(y, x)  # 2 x

    Inputs are leaves that require a gradient or results on the tape; only what lies between them and the outputs is
    computed. As after backward the graph is freed unless `retain_graph`.

    Args: outputs, inputs: a node, or several. grad_outputs: the gradient to start from, a tensor for each output; None,
        as a whole or for one of them, is ones of its shape. create_graph: gradients are recorded on no tape, so True
        is refused. allow_unused: None for inputs that outputs do not depend on.
    Raises: GradientError for an input without influence on the outputs, outputs of several tapes, and a graph already
        used or freed.
    """
    if create_graph:
        raise GradientError(
            "grad: expected create_graph=False, got True; gradients of gradients are not recorded, so write the first "
            "derivative as operations and take its gradient."
        )
    tops, bottoms = _nodes("outputs", outputs), _nodes("inputs", inputs)
    for i, node in enumerate(bottoms):
        if not node.requires_grad:
            raise GradientError(
                f"grad: expected inputs that require a gradient, got one that does not at position {i}; use a "
                "Parameter, tensor(x, requires_grad=True), or a result computed from one inside `with Tape():`."
            )
    tape = _tape_of(tops)
    seeds = [(top, tape.seed("grad", top, g)) for top, g in zip(tops, _upstreams(grad_outputs, len(tops)))]
    found = tape.walked(seeds, retain_graph, {node.key: node for node in bottoms}, _between(tape, bottoms))
    taken = {id(seed.buffer) for _, seed in seeds}
    results: list[Tensor | None] = []
    for i, node in enumerate(bottoms):
        gradient = found[node.key][1] if node.key in found else None
        if gradient is None and not allow_unused:
            raise GradientError(
                f"grad: expected inputs that the outputs depend on, got one without influence at position {i}; pass "
                "allow_unused=True to get None for it."
            )
        results.append(None if gradient is None else owned(gradient, taken))
        taken |= set() if results[-1] is None else {id(results[-1].buffer)}
    return tuple(results)


def _nodes(name: str, given: Any) -> list[Node]:
    """One node or several, as a list. Raises DTypeError for anything else."""
    if isinstance(given, Node):
        return [given]
    several = list(given) if isinstance(given, Iterable) and not isinstance(given, Tensor) else [given]
    wrong = [x for x in several if not isinstance(x, Node)]
    if wrong or not several:
        found = type(wrong[0]).__name__ if wrong else "none"
        raise DTypeError(
            f"grad: expected {name} as a node or several, got {found}; make one with tensor(x, requires_grad=True)."
        )
    return several


def _upstreams(given: Any, count: int) -> Sequence[Any]:
    """The gradient to start from for each of `count` outputs."""
    if given is None:
        return [None] * count
    several = [given] if isinstance(given, Tensor) else list(given)
    if len(several) != count:
        raise GradientError(
            f"grad: expected grad_outputs with a tensor or None for each of {count} outputs, got {len(several)}."
        )
    return several


def _tape_of(outputs: Sequence[Node]) -> Tape:
    """The tape that recorded them; an empty one for leaves."""
    tapes = {id(node.tape): node.tape for node in outputs if node.tape is not None}
    if len(tapes) > 1:
        raise GradientError(
            "grad: expected outputs recorded on one tape, got those of several; compute them inside the same "
            "`with Tape():`, or call grad for each."
        )
    return next(iter(tapes.values()), Tape())


def _between(tape: Tape, inputs: Sequence[Node]) -> set[int]:
    """The results that depend on the inputs."""
    keys = {node.key for node in inputs}
    above: set[int] = set()
    for record in tape.records:
        if any(edge is not None and edge.key in keys for edge in record.inputs):
            above.update(record.outputs)
            keys.update(record.outputs)
    return above
