"""`jit_compile`: a Python function of elementwise operations becomes fused kernels, forward and backward.

The first call with new shapes runs the function on symbols (trace.py), decides what shares a kernel (plan.py), and
keeps the result with the queue; later calls are one look-up. Generated source holds no sizes, so a new batch size costs
a trace and no build. What cannot be traced runs as it is, and says so: `explain`, `cache_info`, NETCL_DEBUG=1.
"""

from __future__ import annotations

import functools
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, overload

from netcl.autograd.follow import Followed, Reached, changes
from netcl.autograd.jit import report
from netcl.autograd.jit.draws import Draws
from netcl.autograd.jit.primitive import AutogradPrimitive
from netcl.autograd.jit.program import EagerCall, Outdated, Program, compile_trace, rebuilt
from netcl.autograd.jit.register import register_primitive
from netcl.autograd.jit.snapshot import Binding, Snapshot, data_bindings, known_bindings, moved, without_changed
from netcl.autograd.jit.trace import Scalar, TraceNode, TracingContext, Untraceable, tracing_context
from netcl.autograd.jit.variants import Entry, Variant, evict
from netcl.autograd.node import Node, Parameter
from netcl.autograd.state import state
from netcl.core import debug
from netcl.core.callers import call_site, raised_at
from netcl.core.errors import NetclError, OutOfMemoryError
from netcl.core.kernels.primitives import PRIMITIVE_PREAMBLE
from netcl.core.live import unrecorded
from netcl.core.tensor import Tensor
from netcl.kernels import route
from netcl.kernels.grid import START
from netcl.ops.elementwise import assign

__all__ = [
    "PRIMITIVE_PREAMBLE",
    "AutogradPrimitive",
    "CacheInfo",
    "CompiledFunction",
    "TraceNode",
    "TracingContext",
    "jit_compile",
    "register_primitive",
    "tracing_context",
]


IDENTITY: Any = object.__hash__
LIMIT = 256  # programs of one function; those used longest ago are dropped
LAYOUTS = 1024  # layouts of arguments whose programs are found without looking at each argument
REASONS = 32  # different reasons for running unfused that are remembered
PLACES = 256  # names watched for one function
CONSTANTS = 3  # choices of constants that get kernels of their own; then they become arguments
CODES = 64  # shapes of traces of one function that are remembered for that

_constants: weakref.WeakKeyDictionary[Any, dict[Any, set[Any]]] = weakref.WeakKeyDictionary()  # by code


class CacheInfo(NamedTuple):
    """Counts since the last `cache_clear`: calls served by a kept program, traces, and calls that ran unfused."""

    hits: int
    misses: int
    unfused: int
    currsize: int


class CompiledFunction:
    """What `jit_compile` returns: call it as the function. Programs are kept by queue, shapes, dtypes and kwargs.

    Part of what a program is kept by are grad mode, autocast and anomaly mode, the attributes of every module that the
    function reaches (training flags, numbers, parameters, children), and what its global names and closure variables
    hold. Tensors are read at each call, and get gradients. Not noticed are changes inside a list or dict that a module
    or variable holds, and of attributes of other objects: assign anew, pass them as arguments, or use `cache_clear`.
    """

    def __init__(self, fn: Callable[..., Any], fallback: bool = True) -> None:
        updated = functools.WRAPPER_UPDATES if isinstance(fn, types.FunctionType) else ()
        functools.update_wrapper(self, fn, updated=updated)
        self.fn, self.fallback = fn, fallback
        self._name = getattr(fn, "__name__", type(fn).__name__)
        self._warned = False
        self._places: dict[Any, Binding] = {}  # what its code reads besides arguments
        self._known: tuple[Any, ...] = ()  # and what that held when it was last looked at
        self._calls = self._others = self._misses = self._unfused_calls = 0  # others: calls that were no hits
        self.cache_clear()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        reached = state.reached
        if reached is not None:
            reached.functions.append(self)
            if state.tracer is not None:
                return self.fn(*args, **kwargs)
        if self._known and moved(self._known):
            self._look_again()
        enabled = state.enabled
        modes = (state.autocast, state.anomaly, enabled, route.mode)
        key: list[Any] = [modes]
        tensors: list[Tensor] = []
        wanted = False
        for a in args:
            kind = type(a)
            if kind is Tensor:
                v = a
            elif kind is Node or kind is Parameter:
                v, wanted = a.value, wanted or a.requires_grad
            else:
                break
            key += (kind, v.shape, v.strides, v.dtype, v.offset & START)
            tensors.append(v)
        else:
            if tensors and not kwargs:
                return self._short(args, key, tensors, wanted and enabled and state.tape is not None)
        return self._call(args, kwargs, modes)

    def _short(self, args: Any, key: list[Any], tensors: list[Tensor], recorded: bool) -> Any:
        """A call with nothing but tensors: without gradients, where one map is all there is, its kept launch."""
        queue = tensors[0].queue
        key.append(id(queue.netcl_state.plans))
        short = tuple(key)
        found = self._launches.get(short, False)
        if found is None:
            return self._call(args, {}, key[0])
        if found is False or found[1].snapshot.checked != changes.version:
            result = self._call(args, {}, key[0])
            self._keep(short, args, tensors)
            return result
        launch, variant, entry = found
        for t in tensors:
            if t.queue is not queue:
                launch = None
        if launch is None or recorded:
            self._calls = entry.used = self._calls + 1
            try:
                return variant.program.run(args, ())
            except Outdated:
                self._others += 1
                entry.drop(variant)
                del self._launches[short]
                return self._call(args, {}, key[0])
        self._calls = entry.used = self._calls + 1
        return Node(launch.run(*tensors, *launch.numbers), False, launch.name)

    def _keep(self, short: Any, args: Any, tensors: list[Tensor]) -> None:
        """Keep by its layouts what a call that just ran has used."""
        key: list[Any] = [short[0]]
        for a in args:
            _collect(a, key, [], [])
        entry = self._entries.get((*key, short[-1]))
        variant = None if entry is None else entry.current
        if len(self._launches) > LAYOUTS:
            self._launches.clear()
        if variant is None or variant.program is None:
            self._launches[short] = None
            return
        launch = None if state.anomaly else variant.program.launch(tensors)
        self._launches[short] = launch, variant, entry

    def _call(self, args: Any, kwargs: Any, modes: Any) -> Any:
        key: list[Any] = [modes]
        leaves: list[Any] = []
        floats: list[float] = []
        try:
            for a in args:
                _collect(a, key, leaves, floats)
            if kwargs:
                for name in sorted(kwargs):
                    key.append(name)
                    _collect(kwargs[name], key, leaves, floats)
            if not leaves:
                return self._unfused("no tensor among the arguments", args, kwargs)
            first = leaves[0]
            plans = (first.value if isinstance(first, Node) else first).queue.netcl_state.plans
            key.append(id(plans))
            entry = self._entries.get(tuple(key))
        except TypeError:
            reason = "an argument cannot be hashed, so there is no key to keep a program by"
            return self._unfused(reason, args, kwargs)
        if entry is not None:
            found = entry.current
            if found is not None and found.snapshot.checked == changes.version and not found.looked and found.program:
                self._calls = entry.used = self._calls + 1
                try:
                    return found.program.run(leaves, floats)
                except Outdated:
                    entry.drop(found)
                    self._others += 1
        return self._other(args, kwargs, Entry(plans) if entry is None else entry, tuple(key), leaves, floats)

    # -- misses ----------------------------------------------------------------------------------------------------

    def _other(self, args: Any, kwargs: Any, entry: Entry, key: Any, leaves: list[Any], floats: list[float]) -> Any:
        """A call for which the current variant is not the one, or there is none yet."""
        found = entry.find(floats) if entry.used else None
        self._calls += 1
        if entry.reason or (found is not None and found.program is None):
            entry.used = self._calls
            self._others += 1
            return self._unfused(entry.reason or found.reason, args, kwargs)  # type: ignore[union-attr]  # without a program there is a reason
        if found is not None and found.program is not None:
            entry.used = self._calls
            try:
                return found.program.run(leaves, floats)
            except Outdated:
                entry.drop(found)
        self._misses += 1
        self._others += 1
        made = self._traced(args, kwargs, leaves, floats)
        entry.add(made, self._calls)
        self._entries[key] = entry
        evict(self._entries, LIMIT)
        self._launches.clear()
        if made.program is None:
            try:
                return self._unfused(made.reason, args, kwargs)
            except Exception:
                entry.drop(made)  # the function's own error, for these values
                raise
        return self._first_run(made.program, args, kwargs, entry, leaves, floats)

    def _first_run(
        self, program: Program, args: Any, kwargs: Any, entry: Entry, leaves: list[Any], floats: list[float]
    ) -> Any:
        """Run a new program; where that fails undo what it did and run the function as it is."""
        tape = state.tape
        length = 0 if tape is None else len(tape.records)
        written = [(t, t) for t in program.written(leaves)]
        if written:
            with unrecorded():
                written = [(t, t.copy()) for t, _ in written]
        try:
            if EagerCall not in map(type, program.calls):
                return program.run(leaves, floats)
            with route.collect() as program.decisions:
                return program.run(leaves, floats)
        except OutOfMemoryError:
            raise
        except Exception as error:
            made = entry.current
            if not self.fallback or made is None:
                raise
            if tape is not None:
                del tape.records[length:]
            for t, before in written:
                assign(t, before)
            entry.drop(made)
            result = self._unfused(_explain_failure(error), args, kwargs)
            entry.add(Variant(None, self.reasons[-1], made.snapshot, made.looked, floats), self._calls)
            return result

    def _unfused(self, reason: str, args: Any, kwargs: Any) -> Any:
        if reason not in self.reasons:
            if len(self.reasons) < REASONS:
                self.reasons.append(reason)
            debug.log(1, f"{self._name}: {reason}, running unfused")
        self._unfused_calls += 1
        return self.fn(*args, **kwargs)

    def _traced(self, args: Any, kwargs: Any, leaves: list[Any], floats: list[float]) -> Variant:
        """The program for these arguments, or why there is none."""
        looked: set[int] = set()
        program, reason, draws = None, "", Draws()
        before = data_bindings(self.fn)
        with tracing_context as context:
            reached = context.reached
            try:
                result = self._symbolically(context, args, kwargs, leaves, floats, looked)
                if len(without_changed(before)) < len(before):
                    raise Untraceable("changes a variable of its module or of the enclosing function")
                snapshot = self._snapshot(reached, before, args, kwargs)
                any_number = bool(looked) or any(type(a) is int for a in (*args, *kwargs.values()))
                any_number = any_number or self._constants_vary(context.nodes)
                captured, owned = list(context.captured.values()), snapshot.owned()
                program = compile_trace(context.nodes, len(leaves), captured, result, any_number, owned)
            except Exception as error:
                if not self.fallback:
                    raise
                draws.undo()
                for place, content in before:
                    place.write(content)
                reason = _explain_failure(error)
                snapshot = self._snapshot(reached, before, args, kwargs)
        if program is not None and not self._warned:
            text = draws.warning(f"jit_compile: {self._name}", "traced")
            self._warned = bool(text)
            if text:
                warnings.warn(text, stacklevel=5)
        return Variant(program, reason, snapshot, tuple(sorted(looked)), floats)

    def _symbolically(
        self, context: Any, args: Any, kwargs: Any, leaves: list[Any], floats: list[float], looked: set[int]
    ) -> Any:
        """What the function returns for symbols in place of tensors and floats."""
        inputs = [context.add_input(x, i) for i, x in enumerate(leaves)]
        symbols = iter([Node(x, x.differentiable) for x in inputs])
        numbers = iter([Scalar(x, i, lambda v: v, looked.add) for i, x in enumerate(floats)])
        plain = (Node, Tensor)
        traced_args = [next(symbols) if type(a) in plain else _symbolic(a, symbols, numbers) for a in args]
        traced_kwargs = {k: _symbolic(kwargs[k], symbols, numbers) for k in sorted(kwargs)}
        return self.fn(*traced_args, **traced_kwargs)

    def _snapshot(self, reached: Reached, own: list[tuple[Binding, Any]], args: Any, kwargs: Any) -> Snapshot:
        """What the function depends on now, `own` bindings first; from here on the names that it reads are watched."""
        inner = [f for f in reached.functions if isinstance(f, CompiledFunction)]
        found = [*own, *[binding for f in inner for binding in f.bindings()]]
        places = {(id(place.space), place.name): place for place, _ in found}
        self._places = {**self._places, **places} if len(self._places) < PLACES else places
        self._known = known_bindings(self._places.values())
        return Snapshot([self.fn, *args, *kwargs.values(), *reached.modules, *inner], list(places.values()))

    def _look_again(self) -> None:
        """A name means something else now: programs have to look at what they depend on."""
        self._known = known_bindings(self._places.values())
        changes.add()

    def bindings(self) -> list[tuple[Binding, Any]]:
        """The closure variables and global names that hold data, with what they hold."""
        return data_bindings(self.fn)

    def reached(self) -> list[Followed]:
        """The modules that its programs depend on."""
        return list({id(m): m for e in self._entries.values() for m in e.modules()}.values())

    def _constants_vary(self, nodes: Sequence[TraceNode]) -> bool:
        """Whether this code was traced with several choices of constants: then they become arguments of the kernels."""
        code = getattr(self.fn, "__code__", type(self.fn))
        seen = _constants.setdefault(code, {})
        shape = tuple([(n.op_name, n.shape, n.dtype) for n in nodes])
        if len(seen) > CODES and shape not in seen:
            seen.clear()
        choices = seen.setdefault(shape, set())
        choices.add(tuple([repr(x) for n in nodes for x in (*n.inputs, *n.attrs.values()) if type(x) in (int, float)]))
        return len(choices) > CONSTANTS

    # -- the cache -------------------------------------------------------------------------------------------------

    def cache_clear(self) -> None:
        """Forget every program of this function, for example after what it cannot notice changed."""
        self._entries: dict[Any, Entry] = {}
        self._launches: dict[Any, Any] = {}  # by layout: (its only launch, variant, entry), None if unfused
        self._calls = self._others = self._misses = self._unfused_calls = 0
        self._places, self._known = {}, ()
        self.reasons: list[str] = []

    @property
    def programs(self) -> list[Program]:
        """The programs kept."""
        return [program for entry in self._entries.values() for program in entry.programs()]

    def cache_info(self) -> CacheInfo:
        """Hits, misses (traces), calls that ran unfused, and programs kept."""
        return CacheInfo(self._calls - self._others, self._misses, self._unfused_calls, len(self.programs))

    def explain(self) -> str:
        """Print, and return, what became of the calls so far: kernels, boundaries and why, bytes moved."""
        text = report.explain(self._name, self.programs, self.reasons)
        print(text)
        return text

    def sources(self) -> list[str]:
        """The OpenCL C of the kernels built so far, forward and backward."""
        return [text for program in self.programs for text in report.sources(program)]

    def __repr__(self) -> str:
        return f"<jit_compile {self._name}: {self.cache_info()}>"


@overload
def jit_compile(fn: Callable[..., Any], *, fallback: bool = ...) -> CompiledFunction: ...
@overload
def jit_compile(fn: None = ..., *, fallback: bool = ...) -> Callable[[Callable[..., Any]], CompiledFunction]: ...


def jit_compile(fn: Callable[..., Any] | None = None, *, fallback: bool = True) -> Any:
    """Fuse the elementwise chains of `fn` into kernels: `@jit_compile`, `@jit_compile()` or `jit_compile(fn)`.

    Arguments are Nodes, Tensors, numbers, hashable values, and tuples, lists and dicts of them. A changed float needs
    neither a trace nor a build. What cannot be traced runs unfused; with `fallback=False` that is an error instead.
    """
    if fn is None:
        return lambda f: CompiledFunction(f, fallback)
    return CompiledFunction(fn, fallback)


def _collect(a: Any, key: list[Any], leaves: list[Any], floats: list[float]) -> None:
    """Add what the key needs to know of an argument; tensors go to `leaves`, floats to `floats`."""
    kind = type(a)
    if kind is Node or kind is Parameter or isinstance(a, Node):
        v = a.value
        key.append((v.shape, v.dtype))
        leaves.append(a)
    elif kind is Tensor:
        key.append((a.shape, a.dtype, 0))
        leaves.append(a)
    elif kind is float:
        key.append(float)
        floats.append(a)
    elif kind is tuple or kind is list or kind is dict or isinstance(a, tuple):
        key.append((kind, len(a)))
        for x in sorted(a) if kind is dict else ():
            key.append(x)
        for x in [a[k] for k in sorted(a)] if kind is dict else a:
            _collect(x, key, leaves, floats)
    elif kind is types.MethodType:
        key.append((kind, _weakly(a.__self__), a.__func__))
    else:
        key.append((kind, _weakly(a), getattr(a, "training", None)))


def _weakly(a: Any) -> Any:
    """An argument as part of a key: objects that are equal to nothing but themselves are not kept alive by it."""
    hash(a)
    if type(a).__hash__ is not IDENTITY:
        return a
    try:
        return weakref.ref(a)
    except TypeError:
        return a


def _symbolic(a: Any, symbols: Any, numbers: Any) -> Any:
    """An argument as the traced function sees it, in the order of `_collect`."""
    kind = type(a)
    if isinstance(a, (Node, Tensor)):
        return next(symbols)
    if kind is float:
        return next(numbers)
    if kind is list or isinstance(a, tuple):
        return rebuilt(a, [_symbolic(x, symbols, numbers) for x in a])
    if kind is dict:
        made = {k: _symbolic(a[k], symbols, numbers) for k in sorted(a)}
        return {k: made[k] for k in a}
    return a


def _explain_failure(error: Exception) -> str:
    """One line for what stopped a trace."""
    if isinstance(error, Untraceable):
        return str(error)
    where = raised_at(sys.exc_info()[2])
    return (
        f"{type(error).__name__}: {error} at {where or call_site()}"
        if not isinstance(error, NetclError)
        else (f"{error} at {where}" if where else str(error))
    )
