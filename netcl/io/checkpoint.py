"""Checkpoints of a training run: model, optimizer, schedule, loader and counts in one .netcl file."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from netcl.core.errors import CheckpointError
from netcl.core.tensor import Tensor
from netcl.io.architecture import describe
from netcl.io.file import one_line, read, write
from netcl.io.model import PREFIX, check_types, pack, unpack
from netcl.io.params import load_params as load_params
from netcl.io.params import save_params as save_params
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
    The file also opens with `load_model`, which asks for model= where the architecture has no form in a file. It
    appears at once, replacing an older one.
    """
    arrays, metadata = pack(model)
    try:
        metadata["architecture"] = describe(model)
    except CheckpointError as error:  # load_checkpoint does not need it
        metadata |= {"architecture": None, "reason": str(error)}
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
    owners = {"optimizer": optimizer, "schedule": schedule, "loader": loader, "rng": rng}
    metadata["kinds"] = {key: type(owner).__name__ for key, owner in owners.items() if owner is not None}
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
    by_position: bool = False,
) -> dict[str, Any]:
    """Restore what `save_checkpoint` wrote into the objects given; returns {"epoch", "step", "extra"}.

    The optimizer's states go to the parameters of the same names, or with `by_position` to those at the same place.

    Everything is checked before anything changes. Raises CheckpointError for a damaged or foreign file, for weights or
    states that do not fit or are of another class (an AdamW's for an SGD), and when an object is given that the file
    holds nothing for.
    """
    arrays, metadata = read(path)
    if metadata is None or metadata.get("kind") != "checkpoint":
        raise CheckpointError(
            f"load_checkpoint: expected a checkpoint, got a model file at {one_line(path)}; use load_model."
        )
    owners = {"optimizer": optimizer, "schedule": schedule, "loader": loader, "rng": rng}
    given = {key: owner for key, owner in owners.items() if owner is not None}
    absent = [key for key in given if key not in metadata]
    if absent:
        raise CheckpointError(
            f"load_checkpoint: expected the state of {', '.join(absent)}, found none in {one_line(path)}."
        )
    state, _ = unpack(arrays, metadata, path)
    check_types(model, state)
    model.check_state(state)
    saved = {key: metadata[key] for key in given}
    if optimizer is not None:
        with _as_checkpoint_error("optimizer"):
            saved["optimizer"] = _optimizer_state(arrays, metadata["optimizer"])
            optimizer.check_state(saved["optimizer"], by_position)
    _check_kinds(given, metadata.get("kinds"))
    for key, owner in given.items():
        if owner is not optimizer:
            with _as_checkpoint_error(key):
                _try(owner, saved[key], optimizer)
    _load(given, saved, by_position)
    model.load_state_dict(state)
    return {key: metadata.get(key) for key in ("epoch", "step", "extra")}


def _load(given: Mapping[str, Any], saved: Mapping[str, Any], by_position: bool) -> None:
    """Load every state, the optimizer's last: its rates are those of the saved run."""
    for key in reversed(list(given)):
        how = {"by_position": True} if by_position and key == "optimizer" else {}
        with _as_checkpoint_error(key):
            given[key].load_state_dict(saved[key], **how)


def _check_kinds(given: Mapping[str, Any], kinds: Any) -> None:
    """Raise CheckpointError for a state of another class; files of version 1 do not say of which."""
    for key, owner in given.items() if isinstance(kinds, dict) else ():
        ours, theirs = type(owner).__name__, kinds.get(key)
        if ours != theirs:
            raise CheckpointError(f"load_checkpoint: expected the {key} of the saved run, {theirs}, got {ours}.")


@contextlib.contextmanager
def _as_checkpoint_error(key: str) -> Iterator[None]:
    """Say of which object the state does not fit."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # whatever goes wrong, what the file says is the reason
        reason = f"{type(error).__name__} {one_line(error)}".rstrip(".")
        raise CheckpointError(
            f"load_checkpoint: expected a state of the {key} that it can take, got {reason}."
        ) from error


def _try(owner: Any, state: Any, optimizer: Optimizer | None) -> None:
    """Raise what loading `state` would raise, changing nothing."""
    if hasattr(owner, "check_state"):
        owner.check_state(state)
        return
    before, settings = copy.deepcopy(owner.state_dict()), [dict(g) for g in optimizer.param_groups] if optimizer else []
    try:
        owner.load_state_dict(copy.deepcopy(state))
    finally:
        owner.load_state_dict(before)
        for group, old in zip(optimizer.param_groups if optimizer else (), settings):
            group.update(old)


def _optimizer_state(arrays: dict[str, np.ndarray], saved: dict[str, Any]) -> dict[str, Any]:
    """The optimizer's state_dict with its arrays back in place."""
    state = {name: dict(values) for name, values in saved["state"].items()}
    for key, array in arrays.items():
        if key.startswith(OPTIMIZER):
            name, _, what = key[len(OPTIMIZER) :].rpartition("/")
            state[name][what] = array
    return {"state": state, "param_groups": saved["param_groups"]}
