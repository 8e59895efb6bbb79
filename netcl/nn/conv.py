"""Conv2d: cross-correlation of images with learned kernels."""

from __future__ import annotations

from typing import Any

import netcl.autograd as ag
from netcl.core.errors import ShapeError
from netcl.nn import init
from netcl.nn.inputs import input_of
from netcl.nn.module import Module
from netcl.nn.parameter import Parameter, queue_of
from netcl.ops.convolution.problem import pair


class Conv2d(Module):
    """y = x * W + b: (N, C, H, W) -> (N, O, H', W'), H' = (H + 2 padding - dilation (kernel - 1) - 1) // stride + 1.

    kernel_size, stride, padding and dilation are numbers or (height, width). padding="same" keeps height and width
    (stride 1, odd kernels). weight (O, C / groups, KH, KW) is uniform in +-1 / sqrt(fan_in), bias zero, as in Linear.
    A floating input is cast to the weight's dtype.
    """

    def __init__(
        self,
        queue: Any,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        dtype: Any = "float32",
    ) -> None:
        queue = queue_of("Conv2d", queue)
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ShapeError(
                f"Conv2d: expected groups that divide both channel counts, got {groups} for {in_channels} and "
                f"{out_channels}."
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride, self.dilation = (
            pair("Conv2d", n, v, 1)
            for n, v in (("kernel_size", kernel_size), ("stride", stride), ("dilation", dilation))
        )
        self.padding = (
            self._same()
            if padding == "same"
            else (0, 0)
            if padding == "valid"
            else pair("Conv2d", "padding", padding, 0)
        )
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = Parameter(init.kaiming_uniform(queue, shape, a=5**0.5, dtype=dtype))
        self.bias = Parameter(init.zeros(queue, (out_channels,), dtype=dtype)) if bias else None

    def _same(self) -> tuple[int, int]:
        spans = [d * (k - 1) for k, d in zip(self.kernel_size, self.dilation)]
        if self.stride != (1, 1) or any(s % 2 for s in spans):
            raise ShapeError(
                f"Conv2d: expected stride 1 and an odd kernel with padding='same', got stride {self.stride} and kernel "
                f"{self.kernel_size}; give the padding in numbers."
            )
        return spans[0] // 2, spans[1] // 2

    def _inputs(self, x: Any) -> tuple[Any, ...]:
        """What the op takes, checked."""
        x = input_of("Conv2d", x, self.weight.value.dtype)
        if len(x.shape) != 4 or x.shape[1] != self.in_channels:
            wanted = f"(N, {self.in_channels}, H, W)"
            raise ShapeError(f"Conv2d: expected input of shape {wanted}, got {x.shape}; {self._advice(x.shape)}.")
        geometry = (self.stride, self.padding, self.dilation, self.groups)
        return (x, self.weight, self.bias, *geometry)

    def _advice(self, shape: tuple[int, ...]) -> str:
        """What to do about an input of `shape`, which does not fit."""
        c = self.in_channels
        if len(shape) == 4 and shape[3] == c:
            return "bring the channels forward with x.permute(0, 3, 1, 2)"
        if len(shape) == 4:
            return f"make the layer with in_channels={shape[1]}, or give it {c} channels"
        if len(shape) == 3 and c == 1:
            return "add the missing axis with x.unsqueeze(1) for a batch of images, x.unsqueeze(0) for one"
        if len(shape) == 3 and shape[0] == c:
            return "add the missing batch axis with x.unsqueeze(0)"
        return f"give it images as (N, {c}, H, W), e.g. by x.reshape"

    def forward(self, x: Any) -> Any:
        """(N, C, H, W) -> (N, O, H', W')."""
        return ag.conv2d(*self._inputs(x))

    def forward_with(self, x: Any, activation: str) -> Any:
        """activation(forward(x)) for "relu", "gelu" and "silu", as one kernel where it can be."""
        return getattr(ag, f"conv2d_{activation}")(*self._inputs(x))

    def extra_repr(self) -> str:
        """Channels and geometry."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        text += f", padding={self.padding}" if self.padding != (0, 0) else ""
        text += f", dilation={self.dilation}" if self.dilation != (1, 1) else ""
        text += f", groups={self.groups}" if self.groups != 1 else ""
        return text + (", bias=False" if self.bias is None else "")
