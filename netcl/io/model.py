"""Models as files: weights, buffers and architecture in one .netcl file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from netcl.core.device import manager
from netcl.core.errors import CheckpointError
from netcl.core.tensor import Tensor
from netcl.io.architecture import build, describe
from netcl.io.file import read, write
from netcl.nn.module import Module
from netcl.nn.parameter import Parameter, queue_of

PREFIX = "model/"  # of the model's tensors in a checkpoint


def pack(model: Module) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of a model, each tied one once, and the plain data: architecture and {other path: path}."""
    arrays: dict[str, np.ndarray] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    for path, tensor in model.state_dict(copy=False).items():
        if id(tensor) in first:
            aliases[path] = first[id(tensor)]
        else:
            first[id(tensor)] = path
            arrays[path] = tensor.to_host()
    return arrays, {"architecture": describe(model), "aliases": aliases}


def save_model(model: Module, path: str | os.PathLike[str]) -> None:
    """Write `model` to exactly `path`: all parameters and saved buffers, tied ones once, and the architecture.

    The file is a safetensors file and appears at once. Raises CheckpointError when it cannot be written.
    """
    if not isinstance(model, Module):
        raise TypeError(f"save_model: expected a Module, got {type(model).__name__}.")
    arrays, metadata = pack(model)
    write(path, arrays, {"kind": "model", **metadata})


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

    A model of netcl.nn classes is built from the file; for classes of your own pass them in `classes`, when their
    constructor arguments are kept as attributes, or a fresh `model`. A safetensors file of another origin can be loaded
    into a `model` with the same names. Checkpoints are accepted too. `pool` is accepted for compatibility. Raises
    CheckpointError, changing nothing, for a damaged or foreign file and for weights that do not fit.
    """
    arrays, metadata = read(path)
    state, aliases = unpack(arrays, metadata, path)
    if model is not None:
        model.load_state_dict(state, strict)
        return model
    if metadata is None:
        raise CheckpointError(
            f"load_model: expected a file with an architecture, got weights only in {path}; pass model=."
        )
    queue = manager.default("auto").queue if queue is None else queue_of("load_model", queue)
    fresh = build(metadata["architecture"], queue, classes)
    for other, source in aliases.items():
        fresh.replace(other, fresh.named_state()[source])
    fresh.check_state(state, strict)
    for name, value in fresh.named_state().items():
        if name in state and isinstance(value, Parameter):
            value.value = Tensor.from_host(queue, state[name])  # in the dtype it was saved in
    fresh.load_state_dict(state, strict)
    return fresh


def unpack(
    arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any] | None, path: Any
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The model's state under all its paths, and the aliases."""
    if metadata is None:
        return dict(arrays), {}
    if metadata.get("kind") == "checkpoint":
        arrays = {k[len(PREFIX) :]: v for k, v in arrays.items() if k.startswith(PREFIX)}
    aliases = metadata.get("aliases")
    if not isinstance(aliases, dict) or not set(aliases.values()) <= set(arrays) or "architecture" not in metadata:
        raise CheckpointError(f"load: expected a model in {path}, got a file without its architecture and names.")
    return {**arrays, **{other: arrays[source] for other, source in aliases.items()}}, aliases
