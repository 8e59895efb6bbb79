"""Gated activations, compiled: one launch each way and nothing in between. Source: Shazeer 2020, arXiv:2002.05202."""

from __future__ import annotations

from typing import Any

from netcl.autograd import functional as ag
from netcl.autograd.compiler import jit_compile
from netcl.autograd.node import Node


@jit_compile
def swiglu(a: Any, b: Any) -> Node:
    """silu(a) * b."""
    return ag.mul(ag.silu(a), b)


@jit_compile
def geglu(a: Any, b: Any) -> Node:
    """gelu(a) * b, with the exact gelu."""
    return ag.mul(ag.gelu(a), b)
