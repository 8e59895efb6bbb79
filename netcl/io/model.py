"""Models as files: weights, buffers and architecture in one .netcl file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from netcl.core.dtypes import is_float
from netcl.core.errors import CheckpointError
from netcl.core.tensor import Tensor
from netcl.io.architecture import describe
from netcl.io.builder import build
from netcl.io.file import one_line, read, write
from netcl.nn.module import Module
from netcl.nn.parameter import Parameter, queue_of

PREFIX = "model/"  # of the model's tensors in a checkpoint


def pack(model: Module) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of a model, each tied one once, and the plain data: {other path: path} and {path: class}."""
    arrays: dict[str, np.ndarray] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    for path, tensor in model.state_dict(copy=False).items():
        if id(tensor) in first:
            aliases[path] = first[id(tensor)]
        else:
            first[id(tensor)] = path
            arrays[path] = tensor.to_host()
    return arrays, {"aliases": aliases, "modules": _classes(model)}


def _classes(model: Module) -> dict[str, str]:
    return {path: type(module).__name__ for path, module in model.named_modules()}


def save_model(model: Module, path: str | os.PathLike[str], *, architecture: bool = True) -> None:
    """Write `model` to exactly `path`: all parameters and saved buffers, tied ones once, and the architecture.

    The architecture is the constructor's arguments, as they were given, and whatever was changed since: modules inside
    that were replaced or added, settings, parameters of other shapes. What it cannot hold is refused by name (a
    function as an argument or in the place of a module); with architecture=False it is left out, and the file loads
    with `load_model(path, model=...)`.

    The file is a safetensors file and appears at once. Raises CheckpointError when it cannot be written.
    """
    if not isinstance(model, Module):
        raise TypeError(f"save_model: expected a Module, got {type(model).__name__}.")
    spec = describe(model) if architecture else None
    arrays, metadata = pack(model)
    write(path, arrays, {"kind": "model", "architecture": spec, **metadata})


def load_model(
    path: str | os.PathLike[str],
    queue: Any = None,
    pool: Any = None,
    *,
    model: Module | None = None,
    classes: Iterable[type] = (),
    strict: bool = True,
) -> Module:
    """The model saved at `path`: built anew on `queue` (by default that of manager.default("auto")), or loaded into
    `model`.

    A model of netcl.nn classes is built from the file; for classes of your own pass them in `classes`, or a fresh
    `model`. A safetensors file of another origin can be loaded into a `model` with the same names. Checkpoints are
    accepted too. `pool` is accepted for compatibility. Raises CheckpointError, changing nothing, for a damaged or
    foreign file and for weights that do not fit.
    """
    arrays, metadata = read(path)
    state, aliases = unpack(arrays, metadata, path)
    if model is not None:
        check_types(model, state)
        model.load_state_dict(state, strict)
        return model
    if metadata is None or metadata["architecture"] is None:
        reason = "" if metadata is None else f" ({one_line(metadata.get('reason', 'it was left out'))})"
        raise CheckpointError(
            f"load_model: expected a file with an architecture, got weights only in {one_line(path)}{reason}; "
            "pass model=."
        )
    queue = queue_of("load_model", queue)
    fresh = build(metadata["architecture"], queue, classes, state)
    _check_classes(fresh, metadata.get("modules"))
    _tie(fresh, aliases)
    fresh.check_state(state, strict)
    check_types(fresh, state)
    own = {id(_tensor(value)): state[name] for name, value in fresh.named_state().items() if name in state}

    def saved(tensor: Tensor) -> Tensor:  # in the dtype it was saved in
        return Tensor.from_host(queue, own[id(tensor)]) if id(tensor) in own else tensor

    return fresh._move(saved, saved)


def _tensor(value: Any) -> Tensor:
    return value.value if isinstance(value, Parameter) else value


def _tie(model: Module, aliases: Mapping[str, str]) -> None:
    """Make one object again of what was one in the saved model."""
    own = model.named_state()
    for other, source in aliases.items():
        if other in own and source in own and own[other] is not own[source]:
            if isinstance(own[other], Parameter) != isinstance(own[source], Parameter):
                raise CheckpointError(f"load_model: expected {other} tied to its like, got {source}.")
            model.replace(other, own[source])


def _check_classes(model: Module, saved: Any) -> None:
    """Raise CheckpointError when the modules are not those that were saved: files of version 1 do not say which."""
    found = _classes(model)
    if saved is None or found == saved:
        return
    both = {**saved, **found} if isinstance(saved, dict) else {}
    pairs = [(path or "the model", found.get(path), saved.get(path)) for path in both]
    wrong = [f"{path}: {new} for {old}" for path, new, old in pairs if new != old]
    raise CheckpointError(
        f"load_model: expected the constructors to make the modules that were saved, got {one_line(', '.join(wrong))}; "
        "build the model and pass it as model=."
    )


def check_types(model: Module, state: Mapping[str, np.ndarray]) -> None:
    """Raise CheckpointError when a file has integers for floats or floats for integers."""
    own, wrong = model.named_state(), []
    for name, array in state.items():
        if name in own and is_float(array.dtype) != is_float(own[name].dtype):
            wrong.append(f"{name}: {array.dtype} for {own[name].dtype}")
    if wrong:
        raise CheckpointError(f"load: expected the types of the model, got {', '.join(wrong)}.")


def unpack(
    arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any] | None, path: Any
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The model's state under all its paths, and the aliases."""
    if metadata is None:
        return dict(arrays), {}
    if metadata.get("kind") == "checkpoint":
        arrays = {k[len(PREFIX) :]: v for k, v in arrays.items() if k.startswith(PREFIX)}
    aliases = metadata.get("aliases")
    known = isinstance(aliases, dict) and all(isinstance(v, str) and v in arrays for v in aliases.values())
    if aliases is None or not known or "architecture" not in metadata:
        raise CheckpointError(
            f"load: expected a model in {one_line(path)}, got a file without its architecture and names."
        )
    return {**arrays, **{other: arrays[source] for other, source in aliases.items()}}, aliases
