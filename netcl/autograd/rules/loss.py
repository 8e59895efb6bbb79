"""Gradients of softmax and of losses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from netcl.autograd.jit import shapes
from netcl.autograd.op import register_op
from netcl.autograd.state import state
from netcl.core.dtypes import as_dtype, common_dtype, compute_dtype, is_float
from netcl.core.tensor import Tensor
from netcl.ops import elementwise
from netcl.ops.losses import cross_entropy, loss
from netcl.ops.normalization import softmax


def _cross_entropy(logits: Tensor, target: Tensor, *, recorded: bool, **settings: Any) -> tuple[Tensor, Any]:
    """The loss, with its gradient where that pays; one large gradient a tape, so that memory holds no more than before.

    Where autocast is on the loss will be scaled, and the gradient for the upstream gradient 1 is of no use.
    """
    tape = state.tape
    room = tape is not None and not tape.early and state.autocast is None
    loss, saved = cross_entropy.cross_entropy(logits, target, gradient=recorded, room=room, **settings)
    if recorded and tape is not None and room and cross_entropy.many(logits):
        tape.early = saved.ready
    return loss, saved


def _cross_entropy_grad(
    g: Tensor, y: Any, logits: Tensor, target: Tensor, *, needs: Sequence[bool], aux: Any, **settings: Any
) -> list[Tensor | None]:
    dz = cross_entropy.cross_entropy_grad(g, logits, target, aux, **settings) if needs[0] else None
    return [dz, _probabilities_grad(g, logits, aux, **settings) if needs[1] else None]


def _probabilities_grad(
    g: Tensor, logits: Tensor, saved: Any, weight: Tensor | None = None, label_smoothing: float = 0.0,
    reduction: str = "mean", ignore_index: int = -100,
) -> Tensor:  # fmt: skip
    """Gradient for targets that are probabilities: upstream * (1 - e) * w * -log p."""
    up = elementwise.mul(g, saved.scale) if reduction != "none" else g.unsqueeze(1)
    scaled = elementwise.mul(up, label_smoothing - 1.0)
    if weight is not None:
        scaled = elementwise.mul(scaled, weight.reshape(-1, *(1,) * (logits.ndim - 2)))
    result: Tensor = elementwise.mul(softmax.log_softmax(logits, 1), scaled)
    return result


register_op("softmax", softmax.softmax, lambda g, y, x, axis=-1: softmax.softmax_grad(g, y, axis), saves=("y",))
register_op(
    "log_softmax", softmax.log_softmax, lambda g, y, x, axis=-1: softmax.log_softmax_grad(g, y, axis), saves=("y",)
)
register_op("cross_entropy", _cross_entropy, _cross_entropy_grad, saves=(0, 1), aux=True)


def _nll_grad(g: Tensor, y: Any, x: Any, target: Tensor, *, aux: Any, **settings: Any) -> list[Tensor | None]:
    return [loss.nll_loss_grad(g, x, target, aux, **settings), None]


register_op("nll_loss", loss.nll_loss, _nll_grad, saves=(1,), aux=True)


def _row_grad(name: str) -> Any:
    def backward(g: Tensor, y: Any, *xs: Any, needs: Sequence[bool], **settings: Any) -> list[Tensor | None]:
        return loss.loss_grad(name, g, xs, needs, **settings)

    return backward


for _name in loss.LOSSES:
    if _name != "kl_div_log":
        register_op(_name, getattr(loss, _name), _row_grad(_name))
register_op("kl_div_log", lambda x, t, reduction="mean": loss.kl_div(x, t, reduction, True), _row_grad("kl_div_log"))


def _loss_shape(name: str, x: Any, target: Any, weight: Any = 1.0, reduction: str = "mean", **_: Any) -> shapes.Facts:
    tensors = [t for t in (x, target, weight) if hasattr(t, "shape")]
    dtype = as_dtype(common_dtype(*[t.dtype for t in tensors if is_float(t.dtype)]))
    shape = loss.result_shape(name, x, target, weight)
    return (1,) if reduction != "none" else shape, dtype


for _name in loss.LOSSES:
    shapes.rule(_name)(partial(_loss_shape, _name))


@shapes.rule("nll_loss")
def _nll_shape(x: Any, target: Any, reduction: str = "mean", **_: Any) -> shapes.Facts:
    return (1,) if reduction != "none" else target.shape, compute_dtype(x.dtype)
