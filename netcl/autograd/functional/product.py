"""Matrix products and convolutions on nodes. Written by tools/generate_ops.py from the records of ops; do not edit."""

from __future__ import annotations

from typing import Any

from netcl.autograd.node import Node, Value
from netcl.autograd.op import apply_one

__all__ = ["conv2d", "linear", "matmul"]


def matmul(a: Value, b: Value) -> Node:
    """The matrix product by NumPy's rules.

    y[.., i, j] = sum_k a[.., i, k] b[.., k, j]

    Shapes: a (.., M, K), b (.., K, N) with leading axes that broadcast -> (.., M, N). A 1-D operand is a row on the
    left, a column on the right, and its axis is absent from the result; two 1-D operands give shape ().
    Dtypes promote as in NumPy; half is summed in float.
    Raises: ShapeError for unequal K, leading axes that do not broadcast, or an operand without axes.
    """
    return apply_one("matmul", a, b)


def linear(x: Value, weight: Value, bias: Value | None = None, activation: str | None = None) -> Node:
    """activation(x @ weight.T + bias), in one product: (..., in), (out, in), (out,) -> (..., out).

    `activation` is None, "relu", "gelu" (exact) or "silu". Raises: ShapeError when the last axes differ or bias does
    not have `out` elements.
    """
    operands = (x, weight) if bias is None else (x, weight, bias)
    return apply_one("linear", *operands, activation=activation)


def conv2d(
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    activation: str | None = None,
) -> Node:
    """Cross-correlation of images with filters, with an optional fused activation.

    y[n, o, i, j] = activation(bias[o] + sum_{c, u, v} x[n, c, i s + u d - p, j s + v d - p] weight[o, c, u, v])

    Shapes: x (N, C, H, W), weight (O, C / groups, KH, KW), bias (O,) -> (N, O, H', W') with
    H' = floor((H + 2 padding - dilation (KH - 1) - 1) / stride) + 1, and W' alike. Stride, padding and dilation are an
    int or a (height, width) pair. `activation` is None, "relu", "gelu" (exact) or "silu"; the last two take a kernel of
    their own where a gradient is wanted, since it reads what they were given.
    Memory, rounding and errors are those of `netcl.ops.conv.conv2d`.
    """
    operands = (x, weight) if bias is None else (x, weight, bias)
    return apply_one(
        "conv2d", *operands, stride=stride, padding=padding, dilation=dilation, groups=groups, activation=activation
    )
