"""The functions of `netcl.ops` as users call them: what is no tensor is told where it fails, at no cost before."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

from netcl.core.errors import DTypeError, NetclError
from netcl.core.keywords import INDEX_FIRST, SYNONYMS, in_our_order, renamed
from netcl.core.tensor import Tensor
from netcl.ops.record import find

FREE = {
    "normal",
    "uniform",
    "bernoulli",
    "randint",
    "permutation",
    "seed",
    "arange",
    "linspace",
    "eye",
    "explain",
    "force",
}


def guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose failure at an operand that is no Tensor is a DTypeError; it takes PyTorch's words and order."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs and not SYNONYMS.keys().isdisjoint(kwargs):
            kwargs = renamed(name, kwargs)
        if len(args) > 1 and args[1].__class__ is int and name in INDEX_FIRST:
            args, kwargs = in_our_order(name, args, kwargs)
        try:
            return function(*args, **kwargs)
        except AttributeError as error:
            _explain(name, [*args, *kwargs.values()], error)

    call.__module__ = "netcl.ops"
    return call


def _explain(name: str, given: list[Any], error: AttributeError) -> NoReturn:
    """Raise DTypeError where `error` came of an argument that is no Tensor, else `error` itself."""
    flat = [y for x in given for y in (x if isinstance(x, (tuple, list)) else (x,))]
    wrong = next((x for x in (*given, *flat) if x is error.obj and not isinstance(x, Tensor)), None)
    if wrong is None and error.obj is not None:
        wrong = next((x for x in (*given, *flat) if type(x) is type(error.obj) and not isinstance(x, Tensor)), None)
    if isinstance(error, NetclError) or (wrong is None and error.obj is not None) or isinstance(error.obj, Tensor):
        raise error
    if hasattr(wrong, "value") and hasattr(wrong, "requires_grad"):
        advice = "give node.value" if find(name) is None else f"use ag.{name}, or give node.value"
    else:
        advice = "make one with netcl.tensor(data)"
    raise DTypeError(f"ops.{name}: expected a Tensor, got {type(wrong).__name__}; {advice}.") from None


def guard(names: dict[str, Any], wanted: list[str]) -> None:
    """Put guarded functions in the place of those of `wanted` that take tensors."""
    for name in wanted:
        function = names[name]
        if callable(function) and not isinstance(function, type) and name not in FREE:
            names[name] = guarded(name, function)
