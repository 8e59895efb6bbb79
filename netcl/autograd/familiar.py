"""The functions of `core.familiar` on nodes: tensors among their operands count as constants."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from netcl.autograd.composed import clip
from netcl.autograd.node import Node
from netcl.core import familiar
from netcl.core.tensor import Tensor
from netcl.moved import COMPOSED


def _node(x: Any) -> Any:
    if isinstance(x, Tensor):
        return Node(x)
    return [_node(y) for y in x] if isinstance(x, (list, tuple)) else x


def _on_nodes(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*map(_node, args), **kwargs)

    return call


globals().update({name: _on_nodes(getattr(familiar, name)) for name in COMPOSED.split()})


def clamp(x: Any, min: Any = None, max: Any = None) -> Node:
    """`clip` with PyTorch's words."""
    return clip(x, min, max)
