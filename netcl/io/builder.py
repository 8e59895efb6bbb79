"""A module built from its description. What a file says is checked, not trusted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

import netcl.nn as nn
from netcl.core.errors import CheckpointError, DeviceError, OutOfMemoryError
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor
from netcl.io.file import CODES, one_line
from netcl.nn import init
from netcl.nn.module import Module
from netcl.nn.parameter import Parameter
from netcl.nn.recipe import NOT_SETTINGS, at


def build(spec: Any, queue: Queue, classes: Iterable[type], state: Mapping[str, np.ndarray]) -> Module:
    """The module that `spec` describes, with fresh weights of no more numbers than `state` has (twice, and some more).

    Raises CheckpointError for a class that is not known, for an architecture that is not as `describe` writes it, and
    before more memory is taken than the tensors of the file account for.
    """
    try:
        with init.limited(array.shape for array in state.values()):
            return _Reader(queue, classes).module(spec)
    except (CheckpointError, DeviceError, OutOfMemoryError):
        raise
    except Exception as error:  # whatever goes wrong, what the file says is the reason
        raise CheckpointError(
            f"load_model: expected an architecture as save_model writes it, got another: {_reason(error)}."
        ) from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__} {one_line(error)}".rstrip(".")


class _Reader:
    def __init__(self, queue: Queue, classes: Iterable[type]) -> None:
        self.queue = queue
        self.own = {c.__name__: c for c in classes}
        self.library = {name: getattr(nn, name) for name in nn.__all__ if isinstance(getattr(nn, name), type)}
        self.built: dict[Any, Module] = {}

    def module(self, spec: dict[str, Any]) -> Module:
        """The module that a spec describes, with its changes."""
        kind = self.kind(spec["class"], spec.get("own", False))
        children, args = spec.get("children"), spec.get("args")
        if isinstance(children, list):
            module = self.made(kind, ([self.child(c) for c in children],), {})
        elif isinstance(children, dict):
            module = self.made(kind, ({key: self.child(c) for key, c in children.items()},), {})
        elif args is None:
            raise CheckpointError(
                f"load_model: expected the constructor arguments of {kind.__name__}, found none in the file; build the "
                "model and pass it as model=."
            )
        else:
            module = self.made(kind, *self.arguments(kind, {name: self.value(v) for name, v in args.items()}))
        if "id" in spec:
            self.built[spec["id"]] = module
        for keys, attribute, value in spec.get("changes", ()):
            self.change(at(module, keys), attribute, value)
        return module

    def child(self, spec: dict[str, Any]) -> Module:
        found = self.value(spec) if "class" not in spec else self.module(spec)
        if not isinstance(found, Module):
            raise TypeError("a child that is no module")
        return found

    def kind(self, name: Any, own: Any) -> Any:
        """The class of modules with this name."""
        known = self.own if own else {**self.library, **self.own}
        kind = known.get(name) if isinstance(name, str) else None
        if kind is None or not issubclass(kind, Module):
            raise CheckpointError(
                f"load_model: expected a model of netcl.nn classes, got {one_line(repr(name))}; "
                "build it and pass it as model=, or pass its class in classes=."
            )
        return kind

    def arguments(self, kind: Any, given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call the class with."""
        signature = inspect.signature(kind.__init__)
        if kind.__init__ is object.__init__:
            return (), given
        names = list(signature.parameters)
        unknown = sorted(set(given) - set(names[1:]))
        if unknown:
            raise TypeError(f"{kind.__name__} has no argument {unknown[0]}")
        if "queue" in names:
            given["queue"] = self.queue
        bound = inspect.BoundArguments(signature, {names[0]: None, **given})
        return bound.args[1:], bound.kwargs

    def made(self, kind: type[Module], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Module:
        try:
            return kind(*args, **kwargs)
        except (CheckpointError, DeviceError, OutOfMemoryError):
            raise
        except Exception as error:  # see `build`
            raise CheckpointError(
                f"load_model: {kind.__name__} could not be built from the file: {_reason(error)}."
            ) from error

    def change(self, owner: Module, attribute: str, value: Any) -> None:
        """Set what was set, or take away what was taken away, after the constructor."""
        if attribute in NOT_SETTINGS or not attribute.isidentifier() or attribute.startswith("__"):
            raise ValueError(f"a setting named {attribute}")
        if inspect.isroutine(getattr(type(owner), attribute, None)):
            raise ValueError(f"a setting in the place of the method {attribute}")
        if isinstance(value, dict) and "deleted" in value:
            delattr(owner, attribute)
        elif isinstance(value, dict) and "buffer" in value:
            owner.register_buffer(attribute, self.tensor(value["buffer"], self.dtype(value)))
        else:
            setattr(owner, attribute, self.value(value))

    def value(self, value: Any) -> Any:
        """What a form stands for; lists of files of version 1 are tuples, too."""
        if isinstance(value, list):
            return tuple(self.value(v) for v in value)
        if not isinstance(value, dict):
            return value
        if "type" in value:
            return self.kind(value["type"], value.get("own", False))
        tag, dtype = next(iter(value)), self.dtype(value)
        if tag == "array":
            return np.array(value[tag], dtype)
        if tag in ("tensor", "parameter"):
            found = self.tensor(value[tag], dtype)
            return found if tag == "tensor" else Parameter(found)
        if tag not in FORMS:
            raise ValueError(f"a value of kind {tag}")
        return FORMS[tag](self, value[tag])

    def dtype(self, value: dict[str, Any]) -> str:
        name: str = value.get("dtype", "float32")
        if name not in CODES:
            raise ValueError(f"the dtype {name}")
        return name

    def tensor(self, shape: list[int], dtype: str) -> Tensor:
        return init.zeros(self.queue, tuple(shape), dtype=dtype)

    def same(self, place: dict[str, Any]) -> Module:
        """A module that was built before."""
        found: Module = at(self.built[place["id"]], place["keys"])
        return found


FORMS: dict[str, Callable[[_Reader, Any], Any]] = {
    "module": _Reader.module,
    "same": _Reader.same,
    "list": lambda reader, held: list(reader.value(held)),
    "dict": lambda reader, held: {key: reader.value(v) for key, v in held.items()},
    "dtype": lambda reader, held: np.dtype(held),
    "queue": lambda reader, held: reader.queue,
}
