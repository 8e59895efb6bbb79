"""Reductions over any set of axes. A full reduction has shape (1,) unless `keepdims`.

Sums and products of integers and booleans are int64, means and variances of them are floats, as in NumPy. NaN wins in
max, min, argmax and argmin. Over no elements sum is 0, prod 1, mean and var NaN, any False, all True; max and min raise
ShapeError.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from netcl.core import layout, live
from netcl.core.backend import cpu
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import BOOL, FLOAT32, FLOAT64, INT32, INT64, DType, compute_dtype, is_float, on_device
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.kernels import dialect
from netcl.core.kernels.primitives import TABLE
from netcl.core.layout import Shape
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor
from netcl.fusion.chain import Chain
from netcl.fusion.fold import FOLD, IDENTITY, Axis, Fold, run_fold
from netcl.fusion.fold_source import FOLDS
from netcl.fusion.formula import formula
from netcl.fusion.map import run
from netcl.fusion.rows import run_rows
from netcl.kernels import route
from netcl.kernels.plans import remember
from netcl.kernels.route import FIRST, LAST, Route, cannot, choose, declare
from netcl.ops import elementwise
from netcl.ops.record import FLOAT, Facts, Op, register

VAR, STD, LOGSUMEXP = (declare(op, "fused", "folds") for op in ("var", "std", "logsumexp"))
INT32_POSITIONS = 1 << 31
SHORT, LONG = 1 << 12, 1 << 15  # elements of a row that few work-items, and that one group, may take on

dialect.define_function("DEVIATION", ("a", "m"), "(a - m) * (a - m)")
dialect.define_function("FINITE_PART", ("m",), "where(m - m == 0, m, where(m == m, 0, m))")
dialect.define_function("EXP_BELOW", ("a", "m"), "exp(a - FINITE_PART(m))")
dialect.define_function("LOG_ABOVE", ("a", "m"), "log(a) + FINITE_PART(m)")
dialect.define_function("HIT", ("a", "m"), "where(a == m, 1, where(a == a, 0, where(m == m, 0, 1)))")
dialect.define_function("SHARE", ("g", "a", "m", "n"), "where(HIT(a, m) == 1, g / n, 0)")
dialect.define_function("NOT_ZERO", ("a",), "where(a == 0, 1, a)")
dialect.define_function(
    "PROD_D0", ("g", "a", "n", "p"), "where(n == 0, g * p / NOT_ZERO(a), where(n == 1, where(a == 0, g * p, 0), 0))"
)
dialect.define_function(
    "LOGSUMEXP_D0",
    ("g", "a", "y"),
    "where(y - y == 0, g * exp(a - y), where(y < 0, 0, where(y > 0, where(a == y, g, 0), g * y)))",
)
dialect.define_function("SCALED", ("g", "a", "m", "s"), "g * (a - m) * s")
dialect.define_function("SCALED_BY", ("g", "a", "m", "y", "s"), "where(y == 0, 0, g * (a - m) * s / NOT_ZERO(y))")
dialect.define_function("RATIO", ("g", "a", "y"), "where(y == 0, 0, g * a / NOT_ZERO(y))")


def _chain(function: str, inputs: int, scalars: tuple[str, ...] = ()) -> Chain:
    """One call of a dialect function on tensors v0 v1 ..., then scalars."""
    names = tuple(f"v{i}" for i in range(inputs))
    return Chain(f"netcl_{function.lower()}", names, scalars, (("y", function, (*names, *scalars)),), ("y",))


_DEVIATION, _EXP_BELOW, _LOG_ABOVE = _chain("DEVIATION", 2), _chain("EXP_BELOW", 2), _chain("LOG_ABOVE", 2)
_HIT, _SHARE = _chain("HIT", 2), _chain("SHARE", 4)
_NOT_ZERO, _PROD_GRAD, _LSE_GRAD = _chain("NOT_ZERO", 1), _chain("PROD_D0", 4), _chain("LOGSUMEXP_D0", 3)
_IS_ZERO = Chain("netcl_is_zero", ("v0",), (), (("y", "EQ", ("v0", "0")),), ("y",))
_VAR_GRAD, _STD_GRAD, _RATIO = _chain("SCALED", 3, ("s",)), _chain("SCALED_BY", 4, ("s",)), _chain("RATIO", 3)
_MAPS: dict[str, Chain] = {}


def map_chain(name: str | None) -> Chain:
    """The chain that a row with one input, and no attributes, makes; None is the identity."""
    if name is None:
        return IDENTITY
    if name not in _MAPS:
        row = TABLE.get(name)
        if row is None or len(row.inputs) != 1 or row.attrs:
            raise DTypeError(f"reduce: expected map to be a primitive with one input and no attributes, got {name!r}.")
        _MAPS[name] = Chain(f"netcl_{name}", ("v0",), (), (("y", name.upper(), ("v0",)),), ("y",))
    return _MAPS[name]


# -- the shared path ---------------------------------------------------------------------------------------------------


def _count(where: str, shape: Shape, axis: Axis) -> int:
    """Elements that one result of `where` is made of. Raises ShapeError for what are no axes."""
    axis = axis if axis is None or type(axis) in (int, tuple) else layout.as_axes(where, axis, len(shape))
    return _count_of(where, shape, axis)


@lru_cache(maxsize=4096)
def _count_of(where: str, shape: Shape, axis: Axis) -> int:
    return layout.size_of(tuple(shape[a] for a in layout.as_axes(where, axis, len(shape))))


def _kept(y: Tensor, shape: Shape, axes: Shape) -> Tensor:
    """A result with its reduced axes back as ones, so that it broadcasts against the input."""
    return y.reshape(tuple(1 if a in axes else n for a, n in enumerate(shape)))


def reduce(x: Tensor, op: str, axis: Axis = None, keepdims: bool = False, map: str | None = None) -> Tensor:
    """Fold `map(x)` over `axis` in one kernel; `map` names a primitive with one input: reduce(x, "sum", map="square").

    op: "sum", "prod", "max" or "min". Raises ShapeError for a bad axis, DTypeError for an unknown op or map.
    """
    if op not in FOLDS:
        raise DTypeError(f"reduce: expected op to be one of {', '.join(FOLDS)}, got {op!r}.")
    chain = map_chain(map)
    dtype = x.dtype if map is None else elementwise.resolve(map, (x.dtype,))[2]
    if dtype == FLOAT64:
        dtype = _float_for(x.queue)
    if op in ("sum", "prod") and not is_float(dtype):
        dtype = INT64
    if op in ("max", "min") and layout.size_of(x.shape) == 0:
        _refuse_empty(op, x, axis)
    return run_fold(Fold(chain, op, axis, keepdims, (dtype,), compute=compute_dtype(dtype)), (x,))[0]


def _refuse_empty(op: str, x: Tensor, axis: Axis) -> None:
    if _count(op, x.shape, axis) == 0:
        raise ShapeError(f"{op}: expected at least one element along axis {axis}, got shape {x.shape}.")


def _float_for(queue: Queue) -> DType:
    """float64, or float32 where the device has no doubles."""
    profile = profile_of(queue)
    return on_device(FLOAT64, profile.has_fp64, profile.name)


def _as_float(x: Tensor) -> Tensor:
    return x if is_float(x.dtype) else x.astype(_float_for(x.queue))


# -- rows: several reductions of short trailing axes in one launch ----------------------------------------------------


_ROWS: dict[str, tuple[str, ...]] = {
    "var": ("m = DIV(SUM(x), n)", "y = DIV(SUM(DEVIATION(x, m)), d)"),
    "std": ("m = DIV(SUM(x), n)", "y = SQRT(DIV(SUM(DEVIATION(x, m)), d))"),
    "logsumexp": ("m = MAX(x)", "y = LOG_ABOVE(SUM(EXP_BELOW(x, m)), m)"),
}


@lru_cache(maxsize=256)
def _row_chain(name: str, axes: int, keepdims: bool) -> Chain:
    scalars = ("d",) if name in ("var", "std") else ()
    chain = formula(name, ("x",), *_ROWS[name], kinds=("keep" if keepdims else "drop",), scalars=scalars)
    return replace(chain, axes=axes)


def _row_axes(op: str, x: Tensor, axis: Axis) -> int:
    """How many trailing axes `axis` stands for if one work-item or group per row suits them, else 0."""
    if x.backend == "cpu" or x.size == 0:
        if route.special:
            route.sole(op)
        return 0
    axes = layout.as_axes("reduction", axis, x.ndim)
    k = len(axes)
    trailing = k and axes[0] == x.ndim - k and (x.is_contiguous or (k == 1 and x.strides[-1] == 1))
    if not trailing:
        return _chosen(op, 0, False) if route.special else 0
    cols = layout.size_of(x.shape[-k:])
    busy = x.size // cols >= profile_of(x.queue).compute_units // 2 or cols <= SHORT
    pays = busy and cols <= LONG
    return _chosen(op, k, pays) if route.special else k if pays else 0


def _chosen(op: str, axes: int, pays: bool) -> int:
    """`axes` where rows are taken in one launch, 0 where folds follow one another; for routes that may be forced."""
    rows = Route(FIRST if pays else LAST, "fused", lambda: axes, "" if pays else "for short rows, or many")
    rows = rows if axes else cannot("fused", "for trailing axes that lie along memory")
    return int(choose(op, [rows, Route(FIRST, "folds", lambda: 0)]))


def one(queue: Queue, dtype: DType) -> Tensor:
    """The number one in shape (1,), made once per queue: to be read, never written."""

    def make() -> Tensor:
        with live.unrecorded():
            return Tensor.ones(queue, (1,), dtype)

    return remember(queue, ("one", dtype), make)


# -- the ops -----------------------------------------------------------------------------------------------------------


def sum(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Sum over `axis` (all axes when None), float32 in blocks; integers and booleans give int64."""
    return reduce(x, "sum", axis, keepdims)


def prod(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Product over `axis`; integers and booleans give int64. Its gradient is exact where elements are zero."""
    return reduce(x, "prod", axis, keepdims)


def max(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Largest element over `axis`; NaN wins. Raises ShapeError over no elements.

    The gradient is shared evenly among equal ones.
    """
    return reduce(x, "max", axis, keepdims)


def min(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Smallest element over `axis`; NaN wins. Raises ShapeError over no elements.

    The gradient is shared evenly among equal ones.
    """
    return reduce(x, "min", axis, keepdims)


def mean(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """sum / count over `axis`; NaN over no elements. Integers and booleans give floats."""
    n = _count("mean", x.shape, axis)
    if not is_float(x.dtype):
        total = sum(x, axis, keepdims)
        return elementwise.div(total.astype(_float_for(x.queue)), n)
    return run_fold(Fold(IDENTITY, "sum", axis, keepdims, (x.dtype,), "mean"), (x,), divisor=n)[0]


reduce_sum, reduce_mean = sum, mean


def var(x: Tensor, axis: Axis = None, keepdims: bool = False, correction: float = 0) -> Tensor:
    """sum((x - mean)^2) / (n - correction) over `axis`, by two passes; NaN over no elements."""
    return _spread(x, axis, keepdims, correction, "mean")


def std(x: Tensor, axis: Axis = None, keepdims: bool = False, correction: float = 0) -> Tensor:
    """Square root of `var`; the gradient is 0 where it is 0."""
    return _spread(x, axis, keepdims, correction, "root")


def _spread(x: Tensor, axis: Axis, keepdims: bool, correction: float, final: str) -> Tensor:
    x = _as_float(x)
    divisor = builtins.max(_count("std" if final == "root" else "var", x.shape, axis) - correction, 0)
    k = _row_axes(STD if final == "root" else VAR, x, axis)
    if k:
        chain = _row_chain("std" if final == "root" else "var", k, keepdims)
        return run_rows(chain, compute_dtype(x.dtype), (x.dtype,), (x,), (divisor,))[0]
    fold = Fold(_DEVIATION, "sum", axis, keepdims, (x.dtype,), final)
    return run_fold(fold, (x, _center(x, axis)), divisor=divisor)[0]


def _center(x: Tensor, axis: Axis) -> Tensor:
    """The mean in the compute type, with its axes kept."""
    n = _count("mean", x.shape, axis)
    return run_fold(Fold(IDENTITY, "sum", axis, True, (compute_dtype(x.dtype),), "mean"), (x,), divisor=n)[0]


def any(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether some element over `axis` is not zero (NaN is not zero); bool."""
    _count("any", x.shape, axis)
    return run_fold(Fold(_TRUTH, "max", axis, keepdims, (BOOL,)), (x,))[0]


def all(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether every element over `axis` is not zero; bool."""
    _count("all", x.shape, axis)
    return run_fold(Fold(_TRUTH, "min", axis, keepdims, (BOOL,)), (x,))[0]


_TRUTH = Chain("netcl_truth", ("v0",), (), (("y", "NE", ("v0", "0")),), ("y",))


def argmax(x: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Position of the first largest element along `axis` (None: of the flattened tensor); int64. NaN comes first."""
    return _extreme_place(x, "max", axis, keepdims)


def argmin(x: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Position of the first smallest element along `axis` (None: of the flattened tensor); int64. NaN comes first."""
    return _extreme_place(x, "min", axis, keepdims)


def _extreme_place(x: Tensor, op: str, axis: int | None, keepdims: bool) -> Tensor:
    if axis is not None:
        axis = layout.as_axis(f"arg{op}", axis, x.ndim)
    _refuse_empty(f"arg{op}", x, axis)
    if x.backend == "cpu":
        if route.special:
            route.sole(FOLD)
        result: Tensor = cpu.compute(_numpy_place, x, op=op, axis=axis, keepdims=keepdims)
        return result
    n = _count(f"arg{op}", x.shape, axis)
    far = n > INT32_POSITIONS  # positions are as wide as what is computed
    compute = INT64 if far or x.dtype == INT64 else INT32
    if is_float(x.dtype):
        compute = _float_for(x.queue) if far else compute_dtype(x.dtype)
        if far and compute == FLOAT32:
            raise ShapeError(
                f"arg{op}: expected at most {INT32_POSITIONS} elements where there is no float64, got {n}."
            )
    return run_fold(Fold(IDENTITY, f"arg{op}", axis, keepdims, (INT64,), compute=compute), (x,))[0]


def _numpy_place(a: np.ndarray, op: str, axis: int | None, keepdims: bool) -> np.ndarray:
    found = np.argmax(a, axis, keepdims=keepdims) if op == "max" else np.argmin(a, axis, keepdims=keepdims)
    return np.asarray(found, np.int64).reshape(np.shape(found) or (1,))


def logsumexp(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over `axis` without overflow. All -inf (or nothing) gives -inf, any +inf gives +inf."""
    x, count = _as_float(x), _count("logsumexp", x.shape, axis)
    compute, k = compute_dtype(x.dtype), _row_axes(LOGSUMEXP, x, axis)
    if k:
        return run_rows(_row_chain("logsumexp", k, keepdims), compute, (x.dtype,), (x,))[0]
    if count == 0:
        return run_fold(Fold(IDENTITY, "max", axis, keepdims, (x.dtype,)), (x,))[0]
    best = reduce(x, "max", axis, True)
    total = run_fold(Fold(_EXP_BELOW, "sum", axis, True, (compute,)), (x, best))[0]
    y = run(_LOG_ABOVE, compute, (x.dtype,), (total, best))[0]
    return y if keepdims else y.reshape(reduced(x.shape, axis))


def reduced(shape: Shape, axis: Any, keepdims: bool = False) -> Shape:
    """The shape of a reduction's result: (1,) for a full one."""
    axes = layout.as_axes("reduction", axis, len(shape))
    if keepdims:
        return tuple(1 if a in axes else n for a, n in enumerate(shape))
    return tuple(n for a, n in enumerate(shape) if a not in axes) or (1,)


def norm(x: Tensor, ord: float = 2, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Norm of the elements over `axis`: sum |x| (ord 1), sqrt(sum x^2) (ord 2), max |x| (ord inf).

    Squares are added up as they are, as NumPy does: those of float32 overflow from 1.8e19 on.
    """
    x = _as_float(x)
    _count("norm", x.shape, axis)
    if ord == 1:
        return reduce(x, "sum", axis, keepdims, map="abs")
    if ord == 2:
        return run_fold(Fold(map_chain("square"), "sum", axis, keepdims, (x.dtype,), "root" if x.size else ""), (x,))[0]
    if ord == np.inf:
        return reduce(x, "max", axis, keepdims, map="abs")
    raise ShapeError(f"norm: expected ord 1, 2 or inf, got {ord!r}.")


# -- gradients ---------------------------------------------------------------------------------------------------------


def spread(g: Tensor, shape: Shape, axis: Axis) -> Tensor:
    """A result's gradient seen as the input's `shape`: reduced axes return as a view that repeats."""
    axes = layout.as_axes("spread", axis, len(shape))
    return _kept(g, shape, axes).expand(shape)


def _grad(
    chain: Chain, g: Tensor, tensors: Sequence[Tensor], axis: Axis, shape: Shape, scalars: Sequence[Any] = ()
) -> Tensor:
    """One elementwise launch over g and results (their axes back as ones) and the input."""
    axes = layout.as_axes("gradient", axis, len(shape))
    operands = [t if t.shape == shape else _kept(t, shape, axes) for t in (g, *tensors)]
    return run(chain, compute_dtype(g.dtype), (g.dtype,), operands, scalars)[0]


def extreme_grad(g: Tensor, x: Tensor, y: Tensor, axis: Axis = None) -> Tensor:
    """Gradient of max or min: g shared evenly among the elements equal to the result."""
    axes = layout.as_axes("max", axis, x.ndim)
    y = _kept(y, x.shape, axes)
    ties = run_fold(Fold(_HIT, "sum", axis, True, (compute_dtype(g.dtype),), compute=compute_dtype(x.dtype)), (x, y))[0]
    return _grad(_SHARE, g, (x, y, ties), axis, x.shape)


def prod_grad(g: Tensor, x: Tensor, axis: Axis = None) -> Tensor:
    """Gradient of prod: g times the product of the other elements, exact where elements are zero."""
    compute = compute_dtype(x.dtype)
    zeros = run_fold(Fold(_IS_ZERO, "sum", axis, True, (compute,)), (x,))[0]
    others = run_fold(Fold(_NOT_ZERO, "prod", axis, True, (compute,)), (x,))[0]
    return _grad(_PROD_GRAD, g, (x, zeros, others), axis, x.shape)


def var_grad(g: Tensor, x: Tensor, axis: Axis = None, correction: float = 0) -> Tensor:
    """Gradient of var: g * 2 (x - mean) / (n - correction)."""
    n = _count("var", x.shape, axis)
    scale = 2.0 / (n - correction) if n > correction else float("nan")
    return _grad(_VAR_GRAD, g, (x, _center(x, axis)), axis, x.shape, (scale,))


def std_grad(g: Tensor, x: Tensor, y: Tensor, axis: Axis = None, correction: float = 0) -> Tensor:
    """Gradient of std: g * (x - mean) / (std * (n - correction)), 0 where std is 0."""
    n = _count("std", x.shape, axis)
    scale = 1.0 / (n - correction) if n > correction else float("nan")
    return _grad(_STD_GRAD, g, (x, _center(x, axis), y), axis, x.shape, (scale,))


def logsumexp_grad(g: Tensor, x: Tensor, y: Tensor, axis: Axis = None) -> Tensor:
    """Gradient of logsumexp: g * exp(x - y); 0 where y is -inf, g at the infinite elements where y is +inf."""
    return _grad(_LSE_GRAD, g, (x, y), axis, x.shape)


def norm_grad(g: Tensor, x: Tensor, y: Tensor, ord: float = 2, axis: Axis = None) -> Tensor:
    """Gradient of norm: g * sign(x) (ord 1), g * x / y (ord 2, 0 where y is 0), shared by the largest |x| (inf)."""
    if ord == 2:
        return _grad(_RATIO, g, (x, y), axis, x.shape)
    signs = elementwise.sign(x)
    shared = spread(g, x.shape, axis) if ord == 1 else extreme_grad(g, elementwise.abs(x), y, axis)
    return elementwise.mul(shared, signs)


# -- records -----------------------------------------------------------------------------------------------------------


def _mean_grad(g: Tensor, y: Any, x: Any, axis: Axis = None, **_: Any) -> Tensor:
    n = x.size // builtins.max(g.size, 1)
    return spread(elementwise.mul(g, 1.0 / builtins.max(n, 1)), x.shape, axis)


def _extreme_grad(g: Tensor, y: Tensor, x: Tensor, axis: Axis = None, **_: Any) -> Tensor:
    return extreme_grad(g, x, y, axis)


def _shape(dtype_of: Callable[[DType], DType]) -> Callable[..., Facts]:
    def shape(x: Any, axis: Axis = None, keepdims: bool = False, **_: Any) -> Facts:
        return reduced(x.shape, axis, keepdims), dtype_of(x.dtype)

    return shape


def _float_alone(dtype: DType) -> DType:
    if not is_float(dtype):
        raise DTypeError(f"a mean of {dtype} has no shape rule")
    return dtype


_TOTAL = _shape(lambda dtype: dtype if is_float(dtype) else INT64)
_FLOATS, _ELEMENT = _shape(_float_alone), _shape(lambda dtype: dtype)
_PLACE, _LOGICAL = _shape(lambda _: INT64), _shape(lambda _: BOOL)

for _op in (
    Op("sum", sum, lambda g, y, x, axis=None, **_: spread(g, x.shape, axis), (), shape=_TOTAL, cast=FLOAT,
       methods=("sum",), onnx="ReduceSum", array_api="sum"),
    Op("prod", prod, lambda g, y, x, axis=None, **_: prod_grad(g, x, axis), (0,), shape=_TOTAL, cast=FLOAT,
       methods=("prod",), onnx="ReduceProd", array_api="prod"),
    Op("max", max, _extreme_grad, ("y", 0), shape=_ELEMENT, methods=("max",), onnx="ReduceMax", array_api="max"),
    Op("min", min, _extreme_grad, ("y", 0), shape=_ELEMENT, methods=("min",), onnx="ReduceMin", array_api="min"),
    Op("mean", mean, _mean_grad, (), shape=_FLOATS, methods=("mean",), onnx="ReduceMean", array_api="mean"),
    Op("var", var, lambda g, y, x, axis=None, correction=0, **_: var_grad(g, x, axis, correction), (0,), shape=_FLOATS,
       cast=FLOAT, methods=("var",), array_api="var"),
    Op("std", std, lambda g, y, x, axis=None, correction=0, **_: std_grad(g, x, y, axis, correction), ("y", 0),
       shape=_FLOATS, cast=FLOAT, methods=("std",), array_api="std"),
    Op("logsumexp", logsumexp, lambda g, y, x, axis=None, **_: logsumexp_grad(g, x, y, axis), ("y", 0), shape=_FLOATS,
       cast=FLOAT, onnx="ReduceLogSumExp", methods=("logsumexp",)),
    Op("norm", norm, lambda g, y, x, ord=2, axis=None, **_: norm_grad(g, x, y, ord, axis), ("y", 0), shape=_FLOATS,
       cast=FLOAT, methods=("norm",)),
    Op("any", any, shape=_LOGICAL, methods=("any",), array_api="any"),
    Op("all", all, shape=_LOGICAL, methods=("all",), array_api="all"),
    Op("argmax", argmax, shape=_PLACE, methods=("argmax",), onnx="ArgMax", array_api="argmax"),
    Op("argmin", argmin, shape=_PLACE, methods=("argmin",), onnx="ArgMin", array_api="argmin"),
):  # fmt: skip
    register(_op)
