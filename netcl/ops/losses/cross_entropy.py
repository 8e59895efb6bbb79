"""Cross-entropy with class indices or probabilities: one row kernel and one small sum forward, one row kernel backward.

With p = softmax(z), smoothing e over C classes, class weights w (ones by default) and label y of a row:

    loss  = (1 - e) * w_y * (-log p_y) + e / C * sum_c w_c * (-log p_c)
    mean  = sum(loss) / sum(w_y) over the rows that are not ignored

Forward keeps one logsumexp per row; the probabilities are never stored. Few labels take one launch. With labels forward
can leave the gradient for the upstream gradient 1 as well: backward then takes no launch and does not read the logits.
Source: Szegedy et al. 2016, arXiv:1512.00567.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from netcl.core.backend import cpu
from netcl.core.backend.opencl import arm_flag, flag_buffer, index_message, launch
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import C_NAME, INT32, INT64, DType, compute_dtype, is_float
from netcl.core.errors import DTypeError, IndexOutOfRange, ShapeError
from netcl.core.layout import Shape
from netcl.core.queue import state_of
from netcl.core.tensor import Tensor, allocate, same_queue
from netcl.fusion.formula import formula
from netcl.fusion.render import Chain
from netcl.fusion.rows import run_rows
from netcl.kernels import sources
from netcl.ops import reduction as reduction_ops
from netcl.runtime.cache import get_kernel

REDUCTIONS = ("mean", "sum", "none")
FEW_ON_CPU, FEW_ON_GPU, FEW_CLASSES = 1 << 10, 1 << 13, 64  # logits up to which one group computes a whole loss
MANY_ON_CPU, MANY_ON_GPU = 1 << 18, 1 << 20  # logits from which a pass less over them is worth a launch
_TYPES = (None, None, None, INT64, INT64, INT64, INT64, INT32)  # of labels, out, flag and the numbers after them


class Kept(NamedTuple):
    """What backward needs besides logits and target: logsumexp per row, and 1 / (sum of weights) as one number.

    `ready` may hold the gradient for the upstream gradient 1. The first backward takes it, since its receiver may write
    to it, or drops it; later ones compute their own.
    """

    lse: Tensor
    scale: Tensor
    ready: list[Tensor] | None = None


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
) -> tuple[Tensor, Kept]:
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
    if labels and reduction != "none" and _few(z, weight):
        return _at_once(z, t, weight, ignore_index, label_smoothing, mean, gradient)
    tensors = operands(z, t, weight, labels, compute)
    scalars = [*([float(ignore_index)] if labels else []), *([label_smoothing] if label_smoothing else [])]
    one, ready = reduction_ops.one(z.queue, compute), list[Tensor]()
    outputs = (compute,) * (3 if labels else 2)
    if slope := labels and gradient and room and reduction != "none" and many(z):
        tensors.append(_label_scale(z, t, weight, ignore_index) if mean else one)
        outputs += (z.dtype,)
    chain = _forward(labels, weight is not None, label_smoothing > 0, slope)
    loss, lse, *more = run_rows(chain, compute, outputs, tensors, scalars)
    if labels:
        ready += more[1:]
        total, scale = finish(loss, more[0], t, z.shape[-1], ignore_index, mean=mean)
    else:
        total = reduction_ops.mean(loss) if mean else reduction_ops.sum(loss)
        scale = Tensor.full(z.queue, (1,), 1 / loss.size, compute) if mean else one
    if reduction == "none":
        shape = target.shape if labels else logits.shape[:1] + logits.shape[2:]
        return loss.reshape(shape), Kept(lse, one)
    return total, Kept(lse, scale, ready)


def cross_entropy_grad(
    g: Tensor,
    logits: Tensor,
    target: Tensor,
    kept: Kept,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """d loss / d logits for the upstream gradient `g`, in the logits' dtype and shape."""
    z, t, labels = arranged(logits, target, weight, label_smoothing, reduction)
    compute = compute_dtype(z.dtype)
    if kept.ready:
        dz = kept.ready.pop()
        if g is reduction_ops.one(z.queue, compute):
            return _placed(dz, logits.shape)
        del dz  # before as much is allocated again
    upstream = g.reshape(-1, 1) if reduction == "none" else g
    tensors = [*operands(z, t, weight, labels, compute), kept.lse.unsqueeze(1), upstream, kept.scale]
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


def _positions(queue: Any, n: int, dtype: DType) -> Tensor:
    """0 ... n-1, made once per queue."""
    plans, key = state_of(queue).plans, ("positions", n, dtype)
    if key not in plans:
        plans[key] = Tensor.from_host(queue, np.arange(n, dtype=dtype))
    return plans[key]  # type: ignore[no-any-return]


def operands(z: Tensor, t: Tensor, weight: Tensor | None, labels: bool, compute: DType) -> list[Tensor]:
    """z, t as a column beside it, the numbers of the classes where t holds labels, and the weights."""
    columns = [_positions(z.queue, z.shape[-1], compute)] if labels else []
    return [z, t.unsqueeze(1) if labels else t, *columns, *([] if weight is None else [weight])]


def finish(
    loss: Tensor,
    weights: Tensor,
    labels: Tensor,
    classes: int,
    ignore: int,
    *,
    mean: bool,
    where: str = "cross_entropy",
) -> tuple[Tensor, Tensor]:
    """Check the labels and add up the rows: (loss, 1 / sum of weights or 1), each of shape (1,)."""
    if loss.backend == "cpu":
        _check_on_host(where, labels, classes, ignore)
        return cpu.compute(_numpy_finish, loss, weights, mean=mean)  # type: ignore[no-any-return]
    queue, labels = loss.queue, labels.contiguous()
    source, group = _program(queue, loss.dtype, loss.dtype, labels.dtype, mean)
    out = allocate(queue, (2,), loss.dtype)
    kernel = get_kernel(queue, source, "reduce_loss", (None, None, *_TYPES), ("-w",))
    launch(
        kernel, queue, (group,), (group,), loss.buffer, weights.buffer, labels.buffer, out.buffer, flag_buffer(queue),
        labels.offset, loss.size, classes, ignore, arm_flag(queue, where),
    )  # fmt: skip
    return out[:1], out[1:]


def _program(
    queue: Any, storage: DType, compute: DType, label: DType, mean: bool, **flags: int
) -> tuple[str, int]:  # fmt: skip
    """The text of loss.cl and the size of its group."""
    profile, element = profile_of(queue), C_NAME[compute]
    group = 1 if profile.kind == "cpu" else profile.group(256)
    source = sources.load(
        "loss.cl", WG=group, LABEL=C_NAME[label], S=C_NAME[storage], E=element, MEAN=int(mean),
        ACC="double" if group == 1 and profile.has_fp64 else element, **flags,
    )  # fmt: skip
    return source, group


def _few(z: Tensor, weight: Tensor | None) -> bool:
    """Whether one group takes less time for all rows than another launch does."""
    if z.backend == "cpu" or (weight is not None and (weight.dtype != z.dtype or not weight.is_contiguous)):
        return False
    most = FEW_ON_CPU if profile_of(z.queue).kind == "cpu" else FEW_ON_GPU
    return z.size <= most and z.shape[1] <= FEW_CLASSES


def _at_once(
    z: Tensor, t: Tensor, weight: Tensor | None, ignore: int, smoothing: float, mean: bool, gradient: bool
) -> tuple[Tensor, Kept]:
    """As the rows' kernel and `finish`, in one launch."""
    queue, compute, t = z.queue, compute_dtype(z.dtype), t.contiguous()
    flags = {
        "LOGITS": True, "CLASS_WEIGHTS": weight is not None, "SMOOTH": smoothing > 0, "GRADIENT": gradient
    }  # fmt: skip
    source, group = _program(queue, z.dtype, compute, t.dtype, mean, **{name: 1 for name, on in flags.items() if on})
    out, lse = allocate(queue, (2,), compute), allocate(queue, z.shape[:1], compute)
    dz = allocate(queue, z.shape, z.dtype) if gradient else None
    w, slope = (z if weight is None else weight), (z if dz is None else dz)
    kernel = get_kernel(queue, source, "reduce_loss", (*(None,) * 4, *(INT64,) * 4, compute, *_TYPES), ("-w",))
    launch(
        kernel, queue, (group,), (group,), z.buffer, w.buffer, lse.buffer, slope.buffer, z.offset, *z.strides, w.offset,
        smoothing, t.buffer, out.buffer, flag_buffer(queue), t.offset, *z.shape, ignore,
        arm_flag(queue, "cross_entropy"),
    )  # fmt: skip
    return out[:1], Kept(lse, out[1:], None if dz is None else [dz])


def many(z: Tensor) -> bool:
    """Whether a pass over the logits takes more time than a launch."""
    if z.backend == "cpu":
        return False
    return z.size >= (MANY_ON_CPU if profile_of(z.queue).kind == "cpu" else MANY_ON_GPU)


def _label_scale(z: Tensor, t: Tensor, weight: Tensor | None, ignore: int) -> Tensor:
    """1 / (sum of the weights of labels that count), shape (1,): what `finish` gives, before the losses are known."""
    queue, compute, t = z.queue, compute_dtype(z.dtype), t.contiguous()
    flags = {} if weight is None else {"CLASS_WEIGHTS": 1}
    w = z if weight is None else weight.contiguous()
    source, group = _program(queue, w.dtype, compute, t.dtype, True, **flags)
    out = allocate(queue, (1,), compute)
    kernel = get_kernel(queue, source, "reduce_weights", (*(None,) * 3, *(INT64,) * 5), ("-w",))
    launch(
        kernel, queue, (group,), (group,), t.buffer, w.buffer, out.buffer, t.offset, w.offset, *z.shape, ignore
    )  # fmt: skip
    return out


def _check_on_host(where: str, labels: Tensor, classes: int, ignore: int) -> None:
    values = labels.array
    bad = values[(values != ignore) & ((values < 0) | (values >= classes))]
    if bad.size:
        raise IndexOutOfRange(index_message(where, int(bad.flat[0]), classes))


def _numpy_finish(loss: np.ndarray, weights: np.ndarray, mean: bool) -> tuple[np.ndarray, np.ndarray]:
    total = loss.sum(dtype=np.float64)
    one = np.float64(1) / weights.sum(dtype=np.float64) if mean else np.float64(1)
    return np.asarray([total * one], loss.dtype), np.asarray([one], loss.dtype)
