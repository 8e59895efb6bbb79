"""Layer norm and RMS norm over trailing axes, with gradients.

Sums run in float32 for half and float32, in double for double. Kernels: norm_cpu.cl for CPU devices, norm_gpu.cl for
everything else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from netcl.core import layout
from netcl.core.backend import cpu
from netcl.core.dtypes import compute_dtype
from netcl.core.errors import ShapeError
from netcl.core.tensor import Tensor, same_queue
from netcl.kernels.plans import remember
from netcl.ops.normalization import rows
from netcl.ops.normalization.problem import (
    Needs,
    Optional,
    Rows,
    check_float,
    check_parameter,
    check_same,
    layouts,
)


def layer_norm(
    x: Tensor, weight: Optional = None, bias: Optional = None, axes: Any = -1, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """y = (x - mean) * rstd * weight + bias over the trailing `axes`, rstd = 1 / sqrt(var + eps), var biased.

    Shapes: x (R..., n...); weight, bias (n...); returns y like x, mean and rstd (R...) in the compute dtype.
    Memory: two numbers per row are all that the backward pass needs besides x.
    Raises: ShapeError when `axes` are not the last ones or weight, bias do not fit; DTypeError for integers.
    Source: Ba et al. 2016, arXiv:1607.06450.
    """
    y, mean, rstd = _forward("layer_norm", x, weight, bias, axes, eps, False)
    return y, mean, rstd


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
    return plan(x, weight, bias, eps)


def _plan_forward(where: str, x: Tensor, weight: Optional, bias: Optional, axes: Any, rms: bool) -> rows.Forward:
    check_float(where, x)
    first = _first_axis(where, x, axes)
    check_parameter(where, "weight", weight, x.shape[first:])
    check_parameter(where, "bias", bias, x.shape[first:])
    same_queue(where, x, *[p for p in (weight, bias) if p is not None])
    if x.backend == "cl":
        r = Rows(layout.size_of(x.shape[:first]), layout.size_of(x.shape[first:]))
        return rows.plan_forward(x, weight, bias, x.shape[:first], r, rms)

    def run(x: Tensor, weight: Optional, bias: Optional, eps: float) -> Any:
        tensors = [t for t in (x, weight, bias) if t is not None]
        given = (weight is not None, bias is not None)
        return cpu.compute(numpy_norm, *tensors, first=first, eps=float(eps), rms=rms, given=given)

    return run


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
    check_parameter(where, "weight", weight, x.shape[first:])
    same_queue(where, g, x, rstd, *[t for t in (mean, weight) if t is not None])
    if not any(needs):
        return lambda *_: (None, None, None)
    if x.backend == "cl":
        r = Rows(rstd.size, layout.size_of(x.shape[first:]))
        return rows.plan_backward(g, x, mean, weight, r, needs, x.shape[first:])

    def run(g: Tensor, x: Tensor, mean: Optional, rstd: Tensor, weight: Optional) -> Any:
        tensors = [t for t in (g, x, rstd, mean, weight) if t is not None]
        weighted = weight is not None
        found = cpu.compute(numpy_norm_grad, *tensors, rms=mean is None, weighted=weighted, needs=needs)
        results = list(found if isinstance(found, tuple) else (found,))
        return tuple(results.pop(0) if need else None for need in needs)

    return run


# -- NumPy -------------------------------------------------------------------------------------------------------------


def numpy_norm(
    x: np.ndarray, *affine: np.ndarray, first: int, eps: float, rms: bool, given: tuple[bool, bool]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The forward pass with NumPy: y, mean (rms: a copy of rstd), rstd."""
    compute = compute_dtype(x.dtype)
    axes = tuple(range(first, x.ndim))
    v = x.astype(compute, copy=False)
    if not rms:
        mean = v.sum(axis=axes, keepdims=True) / compute.type(max(layout.size_of(x.shape[first:]), 1))
        v = v - mean
    rest = max(layout.size_of(x.shape[first:]), 1)
    rstd = 1 / np.sqrt((v * v).sum(axis=axes, keepdims=True) / compute.type(rest) + compute.type(eps))
    y = v * rstd
    parameters = list(affine)
    if given[0]:
        y = y * parameters.pop(0).astype(compute, copy=False)
    if given[1]:
        y = y + parameters.pop(0).astype(compute, copy=False)
    rstd = rstd.reshape(x.shape[:first])
    return y.astype(x.dtype), rstd.copy() if rms else mean.reshape(x.shape[:first]), rstd


def numpy_norm_grad(
    g: np.ndarray, x: np.ndarray, rstd: np.ndarray, *rest: np.ndarray, rms: bool, weighted: bool, needs: Needs
) -> Any:
    """The backward pass with NumPy: those of dx, dweight, dbias that are needed."""
    compute, first = compute_dtype(x.dtype), rstd.ndim
    parameters = list(rest)
    tail = (1,) * (x.ndim - first)
    axes, lead = tuple(range(first, x.ndim)), tuple(range(first))
    u, scale = g.astype(compute, copy=False), rstd.reshape(rstd.shape + tail)
    h = x.astype(compute, copy=False)
    h = h * scale if rms else (h - parameters.pop(0).reshape(scale.shape)) * scale
    weight = parameters.pop(0) if weighted else None
    stored = compute if weight is None else weight.dtype
    results = []
    if needs[1]:
        dw = (u * h).sum(axis=lead).astype(stored)
    if needs[2]:
        db = u.sum(axis=lead).astype(stored)
    if needs[0]:
        u = u if weight is None else u * weight.astype(compute, copy=False)
        n = compute.type(max(layout.size_of(x.shape[first:]), 1))
        dx = u - h * ((u * h).sum(axis=axes, keepdims=True) / n)
        dx = dx if rms else dx - u.sum(axis=axes, keepdims=True) / n
        results.append((dx * scale).astype(x.dtype))
    results += [dw] if needs[1] else []
    results += [db] if needs[2] else []
    return tuple(results)
