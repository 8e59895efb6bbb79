"""What values there are, and how many: bincount, unique, histograms. Sums run in a fixed order."""

from __future__ import annotations

import math
from typing import Any

from netcl.core import layout
from netcl.core.backend.opencl import arm_flag, flag_buffer
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import (
    BOOL,
    C_NAME,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    DType,
    as_dtype,
    common_dtype,
    compute_dtype,
    is_float,
)
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.live import sized_by_data
from netcl.core.protocols import Launch
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor, same_queue
from netcl.kernels import sources
from netcl.kernels.grid import FAR, GROUP, is_wide, like
from netcl.kernels.plans import remember
from netcl.kernels.program import program
from netcl.ops.create.factories import linspace
from netcl.ops.elementwise import cast, div, mul, ne, sub
from netcl.ops.index.find import nonzero
from netcl.ops.index.pick import check_index_dtype, take, three
from netcl.ops.index.place import index_copy
from netcl.ops.index.scan import cumsum
from netcl.ops.index.scatter import Addition, added
from netcl.ops.index.search import bin_of
from netcl.ops.index.sort import argsort
from netcl.ops.movement import concat
from netcl.ops.reduction import any as any_of
from netcl.ops.reduction import reduce

PART = 1 << 12  # positions that a CPU device's item counts at least
NEAR_BYTES = 1 << 14  # of local memory that a GPU's group counts in
GROUPS = 8  # that count at once, for each compute unit


def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each position occurs in `x` (one axis, int32 or int64), or the sum of its `weights`.

    The result has max(x) + 1 elements, at least `minlength`, and the dtype of the weights, int64 without. Its length
    depends on the data: on a device this waits for the queue to read the largest. Raises IndexOutOfRange for negative
    ones, ShapeError, DTypeError.
    """
    sized_by_data("bincount", "add ones up by index_add on a tensor of fixed length")
    given = (x,) if weights is None else (x, weights)
    same_queue("bincount", *given)
    check_index_dtype("bincount", x)
    if x.ndim != 1 or given[-1].shape != x.shape:
        raise ShapeError(f"bincount: expected x, and weights, of one axis and length, got {[t.shape for t in given]}.")
    _check_weights("bincount", weights)
    length = layout.as_int("bincount", minlength, "minlength", 0)
    if x.size == 0:
        return Tensor.zeros(x.queue, (length,), INT64 if weights is None else weights.dtype)
    return counted("bincount", x, weights, max(length, int(reduce(x, "max").item()) + 1, 1))


def counted(name: str, x: Tensor, weights: Tensor | None, length: int) -> Tensor:
    """How often each position below `length` occurs in `x` (one axis), or the sum of its weights.

    GPUs count by atomics, whose sums of whole numbers are the same in every order; CPU devices count long x in parts,
    whose sums are added in order.
    """
    queue, profile = x.queue, profile_of(x.queue)
    if weights is None and profile.kind != "numpy" and 0 < x.size < FAR and length < FAR:
        parts = min(4 * profile.compute_units, x.size // max(length, PART)) if profile.kind == "cpu" else 1
        out = Tensor.zeros(queue, (max(parts, 1), length), INT32)
        launch = remember(queue, ("count", length, *like(x)), lambda: _count_plan(x, *out.shape))
        launch(index=x, out=out.buffer, code=arm_flag(queue, name))
        return cast(out.reshape(length), INT64) if parts <= 1 else reduce(out, "sum", 0)
    src = Tensor.ones(queue, x.shape, INT64) if weights is None else weights
    job = Addition(name, (length,), 0, x.reshape(1, -1, 1), three(src, 0), strict=True)
    return added(job)


def _count_plan(x: Tensor, parts: int, length: int) -> Launch[Any]:
    """The launch that counts the positions in `x`."""
    queue, profile = x.queue, profile_of(x.queue)
    on_cpu, slots = profile.kind == "cpu", 1 << max(length - 1, 1).bit_length()
    near = {"SLOTS": slots} if 4 * slots <= min(NEAR_BYTES, profile.local_mem) else {}
    width = "long" if is_wide(profile, x, parts * length) else "int"
    how = {"PLAIN": 1} if on_cpu else near
    made = program(queue, sources.load("index.cl", "count.cl", INDEX=C_NAME[x.dtype], I=width, **how), "count", ("-w",))
    group = 1 if on_cpu else profile.group(GROUP)
    groups = parts if on_cpu else min(-(-x.size // group), GROUPS * profile.compute_units)
    facts = {"flag": flag_buffer(queue), "i_k": x.strides[0], "n": length, "size": x.size, "span": -(-x.size // parts)}
    return made.bind((groups * group,), (group,), **facts)


def _check_weights(name: str, weights: Tensor | None) -> None:
    if weights is not None and weights.dtype == BOOL:
        raise DTypeError(f"{name}: expected weights that are numbers, got bool; convert with astype.")


# -- unique ------------------------------------------------------------------------------------------------------------


def unique(
    x: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    return_index: bool = False,
) -> Any:
    """The different elements of `x` in rising order; with an axis, its different slices in that order.

    Where not `sorted`, in the order in which they first occur. Alone, or a tuple with what is asked for: where each
    occurs first (index), the position of each element or slice among them (inverse, of the shape of x, or one axis),
    how often each occurs (counts), all int64. Every NaN differs from all others, and comes last; -0 equals 0. Their
    number depends on the data: on a device this waits for the queue.
    """
    sized_by_data("unique", "find the different ones outside of the step")
    same_queue("unique", x)
    axis = None if axis is None else layout.as_axis("unique", axis, x.ndim)
    wanted = {"index": return_index, "inverse": return_inverse, "counts": return_counts}
    found = _nothing(x, axis) if x.size == 0 else _different(x, axis, sorted, return_inverse)
    given = [found["values"], *(found[name] for name, wants in wanted.items() if wants)]
    return given[0] if len(given) == 1 else tuple(given)


def _different(x: Tensor, axis: int | None, sorted: bool, inverse: bool) -> dict[str, Tensor]:
    """What `unique` gives, by name."""
    if axis is None:
        lines, order = x.reshape(-1, 1), argsort(x.reshape(-1))
    else:
        lines = x.permute(axis, *(a for a in range(x.ndim) if a != axis)).reshape(x.shape[axis], -1)
        order = _order_of_lines(lines)
    ranked, n = take(lines, order, 0), lines.shape[0]
    starts = concat([Tensor.ones(x.queue, (1,), BOOL), any_of(ne(ranked[1:], ranked[:-1]), 1)], 0)
    firsts = nonzero(starts).reshape(-1)
    index = take(order, firsts, 0)  # equal ones keep their order, so these are the first
    counts = sub(concat([firsts[1:], Tensor.full(x.queue, (1,), n, INT64)], 0), firsts)
    group = sub(cumsum(starts), 1)
    if not sorted:
        by_index = argsort(index)
        group = take(argsort(by_index), group, 0)
        index, counts = take(index, by_index, 0), take(counts, by_index, 0)
    found = {"index": index, "counts": counts}
    found["values"] = take(x.reshape(-1), index, 0) if axis is None else take(x, index, axis)
    if inverse:
        places = index_copy(Tensor.zeros(x.queue, (n,), INT64), order, group)
        found["inverse"] = places.reshape(x.shape) if axis is None else places
    return found


def _order_of_lines(lines: Tensor) -> Tensor:
    """The order of lines (n, m) by their first element, then the second, ...: stable sorts from the last one on."""
    order = argsort(lines[:, -1])
    for column in reversed(range(lines.shape[1] - 1)):
        order = take(order, argsort(take(lines[:, column], order, 0)), 0)
    return order


def _nothing(x: Tensor, axis: int | None) -> dict[str, Tensor]:
    """`unique` of no elements. All slices without elements are equal, so one of them is left."""
    many = 0 if axis is None else x.shape[axis]
    left = x.reshape(-1) if axis is None else x[(slice(None),) * axis + (slice(0, min(many, 1)),)]
    inverse = Tensor.zeros(x.queue, x.shape if axis is None else (many,), INT64)
    index, counts = (Tensor.full(x.queue, (min(many, 1),), n, INT64) for n in (0, many))
    return {"values": left, "index": index, "inverse": inverse, "counts": counts}


# -- histograms --------------------------------------------------------------------------------------------------------


def histogram(
    x: Tensor,
    bins: int | Tensor = 10,
    range: tuple[float, float] | None = None,
    weights: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    """How many elements of `x` lie in each bin, and the edges of the bins (as NumPy's histogram).

    Bin i holds edges[i] <= x < edges[i + 1], the last one its upper edge as well; what lies outside, and NaN, is left
    out. `bins` is a number of bins of one width over `range`, by default from the smallest element to the largest (then
    a device waits for them); or rising edges (n + 1,). The counts are int64, or sums of the `weights` (of the shape of
    x) in their dtype; with `density` shares per width of the bin, whose integral is 1.
    Raises ShapeError, ValueError for a range that is not finite or falls.
    """
    same_queue("histogram", x, *(t for t in (bins, weights) if isinstance(t, Tensor)))
    if weights is not None and weights.shape != x.shape:
        raise ShapeError(f"histogram: expected weights of the shape {x.shape}, got {weights.shape}.")
    _check_weights("histogram", weights)
    edges = _edges("histogram", x, bins, range)
    counts = _in_bins("histogram", x, edges, weights)
    if density:
        dtype = common_dtype(edges.dtype, weights.dtype) if weights is not None else edges.dtype
        shares = cast(counts, as_dtype(dtype))
        counts = div(shares, mul(reduce(shares, "sum"), sub(edges[1:], edges[:-1])))
    return counts, edges


def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements of `x` lie in each of `bins` of one width from `min` to `max`, in the dtype of x.

    From the smallest element to the largest where min and max are equal. What lies outside, and NaN, is left out.
    """
    same_queue("histc", x)
    if x.dtype == BOOL:
        raise DTypeError("histc: expected numbers, got bool; convert with astype.")
    edges = _edges("histc", x, bins, None if min == max else (min, max))
    return cast(_in_bins("histc", x, edges, None), x.dtype)


def _edges(name: str, x: Tensor, bins: int | Tensor, range: tuple[float, float] | None) -> Tensor:
    """The edges of the bins, in a floating dtype of at least 32 bits, or as they are given."""
    if isinstance(bins, Tensor):
        if bins.ndim != 1 or bins.size < 2:
            raise ShapeError(f"{name}: expected at least two edges of one axis, got shape {bins.shape}.")
        return bins
    count = layout.as_int(name, bins, "bins", 1)
    if range is None:
        sized_by_data(name, "give the range of the bins")
        low, high = (0.0, 1.0) if x.size == 0 else (float(reduce(x, how).item()) for how in ("min", "max"))
    else:
        low, high = map(float, range)
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ValueError(f"{name}: expected a finite range that rises, got {low} to {high}.")
    if low == high:
        low, high = low - 0.5, high + 0.5
    return linspace(x.queue, low, high, count + 1, dtype=_edge_dtype(x))


def _edge_dtype(x: Tensor) -> DType:
    if is_float(x.dtype):
        return compute_dtype(x.dtype)
    if isinstance(x.queue, CPUQueue):
        return FLOAT64
    profile = profile_of(x.queue)
    return FLOAT64 if profile.has_fp64 else FLOAT32


def _in_bins(name: str, x: Tensor, edges: Tensor, weights: Tensor | None) -> Tensor:
    """Counts by bisection among the edges; what lies outside goes to a slot of its own."""
    place = bin_of(name, edges, x.reshape(-1))
    return counted(name, place, None if weights is None else weights.reshape(-1), edges.shape[0])[1:]
