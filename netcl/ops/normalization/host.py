"""Norms on the NumPy backend: one forward and one backward pass for layer, RMS, group and batch norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from netcl.core.backend import cpu
from netcl.core.dtypes import compute_dtype
from netcl.core.layout import Shape
from netcl.core.tensor import Tensor
from netcl.ops.normalization.problem import Needs, Optional


@dataclass(frozen=True)
class View:
    """How NumPy sees a norm: x in `shape`, statistics over its `axes`, weight and bias of shape `own` as `parameters`.

    Where `parameters` has length one, weight and bias are the same along the axis.
    """

    shape: Shape
    axes: tuple[int, ...]
    parameters: Shape
    own: Shape
    values: int  # behind a statistic; at least one, so that nothing divides by zero
    statistics: tuple[Shape, Shape]  # the shape of statistics, and the same that broadcasts with x


def view_of(shape: Shape, axes: tuple[int, ...], parameters: Shape, own: Shape) -> View:
    """The view, with what follows from the rest worked out once."""
    spread = tuple(1 if a in axes else n for a, n in enumerate(shape))
    statistics = tuple(n for a, n in enumerate(shape) if a not in axes), spread
    return View(shape, axes, parameters, own, max(math.prod(shape[a] for a in axes), 1), statistics)


def plan_forward(view: View, **settings: Any) -> Callable[..., tuple[Tensor, ...]]:
    """(x, weight, bias, eps) -> (y, mean, rstd, unbiased variance)."""

    def run(x: Tensor, weight: Optional, bias: Optional, eps: float) -> tuple[Tensor, ...]:
        given = (weight is not None, bias is not None)
        tensors = [t for t in (x, weight, bias) if t is not None]
        return cpu.compute(forward, *tensors, view=view, given=given, eps=float(eps), **settings)

    return run


def plan_backward(view: View, needs: Needs, **settings: Any) -> Callable[..., tuple[Optional, Optional, Optional]]:
    """(g, x, mean, rstd, weight, bias) -> those of dx, dweight and dbias that `needs` names."""

    def run(
        g: Tensor, x: Tensor, mean: Optional, rstd: Tensor, weight: Optional, bias: Optional = None
    ) -> tuple[Optional, Optional, Optional]:
        given = tuple(t is not None for t in (mean, weight, bias))
        tensors = [t for t in (g, x, rstd, mean, weight, bias) if t is not None]
        found = iter(cpu.compute(backward, *tensors, view=view, given=given, needs=tuple(needs), **settings))
        dx, dw, db = (next(found) if need else None for need in needs)
        return dx, dw, db

    return run


def _placed(arrays: Sequence[np.ndarray], given: Sequence[bool]) -> list[np.ndarray | None]:
    """The arrays at the positions that are given, None at the others."""
    left = iter(arrays)
    return [next(left) if g else None for g in given]


def _affine(h: np.ndarray, view: View, weight: np.ndarray | None, bias: np.ndarray | None) -> np.ndarray:
    """h * weight + bias, as far as they are there."""
    if weight is not None:
        h = h * weight.astype(h.dtype, copy=False).reshape(view.parameters)
    return h if bias is None else h + bias.astype(h.dtype, copy=False).reshape(view.parameters)


def forward(
    x: np.ndarray, *parameters: np.ndarray, view: View, given: Any, eps: float, rms: bool = False, relu: bool = False
) -> tuple[np.ndarray, ...]:
    """(y, mean, rstd, unbiased variance); RMS norm has no mean, and a copy of rstd in its place."""
    compute = compute_dtype(x.dtype)
    v, n = x.astype(compute, copy=False).reshape(view.shape), compute.type(view.values)
    if not rms:
        mean = v.sum(axis=view.axes, keepdims=True) / n
        v = v - mean
    squares = (v * v).sum(axis=view.axes, keepdims=True)
    rstd = 1 / np.sqrt(squares / n + compute.type(eps))
    y = _affine(v * rstd, view, *_placed(parameters, given))
    y = np.where(y < 0, 0, y) if relu else y
    statistics = [a.reshape(view.statistics[0]) for a in (rstd.copy() if rms else mean, rstd, squares / max(n - 1, 1))]
    return y.reshape(x.shape).astype(x.dtype, copy=False), *statistics


def apply(x: np.ndarray, *rest: np.ndarray, view: View, given: Any, eps: float, relu: bool) -> np.ndarray:
    """y from the mean and the variance, which come last."""
    compute = compute_dtype(x.dtype)
    *parameters, mean, var = rest
    spread = view.statistics[1]
    rstd = (1 / np.sqrt(var + compute.type(eps))).reshape(spread)
    h = (x.astype(compute, copy=False).reshape(view.shape) - mean.reshape(spread)) * rstd
    y = _affine(h, view, *_placed(parameters, given))
    return (np.where(y < 0, 0, y) if relu else y).reshape(x.shape).astype(x.dtype, copy=False)


def backward(
    g: np.ndarray,
    x: np.ndarray,
    rstd: np.ndarray,
    *rest: np.ndarray,
    view: View,
    given: Any,
    needs: Needs,
    relu: bool = False,
    fixed: bool = False,
) -> tuple[np.ndarray, ...]:
    """Those of dx, dweight and dbias that are needed, from mean (none: RMS norm), weight and bias as far as `given`.

    relu: g counts where that of the result is not 0. fixed: mean and rstd are constants.
    """
    compute, spread = compute_dtype(x.dtype), view.statistics[1]
    mean, weight, bias = _placed(rest, given)
    k = rstd.astype(compute, copy=False).reshape(spread)
    h = x.astype(compute, copy=False).reshape(view.shape)
    h = h * k if mean is None else (h - mean.astype(compute, copy=False).reshape(spread)) * k
    u = g.astype(compute, copy=False).reshape(view.shape)
    if relu:
        y = _affine(h, view, weight, bias)
        u = np.where(y > 0, u, np.where(y <= 0, 0, y)).astype(compute, copy=False)  # NaN stays NaN
    same = tuple(a for a, n in enumerate(view.parameters) if n == 1)
    stored = compute if weight is None else weight.dtype
    found = [
        of.sum(axis=same).reshape(view.own).astype(stored) for of, need in ((u * h, needs[1]), (u, needs[2])) if need
    ]
    if not needs[0]:
        return tuple(found)
    dx = u = _affine(u, view, weight, None)
    if not fixed:
        n = compute.type(view.values)
        dx = u - h * ((u * h).sum(axis=view.axes, keepdims=True) / n)
        dx = dx if mean is None else dx - u.sum(axis=view.axes, keepdims=True) / n
    return (dx * k).reshape(x.shape).astype(x.dtype), *found
