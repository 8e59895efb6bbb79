"""The norm of all elements of many tensors as one vector, on the device, right over the whole range of the dtype.

Squares of float32 overflow from 1.8e19 on and vanish below 1e-23. Order 2 takes one pass all the same: a chunk whose
plain sum of squares is neither large nor small has lost nothing. Other chunks are read once more, and give three sums:
of the squares of what is large, scaled down, of what is small, scaled up, and of the rest. Other orders divide by the
largest element, found by a pass of its own. No doubles are needed.

Source: three sums, Blue 1978, "A portable Fortran program to find the Euclidean norm of a vector".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from netcl.core.backend import cpu
from netcl.core.dtypes import FLOAT32, FLOAT64, DType, common_dtype, compute_dtype
from netcl.core.kernels import dialect
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor, same_queue
from netcl.fusion import many
from netcl.fusion.chain import Chain
from netcl.fusion.map import run
from netcl.ops import elementwise, reduction

# Of a compute type: above `high` elements are scaled by `down`, below `low` by `up`. 2^31 squares do not overflow.
SCALES = {FLOAT32: (2.0**40, 2.0**-80, 2.0**-40, 2.0**84), FLOAT64: (2.0**400, 2.0**-600, 2.0**-400, 2.0**600)}
SOUND = {FLOAT32: (2.0**-60, 2.0**90), FLOAT64: (2.0**-400, 2.0**900)}  # sums of squares of a chunk
_PARTS = (
    ("z", "abs(p)"),
    ("l", "where(z > high, z * down, 0)"),
    ("large", "l * l"),
    ("s", "where(z < low, z * up, 0)"),
    ("small", "s * s"),
    ("m", "where(z > high, 0, where(z < low, 0, z))"),
    ("medium", "m * m"),
)
_SQUARES = {
    kind: many.Body(
        "norm_2",
        _PARTS,
        (),
        ("high", "down", "low", "up"),
        ("p",),
        writes=False,
        combine="a + b",
        folded=("large", "medium", "small"),
        quick=("p * p", *bounds),
    )
    for kind, bounds in SOUND.items()
}
_LARGER = "where(a > b, a, where(a == a, b, a))"
_LARGEST = many.Body("norm_max", (("x", "abs(p)"),), (), (), ("p",), writes=False, combine=_LARGER)
_SUM = many.Body("norm_1", (("x", "abs(p)"),), (), (), ("p",), writes=False, combine="a + b")
_POWERS = many.Body(
    "norm_p", (("x", "pow(abs(p) / unit, k0)"),), (), ("k0",), ("p",), writes=False, combine="a + b", unit=True
)

dialect.define_function(
    "NORM_OF_PARTS",
    ("a", "b", "c", "down", "up"),
    "where(a > 0, sqrt(a + b * down * down) / down, where(b == 0, sqrt(c) / up, sqrt(b + c / up / up)))",
)
# a + b where one is not finite: infinity, or NaN
dialect.define_function(
    "NORM_OF_TWO",
    ("a", "b"),
    "where(a - a == 0, where(b - b == 0, where(a > b, a * sqrt(1 + (b / a) * (b / a)), "
    "where(b > 0, b * sqrt(1 + (a / b) * (a / b)), b)), a + b), a + b)",
)
dialect.define_function("NORM_OF_POWERS", ("m", "s", "k"), "where(m - m == 0, where(m > 0, m * pow(s, k), m), m)")
_ROOT = Chain(
    "netcl_norm_root",
    ("v0", "v1", "v2"),
    ("down", "up"),
    (("y", "NORM_OF_PARTS", ("v0", "v1", "v2", "down", "up")),),
    ("y",),
)
_TWO = Chain("netcl_norm_two", ("v0", "v1"), (), (("y", "NORM_OF_TWO", ("v0", "v1")),), ("y",))
_POWER = Chain("netcl_norm_power", ("v0", "v1"), ("k",), (("y", "NORM_OF_POWERS", ("v0", "v1", "k")),), ("y",))


def total_norm(tensors: Sequence[Tensor], order: float = 2.0) -> Tensor:
    """The norm of all elements of `tensors` (one queue) as one vector: shape (1,), on the device, at least float32.

    order 2: sqrt(sum x*x); 1: sum |x|; inf: max |x|; else (sum |x|**order)**(1/order). NaN stays NaN. Only a norm that
    is itself above the largest number of its dtype is infinite.
    """
    queue = same_queue("total_norm", *tensors)
    dtype = common_dtype(FLOAT32, *(t.dtype for t in tensors))
    if isinstance(queue, CPUQueue):
        return cpu.compute(_numpy_total_norm, *tensors, queue=queue, order=order, dtype=dtype)
    kinds = dict.fromkeys(t.dtype for t in tensors if t.size)
    groups = [[t.contiguous() for t in tensors if t.dtype == kind and t.size] for kind in kinds]
    if not groups:
        return Tensor.zeros(queue, (1,), dtype)
    if order == 2:
        norms = [_root(group).astype(dtype) for group in groups]
    elif order == 1:
        norms = [reduction.sum(many.partials(group, _SUM).astype(dtype)) for group in groups]
    else:
        norms = [reduction.max(many.partials(group, _LARGEST)).astype(dtype) for group in groups]
    total = norms[0]
    for other in norms[1:]:
        if order == 2:
            total = run(_TWO, dtype, (dtype,), (total, other))[0]
        else:
            total = elementwise.add(total, other) if order == 1 else elementwise.maximum(total, other)
    return total if order in (1, 2, math.inf) else _powers(groups, total, order, dtype)


def _root(group: Sequence[Tensor]) -> Tensor:
    """The norm of order 2 of tensors of one dtype, in its compute type."""
    compute = compute_dtype(group[0].dtype)
    scales = SCALES[compute]
    parts = reduction.sum(many.partials(group, _SQUARES[compute], *scales), axis=0)
    each = [Tensor(parts.buffer, (1,), (1,), k, compute, parts.queue) for k in range(3)]
    return run(_ROOT, compute, (compute,), each, (scales[1], scales[3]))[0]


def _powers(groups: Sequence[Sequence[Tensor]], largest: Tensor, order: float, dtype: DType) -> Tensor:
    """largest * (sum (|x| / largest)**order)**(1 / order)."""
    sums = []
    for group in groups:
        unit = largest.astype(compute_dtype(group[0].dtype))
        sums.append(reduction.sum(many.partials(group, _POWERS, order, unit=unit).astype(dtype)))
    total = sums[0]
    for other in sums[1:]:
        total = elementwise.add(total, other)
    return run(_POWER, dtype, (dtype,), (largest, total), (1.0 / order,))[0]


def _numpy_total_norm(*arrays: np.ndarray, order: float, dtype: DType) -> np.ndarray:
    if order == 2 and dtype != FLOAT64:  # squares of narrower numbers stay in the range of doubles
        flat = [a.astype(np.float64).ravel() for a in arrays]
        return np.array([math.sqrt(sum([a.dot(a) for a in flat]))]).astype(dtype)
    wide = [np.abs(a.astype(np.float64)) for a in arrays if a.size]
    norm = np.max([0.0, *(a.max() for a in wide)])
    if order != math.inf and 0 < norm < math.inf:
        powers = sum(float(np.sum((a / norm) ** order)) for a in wide)
        norm *= powers ** (1.0 / order)
    return np.array([norm]).astype(dtype)
