"""Pooling layers over images (N, C, H, W)."""

from __future__ import annotations

from typing import Any

import netcl.autograd as ag
from netcl.core.keywords import axis_of
from netcl.nn.module import Module


class MaxPool2d(Module):
    """Largest element of every window; `stride` defaults to the kernel size, padding never wins."""

    _shown = ("kernel_size", "stride", "padding")

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> None:
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation, self.ceil_mode = padding, dilation, ceil_mode

    def forward(self, x: Any) -> Any:
        """(N, C, H, W) -> (N, C, H', W')."""
        return ag.max_pool2d(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)


class AvgPool2d(Module):
    """Mean of every window; `count_include_pad` says whether padding counts as elements."""

    _shown = ("kernel_size", "stride", "padding")

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.ceil_mode, self.count_include_pad = padding, ceil_mode, count_include_pad

    def forward(self, x: Any) -> Any:
        """(N, C, H, W) -> (N, C, H', W')."""
        return ag.avg_pool2d(x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)


class AdaptiveAvgPool2d(Module):
    """Mean over windows that divide the image into `output_size`, a number or (height, width)."""

    _shown = ("output_size",)

    def __init__(self, output_size: Any) -> None:
        self.output_size = output_size

    def forward(self, x: Any) -> Any:
        """(N, C, H, W) -> (N, C, *output_size)."""
        return ag.adaptive_avg_pool2d(x, self.output_size)


class Flatten(Module):
    """Axes from `start_axis` to `end_axis` merged into one: (N, C, H, W) -> (N, C H W)."""

    _shown = ("start_axis", "end_axis")

    def __init__(
        self, start_axis: int = 1, end_axis: int = -1, *, start_dim: int | None = None, end_dim: int | None = None
    ) -> None:
        self.start_axis = axis_of("Flatten", start_axis, 1, start_dim)
        self.end_axis = axis_of("Flatten", end_axis, -1, end_dim)

    def forward(self, x: Any) -> Any:
        """A view."""
        return ag.flatten(x, self.start_axis, self.end_axis)
