"""Attention on nodes."""

from __future__ import annotations

from typing import Any

from netcl.autograd.node import Node
from netcl.autograd.op import apply_op
from netcl.core.tensor import Tensor

__all__ = ["attention"]

Value = Any  # a Node or a Tensor


def attention(
    q: Value,
    k: Value,
    v: Value,
    causal: bool = False,
    scale: float | None = None,
    key_padding_mask: Value | None = None,
    window: int | None = None,
) -> Node:
    """softmax(scale * q k^T) v per head, without a map of scores: q (B, H, Tq, D), k and v (B, H_kv, Tk, D).

    causal: query i sees keys j <= i + Tk - Tq. window w: keys less than w places away. key_padding_mask (B, Tk): true
    where a key is padding. scale: 1 / sqrt(D) when None. H_kv divides H. A query that sees no key gets 0, where
    `softmax` of -inf alone gives NaN. Source: Dao et al. 2022, arXiv:2205.14135.
    """
    mask: Tensor | None = key_padding_mask.value if isinstance(key_padding_mask, Node) else key_padding_mask
    settings = {"causal": causal, "scale": scale, "key_padding_mask": mask, "window": window}
    return apply_op("attention", q, k, v, **settings)  # type: ignore[no-any-return]
