"""Sequential models from plain data: a list of layers by name, as a file could hold it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import netcl.nn
from netcl.core.errors import meant
from netcl.nn.container import Sequential
from netcl.nn.module import Module
from netcl.nn.parameter import queue_of

Config = Sequence[Mapping[str, Any]]


def build_sequential(queue: Any, config: Config) -> Sequential:
    """The model of `config`: [{"type": "Conv2d", "in_channels": 3, "out_channels": 32, "kernel_size": 3}, ...].

    "type" is the name of a class of netcl.nn, the rest its arguments without the queue. Raises ValueError for other
    types, TypeError for arguments that the layer does not have.
    """
    queue, nn = queue_of("build_sequential", queue), netcl.nn
    known = [name for name in nn.__all__ if isinstance(kind := getattr(nn, name), type) and issubclass(kind, Module)]
    layers = []
    for i, entry in enumerate(config):
        name, settings = entry.get("type"), {key: value for key, value in entry.items() if key != "type"}
        if name not in known:
            raise ValueError(
                f"build_sequential: expected the type of layer {i} as a layer of netcl.nn, got {name!r}"
                f"{meant(str(name), known)}."
            )
        kind = getattr(nn, name)
        place = (queue,) if "queue" in inspect.signature(kind).parameters else ()
        layers.append(kind(*place, **settings))
    return Sequential(*layers)


def fast_bn_cnn_config(num_classes: int = 10, in_channels: int = 3, width: int = 32) -> list[dict[str, Any]]:
    """A small classifier for images: three stages of two convolutions with batch norm, halved and doubled in between.

    For `build_sequential`; (N, in_channels, H, W) with H and W of at least 8 -> (N, num_classes).
    """
    layers: list[dict[str, Any]] = []
    channels = in_channels
    for out in (width, 2 * width, 4 * width):
        for _ in range(2):
            conv = {"in_channels": channels, "out_channels": out, "kernel_size": 3, "padding": 1, "bias": False}
            layers += [{"type": "Conv2d", **conv}, {"type": "BatchNorm2d", "num_features": out}, {"type": "ReLU"}]
            channels = out
        layers.append({"type": "MaxPool2d", "kernel_size": 2})
    head = {"type": "Linear", "in_features": channels, "out_features": num_classes}
    return [*layers, {"type": "AdaptiveAvgPool2d", "output_size": 1}, {"type": "Flatten"}, head]
