"""Group and instance norm of (N, C, ...), with gradients.

A group of channels is one contiguous row, so these run on the row kernels of norm_cpu.cl and norm_gpu.cl.
"""

from __future__ import annotations

from collections.abc import Callable

from netcl.core.errors import ShapeError
from netcl.core.layout import as_int
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
    sizes_of,
)


def group_norm(
    x: Tensor, num_groups: int, weight: Optional = None, bias: Optional = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """y = (x - mean) * rstd * weight + bias with statistics per sample and group of C / num_groups channels.

    Shapes: x (N, C, ...); weight, bias (C,); returns y like x, mean and rstd (N, num_groups) in the compute dtype.
    Raises: ShapeError when num_groups does not divide C. Source: Wu and He 2018, arXiv:1803.08494.
    """
    num_groups = num_groups if type(num_groups) is int else as_int("group_norm", num_groups, "num_groups", 1)
    key = ("group_norm", num_groups, *layouts(x.queue, x, weight, bias))
    plan = remember(x.queue, key, lambda: _plan_forward(x, num_groups, weight, bias))
    y, mean, rstd, *_ = plan(x, weight, bias, eps)
    return y, mean, rstd


def group_norm_grad(
    g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Optional = None, needs: Needs = (True, True, True)
) -> tuple[Optional, Optional, Optional]:
    """(dx, dweight, dbias) of `group_norm`, None where `needs` says so; mean, rstd (N, num_groups) of the forward pass.

    The formula of `layer_norm_grad` per group; dweight and dbias sum over samples and positions, in weight's dtype.
    """
    needs = tuple(map(bool, needs))
    key = ("group_norm_grad", needs, *layouts(x.queue, g, x, mean, rstd, weight))
    plan = remember(x.queue, key, lambda: _plan_backward(g, x, mean, rstd, weight, needs))
    return plan(g, x, mean, rstd, weight)


def instance_norm(
    x: Tensor, weight: Optional = None, bias: Optional = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """`group_norm` with one channel per group. Its gradient is `group_norm_grad`. Source: arXiv:1607.08022."""
    if x.ndim < 3:
        raise ShapeError(f"instance_norm: expected (N, C, ...) with at least three axes, got shape {x.shape}.")
    return group_norm(x, x.shape[1], weight, bias, eps)


# -- plans -------------------------------------------------------------------------------------------------------------


def _plan_forward(x: Tensor, groups: int, weight: Optional, bias: Optional) -> Callable[..., tuple[Tensor, ...]]:
    _check_groups("group_norm", groups, weight, bias, x)
    r = _rows_of(x, groups)
    if x.backend == "cl":
        return rows.plan_forward(x, weight, bias, (x.shape[0], groups), r)
    if route.special:
        route.sole(NORM)
    return host.plan_forward(_view(x, r))


def _plan_backward(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Optional, needs: Needs) -> rows.Backward:
    check_float("group_norm_grad", x)
    check_same("group_norm_grad", "g", g, x)
    if mean.ndim != 2 or mean.shape != rstd.shape or mean.shape[:1] != x.shape[:1]:
        raise ShapeError(f"group_norm_grad: expected mean and rstd (N, groups), got {mean.shape} and {rstd.shape}.")
    _check_groups("group_norm_grad", mean.shape[1], weight, None, x, g, mean, rstd)
    if not any(needs):
        return lambda *_: (None, None, None)
    r = _rows_of(x, mean.shape[1])
    if x.backend == "cl":
        return rows.plan_backward(g, x, mean, weight, r, needs, x.shape[1:2])
    if route.special:
        route.sole(NORM)
    return host.plan_backward(_view(x, r), needs)


def _rows_of(x: Tensor, groups: int) -> Rows:
    """A group of channels of one sample is a row."""
    n, c, span = sizes_of(x)
    per = c // groups
    return Rows(n * groups, per * span, groups, per, span)


def _view(x: Tensor, r: Rows) -> host.View:
    return host.view_of((x.shape[0], r.groups, r.per, r.span), (2, 3), (1, r.groups, r.per, 1), x.shape[1:2])


def _check_groups(where: str, groups: int, weight: Optional, bias: Optional, x: Tensor, *others: Tensor) -> None:
    check_float(where, x)
    if x.ndim < 2:
        raise ShapeError(f"{where}: expected (N, C, ...), got shape {x.shape}.")
    if as_int(where, groups, "num_groups") < 1 or x.shape[1] % groups:
        raise ShapeError(f"{where}: expected a number of groups that divides {x.shape[1]} channels, got {groups}.")
    check_affine(where, x.shape[1:2], weight, bias, x, *others)
