"""Gradients of reductions: mostly the result's gradient seen through the input's shape, without a copy."""

from __future__ import annotations

from typing import Any

from netcl.autograd.op import register_op
from netcl.core.tensor import Tensor
from netcl.ops import elementwise, reduction


def _sum_grad(g: Tensor, y: Any, x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    return reduction.spread(g, x.shape, axis)


def _mean_grad(g: Tensor, y: Any, x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    n = x.size // max(g.size, 1)
    return reduction.spread(elementwise.mul(g, 1.0 / max(n, 1)), x.shape, axis)


def _extreme_grad(g: Tensor, y: Tensor, x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return reduction.extreme_grad(g, x, y, axis)


register_op("sum", reduction.sum, _sum_grad, saves=())
register_op("mean", reduction.mean, _mean_grad, saves=())
register_op("max", reduction.max, _extreme_grad, saves=("y", 0))
register_op("min", reduction.min, _extreme_grad, saves=("y", 0))
register_op(
    "prod", reduction.prod, lambda g, y, x, axis=None, keepdims=False: reduction.prod_grad(g, x, axis), saves=(0,)
)
register_op(
    "var",
    reduction.var,
    lambda g, y, x, axis=None, keepdims=False, correction=0: reduction.var_grad(g, x, axis, correction),
    saves=(0,),
)
register_op(
    "std",
    reduction.std,
    lambda g, y, x, axis=None, keepdims=False, correction=0: reduction.std_grad(g, x, y, axis, correction),
    saves=("y", 0),
)
register_op(
    "logsumexp",
    reduction.logsumexp,
    lambda g, y, x, axis=None, keepdims=False: reduction.logsumexp_grad(g, x, y, axis),
    saves=("y", 0),
)
register_op(
    "norm",
    reduction.norm,
    lambda g, y, x, ord=2, axis=None, keepdims=False: reduction.norm_grad(g, x, y, ord, axis),
    saves=("y", 0),
)
for _name in ("argmax", "argmin", "any", "all"):
    register_op(_name, getattr(reduction, _name))
