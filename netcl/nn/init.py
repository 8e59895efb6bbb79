"""Initial values: functions that make a tensor, and the same with a trailing underscore that fill a parameter in place.

Random ones draw from the generator of `netcl.ops.random` (the same numbers on every device; `netcl.seed` starts it), or
from `generator`. fan_in is the number of inputs of one output: in_features, or in_channels / groups times the kernel's
area.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np

from netcl.autograd.node import Node
from netcl.core.device import queue_of
from netcl.core.errors import CheckpointError, ShapeError
from netcl.core.layout import as_shape
from netcl.core.tensor import Tensor
from netcl.ops import elementwise
from netcl.ops.create import random

Shape = tuple[int, ...]
_SQRT_2 = math.sqrt(2.0)
_NUMBERS_PER_TENSOR = 64  # at least, since the object around it takes memory, too
_SPARE_NUMBERS = 1 << 16  # that may always be made
_left: ContextVar[list[int] | None] = ContextVar("left", default=None)


@contextlib.contextmanager
def limited(shapes: Iterable[Shape]) -> Iterator[None]:
    """Inside, make no more numbers than twice those of tensors of `shapes`, and some more; raises CheckpointError.

    Filling in place does not count.
    """
    token = _left.set([_SPARE_NUMBERS + 2 * sum(max(math.prod(shape), _NUMBERS_PER_TENSOR) for shape in shapes)])
    try:
        yield
    finally:
        _left.reset(token)


def _claim(shape: Shape) -> None:
    """Count a tensor about to be made."""
    left = _left.get()
    if left is not None:
        left[0] -= max(math.prod(as_shape("init", shape)), _NUMBERS_PER_TENSOR)
        if left[0] < 0:
            raise CheckpointError(
                f"load: expected an architecture of the size of the file's tensors, got one that asks for {shape} and "
                "more; the file was not written by save_model."
            )


def fans(shape: Shape) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight (out, in, kernel...)."""
    if len(shape) < 2:
        raise ShapeError(f"init: expected a weight with at least two axes, got shape {shape}.")
    area = math.prod(shape[2:])
    return shape[1] * area, shape[0] * area


def gain(nonlinearity: str, a: float = 0.0) -> float:
    """What keeps the variance after a nonlinearity; `a` is the slope of leaky_relu."""
    known = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3, "relu": _SQRT_2, "selu": 0.75}
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1 + a * a))
    if nonlinearity not in known:
        choices = ", ".join([*known, "leaky_relu"])
        raise ValueError(f"init: expected a nonlinearity among {choices}, got {nonlinearity!r}.")
    return known[nonlinearity]


def zeros(queue: Any, shape: Shape, *, dtype: Any = "float32") -> Tensor:
    """All 0."""
    _claim(shape)
    return Tensor.zeros(queue, shape, dtype)


def ones(queue: Any, shape: Shape, *, dtype: Any = "float32") -> Tensor:
    """All 1."""
    _claim(shape)
    return Tensor.ones(queue, shape, dtype)


def constant(queue: Any, shape: Shape, value: float, *, dtype: Any = "float32") -> Tensor:
    """All `value`."""
    _claim(shape)
    return Tensor.full(queue, shape, value, dtype)


def uniform(
    queue: Any, shape: Shape, low: float = 0.0, high: float = 1.0, *, dtype: Any = "float32", generator: Any = None
) -> Tensor:
    """Uniform in [low, high)."""
    _claim(shape)
    return random.uniform(queue, shape, low, high, dtype=dtype, generator=generator)


def normal(
    queue: Any, shape: Shape, mean: float = 0.0, std: float = 1.0, *, dtype: Any = "float32", generator: Any = None
) -> Tensor:
    """Normal with the given mean and standard deviation."""
    _claim(shape)
    return random.normal(queue, shape, mean, std, dtype=dtype, generator=generator)


def trunc_normal(
    queue: Any,
    shape: Shape,
    mean: float = 0.0,
    std: float = 1.0,
    low: float = -2.0,
    high: float = 2.0,
    *,
    dtype: Any = "float32",
    generator: Any = None,
) -> Tensor:
    """Normal, with values outside [low, high] drawn again (on the host)."""
    if not low < high:
        raise ValueError(f"trunc_normal: expected low < high, got {low} and {high}.")
    _claim(shape)
    queue = queue_of("trunc_normal", queue)
    size, found = math.prod(shape), np.empty(0)
    for _ in range(1000):
        draws = random.normal(queue, (max(2 * size, 64),), mean, std, generator=generator).to_host()
        found = np.concatenate([found, draws[(draws >= low) & (draws <= high)]])
        if found.size >= size:
            return Tensor.from_host(queue, found[:size].reshape(shape), dtype)
    raise ValueError(
        f"trunc_normal: expected [{low}, {high}] to hold draws of mean {mean} and std {std}, found too few."
    )


def xavier_uniform(
    queue: Any, shape: Shape, gain: float = 1.0, *, dtype: Any = "float32", generator: Any = None
) -> Tensor:
    """Uniform in +-gain * sqrt(6 / (fan_in + fan_out)). Source: Glorot and Bengio 2010."""
    bound = gain * math.sqrt(6.0 / sum(fans(shape)))
    return uniform(queue, shape, -bound, bound, dtype=dtype, generator=generator)


def xavier_normal(
    queue: Any, shape: Shape, gain: float = 1.0, *, dtype: Any = "float32", generator: Any = None
) -> Tensor:
    """Normal with std gain * sqrt(2 / (fan_in + fan_out)). Source: Glorot and Bengio 2010."""
    return normal(queue, shape, 0.0, gain * math.sqrt(2.0 / sum(fans(shape))), dtype=dtype, generator=generator)


def _kaiming_std(shape: Shape, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"init: expected mode 'fan_in' or 'fan_out', got {mode!r}.")
    return gain(nonlinearity, a) / math.sqrt(fans(shape)[mode == "fan_out"])


def kaiming_uniform(
    queue: Any,
    shape: Shape,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    *,
    dtype: Any = "float32",
    generator: Any = None,
) -> Tensor:
    """Uniform in +-gain * sqrt(3 / fan), gain = sqrt(2 / (1 + a^2)). Source: He et al. 2015, arXiv:1502.01852."""
    bound = math.sqrt(3.0) * _kaiming_std(shape, a, mode, nonlinearity)
    return uniform(queue, shape, -bound, bound, dtype=dtype, generator=generator)


def kaiming_normal(
    queue: Any,
    shape: Shape,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    *,
    dtype: Any = "float32",
    generator: Any = None,
) -> Tensor:
    """Normal with std gain / sqrt(fan), gain = sqrt(2 / (1 + a^2)). Source: He et al. 2015, arXiv:1502.01852."""
    return normal(queue, shape, 0.0, _kaiming_std(shape, a, mode, nonlinearity), dtype=dtype, generator=generator)


def orthogonal(queue: Any, shape: Shape, gain: float = 1.0, *, dtype: Any = "float32", generator: Any = None) -> Tensor:
    """Rows (or columns, whichever are fewer) orthonormal times gain, by QR on the host. Source: arXiv:1312.6120."""
    if len(shape) < 2:
        raise ShapeError(f"orthogonal: expected a weight with at least two axes, got shape {shape}.")
    _claim(shape)
    rows, cols = shape[0], math.prod(shape[1:])
    draws = random.normal(queue, (max(rows, cols), min(rows, cols)), generator=generator).to_host().astype(np.float64)
    q, r = np.linalg.qr(draws)
    q = q * np.sign(np.diag(r))
    return Tensor.from_host(queue, (gain * (q if rows >= cols else q.T)).reshape(shape), dtype)


# -- the same in place -------------------------------------------------------------------------------------------------

Target = TypeVar("Target", bound=Tensor | Node)


def _fill(target: Target, make: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Target:
    """Write what `make` makes into a parameter or tensor; returns it."""
    value = target if isinstance(target, Tensor) else target.value
    token = _left.set(None)
    try:
        elementwise.assign(value, make(value.queue, value.shape, *args, dtype=value.dtype, **kwargs))
    finally:
        _left.reset(token)
    return target


def zeros_(target: Target) -> Target:
    """Every element 0, in place. Returns `target`."""
    return _fill(target, zeros)


def ones_(target: Target) -> Target:
    """Every element 1, in place. Returns `target`."""
    return _fill(target, ones)


def constant_(target: Target, value: float) -> Target:
    """Every element `value`, in place. Returns `target`."""
    return _fill(target, constant, value)


def uniform_(target: Target, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Target:
    """Uniform in [low, high), in place: see `uniform`. Returns `target`."""
    return _fill(target, uniform, low, high, generator=generator)


def normal_(target: Target, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Target:
    """Normal with the given mean and standard deviation, in place: see `normal`. Returns `target`."""
    return _fill(target, normal, mean, std, generator=generator)


def trunc_normal_(
    target: Target, mean: float = 0.0, std: float = 1.0, low: float = -2.0, high: float = 2.0, *, generator: Any = None
) -> Target:
    """Normal within [low, high], in place: see `trunc_normal`. Returns `target`."""
    return _fill(target, trunc_normal, mean, std, low, high, generator=generator)


def xavier_uniform_(target: Target, gain: float = 1.0, *, generator: Any = None) -> Target:
    """Uniform in +-gain * sqrt(6 / (fan_in + fan_out)), in place: see `xavier_uniform`. Returns `target`."""
    return _fill(target, xavier_uniform, gain, generator=generator)


def xavier_normal_(target: Target, gain: float = 1.0, *, generator: Any = None) -> Target:
    """Normal with std gain * sqrt(2 / (fan_in + fan_out)), in place: see `xavier_normal`. Returns `target`."""
    return _fill(target, xavier_normal, gain, generator=generator)


def kaiming_uniform_(
    target: Target, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", *, generator: Any = None
) -> Target:
    """Uniform in +-gain * sqrt(3 / fan), in place: see `kaiming_uniform`. Returns `target`."""
    return _fill(target, kaiming_uniform, a, mode, nonlinearity, generator=generator)


def kaiming_normal_(
    target: Target, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", *, generator: Any = None
) -> Target:
    """Normal with std gain / sqrt(fan), in place: see `kaiming_normal`. Returns `target`."""
    return _fill(target, kaiming_normal, a, mode, nonlinearity, generator=generator)


def orthogonal_(target: Target, gain: float = 1.0, *, generator: Any = None) -> Target:
    """Orthonormal rows or columns times gain, in place: see `orthogonal`. Returns `target`."""
    return _fill(target, orthogonal, gain, generator=generator)
