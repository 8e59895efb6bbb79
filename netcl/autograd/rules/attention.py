"""Gradient of attention: the scores are computed again block by block from one number per query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netcl.autograd.jit import shapes
from netcl.autograd.op import register_op
from netcl.core.dtypes import as_dtype, common_dtype
from netcl.core.tensor import Tensor
from netcl.ops.attend import op as attention


def _attention_grad(
    g: Tensor, y: Tensor, q: Tensor, k: Tensor, v: Tensor, *, needs: Sequence[bool], aux: Tensor, **settings: Any
) -> Sequence[Tensor | None]:
    return attention.attention_grad(g, q, k, v, y, aux, needs=tuple(needs), **settings)


register_op("attention", attention.attention, _attention_grad, saves=("y", 0, 1, 2), aux=True)


@shapes.rule("attention")
def _attention_shape(q: Any, k: Any, v: Any, **_: Any) -> shapes.Facts:
    return q.shape, as_dtype(common_dtype(q.dtype, k.dtype, v.dtype))
