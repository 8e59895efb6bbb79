"""Attention with NumPy, in blocks of rows, and its gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from netcl.core.dtypes import BOOL, DType, compute_dtype
from netcl.ops.attend.problem import Geometry, kept
from netcl.ops.create.random import philox, share_of

NUMPY_SCORES = 1 << 22  # scores that the NumPy form holds at once
Names = tuple[str, ...]


class Block(NamedTuple):
    """Rows first .. last of all heads: what they see (None for all), scores, and the slope of the cap."""

    first: int
    last: int
    seen: np.ndarray | None
    scores: np.ndarray
    bend: np.ndarray | None


class Scores:
    """What makes the scores of a call: its geometry and arrays, the latter by the names of problem.Marks."""

    def __init__(self, x: Geometry, dtype: DType, marks: dict[str, np.ndarray]) -> None:
        self.x, self.compute, self.marks = x, compute_dtype(dtype), marks

    def grouped(self, a: np.ndarray) -> np.ndarray:
        """(B, H, T, ...) as (B, H_kv, group, T, ...); axes of one element stay so."""
        x = self.x
        heads = (1, 1) if a.shape[1] == 1 else (x.heads // x.group, x.group)
        return np.asarray(self.wide(a).reshape(a.shape[0], *heads, *a.shape[2:]))

    def wide(self, a: np.ndarray) -> np.ndarray:
        """`a` in the compute dtype."""
        return a if a.dtype == BOOL else a.astype(self.compute, copy=False)

    def distance(self, first: int, last: int) -> np.ndarray:
        """How many places key j lies behind the place of query i: (rows, Tk), or (B, 1, 1, rows, Tk)."""
        keys = np.arange(self.x.keys)
        if "bounds" in self.marks:
            return self.bound(2, first, last) - keys
        return np.arange(first, last)[:, None] + self.x.offset - keys

    def bound(self, which: int, first: int, last: int) -> np.ndarray:
        """A column of the bounds of the queries first .. last, (B, 1, 1, rows, 1)."""
        return np.asarray(self.marks["bounds"][:, None, None, first:last, which, None])

    def seen(self, first: int, last: int, mask: np.ndarray | None) -> np.ndarray | None:
        """Which keys the queries first .. last see, broadcastable to (B, H_kv, group, rows, Tk); None for all."""
        x, behind, keys = self.x, self.distance(first, last), np.arange(self.x.keys)
        if "bounds" in self.marks:
            parts = [keys >= self.bound(0, first, last), keys < self.bound(1, first, last)]
        else:
            parts = [behind >= 0] if x.causal else []
            parts += [np.abs(behind) < x.window] if x.window else []
        if "padding" in self.marks:
            parts.append((self.marks["padding"] == 0)[:, None, None, None, :])
        if mask is not None:
            parts.append(mask if mask.dtype == BOOL else mask != -np.inf)
        found: np.ndarray | None = None
        for part in parts:
            found = part if found is None else found & part
        return found

    def blocks(self, q: np.ndarray, kt: np.ndarray) -> Iterator[Block]:
        """The scores of q by kt, some rows at a time."""
        x, step = self.x, max(1, NUMPY_SCORES // max(self.x.batch * self.x.heads * self.x.keys, 1))
        slopes = self.grouped(self.marks["slopes"])[..., None, None] if "slopes" in self.marks else None
        masks = self.grouped(self.marks["mask"]) if "mask" in self.marks else None
        for i in range(0, x.queries, step):
            j = min(i + step, x.queries)
            mask = masks if masks is None or masks.shape[3] == 1 else masks[:, :, :, i:j]
            seen, s, bend = self.seen(i, j, mask), (q[:, :, :, i:j] * q.dtype.type(x.scale)) @ kt, None
            if x.softcap:
                t = np.tanh(s / q.dtype.type(x.softcap))
                s, bend = t * q.dtype.type(x.softcap), 1 - t * t
            if slopes is not None:
                s = s - slopes * np.abs(self.distance(i, j)).astype(q.dtype)
            if mask is not None and mask.dtype != BOOL:
                s = s + mask
            yield Block(i, j, seen, s if seen is None else np.where(seen, s, q.dtype.type(-np.inf)), bend)


def _factors(x: Geometry, draw: tuple[int, int, int], first: int, last: int) -> np.ndarray:
    """The factors of dropout for the queries first .. last, (B, H_kv, group, rows, Tk): see attention_scores.cl."""
    blocks = -(-x.keys // 4)
    starts = [draw[0] + (head * x.queries + first) * blocks for head in range(x.batch * x.heads)]
    words = np.stack([philox(start, (last - first) * blocks * 4, *draw[1:]) for start in starts])
    words = words.reshape(x.batch, -1, x.group, last - first, blocks * 4)[..., : x.keys]
    return np.where(words >> np.uint32(8) < share_of(x.dropout), 0.0, kept(x))


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
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *marks: np.ndarray,
    names: Names,
    geometry: Geometry,
    draw: tuple[int, int, int] = (0, 0, 0),
) -> tuple[np.ndarray, np.ndarray]:
    """o and lse; `names` are those of `marks`."""
    x, scores = geometry, Scores(geometry, q.dtype, dict(zip(names, marks)))
    o, lse = np.zeros((*q.shape[:3], x.width), q.dtype), np.full(q.shape[:3], -np.inf, scores.compute)
    if lse.size == 0:
        return o, lse
    sink = scores.wide(scores.marks["sinks"]).reshape(-1, x.group, 1, 1) if "sinks" in scores.marks else None
    kt, v4 = scores.wide(k).swapaxes(2, 3)[:, :, None], scores.wide(v)[:, :, None]
    for i, j, seen, s, _ in scores.blocks(scores.grouped(q), kt):
        top = s.max(-1, keepdims=True, initial=-np.inf)
        top = top if sink is None else np.maximum(top, sink)
        top = np.where(top == -np.inf, 0, top)
        p = np.exp(s - top)
        total = p.sum(-1, keepdims=True)
        total = total if sink is None else total + np.exp(sink - top)
        p = p * _factors(x, draw, i, j).astype(p.dtype) if x.dropout else p
        found = _over_seen(p, v4, seen) / np.where(total == 0, 1, total)
        o[:, :, i:j] = found.reshape(x.batch, x.heads, j - i, x.width)
        lse[:, :, i:j] = (np.log(total) + top).reshape(x.batch, x.heads, j - i)
    return o, lse


def numpy_attention_grad(
    g: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    o: np.ndarray,
    lse: np.ndarray,
    *marks: np.ndarray,
    names: Names,
    geometry: Geometry,
    draw: tuple[int, int, int] = (0, 0, 0),
    sums: tuple[tuple[tuple[int, ...], bool], ...] = (),
) -> tuple[np.ndarray, ...]:
    """dq, dk, dv, the dots of g and o, and for each of `sums` (shape, away) what problem.BiasGrad says."""
    x, scores = geometry, Scores(geometry, q.dtype, dict(zip(names, marks)))
    compute = scores.compute
    dq, dk, dv = (np.zeros(t.shape, compute) for t in (q, k, v))
    more = [np.zeros(shape, compute) for shape, _ in sums]
    q5, g5, o5 = (scores.grouped(a) for a in (q, g, o))
    k4, v4 = (scores.wide(a)[:, :, None] for a in (k, v))
    least = np.where(lse == -np.inf, np.inf, lse).reshape(*q5.shape[:4], 1)  # no keys: weights 0
    delta = (g5 * o5).sum(-1, keepdims=True)
    grouped = dq.reshape(q5.shape)
    for i, j, seen, s, bend in scores.blocks(q5, k4.swapaxes(3, 4)) if lse.size and x.keys else ():
        block = g5[:, :, :, i:j]
        p = np.exp(np.minimum(s - least[:, :, :, i:j], 0))
        p = p if seen is None else np.where(seen, p, 0)  # where NaN is the largest score, exp(-infinity) is NaN too
        turned = None if seen is None else np.broadcast_to(seen, p.shape).swapaxes(3, 4)
        z = _factors(x, draw, i, j).astype(compute) if x.dropout else compute.type(1)
        ds = np.where(p == 0, 0, p * (block @ v4.swapaxes(3, 4) * z - delta[:, :, :, i:j]))
        for total, (shape, away) in zip(more, sums):
            part = ds.reshape(x.batch, x.heads, j - i, x.keys)
            part = -np.abs(scores.distance(i, j)).reshape(-1, 1, j - i, x.keys) * part if away else part
            into = total if shape[2] == 1 else total[:, :, i:j]
            into += part.sum(tuple(a for a, n in enumerate(into.shape) if n == 1), keepdims=True)
        ds = ds if bend is None else np.where(p == 0, 0, ds * bend)
        grouped[:, :, :, i:j] = _over_seen(ds, k4, seen) * compute.type(x.scale)
        dk += _over_seen(ds.swapaxes(3, 4), q5[:, :, :, i:j], turned).sum(2) * compute.type(x.scale)
        dv += _over_seen((p * z).swapaxes(3, 4), block, turned).sum(2)
    return dq.astype(q.dtype), dk.astype(q.dtype), dv.astype(q.dtype), delta.reshape(lse.shape), *more
