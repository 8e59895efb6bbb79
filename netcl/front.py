"""Tensors in one line: `netcl.tensor`, `netcl.zeros` and their like, on the default device unless a queue is given.

Each takes `queue=` (or `device=`, the same thing): a queue, a device's handle or its name such as "gpu:0" or "cpu". A
queue may come first as well, as everywhere in netcl: `zeros(queue, (2, 3))`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from netcl.core.device.discovery import is_place, queue_of
from netcl.core.dtypes import as_dtype, is_float
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.layout import Shape, as_shape
from netcl.core.protocols import Queue, Value
from netcl.core.tensor import Tensor
from netcl.ops.create import factories, random
from netcl.ops.create.random import Generator as Draws


def default_queue() -> Queue:
    """The queue of this thread's default device: of a `netcl.device(...)` block, else of NETCL_DEVICE or "auto"."""
    return queue_of("netcl.default_queue", None)


def tensor(data: Any, dtype: Any = None, *, queue: Any = None, device: Any = None) -> Tensor:
    """A copy of `data` (numbers, lists, an array, a Tensor) on a device.

    The dtype of an array is kept; Python floats become float32, whole numbers int64. For gradients wrap it in a node:
    `ag.tensor(x, requires_grad=True)`.
    """
    place = _place("tensor", queue, device)
    if isinstance(data, Tensor) or hasattr(data, "value"):
        data = data if isinstance(data, Tensor) else data.value
        copy: Tensor = data.copy() if place is None else data.to(queue_of("netcl.tensor", place))
        return copy if dtype is None else copy.astype(dtype)
    try:
        array = np.asarray(data)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind in "OUSV":
        raise DTypeError(
            f"netcl.tensor: expected numbers in lists of equal lengths, or an array, got {_shown(data)}; "
            "stack tensors with netcl.ops.stack."
        )
    return Tensor.from_host(place, array if isinstance(data, (np.ndarray, np.generic)) else data, dtype)


def empty(*shape: Any, dtype: Any = "float32", queue: Any = None, device: Any = None) -> Tensor:
    """A tensor of `shape` with undefined values: empty(2, 3) or empty((2, 3))."""
    place, sizes = _sizes("empty", shape, queue, device)
    return Tensor.empty(place, sizes, dtype)


def zeros(*shape: Any, dtype: Any = "float32", queue: Any = None, device: Any = None) -> Tensor:
    """A tensor of zeros: zeros(2, 3) or zeros((2, 3))."""
    place, sizes = _sizes("zeros", shape, queue, device)
    return Tensor.zeros(place, sizes, dtype)


def ones(*shape: Any, dtype: Any = "float32", queue: Any = None, device: Any = None) -> Tensor:
    """A tensor of ones: ones(2, 3) or ones((2, 3))."""
    place, sizes = _sizes("ones", shape, queue, device)
    return Tensor.ones(place, sizes, dtype)


def full(*args: Any, dtype: Any = None, queue: Any = None, device: Any = None) -> Tensor:
    """full(shape, value): a tensor of `shape` holding `value`, of dtype float32, int64 or bool by the value."""
    place, rest = _first("full", args, queue, device)
    if len(rest) != 2:
        raise TypeError(f"netcl.full: expected full(shape, value), got {len(rest)} arguments.")
    shape, value = rest
    return Tensor.full(place, as_shape("netcl.full", shape), value, _dtype_for(value, dtype))


def eye(*args: Any, dtype: Any = "float32", queue: Any = None, device: Any = None) -> Tensor:
    """eye(n, m=n, k=0): an n x m matrix of zeros with ones on diagonal `k`."""
    place, rest = _first("eye", args, queue, device)
    n, m, k = _filled("eye(n, m, k)", rest, None, 0)
    return factories.eye(place, n, m, k, dtype)


def arange(*args: Any, dtype: Any = None, queue: Any = None, device: Any = None) -> Tensor:
    """arange(stop) or arange(start, stop, step=1): int64 for whole numbers, else float32."""
    place, rest = _first("arange", args, queue, device)
    start, stop, step = _filled("arange(start, stop, step)", rest, None, 1)
    return factories.arange(place, start, stop, step, dtype)


def linspace(*args: Any, dtype: Any = "float32", queue: Any = None, device: Any = None) -> Tensor:
    """linspace(start, stop, num=50): `num` numbers spread evenly, both ends included."""
    place, rest = _first("linspace", args, queue, device)
    start, stop, num = _filled("linspace(start, stop, num)", rest, None, 50)
    if stop is None:
        raise TypeError("netcl.linspace: expected linspace(start, stop, num), got no stop.")
    return factories.linspace(place, start, stop, num, dtype=dtype)


def rand(
    *shape: Any,
    dtype: Any = "float32",
    generator: Draws | None = None,
    queue: Any = None,
    device: Any = None,
) -> Tensor:
    """Numbers spread evenly over [0, 1): rand(2, 3). `netcl.seed(n)` makes them repeat, the same on every device."""
    place, sizes = _sizes("rand", shape, queue, device)
    return random.uniform(place, sizes, dtype=dtype, generator=generator)


def randn(
    *shape: Any,
    dtype: Any = "float32",
    generator: Draws | None = None,
    queue: Any = None,
    device: Any = None,
) -> Tensor:
    """Numbers from the standard normal distribution: randn(2, 3). `netcl.seed(n)` makes them repeat."""
    place, sizes = _sizes("randn", shape, queue, device)
    return random.normal(place, sizes, dtype=dtype, generator=generator)


def empty_like(x: Value, dtype: Any = None) -> Tensor:
    """A tensor of x's shape, dtype and device with undefined values."""
    return Tensor.empty(x.queue, x.shape, x.dtype if dtype is None else dtype)


def zeros_like(x: Value, dtype: Any = None) -> Tensor:
    """Zeros of x's shape, dtype and device."""
    return Tensor.zeros(x.queue, x.shape, x.dtype if dtype is None else dtype)


def ones_like(x: Value, dtype: Any = None) -> Tensor:
    """Ones of x's shape, dtype and device."""
    return Tensor.ones(x.queue, x.shape, x.dtype if dtype is None else dtype)


def full_like(x: Value, value: Any, dtype: Any = None) -> Tensor:
    """A tensor of x's shape, dtype and device holding `value`."""
    return Tensor.full(x.queue, x.shape, value, x.dtype if dtype is None else dtype)


def rand_like(x: Value, dtype: Any = None, generator: Draws | None = None) -> Tensor:
    """Numbers spread evenly over [0, 1), of x's shape, dtype and device."""
    return random.uniform(x.queue, x.shape, dtype=x.dtype if dtype is None else dtype, generator=generator)


def randn_like(x: Value, dtype: Any = None, generator: Draws | None = None) -> Tensor:
    """Numbers from the standard normal distribution, of x's shape, dtype and device."""
    return random.normal(x.queue, x.shape, dtype=x.dtype if dtype is None else dtype, generator=generator)


def _place(where: str, queue: Any, device: Any) -> Any:
    """The one of `queue` and `device` that is given."""
    if queue is not None and device is not None:
        raise TypeError(f"netcl.{where}: expected a queue or a device, got both; they mean the same.")
    return device if queue is None else queue


def _first(where: str, args: tuple[Any, ...], queue: Any, device: Any) -> tuple[Any, tuple[Any, ...]]:
    """Where to make a tensor, by keyword or as the first argument, and the arguments that are left."""
    place = _place(where, queue, device)
    if args and is_place(args[0]):
        if place is not None:
            raise TypeError(f"netcl.{where}: expected one queue, got one as first argument and one by keyword.")
        place, args = args[0], args[1:]
    return queue_of(f"netcl.{where}", place), args


def _filled(form: str, given: tuple[Any, ...], *defaults: Any) -> tuple[Any, ...]:
    """One argument that is needed and those with defaults. Raises TypeError for none or too many."""
    if not 1 <= len(given) <= 1 + len(defaults):
        raise TypeError(f"netcl.{form.partition('(')[0]}: expected {form}, got {len(given)} arguments.")
    return (*given, *defaults[len(given) - 1 :])


def _sizes(where: str, args: tuple[Any, ...], queue: Any, device: Any) -> tuple[Any, Shape]:
    """Where to make a tensor, and its shape from zeros(2, 3), zeros((2, 3)) or zeros(queue, (2, 3))."""
    place, rest = _first(where, args, queue, device)
    if not rest:
        raise ShapeError(f"netcl.{where}: expected a shape such as {where}(2, 3), got none; one number is {where}(()).")
    return place, as_shape(f"netcl.{where}", rest[0] if len(rest) == 1 else rest)


def _dtype_for(value: Any, dtype: Any) -> Any:
    """The dtype of a tensor full of `value` where none is asked for."""
    if dtype is not None:
        return dtype
    found = np.asarray(value).dtype
    return "float32" if isinstance(value, float) or is_float(found) else as_dtype(found)


def _shown(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 60 else f"{text[:57]}..."
