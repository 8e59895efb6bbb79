"""A module's architecture as plain data, and the module built anew from it.

A layer is described by its class and the arguments of its constructor, read off the attributes of the same names; the
queue is left out. Only classes of `netcl.nn`, and those that the caller passes, are built: a file cannot name any other
code.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import netcl.nn as nn
from netcl.core.errors import CheckpointError
from netcl.nn.container import ModuleDict, ModuleList, Sequential
from netcl.nn.module import Module
from netcl.nn.parameter import Parameter

Spec = dict[str, Any]


def describe(module: Module) -> Spec:
    """{"class": name, "args": {...}}; args is None where the constructor's arguments are not all known."""
    name = type(module).__name__
    if isinstance(module, (Sequential, ModuleList)):
        return {"class": name, "children": [describe(m) for m in module.layers]}
    if isinstance(module, ModuleDict):
        return {"class": name, "children": {k: describe(m) for k, m in module.items_.items()}}
    try:
        return {"class": name, "args": _arguments(module)}
    except LookupError:
        return {"class": name, "args": None}


def _arguments(module: Module) -> Spec:
    if type(module).__init__ is object.__init__:
        return {}
    found = {}
    for name, parameter in list(inspect.signature(type(module).__init__).parameters.items())[1:]:
        if name == "queue":
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise LookupError(name)
        if hasattr(module, name):
            found[name] = _plain(getattr(module, name), parameter)
        elif parameter.default is parameter.empty:
            raise LookupError(name)
    return found


def _plain(value: Any, parameter: inspect.Parameter) -> Any:
    if isinstance(value, Parameter) or (value is None and isinstance(parameter.default, bool)):
        return value is not None  # bias=True makes self.bias a parameter
    if isinstance(value, Module):
        return {"module": describe(value)}
    if isinstance(value, type) and issubclass(value, Module):
        return {"type": value.__name__}
    if isinstance(value, (tuple, list)):
        return [_plain(v, parameter) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise LookupError(parameter.name)


def build(spec: Spec, queue: Any, classes: Iterable[type] = ()) -> Module:
    """The module that `spec` describes, with fresh weights. Raises CheckpointError for a class that is not known."""
    known = {name: getattr(nn, name) for name in nn.__all__ if isinstance(getattr(nn, name), type)}
    return _build(spec, queue, {**known, **{c.__name__: c for c in classes}})


def _build(spec: Spec, queue: Any, known: Mapping[str, type]) -> Module:
    kind = _class(spec["class"], known)
    children, args = spec.get("children"), spec.get("args")
    if isinstance(children, list):
        return kind([_build(c, queue, known) for c in children])  # type: ignore[no-any-return]
    if isinstance(children, dict):
        return kind({k: _build(c, queue, known) for k, c in children.items()})  # type: ignore[no-any-return]
    if args is None:
        raise CheckpointError(
            f"load_model: expected the constructor arguments of {spec['class']}, found none in the file; "
            "build the model and pass it as model=."
        )
    given = {k: _value(v, queue, known) for k, v in args.items()}
    first = (queue,) if "queue" in inspect.signature(kind).parameters else ()
    try:
        return kind(*first, **given)  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"load_model: {spec['class']} could not be built from the file: {error}") from error


def _class(name: str, known: Mapping[str, type]) -> Any:
    kind = known.get(name)
    if kind is None or not issubclass(kind, Module):
        raise CheckpointError(
            f"load_model: expected a model of netcl.nn classes, got {name!r}; "
            "build it and pass it as model=, or pass its class in classes=."
        )
    return kind


def _value(value: Any, queue: Any, known: Mapping[str, type]) -> Any:
    if isinstance(value, dict):
        return _class(value["type"], known) if "type" in value else _build(value["module"], queue, known)
    return tuple(_value(v, queue, known) for v in value) if isinstance(value, list) else value
