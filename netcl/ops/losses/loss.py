"""Losses that compare a prediction with a target element by element, and the negative log-likelihood of labels.

A loss is a row of formulas, as in the primitive table: `a` is the prediction, `b` the target, `c` a weight. Value and
mean are one fold, the gradients of all inputs one elementwise launch. Prediction and target have one shape, which
"none" returns: (N, 1) against (N,) would compare every prediction with every target. Weights broadcast to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from netcl.core import layout
from netcl.core.dtypes import DType, common_dtype, compute_dtype, is_float
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.kernels import dialect
from netcl.core.kernels.primitives import Primitive
from netcl.core.tensor import Tensor, same_queue
from netcl.fusion.chain import Chain, Line
from netcl.fusion.fold import Fold, run_fold
from netcl.fusion.formula import formula
from netcl.fusion.map import run
from netcl.fusion.rows import run_rows
from netcl.ops.losses.cross_entropy import Saved, arranged, operands
from netcl.ops.losses.labels import Labelled, finish
from netcl.ops.reduction import one

P = Primitive
_SMALL = "abs(a - b)"
_SIDE = "where(a > b, g, where(a < b, -g, 0 * g * a * b))"  # g * sign(a - b), NaN kept
_TAIL = "log1p(exp(-abs(a))) + where(a < 0, -a, 0)"  # softplus(-a) without overflow
ROWS = (
    P("mse_loss", "(a - b) * (a - b)", ("2 * g * (a - b)", "-2 * g * (a - b)")),
    P("l1_loss", _SMALL, (_SIDE, f"-({_SIDE})")),
    P("smooth_l1_loss", f"where({_SMALL} < beta, 0.5 * (a - b) * (a - b) / beta, {_SMALL} - 0.5 * beta)",
      (f"where({_SMALL} < beta, g * (a - b) / beta, {_SIDE})",
       f"where({_SMALL} < beta, g * (b - a) / beta, -({_SIDE}))"),
      ("beta",)),
    P("huber_loss", f"where({_SMALL} < delta, 0.5 * (a - b) * (a - b), delta * ({_SMALL} - 0.5 * delta))",
      (f"where({_SMALL} < delta, g * (a - b), delta * ({_SIDE}))",
       f"where({_SMALL} < delta, g * (b - a), -delta * ({_SIDE}))"), ("delta",)),
    P("binary_cross_entropy",
      "-b * where(log(a) < -100, -100, log(a)) - (1 - b) * where(log1p(-a) < -100, -100, log1p(-a))",
      ("g * (a - b) / where(a * (1 - a) < 1e-12, 1e-12, a * (1 - a))",
       "g * (where(log1p(-a) < -100, -100, log1p(-a)) - where(log(a) < -100, -100, log(a)))")),
    P("binary_cross_entropy_with_logits", f"(1 - b) * a + (1 + (c - 1) * b) * ({_TAIL})",
      ("g * (1 - b - (1 + (c - 1) * b) / (1 + exp(a)))", f"g * ((c - 1) * ({_TAIL}) - a)", f"g * b * ({_TAIL})")),
    P("kl_div", "where(b == 0, 0, b * (log(b) - a))", ("-g * b", "where(b == 0, 0, g * (log(b) + 1 - a))")),
    P("kl_div_log", "where(exp(b) == 0, 0, exp(b) * (b - a))",
      ("-g * exp(b)", "where(exp(b) == 0, 0, g * exp(b) * (b - a + 1))")),
    P("hinge_loss", "where(a * b > 1, 0, 1 - a * b)",
      ("where(a * b < 1, -g * b, 0 * g * a * b)", "where(a * b < 1, -g * a, 0 * g * a * b)")),
)  # fmt: skip
LOSSES = {row.name: row for row in ROWS}
REDUCTIONS = ("mean", "sum", "none", "batchmean")

for _row in ROWS:
    dialect.check(_row)
    dialect.define(_row)

Operand = Tensor | float


def _value_and_mean(name: str, operands: Sequence[Operand], reduction: str, attrs: Sequence[float]) -> Tensor:
    """The row `name` of tensors (the first two are) and numbers, reduced."""
    if reduction not in REDUCTIONS or (reduction == "batchmean" and not name.startswith("kl_div")):
        raise ValueError(f"{name}: expected reduction 'mean', 'sum' or 'none', got {reduction!r}.")
    tensors: list[Any] = [x for i, x in enumerate(operands) if i == 0 or not isinstance(x, (int, float, np.number))]
    same_queue(name, *tensors)
    dtype = _dtype(name, *[t.dtype for t in tensors])
    chain = _forward(name, tuple(isinstance(x, Tensor) for x in operands))
    numbers = [*(float(x) for x in operands if not isinstance(x, Tensor)), *attrs]
    shape = result_shape(name, *operands)
    if reduction == "none":
        return run(chain, compute_dtype(dtype), (dtype,), tensors, numbers)[0]
    divisor = _divisor(shape, reduction)
    final = "" if reduction == "sum" else "mean"
    return run_fold(Fold(chain, "sum", None, False, (dtype,), final, compute_dtype(dtype)), tensors, numbers, divisor)[
        0
    ]


def result_shape(name: str, x: Any, target: Any, weight: Any = 1.0) -> layout.Shape:
    """The shape of prediction and target. Raises ShapeError unless it is one, to which the weight broadcasts."""
    shape: layout.Shape = x.shape
    if getattr(target, "shape", shape) != shape:
        raise ShapeError(
            f"{name}: expected a prediction and a target of one shape, got {shape} and {target.shape}; reshape one, or "
            "broadcast it with expand if that is meant."
        )
    given = getattr(weight, "shape", ())
    if given and (len(given) > len(shape) or layout.broadcast(name, given, shape) != shape):
        raise ShapeError(f"{name}: expected a weight that broadcasts to {shape}, got shape {given}.")
    return shape


def _divisor(shape: layout.Shape, reduction: str) -> float:
    if reduction == "batchmean":
        return shape[0] if shape else 1
    return layout.size_of(shape) if reduction == "mean" else 1


@lru_cache(maxsize=256)
def _dtype(name: str, *dtypes: DType) -> DType:
    """The promoted dtype of the floating tensors; whole-number targets take part as they are."""
    if not is_float(dtypes[0]):
        raise DTypeError(f"{name}: expected a floating prediction, got {dtypes[0]}.")
    return common_dtype(*[d for d in dtypes if is_float(d)])


@lru_cache(maxsize=256)
def _forward(name: str, is_tensor: tuple[bool, ...]) -> Chain:
    row = LOSSES[name]
    variables = [f"{'v' if t else 's'}{i}" for i, t in enumerate(is_tensor)]
    attrs = [f"s_{a}" for a in row.attrs]
    line = ("y", name.upper(), (*variables, *attrs))
    tensors, numbers = (tuple(v for v in variables if v[0] == kind) for kind in "vs")
    return Chain(f"netcl_{name}", tensors, (*numbers, *attrs), (line,), ("y",))


@lru_cache(maxsize=256)
def _backward(name: str, is_tensor: tuple[bool, ...], wanted: tuple[int, ...]) -> Chain:
    """The gradients `wanted` for g * s_scale."""
    row = LOSSES[name]
    variables = [f"{'v' if t else 's'}{i}" for i, t in enumerate(is_tensor)]
    attrs = [f"s_{a}" for a in row.attrs]
    lines: list[Line] = [("up", "MUL", ("g", "s_scale"))]
    lines += [(f"d{i}", f"{name.upper()}_D{i}", ("up", "0", *variables, *attrs)) for i in wanted]
    tensors, numbers = (tuple(v for v in variables if v[0] == kind) for kind in "vs")
    outputs = tuple(f"d{i}" for i in wanted)
    return Chain(f"netcl_{name}_grad", ("g", *tensors), (*numbers, "s_scale", *attrs), tuple(lines), outputs)


def loss_grad(
    name: str, g: Tensor, operands: Sequence[Operand], needs: Sequence[bool], reduction: str = "mean", **attrs: float
) -> list[Tensor | None]:
    """The gradients of loss `name` (a key of LOSSES) for the operands that need one, in one launch."""
    row = LOSSES[name]
    tensors = [x for x in operands if isinstance(x, Tensor)]
    dtypes = {i: x.dtype for i, (x, need) in enumerate(zip(operands, needs)) if need and isinstance(x, Tensor)}
    wanted = tuple(dtypes)
    result: list[Tensor | None] = [None] * len(operands)
    shape = result_shape(name, *operands)
    if not wanted:
        return result
    chain = _backward(name, tuple(isinstance(x, Tensor) for x in operands), wanted)
    numbers = [float(x) for x in operands if not isinstance(x, Tensor)]
    numbers += [1.0 / max(_divisor(shape, reduction), 1), *(attrs[a] for a in row.attrs)]
    compute = compute_dtype(_dtype(name, *[t.dtype for t in tensors]))
    found = run(chain, compute, tuple(dtypes.values()), (g, *tensors), numbers)
    for i, dx in zip(wanted, found, strict=True):
        result[i] = dx
    return result


# -- the losses --------------------------------------------------------------------------------------------------------


def mse_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Mean of (x - target)^2."""
    return _value_and_mean("mse_loss", (x, target), reduction, ())


def l1_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Mean of |x - target|; its gradient is 0 where they are equal."""
    return _value_and_mean("l1_loss", (x, target), reduction, ())


def smooth_l1_loss(x: Tensor, target: Tensor, beta: float = 1.0, reduction: str = "mean") -> Tensor:
    """Mean of d^2 / (2 beta) where d = |x - target| < beta, else d - beta / 2. arXiv:1504.08083."""
    if not isinstance(beta, (int, float)) or not beta >= 0:
        raise ValueError(f"smooth_l1_loss: expected beta of at least 0, got {beta}.")
    return _value_and_mean("smooth_l1_loss", (x, target), reduction, (beta,))


def huber_loss(x: Tensor, target: Tensor, delta: float = 1.0, reduction: str = "mean") -> Tensor:
    """Mean of d^2 / 2 where d = |x - target| < delta, else delta (d - delta / 2). Source: Huber 1964."""
    if not isinstance(delta, (int, float)) or not delta > 0:
        raise ValueError(f"huber_loss: expected delta above 0, got {delta}.")
    return _value_and_mean("huber_loss", (x, target), reduction, (delta,))


def binary_cross_entropy(p: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Mean of -(t log p + (1 - t) log(1 - p)) for probabilities p; logarithms are taken as -100 at least."""
    return _value_and_mean("binary_cross_entropy", (p, target), reduction, ())


def binary_cross_entropy_with_logits(
    x: Tensor, target: Tensor, pos_weight: Operand | None = None, reduction: str = "mean"
) -> Tensor:
    """binary_cross_entropy(sigmoid(x), target) without overflow; `pos_weight` multiplies the positive targets' term.

    loss = (1 - t) x + (1 + (w - 1) t) softplus(-x)
    """
    weight = 1.0 if pos_weight is None else pos_weight
    return _value_and_mean("binary_cross_entropy_with_logits", (x, target, weight), reduction, ())


def kl_div(x: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """Mean of t (log t - x) for log-probabilities x; terms of probability 0 are 0.

    "batchmean" divides the sum by the batch size instead.
    With `log_target` the target holds log-probabilities too.
    """
    return _value_and_mean("kl_div_log" if log_target else "kl_div", (x, target), reduction, ())


def hinge_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Mean of max(0, 1 - t x) for targets -1 and 1."""
    return _value_and_mean("hinge_loss", (x, target), reduction, ())


# -- negative log-likelihood -------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _nll(weighted: bool) -> Chain:
    inputs = ("z", "t", "col", *(("w",) if weighted else ()))
    lines = ["hit = EQ(col, t)", "kept = NE(t, ignore)"]
    lines.append(f"wy = {'SUM(WHERE(hit, w, 0))' if weighted else 'ADD(kept, 0)'}")
    lines.append("loss = WHERE(kept, MUL(wy, NEG(SUM(WHERE(hit, z, 0)))), 0)")
    lines.append("weight = WHERE(kept, wy, 0)")
    results = ("loss", "weight")
    return formula("nll_loss", inputs, *lines, outputs=results, kinds=("drop", "drop"), scalars=("ignore",))


@lru_cache(maxsize=4)
def _nll_backward(weighted: bool) -> Chain:
    up = "MUL(MUL(g, scale), w)" if weighted else "MUL(g, scale)"
    inputs = ("t", "col", *(("w",) if weighted else ()), "g", "scale")
    slope = f"y = WHERE(NE(t, ignore), WHERE(hit, NEG({up}), 0), 0)"
    chain = formula("nll_loss_grad", inputs, "hit = EQ(col, t)", slope, scalars=("ignore",))
    return replace(chain, axes=0, kinds=())  # nothing is reduced: a map


def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> tuple[Tensor, Saved]:
    """Mean of -w_y x[y] over the labels y that are not `ignore_index`, over their weights; ops add what backward needs.

    Shapes: x (N, C, ...) log-probabilities; target (N, ...) int32 or int64 in [0, C); weight (C,).
    Raises what cross_entropy raises.
    """
    z, t = _labelled(x, target, weight, reduction)
    compute = compute_dtype(z.dtype)
    chain = _nll(weight is not None)
    tensors = operands(z, t, weight, True, compute)
    loss, weights = run_rows(chain, compute, (compute, compute), tensors, [float(ignore_index)])
    job = Labelled(z, t, weight, ignore_index, mean=reduction == "mean", where="nll_loss")
    total, scale = finish(job, loss, weights)
    if reduction == "none":
        return loss.reshape(target.shape), Saved(loss, one(z.queue, compute))
    return total, Saved(loss, scale)


def nll_loss_grad(
    g: Tensor,
    x: Any,
    target: Tensor,
    saved: Saved,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """-w_y * upstream at each label, 0 elsewhere; of x only shape and dtype are used."""
    n = x.shape[1]
    moved = (x.shape[0], *x.shape[2:], n)
    compute = compute_dtype(x.dtype)
    upstream = g.reshape(-1, 1) if reduction == "none" else g
    labels = target.reshape(-1, 1).expand(target.size, n)
    tensors = [*operands(labels, labels, weight, True, compute)[2:], upstream, saved.scale]
    dx = run(_nll_backward(weight is not None), compute, (x.dtype,), [labels, *tensors], [float(ignore_index)])[0]
    return dx if x.ndim == 2 else dx.reshape(moved).permute(0, x.ndim - 1, *range(1, x.ndim - 1))


def _labelled(x: Tensor, target: Tensor, weight: Tensor | None, reduction: str) -> tuple[Tensor, Tensor]:
    z, t, labels = arranged(x, target, weight, 0.0, reduction, "nll_loss")
    if not labels:
        raise ShapeError(f"nll_loss: expected int32 or int64 labels, got {target.dtype} of shape {target.shape}.")
    return z, t
