"""Module: parameters, buffers and further modules as plain attributes, found by walking them."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set, ValuesView
from typing import Any, NamedTuple, TypeVar

import numpy as np

from netcl.autograd.follow import Followed
from netcl.autograd.hooks import Handle
from netcl.autograd.node import Parameter
from netcl.autograd.state import state
from netcl.core.dtypes import as_dtype, compute_dtype, is_float
from netcl.core.errors import CheckpointError, DTypeError
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor, destination
from netcl.nn.hooks import BackwardHooks, Watched, recording
from netcl.nn.recipe import record
from netcl.ops import elementwise

M = TypeVar("M", bound="Module")
_UNNAMED = (Set, ValuesView, deque)  # containers whose elements get no names


class Keys(NamedTuple):
    """What `load_state_dict` could not match."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module(Followed):
    """Base of all layers and models. Subclasses set parameters and modules as attributes and define `forward`.

    Attributes that are Parameters, Modules, or lists, tuples or dicts of them in any nesting are found without
    registration; sets, which have no order to name them by, are refused. Buffers (tensors that belong to the state but
    are not trained) are declared by `register_buffer`. Names are paths such as "layers.0.weight". An object reachable
    by two names is one object: it is trained once and saved once.
    """

    training = True
    _shown: tuple[str, ...] = ()  # names of the settings in the printed tree
    _buffers: Mapping[str, bool] = {}  # name of a tensor attribute -> whether it is saved
    _before: Mapping[Handle, tuple[Callable[..., Any], bool]] = {}  # hooks in order, and whether they take kwargs
    _after: Mapping[Handle, tuple[Callable[..., Any], bool]] = {}
    _backward: BackwardHooks = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        record(cls)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes."""
        raise NotImplementedError(f"{type(self).__name__}: expected a method forward(), got a class without one.")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if state.reached is not None:
            state.reached.enter(self, self.hooked)
        if self._before:
            args, kwargs = self._prepared(args, kwargs)
        watched = Watched(self, self._backward) if self._backward and recording() else None
        if watched is not None:
            args = watched.arguments(args)
        result = self.forward(*args, **kwargs)
        for hook, with_kwargs in tuple(self._after.values()) if self._after else ():  # a hook may remove itself
            changed = hook(self, args, kwargs, result) if with_kwargs else hook(self, args, result)
            result = result if changed is None else changed
        return result if watched is None else watched.result(result)

    def _prepared(self, args: Any, kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments after the hooks that are called before forward."""
        for hook, with_kwargs in tuple(self._before.values()):
            changed = hook(self, args, kwargs) if with_kwargs else hook(self, args)
            if changed is None:
                continue
            if not with_kwargs:
                args = changed if isinstance(changed, tuple) else (changed,)
            elif isinstance(changed, tuple) and len(changed) == 2 and isinstance(changed[1], dict):
                args, kwargs = changed
            else:
                raise TypeError(
                    "register_forward_pre_hook: expected a hook with_kwargs to return None or (args, kwargs), got "
                    f"{type(changed).__name__}; return both, as a tuple and a dict."
                )
        return args, kwargs

    @property
    def hooked(self) -> bool:
        """Whether functions of the user's run with it."""
        return bool(self._before or self._after or self._backward)

    # -- what it is made of ----------------------------------------------------------------------------------------

    def members(self) -> Iterator[tuple[str, Any]]:
        """(name, value) of everything set on this module that may be a parameter, a module or a buffer."""
        for name, value in self.__dict__.items():
            yield from _flat(type(self).__name__, name, value)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of the modules directly inside."""
        return ((name, value) for name, value in self.members() if isinstance(value, Module))

    def children(self) -> Iterator[Module]:
        """The modules directly inside."""
        return (child for _, child in self.named_children())

    def named_modules(self, prefix: str = "", _seen: set[int] | None = None) -> Iterator[tuple[str, Module]]:
        """(path, module) of this module and all inside, each once."""
        seen = set() if _seen is None else _seen
        if id(self) not in seen:
            seen.add(id(self))
            yield prefix, self
            for name, child in self.named_children():
                yield from child.named_modules(_join(prefix, name), seen)

    def modules(self) -> Iterator[Module]:
        """This module and all inside, each once."""
        return (module for _, module in self.named_modules())

    def _paths(self, prefix: str, kind: type, above: tuple[int, ...] = ()) -> Iterator[tuple[str, Module, str, Any]]:
        """(path, owner, attribute, value) of all values of `kind`, under every path that leads to them."""
        if id(self) in above:  # a child that refers to its parent
            return
        for name, value in self.members():
            if isinstance(value, kind) and (kind is not Tensor or name in self._buffers):
                yield _join(prefix, name), self, name, value
            if isinstance(value, Module):
                yield from value._paths(_join(prefix, name), kind, (*above, id(self)))

    def named_parameters(self, prefix: str = "", remove_duplicate: bool = True) -> Iterator[tuple[str, Parameter]]:
        """(path, parameter), each parameter once under its first path unless remove_duplicate is False.

        A parameter without a name gets its path as one, for messages and for the keys of optimizer states.
        """
        seen: set[int] = set()
        for path, _, _, p in self._paths(prefix, Parameter):
            if remove_duplicate and id(p) in seen:
                continue
            seen.add(id(p))
            p.name = p.name or path
            yield path, p

    def parameters(self) -> Iterator[Parameter]:
        """All parameters, each once."""
        return (p for _, p in self.named_parameters())

    def named_buffers(self, persistent: bool = False) -> Iterator[tuple[str, Tensor]]:
        """(path, tensor) of the buffers, or only of those that are saved."""
        for path, owner, name, value in self._paths("", Tensor):
            if owner._buffers[name] or not persistent:
                yield path, value

    def buffers(self) -> Iterator[Tensor]:
        """All buffers."""
        return (value for _, value in self.named_buffers())

    def register_buffer(self, name: str, value: Tensor | None, persistent: bool = True) -> None:
        """Set attribute `name` to a tensor that moves, and if `persistent` is saved, with the module."""
        self._buffers = {**self._buffers, name: persistent}
        setattr(self, name, value)

    def replace(self, path: str, value: Parameter | Tensor) -> None:
        """Put another parameter (or a tensor in the place of a buffer) at `path`: for tying."""
        kind = Parameter if isinstance(value, Parameter) else Tensor
        for found, owner, name, _ in list(self._paths("", kind)):
            if found == path:
                head = name.partition(".")[0]
                setattr(owner, head, _with(getattr(owner, head), head, name, value))
                return
        raise KeyError(f"{type(self).__name__}.replace: expected the path of a {kind.__name__}, got {path!r}.")

    # -- modes -----------------------------------------------------------------------------------------------------

    def train(self: M, mode: bool = True) -> M:
        """Switch this module and all inside to training (or, with False, to evaluation)."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self: M) -> M:
        """Switch to evaluation: no dropout, running statistics in norms."""
        return self.train(False)

    def requires_grad_(self: M, requires_grad: bool = True) -> M:
        """Ask for gradients of all parameters, or freeze them."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for p in self.parameters():
            p.grad = None

    def apply(self: M, fn: Callable[[Module], Any]) -> M:
        """Call `fn` on every module inside, then on this one."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    # -- moving ----------------------------------------------------------------------------------------------------

    def to(self: M, target: Any) -> M:
        """Move everything to a device (a queue, a handle, a name), or floats to a dtype, in place; drops gradients.

        Buffers are kept in the type that is computed in: float32 for float16 and bfloat16. Layers cast floating inputs
        to the dtype of their parameters, so a float32 batch may be given to a float16 model.
        """
        queue, dtype = destination(f"{type(self).__name__}.to", target)
        if dtype is None:
            return self._move(lambda t: t.to(queue), lambda t: t.to(queue))
        if not is_float(dtype):
            raise DTypeError(f"{type(self).__name__}.to: expected a queue or a floating dtype, got {target!r}.")
        return self._move(_caster(dtype), _caster(compute_dtype(dtype)))

    def _move(self: M, parameter: Callable[[Tensor], Tensor], buffer: Callable[[Tensor], Tensor]) -> M:
        for p in self.parameters():
            p.value, p.grad = parameter(p.value), None
        moved: dict[int, Tensor] = {}
        for _, owner, name, value in list(self._paths("", Tensor)):
            setattr(owner, name, moved.setdefault(id(value), buffer(value)))
        return self

    def half(self: M) -> M:
        """Floats as float16; optimizers made afterwards keep float32 masters. Layers cast floating inputs to it."""
        return self.to("float16")

    def bfloat16(self: M) -> M:
        """Floats as bfloat16; optimizers made afterwards keep float32 masters. Layers cast floating inputs to it."""
        return self.to("bfloat16")

    def float(self: M) -> M:
        """Floats as float32."""
        return self.to("float32")

    def double(self: M) -> M:
        """Floats as float64."""
        return self.to("float64")

    # -- state -----------------------------------------------------------------------------------------------------

    def named_state(self) -> dict[str, Any]:
        """Parameters and saved buffers, the objects themselves, under every path that leads to them."""
        found: dict[str, Any] = {}
        for path, value in (*self.named_parameters(remove_duplicate=False), *self.named_buffers(persistent=True)):
            if found.setdefault(path, value) is not value:
                where = type(self).__name__
                raise CheckpointError(
                    f"{where}: expected one parameter at each path, got two at {path!r}; rename a key."
                )
        return found

    def state_dict(self, copy: bool = True) -> dict[str, Tensor]:
        """{path: tensor} of parameters and saved buffers. A snapshot; with copy=False the tensors are the live ones.

        An object with two paths is under both, as one tensor.
        """
        done: dict[int, Tensor] = {}
        result = {}
        for path, value in self.named_state().items():
            if id(value) not in done:
                tensor = value.value if isinstance(value, Parameter) else value
                done[id(value)] = tensor.copy() if copy else tensor
            result[path] = done[id(value)]
        return result

    def check_state(self, state: Mapping[str, Any], strict: bool = True) -> Keys:
        """The keys that do not match; CheckpointError listing everything that `load_state_dict` would refuse."""
        own = self.named_state()
        keys = Keys([k for k in own if k not in state], [k for k in state if k not in own])
        shapes = {k: (tuple(np.shape(state[k])), own[k].shape) for k in own if k in state}
        wrong = [f"{k}: {theirs} for {ours}" for k, (theirs, ours) in shapes.items() if theirs != ours]
        lines = [f"shapes differ: {', '.join(wrong)}"] if wrong else []
        types = {k: _dtype_of(state[k]) for k in shapes}
        odd = [f"{k}: {theirs} for {own[k].dtype}" for k, theirs in types.items() if not _fits(theirs, own[k].dtype)]
        lines += [f"types differ: {', '.join(odd)}"] if odd else []
        if strict:
            lines += [f"missing: {', '.join(keys.missing_keys)}"] if keys.missing_keys else []
            lines += [f"unexpected: {', '.join(keys.unexpected_keys)}"] if keys.unexpected_keys else []
        if lines:
            fix = "" if wrong or odd else "; pass strict=False to load what fits"
            where, found = f"{type(self).__name__}.load_state_dict", "; ".join(lines)
            raise CheckpointError(f"{where}: expected the keys, shapes and types of the model, got {found}{fix}.")
        return keys

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Keys:
        """Write tensors or arrays into parameters and buffers of the same path, in place.

        Raises CheckpointError listing everything that does not fit, before anything is changed: wrong shapes and types
        always, missing and unexpected keys when `strict`. Returns those keys. Numbers are cast, floats not to integers.
        """
        keys = self.check_state(state, strict)
        for key, value in self.named_state().items():
            if key in state:
                write_into(value.value if isinstance(value, Parameter) else value, state[key])
        return keys

    def __deepcopy__(self: M, memo: dict[int, Any]) -> M:
        """Tensors are copied on their device, queues are shared, ties are kept."""
        for _, _, _, p in self._paths("", Parameter):
            if id(p) not in memo:
                memo[id(p)] = Parameter(p.value.copy(), p.name, p.requires_grad)
        for value in [v for m in self.modules() for _, v in m.members()]:
            if isinstance(value, Tensor):
                memo.setdefault(id(value), value.copy())
            elif isinstance(value, CPUQueue) or hasattr(value, "int_ptr"):
                memo[id(value)] = value
        twin = memo[id(self)] = type(self).__new__(type(self))
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    # -- hooks and printing ----------------------------------------------------------------------------------------

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> Handle:
        """Call hook(module, args, result) after forward; what it returns, if anything, replaces the result.

        Args: prepend: before the hooks there are. with_kwargs: call hook(module, args, kwargs, result).
        """
        return self._hook("_after", hook, with_kwargs, prepend)

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> Handle:
        """Call hook(module, args) before forward; what it returns, if anything, replaces the arguments.

        Args: prepend: before the hooks there are. with_kwargs: call hook(module, args, kwargs), which may return
            (args, kwargs).
        """
        return self._hook("_before", hook, with_kwargs, prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> Handle:
        """Call hook(module, grad_input, grad_output) when backward has passed the module.

        Both are tuples: the gradients of the positional arguments and of the results, None where there is none. What it
        returns, if anything, takes the place of grad_input. Without arguments that want a gradient it is called when
        grad_output is known. forward has to return a node or a tuple of them.
        """
        return self._hook("_backward", hook, False, prepend)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> Handle:
        """Call hook(module, grad_output) when backward comes to the module; what it returns replaces grad_output."""
        return self._hook("_backward", hook, True, prepend)

    def _hook(self, kind: str, hook: Callable[..., Any], option: bool, prepend: bool) -> Handle:
        if not callable(hook):
            raise DTypeError(f"{type(self).__name__}: expected a hook as a function, got {type(hook).__name__}.")
        return Handle(self.__dict__.setdefault(kind, {}), (hook, option), self._changed, prepend)

    def extra_repr(self) -> str:
        """Settings shown between the brackets of the printed tree."""
        values = {name: getattr(self, name) for name in self._shown}
        return ", ".join(f"{n}={v!r}" if isinstance(v, str) else f"{n}={v}" for n, v in values.items())

    def __repr__(self) -> str:
        children = [f"({name}): {child!r}".replace("\n", "\n  ") for name, child in self.named_children()]
        if not children:
            return f"{type(self).__name__}({self.extra_repr()})"
        return f"{type(self).__name__}({self.extra_repr()}\n  " + "\n  ".join(children) + "\n)"


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _dtype_of(value: Any) -> Any:
    return value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype


def _fits(theirs: Any, ours: Any) -> bool:
    """Whether numbers of one dtype can be written into another: whatever we know, but no floats into integers."""
    try:
        found = as_dtype(theirs)
    except DTypeError:
        return False
    return is_float(ours) or not is_float(found)


def _flat(where: str, path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(path, value) of what `value` holds, through any nesting of lists, tuples and dicts."""
    if isinstance(value, (list, tuple)):
        for i, v in enumerate(value):
            yield from _flat(where, f"{path}.{i}", v)
    elif isinstance(value, dict):
        for k, v in value.items():
            yield from _flat(where, f"{path}.{k}", v)
    elif isinstance(value, _UNNAMED):
        if any(isinstance(v, (Parameter, Module)) for _, v in _flat(where, path, list(value))):
            kind = type(value).__name__
            raise TypeError(
                f"{where}: expected parameters and modules in lists, tuples or dicts, got a {kind} of them in "
                f"{path!r}; use a list."
            )
    else:
        yield path, value


def _with(held: Any, path: str, target: str, value: Any) -> Any:
    """`held`, which is found at `path`, with `value` at the path `target`; lists and dicts are changed in place."""
    if path == target:
        return value
    inside: Callable[[Any], bool] = lambda key: f"{target}.".startswith(f"{path}.{key}.")  # noqa: E731
    if isinstance(held, tuple):
        items = [_with(v, f"{path}.{i}", target, value) if inside(i) else v for i, v in enumerate(held)]
        return type(held)(*items) if hasattr(held, "_fields") else tuple(items)
    if isinstance(held, (list, dict)):
        for key in [k for k in (held if isinstance(held, dict) else range(len(held))) if inside(k)]:
            held[key] = _with(held[key], f"{path}.{key}", target, value)
    return held


def _caster(dtype: Any) -> Callable[[Tensor], Tensor]:
    return lambda t: t.astype(dtype) if is_float(t.dtype) else t


def write_into(target: Tensor, source: Any) -> None:
    """Write `source` into `target` in place, on its device and in its dtype."""
    if not isinstance(source, Tensor):
        source = Tensor.from_host(target.queue, np.asarray(source))
    elementwise.assign(target, source.to(target.queue))
