"""What a benchmark is. A `Work` says how each side does it and what is right; a `Case` names one, with a target.

A work is a frozen dataclass of sizes with a few short methods. `ours` and the references get their inputs ready-made
and return a closure; everything outside the closure is set-up and is not timed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Call = Callable[[], Any]


class Lazy:
    """A module imported at first use: listing the cases needs neither torch nor a driver."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)  # the next look-up costs nothing
        return value


ag = Lazy("netcl.autograd")
tensors = Lazy("netcl.core.tensor")
torch_autograd = Lazy("torch.autograd")


class Work:
    """One piece of work. Subclasses give at least `inputs`, `ours` and `exact`."""

    waits = True  # False: the time until the host is free again, the queue is emptied outside the measurement
    returns_seconds = False  # True: the closures measure themselves (fresh processes) and return seconds

    def inputs(self, rng: np.random.Generator) -> Sequence[np.ndarray]:
        """Host arrays, the same for every side."""
        return ()

    def ours(self, queue: Any, *xs: Any) -> Call:
        """The work in netcl, on tensors."""
        raise NotImplementedError

    def other(self, queue: Any, *xs: Any) -> Call:
        """The same work another way in netcl, for cases whose reference is netcl itself."""
        raise NotImplementedError

    def torch(self, *xs: Any) -> Call:
        """The work in PyTorch."""
        raise NotImplementedError

    def numpy(self, *xs: np.ndarray) -> Call:
        """The work in NumPy."""
        raise NotImplementedError

    def exact(self, *xs: np.ndarray) -> Any:
        """The right result (or several) in NumPy and float64, from float64 inputs."""
        raise NotImplementedError

    def outputs(self, queue: Any, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """What `ours` gives and what is right, for the error column and the tests."""
        arrays = self.inputs(np.random.default_rng(seed))
        got = self.ours(queue, *to_device(queue, arrays))()
        wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
        return to_arrays(got), to_arrays(self.exact(*wide))

    def error(self, got: Sequence[np.ndarray], exact: Sequence[np.ndarray]) -> float:
        """How far `outputs` are apart."""
        return error_of(got, exact)

    def flops(self) -> float:
        """Arithmetic operations of one call, 0 where bytes bound it."""
        return 0.0

    def bytes(self) -> float:
        """Bytes one call must read and write at least."""
        return 0.0


@dataclass(frozen=True)
class Case:
    """A named work. `small` is the same work at test size, `target` the least ratio wanted (None: for information).

    reference: "torch", "numpy", "netcl" (the work's `other`) or "limit" (`limit` seconds, an absolute bound).
    note: what bounds the case (bytes, operations, launches) and what was tried; shown where the target is missed.
    """

    name: str
    work: Work
    small: Work
    target: float | None = None
    reference: str = "torch"
    limit: float = 0.0
    note: str = ""


def to_device(queue: Any, arrays: Sequence[np.ndarray]) -> list[Any]:
    """The arrays as tensors on `queue`."""
    return [tensors.Tensor.from_host(queue, a) for a in arrays]


def to_arrays(results: Any) -> list[np.ndarray]:
    """Tensors, nodes, arrays or a sequence of them, as float64 arrays."""
    many = results if isinstance(results, (tuple, list)) else (results,)
    return [np.asarray(r.to_host() if hasattr(r, "to_host") else r, np.float64) for r in many]


def error_of(got: Sequence[np.ndarray], exact: Sequence[np.ndarray]) -> float:
    """The largest difference over the largest right value, the worst output counts. NaN stays NaN."""
    if len(got) != len(exact):
        raise ValueError(f"error_of: expected {len(exact)} results, got {len(got)}.")
    worst = 0.0
    for a, b in zip(got, exact):
        if a.size != b.size:
            raise ValueError(f"error_of: expected a result of shape {b.shape}, got {a.shape}.")
        difference = float(np.max(np.abs(a.reshape(b.shape) - b), initial=0.0))
        worst = float(np.maximum(worst, difference / (np.max(np.abs(b), initial=0.0) or 1.0)))  # NaN wins
    return worst


# -- gradients, the same way on both sides ----------------------------------------------------------------------------


def our_backward(op: Callable[..., Any], xs: Sequence[Any], g: Any, wrt: Sequence[int]) -> Call:
    """The backward pass of `op(*xs)` alone, for the inputs `wrt`, given the upstream gradient `g`."""
    nodes = [ag.tensor(x, requires_grad=i in wrt) for i, x in enumerate(xs)]
    with ag.Tape() as tape:
        y = op(*nodes)

    def run() -> list[Any]:
        for i in wrt:
            nodes[i].grad = None
        tape.backward(y, g, retain_graph=True)
        return [nodes[i].grad for i in wrt]

    return run


def torch_backward(op: Callable[..., Any], xs: Sequence[Any], g: Any, wrt: Sequence[int]) -> Call:
    """The same in PyTorch."""
    leaves = [xs[i].requires_grad_(True) for i in wrt]
    y = op(*xs)
    return lambda: torch_autograd.grad(y, leaves, g, retain_graph=True)


def our_pass(op: Callable[..., Any], xs: Sequence[Any], wrt: Sequence[int], g: Any = None) -> Call:
    """Forward and backward of `op(*xs)`; returns the result and the gradients of the inputs `wrt`."""
    nodes = [ag.tensor(x, requires_grad=i in wrt) for i, x in enumerate(xs)]

    def run() -> list[Any]:
        for i in wrt:
            nodes[i].grad = None
        with ag.Tape() as tape:
            y = op(*nodes)
        tape.backward(y, g)
        return [y.value, *(nodes[i].grad for i in wrt)]

    return run


def torch_pass(op: Callable[..., Any], xs: Sequence[Any], wrt: Sequence[int], g: Any = None) -> Call:
    """The same in PyTorch."""
    leaves = [xs[i].requires_grad_(True) for i in wrt]
    return lambda: torch_autograd.grad(op(*xs), leaves, g)
