"""`jit_compile`: a Python function of elementwise operations becomes fused kernels, forward and backward.

The first call with new shapes runs the function on symbols (trace.py), decides what shares a kernel (plan.py), and
keeps the result with the queue; later calls are one look-up. Generated source holds no sizes, so a new batch size costs
a trace and no build. What cannot be traced runs as it is, and says so: `explain`, `cache_info`, NETCL_DEBUG=1.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, overload

from netcl.autograd.jit import report
from netcl.autograd.jit.primitive import AutogradPrimitive, register_primitive
from netcl.autograd.jit.program import Program, compile_trace
from netcl.autograd.jit.trace import Scalar, TraceNode, TracingContext, Untraceable, tracing_context
from netcl.autograd.node import Node, Parameter
from netcl.autograd.state import state
from netcl.core import debug
from netcl.core.callers import call_site, raised_at
from netcl.core.errors import BuildError, NetclError
from netcl.core.kernels.primitives import PRIMITIVE_PREAMBLE
from netcl.core.queue import state_of
from netcl.core.tensor import Tensor
from netcl.fusion.chain import START

__all__ = [
    "PRIMITIVE_PREAMBLE", "AutogradPrimitive", "CacheInfo", "CompiledFunction", "TraceNode", "TracingContext",
    "jit_compile", "register_primitive", "tracing_context",
]  # fmt: skip


class CacheInfo(NamedTuple):
    """Counts since the last `cache_clear`: calls served by a kept program, traces, and calls that ran unfused."""

    hits: int
    misses: int
    unfused: int
    currsize: int


class Unfused(NamedTuple):
    """A kept decision to run the function as it is."""

    reason: str


class Guarded(NamedTuple):
    """The function looked at these float arguments, so their values belong to the key."""

    indices: tuple[int, ...]
    entries: dict[tuple[float, ...], Any]


class CompiledFunction:
    """What `jit_compile` returns: call it as the function. Its programs are kept per queue, shapes, dtypes and kwargs.

    Tensors reached through a closure or an object are read at each call, and get gradients; other closed-over values
    (numbers, flags) are those of the first call: pass what changes as an argument, or use `cache_clear`.
    """

    def __init__(self, fn: Callable[..., Any], fallback: bool = True) -> None:
        functools.update_wrapper(self, fn)
        self.fn, self.fallback = fn, fallback
        self.cache_clear()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if state.tracer is not None:
            return self.fn(*args, **kwargs)
        key: list[Any] = [self._token, state.autocast, state.anomaly]
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
            if tensors and not kwargs and not (wanted and state.tape is not None and state.enabled):
                return self._short(args, tuple(key), tensors)
        return self._call(args, kwargs)

    def _short(self, args: Any, key: Any, tensors: list[Tensor]) -> Any:
        """A call with nothing but tensors and without gradients: where one map is all there is, its kept launch."""
        queue = tensors[0].queue
        found = state_of(queue).plans.get(key, False)
        if found is False:
            result = self._call(args, {})
            self._keep(key, args, tensors)
            return result
        if found is None:
            return self._call(args, {})
        for t in tensors:
            if t.queue is not queue:
                return self._call(args, {})
        self._hits += 1
        return Node(found.run(*tensors, *found.numbers)[0], False, found.name)

    def _keep(self, short: Any, args: Any, tensors: list[Tensor]) -> None:
        """Keep the launch of a call that just ran, or that it has no single one."""
        key: list[Any] = [self._token]
        for a in args:
            _collect(a, key, [], [])
        plans = state_of(tensors[0].queue).plans
        program = plans.get((*key, state.autocast))
        plans[short] = program.launch(tensors) if type(program) is Program and not state.anomaly else None

    def _call(self, args: Any, kwargs: Any) -> Any:
        key: list[Any] = [self._token]
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
                return self._without_tensors(args, kwargs)
            first = leaves[0]
            plans = (first.value if isinstance(first, Node) else first).queue.netcl_state.plans
            key.append(state.autocast)
            found = plans.get(tuple(key))
        except (TypeError, AttributeError):  # an argument that cannot be hashed, or a queue nobody used yet
            return self._slow(args, kwargs, key, leaves, floats)
        if type(found) is Guarded:
            found = found.entries.get(tuple([floats[i] for i in found.indices]))
        if type(found) is Program:
            self._hits += 1
            return found.run(leaves, floats)
        return self._miss(args, kwargs, found, plans, tuple(key), leaves, floats)

    # -- misses ----------------------------------------------------------------------------------------------------

    def _slow(self, args: Any, kwargs: Any, key: list[Any], leaves: list[Any], floats: list[float]) -> Any:
        if leaves:
            first = leaves[0]
            plans = state_of((first.value if isinstance(first, Node) else first).queue).plans
            try:
                return self._miss(args, kwargs, plans.get(tuple(key)), plans, tuple(key), leaves, floats)
            except TypeError:
                pass
        return self._unfused("an argument cannot be hashed, so there is no key to keep a program by", args, kwargs)

    def _without_tensors(self, args: Any, kwargs: Any) -> Any:
        return self._unfused("no tensor among the arguments", args, kwargs)

    def _unfused(self, reason: str, args: Any, kwargs: Any) -> Any:
        if reason not in self.reasons:
            self.reasons.append(reason)
            debug.log(1, f"{self.__name__}: {reason}, running unfused")  # type: ignore[attr-defined]
        self._unfused_calls += 1
        return self.fn(*args, **kwargs)

    def _miss(
        self,
        args: Any,
        kwargs: Any,
        found: Any,
        plans: dict[Any, Any],
        key: Any,
        leaves: list[Any],
        floats: list[float],
    ) -> Any:
        if type(found) is Unfused:
            return self._unfused(found.reason, args, kwargs)
        self._misses += 1
        try:
            program, looked = self._trace(args, kwargs, leaves, floats)
        except (BuildError, RecursionError):
            raise
        except Exception as error:
            if not self.fallback:
                raise
            plans[key] = Unfused(_explain_failure(error))
            return self._unfused(plans[key].reason, args, kwargs)
        if looked:
            guard = plans.get(key)
            known = guard.entries if type(guard) is Guarded and guard.indices == looked else {}
            known[tuple(floats[i] for i in looked)] = program
            plans[key] = Guarded(looked, known)
        else:
            plans[key] = program
        self.programs[(id(plans), key, tuple(floats[i] for i in looked))] = program
        return program.run(leaves, floats)

    def _trace(self, args: Any, kwargs: Any, leaves: list[Any], floats: list[float]) -> tuple[Program, tuple[int, ...]]:
        looked: set[int] = set()
        with tracing_context as context:
            symbols = iter([_symbol(context.add_input(x, i)) for i, x in enumerate(leaves)])
            numbers = iter([Scalar(x, i, lambda v: v, looked.add) for i, x in enumerate(floats)])
            traced_args = [_symbolic(a, symbols, numbers) for a in args]
            traced_kwargs = {k: _symbolic(kwargs[k], symbols, numbers) for k in sorted(kwargs)}
            result = self.fn(*traced_args, **traced_kwargs)
            nodes, captured = context.nodes, list(context.captured.values())
        any_number = bool(looked) or any(type(a) is int for a in (*args, *kwargs.values()))
        program = compile_trace(nodes, len(leaves), captured, result, any_number)
        return program, tuple(sorted(looked))

    # -- the cache -------------------------------------------------------------------------------------------------

    def cache_clear(self) -> None:
        """Forget every program of this function, for example after its primitives or closed-over values changed."""
        self._token = object()
        self._hits = self._misses = self._unfused_calls = 0
        self.programs: dict[Any, Program] = {}
        self.reasons: list[str] = []

    def cache_info(self) -> CacheInfo:
        """Hits, misses (traces), calls that ran unfused, and programs kept."""
        return CacheInfo(self._hits, self._misses, self._unfused_calls, len(self.programs))

    def explain(self) -> str:
        """Print, and return, what became of the calls so far: kernels, boundaries and why, bytes moved."""
        text = report.explain(self.__name__, list(self.programs.values()), self.reasons)  # type: ignore[attr-defined]
        print(text)
        return text

    def sources(self) -> list[str]:
        """The OpenCL C of the kernels built so far, forward and backward."""
        return [text for program in self.programs.values() for text in report.sources(program)]

    def __repr__(self) -> str:
        return f"<jit_compile {self.__name__}: {self.cache_info()}>"  # type: ignore[attr-defined]


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
    elif kind is tuple or kind is list or kind is dict:
        key.append((kind, len(a)))
        for x in sorted(a) if kind is dict else ():
            key.append(x)
        for x in [a[k] for k in sorted(a)] if kind is dict else a:
            _collect(x, key, leaves, floats)
    else:
        hash(a)
        key.append((kind, a, getattr(a, "training", None)))


def _symbolic(a: Any, symbols: Any, numbers: Any) -> Any:
    """An argument as the traced function sees it, in the order of `_collect`."""
    kind = type(a)
    if isinstance(a, (Node, Tensor)):
        return next(symbols)
    if kind is float:
        return next(numbers)
    if kind is tuple or kind is list:
        return kind(_symbolic(x, symbols, numbers) for x in a)
    if kind is dict:
        made = {k: _symbolic(a[k], symbols, numbers) for k in sorted(a)}
        return {k: made[k] for k in a}
    return a


def _symbol(x: TraceNode) -> Node:
    return Node(x, x.differentiable)  # type: ignore[arg-type]


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
