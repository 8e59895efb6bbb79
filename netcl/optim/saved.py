"""Checks of a saved optimizer state: all of it is looked at before anything changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from netcl.core.arguments import whole
from netcl.core.dtypes import as_dtype, is_float
from netcl.core.errors import CheckpointError, DTypeError
from netcl.core.tensor import Tensor
from netcl.ops.update_rows import MAXIMIZE, UPDATES

Plain = dict[str, Any]


class Restorable(Protocol):
    """What a state is checked for: an Optimizer."""

    defaults: Plain
    param_groups: list[Plain]
    rows: tuple[str, ...]

    def names(self) -> list[str]:
        """A key for each parameter."""

    def check(self, group: Plain) -> None:
        """Raise for settings that make no sense."""

    def row_of(self, group: Plain) -> str:
        """The update that settings ask for."""


def checked(optimizer: Restorable, state: Any, by_position: bool) -> tuple[list[Plain], list[Plain]]:
    """The settings of each group and the states of each parameter in a `state_dict`. Raises CheckpointError."""
    where = f"{type(optimizer).__name__}.load_state_dict"
    if not (isinstance(state, Mapping) and _mappings(state.get("param_groups"), state.get("state"))):
        raise CheckpointError(f'{where}: expected {{"state": ..., "param_groups": ...}}, got {_short(state)}.')
    groups, states = state["param_groups"], state["state"]
    _check_names(where, optimizer, groups, states, by_position)
    settings = [_settings(where, optimizer, group) for group in groups]
    names = [n for g in groups for n in g["params"]] if by_position else optimizer.names()
    found: list[Plain] = []
    for name, (p, row) in zip(names, _rows(optimizer, groups, settings)):
        found.append(_states(where, name, p, row, states[name]) if name in states else {})
    return settings, found


def _mappings(groups: Any, states: Any) -> bool:
    """Whether both parts have the form of a state dict."""
    return (
        isinstance(groups, Sequence)
        and all(isinstance(g, Mapping) and isinstance(g.get("params"), Sequence) for g in groups)
        and isinstance(states, Mapping)
        and all(isinstance(v, Mapping) for v in states.values())
    )


def _check_names(where: str, optimizer: Restorable, groups: Any, states: Any, by_position: bool) -> None:
    """Groups of the same parameters, and no state of others."""
    ours, theirs = ([len(g["params"]) for g in given] for given in (optimizer.param_groups, groups))
    if ours != theirs:
        raise CheckpointError(f"{where}: expected groups of {ours} parameters, got {theirs}.")
    known, position = {n for g in groups for n in g["params"]}, 0
    names = optimizer.names()
    for i, (group, size) in enumerate(zip(groups, ours)):
        mine = names[position : position + size]
        position += size
        if not by_position and set(mine) != set(group["params"]):
            absent, extra = sorted(set(mine) - set(group["params"])), sorted(set(group["params"]) - set(mine), key=str)
            raise CheckpointError(
                f"{where}: expected states of {_few(absent)} in group {i}, got {_few(extra)}; where the order of "
                "parameters is the same and only names differ, load with by_position=True."
            )
    foreign = sorted(set(states) - known, key=str)
    if foreign or len(known) != sum(ours):
        got = f"states of {_few(foreign)}" if foreign else "one name twice"
        raise CheckpointError(f"{where}: expected states of the parameters in its groups, got {got}.")


def _settings(where: str, optimizer: Restorable, group: Mapping[str, Any]) -> Plain:
    """The settings of a saved group, checked like those given to the constructor."""
    found = {k: v for k, v in group.items() if k not in ("params", "update")}
    if "maximize" in optimizer.defaults:
        found.setdefault("maximize", False)  # files of before it was a setting
    absent, extra = set(optimizer.defaults) - set(found), set(found) - set(optimizer.defaults) - {"initial_lr"}
    update = group.get("update")
    if update is not None and optimizer.rows and update.removesuffix(MAXIMIZE) not in optimizer.rows:
        kind = f"{type(optimizer).__name__} (updates {', '.join(optimizer.rows)})"
        raise CheckpointError(f"{where}: expected a state of {kind}, got one of the update {update!r}.")
    if absent or extra:
        raise CheckpointError(
            f"{where}: expected the settings {', '.join(optimizer.defaults)}, got {', '.join(map(str, found))}; "
            "the state is of another kind of optimizer."
        )
    try:
        optimizer.check(found)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: {str(error).partition(': ')[2]}") from None
    return found


def _rows(optimizer: Restorable, groups: Any, settings: list[Plain]) -> Iterator[tuple[Any, str]]:
    """Each parameter and the row that its saved states are of."""
    for group, saved, given in zip(optimizer.param_groups, groups, settings):
        row = saved.get("update")
        row = row if row in UPDATES else optimizer.row_of(given)
        yield from ((p, row) for p in group["params"])


def _states(where: str, name: str, p: Any, row: str, states: Mapping[str, Any]) -> Plain:
    """The saved count and states of one parameter."""
    try:
        count = whole(where, f"{name}.step", states.get("step"), 0)
    except (TypeError, ValueError) as error:
        raise CheckpointError(str(error)) from None
    absent = [key for key in UPDATES[row].states if key not in states]
    if absent:
        raise CheckpointError(f"{where}: expected {name}.{absent[0]}, which {row} keeps, found none.")
    for key, value in states.items():
        if key != "step":
            _check_tensor(where, f"{name}.{key}", value, p.shape)
    return {**states, "step": count}


def _check_tensor(where: str, name: str, value: Any, shape: tuple[int, ...]) -> None:
    """Raise CheckpointError unless `value` is an array or a tensor of numbers, shaped like its parameter."""
    got = f"{tuple(value.shape)} {value.dtype}" if isinstance(value, (Tensor, np.ndarray)) else _short(value)
    try:
        good = isinstance(value, (Tensor, np.ndarray)) and is_float(as_dtype(value.dtype))
    except DTypeError:
        good = False
    if not good or tuple(value.shape) != shape:
        raise CheckpointError(f"{where}: expected {name} as floats of shape {shape}, like its parameter, got {got}.")


def _few(names: Sequence[Any]) -> str:
    shown = ", ".join(map(repr, names[:5]))
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "none"


def _short(value: Any) -> str:
    text = f"keys {sorted(map(str, value))}" if isinstance(value, Mapping) else repr(value)
    return text if len(text) < 80 else f"a {type(value).__name__}"
