"""How a module was made: what its constructor was given, and what it held when the constructor ended.

`Module` records both for every subclass, so that a file can name the constructor's arguments and whatever was changed
since. Values are kept as forms: plain data that JSON can hold, a `Link` in the place of a module, an `Opaque` for all
else. Nothing heavy is kept alive.
"""

from __future__ import annotations

import copy
import enum
import functools
import inspect
import itertools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from netcl.autograd.node import Node, Parameter
from netcl.core.device.discovery import is_place, queue_of
from netcl.core.dtypes import SUPPORTED, is_float
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor

MAX_ITEMS = 1000  # of a setting; a longer list is taken for a record of a run
MAX_DEPTH = 8
NOT_SETTINGS = {
    "training",
    "_recipe",
    "_buffers",
    "_before",
    "_after",
    "_backward",
    "_stamp",
}  # attributes that every module may have
Keys = tuple[Any, ...]  # attributes, keys and positions that lead from one module to another

_numbers = itertools.count()


class Link:
    """A module that the recipe does not keep alive. Copies and pickles of a recipe hold the copy of the module.

    For an argument of a constructor, `place` is where the constructor put it, None when it did not keep it.
    """

    __slots__ = ("_ref", "place")

    def __init__(self, target: Any, place: Keys | None = None) -> None:
        self._ref = None if target is None else weakref.ref(target)
        self.place = place

    def __call__(self) -> Any:
        return None if self._ref is None else self._ref()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Link) and self() is not None and self() is other()

    def __deepcopy__(self, memo: dict[int, Any]) -> Link:
        return Link(copy.deepcopy(self(), memo), self.place)

    def __reduce__(self) -> Any:
        return Link, (self(), self.place)


class Opaque:
    """Something that a file cannot hold; any two of them count as the same."""

    __slots__ = ("function", "kind")

    def __init__(self, kind: str, function: bool = False) -> None:
        self.kind, self.function = kind, function

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque)


class Made(NamedTuple):
    """A module that a constructor made, the keys that led to it, and the forms of its attributes."""

    keys: Keys
    module: Link
    held: dict[str, Any]


class Recipe:
    """The forms of a constructor's arguments, and what it made: the module itself first, then those inside."""

    __slots__ = ("args", "kwargs", "made", "number")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.number = next(_numbers)  # modules with higher ones were made later
        self.args = [form(value, math.inf) for value in args]
        self.kwargs = {name: form(value, math.inf) for name, value in kwargs.items()}
        self.made: list[Made] | None = None  # None while the constructor runs


def record(cls: Any) -> None:
    """Let the constructor of a class of modules leave a recipe on what it makes, and be called without its queue."""
    construct: Callable[..., None] = cls.__init__
    if construct is object.__init__ or hasattr(construct, "recorded"):
        return

    queue_first = [*inspect.signature(construct).parameters][1:2] == ["queue"]

    @functools.wraps(construct)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> None:
        if queue_first and "queue" not in kwargs and not (args and is_place(args[0])):
            args = (queue_of(type(self).__name__, kwargs.pop("device", None)), *args)
        under_way = self.__dict__.get("_recipe")
        if under_way is not None and under_way.made is None:  # the class below records for all
            construct(self, *args, **kwargs)
            return
        recipe = self.__dict__["_recipe"] = Recipe(args, kwargs)
        construct(self, *args, **kwargs)
        recipe.made = list(_made(self, recipe))

    vars(recorded)["recorded"] = True
    cls.__init__ = recorded


def recipe_of(module: Any) -> Recipe | None:
    """The complete recipe of a module, None where its constructor left none."""
    found = module.__dict__.get("_recipe")
    return found if found is not None and found.made is not None else None


def _made(module: Any, recipe: Recipe) -> Iterator[Made]:
    """`module` and what its constructor made inside it, each once."""
    given = {id(link()): link for value in (*recipe.args, *recipe.kwargs.values()) for _, link in links(value)}
    seen, waiting = {id(module)}, [((), module)]
    while waiting:
        keys, here = waiting.pop(0)
        held = contents(here)
        known = recipe_of(here)
        if known is not None and known.made is not None and known.made[0].held == held:
            held = known.made[0].held  # one copy is enough
        yield Made(keys, Link(here), held)
        for attribute, value in held.items():
            for inner, link in links(value):
                child = link()
                if child is None or id(child) in seen:
                    continue
                if here is module and id(child) in given:
                    given[id(child)].place = (attribute, *inner)
                theirs = recipe_of(child)
                if theirs.number > recipe.number if theirs is not None else id(child) not in given:
                    seen.add(id(child))
                    waiting.append(((*keys, attribute, *inner), child))


def contents(module: Any) -> dict[str, Any]:
    """The forms of a module's attributes."""
    found = {}
    for name, value in module.__dict__.items():
        if name in NOT_SETTINGS:
            continue
        if isinstance(value, Tensor):
            found[name] = _tensor("buffer", value) if module._buffers.get(name) else Opaque("Tensor")
        else:
            found[name] = form(value)
    return found


def form(value: Any, most: float = MAX_ITEMS, depth: int = 0) -> Any:
    """`value` as plain data where it has such a form: a tuple as a list, all else that JSON lacks as a tagged dict.

    A list or dict of more than `most` items without modules has none.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if isinstance(value, np.generic) and isinstance(value.item(), (bool, int, float)):
        return value.item()
    if hasattr(kind, "named_modules"):
        return Link(value)
    if isinstance(value, Parameter):
        return _tensor("parameter", value)
    if isinstance(value, (Tensor, Node)):
        return _tensor("tensor", value)
    if kind in (list, tuple, dict) and depth < MAX_DEPTH:
        return _container(value, most, depth)
    if kind is np.ndarray and value.size <= MAX_ITEMS and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8:
        return {"array": value.tolist(), "dtype": value.dtype.name}
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        name = np.dtype(value).name
        return {"dtype": name} if name in {t.name for t in SUPPORTED} else Opaque(name)
    if isinstance(value, type) and hasattr(value, "named_modules"):
        return {"type": value}
    queue = getattr(value, "queue", value)
    if isinstance(queue, CPUQueue) or hasattr(queue, "int_ptr"):
        return {"queue": True}
    is_function = callable(value) and not isinstance(value, (type, enum.Enum))
    return Opaque(kind.__name__, is_function)


def _tensor(kind: str, value: Any) -> dict[str, Any]:
    """A tensor without its values; float types are one, since `half` and its like change them."""
    return {kind: list(value.shape), **({} if is_float(value.dtype) else {"dtype": value.dtype.name})}


def _container(value: Any, most: float, depth: int) -> Any:
    items = value.values() if isinstance(value, dict) else value
    if len(value) > most and not any(hasattr(type(v), "named_modules") for v in items):
        return Opaque(f"{type(value).__name__} of {len(value)} items")
    if not isinstance(value, dict):
        forms = [form(v, most, depth + 1) for v in value]
        return forms if isinstance(value, tuple) else {"list": forms}
    if not all(type(k) is str for k in value):
        return Opaque("dict with keys that are no text")
    return {"dict": {k: form(v, most, depth + 1) for k, v in value.items()}}


def links(value: Any) -> Iterator[tuple[Keys, Link]]:
    """(keys, link) of the modules in a form, also of those that are gone."""
    if isinstance(value, Link):
        yield (), value
        return
    if isinstance(value, dict):
        value = value.get("list", value.get("dict"))
    items = value.items() if isinstance(value, dict) else enumerate(value) if type(value) is list else ()
    for key, item in items:
        for keys, link in links(item):
            yield (key, *keys), link


def at(module: Any, keys: Iterable[Any]) -> Any:
    """The module that keys lead to. Raises TypeError, LookupError or AttributeError where there is none."""
    for key in keys:
        module = module.__dict__[key] if hasattr(type(module), "named_modules") else module[key]
    if not hasattr(type(module), "named_modules"):
        raise TypeError(f"{type(module).__name__} in the place of a module")
    return module
