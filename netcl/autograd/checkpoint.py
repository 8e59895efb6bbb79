"""`ag.checkpoint`: a function whose intermediate results are computed again in backward instead of being kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from netcl.autograd.follow import Reached
from netcl.autograd.node import Node
from netcl.autograd.state import not_traced, state
from netcl.autograd.tape import Record, Tape
from netcl.core import recompute, versions
from netcl.core.errors import DTypeError, GradientError
from netcl.core.layout import Shape
from netcl.core.tensor import Tensor


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool = False, **kwargs: Any) -> Any:
    """`function(*args, **kwargs)`, of whose results inside only the arguments are kept until backward.

    >>> for block in model.blocks:
    ...     x = ag.checkpoint(block, x, mask=mask)

    Backward runs the function again, once, when it first needs something from inside: memory for the activations of
    one more forward of it. Random operations draw the same numbers then, and batch norms leave their running statistics
    alone. It may return anything, use parameters and nodes from outside, and contain checkpoints. Without a tape, or
    inside no_grad, it is a plain call. In a CompiledStep forward and recomputation are recorded; a function compiled as
    a whole runs unfused, so compile what is inside.

    The function has to do the same operations again: it depends on its arguments, on parameters that nobody writes
    before backward, and on modules that stay in the same mode. Source: Chen et al. 2016, arXiv:1604.06174.

    Args: use_reentrant: as PyTorch calls it; False is the only way here.
    Raises: GradientError in backward where an argument or parameter was written in between, or other operations ran.
    """
    if not callable(function):
        raise DTypeError(f"checkpoint: expected a function, got {type(function).__name__}.")
    if use_reentrant:
        raise GradientError("checkpoint: expected use_reentrant=False, got True; leave it out.")
    if state.enabled:
        not_traced("calls checkpoint")
    tape = state.tape
    if tape is None or not state.enabled or tape.rewrite is not None:  # one around this runs all of it again
        return function(*args, **kwargs)
    segment = _Segment(len(tape.records), functools.partial(function, *map(_packed, args), **_packed(kwargs)))
    outer, state.reached = state.reached, state.reached or Reached()
    modules, before = state.reached.modules, len(state.reached.modules)
    tape.rewrite = segment.rewritten
    try:
        with recompute.logged(segment.draws):
            return function(*args, **kwargs)
    finally:
        tape.rewrite, state.reached = None, outer
        segment.version = versions.now
        segment.modes = [(module, module.training) for module in modules[before:]]


class _Held(NamedTuple):
    """A result on the tape, without the tape: that would keep all of it alive until the garbage collector comes."""

    value: Tensor
    requires_grad: bool
    op_name: str


class _Facts(NamedTuple):
    """What tells one record of the function from another."""

    name: str
    shapes: tuple[Shape | None, ...]  # of the inputs that a gradient goes to


class _Segment:
    """One call of a checkpointed function: what it takes to run it again, and what that gave."""

    def __init__(self, start: int, call: functools.partial[Any]) -> None:
        self.start, self.call = start, call  # records on the tape before the call; packed arguments
        self.autocast = state.autocast
        self.draws: list[Any] = []
        self.modes: list[tuple[Any, bool]] = []  # the modules that ran, and whether they were training
        self.facts: list[_Facts] = []
        self.version = versions.now  # when forward was done
        self.checked = -1  # when what it reads was last compared with that
        self.read = _tensors((call.args, call.keywords))
        self.leaves: dict[int, tuple[Node, Tensor]] = {}
        self.fresh: dict[int, Record] = {}

    def rewritten(self, place: int, record: Record) -> Record:
        """The record with a pullback that runs the function again, in the place of one that keeps what it saved."""
        i = place - self.start
        del self.facts[i:]  # of records that the compiler took back
        self.facts.append(_facts(record))
        for edge in record.inputs:
            if edge is not None and edge.leaf is not None:
                self.leaves[edge.key] = edge.leaf, edge.leaf.value
        return record._replace(pullback=functools.partial(self._pullback, i), saved=() if i else self.read)

    def _pullback(self, i: int, upstream: Any) -> Sequence[Tensor | None]:
        if self.checked != versions.now:
            self._check()
        if i not in self.fresh:
            self._run_again()
        return self.fresh.pop(i).pullback(upstream)

    def _check(self) -> None:
        """Raise GradientError if what the function reads is no longer what forward read."""
        written = [t for t in self.read if versions.changed(t, self.version)]
        written += [t for _, t in self.leaves.values() if versions.changed(t, self.version)]
        written += [t for leaf, t in self.leaves.values() if leaf.value is not t]
        if written:
            raise GradientError(
                f"checkpoint: expected its arguments and parameters as forward read them, got one of shape "
                f"{written[0].shape} written or replaced since; call backward before that, or pass a copy."
            )
        self.checked = versions.now

    def _run_again(self) -> None:
        changed = next((module for module, training in self.modes if module.training != training), None)
        if changed is not None:
            raise GradientError(
                "checkpoint: expected modules in the mode that they had in forward, got a "
                f"{type(changed).__name__} with training={changed.training}; call backward before train() or eval()."
            )
        tape, before = Tape(), (state.tape, state.enabled, state.autocast)
        args, kwargs = _unpacked(self.call.args, tape), _unpacked(self.call.keywords, tape)
        try:
            state.tape, state.enabled, state.autocast = tape, True, self.autocast
            with recompute.repeated(self.draws):
                self.call.func(*args, **kwargs)
        finally:
            state.tape, state.enabled, state.autocast = before
        found = [_facts(record) for record in tape.records]
        if found != self.facts:
            first = next((i for i, pair in enumerate(zip(found, self.facts)) if pair[0] != pair[1]), -1)
            what = f"{len(found)} of them" if first < 0 else f"{found[first].name} of {found[first].shapes}"
            then = f"{len(self.facts)}" if first < 0 else f"{self.facts[first].name} of {self.facts[first].shapes}"
            raise GradientError(
                f"checkpoint: expected the function to do the same operations when it runs again ({then}), got {what}; "
                "let it depend on its arguments, and on what stays as it was until backward."
            )
        self.fresh = dict(enumerate(tape.records))


def _facts(record: Record) -> _Facts:
    return _Facts(record.name, tuple([None if edge is None else edge.shape for edge in record.inputs]))


def _packed(value: Any) -> Any:
    """The value with results on a tape held without it, through any nesting of lists, tuples and dicts."""
    if isinstance(value, Node) and value.tape is not None:
        return _Held(value.value, value.requires_grad, value.op_name)
    return _each(_packed, value)


def _unpacked(value: Any, tape: Tape) -> Any:
    if isinstance(value, _Held):
        return Node(value.value, value.requires_grad, value.op_name, tape)
    return _each(lambda v: _unpacked(v, tape), value)


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    """The container with `function` of each element; what is none as it is."""
    if type(value) is dict:
        return {k: function(v) for k, v in value.items()}
    if isinstance(value, tuple):
        items = [function(v) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return [function(v) for v in value] if type(value) is list else value


def _tensors(value: Any) -> tuple[Tensor, ...]:
    """The tensors in packed arguments."""
    if isinstance(value, _Held):
        return (value.value,)
    if isinstance(value, Node):
        return (value.value,)
    if isinstance(value, Tensor):
        return (value,)
    inside = value.values() if type(value) is dict else value if isinstance(value, (tuple, list)) else ()
    return tuple([t for v in inside for t in _tensors(v)])
