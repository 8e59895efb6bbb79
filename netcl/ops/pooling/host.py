"""Pooling on the NumPy backend: window element by window element, vectorised over images and pixels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from netcl.core.dtypes import compute_dtype, is_float
from netcl.ops.pooling.problem import Window


def _taps(window: Window) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(rows (Ho, 1), columns (1, Wo), inside (Ho, Wo)) that each element of the windows reads, clipped to the image."""
    h, w = window.shape[2:]
    rows, columns = (
        np.arange(n)[:, None] * s - p + np.arange(k) * d
        for n, s, p, k, d in zip(window.out, window.stride, window.padding, window.kernel, window.dilation)
    )
    for u in range(window.kernel[0]):
        for v in range(window.kernel[1]):
            y, x = rows[:, u, None], columns[None, :, v]
            inside = (y >= 0) & (y < h) & (x >= 0) & (x < w)
            yield np.clip(y, 0, h - 1), np.clip(x, 0, w - 1), inside


def max_pool(x: np.ndarray, *, window: Window) -> tuple[np.ndarray, np.ndarray]:
    """`max_pool2d` and its indices."""
    lowest = -np.inf if is_float(x.dtype) else 0
    best, at = np.full(window.y_shape, lowest, x.dtype), np.full(window.y_shape, -1, np.int32)
    for y, c, inside in _taps(window):
        value = x[:, :, y, c]
        better = inside & ((at < 0) | (value > best) | ((value != value) & (best == best)))
        best = np.where(better, value, best)
        at = np.where(better, (y * window.shape[3] + c).astype(np.int32), at)
    return best, at


def max_pool_grad(g: np.ndarray, at: np.ndarray, *, window: Window) -> np.ndarray:
    """`max_pool2d_grad`."""
    n, c, h, w = window.shape
    dx = np.zeros(n * c * h * w, compute_dtype(g.dtype))
    flat = at.reshape(n * c, -1)
    target = flat + np.arange(n * c)[:, None] * (h * w)
    np.add.at(dx, target[flat >= 0], g.reshape(n * c, -1)[flat >= 0].astype(dx.dtype))
    return dx.reshape(window.shape).astype(g.dtype, copy=False)


def _bounds(window: Window, axis: int) -> list[tuple[int, int, int]]:
    """(start, end, count) of every window along an axis."""
    length, out = window.shape[2 + axis], window.out[axis]
    if window.adaptive:
        edges = [(i * length // out, -(-(i + 1) * length // out)) for i in range(out)]
        return [(a, b, b - a) for a, b in edges]
    k, s, p = window.kernel[axis], window.stride[axis], window.padding[axis]
    result = []
    for a in (i * s - p for i in range(out)):
        b = min(a + k, length + p)
        inside = max(a, 0), min(b, length)
        result.append((*inside, b - a if window.with_pad else inside[1] - inside[0]))
    return result


def _counts(window: Window) -> np.ndarray:
    """(Ho, Wo): what the sum of each window is divided by."""
    rows, columns = (np.array([count for *_, count in _bounds(window, axis)]) for axis in (0, 1))
    return np.full(window.out, window.divisor) if window.divisor else rows[:, None] * columns


def avg_pool(x: np.ndarray, *, window: Window) -> np.ndarray:
    """`avg_pool2d` and `adaptive_avg_pool2d`: sums along rows, then along columns."""
    y = x.astype(compute_dtype(x.dtype), copy=False)
    y = np.stack([y[:, :, a:b].sum(2) for a, b, _ in _bounds(window, 0)], 2)
    y = np.stack([y[:, :, :, a:b].sum(3) for a, b, _ in _bounds(window, 1)], 3)
    mean: np.ndarray = y / _counts(window).astype(y.dtype)
    return mean.astype(x.dtype, copy=False)


def avg_pool_grad(g: np.ndarray, *, window: Window) -> np.ndarray:
    """Gradient of `avg_pool`: spread along columns, then along rows."""
    n, c, _, w = window.shape
    share = g.astype(compute_dtype(g.dtype), copy=False)
    share = share / _counts(window).astype(share.dtype)
    spread, dx = np.zeros((n, c, window.out[0], w), share.dtype), np.zeros(window.shape, share.dtype)
    for j, (a, b, _) in enumerate(_bounds(window, 1)):
        spread[:, :, :, a:b] += share[:, :, :, j : j + 1]
    for i, (a, b, _) in enumerate(_bounds(window, 0)):
        dx[:, :, a:b] += spread[:, :, i : i + 1]
    return dx.astype(g.dtype, copy=False)
