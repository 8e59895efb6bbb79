"""softmax and log_softmax along any axis, and their gradients: one kernel that passes over each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netcl.core import layout
from netcl.core.dtypes import FLOAT32, compute_dtype, is_float
from netcl.core.tensor import Tensor, allocate
from netcl.fusion.formula import formula
from netcl.fusion.rows import run_rows
from netcl.ops.record import FLOAT, Op, alike, register

SOFTMAX = formula("softmax", ("x",), "m = MAX(x)", "e = EXP(SUB(x, m))", "one = RECIPROCAL(SUM(e))", "y = MUL(e, one)")
SOFTMAX_GRAD = formula("softmax_grad", ("g", "p"), "s = SUM(MUL(g, p))", "y = MUL(p, SUB(g, s))")
_LOGS = ("m = MAX(x)", "d = SUB(x, m)", "s = SUM(EXP(d))", "y = SUB(d, LOG(s))")
LOG_SOFTMAX = formula("log_softmax", ("x",), *_LOGS)
LOG_SOFTMAX_GRAD = formula("log_softmax_grad", ("g", "p"), "s = SUM(g)", "y = SUB(g, MUL(EXP(p), s))")


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) along `axis`, with the maximum taken out first so that nothing overflows.

    Shapes: any; integers become float32. A slice of -inf alone gives NaN, as 0 / 0 does, also in log_softmax; in
    `attention` a query that sees no key gets 0.
    """
    return _along(SOFTMAX, axis, "softmax", x if is_float(x.dtype) else x.astype(FLOAT32))


def softmax_grad(g: Tensor, y: Tensor, axis: int = -1) -> Tensor:
    """y * (g - sum(g * y)) along `axis`, from the output `y` of softmax."""
    return _along(SOFTMAX_GRAD, axis, "softmax", g, y)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """x - log(sum(exp(x))) along `axis`, without forming the softmax."""
    return _along(LOG_SOFTMAX, axis, "log_softmax", x if is_float(x.dtype) else x.astype(FLOAT32))


def log_softmax_grad(g: Tensor, y: Tensor, axis: int = -1) -> Tensor:
    """g - exp(y) * sum(g) along `axis`, from the output `y` of log_softmax."""
    return _along(LOG_SOFTMAX_GRAD, axis, "log_softmax", g, y)


def _along(chain: Any, axis: int, where: str, *tensors: Tensor) -> Tensor:
    """Run a row chain with `axis` moved to the end, and move it back (a view)."""
    x = tensors[0]
    axis = layout.as_axis(where, axis, x.ndim)
    if x.size == 0:
        return allocate(x.queue, x.shape, x.dtype)
    last: Callable[[Tensor], Tensor] = lambda t: t if axis == t.ndim - 1 else t.transpose(axis, -1)  # noqa: E731
    y = run_rows(chain, compute_dtype(x.dtype), (x.dtype,), [last(t) for t in tensors])[0]
    return last(y)


# -- record ------------------------------------------------------------------------------------------------------------

for _op in (
    Op("softmax", softmax, lambda g, y, x, axis=-1: softmax_grad(g, y, axis), ("y",), shape=alike, cast=FLOAT,
       methods=("softmax",), onnx="Softmax"),
    Op("log_softmax", log_softmax, lambda g, y, x, axis=-1: log_softmax_grad(g, y, axis), ("y",), shape=alike,
       cast=FLOAT, onnx="LogSoftmax", methods=("log_softmax",)),
):  # fmt: skip
    register(_op)
