"""Pooling on nodes. Written by tools/generate_ops.py from the records of ops; do not edit."""

from __future__ import annotations

from typing import Any

from netcl.autograd.node import Node, Value
from netcl.autograd.op import apply_one

__all__ = ["adaptive_avg_pool2d", "avg_pool2d", "max_pool2d"]


def max_pool2d(
    x: Value, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Node:
    """Largest element of every window; padding never wins, NaN always does. The gradient goes to the first of equals.

    y[n, c, i, j] = max_{u, v} x[n, c, i s + u d - p, j s + v d - p]

    Shapes: x (N, C, H, W) of any dtype -> (N, C, Ho, Wo), Ho = floor((H + 2 p - d (k - 1) - 1) / s) + 1, or ceil with
    `ceil_mode` as long as the last window starts inside x or its front padding. `stride` defaults to the kernel size.
    """
    return apply_one(
        "max_pool2d", x, kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation, ceil_mode=ceil_mode
    )


def avg_pool2d(
    x: Value,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Node:
    """Mean of every window, with zeros in the padding.

    y[n, c, i, j] = sum_{u, v} x[n, c, i s + u - p, j s + v - p] / count

    The count is that of the window's elements inside the padded input, or inside x when `count_include_pad` is off, or
    `divisor_override`. Shapes as for `max_pool2d`; half is summed in float. Raises: ShapeError, DTypeError.
    """
    return apply_one(
        "avg_pool2d",
        x,
        kernel_size=kernel_size,
        stride=stride,
        padding=padding,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        divisor_override=divisor_override,
    )


def adaptive_avg_pool2d(x: Value, output_size: Any) -> Node:
    """Mean over windows that divide x into output_size (an int or a pair).

    Window i goes from floor(i H / Ho) to ceil((i + 1) H / Ho).

    Shapes: x (N, C, H, W) -> (N, C, Ho, Wo).
    """
    return apply_one("adaptive_avg_pool2d", x, output_size=output_size)
