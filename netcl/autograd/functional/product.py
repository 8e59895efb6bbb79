"""Matrix products and convolutions, on nodes."""

from __future__ import annotations

from typing import Any

from netcl.autograd.node import Node
from netcl.autograd.op import apply_op

__all__ = [
    "conv2d", "conv2d_gelu", "conv2d_relu", "conv2d_silu", "linear", "linear_gelu", "linear_relu", "linear_silu",
    "matmul",
]  # fmt: skip

Value = Any  # a Node or a Tensor
Pair = Any  # an int, or a (height, width) pair


def matmul(a: Value, b: Value) -> Node:
    """Matrix product with NumPy's rules for 1-D operands and batches: (..., M, K), (..., K, N) -> (..., M, N)."""
    return apply_op("matmul", a, b)  # type: ignore[no-any-return]


def linear(x: Value, weight: Value, bias: Value | None = None) -> Node:
    """x @ weight.T + bias: (..., in), (out, in), (out,) -> (..., out)."""
    return _product("linear", None, x, weight, bias)


def linear_relu(x: Value, weight: Value, bias: Value | None = None) -> Node:
    """relu(x @ weight.T + bias): (..., in), (out, in), (out,) -> (..., out), in one kernel."""
    return _product("linear", "relu", x, weight, bias)


def linear_gelu(x: Value, weight: Value, bias: Value | None = None) -> Node:
    """gelu(x @ weight.T + bias), exact: (..., in), (out, in), (out,) -> (..., out), in one kernel."""
    return _product("linear", "gelu", x, weight, bias)


def linear_silu(x: Value, weight: Value, bias: Value | None = None) -> Node:
    """silu(x @ weight.T + bias): (..., in), (out, in), (out,) -> (..., out), in one kernel."""
    return _product("linear", "silu", x, weight, bias)


def conv2d(
    x: Value, weight: Value, bias: Value | None = None, stride: Pair = 1, padding: Pair = 0, dilation: Pair = 1,
    groups: int = 1,
) -> Node:  # fmt: skip
    """Cross-correlation; the formula and the errors are those of `netcl.ops.conv.conv2d`.

    Shapes: x (N, C, H, W), weight (O, C / groups, KH, KW), bias (O,) -> (N, O, H', W') with
    H' = floor((H + 2 padding - dilation (KH - 1) - 1) / stride) + 1, and W' alike.
    """
    return _product("conv2d", None, x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)


def conv2d_relu(
    x: Value, weight: Value, bias: Value | None = None, stride: Pair = 1, padding: Pair = 0, dilation: Pair = 1,
    groups: int = 1,
) -> Node:  # fmt: skip
    """relu(conv2d(x, weight, bias, ...)) in one kernel; shapes as `conv2d`: (N, C, H, W) -> (N, O, H', W')."""
    return _product("conv2d", "relu", x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)


def conv2d_gelu(
    x: Value, weight: Value, bias: Value | None = None, stride: Pair = 1, padding: Pair = 0, dilation: Pair = 1,
    groups: int = 1,
) -> Node:  # fmt: skip
    """gelu(conv2d(x, weight, bias, ...)), exact; shapes as `conv2d`: (N, C, H, W) -> (N, O, H', W').

    In one kernel where no gradient is wanted; in training in two, for the gradient reads what gelu was given.
    """
    return _product("conv2d", "gelu", x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)


def conv2d_silu(
    x: Value, weight: Value, bias: Value | None = None, stride: Pair = 1, padding: Pair = 0, dilation: Pair = 1,
    groups: int = 1,
) -> Node:  # fmt: skip
    """silu(conv2d(x, weight, bias, ...)); shapes as `conv2d`: (N, C, H, W) -> (N, O, H', W').

    In one kernel where no gradient is wanted; in training in two, for the gradient reads what silu was given.
    """
    return _product("conv2d", "silu", x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)


def _product(
    name: str, activation: str | None, x: Value, weight: Value, bias: Value | None, **geometry: Any
) -> Node:  # fmt: skip
    args = (x, weight) if bias is None else (x, weight, bias)
    return apply_op(name, *args, **geometry, activation=activation)  # type: ignore[no-any-return]
