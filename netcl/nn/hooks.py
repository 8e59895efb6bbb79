"""Hooks of modules on gradients: `register_full_backward_hook` and `register_full_backward_pre_hook`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from netcl.autograd.hooks import Handle, fitting
from netcl.autograd.node import Node
from netcl.autograd.op import passing
from netcl.autograd.state import state
from netcl.core.errors import GradientError
from netcl.core.tensor import Tensor

Gradients = tuple[Tensor | None, ...]
BackwardHooks = dict[
    Handle, tuple[Callable[..., Any], bool]
]  # the hook, and whether it sees the result's gradient first


def recording() -> bool:
    """Whether hooks on gradients have anything to see."""
    return state.tape is not None and state.enabled


class Watched:
    """One call of a module with such hooks: its arguments and its result pass the tape by records that call them."""

    def __init__(self, module: Any, hooks: BackwardHooks) -> None:
        self.module, self.hooks, self.now = module, dict(hooks), hooks
        self.count, self.places = 0, [0]
        self.results, self.outside = 0, [0]
        self.grad_output: Gradients = ()

    def arguments(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, behind the record whose gradients are the module's `grad_input`."""
        self.count, self.places = len(args), _wanting(args)
        return _through(args, self.places, self._leaving)

    def result(self, result: Any) -> Any:
        """The result, before the record whose gradients are the module's `grad_output`."""
        several = result if isinstance(result, tuple) else (result,)
        if not all(isinstance(r, Node) or r is None for r in several):
            raise GradientError(
                f"{type(self.module).__name__}: expected forward to return a node or a tuple of nodes, since "
                f"register_full_backward_hook was called, got {type(result).__name__}; use Node.register_hook inside."
            )
        self.results, self.outside = len(several), _wanting(several)
        self.grad_output = (None,) * self.results
        found = _through(several, self.outside, self._entering)
        if not isinstance(result, tuple):
            return found[0]
        return type(result)(*found) if hasattr(result, "_fields") else found

    def _left(self, before: bool) -> list[Callable[..., Any]]:
        """The hooks of a kind that nobody has removed since forward."""
        return [hook for key, (hook, first) in self.hooks.items() if first is before and key in self.now]

    def _entering(self, gradients: Gradients) -> Gradients:
        """Backward comes to the result."""
        self.grad_output = _placed(gradients, self.outside, self.results)
        for hook in self._left(True):
            changed = hook(self.module, self.grad_output)
            self.grad_output = _replaced("register_full_backward_pre_hook", changed, self.grad_output)
        going = tuple([self.grad_output[i] for i in self.outside])
        if not self.places:
            self._leaving(())
        return going

    def _leaving(self, gradients: Gradients) -> Gradients:
        """Backward has passed the module; without an argument that wants a gradient, has come to it."""
        grad_input = _placed(gradients, self.places, self.count)
        for hook in self._left(False):
            changed = hook(self.module, grad_input, self.grad_output)
            grad_input = _replaced("register_full_backward_hook", changed, grad_input)
        return tuple([grad_input[i] for i in self.places])


def _wanting(values: Sequence[Any]) -> list[int]:
    """The positions of the nodes that a gradient goes to."""
    return [i for i, v in enumerate(values) if isinstance(v, Node) and v.requires_grad]


def _through(values: tuple[Any, ...], places: list[int], through: Callable[[Gradients], Gradients]) -> tuple[Any, ...]:
    """The values, those at `places` as results of a record whose gradients `through` sees and replaces."""
    if not places:
        return values
    found = dict(zip(places, passing("backward_hook", [values[i] for i in places], through)))
    return tuple([found.get(i, v) for i, v in enumerate(values)])


def _placed(gradients: Gradients, places: list[int], count: int) -> Gradients:
    """The gradients at their positions among `count`, None elsewhere."""
    found = dict(zip(places, gradients))
    return tuple([found.get(i) for i in range(count)])


def _replaced(where: str, changed: Any, gradients: Gradients) -> Gradients:
    """The gradients that a hook returned, or those it got if it returned None."""
    if changed is None:
        return gradients
    several = changed if isinstance(changed, tuple) else (changed,)
    if len(several) != len(gradients) or any(g is None and c is not None for c, g in zip(several, gradients)):
        raise GradientError(
            f"{where}: expected a hook to return None, or a tuple with a tensor in the place of each of the gradients "
            f"it got and None in the place of None, got {len(several)} for {len(gradients)} of which "
            f"{sum(g is None for g in gradients)} None."
        )
    return tuple([c if c is None or g is None else fitting(where, c, g) for c, g in zip(several, gradients)])
