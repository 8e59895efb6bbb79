"""Attention on nodes. Written by tools/generate_ops.py from the records of ops; do not edit."""

from __future__ import annotations

from netcl.autograd.node import Node, Value
from netcl.autograd.op import apply_one

__all__ = ["attention"]


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
    where a key is padding, whose weight is exactly 0. scale: 1 / sqrt(D) when None. H_kv divides H. A query that sees
    no key gets 0, where `softmax` of -inf alone gives NaN.
    Dtypes promote as in NumPy. Raises: ShapeError for shapes that do not fit, DTypeError for integers.
    Source: Dao et al. 2022, arXiv:2205.14135.
    """
    return apply_one(
        "attention",
        q,
        k,
        v,
        causal=causal,
        scale=scale,
        key_padding_mask=key_padding_mask.value if isinstance(key_padding_mask, Node) else key_padding_mask,
        window=window,
    )
