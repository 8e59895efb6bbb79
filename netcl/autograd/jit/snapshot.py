"""Snapshots of what a trace or a recording depends on: attributes of modules, and names bound outside of a function."""

from __future__ import annotations

import functools
import itertools
import operator
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from netcl.autograd.follow import MISSING, PLAIN, Followed, changes
from netcl.autograd.node import Node
from netcl.core.tensor import Tensor

NO_HOLDERS = (*PLAIN, type, types.ModuleType, np.ndarray, Tensor, Node)  # they hold no modules
OURS = tuple(f"netcl.{name}." for name in ("core", "runtime", "kernels", "fusion", "ops", "autograd"))  # below modules
LONG = 1000  # elements from which a list or dict is not searched for modules
SHORT = 32  # elements up to which the numbers in a list or dict count, not only its modules and parameters
_CELL = operator.attrgetter("cell_contents")
DEEP = 4  # objects in objects that are searched


def modules_in(values: Iterable[Any]) -> list[Followed]:
    """The followed objects among `values` and inside them: in containers, functions, partials and other objects."""
    found: dict[int, Followed] = {}
    seen: set[int] = set()
    todo = [(value, 0) for value in values]
    while todo:
        value, depth = todo.pop()
        if isinstance(value, NO_HOLDERS) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Followed):
            found[id(value)] = value
            depth = 0
        if depth < DEEP:
            todo += [(inner, depth + 1) for inner in _inside(value)]
    return list(found.values())


def _inside(value: Any) -> Sequence[Any]:
    """What an object refers to, as far as a traced function may reach it."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value) if len(value) < LONG else ()
    if isinstance(value, dict):
        return list(value.values()) if len(value) < LONG else ()
    if isinstance(value, types.MethodType):
        return (value.__self__, value.__func__)
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    if hasattr(value, "__wrapped__"):
        return (value.__wrapped__,)
    if isinstance(value, types.FunctionType):
        return () if _is_ours(value.__module__) else [content for _, content in _bindings(value)]
    return () if _is_ours(type(value).__module__) else list(getattr(value, "__dict__", {}).values())


def _is_ours(module: str | None) -> bool:
    """Whether something comes from below the modules: nothing there holds one."""
    return str(module).startswith(OURS)


def functions_of(fn: Any) -> list[types.FunctionType]:
    """The Python functions behind a callable: of a method, a partial, a decorated function."""
    seen: set[int] = set()
    found = []
    while fn is not None and id(fn) not in seen:
        seen.add(id(fn))
        if isinstance(fn, types.MethodType):
            fn = fn.__func__
        if isinstance(fn, types.FunctionType):
            found.append(fn)
        fn = fn.func if isinstance(fn, functools.partial) else getattr(fn, "__wrapped__", None)
    return found


# -- names -------------------------------------------------------------------------------------------------------------


class Binding(NamedTuple):
    """A closure cell (without a name), or a name in a module's globals, that a function reads."""

    space: Any
    name: str | None

    def read(self) -> Any:
        """What is bound now."""
        if self.name is not None:
            return self.space.get(self.name, MISSING)
        try:
            return self.space.cell_contents
        except ValueError:  # not bound yet
            return MISSING

    def write(self, value: Any) -> None:
        """Bind it to what `read` returned before."""
        if self.name is None:
            self.space.cell_contents = value
        else:
            self.space[self.name] = value


def _names(code: types.CodeType) -> set[str]:
    """The global names that a function's code, and functions inside it, may read."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
    return found


def _bindings(fn: types.FunctionType) -> list[tuple[Binding, Any]]:
    """Cells and global names of a function with what they hold."""
    places = [Binding(cell, None) for cell in fn.__closure__ or ()]
    places += [Binding(fn.__globals__, name) for name in sorted(_names(fn.__code__)) if name in fn.__globals__]
    return [(place, place.read()) for place in places]


def data_bindings(fn: Any) -> list[tuple[Binding, Any]]:
    """The bindings behind a callable that hold data (no functions, classes and Python modules), and what they hold."""
    return [
        (place, content)
        for function in functions_of(fn)
        for place, content in _bindings(function)
        if isinstance(content, Followed) or not (callable(content) or isinstance(content, types.ModuleType))
    ]


Known = tuple[Callable[[], Any], Any]  # what reads a binding, and what it held: weakly where that is possible


def known_bindings(places: Iterable[Binding]) -> tuple[Known, ...]:
    """What the bindings hold now, for `moved`."""
    found = []
    for place in places:
        content, space = place.read(), place.space
        read = (
            functools.partial(_CELL, space) if place.name is None else functools.partial(space.get, place.name, MISSING)
        )
        found.append((read, content if isinstance(content, PLAIN) else _weakly(content)))
    return tuple(found)


def moved(known: Sequence[Known]) -> bool:
    """Whether a binding holds something else than it did."""
    for read, held in known:
        try:
            content = read()
        except ValueError:  # not bound
            content = MISSING
        if content is not held and (held.__class__ is not weakref.ref or held() is not content):
            return True
    return False


def _weakly(value: Any) -> Any:
    try:
        return weakref.ref(value)
    except TypeError:
        return value


# -- snapshots ---------------------------------------------------------------------------------------------------------


class _Facts:
    """The attributes of one object: plain values themselves, others by identity."""

    __slots__ = ("alive", "held")

    def __init__(self) -> None:
        self.alive: list[weakref.ref[Any]] = []
        self.held: list[Any] = []  # objects that cannot be referred to weakly

    def of(self, value: Any, depth: int = 0, numbers: bool = True) -> Any:
        """A fact that equals another one if the values are the same to a function that reads them.

        Of lists, tuples and dicts it holds the modules and parameters inside, and with `numbers` all that is in them.
        """
        kind = type(value)
        if kind is float:
            return float, value.hex()  # tells zeros apart and takes a NaN for itself
        if isinstance(value, PLAIN):
            return kind, value
        if isinstance(value, (list, tuple, dict)) and depth < DEEP:
            named = isinstance(value, dict)
            items: list[Any] = list(value.items() if isinstance(value, dict) else enumerate(value))
            long = numbers and len(items) > SHORT
            numbers = numbers and not long
            if not numbers:
                items = [(k, v) for k, v in items[:LONG] if isinstance(v, (Followed, Node, list, tuple, dict))]
            facts = [(self.of(k, DEEP) if named else k, self.of(v, depth + 1, numbers)) for k, v in items]
            return kind, id(value) if long else 0, tuple(facts)
        held = _weakly(value)
        if held is value:
            self.held.append(value)
        else:
            self.alive.append(held)
        return kind, id(value)

    def there(self) -> bool:
        """Whether everything that is known by its identity still exists."""
        return all(ref() is not None for ref in self.alive)


class _Seen:
    """A module as it was when last looked at."""

    __slots__ = ("facts", "module", "refs", "skipped", "stamp")

    def __init__(self, module: Followed, written: Iterable[tuple[int, str]]) -> None:
        self.module = weakref.ref(module)
        self.skipped = frozenset(name for owner, name in written if owner == id(module)) | {"_stamp"}
        if module._stamp is None:
            module.__dict__["_stamp"] = 0
        self.stamp = module._stamp
        self.refs = _Facts()
        self.facts = self._look(module, self.refs)

    def _look(self, module: Followed, refs: _Facts) -> dict[str, Any]:
        """Its attributes, without those that are the class's own values."""
        kind, own = type(module), list(module.__dict__.items())
        return {n: refs.of(v) for n, v in own if n not in self.skipped and v is not getattr(kind, n, MISSING)}

    def difference(self) -> str:
        """The name of an attribute that changed, or ""."""
        module = self.module()
        if module is None:
            return "a module that no longer exists"
        if module._stamp == self.stamp:
            return ""
        stamp, name = module._stamp, type(module).__name__
        now = self._look(module, _Facts())
        if now == self.facts and self.refs.there():
            self.stamp = stamp
            return ""
        changed = [n for n in {**self.facts, **now} if self.facts.get(n) != now.get(n)]
        return f"{name}.{changed[0]}" if changed else name


def without_changed(before: Sequence[tuple[Binding, Any]]) -> list[Binding]:
    """The bindings that still hold what they did."""
    return [place for place, content in before if place.read() is content]


class Snapshot:
    """What a program or a recording depends on, as it was: attributes of modules, and the contents of bindings.

    Attributes that the function itself changed (`written`) are left out.
    """

    __slots__ = ("_bound", "_refs", "checked", "places", "seen")

    def __init__(
        self, roots: Iterable[Any], places: Sequence[Binding] = (), written: Iterable[tuple[int, str]] = ()
    ) -> None:
        self.checked = changes.version
        self.places = tuple(places)
        contents = [place.read() for place in self.places]
        written = tuple(written)
        self.seen = [_Seen(module, written) for module in modules_in([*roots, *contents])]
        self._refs = _Facts()
        self._bound = [self._refs.of(content, numbers=False) for content in contents]

    def difference(self) -> str:
        """What changed since, by name; "" when nothing did, which is then remembered."""
        version = changes.version
        if self.checked == version:
            return ""
        for place, fact in zip(self.places, self._bound, strict=True):
            if _Facts().of(place.read(), numbers=False) != fact:
                return place.name or "a variable of the enclosing function"
        if not self._refs.there():
            return "an object that no longer exists"
        for seen in self.seen:
            found = seen.difference()
            if found:
                return found
        self.checked = version
        return ""

    def modules(self) -> list[Followed]:
        """The modules that still exist."""
        return [module for seen in self.seen if (module := seen.module()) is not None]

    def owned(self) -> dict[int, Any]:
        """By id, what modules and bindings hold: objects that a program need not keep alive."""
        refs = itertools.chain(self._refs.alive, *(seen.refs.alive for seen in self.seen))
        return {id(held): held for ref in refs if (held := ref()) is not None}
