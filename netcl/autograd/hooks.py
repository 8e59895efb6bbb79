"""Hooks: functions of the user's that see gradients on their way back, and may put others in their place."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from netcl.autograd.node import INSPECT, Node
from netcl.core.errors import DTypeError, GradientError
from netcl.core.tensor import Tensor
from netcl.ops import elementwise

Hooks = dict["Handle", Callable[[Tensor], Any]]  # in the order in which they are called

LEAVES: dict[int, Hooks] = {}  # of leaves that have hooks, by key; those of results are on their tape


class _Changes:
    """Counts hooks put on leaves and taken off: what was recorded before runs without them."""

    serial = 0


changes = _Changes()


class Handle:
    """Removes a hook: this registration of it, where a function was registered more than once.

    Also a `with` block, at whose end the hook is removed.
    """

    def __init__(self, hooks: dict[Any, Any], hook: Any, changed: Callable[[], None], first: bool = False) -> None:
        self._hooks, self._changed = hooks, changed
        others = dict(hooks) if first else {}
        if first:
            hooks.clear()
        hooks[self] = hook
        hooks.update(others)
        changed()

    def remove(self) -> None:
        """Take the hook away, from the next use on; a second call does nothing."""
        if self._hooks.pop(self, None) is not None:
            self._changed()

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def register_hook(node: Node, hook: Callable[[Tensor], Any]) -> Handle:
    """`Node.register_hook`."""
    if not node.requires_grad:
        raise GradientError(
            "register_hook: expected a node that requires a gradient, got one that does not; use a Parameter, "
            "tensor(x, requires_grad=True), or a result computed from one inside `with Tape():`."
        )
    if not callable(hook):
        raise DTypeError(f"register_hook: expected a function of the gradient, got {type(hook).__name__}.")
    if node.tape is not None:
        return Handle(node.tape.hooks.setdefault(node.key, {}), hook, lambda: None)
    if node.key not in LEAVES:
        LEAVES[node.key] = {}
        weakref.finalize(node, LEAVES.pop, node.key, None).atexit = False
    return Handle(LEAVES[node.key], hook, _count)


def _count() -> None:
    changes.serial += 1


def passed(hooks: Hooks, grad: Tensor) -> Tensor:
    """The gradient that comes out of the hooks."""
    for hook in tuple(hooks.values()):  # a hook may remove itself
        changed = hook(grad)
        if changed is not None:
            grad = elementwise.copy(fitting("register_hook", changed, grad))  # the user may keep what it returned
    return grad


def fitting(where: str, changed: Any, grad: Tensor) -> Tensor:
    """What a hook returned in the place of `grad`. Raises GradientError unless it is of the same shape and dtype."""
    found = changed.value if isinstance(changed, Node) else changed
    if not isinstance(found, Tensor):
        raise GradientError(
            f"{where}: expected a hook to return a tensor or None, got {type(found).__name__}; return None to leave "
            "the gradient as it is."
        )
    if found.shape != grad.shape or found.dtype != grad.dtype or found.queue != grad.queue:
        raise GradientError(
            f"{where}: expected a hook to return a gradient of shape {grad.shape} and {grad.dtype} on the same device, "
            f"got {found.shape} and {found.dtype}; use sum, reshape, astype or to."
        )
    return found


INSPECT["register_hook"] = register_hook
