"""Records of losses. Losses have shape (1,) unless reduction is "none"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from netcl.core.dtypes import as_dtype, common_dtype, compute_dtype, is_float
from netcl.core.tensor import Tensor
from netcl.ops import elementwise
from netcl.ops.losses import cross_entropy, loss
from netcl.ops.normalization import softmax
from netcl.ops.record import FLOAT, FLOATS, Facts, Op, register


def _cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    *,
    recorded: bool,
    room: bool,
) -> tuple[Tensor, cross_entropy.Saved]:
    """Mean of -log softmax(logits)[label] in nats.

    Shapes: logits (N, C, ...) float; labels (N, ...), int32 or int64 in [0, C), or probabilities shaped like the
    logits. The mean is over the labels that are not `ignore_index`, weighted by the class weights (C,) if given, which
    get no gradient. Returns float32 (float64 for float64). A label that is not a class raises IndexOutOfRange, on
    OpenCL at the next synchronisation. Source of label smoothing: Szegedy et al. 2016, arXiv:1512.00567.
    """
    return cross_entropy.cross_entropy(
        logits, target, weight, ignore_index, label_smoothing, reduction, gradient=recorded, room=room
    )


def _cross_entropy_grad(
    g: Tensor, y: Any, logits: Tensor, target: Tensor, *, needs: Sequence[bool], aux: Any, **settings: Any
) -> list[Tensor | None]:
    dz = cross_entropy.cross_entropy_grad(g, logits, target, aux, **settings) if needs[0] else None
    return [dz, _probabilities_grad(g, logits, aux, **settings) if needs[1] else None]


def _probabilities_grad(
    g: Tensor,
    logits: Tensor,
    saved: Any,
    weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Tensor:
    """Gradient for targets that are probabilities: upstream * (1 - e) * w * -log p."""
    up = elementwise.mul(g, saved.scale) if reduction != "none" else g.unsqueeze(1)
    scaled = elementwise.mul(up, label_smoothing - 1.0)
    if weight is not None:
        scaled = elementwise.mul(scaled, weight.reshape(-1, *(1,) * (logits.ndim - 2)))
    result: Tensor = elementwise.mul(softmax.log_softmax(logits, 1), scaled)
    return result


def _nll_grad(g: Tensor, y: Any, x: Any, target: Tensor, *, aux: Any, **settings: Any) -> list[Tensor | None]:
    return [loss.nll_loss_grad(g, x, target, aux, **settings), None]


def _entropy_shape(z: Any, target: Any, reduction: str = "mean", **_: Any) -> Facts:
    return (1,) if reduction != "none" else (z.shape[0], *z.shape[2:]), compute_dtype(z.dtype)


def _row_grad(name: str) -> Callable[..., list[Tensor | None]]:
    def backward(
        g: Tensor, y: Any, *xs: Any, needs: Sequence[bool], log_target: bool = False, **settings: Any
    ) -> list[Tensor | None]:
        row = "kl_div_log" if log_target else name
        operands = (*xs, *(1.0,) * (len(loss.LOSSES[row].inputs) - len(xs)))  # a weight that is not given
        return loss.loss_grad(row, g, operands, needs, **settings)[: len(xs)]

    return backward


def _row_shape(name: str, x: Any, target: Any, weight: Any = 1.0, reduction: str = "mean", **_: Any) -> Facts:
    tensors = [t for t in (x, target, weight) if hasattr(t, "shape")]
    dtype = as_dtype(common_dtype(*[t.dtype for t in tensors if is_float(t.dtype)]))
    shape = loss.result_shape(name, x, target, weight)
    return (1,) if reduction != "none" else shape, dtype


_labelled = partial(Op, aux=True, constants=("weight",), shape=_entropy_shape, dtypes=FLOATS, cast=FLOAT)
register(_labelled("cross_entropy", _cross_entropy, _cross_entropy_grad, (0, 1), onnx="SoftmaxCrossEntropyLoss"))
register(_labelled("nll_loss", loss.nll_loss, _nll_grad, (1,), onnx="NegativeLogLikelihoodLoss"))
for _f in (
    loss.mse_loss,
    loss.l1_loss,
    loss.smooth_l1_loss,
    loss.huber_loss,
    loss.binary_cross_entropy,
    loss.binary_cross_entropy_with_logits,
    loss.kl_div,
    loss.hinge_loss,
):
    _name = _f.__name__
    register(Op(_name, _f, _row_grad(_name), shape=partial(_row_shape, _name), dtypes=FLOATS, cast=FLOAT))
