"""`netcl.save` and `netcl.load`: a model, or named tensors such as a state_dict, as one safetensors file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from netcl.core.device.discovery import queue_of
from netcl.core.errors import CheckpointError
from netcl.core.tensor import Tensor
from netcl.io.file import one_line, read, write
from netcl.io.model import load_model, save_model
from netcl.nn.module import Module


def save(obj: Any, path: str | os.PathLike[str]) -> None:
    """Write a Module with its architecture, or a dict of tensors (`model.state_dict()`), to exactly `path`.

    The file is a safetensors file and appears at once. For a training run with its optimizer see `save_checkpoint`.
    Raises TypeError for other objects, CheckpointError when the file cannot be written.
    """
    if isinstance(obj, Module):
        save_model(obj, path)
        return
    if not isinstance(obj, Mapping):
        raise TypeError(f"netcl.save: expected a Module or a dict of tensors, got {type(obj).__name__}.")
    arrays = {}
    for name, value in obj.items():
        if not isinstance(name, str) or not (hasattr(value, "to_host") or hasattr(value, "dtype")):
            raise TypeError(
                f"netcl.save: expected names and tensors, got {one_line(repr(name), 60)}: {type(value).__name__}; "
                "a run with its optimizer is saved by netcl.io.save_checkpoint."
            )
        arrays[name] = value.to_host() if hasattr(value, "to_host") else value
    write(path, arrays, {"kind": "tensors"})


def load(path: str | os.PathLike[str], queue: Any = None) -> Module | dict[str, Tensor]:
    """What `save` wrote: the Module, or the dict of tensors, on `queue` (by default the default device).

    A safetensors file of another origin gives its tensors: `model.load_state_dict(netcl.load(path))`.
    Raises CheckpointError for a file that is missing, damaged, or a training run's (see `load_checkpoint`).
    """
    arrays, metadata = read(path)
    kind = "tensors" if metadata is None else metadata.get("kind")
    if kind == "model":
        return load_model(path, queue)
    if kind != "tensors":
        raise CheckpointError(
            f"netcl.load: expected a model or tensors in {one_line(path)}, got a {one_line(kind, 40)}; "
            "restore it with netcl.io.load_checkpoint(model, path, optimizer=...)."
        )
    place = queue_of("netcl.load", queue)
    return {name: Tensor.from_host(place, array) for name, array in arrays.items()}
