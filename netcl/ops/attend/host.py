"""Attention with NumPy, in blocks of rows, and its gradients."""

from __future__ import annotations

import numpy as np

from netcl.core.dtypes import DType, compute_dtype
from netcl.ops.attend.problem import Geometry

NUMPY_SCORES = 1 << 22  # scores that the NumPy form holds at once


def _visible(x: Geometry, first: int, last: int, mask: np.ndarray | None) -> np.ndarray | None:
    """Which keys the queries [first, last) see, broadcastable to (B, H_kv, group, last - first, Tk); None for all."""
    place = np.arange(first, last)[:, None] + (x.keys - x.queries)
    key = np.arange(x.keys)[None, :]
    seen = key <= place if x.causal else None
    if x.window:
        near = (place - key < x.window) & (key - place < x.window)
        seen = near if seen is None else seen & near
    if mask is not None:
        real = (mask == 0)[:, None, None, None, :]
        seen = real if seen is None else seen & real
    return seen


def _blocks(x: Geometry) -> list[tuple[int, int]]:
    step = max(1, NUMPY_SCORES // max(x.batch * x.heads * x.keys, 1))
    return [(i, min(i + step, x.queries)) for i in range(0, x.queries, step)]


def _grouped(a: np.ndarray, x: Geometry, compute: DType) -> np.ndarray:
    """(B, H, T, ...) as (B, H_kv, group, T, ...)."""
    shape = (x.batch, x.heads // x.group, x.group, *a.shape[2:])
    return np.asarray(a.astype(compute, copy=False).reshape(shape))


def _scores(x: Geometry, q: np.ndarray, kt: np.ndarray, seen: np.ndarray | None) -> np.ndarray:
    s: np.ndarray = (q * q.dtype.type(x.scale)) @ kt
    return s if seen is None else np.where(seen, s, q.dtype.type(-np.inf))


def _over_seen(w: np.ndarray, x: np.ndarray, seen: np.ndarray | None) -> np.ndarray:
    """w @ x over the pairs that are seen: w is 0 for the others, and not even 0 * infinity counts."""
    y: np.ndarray
    if seen is None or np.isfinite(x).all():
        y = w @ x
        return y
    seen, rows = np.broadcast_to(seen, w.shape), x.ndim - 2
    finite = np.isfinite(x).all(tuple(axis for axis in range(x.ndim) if axis != rows))
    y = w[..., finite] @ x[..., finite, :]
    for j in np.flatnonzero(~finite):
        y += np.where(seen[..., j, None], w[..., j, None] * x[..., j, None, :], 0)
    return y


def numpy_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None = None, *, geometry: Geometry
) -> tuple[np.ndarray, np.ndarray]:
    x, compute = geometry, compute_dtype(q.dtype)
    o, lse = np.zeros(q.shape, q.dtype), np.full(q.shape[:3], -np.inf, compute)
    if o.size == 0 or x.keys == 0:
        return o, lse
    q5, kt = _grouped(q, x, compute), k.astype(compute, copy=False).swapaxes(2, 3)[:, :, None]
    v4 = v.astype(compute, copy=False)[:, :, None]
    for i, j in _blocks(x):
        seen = _visible(x, i, j, mask)
        s = _scores(x, q5[:, :, :, i:j], kt, seen)
        top = s.max(-1, keepdims=True)
        top = np.where(top == -np.inf, 0, top)
        p = np.exp(s - top)
        total = p.sum(-1, keepdims=True)
        found = _over_seen(p, v4, seen) / np.where(total == 0, 1, total)
        o[:, :, i:j] = found.reshape(x.batch, x.heads, j - i, x.size)
        lse[:, :, i:j] = (np.log(total) + top).reshape(x.batch, x.heads, j - i)
    return o, lse


def numpy_attention_grad(
    g: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    o: np.ndarray,
    lse: np.ndarray,
    mask: np.ndarray | None = None,
    *,
    geometry: Geometry,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, compute = geometry, compute_dtype(q.dtype)
    dq, dk, dv = (np.zeros(t.shape, compute) for t in (q, k, v))
    if q.size == 0 or k.size == 0:
        return dq.astype(q.dtype), dk.astype(q.dtype), dv.astype(q.dtype)
    q5, g5, o5 = (_grouped(a, x, compute) for a in (q, g, o))
    k4, v4 = (a.astype(compute, copy=False)[:, :, None] for a in (k, v))
    least = np.where(lse == -np.inf, np.inf, lse).reshape(*q5.shape[:4], 1)  # no keys: weights 0
    delta = (g5 * o5).sum(-1, keepdims=True)
    grouped = dq.reshape(q5.shape)
    for i, j in _blocks(x):
        block, seen = g5[:, :, :, i:j], _visible(x, i, j, mask)
        s = _scores(x, q5[:, :, :, i:j], k4.swapaxes(3, 4), seen)
        p = np.exp(s - least[:, :, :, i:j])
        p = p if seen is None else np.where(seen, p, 0)  # where NaN is the largest score, exp(-infinity) is NaN too
        turned = None if seen is None else np.broadcast_to(seen, p.shape).swapaxes(3, 4)
        ds = np.where(p == 0, 0, p * (block @ v4.swapaxes(3, 4) - delta[:, :, :, i:j]))
        grouped[:, :, :, i:j] = _over_seen(ds, k4, seen) * compute.type(x.scale)
        dk += _over_seen(ds.swapaxes(3, 4), q5[:, :, :, i:j], turned).sum(2) * compute.type(x.scale)
        dv += _over_seen(p.swapaxes(3, 4), block, turned).sum(2)
    return dq.astype(q.dtype), dk.astype(q.dtype), dv.astype(q.dtype)
