"""Layer norm and RMS norm over trailing axes, with gradients.

Sums run in float32 for half and float32, in double for double. Kernels: norm_cpu.cl for CPU devices, norm_gpu.cl for
everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netcl.core import layout
from netcl.core.errors import ShapeError
from netcl.core.tensor import Tensor
from netcl.kernels import route
from netcl.kernels.plans import remember
from netcl.ops.normalization import host, rows
from netcl.ops.normalization.grid import NORM
from netcl.ops.normalization.problem import (
    Needs,
    Optional,
    Rows,
    check_affine,
    check_float,
    check_same,
    layouts,
)

Forward = Callable[..., tuple[Tensor, ...]]  # of x, weight, bias and eps


def layer_norm(
    x: Tensor, weight: Optional = None, bias: Optional = None, axes: Any = -1, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """y = (x - mean) * rstd * weight + bias over the trailing `axes`, rstd = 1 / sqrt(var + eps), var biased.

    Shapes: x (R..., n...); weight, bias (n...); returns y like x, mean and rstd (R...) in the compute dtype.
    Memory: two numbers per row are all that the backward pass needs besides x.
    Raises: ShapeError when `axes` are not the last ones or weight, bias do not fit; DTypeError for integers.
    Source: Ba et al. 2016, arXiv:1607.06450.
    """
    return _forward("layer_norm", x, weight, bias, axes, eps, False)


def rms_norm(x: Tensor, weight: Optional = None, axes: Any = -1, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """y = x * rstd * weight over the trailing `axes`, rstd = 1 / sqrt(mean(x^2) + eps); eps stays in the compute dtype.

    Shapes: x (R..., n...); weight (n...); returns y like x and rstd (R...) in the compute dtype.
    Raises: ShapeError when `axes` are not the last ones or weight does not fit; DTypeError for integers.
    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    y, _, rstd = _forward("rms_norm", x, weight, None, axes, eps, True)
    return y, rstd


def layer_norm_grad(
    g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Optional = None, needs: Needs = (True, True, True)
) -> tuple[Optional, Optional, Optional]:
    """(dx, dweight, dbias) of `layer_norm`, None where `needs` says so; mean and rstd are those of the forward pass.

    With h = (x - mean) rstd, u = g weight: dx = rstd (u - mean(u) - h mean(u h)), dweight = sum g h, dbias = sum g.
    dweight and dbias have weight's dtype (the compute dtype without one); their sums use no atomics and repeat exactly.
    """
    return _backward("layer_norm_grad", g, x, mean, rstd, weight, needs)


def rms_norm_grad(
    g: Tensor, x: Tensor, rstd: Tensor, weight: Optional = None, needs: Needs = (True, True)
) -> tuple[Optional, Optional]:
    """(dx, dweight) of `rms_norm`, None where `needs` says so.

    With h = x rstd, u = g weight: dx = rstd (u - h mean(u h)), dweight = sum g h.
    """
    return _backward("rms_norm_grad", g, x, None, rstd, weight, (*needs, False))[:2]


def _first_axis(where: str, x: Tensor, axes: Any) -> int:
    """Where the normalised axes begin; they must be the last ones."""
    found = layout.as_axes(where, axes, x.ndim)
    first = x.ndim - len(found)
    if not found or found != tuple(range(first, x.ndim)):
        raise ShapeError(f"{where}: expected the last axes of shape {x.shape}, got axes {axes}; permute first.")
    return first


# -- plans -------------------------------------------------------------------------------------------------------------


def _forward(
    where: str, x: Tensor, weight: Optional, bias: Optional, axes: Any, eps: float, rms: bool
) -> tuple[Tensor, Tensor, Tensor]:
    axes = tuple(axes) if isinstance(axes, list) else axes
    key = (where, axes, *layouts(x.queue, x, weight, bias))
    plan = remember(x.queue, key, lambda: _plan_forward(where, x, weight, bias, axes, rms))
    y, mean, rstd, *_ = plan(x, weight, bias, eps)
    return y, mean, rstd


def _plan_forward(where: str, x: Tensor, weight: Optional, bias: Optional, axes: Any, rms: bool) -> Forward:
    check_float(where, x)
    first = _first_axis(where, x, axes)
    check_affine(where, x.shape[first:], weight, bias, x)
    if x.backend == "cl":
        r = Rows(layout.size_of(x.shape[:first]), layout.size_of(x.shape[first:]))
        return rows.plan_forward(x, weight, bias, x.shape[:first], r, rms)
    if route.special:
        route.sole(NORM)
    return host.plan_forward(_view(x, first), rms=rms)


def _backward(
    where: str, g: Tensor, x: Tensor, mean: Optional, rstd: Tensor, weight: Optional, needs: Needs
) -> tuple[Optional, Optional, Optional]:
    needs = tuple(map(bool, needs))
    key = (where, needs, *layouts(x.queue, g, x, mean, rstd, weight))
    plan = remember(x.queue, key, lambda: _plan_backward(where, g, x, mean, rstd, weight, needs))
    return plan(g, x, mean, rstd, weight)


def _plan_backward(
    where: str, g: Tensor, x: Tensor, mean: Optional, rstd: Tensor, weight: Optional, needs: Needs
) -> rows.Backward:
    check_float(where, x)
    check_same(where, "g", g, x)
    first = rstd.ndim
    if x.shape[:first] != rstd.shape or (mean is not None and mean.shape != rstd.shape):
        raise ShapeError(f"{where}: expected mean and rstd for the leading axes of {x.shape}, got {rstd.shape}.")
    check_affine(where, x.shape[first:], weight, None, g, x, rstd, mean)
    if not any(needs):
        return lambda *_: (None, None, None)
    if x.backend == "cl":
        r = Rows(rstd.size, layout.size_of(x.shape[first:]))
        return rows.plan_backward(g, x, mean, weight, r, needs, x.shape[first:])
    if route.special:
        route.sole(NORM)
    return host.plan_backward(_view(x, first), needs)


def _view(x: Tensor, first: int) -> host.View:
    own = x.shape[first:]
    return host.view_of(x.shape, tuple(range(first, x.ndim)), (1,) * first + own, own)
