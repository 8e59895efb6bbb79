"""Indexing by lists, arrays and masks, alone or mixed with integers, slices, None and Ellipsis, by NumPy's rules.

Everything is made of takes, permutations and views, so gradients pass. A tensor of positions stays on its device where
it is the only array of the key; other tensors beside each other, and masks, are read by the host, which waits.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from netcl.core import feel
from netcl.core.dtypes import BOOL, INT32, INT64, is_float
from netcl.core.errors import DTypeError, IndexOutOfRange, ShapeError
from netcl.core.tensor import OPERATIONS, Tensor
from netcl.ops.index.place import index_copy


class Plan(NamedTuple):
    """A key taken apart: the view without its arrays, and one array of positions for each of some of its axes."""

    view: Any
    axes: list[int]
    arrays: list[np.ndarray]
    adjacent: bool


def get(x: Any, key: Any) -> Any:
    """x[key] for a Tensor or a Node."""
    mask = _whole_mask(x, key)
    if mask is not None:
        return x.masked_select(mask)
    alone = _one_tensor(x, key)
    if alone is not None:
        view, axis, index = alone
        return view.take(index, axis)
    plan = _planned(x, key)
    view, axes = plan.view, plan.axes
    if len(axes) == 1:
        return view.take(_indices(view, _wrapped(plan.arrays[0], view.shape[axes[0]])), axes[0])
    shape = np.broadcast_shapes(*(a.shape for a in plan.arrays))
    lengths = [view.shape[a] for a in axes]
    parts = [np.broadcast_to(_wrapped(a, n), shape) for a, n in zip(plan.arrays, lengths)]
    flat = np.zeros(shape, np.int64)
    for part, n in zip(parts, lengths):
        flat = flat * n + part
    others = [a for a in range(len(view.shape)) if a not in axes]
    front = view.permute(*axes, *others).reshape(math.prod(lengths), *(view.shape[a] for a in others))
    found = front.take(_indices(view, flat), 0)
    before = sum(a < axes[0] for a in others) if plan.adjacent else 0
    n, rest = len(shape), range(len(shape), len(shape) + len(others))
    return found.permute(*rest[:before], *range(n), *rest[before:]) if before else found


def put(target: Tensor, key: Any, value: Any) -> None:
    """target[key] = value, in place; where positions repeat the last value stays."""
    mask = _whole_mask(target, key)
    if mask is not None and isinstance(value, (bool, int, float, np.generic)):
        OPERATIONS["assign"](target, target.masked_fill(mask, value))
        return
    first = key[0] if isinstance(key, tuple) and len(key) == 1 else key
    if _is_index(first) and first.queue is target.queue:
        index: Any = getattr(first, "value", first)
        rows = _values(target, value, (*index.shape, *target.shape[1:])).reshape(index.size, *target.shape[1:])
        OPERATIONS["assign"](target, index_copy(target, index.reshape(-1), rows, 0))
        return
    key = _on_host(key)
    if mask is None:  # before NumPy refuses it in words of its own
        plan = _planned(target, key)
        for positions, axis in zip(plan.arrays, plan.axes):
            _wrapped(positions, plan.view.shape[axis])
    places = np.arange(target.size, dtype=np.int64).reshape(target.shape)[key]
    values = _values(target, value, places.shape)
    index = Tensor.from_host(target.queue, places.reshape(-1))
    OPERATIONS["assign"](target, index_copy(target.reshape(-1), index, values.reshape(-1), 0).reshape(target.shape))


def put_view(target: Tensor, key: Any, value: Any) -> None:
    """target[key] = value for a key of integers, slices, None and Ellipsis."""
    view = target.part(key)
    if isinstance(value, (bool, int, float, np.generic)):
        view.fill_(value)
    else:
        OPERATIONS["assign"](view, _values(target, value, view.shape))


def _values(target: Tensor, value: Any, shape: tuple[int, ...]) -> Tensor:
    """What is written, on the target's device, in its dtype and of `shape`."""
    value = getattr(value, "value", value)
    source = value.to(target.queue) if isinstance(value, Tensor) else Tensor.from_host(target.queue, value)
    if is_float(source.dtype) and not is_float(target.dtype):
        raise DTypeError(f"assignment: expected values that {target.dtype} holds, got {source.dtype}; use astype.")
    try:
        np.broadcast_to(np.empty(()), shape), np.broadcast_shapes(source.shape, shape)
        fits = np.broadcast_shapes(source.shape, shape) == tuple(shape)
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(f"assignment: expected values that broadcast to {tuple(shape)}, got shape {source.shape}.")
    return source.astype(target.dtype).expand(shape).contiguous()


def _is_index(k: Any) -> bool:
    """Whether a key is a tensor of positions as takes read them."""
    return hasattr(k, "to_host") and k.dtype in (INT32, INT64)


def _one_tensor(x: Any, key: Any) -> tuple[Any, int, Any] | None:
    """The view, its axis and the positions, where one tensor of positions is the only array of a key."""
    keys = key if isinstance(key, tuple) else (key,)
    arrays = [k for k in keys if _is_array(k)]
    if len(arrays) != 1 or not _is_index(arrays[0]) or arrays[0].queue is not x.queue:
        return None
    keys, index = tuple(_expanded(x, keys)), arrays[0]
    index = getattr(index, "value", index) if isinstance(x, Tensor) else index
    place = next(i for i, k in enumerate(keys) if _is_array(k))
    if any(not (k is None or isinstance(k, (slice, type(arrays[0])))) for k in keys):
        return None  # an integer counts as an array beside another one
    return x[tuple(slice(None) if i == place else k for i, k in enumerate(keys))], place, index


def _is_array(k: Any) -> bool:
    return isinstance(k, (list, np.ndarray)) or hasattr(k, "to_host")


def _whole_mask(x: Any, key: Any) -> Any:
    """The key as a mask of the shape of `x` on its device; None for all else."""
    key = key[0] if isinstance(key, tuple) and len(key) == 1 else key
    if hasattr(key, "to_host"):
        return getattr(key, "value", key) if key.dtype == BOOL and key.shape == x.shape else None
    if isinstance(key, (list, np.ndarray)):
        array = np.asarray(key)
        return Tensor.from_host(x.queue, array) if array.dtype == BOOL and array.shape == x.shape else None
    return None


def _on_host(key: Any) -> Any:
    keys = tuple(k.to_host() if hasattr(k, "to_host") else k for k in (key if isinstance(key, tuple) else (key,)))
    return keys if isinstance(key, tuple) else keys[0]


def _planned(x: Any, key: Any) -> Plan:
    """Raises ShapeError for keys that are none, DTypeError for arrays of fractions."""
    keys = list(_expanded(x, key if isinstance(key, tuple) else (key,)))
    basic: list[Any] = []
    arrays: list[tuple[int, int, np.ndarray]] = []  # place in the key, axis of the view, positions
    axis = at = 0  # of the view, and of x
    for place, k in enumerate(keys):
        if k is None or isinstance(k, slice):
            basic.append(k)
            axis, at = axis + 1, at + (k is not None)
        else:
            at += _check_mask(k, x.shape[at:])
            for one in _positions(k):
                basic.append(slice(None))
                arrays.append((place, axis, one))
                axis += 1
    places = sorted({p for p, _, _ in arrays})
    adjacent = places == list(range(places[0], places[-1] + 1))
    view = x[tuple(basic)]
    return Plan(view, [a for _, a, _ in arrays], [one for _, _, one in arrays], adjacent)


def _expanded(x: Any, keys: tuple[Any, ...]) -> list[Any]:
    """The keys with slices in the place of Ellipsis, one for each axis at the end that has none."""
    taken = sum(0 if k is None or k is Ellipsis else _axes_of(k) for k in keys)
    left = len(x.shape) - taken
    if left < 0 or sum(k is Ellipsis for k in keys) > 1:
        raise ShapeError(f"indexing: expected at most {len(x.shape)} indices and one '...', got {taken}.")
    found: list[Any] = []
    for k in keys if any(k is Ellipsis for k in keys) else (*keys, Ellipsis):
        found += [slice(None)] * left if k is Ellipsis else [k]
    return found


def _check_mask(k: Any, shape: tuple[int, ...]) -> int:
    """How many axes of `shape` a key takes. Raises ShapeError for a mask of another shape than theirs."""
    axes = _axes_of(k)
    lengths = tuple(k.shape) if hasattr(k, "to_host") else np.shape(k)
    is_mask = k.dtype == BOOL if hasattr(k, "to_host") else np.asarray(k).dtype == BOOL
    if is_mask and _is_array(k) and lengths != tuple(shape[:axes]):
        raise ShapeError(
            f"indexing: expected a mask of shape {tuple(shape[:axes])}, as the axes it is for, got {lengths}."
        )
    return axes


def _axes_of(k: Any) -> int:
    """How many axes a key takes."""
    if hasattr(k, "to_host"):
        return len(k.shape) if k.dtype == BOOL else 1
    return np.ndim(k) if isinstance(k, (list, np.ndarray)) and np.asarray(k).dtype == BOOL else 1


def _positions(k: Any) -> tuple[np.ndarray, ...]:
    """Integer arrays of a key, one for each axis that it takes."""
    if isinstance(k, (bool, np.bool_)):
        raise ShapeError(f"indexing: expected integers, slices, None, '...', lists or arrays, got {k!r}.")
    array = k.to_host() if hasattr(k, "to_host") else np.asarray(k)
    if array.size == 0 and isinstance(k, list):
        array = array.astype(np.int64)
    if array.dtype == BOOL:
        return tuple(np.nonzero(array))
    if array.dtype.kind not in "iu":
        raise DTypeError(f"indexing: expected whole numbers or booleans, got {array.dtype}; use astype.")
    return (array.astype(np.int64),)


def _wrapped(positions: np.ndarray, n: int) -> np.ndarray:
    """Positions from the start. Raises IndexOutOfRange outside [-n, n)."""
    wrong = (positions < -n) | (positions >= n)
    if wrong.any():
        raise IndexOutOfRange(f"indexing: expected indices in [{-n}, {n}), got {positions[wrong].reshape(-1)[0]}.")
    return np.where(positions < 0, positions + n, positions)


def _indices(x: Any, positions: np.ndarray) -> Tensor:
    return Tensor.from_host(x.queue, positions)


feel.INDEXING.update(get=get, put=put, put_view=put_view)
