"""The matrix of operators: every op x every dtype x every layout, as rows of a table and what runs one cell of it.

`NETCL_TEST_ALL=1` runs every cell; otherwise NumPy does, and devices run a sample (`cells`).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from netcl.core.dtypes import SUPPORTED, is_float
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor

DTYPES = tuple(t.name for t in SUPPORTED)
FLOATS = tuple(t.name for t in SUPPORTED if is_float(t))
NUMBERS = tuple(t for t in DTYPES if t != "bool")
WHOLE = tuple(t for t in DTYPES if t not in FLOATS)
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-5, "float64": 1e-12}
LAYOUTS = ("contiguous", "strided", "expanded", "empty", "single")
WHOLE_MATRIX = os.environ.get("NETCL_TEST_ALL") == "1"
ROWS = 5  # of the shapes in the tables: the axis that may be empty


def cells(number, queue):
    """(dtype, layouts) of the cells that op `number` of a table runs on `queue`.

    All where nothing is built or the whole matrix is asked for; else one dtype, others from op to op, and one of both
    layouts of views, which cost builds.
    """
    if WHOLE_MATRIX or isinstance(queue, CPUQueue):
        return [(t, LAYOUTS) for t in DTYPES]
    return [(DTYPES[number % len(DTYPES)], ("contiguous", ("strided", "expanded")[number % 2], *LAYOUTS[3:]))]


def draw(rng, shape, dtype, domain=(-2.0, 2.0)):
    """Values of `dtype` from the domain; whole numbers of it, or 1 to 3 where it holds none, for integers."""
    low, high = domain
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in FLOATS:
        return rng.uniform(low, high, shape).astype(dtype)
    whole = [v for v in range(-5, 6) if low <= v <= high or domain == (-2.0, 2.0)]
    whole = [v for v in whole if v >= 0 or dtype != "uint8"] or [1, 2, 3]
    return rng.choice(whole, shape).astype(dtype)


def shaped(shape, layout):
    """A shape in a layout: axes of length ROWS without elements, or every axis of length one."""
    if layout == "empty":
        return tuple(0 if n == ROWS else n for n in shape)
    return (1,) * len(shape) if layout == "single" else shape


def laid(queue, array, layout):
    """The array as a tensor in this layout: a reversed, strided, transposed view from an offset; or repeated rows."""
    if layout == "expanded" and array.ndim:
        first = np.ascontiguousarray(array[:1])
        return np.broadcast_to(first, array.shape), Tensor.from_host(queue, first).expand(array.shape)
    if layout != "strided" or not array.ndim:
        return array, Tensor.from_host(queue, array)
    turned = array.T
    base = np.zeros([2 * n + 1 for n in turned.shape], array.dtype)
    key = tuple(slice(2 * n - 1, None, -2) for n in turned.shape)
    base[key] = turned
    return array, Tensor.from_host(queue, base)[key].T


def wide(array):
    """Floats in float64, which holds them exactly; other dtypes as they are."""
    return array.astype(np.float64) if is_float(array.dtype) else array


def compare(found, wanted, dtype=None, tolerance=1.0):
    """Equality in the result's dtype: exact for integers and bools, else within the tolerance of the coarser dtype."""
    wanted = np.asarray(wanted)
    assert found.shape == wanted.shape
    if not is_float(found.dtype):
        np.testing.assert_array_equal(found, wanted.astype(found.dtype))
        return
    coarse = max(TOLERANCE[found.dtype.name], TOLERANCE.get(dtype, 0)) * tolerance
    with np.errstate(all="ignore"):
        wanted = wanted.astype(found.dtype).astype(np.float64)
    largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=coarse, atol=coarse * largest)


@dataclass(frozen=True)
class Row:
    """An op: what it is called with, what it should give, which dtypes it accepts, and how it refuses the others.

    call(*tensors) and ref(*arrays) return a result or a tuple of them; make(rng, dtype, layout) gives the operands.
    `refuses` maps dtypes to the error's text; `empty` is the text of the error for an axis without elements, if any.
    `result` is the dtype of results, or how it follows from the operands'.
    """

    name: str
    call: Callable
    ref: Callable
    make: Callable = lambda rng, dtype, layout: [draw(rng, shaped((5, 7), layout), dtype)]
    refuses: dict = field(default_factory=dict)
    empty: str = ""
    tolerance: float = 1.0
    layouts: tuple = LAYOUTS
    result: str | tuple = "same"
    as_float: bool = False  # the reference takes integers as float64

    def __str__(self):
        return self.name
