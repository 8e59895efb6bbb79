"""The NumPy backend: every computation goes through `compute` or `update`, so that a recording can replay it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np

from netcl.core import live
from netcl.core.dtypes import SUPPORTED
from netcl.core.errors import DTypeError, OutOfMemoryError
from netcl.core.host_memory import exhausted
from netcl.core.layout import contiguous_strides
from netcl.core.protocols import Queue
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor

__all__ = ["CPUQueue", "compute", "hooks", "update", "wrap"]

hooks: list[Callable[..., None]] = []  # called as hook(fn, targets, tensors, attrs, in_place, start)


def wrap(queue: Queue, array: np.ndarray) -> Tensor:
    """`array` as a tensor of `queue`; copies only what is not contiguous."""
    if array.dtype not in SUPPORTED:
        raise DTypeError(f"NumPy backend: expected a supported dtype, got {array.dtype}.")
    flat = np.ascontiguousarray(array).reshape(-1)
    return Tensor(flat, array.shape, contiguous_strides(array.shape), 0, array.dtype, queue)


@overload
def compute(fn: Callable[..., np.ndarray], *tensors: Tensor, queue: Queue | None = None, **attrs: Any) -> Tensor: ...
@overload
def compute(
    fn: Callable[..., tuple[np.ndarray, ...]], *tensors: Tensor, queue: Queue | None = None, **attrs: Any
) -> tuple[Tensor, ...]: ...
def compute(fn: Callable[..., Any], *tensors: Tensor, queue: Queue | None = None, **attrs: Any) -> Any:
    """Run `fn(*arrays, **attrs)` and return its array, or tuple of arrays, as new tensors.

    `queue` is needed only when no tensor is given. Attributes may be `rebind.Cell`s, read at each use. Floating-point
    warnings are silenced: NaN and infinity are values.
    """
    queue = queue or tensors[0].queue
    start = time.perf_counter() if hooks else 0.0
    try:
        with np.errstate(all="ignore"):
            result = fn(*[t.array for t in tensors], **live.resolve(attrs))
    except MemoryError as error:
        raise _exhausted(fn, error) from error
    many = isinstance(result, tuple)
    arrays = [np.asarray(r) for r in (result if many else (result,))]
    taken = _owners([t.buffer for t in tensors])
    fresh = [a.copy() if owner in taken else a for a, owner in zip(arrays, _owners(arrays))]  # ops return new tensors
    outputs = tuple([wrap(queue, array) for array in fresh])
    for hook in hooks:
        hook(fn, outputs, tensors, attrs, False, start)
    return outputs if many else outputs[0]


def _exhausted(fn: Callable[..., Any], error: MemoryError) -> OutOfMemoryError:
    """`error` in our words."""
    name = getattr(fn, "__name__", type(fn).__name__).strip("_")
    return error if isinstance(error, OutOfMemoryError) else exhausted("NumPy backend", f"what {name} makes ({error})")


def _owners(arrays: Sequence[np.ndarray]) -> list[int]:
    """For each array the id of the one that holds its memory."""
    found = []
    for array in arrays:
        while isinstance(array.base, np.ndarray):
            array = array.base
        found.append(id(array))
    return found


def update(fn: Callable[..., Any], targets: Sequence[Tensor], *tensors: Tensor, **attrs: Any) -> None:
    """Run `fn(*target_arrays, *arrays, **attrs)`, whose results (one per target) replace the targets' values."""
    start = time.perf_counter() if hooks else 0.0
    try:
        with np.errstate(all="ignore"):
            arrays = [t.array for t in (*targets, *tensors)]
            results = fn(*arrays, **live.resolve(attrs))
    except MemoryError as error:
        raise _exhausted(fn, error) from error
    results = results if isinstance(results, tuple) else (results,)
    for array, result in zip(arrays[: len(targets)], results, strict=True):
        array[...] = result
    for hook in hooks:
        hook(fn, tuple(targets), tensors, attrs, True, start)


class CPUBackend:
    """The same for NumPy: memory is an array, and everything is done when a call returns."""

    name = "cpu"

    def __init__(self, queue: Any = None) -> None:
        self.queue: Queue = CPUQueue() if queue is None else queue

    def launch(self, fn: Callable[..., Any], *tensors: Tensor, **attrs: Any) -> Any:
        """Run `fn(*arrays, **attrs)`; its arrays as tensors."""
        return compute(fn, *tensors, queue=self.queue, **attrs)

    def write(self, buffer: np.ndarray, array: np.ndarray, offset: int = 0) -> None:
        """Copy `array` to the memory `buffer` at byte `offset`."""
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        buffer.reshape(-1).view(np.uint8)[offset : offset + flat.size] = flat

    def read(self, buffer: np.ndarray, array: np.ndarray, offset: int = 0) -> np.ndarray:
        """Copy the memory `buffer` from byte `offset` into the contiguous `array`, and return it."""
        flat = array.reshape(-1).view(np.uint8)
        flat[:] = buffer.reshape(-1).view(np.uint8)[offset : offset + flat.size]
        return array

    def finish(self) -> None:
        """Nothing is ever waiting."""
