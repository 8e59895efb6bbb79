"""Gradients of a linear layer in as few launches as its kernels allow.

With y = relu(x w^T + b) or y = x w^T + b and the upstream gradient g, masked where y <= 0 when there is a relu:

    dw = g^T x,   db = sum of g over its rows,   dx = g w

On CPU devices small products mask g as they copy it and sum its rows on the way: dw and db are one launch and the mask
costs none; everywhere else mask and sum are launches of their own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from netcl.core.dtypes import FLOAT32, FLOAT64
from netcl.core.profile import profile_of
from netcl.core.tensor import Tensor, allocate
from netcl.ops import elementwise, matmul_cpu, reduction
from netcl.ops.matmul import describe, gemm

FEW = 1 << 16  # elements of g up to which masking inside the product is cheaper than a launch


def masks_inside(g: Tensor, y: Tensor | None) -> bool:
    """Whether the products can take g and y as they are."""
    if g.backend == "cpu" or g.size == 0 or g.size > FEW or g.dtype not in (FLOAT32, FLOAT64):
        return False
    return profile_of(g.queue).kind == "cpu" and (y is None or (y.strides == g.strides and y.dtype == g.dtype))


def masked(g: Tensor, y: Tensor) -> Tensor:
    """The gradient of relu from its output `y`, as a launch."""
    dz = elementwise.gradients("relu", g, y, (None,), (True,))[0]
    assert dz is not None
    return dz


def weight_grad(g: Tensor, x: Tensor, y: Tensor | None = None, bias: bool = True) -> tuple[Tensor, Tensor | None]:
    """(dw, db) for g and y (rows, out), x (rows, in): dw (out, in), db (out,) or None without `bias`."""
    if not masks_inside(g, y) or x.dtype != g.dtype or x.size == 0:
        g = g if y is None else masked(g, y)
        return gemm(g.T, x), reduction.sum(g, axis=0) if bias else None
    sums = allocate(g.queue, (g.shape[1],), g.dtype) if bias else None
    return _product(g.T, x, None if y is None else y.T, sums), sums


def input_grad(g: Tensor, w: Tensor, y: Tensor | None = None) -> Tensor:
    """dx (rows, in) for g and y (rows, out), w (out, in)."""
    if not masks_inside(g, y) or w.dtype != g.dtype or w.size == 0:
        return gemm(g if y is None else masked(g, y), w)
    return _product(g, w, y, None)


def _product(a: Tensor, b: Tensor, mask: Tensor | None, sums: Tensor | None) -> Tensor:
    """a b with `a` masked and its row sums written to `sums`."""
    queue = a.queue
    out = allocate(queue, (a.shape[0], b.shape[1]), a.dtype)
    key: Any = ("layer", a.shape, a.strides, b.shape, b.strides, a.dtype.num, mask is None, sums is None)
    plans = queue.netcl_state.plans
    run = plans.get(key)
    if run is None:
        product = describe(a, b, out, None, False, False)[0][1]
        run = plans[key] = matmul_cpu.plan(queue, replace(product, mask=mask is not None, sums=sums is not None))
    run(queue, out, a, b, None, out.offset, a.offset, b.offset, 1.0, mask, sums)
    return out
