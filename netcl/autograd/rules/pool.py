"""Gradients of pooling."""

from __future__ import annotations

from typing import Any

from netcl.autograd.op import register_op
from netcl.core.tensor import Tensor
from netcl.ops.pooling import op as pool


def _max_pool(x: Tensor, **window: Any) -> tuple[Tensor, Tensor]:
    """The result, and the position of each maximum, which is all that backward needs."""
    return pool.max_pool2d(x, return_indices=True, **window)  # type: ignore[no-any-return]


register_op(
    "max_pool2d",
    _max_pool,
    lambda g, y, x, *, aux, **window: pool.max_pool2d_grad(g, aux, x.shape, **window),
    saves=(),
    aux=True,
)
register_op(
    "avg_pool2d", pool.avg_pool2d, lambda g, y, x, **window: pool.avg_pool2d_grad(g, x.shape, **window), saves=()
)
register_op(
    "adaptive_avg_pool2d",
    pool.adaptive_avg_pool2d,
    lambda g, y, x, output_size: pool.adaptive_avg_pool2d_grad(g, x.shape),
    saves=(),
)
