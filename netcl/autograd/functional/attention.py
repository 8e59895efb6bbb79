"""Attention on nodes. Written by tools/generate_ops.py from the records of ops; do not edit."""

from __future__ import annotations

from netcl.autograd.node import Node, Value
from netcl.autograd.op import apply_one
from netcl.ops.create.random import Generator

__all__ = ["attention"]


def attention(
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    key_padding_mask: Value | None = None,
    window: int | None = None,
    align: str = "lower_right",
    softcap: float | None = None,
    sinks: Value | None = None,
    alibi_slopes: Value | None = None,
    dropout: float = 0.0,
    generator: Generator | None = None,
    query_lengths: Value | None = None,
    key_lengths: Value | None = None,
    cu_seqlens_q: Value | None = None,
    cu_seqlens_k: Value | None = None,
) -> Node:
    """softmax(s) v per head, without a map of scores: q (B, H, Tq, D), k (B, H_kv, Tk, D), v (B, H_kv, Tk, Dv).

    s = scale * q k^T, then softcap * tanh(s / softcap), - slope * |j - (i + off)|, + mask. scale: 1 / sqrt(D) when
    None. H_kv divides H.
    causal: query i sees keys j <= i + off; off = Tk - Tq with align "lower_right", 0 with "upper_left" (PyTorch's
    is_causal). window w: keys less than w places from i + off.
    mask: broadcasts to (B, H, Tq, Tk). Bools: true where a key is seen, as in PyTorch's scaled_dot_product_attention;
    floats are added, -infinity hides. key_padding_mask (B, Tk): true where a key is padding.
    sinks (H,): a score per head in the softmax's denominators. alibi_slopes (H,) or (B, H): what a score loses per
    place between key and query.
    dropout: the probability that a weight becomes 0, in evaluation too; the others are divided by 1 - dropout.
    query_lengths, key_lengths (B,): of padded samples; one beyond its axis counts as all of it.
    cu_seqlens_q, cu_seqlens_k (S + 1,): where sequences packed in one sample begin, and the last ends; each sees itself
    alone. Causal and window go by the lengths of each.
    A query that sees no key gets 0, where `softmax` of -inf alone gives NaN.
    Dtypes promote as in NumPy. Raises: ShapeError for shapes that do not fit, DTypeError for integers.
    Source: Dao et al. 2022, arXiv:2205.14135.
    """
    operands = (
        (q, k, v)
        if mask is None and sinks is None and alibi_slopes is None
        else (q, k, v, mask)
        if sinks is None and alibi_slopes is None
        else (q, k, v, mask, sinks)
        if alibi_slopes is None
        else (q, k, v, mask, sinks, alibi_slopes)
    )
    return apply_one(
        "attention",
        *operands,
        causal=causal,
        scale=scale,
        key_padding_mask=key_padding_mask.value if isinstance(key_padding_mask, Node) else key_padding_mask,
        window=window,
        align=align,
        softcap=softcap,
        dropout=dropout,
        generator=generator,
        query_lengths=query_lengths.value if isinstance(query_lengths, Node) else query_lengths,
        key_lengths=key_lengths.value if isinstance(key_lengths, Node) else key_lengths,
        cu_seqlens_q=cu_seqlens_q.value if isinstance(cu_seqlens_q, Node) else cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k.value if isinstance(cu_seqlens_k, Node) else cu_seqlens_k,
    )
