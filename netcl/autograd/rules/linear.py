"""Gradients of products: matmul, linear, convolution, pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netcl.autograd.op import register_op
from netcl.core.tensor import Tensor
from netcl.ops import elementwise, reduction
from netcl.ops.convolution import op as conv
from netcl.ops.product import linear_grad
from netcl.ops.product.dual import Factors, gemm_pair, may_share
from netcl.ops.product.op import gemm, gemm_keeping, linear, linear_keeping, matmul, rows_of


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


_OTHER: dict[int | str, tuple[int, ...]] = {0: (1,), 1: (0,)}  # each factor is read by the gradient of the other

register_op("matmul", matmul, _matmul_grad, saves=(0, 1), reads=_OTHER)


def _linear_grad(
    g: Tensor, y: Any, x: Tensor, w: Tensor, b: Any = None, *, needs: Sequence[bool], relu: bool = False
) -> list[Tensor | None]:
    y2 = rows_of(y) if relu else None
    wanted = (needs[0], needs[1], len(needs) > 2 and needs[2])
    dx, dw, db = linear_grad.gradients(rows_of(g), rows_of(x), w, y2, wanted)
    return [None if dx is None else dx.reshape(x.shape), dw, db]


register_op("linear", linear, _linear_grad, saves=(0, 1), reads=_OTHER)
register_op("linear_relu", lambda x, w, b=None: linear(x, w, b, activation="relu"),
            lambda g, y, x, w, b=None, *, needs: _linear_grad(g, y, x, w, b, needs=needs, relu=True),
            saves=("y", 0, 1), reads=_OTHER)  # fmt: skip


def _conv2d_grad(
    g: Tensor, y: Any, x: Tensor, w: Tensor, b: Any = None, *, needs: Sequence[bool],
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> list[Tensor | None]:  # fmt: skip
    geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    dx = conv.conv2d_input_grad(g, w, x.shape, **geometry) if needs[0] else None
    dw = conv.conv2d_weight_grad(g, x, w.shape, **geometry) if needs[1] else None
    return [dx, dw, reduction.sum(g, axis=(0, 2, 3)) if len(needs) > 2 and needs[2] else None]


def _conv2d_relu_grad(g: Tensor, y: Tensor, *xs: Any, needs: Sequence[bool], **geometry: Any) -> list[Tensor | None]:
    dz = elementwise.gradients("relu", g, y, (None,), (True,))[0]
    assert dz is not None
    return _conv2d_grad(dz, y, *xs, needs=needs, **geometry)


register_op("conv2d", conv.conv2d, _conv2d_grad, saves=(0, 1), reads=_OTHER)


def _conv2d_relu(x: Tensor, w: Tensor, b: Tensor | None = None, **geometry: Any) -> Tensor:
    return conv.conv2d(x, w, b, activation="relu", **geometry)


register_op("conv2d_relu", _conv2d_relu, _conv2d_relu_grad, saves=("y", 0, 1), reads=_OTHER)


# -- products with an activation ---------------------------------------------------------------------------------------

FROM_RESULT = (None, "relu")  # activations whose gradient follows from the result; others read what goes into them


def _epilogue(
    a: Tensor, b: Tensor, *bias: Tensor, product: str, activation: str | None, recorded: bool, **geometry: Any
) -> tuple[Tensor, Tensor | None]:
    """A product, bias and activation; for backward also what goes into an activation whose gradient reads that."""
    extra = bias[0] if bias else None
    if recorded and activation not in FROM_RESULT:
        if product == "matmul":
            return gemm_keeping(a, b, extra, activation)
        if product == "linear":
            return linear_keeping(a, b, extra, activation)
        return conv.conv2d_keeping(a, b, extra, activation, **geometry)
    if product == "matmul":
        return gemm(a, b, bias=extra, activation=activation), None
    if product == "linear":
        return linear(a, b, extra, activation), None
    return conv.conv2d(a, b, extra, activation=activation, **geometry), None


def _epilogue_grad(
    g: Tensor, y: Tensor, *xs: Any, needs: Sequence[bool], aux: Any, product: str, activation: str | None,
    **geometry: Any,
) -> list[Tensor | None]:  # fmt: skip
    if activation is not None:
        dz = elementwise.gradients(activation, g, y, (aux,), (True,))[0]
        assert dz is not None
        g = dz
    if product == "conv2d":
        return _conv2d_grad(g, y, *xs, needs=needs, **geometry)
    if product == "linear":
        return _linear_grad(g, y, *xs, needs=needs)
    grads = _matmul_grad(g, y, xs[0], xs[1], needs[:2])
    return [*grads, *([reduction.sum(g, axis=tuple(range(g.ndim - 1)))] if len(needs) > 2 and needs[2] else [None])]


register_op("product_epilogue", _epilogue, _epilogue_grad, saves=("y", 0, 1), aux=True, reads=_OTHER)
