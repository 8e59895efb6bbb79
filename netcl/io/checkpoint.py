"""Checkpoints of a training run: model, optimizer, schedule, loader and counts in one .netcl file."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from netcl.core.errors import CheckpointError
from netcl.core.tensor import Tensor
from netcl.io.file import read, write
from netcl.io.model import PREFIX, pack, unpack
from netcl.nn.module import Module
from netcl.optim.optimizer import Optimizer

OPTIMIZER = "optimizer/"  # prefix of the optimizer's tensors: optimizer/<parameter>/<state>


def save_checkpoint(
    model: Module,
    path: str | os.PathLike[str],
    *,
    optimizer: Optimizer | None = None,
    schedule: Any = None,
    loader: Any = None,
    epoch: int = 0,
    step: int = 0,
    rng: Any = None,
    extra: Any = None,
) -> None:
    """Write everything that a run needs to go on: what `load_checkpoint` of the same arguments restores.

    `schedule`, `loader` and `rng` are objects with state_dict() of plain data; `extra` is plain data of your own.
    The file also opens with `load_model`. It appears at once, replacing an older one.
    """
    arrays, metadata = pack(model)
    tensors = {PREFIX + k: v for k, v in arrays.items()}
    if optimizer is not None:
        state = optimizer.state_dict(copy=False)
        plain: dict[str, dict[str, Any]] = {}
        for name, values in state["state"].items():
            plain[name] = {k: v for k, v in values.items() if not isinstance(v, Tensor)}
            tensors |= {f"{OPTIMIZER}{name}/{k}": v.to_host() for k, v in values.items() if isinstance(v, Tensor)}
        metadata["optimizer"] = {"state": plain, "param_groups": state["param_groups"]}
    for key, owner in (("schedule", schedule), ("loader", loader), ("rng", rng)):
        if owner is not None:
            metadata[key] = owner.state_dict()
    try:
        write(path, tensors, {"kind": "checkpoint", **metadata, "epoch": epoch, "step": step, "extra": extra})
    except TypeError as error:
        raise CheckpointError(
            f"save_checkpoint: expected plain data (numbers, text, lists, dicts), got {error}."
        ) from error


def load_checkpoint(
    model: Module,
    path: str | os.PathLike[str],
    *,
    optimizer: Optimizer | None = None,
    schedule: Any = None,
    loader: Any = None,
    rng: Any = None,
) -> dict[str, Any]:
    """Restore what `save_checkpoint` wrote into the objects given; returns {"epoch", "step", "extra"}.

    Raises CheckpointError, changing nothing, for a damaged or foreign file, for weights or states that do not fit, and
    when an object is given that the file holds nothing for.
    """
    arrays, metadata = read(path)
    if metadata is None or metadata.get("kind") != "checkpoint":
        raise CheckpointError(f"load_checkpoint: expected a checkpoint, got a model file at {path}; use load_model.")
    given = {"optimizer": optimizer, "schedule": schedule, "loader": loader, "rng": rng}
    absent = [key for key, owner in given.items() if owner is not None and key not in metadata]
    if absent:
        raise CheckpointError(f"load_checkpoint: expected the state of {', '.join(absent)}, found none in {path}.")
    state, _ = unpack(arrays, metadata, path)
    model.check_state(state)
    if optimizer is not None:
        saved = _optimizer_state(arrays, metadata["optimizer"])
        optimizer.check_state(saved)
        optimizer.load_state_dict(saved)
    model.load_state_dict(state)
    for key in ("schedule", "loader", "rng"):
        if given[key] is not None:
            given[key].load_state_dict(metadata[key])
    return {key: metadata.get(key) for key in ("epoch", "step", "extra")}


def _optimizer_state(arrays: dict[str, np.ndarray], saved: dict[str, Any]) -> dict[str, Any]:
    """The optimizer's state_dict with its arrays back in place."""
    state = {name: dict(values) for name, values in saved["state"].items()}
    for key, array in arrays.items():
        if key.startswith(OPTIMIZER):
            name, _, what = key[len(OPTIMIZER) :].rpartition("/")
            state[name][what] = array
    return {"state": state, "param_groups": saved["param_groups"]}
