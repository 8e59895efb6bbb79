"""What every optimizer shares: parameter groups, states, one launch for many parameters, and state dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from netcl.core.arguments import flag, number
from netcl.core.dtypes import FLOAT32
from netcl.core.errors import DTypeError, GradientError, ShapeError
from netcl.core.live import each_step, only_while, recording
from netcl.core.tensor import Tensor, same_queue
from netcl.fusion import many as multi
from netcl.ops import elementwise
from netcl.ops.update import Updater
from netcl.ops.update_rows import MAXIMIZE
from netcl.optim import saved

Group = dict[str, Any]
_STEP, _NEEDS = itemgetter("step"), attrgetter("requires_grad")


class Slab:
    """Parameters of one queue and dtype whose states live together and are updated in one launch."""

    def __init__(self, row: str, params: Sequence[Any]) -> None:
        self.params = list(params)
        self.members = {id(p) for p in params}
        self.updater = Updater(row, [p.value for p in params])
        self.facts = [facts(p) for p in params]

    def stale(self) -> bool:
        """Whether some parameter changed its queue, dtype or shape since."""
        for p, (queue, dtype, shape) in zip(self.params, self.facts):  # a generator would cost more at each step
            value = p.value
            if value.queue is not queue or value.dtype != dtype or value.shape != shape:
                return True
        return False


def facts(p: Any) -> tuple[Any, ...]:
    """What the states of a parameter depend on."""
    return p.value.queue, p.value.dtype, p.value.shape


class Optimizer:
    """Base of the optimizers: a row of `ops.update` and the scalars it takes at each step.

    `params`: Parameters, (name, Parameter) pairs, or dicts {"params": [...], "lr": ...} with settings of their own. A
    parameter listed twice counts once. `param_groups` holds the settings and may be changed between steps; `state[p]`
    holds the step count and the states of parameter p. Parameters without a gradient are left alone.
    """

    rows: tuple[str, ...] = ()  # every row that settings may ask for: states of others are refused; () takes any

    def __init__(self, params: Iterable[Any], **defaults: Any) -> None:
        self.check(defaults)
        self.defaults = defaults
        self.param_groups: list[Group] = []
        self.state: dict[Any, dict[str, Any]] = {}
        self._slabs: dict[int, tuple[str, list[Slab]]] = {}  # by position of the group: row and slabs
        self._last: list[list[dict[str, Any]]] = []  # the states that the latest step counted, launch by launch
        self._made = 0  # how often states moved to other memory
        given = listed(type(self).__name__, params)
        for group in given if isinstance(given[0], dict) else [{"params": given}]:
            self.add_param_group(group)

    def __getstate__(self) -> dict[str, Any]:
        """For deep copies and pickles to other processes: settings and states; what is launched is made anew."""
        return {**self.__dict__, "_slabs": {}, "_last": []}

    # -- what a subclass says --------------------------------------------------------------------------------------

    def check(self, group: Group) -> None:
        """Raise ValueError or TypeError for settings that make no sense; numbers become Python's."""
        for name in ("lr", "weight_decay", "initial_lr"):
            if name in group:
                group[name] = number(type(self).__name__, name, group[name], 0)
        if "maximize" in group:
            group["maximize"] = flag(type(self).__name__, "maximize", group["maximize"])

    def row(self, group: Group) -> str:
        """The update row that these settings ask for, downhill."""
        raise NotImplementedError

    def row_of(self, group: Group) -> str:
        """The update row that these settings ask for, uphill where they say `maximize`."""
        return self.row(group) + MAXIMIZE if group.get("maximize") else self.row(group)

    def scalars(self, group: Group, step: int) -> dict[str, float]:
        """The row's scalars at the given step, which counts from 1."""
        raise NotImplementedError

    # -- groups ----------------------------------------------------------------------------------------------------

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add parameters with settings of their own."""
        where = type(self).__name__
        if not isinstance(group, Mapping) or "params" not in group:
            raise ValueError(f'{where}: expected groups as {{"params": [...], "lr": ...}}, got {group!r}.')
        params = listed(where, group["params"], least=0)
        known = {id(p) for g in self.param_groups for p in g["params"]}
        unique: dict[int, Any] = {}
        for p in params:
            p = self._parameter(p)
            if id(p) in known:
                raise ValueError(f"{where}: expected each parameter in one group, got {p.name or p.shape} twice.")
            unique[id(p)] = p
        settings = {**self.defaults, **group, "params": list(unique.values())}
        extra = set(settings) - set(self.defaults) - {"params", "initial_lr"}
        if extra:
            choices = ", ".join(self.defaults)
            raise ValueError(f"{where}: expected settings among {choices}, got {sorted(map(str, extra))}.")
        self.check(settings)
        self.param_groups.append(settings)

    def _parameter(self, p: Any) -> Any:
        name, p = p if isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str) else (None, p)
        if not hasattr(p, "value") or not hasattr(p, "grad"):
            raise DTypeError(f"{type(self).__name__}: expected Parameters, got {type(p).__name__}.")
        if getattr(p, "tape", None) is not None:
            raise GradientError(
                f"{type(self).__name__}: expected Parameters, got the result of {p.op_name!r}; no step changes that."
            )
        if name is not None and getattr(p, "name", name) is None:
            p.name = name
        return p

    def parameters(self) -> Iterator[Any]:
        """All parameters, group by group."""
        for group in self.param_groups:
            yield from group["params"]

    # -- stepping --------------------------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None, *, gate: Tensor | None = None) -> Any:
        """Update every parameter that has a gradient. Returns what `closure` returned, if given.

        Nothing waits for the device. `gate` is a number on the device, shape (1,), that gradients are multiplied by;
        where it is NaN or infinite the device changes nothing (`skip_last` then takes the counts back).
        """
        loss = closure() if closure is not None else None
        self._check_gradients(gate)
        each_step(self._last.clear)
        for position, group in enumerate(self.param_groups):
            for slab in self._ready(position, group):
                self._run(group, slab, gate)
        made = recording()
        if made is not None:
            made.parameters += self.parameters()
            only_while(self._unchanged())
        return loss

    def _check_gradients(self, gate: Tensor | None) -> None:
        """Raise ShapeError, DTypeError or DeviceError before any parameter or count changes."""
        if gate is not None and not (isinstance(gate, Tensor) and gate.size == 1 and gate.dtype == FLOAT32):
            got = f"{gate.shape} {gate.dtype}" if isinstance(gate, Tensor) else type(gate).__name__
            raise ShapeError(f"{type(self).__name__}: expected gate as one float32 on the device, got {got}.")
        for p in [p for group in self.param_groups for p in group["params"]]:
            grad, value = p.grad, p.value
            if grad is None or (grad.__class__ is Tensor and grad.shape == value.shape and grad.queue is value.queue):
                continue
            where = f"{type(self).__name__}: gradient of {p.name or 'a parameter'}"
            same_queue(where, value, grad)
            if grad.shape != value.shape:
                raise ShapeError(f"{where}: expected shape {value.shape}, got {grad.shape}.")

    def _run(self, group: Group, slab: Slab, gate: Tensor | None) -> None:
        grads = [p.grad if p.requires_grad else None for p in slab.params]
        states = [self.state[p] for p in slab.params]
        if not [g for g in grads if g is None] and len(set(map(_STEP, states))) == 1:
            self._advance(group, slab, states, grads, gate)
            return
        counts = sorted({s["step"] for s, g in zip(states, grads) if g is not None})
        # found before any of them counts this step; one unless parameters sat out some steps
        parts = [[g if s["step"] == count else None for s, g in zip(states, grads)] for count in counts]
        for chosen in parts:
            counted = [s for s, g in zip(states, chosen) if g is not None]
            self._advance(group, slab, counted, chosen, gate)

    def _advance(
        self, group: Group, slab: Slab, counted: list[dict[str, Any]], chosen: list[Any], gate: Tensor | None
    ) -> None:
        """Count and update the parameters with a gradient in `chosen`, which have one step count."""

        def advance() -> None:
            count = counted[0]["step"] + 1
            for s in counted:
                s["step"] = count
            self._last.append(counted)

        each_step(advance)
        slab.updater.run([p.value for p in slab.params], chosen, lambda: self.scalars(group, counted[0]["step"]), gate)

    def _unchanged(self) -> Callable[[], bool]:
        """A function that says whether a recording of this step still does what a step would do."""
        groups, parts, made = self.param_groups, list(self._last), self._made
        facts = [(self.row_of(group), len(group["params"])) for group in groups]
        params = list(self.parameters())
        needing = list(map(_NEEDS, params))

        def holds() -> bool:  # runs before each replay
            if made != self._made or len(groups) != len(facts):
                return False
            for group, (row, size) in zip(groups, facts):
                if len(group["params"]) != size or self.row_of(group) != row:
                    return False
            for counted in parts:
                if len(set(map(_STEP, counted))) > 1:
                    return False
            return list(map(_NEEDS, params)) == needing

        return holds

    def skip_last(self) -> None:
        """Take back the counts of the latest step, which its gate turned into nothing."""
        for counted in self._last:
            for s in counted:
                s["step"] -= 1
        self._last.clear()

    def _ready(self, position: int, group: Group) -> list[Slab]:
        """The slabs of a group, with one for every parameter that has a gradient."""
        row = self.row_of(group)
        known, slabs = self._slabs.get(position, (row, []))
        listed = set(map(id, group["params"]))
        if known != row or any(slab.stale() or not slab.members <= listed for slab in slabs):
            slabs = []  # states carry over by name from self.state
            self._made += 1
        covered: set[int] = set().union(*[slab.members for slab in slabs])
        new = [p for p in group["params"] if p.grad is not None and id(p) not in covered]
        if new:
            slabs = slabs + [
                self._slab(row, [new[i] for i in members]) for members in multi.batches([p.value for p in new])
            ]
        self._slabs[position] = (row, slabs)
        return slabs

    def _slab(self, row: str, params: list[Any]) -> Slab:
        slab = Slab(row, params)
        for i, p in enumerate(params):
            before = self.state.get(p, {})
            here: dict[str, Any] = {"step": before.get("step", 0)}
            for name, states in slab.updater.states.items():
                if name in before and before[name].shape != p.value.shape:
                    raise ShapeError(
                        f"{type(self).__name__}: expected {p.name or 'a parameter'} to keep the shape "
                        f"{before[name].shape} of its states, got {p.value.shape}; make a new optimizer."
                    )
                if name in before:
                    elementwise.assign(states[i], before[name].to(p.value.queue))
                here[name] = states[i]
            self.state[p] = here
        return slab

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, or with set_to_none=False set them to zero."""
        for p in self.parameters():
            if set_to_none:
                p.grad = None
            elif p.grad is not None:
                p.grad.fill_(0)

    # -- state dicts -----------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """A key for each parameter: its name where all have different ones, else its position."""
        found = [getattr(p, "name", None) for p in self.parameters()]
        if None in found or len(set(found)) < len(found):
            return [str(i) for i in range(len(found))]
        return [str(name) for name in found]

    def state_dict(self, copy: bool = True) -> dict[str, Any]:
        """{"state": {name: {"step": 3, "m": Tensor}}, "param_groups": [...]}; with copy=False tensors stay live."""
        keys = iter(self.names())
        groups = [
            {**g, "params": [next(keys) for _ in g["params"]], "update": self._slabs.get(i, (self.row_of(g),))[0]}
            for i, g in enumerate(self.param_groups)
        ]
        state = {
            key: {k: v.copy() if copy and isinstance(v, Tensor) else v for k, v in self.state[p].items()}
            for key, p in zip(self.names(), self.parameters())
            if p in self.state
        }
        return {"state": state, "param_groups": groups}

    def check_state(self, state: Mapping[str, Any], by_position: bool = False) -> None:
        """Raise CheckpointError for what `load_state_dict` would refuse."""
        saved.checked(self, state, by_position)

    def load_state_dict(self, state: Mapping[str, Any], by_position: bool = False) -> None:
        """Take over settings and states from `state_dict`, by parameter name, or by position if `by_position`.

        States that exist are written in place, so recorded steps go on with them. Raises CheckpointError, changing
        nothing, for a state of another kind of optimizer, for other groups or names, for missing moments, and for
        shapes, counts and settings that make no sense.
        """
        groups, states = saved.checked(self, state, by_position)
        for position, (group, settings) in enumerate(zip(self.param_groups, groups)):
            group.update(settings)
            if position in self._slabs and self._slabs[position][0] != self.row_of(group):
                self._made += 1
                for p in group["params"]:  # states of another row
                    self.state.pop(p, None)
                del self._slabs[position]
        for p, values in zip(self.parameters(), states):
            self._restore(p, values)

    def _restore(self, p: Any, values: Mapping[str, Any]) -> None:
        """Make `values` the state of p, in place where p has one; nothing saved means a fresh start."""
        here = self.state.get(p)
        if here is None:
            if values:
                self.state[p] = {k: v if k == "step" else _adopt(p, v) for k, v in values.items()}
            return
        for name, value in here.items():
            if not isinstance(value, Tensor):
                here[name] = values.get(name, 0)
            elif name in values or name == "master":
                elementwise.assign(value, _adopt(p, values.get(name, p.value)))
            else:
                value.fill_(0)
        here.update({k: _adopt(p, v) for k, v in values.items() if k not in here})

    def __repr__(self) -> str:
        lines = []
        for group in self.param_groups:
            settings = ", ".join(f"{k}={v}" for k, v in group.items() if k != "params")
            lines.append(f"{settings}, params={len(group['params'])}")
        return f"{type(self).__name__}({'; '.join(lines)})"


def _adopt(p: Any, value: Any) -> Tensor:
    """A saved state as a tensor of our own, next to its parameter."""
    if isinstance(value, Tensor) and value.queue is p.value.queue:
        return value.copy()
    return Tensor.from_host(p.value.queue, np.asarray(value))


def listed(where: str, params: Any, least: int = 1) -> list[Any]:
    """Parameters, named parameters or groups as a list."""
    if hasattr(params, "value") and hasattr(params, "grad"):
        return [params]
    if isinstance(params, Mapping):
        params = params.values()
    if isinstance(params, (set, frozenset)) or not isinstance(params, Iterable):
        hint = "; pass its parameters()" if hasattr(params, "parameters") else ""
        hint = "; a set has no order of its own" if isinstance(params, (set, frozenset)) else hint
        raise DTypeError(f"{where}: expected a list of Parameters, got {type(params).__name__}{hint}.")
    found = list(params)
    if len(found) < least:
        raise ValueError(f"{where}: expected at least one parameter, got none.")
    return found
