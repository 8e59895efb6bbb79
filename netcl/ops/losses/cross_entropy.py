"""Cross-entropy with class indices or probabilities: one row kernel and one small sum forward, one row kernel backward.

With p = softmax(z), smoothing e over C classes, class weights w (ones by default) and label y of a row:

    loss  = (1 - e) * w_y * (-log p_y) + e / C * sum_c w_c * (-log p_c)
    mean  = sum(loss) / sum(w_y) over the rows that are not ignored

Forward saves one logsumexp per row; the probabilities are never stored. Few labels take one launch. With labels forward
can leave the gradient for the upstream gradient 1 as well: backward then takes no launch and does not read the logits.
Source: Szegedy et al. 2016, arXiv:1512.00567.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from netcl.core.device.profile import profile_of
from netcl.core.dtypes import INT32, INT64, DType, compute_dtype, is_float
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.layout import Shape
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor, same_queue
from netcl.fusion.chain import Chain
from netcl.fusion.formula import formula
from netcl.fusion.rows import run_rows
from netcl.kernels.plans import remember
from netcl.ops import reduction as reduction_ops
from netcl.ops.losses.labels import Labelled, finish, scale_of, whole_loss

REDUCTIONS = ("mean", "sum", "none")
FEW_ON_CPU, FEW_ON_GPU, FEW_CLASSES = 1 << 10, 1 << 13, 64  # logits up to which one group computes a whole loss
MANY_ON_CPU, MANY_ON_GPU = 1 << 18, 1 << 20  # logits from which a pass less over them is worth a launch


class Saved(NamedTuple):
    """What backward needs besides logits and target: logsumexp per row, and 1 / (sum of weights) as one number.

    `ready` may hold the gradient for the upstream gradient 1. The first backward takes it, since its receiver may write
    to it, or drops it; later ones compute their own.
    """

    lse: Tensor
    scale: Tensor
    ready: list[Tensor] | None = None
    large: bool = False  # whether `ready` holds as much as many logits


@lru_cache(maxsize=64)
def _forward(labels: bool, weighted: bool, smooth: bool, slope: bool = False) -> Chain:
    """Outputs: loss of the row, its logsumexp and, with labels, its weight.

    With `slope` (of labels) also the gradient for the upstream gradient 1 and `scale`.
    """
    inputs = ("z", "t", *(("col",) if labels else ()), *(("w",) if weighted else ()), *(("scale",) if slope else ()))
    lines = ["m = MAX(z)", "part = EXP(SUB(z, m))", "whole = SUM(part)", "lse = ADD(m, LOG(whole))"]
    if labels:
        lines += ["hit = EQ(col, t)", "zy = SUM(WHERE(hit, z, 0))", "kept = NE(t, ignore)"]
        lines += ["wy = SUM(WHERE(hit, w, 0))" if weighted else "wy = ADD(kept, 0)", "a = MUL(wy, SUB(lse, zy))"]
        if smooth:
            each = "MUL(w, SUB(lse, z))" if weighted else "SUB(lse, z)"
            lines.append(f"b = ADD(MUL(a, SUB(1, e)), MUL(DIV(e, n), SUM({each})))")
        lines += [f"loss = WHERE(kept, {'b' if smooth else 'a'}, 0)", "weight = WHERE(kept, wy, 0)"]
        lines += ["p = DIV(part, whole)", *_slope(weighted, smooth, "scale")] if slope else []
    else:
        target = "ADD(MUL(t, SUB(1, e)), DIV(e, n))" if smooth else "t"
        # WHERE: a class of probability 0 adds 0 even where its log-probability is infinite
        lines += [
            f"share = MUL({'w' if weighted else 1}, {target})",
            "loss = SUM(WHERE(share, MUL(share, SUB(lse, z)), 0))",
        ]
    scalars = (("ignore",) if labels else ()) + (("e",) if smooth else ())
    outputs = ("loss", "lse", *(("weight",) if labels else ()))
    kinds = ("drop",) * len(outputs) + (("full",) if slope else ())
    outputs += ("y",) if slope else ()
    return formula("cross_entropy", inputs, *lines, outputs=outputs, kinds=kinds, scalars=scalars)


def _slope(weighted: bool, smooth: bool, up: str) -> list[str]:
    """y, the gradient of labels, from hit, kept, p and the label's weight wy."""
    own = "MUL(wy, SUB(p, hit))" if weighted else "SUB(p, hit)"
    if smooth:
        rest = "SUB(MUL(p, SUM(w)), w)" if weighted else "SUB(MUL(p, n), 1)"
        own = f"ADD(MUL({own}, SUB(1, e)), MUL(DIV(e, n), {rest}))"
    return [f"y = WHERE(kept, MUL({up}, {own}), 0)"]


@lru_cache(maxsize=64)
def _backward(labels: bool, weighted: bool, smooth: bool) -> Chain:
    """d loss / d logits for the upstream gradient `g` and `scale`, both one number or one per row."""
    inputs = ("z", "t", *(("col",) if labels else ()), *(("w",) if weighted else ()), "lse", "g", "scale")
    lines = ["p = EXP(SUB(z, lse))", "up = MUL(g, scale)"]
    if labels:
        lines += ["hit = EQ(col, t)", "kept = NE(t, ignore)", *(["wy = SUM(WHERE(hit, w, 0))"] if weighted else [])]
        lines += _slope(weighted, smooth, "up")
    else:
        target = "ADD(MUL(t, SUB(1, e)), DIV(e, n))" if smooth else "t"
        lines += [f"share = MUL({'w' if weighted else 1}, {target})", "y = MUL(up, SUB(MUL(p, SUM(share)), share))"]
    scalars = (("ignore",) if labels else ()) + (("e",) if smooth else ())
    return formula("cross_entropy_grad", inputs, *lines, scalars=scalars)


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    gradient: bool = False,
    room: bool = True,
) -> tuple[Tensor, Saved]:
    """The loss in nats (see the module), and what `cross_entropy_grad` needs.

    Shapes: logits (N, C, ...) float; target (N, ...) int32 or int64 in [0, C), or probabilities alike; weight (C,).
    Returns float32 (float64 for float64): shape (1,), or the target's shape for reduction="none".
    Args: gradient: whether backward may follow, whose work is done here where that saves time. room: whether its result
        may be as large as many logits, until backward.
    Raises: ShapeError, DTypeError; IndexOutOfRange for a label that is neither a class nor `ignore_index` (on a device
    at the next synchronisation; no memory is read at that index).
    """
    z, t, labels = arranged(logits, target, weight, label_smoothing, reduction)
    compute, mean = compute_dtype(z.dtype), reduction == "mean"
    job = Labelled(z, t, weight, ignore_index, label_smoothing, mean)
    if labels and reduction != "none" and _few(z, weight):
        out, lse, dz = whole_loss(job, gradient)
        return out[:1], Saved(lse, out[1:], None if dz is None else [dz])
    tensors = operands(z, t, weight, labels, compute)
    scalars = [*([float(ignore_index)] if labels else []), *([label_smoothing] if label_smoothing else [])]
    one, ready = reduction_ops.one(z.queue, compute), list[Tensor]()
    outputs = (compute,) * (3 if labels else 2)
    if slope := labels and gradient and room and reduction != "none" and many(z):
        tensors.append(scale_of(job) if mean else one)
        outputs += (z.dtype,)
    chain = _forward(labels, weight is not None, label_smoothing > 0, slope)
    loss, lse, *more = run_rows(chain, compute, outputs, tensors, scalars)
    if labels:
        ready += more[1:]
        total, scale = finish(job, loss, more[0])
    else:
        total = reduction_ops.mean(loss) if mean else reduction_ops.sum(loss)
        scale = Tensor.full(z.queue, (1,), 1 / loss.size, compute) if mean else one
    if reduction == "none":
        shape = target.shape if labels else logits.shape[:1] + logits.shape[2:]
        return loss.reshape(shape), Saved(lse, one)
    return total, Saved(lse, scale, ready, slope)


def cross_entropy_grad(
    g: Tensor,
    logits: Tensor,
    target: Tensor,
    saved: Saved,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """d loss / d logits for the upstream gradient `g`, in the logits' dtype and shape."""
    z, t, labels = arranged(logits, target, weight, label_smoothing, reduction)
    compute = compute_dtype(z.dtype)
    if saved.ready:
        dz = saved.ready.pop()
        if g is reduction_ops.one(z.queue, compute):
            return _placed(dz, logits.shape)
        del dz  # before as much is allocated again
    upstream = g.reshape(-1, 1) if reduction == "none" else g
    tensors = [*operands(z, t, weight, labels, compute), saved.lse.unsqueeze(1), upstream, saved.scale]
    scalars = [*([float(ignore_index)] if labels else []), *([label_smoothing] if label_smoothing else [])]
    chain = _backward(labels, weight is not None, label_smoothing > 0)
    return _placed(run_rows(chain, compute, (z.dtype,), tensors, scalars)[0], logits.shape)


def _placed(dz: Tensor, shape: Shape) -> Tensor:
    """Rows of classes as a tensor of the logits' `shape`: undoes `arranged`."""
    if len(shape) == 2:
        return dz
    return dz.reshape(shape[0], *shape[2:], shape[1]).permute(0, len(shape) - 1, *range(1, len(shape) - 1))


def arranged(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    label_smoothing: float,
    reduction: str,
    where: str = "cross_entropy",
) -> tuple[Tensor, Tensor, bool]:
    """Logits and target with the classes last and everything else in one axis; whether targets are labels."""
    same_queue(where, logits, target, *(() if weight is None else (weight,)))
    if reduction not in REDUCTIONS:
        raise ValueError(f"{where}: expected a reduction of {', '.join(REDUCTIONS)}, got {reduction!r}.")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"{where}: expected label_smoothing in [0, 1], got {label_smoothing}.")
    if not is_float(logits.dtype):
        raise DTypeError(f"{where}: expected floating logits, got {logits.dtype}.")
    labels = not is_float(target.dtype)
    if labels and target.dtype not in (INT32, INT64):
        raise DTypeError(f"{where}: expected int32 or int64 labels or float probabilities, got {target.dtype}.")
    expected = logits.shape[:1] + logits.shape[2:] if labels else logits.shape
    if logits.ndim < 2 or target.shape != expected or logits.size == 0:
        raise ShapeError(
            f"{where}: expected logits (N, C, ...) and {'labels (N, ...)' if labels else 'probabilities alike'}, "
            f"none empty, got {logits.shape} and {target.shape}."
        )
    if weight is not None and weight.shape != logits.shape[1:2]:
        raise ShapeError(f"{where}: expected weights of shape {logits.shape[1:2]}, got {weight.shape}.")
    last: Any = lambda x: x.permute(0, *range(2, x.ndim), 1).reshape(-1, x.shape[1]) if x.ndim > 2 else x  # noqa: E731
    return last(logits), target.reshape(-1) if labels else last(target), labels


def _positions(queue: Queue, n: int, dtype: DType) -> Tensor:
    """0 ... n-1, made once per queue."""
    return remember(queue, ("positions", n, dtype), lambda: Tensor.from_host(queue, np.arange(n, dtype=dtype)))


def operands(z: Tensor, t: Tensor, weight: Tensor | None, labels: bool, compute: DType) -> list[Tensor]:
    """z, t as a column beside it, the numbers of the classes where t holds labels, and the weights."""
    columns = [_positions(z.queue, z.shape[-1], compute)] if labels else []
    return [z, t.unsqueeze(1) if labels else t, *columns, *([] if weight is None else [weight])]


def _few(z: Tensor, weight: Tensor | None) -> bool:
    """Whether one group takes less time for all rows than another launch does."""
    if z.backend == "cpu" or (weight is not None and (weight.dtype != z.dtype or not weight.is_contiguous)):
        return False
    most = FEW_ON_CPU if profile_of(z.queue).kind == "cpu" else FEW_ON_GPU
    return z.size <= most and z.shape[1] <= FEW_CLASSES


def many(z: Tensor) -> bool:
    """Whether a pass over the logits takes more time than a launch."""
    if z.backend == "cpu":
        return False
    return z.size >= (MANY_ON_CPU if profile_of(z.queue).kind == "cpu" else MANY_ON_GPU)
