"""Sorting along an axis: stable, NaN last in either direction, -0 equal to 0. The order is found, values follow it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from netcl.core import layout
from netcl.core.backend import cpu
from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import C_NAME, INT64, DType, compute_dtype, is_float
from netcl.core.errors import ShapeError
from netcl.core.memory import empty_buffer
from netcl.core.tensor import Tensor, allocate
from netcl.kernels import route, sources
from netcl.kernels.grid import GROUP, like
from netcl.kernels.plans import remember
from netcl.kernels.program import program
from netcl.kernels.route import FIRST, LAST, Route, choose, declare
from netcl.ops.index.pick import gather

SORT = declare("sort", "serial", "merge")
LONGEST = 1 << 29  # of a row: positions inside it are 32-bit
PAIRS = 8  # of a GPU's work-item: EACH of sort.cl
SMALL = 1 << 17  # pairs up to which launches cost a GPU more than searching many runs at once
Order = Callable[[Tensor], Tensor]


def argsort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """Positions that sort `x` along `axis`, as int64: equal elements keep their order, NaN comes last."""
    axis = layout.as_axis("argsort", axis, x.ndim)
    if x.backend == "cpu":
        if route.special:
            route.sole(SORT)
        return cpu.compute(_numpy_order, x, axis=axis, descending=descending)
    if x.size == 0:
        return allocate(x.queue, x.shape, INT64)
    if x.shape[axis] > LONGEST:
        raise ShapeError(f"sort: expected at most {LONGEST} elements along axis {axis}, got shape {x.shape}.")
    others = [a for a in range(x.ndim) if a != axis]
    lengths = tuple(x.shape[a] for a in others)
    order = order_of_rows(x.permute(*others, axis).reshape(-1, x.shape[axis]), descending)
    back = [*range(axis), x.ndim - 1, *range(axis, x.ndim - 1)]
    return order.reshape(*lengths, x.shape[axis]).permute(*back)


def sort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """`x` sorted along `axis`, NaN last in either direction."""
    return gather(x, argsort(x, axis, descending), axis)


def topk(x: Tensor, k: int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The `k` largest (or smallest) elements along `axis` in order, and their positions (int64).

    Of equal elements the first come first; NaN counts as neither large nor small and comes last. Raises ShapeError for
    k outside [0, length].
    """
    axis = layout.as_axis("topk", axis, x.ndim)
    if not 0 <= layout.as_int("topk", k, "k") <= x.shape[axis]:
        raise ShapeError(f"topk: expected k in [0, {x.shape[axis]}] for axis {axis} of {x.shape}, got {k}.")
    indices = argsort(x, axis, descending=largest)[(slice(None),) * axis + (slice(k),)]
    return gather(x, indices, axis), indices.contiguous()


def _numpy_order(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    if descending:
        x = -x if is_float(x.dtype) else ~x  # NaN stays last; ~ reverses integers without overflow
    return np.argsort(x, axis, kind="stable").astype(np.int64, copy=False)


def order_of_rows(x: Tensor, descending: bool = False) -> Tensor:
    """The stable order of each row of `x` (rows, n) on a device, as int64."""
    return remember(x.queue, ("sort", descending, route.mode, *like(x)), lambda: _plan(x, descending))(x)


def _plan(x: Tensor, descending: bool) -> Order:
    profile, (rows, n) = profile_of(x.queue), x.shape
    facts = {"x_r": x.strides[0], "x_k": x.strides[1], "rows": rows, "n": n, "descending": int(descending)}
    on_cpu = profile.kind == "cpu"
    rows_cost, blocks_cost = (FIRST, LAST) if on_cpu else (LAST, FIRST)
    serial, merge = (lambda: _by_rows(x, facts, profile)), (lambda: _by_blocks(x, facts, profile))
    one = Route(rows_cost, "serial", serial, "" if on_cpu else "few items sort alone")
    other = Route(blocks_cost, "merge", merge, "barriers cost a CPU" if on_cpu else "")
    order: Order = choose(SORT, [one, other])
    return order


def _by_rows(x: Tensor, facts: dict[str, int], profile: DeviceProfile) -> Order:
    """An item sorts whole rows."""
    queue, (rows, n) = x.queue, x.shape
    items = min(rows, 4 * profile.compute_units)
    made = program(queue, _source(x.dtype, PLAIN=1), "sort_rows", ("-w",))
    launch, size = made.bind((items,), (1,), {"order": (x.shape, INT64)}, **facts), items * 2 * n * _pair_size(x.dtype)
    return lambda x: launch(x=x, scratch=empty_buffer(queue, size))


def _by_blocks(x: Tensor, facts: dict[str, int], profile: DeviceProfile) -> Order:
    """Sort blocks of a group each, then merge runs of them."""
    queue, (rows, n), size = x.queue, x.shape, _pair_size(x.dtype)
    padded = 1 << max(n - 1, 1).bit_length()
    most = GROUP // 2 if padded <= GROUP // 2 * PAIRS else GROUP
    group = profile.group(min(most, profile.local_mem // ((PAIRS + 1) * size)))
    block = PAIRS * group
    total = -(-rows * padded // block) * block
    source = _source(x.dtype, WG=group)
    made = program(queue, source, "sort_blocks", ("-w",))
    sort = made.bind((total // PAIRS,), (group,), {"order": (x.shape, INT64)}, **facts, padded=padded)
    made, merges = program(queue, source, "merge_runs", ("-w",)), []
    while block < padded:
        fan = min(32 if total <= SMALL else 4, padded // block)
        merges.append(made.bind((total,), (group,), rows=rows, n=n, padded=padded, run=block, fan=fan))
        block *= fan
    scratch = total * size if merges else 4

    def run(x: Tensor) -> Tensor:
        pairs, merged = empty_buffer(queue, scratch), empty_buffer(queue, scratch)
        order: Tensor = sort(x=x, pairs=pairs)
        for merge in merges:
            merge(pairs=pairs, merged=merged, order=order.buffer)
            pairs, merged = merged, pairs
        return order

    return run


def _pair_size(dtype: DType) -> int:
    return 8 if dtype.itemsize < 8 else 16


@cache
def _source(dtype: DType, **sizes: int) -> str:
    """The program that sorts values of `dtype`: PLAIN on CPU devices, else in groups of WG items."""
    wide, floating = dtype.itemsize == 8, is_float(dtype)
    key = "ulong" if wide else "uint"
    # small integers are widened before they become keys
    compute = C_NAME[compute_dtype(dtype)] if floating or wide else "int"
    more: dict[str, Any] = {"WIDE": 1, **sizes} if wide else sizes
    return sources.load(
        "sort.cl", S=C_NAME[dtype], T=compute, FLOATING=int(floating), KEY=key, AS_KEY=f"as_{key}", **more
    )
