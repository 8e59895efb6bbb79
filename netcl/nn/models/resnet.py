"""Residual networks for images. Source: He et al. 2016, arXiv:1512.03385."""

from __future__ import annotations

from typing import Any

import netcl.autograd as ag
from netcl.nn import init
from netcl.nn.activation import ReLU
from netcl.nn.container import Sequential
from netcl.nn.conv import Conv2d
from netcl.nn.linear import Linear
from netcl.nn.module import Module
from netcl.nn.norm import BatchNorm2d
from netcl.nn.parameter import queue_of
from netcl.nn.pool import AdaptiveAvgPool2d, Flatten, MaxPool2d


def _conv(queue: Any, n: int, m: int, kernel: int, stride: int = 1) -> tuple[Conv2d, BatchNorm2d]:
    """A convolution that keeps the size (up to its stride), without bias, and the batch norm after it."""
    layer = Conv2d(queue, n, m, kernel, stride, kernel // 2, bias=False)
    init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer, BatchNorm2d(queue, m)


class BasicBlock(Module):
    """relu(x + f(x)) with f two 3x3 convolutions; a strided 1x1 convolution fits x where the shape changes."""

    expansion = 1

    def __init__(self, queue: Any, channels: int, width: int, stride: int = 1) -> None:
        queue = queue_of("BasicBlock", queue)
        out = width * self.expansion
        self.body = Sequential(*_conv(queue, channels, width, 3, stride), ReLU(), *_conv(queue, width, out, 3))
        self.shortcut = _shortcut(queue, channels, out, stride)

    def forward(self, x: Any) -> Any:
        """(N, C, H, W) -> (N, width * expansion, H / stride, W / stride)."""
        short = x if self.shortcut is None else self.shortcut(x)
        return ag.relu(ag.add(self.body(x), short))


class Bottleneck(BasicBlock):
    """relu(x + f(x)) with f a 1x1, a (strided) 3x3 and a 1x1 convolution to four times the width."""

    expansion = 4

    def __init__(self, queue: Any, channels: int, width: int, stride: int = 1) -> None:
        queue = queue_of("Bottleneck", queue)
        out = width * self.expansion
        self.body = Sequential(
            *_conv(queue, channels, width, 1),
            ReLU(),
            *_conv(queue, width, width, 3, stride),
            ReLU(),
            *_conv(queue, width, out, 1),
        )
        self.shortcut = _shortcut(queue, channels, out, stride)


def _shortcut(queue: Any, channels: int, out: int, stride: int) -> Sequential | None:
    if channels == out and stride == 1:
        return None
    return Sequential(*_conv(queue, channels, out, 1, stride))


class ResNet(Module):
    """7x7/2 convolution, 3x3/2 max-pool, four stages of `block`s of width 64 to 512, global mean, linear classifier.

    `counts` says how many blocks each stage has. (N, in_channels, H, W) -> (N, num_classes).
    """

    def __init__(
        self,
        queue: Any,
        block: type[BasicBlock] = BasicBlock,
        counts: tuple[int, ...] = (2, 2, 2, 2),
        num_classes: int = 1000,
        in_channels: int = 3,
    ) -> None:
        queue = queue_of("ResNet", queue)
        self.block, self.counts, self.num_classes, self.in_channels = block, tuple(counts), num_classes, in_channels
        self.stem = Sequential(*_conv(queue, in_channels, 64, 7, 2), ReLU(), MaxPool2d(3, 2, 1))
        channels, stages = 64, []
        for i, count in enumerate(counts):
            blocks = []
            for j in range(count):
                blocks.append(block(queue, channels, 64 << i, 2 if i and j == 0 else 1))
                channels = (64 << i) * block.expansion
            stages.append(Sequential(*blocks))
        self.stages = Sequential(*stages)
        self.head = Sequential(AdaptiveAvgPool2d(1), Flatten(), Linear(queue, channels, num_classes))

    def forward(self, x: Any) -> Any:
        """(N, in_channels, H, W) -> (N, num_classes)."""
        return self.head(self.stages(self.stem(x)))


class ResNet18(ResNet):
    """ResNet with two basic blocks in each stage: 11.7 million parameters for 1000 classes."""

    def __init__(self, queue: Any, num_classes: int = 1000, in_channels: int = 3) -> None:
        super().__init__(queue, BasicBlock, (2, 2, 2, 2), num_classes, in_channels)


class ResNet34(ResNet):
    """ResNet with 3, 4, 6 and 3 basic blocks: 21.8 million parameters for 1000 classes."""

    def __init__(self, queue: Any, num_classes: int = 1000, in_channels: int = 3) -> None:
        super().__init__(queue, BasicBlock, (3, 4, 6, 3), num_classes, in_channels)


class ResNet50(ResNet):
    """ResNet with 3, 4, 6 and 3 bottlenecks: 25.6 million parameters for 1000 classes."""

    def __init__(self, queue: Any, num_classes: int = 1000, in_channels: int = 3) -> None:
        super().__init__(queue, Bottleneck, (3, 4, 6, 3), num_classes, in_channels)


class ResNet101(ResNet):
    """ResNet with 3, 4, 23 and 3 bottlenecks: 44.5 million parameters for 1000 classes."""

    def __init__(self, queue: Any, num_classes: int = 1000, in_channels: int = 3) -> None:
        super().__init__(queue, Bottleneck, (3, 4, 23, 3), num_classes, in_channels)


class ResNet152(ResNet):
    """ResNet with 3, 8, 36 and 3 bottlenecks: 60.2 million parameters for 1000 classes."""

    def __init__(self, queue: Any, num_classes: int = 1000, in_channels: int = 3) -> None:
        super().__init__(queue, Bottleneck, (3, 8, 36, 3), num_classes, in_channels)
