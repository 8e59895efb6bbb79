"""Gradients of a linear layer in as few launches as its kernels allow.

With y = relu(x w^T + b) or y = x w^T + b and the upstream gradient g, masked where y <= 0 when there is a relu:

    dw = g^T x,   db = sum of g over its rows,   dx = g w

Products can mask g as they read it and sum its rows on the way: dw and db are then one launch and the mask costs none.
On GPUs dw and dx of small layers are one launch, too (dual.py).
Elsewhere mask and sum are launches of their own: on CPU devices for large g, on GPUs where matrix units, which do
neither, are worth these launches.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import FLOAT32, FLOAT64, is_float
from netcl.core.tensor import Tensor, allocate
from netcl.kernels import route
from netcl.kernels.tiling import LAUNCH
from netcl.ops import elementwise, reduction
from netcl.ops.product import gpu as matmul_gpu
from netcl.ops.product.dual import Factors, gemm_pair, may_share
from netcl.ops.product.op import gemm, promote
from netcl.ops.product.plan import plan_of
from netcl.ops.product.problem import Product, describe

FEW = 1 << 16  # elements of g up to which masking inside the product is cheaper than a launch on CPU devices


def masks_inside(g: Tensor, y: Tensor | None, ins: int) -> bool:
    """Whether the products of a layer with `ins` inputs can take g and y as they are, and should."""
    if g.backend == "cpu" or g.size == 0 or ins == 0 or not is_float(g.dtype):
        return False
    if y is not None and (y.strides != g.strides or y.dtype != g.dtype):
        return False
    profile = profile_of(g.queue)
    if profile.kind == "cpu":
        return g.size <= FEW and g.dtype in (FLOAT32, FLOAT64)
    plans = g.queue.netcl_state.plans
    key = ("layer inside", g.shape, g.strides, g.dtype.num, y is None, ins, route.mode)
    found = plans.get(key)
    if found is None:
        found = plans[key] = _worth(g, y is not None, ins, profile)
    return bool(found)


def _worth(g: Tensor, relu: bool, ins: int, profile: DeviceProfile) -> bool:
    """Whether the portable products with mask and sums cost less than the best ones and the launches besides."""
    (rows, outs), (down, across) = g.shape, g.strides
    dw = Product(outs, ins, rows, (across, down), (ins, 1), ins, (), g.dtype)
    dx = Product(rows, ins, outs, (down, across), (ins, 1), ins, (), g.dtype)
    products = [dw, dx] if relu else [dw]  # without a mask dx is an ordinary product
    inside = sum(matmul_gpu.cost(g.queue, replace(p, mask=True), profile) for p in products)
    launches = 1 + relu  # the sum and the mask
    return inside <= sum(matmul_gpu.cost(g.queue, p, profile) for p in products) + LAUNCH * launches


def masked(g: Tensor, y: Tensor) -> Tensor:
    """The gradient of relu from its output `y`, as a launch."""
    dz = elementwise.gradients("relu", g, y, (None,), (True,))[0]
    assert dz is not None
    return dz


def gradients(
    g: Tensor, x: Tensor, w: Tensor, y: Tensor | None = None, needs: tuple[bool, bool, bool] = (True, True, True)
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """(dx, dw, db) for g and y (rows, out), x (rows, in), w (out, in); None for those that nobody needs.

    Each has the dtype that g and the other factor promote to; the tape casts it to that of its operand.
    """
    if needs[0] and needs[1] and may_share(g.queue) and (y is None or y.strides == g.strides):
        both = gemm_pair(Factors(g, w, y), Factors(g.T, x, None if y is None else y.T, needs[2]))
        if both is not None:
            return both[0][0], *both[1]
    if y is not None and not masks_inside(g, y, x.shape[1]):
        g, y = masked(g, y), None
    dx = input_grad(g, w, y) if needs[0] else None
    if needs[1]:
        return dx, *weight_grad(g, x, y, needs[2])
    return dx, None, reduction.sum(g if y is None else masked(g, y), axis=0) if needs[2] else None


def weight_grad(g: Tensor, x: Tensor, y: Tensor | None = None, bias: bool = True) -> tuple[Tensor, Tensor | None]:
    """(dw, db) for g and y (rows, out), x (rows, in): dw (out, in), db (out,) or None without `bias`."""
    if x.dtype is not g.dtype:
        g, x = promote(g, x)
    if (y is None and not bias) or not masks_inside(g, y, x.shape[1]):
        g = g if y is None else masked(g, y)
        return gemm(g.T, x), reduction.sum(g, axis=0) if bias else None
    sums = allocate(g.queue, (g.shape[1],), g.dtype) if bias else None
    return _product(g.T, x, None if y is None else y.T, sums), sums


def input_grad(g: Tensor, w: Tensor, y: Tensor | None = None) -> Tensor:
    """dx (rows, in) for g and y (rows, out), w (out, in)."""
    if w.dtype is not g.dtype:
        g, w = promote(g, w)
    if y is None or not masks_inside(g, y, w.shape[1]):
        return gemm(g if y is None else masked(g, y), w)
    return _product(g, w, y, None)


def _product(a: Tensor, b: Tensor, mask: Tensor | None, sums: Tensor | None) -> Tensor:
    """a b with `a` masked and its row sums written to `sums`."""
    queue = a.queue
    out = allocate(queue, (a.shape[0], b.shape[1]), a.dtype)
    start = math.gcd(8, a.offset, 0 if mask is None else mask.offset)
    layouts = (a.shape, a.strides, start, b.shape, b.strides, b.offset & 7, a.dtype.num)
    key: Any = ("layer", *layouts, mask is None, sums is None, route.mode)
    plans = queue.netcl_state.plans
    run = plans.get(key)
    if run is None:
        product = describe(a, b, out, None, False, False)[0][1]
        starts = (start, *product.starts[1:])
        run = plans[key] = plan_of(queue, replace(product, starts=starts, mask=mask is not None, sums=sums is not None))
    run(out, a, b, mask=mask, sums=sums)
    return out
