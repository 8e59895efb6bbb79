"""Records of matrix products: matmul, linear with an activation, and matmul with what the compiler finds after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netcl.core.dtypes import as_dtype, common_dtype
from netcl.core.tensor import Tensor
from netcl.ops import elementwise, reduction
from netcl.ops.product import linear_grad
from netcl.ops.product.dual import Factors, gemm_pair, may_share
from netcl.ops.product.op import (
    affine_shape,
    gemm,
    gemm_keeping,
    linear,
    linear_keeping,
    matmul,
    product_shape,
    rows_of,
)
from netcl.ops.product.problem import FROM_RESULT, OTHER_FACTOR
from netcl.ops.record import HALF, Facts, Op, register


def _matmul_grad(g: Tensor, y: Any, a: Tensor, b: Tensor, needs: Sequence[bool]) -> list[Tensor | None]:
    a2 = a.unsqueeze(0) if a.ndim == 1 else a  # (M, K)
    b2 = b.unsqueeze(1) if b.ndim == 1 else b  # (K, N)
    g2 = g if a.ndim > 1 else g.unsqueeze(-1 if b.ndim == 1 else -2)
    g2 = g2.unsqueeze(-1) if b.ndim == 1 and a.ndim > 1 else g2
    if a.ndim == 1 and b.ndim == 1:
        g2 = g.reshape(1, 1)
    da = db = None
    if needs[0] and needs[1] and a.ndim == 2 == b.ndim and may_share(g.queue):
        both = gemm_pair(Factors(g, b.T), Factors(a.T, g))
        if both is not None:
            return [both[0][0], both[1][0]]
    if needs[0]:
        da = matmul(g2, b2.transpose(-1, -2))
        da = da.reshape(*da.shape[:-2], a.shape[0]) if a.ndim == 1 else da
    if needs[1]:
        if b2.ndim == 2 and a2.ndim > 2:  # one weight for a whole batch: one product, not a batch of them and a sum
            db = matmul(rows_of(a2).T, rows_of(g2))
        else:
            db = matmul(a2.transpose(-1, -2), g2)
        db = db.reshape(*db.shape[:-2], b.shape[0]) if b.ndim == 1 else db
    return [da, db]


def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, *, recorded: bool
) -> tuple[Tensor, Tensor | None]:
    """activation(x @ weight.T + bias), in one product: (..., in), (out, in), (out,) -> (..., out).

    `activation` is None, "relu", "gelu" (exact) or "silu". Raises: ShapeError when the last axes differ or bias does
    not have `out` elements.
    """
    if recorded and activation not in FROM_RESULT:
        return linear_keeping(x, weight, bias, activation)
    y = linear(x, weight, bias, activation)
    return y, y if activation else None


def _linear_grad(
    g: Tensor,
    y: Any,
    x: Tensor,
    w: Tensor,
    b: Any = None,
    *,
    needs: Sequence[bool],
    aux: Tensor | None,
    activation: str | None = None,
) -> list[Tensor | None]:
    """The mask of relu is laid in the products; other activations take a launch of their own."""
    positive = rows_of(aux) if aux is not None and activation == "relu" else None
    if positive is None:
        g = elementwise.before(activation, g, aux)
    wanted = (needs[0], needs[1], len(needs) > 2 and needs[2])
    dx, dw, db = linear_grad.gradients(rows_of(g), rows_of(x), w, positive, wanted)
    return [None if dx is None else dx.reshape(x.shape), dw, db]


def _gemm(
    a: Tensor, b: Tensor, bias: Tensor | None = None, activation: str | None = None, *, recorded: bool
) -> tuple[Tensor, Tensor | None]:
    """activation(a @ b + bias), in one product: a (..., M, K), b (..., K, N), bias (N,) -> (..., M, N)."""
    if recorded and activation not in FROM_RESULT:
        return gemm_keeping(a, b, bias, activation)
    y = gemm(a, b, bias=bias, activation=activation)
    return y, y if activation else None


def _gemm_grad(
    g: Tensor,
    y: Any,
    a: Tensor,
    b: Tensor,
    bias: Any = None,
    *,
    needs: Sequence[bool],
    aux: Tensor | None,
    activation: str | None = None,
) -> list[Tensor | None]:
    g = elementwise.before(activation, g, aux)
    sums = reduction.sum(g, axis=tuple(range(g.ndim - 1))) if len(needs) > 2 and needs[2] else None
    return [*_matmul_grad(g, y, a, b, needs[:2]), sums]


def _facts(a: Any, b: Any, bias: Any = None, **_: Any) -> Facts:
    return product_shape(a.shape, b.shape), _promoted(a, b, bias)


def _affine_facts(x: Any, weight: Any, bias: Any = None, **_: Any) -> Facts:
    return affine_shape(x.shape, weight.shape, None if bias is None else bias.shape), _promoted(x, weight, bias)


def _promoted(*operands: Any) -> Any:
    return as_dtype(common_dtype(*(x.dtype for x in operands if x is not None)))


for _op in (
    Op("matmul", matmul, _matmul_grad, (0, 1), False, OTHER_FACTOR, _facts, cast=HALF, onnx="MatMul",
       methods=("matmul", "__matmul__", "__rmatmul__"), array_api="matmul"),
    Op("linear", _linear, _linear_grad, (0, 1), True, OTHER_FACTOR, _affine_facts, cast=HALF),
    Op("gemm", _gemm, _gemm_grad, (0, 1), True, OTHER_FACTOR, _facts, cast=HALF, onnx="Gemm"),
):  # fmt: skip
    register(_op)
