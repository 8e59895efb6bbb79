"""Lists of parameters as files, for models that are no Module."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from netcl.core.device.discovery import queue_of
from netcl.core.errors import CheckpointError
from netcl.core.tensor import Tensor
from netcl.io.file import one_line, read, write
from netcl.nn.module import write_into


def save_params(params: Sequence[Any], path: str | os.PathLike[str], names: Sequence[str] | None = None) -> None:
    """Write parameters (Parameters, nodes or tensors) to `path` under `names`, by default "0", "1", ..."""
    found = _named("save_params", params, names)
    write(path, {name: _tensor("save_params", x).to_host() for name, x in found.items()}, {"kind": "tensors"})


def load_params(
    queue: Any, params: Sequence[Any], path: str | os.PathLike[str], names: Sequence[str] | None = None
) -> list[str]:
    """Copy values saved by `save_params` into `params`, in place, by name; returns the names that the file lacks.

    Everything is checked before anything changes. Raises CheckpointError where a shape does not fit, or no name does.
    """
    queue = queue_of("load_params", queue)
    arrays, _ = read(path)
    found = {name: _tensor("load_params", x) for name, x in _named("load_params", params, names).items()}
    wrong = [
        f"{n}: {arrays[n].shape} for {x.shape}" for n, x in found.items() if n in arrays and arrays[n].shape != x.shape
    ]
    if wrong:
        raise CheckpointError(f"load_params: expected the shapes of the parameters, got {one_line(', '.join(wrong))}.")
    if found and not any(name in arrays for name in found):
        raise CheckpointError(
            f"load_params: expected names such as {one_line(next(iter(found)))} in {one_line(path)}, "
            f"got {one_line(', '.join(arrays))}; pass names=."
        )
    for name, x in found.items():
        if name in arrays:
            write_into(x, Tensor.from_host(queue, arrays[name]))
    return [name for name in found if name not in arrays]


def _named(where: str, params: Sequence[Any], names: Sequence[str] | None) -> dict[str, Any]:
    params = list(params)
    names = [str(i) for i in range(len(params))] if names is None else list(names)
    if len(names) != len(params) or len(set(names)) != len(names):
        raise ValueError(f"{where}: expected {len(params)} different names, got {len(names)}: {one_line(names)}.")
    return dict(zip(names, params))


def _tensor(where: str, x: Any) -> Tensor:
    found = getattr(x, "value", x)
    if not isinstance(found, Tensor):
        raise TypeError(f"{where}: expected Parameters or tensors, got {type(x).__name__}.")
    return found
