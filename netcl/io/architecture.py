"""A module's architecture as plain data, and the module built anew from it.

A module is described by its class, the arguments of its constructor, and everything that differs now from what the
constructor made: other modules inside, described in the same way, other settings, parameters of another shape. A module
that is in two places is described once. Only classes of `netcl.nn`, and those that the caller passes, are built: a file
cannot name any other code.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import netcl.nn as nn
from netcl.core.errors import CheckpointError
from netcl.nn.container import ModuleDict, ModuleList, Sequential
from netcl.nn.module import Module
from netcl.nn.parameter import Parameter
from netcl.nn.recipe import Keys, Link, Made, Opaque, Recipe, at, contents, form, links, recipe_of

Spec = dict[str, Any]
ABSENT = Opaque("nothing")
CHILDREN: dict[Any, str] = {Sequential: "layers", ModuleList: "layers", ModuleDict: "items_"}  # constructor: attribute


def describe(module: Module) -> Spec:
    """{"class": name, "args": {...}, "changes": [[keys, attribute, value], ...]}, for containers with "children" in the
    place of "args".

    Raises CheckpointError, naming it, for an argument or a change that a file cannot hold.
    """
    return _Writer(module).spec(module)


def is_own(kind: type) -> bool:
    """Whether a class is none of the library's."""
    return getattr(nn, kind.__name__, None) is not kind


class _Change(NamedTuple):
    owner: Module
    keys: Keys
    attribute: str
    before: Any
    now: Any


class _Writer:
    def __init__(self, root: Module) -> None:
        self.names = {id(m): path for path, m in root.named_modules()}
        self.known: dict[int, tuple[Spec, Keys]] = {}  # the spec that describes a module, and the keys from there
        self.ids = 0

    def name(self, module: Module, attribute: str = "") -> str:
        """The path of a module or its attribute, for messages."""
        path = [part for part in (self.names.get(id(module), ""), attribute) if part]
        return ".".join(path) or "the model"

    def spec(self, module: Module) -> Spec:
        spec: Spec = {"class": type(module).__name__}
        if is_own(type(module)):
            spec["own"] = True
        self.known[id(module)] = spec, ()
        children = CHILDREN.get(_container(module))
        if children is not None:
            held = getattr(module, children)
            items = held.items() if isinstance(held, dict) else enumerate(held)
            found = {key: self.module(child) for key, child in items}
            spec["children"] = found if isinstance(held, dict) else list(found.values())
        else:
            spec["args"] = self.arguments(module)
        spec["changes"] = []
        for change in list(self.changes(module, spec, children)):  # all that is known comes before what refers to it
            value = self.changed(change)
            if value is not ABSENT:
                spec["changes"].append([list(change.keys), change.attribute, value])
        if not spec["changes"]:
            del spec["changes"]
        return spec

    def module(self, module: Module) -> Spec:
        """A spec, or a reference to where the module was described before."""
        if id(module) not in self.known:
            return {"module": self.spec(module)}
        spec, keys = self.known[id(module)]
        if "args" not in spec and "children" not in spec:
            raise CheckpointError(
                f"save: expected modules to be made before they are used, got {self.name(module)} as a part of itself."
            )
        if "id" not in spec:
            spec["id"], self.ids = self.ids, self.ids + 1
        return {"same": {"id": spec["id"], "keys": list(keys)}}

    # -- arguments -------------------------------------------------------------------------------------------------

    def arguments(self, module: Module) -> Spec:
        """The constructor's arguments by name, without the queue."""
        kind, recipe = type(module), recipe_of(module)
        if kind.__init__ is object.__init__:
            return {}
        if recipe is None:
            recipe = self.by_attributes(module)
        signature = inspect.signature(kind.__init__)
        bound = signature.bind(None, *recipe.args, **recipe.kwargs)
        given, found = set(bound.arguments), {}
        bound.apply_defaults()
        for name, value in list(bound.arguments.items())[1:]:
            if name == "queue":
                continue
            if signature.parameters[name].kind == inspect.Parameter.VAR_KEYWORD:
                value = {"dict": value}
            elif name not in given:
                value = form(value)
            if name in given or not isinstance(value, Opaque):
                found[name] = self.argument(module, name, list(value) if isinstance(value, tuple) else value)
        return found

    def argument(self, module: Module, name: str, value: Any) -> Any:
        tensor = getattr(module, name, None)
        if isinstance(value, dict) and "parameter" in value and not isinstance(tensor, Parameter):
            value = Opaque("Parameter")
        if isinstance(value, dict) and "tensor" in value and not module._buffers.get(name):
            value = Opaque("Tensor")
        try:
            return self.encoded(value, module)
        except _NoFormError as error:
            where = f" at {self.name(module)}" if self.names.get(id(module)) else ""
            raise CheckpointError(
                "save: expected constructor arguments that a file can hold (numbers, text, lists, dicts, modules), "
                f"got a value of type {error} for {type(module).__name__}({name}=...){where}; save the weights alone "
                "with architecture=False and load them with model=."
            ) from None

    def by_attributes(self, module: Module) -> Recipe:
        """For constructors made by decorators, such as a dataclass: each argument is the attribute of its name."""
        parameters = list(inspect.signature(type(module).__init__).parameters.values())[1:]
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "queue"]
        needed = [p.name for p in named if p.default is p.empty and not hasattr(module, p.name)]
        if needed:
            raise CheckpointError(
                f"save: expected the constructor arguments of {type(module).__name__} as attributes, found no "
                f"{', '.join(needed)}; save the weights alone with architecture=False and load them with model=."
            )
        recipe = Recipe((), {p.name: getattr(module, p.name) for p in named if hasattr(module, p.name)})
        if any(p.name == "queue" for p in parameters):
            recipe.kwargs["queue"] = None
        return recipe

    # -- changes ---------------------------------------------------------------------------------------------------

    def changes(self, module: Module, spec: Spec, children: str | None) -> Iterator[_Change]:
        """What differs from what the constructor of `module` made, in all that is still as it was put together."""
        recipe = recipe_of(module)
        made = recipe.made if recipe is not None and recipe.made is not None else []
        if children is not None or not made:
            made = [Made((), Link(module), made[0].held if made else {})]
        inside = {id(m.module()): m for m in made if m.module() is not None}
        waiting: list[tuple[Keys, Module]] = [((), module)]
        while waiting:
            keys, here = waiting.pop(0)
            before, now = inside[id(here)].held, contents(here)
            for attribute in {**before, **now}:
                was, value = before.get(attribute, ABSENT), now.get(attribute, ABSENT)
                if attribute == children and here is module:
                    continue
                moved = was != value or (attribute in before) != (attribute in now)
                for inner, link in links(value) if not moved else ():
                    child, place = link(), (*keys, attribute, *inner)
                    if id(child) not in inside:
                        continue
                    if id(child) not in self.known:
                        self.known[id(child)] = spec, place
                        waiting.append((place, child))
                    moved |= self.known[id(child)][0] is not spec  # described where it was met first
                if moved:
                    yield _Change(here, keys, attribute, was, value)

    def changed(self, change: _Change) -> Any:
        """The value to set, ABSENT where a change says nothing about the network."""
        owner, attribute, before, now = change.owner, change.attribute, change.before, change.now
        if now is ABSENT:
            return {"deleted": True}
        try:
            return self.encoded(now, owner)
        except _NoFormError as error:
            replaced = _structure(before) or _structure(now)
            is_function = isinstance(now, Opaque) and now.function
            shadows = callable(getattr(type(owner), attribute, None)) or not isinstance(before, Opaque)
            if replaced or (is_function and shadows and not _own_method(owner, attribute)):
                raise CheckpointError(
                    f"save: expected modules and settings that a file can hold, got a value of type {error} at "
                    f"{self.name(owner, attribute)}; save the weights alone with architecture=False and load them with "
                    "model=."
                ) from None
            return ABSENT

    def encoded(self, value: Any, owner: Module) -> Any:
        """A form as JSON. Raises _NoFormError with the type of what has none."""
        if isinstance(value, Opaque):
            raise _NoFormError(value.kind)
        if isinstance(value, Link):
            return self.module(_target(value, owner))
        if isinstance(value, list):
            return [self.encoded(v, owner) for v in value]
        if isinstance(value, dict):
            if "type" in value:
                kind = value["type"]
                return {"type": kind.__name__, **({"own": True} if is_own(kind) else {})}
            if "list" in value:
                return {"list": self.encoded(value["list"], owner)}
            if "dict" in value:
                return {"dict": {k: self.encoded(v, owner) for k, v in value["dict"].items()}}
        return value


def _target(link: Link, owner: Module) -> Module:
    """The module behind a link, or what has taken its place in its owner."""
    found: Module | None = link()
    try:
        return at(owner, link.place or ("",)) if found is None else found
    except (TypeError, LookupError, AttributeError):
        raise _NoFormError("a module that is gone") from None


class _NoFormError(Exception):
    """A value that has no form in a file."""


def _container(module: Module) -> Any:
    """The library's container whose constructor this module has, if any."""
    kind = type(module)
    return next((c for c in CHILDREN if isinstance(module, c) and kind.__init__ is c.__init__), None)


def _structure(value: Any) -> bool:
    """Whether a form holds modules, parameters or saved buffers."""
    if isinstance(value, dict) and ("parameter" in value or "buffer" in value):
        return True
    return next(links(value), None) is not None


def _own_method(module: Module, name: str) -> bool:
    """Whether the attribute is the class's own method in a wrapper, such as a compiled forward."""
    function = inspect.unwrap(getattr(module, name))
    own = getattr(type(module), name, None)
    return getattr(function, "__func__", function) is own and getattr(function, "__self__", module) is module
