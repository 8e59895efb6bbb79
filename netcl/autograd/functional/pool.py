"""Pooling on nodes: images (N, C, H, W)."""

from __future__ import annotations

from typing import Any

from netcl.autograd.node import Node
from netcl.autograd.op import apply_op

__all__ = ["adaptive_avg_pool2d", "avg_pool2d", "global_avg_pool2d", "max_pool2d"]

Value = Any  # a Node or a Tensor


def max_pool2d(
    x: Value, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Node:
    """Largest element of every window; padding never wins. The gradient goes to the first of equal elements."""
    window = {"kernel_size": kernel_size, "stride": stride, "padding": padding, "dilation": dilation}
    return apply_op("max_pool2d", x, **window, ceil_mode=ceil_mode)  # type: ignore[no-any-return]


def avg_pool2d(
    x: Value,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Node:
    """Mean of every window; `count_include_pad` says whether padding counts."""
    window = {"kernel_size": kernel_size, "stride": stride, "padding": padding, "ceil_mode": ceil_mode}
    count = {"count_include_pad": count_include_pad, "divisor_override": divisor_override}
    return apply_op("avg_pool2d", x, **window, **count)  # type: ignore[no-any-return]


def adaptive_avg_pool2d(x: Value, output_size: Any) -> Node:
    """Mean over windows that divide the image into `output_size`."""
    return apply_op("adaptive_avg_pool2d", x, output_size=output_size)  # type: ignore[no-any-return]


def global_avg_pool2d(x: Value) -> Node:
    """Mean of every channel: (N, C, 1, 1)."""
    return adaptive_avg_pool2d(x, 1)
