"""Random operations on nodes."""

from __future__ import annotations

from typing import Any

from netcl.autograd.node import Node
from netcl.autograd.op import apply_op
from netcl.ops.create.random import Generator

__all__ = ["dropout"]


def dropout(x: Any, p: float = 0.5, training: bool = True, generator: Generator | None = None) -> Node:
    """x / (1 - p) where kept, 0 with probability `p`; x itself when not training. Source: Srivastava et al. 2014."""
    if not training or (isinstance(p, (int, float)) and p == 0):
        return x  # type: ignore[no-any-return]
    return apply_op("dropout", x, p=p, generator=generator)  # type: ignore[no-any-return]
