"""Gradient clipping on the device: nothing is read back."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from netcl.core.arguments import flag, number
from netcl.core.dtypes import FLOAT32
from netcl.core.errors import DTypeError, GradientError
from netcl.core.kernels import dialect
from netcl.core.live import recording
from netcl.core.tensor import Tensor
from netcl.fusion.chain import Chain
from netcl.fusion.map import run
from netcl.ops.total_norm import total_norm
from netcl.ops.update import update
from netcl.optim.optimizer import listed

# an infinite norm would give factor 0 and wipe the gradients out: it gives NaN, which the update leaves alone
dialect.define_function("CLIP_FACTOR", ("a", "most"), "where(a - a == 0, where(most < a, most / (a + 1e-6), 1), a - a)")
_FACTOR = Chain("netcl_clip_factor", ("v0",), ("most",), (("y", "CLIP_FACTOR", ("v0", "most")),), ("y",))


def _gradients(where: str, parameters: Any) -> list[Tensor]:
    """The gradients there are, each once."""
    given = listed(where, parameters)
    wrong = next((p for p in given if not hasattr(p, "grad")), None)
    if wrong is not None:
        raise DTypeError(f"{where}: expected Parameters, got {type(wrong).__name__}.")
    made = recording()
    if made is not None:
        made.parameters += given
    return list({id(p): p.grad for p in given if p.grad is not None}.values())


def clip_grad_norm_(
    parameters: Iterable[Any], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor | None:
    """Scale all gradients in place so that their norm, taken as one vector, is at most `max_norm`.

    factor = max_norm / (norm + 1e-6) where the norm is above max_norm. Returns the norm before scaling, shape (1,), on
    the device; None when there is no gradient. A norm that is NaN or infinite leaves the gradients as they are; with
    `error_if_nonfinite` it raises GradientError, which costs a wait for the device.

    Args: max_norm: at least 0; infinity only measures. norm_type: above 0; infinity for the largest element.
    """
    where = "clip_grad_norm_"
    max_norm = number(where, "max_norm", max_norm, 0, infinite=True)
    norm_type = number(where, "norm_type", norm_type, infinite=True)
    if norm_type <= 0:
        raise ValueError(f"{where}: expected norm_type above 0, got {norm_type}.")
    flag(where, "error_if_nonfinite", error_if_nonfinite)
    grads = _gradients(where, parameters)
    if not grads:
        return None
    norm = total_norm(grads, norm_type)
    if error_if_nonfinite and not math.isfinite(norm.item()):
        raise GradientError(f"clip_grad_norm_: expected a finite norm of the gradients, got {norm.item()}.")
    factor = run(_FACTOR, norm.dtype, (FLOAT32,), (norm,), (float(max_norm),))[0]
    update("copy", grads, gate=factor)
    return norm


def clip_grad_value_(parameters: Iterable[Any], clip_value: float) -> None:
    """Limit every element of every gradient to [-clip_value, clip_value], in place; clip_value is at least 0."""
    clip_value = number("clip_grad_value_", "clip_value", clip_value, 0, infinite=True)
    grads = _gradients("clip_grad_value_", parameters)
    if grads:
        update("limit", grads, most=float(clip_value))


clip_grad_norm = clip_grad_norm_device = clip_grad_norm_
clip_grad_value = clip_grad_value_
