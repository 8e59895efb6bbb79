"""Matrix products and convolutions, on nodes."""

from __future__ import annotations

from typing import Any

from netcl.autograd.node import Node
from netcl.autograd.op import apply_op
from netcl.autograd.state import state

__all__ = [
    "conv2d", "conv2d_gelu", "conv2d_relu", "conv2d_silu", "linear", "linear_gelu", "linear_relu", "linear_silu",
    "matmul",
]  # fmt: skip

Value = Any  # a Node, a Tensor or a Python number


def matmul(a: Value, b: Value) -> Node:
    """Matrix product with NumPy's rules for 1-D operands and batches."""
    return apply_op("matmul", a, b)  # type: ignore[no-any-return]


def linear(x: Value, weight: Value, bias: Value | None = None) -> Node:
    """x @ weight.T + bias: (..., in), (out, in), (out,) -> (..., out)."""
    return apply_op("linear", x, weight, *(() if bias is None else (bias,)))  # type: ignore[no-any-return]


def linear_relu(x: Value, weight: Value, bias: Value | None = None) -> Node:
    """relu(x @ weight.T + bias) in one kernel."""
    return apply_op("linear_relu", x, weight, *(() if bias is None else (bias,)))  # type: ignore[no-any-return]


def linear_gelu(x: Value, weight: Value, bias: Value | None = None) -> Node:
    """gelu(x @ weight.T + bias), exact, in one kernel."""
    return _activated("linear", "gelu", x, weight, bias)


def linear_silu(x: Value, weight: Value, bias: Value | None = None) -> Node:
    """silu(x @ weight.T + bias) in one kernel."""
    return _activated("linear", "silu", x, weight, bias)


def conv2d(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Node:
    """Cross-correlation: (N, C, H, W) with (O, C / groups, KH, KW) -> (N, O, H', W')."""
    return _conv2d("conv2d", x, weight, bias, stride, padding, dilation, groups)


def conv2d_relu(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Node:
    """relu(conv2d(...)) in one kernel."""
    return _conv2d("conv2d_relu", x, weight, bias, stride, padding, dilation, groups)


def conv2d_gelu(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Node:
    """gelu(conv2d(...)), exact; in one kernel where no gradient is wanted."""
    geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return _activated("conv2d", "gelu", x, weight, bias, **geometry)


def conv2d_silu(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Node:
    """silu(conv2d(...)); in one kernel where no gradient is wanted."""
    geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return _activated("conv2d", "silu", x, weight, bias, **geometry)


def _activated(
    product: str, activation: str, x: Value, weight: Value, bias: Value | None, **geometry: Any
) -> Node:  # fmt: skip
    """A product with the activation in its epilogue; while tracing both, which the compiler joins."""
    args = (x, weight) if bias is None else (x, weight, bias)
    if state.tracer is not None:
        return apply_op(activation, apply_op(product, *args, **geometry))  # type: ignore[no-any-return]
    return apply_op("product_epilogue", *args, product=product, activation=activation, **geometry)  # type: ignore[no-any-return]


def _conv2d(
    name: str, x: Value, weight: Value, bias: Value | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Node:
    geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return apply_op(name, x, weight, *(() if bias is None else (bias,)), **geometry)  # type: ignore[no-any-return]
