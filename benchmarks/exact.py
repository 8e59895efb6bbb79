"""Right answers in NumPy, written for clearness; float64 in gives float64 out. Nothing here comes from netcl."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray


def erf(x: Array) -> Array:
    """The error function, elementwise."""
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def softmax(x: Array) -> Array:
    """Along the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_grad(x: Array, g: Array) -> Array:
    """Gradient of the softmax of x."""
    y = softmax(x)
    return y * (g - (g * y).sum(-1, keepdims=True))


def norm(x: Array, w: Array, b: Array | None, eps: float) -> Array:
    """Layer norm, or RMS norm when there is no b, along the last axis."""
    return _normal(x, b is not None, eps)[0] * w + (0 if b is None else b)


def _normal(x: Array, centred: bool, eps: float) -> tuple[Array, Array]:
    x = x - x.mean(-1, keepdims=True) if centred else x
    scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return x * scale, scale


def norm_grad(x: Array, w: Array, b: Array | None, g: Array, eps: float) -> list[Array]:
    """Gradients of `norm` for x, w and, where there is one, b."""
    h, scale = _normal(x, b is not None, eps)
    u = g * w
    dx = u - h * (u * h).mean(-1, keepdims=True) - (0 if b is None else u.mean(-1, keepdims=True))
    return [dx * scale, (g * h).sum(0), *([] if b is None else [g.sum(0)])]


def cross_entropy(z: Array, labels: Array) -> list[Array]:
    """Mean loss, as shape (1,), and its gradient."""
    p, rows = softmax(z), np.arange(len(labels))
    loss = -np.log(p[rows, labels]).mean()
    p[rows, labels] -= 1
    return [np.array([loss]), p / len(labels)]


def attention(q: Array, k: Array, v: Array) -> Array:
    """Causal scaled dot-product attention of (B, H, T, D)."""
    return _weights(q, k) @ v


def _weights(q: Array, k: Array) -> Array:
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    return softmax(np.where(np.tri(q.shape[-2], k.shape[-2], dtype=bool), scores, -np.inf))


def attention_grad(q: Array, k: Array, v: Array, g: Array) -> list[Array]:
    """Gradients of `attention` for q, k and v."""
    p = _weights(q, k)
    dp = g @ v.swapaxes(-1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
    return [ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ g]


def _windows(x: Array, w: Array, stride: int, padding: int) -> Any:
    """For each kernel position its weights and the slice of padded x that they see: (i, j, index)."""
    height, width = ((n + 2 * padding - k) // stride + 1 for n, k in zip(x.shape[2:], w.shape[2:]))
    for i in range(w.shape[2]):
        for j in range(w.shape[3]):
            yield i, j, (..., slice(i, i + stride * height, stride), slice(j, j + stride * width, stride))


def _grouped(a: Array, groups: int) -> Array:
    """(N, C, H, W) as (N, groups, C / groups, H W)."""
    return a.reshape(a.shape[0], groups, a.shape[1] // groups, -1)


def conv(x: Array, w: Array, stride: int = 1, padding: int = 0, groups: int = 1) -> Array:
    """Cross-correlation of (N, C, H, W) with (O, C / groups, KH, KW)."""
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    parts = w.reshape(groups, -1, *w.shape[1:])
    y: Any = 0
    for i, j, index in _windows(x, w, stride, padding):
        patch = padded[index]
        y = y + np.matmul(parts[..., i, j], _grouped(patch, groups))
    return y.reshape(x.shape[0], w.shape[0], *patch.shape[2:])


def conv_input_grad(x: Array, w: Array, g: Array, stride: int = 1, padding: int = 0, groups: int = 1) -> Array:
    """Gradient of `conv` for x."""
    padded = np.pad(np.zeros_like(x), ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    parts = w.reshape(groups, -1, *w.shape[1:]).swapaxes(1, 2)
    for i, j, index in _windows(x, w, stride, padding):
        padded[index] += np.matmul(parts[..., i, j], _grouped(g, groups)).reshape(padded[index].shape)
    return padded[..., padding : padding + x.shape[2], padding : padding + x.shape[3]]


def conv_weight_grad(x: Array, w: Array, g: Array, stride: int = 1, padding: int = 0, groups: int = 1) -> Array:
    """Gradient of `conv` for w."""
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    dw, up = np.zeros_like(w), _grouped(g, groups)
    for i, j, index in _windows(x, w, stride, padding):
        products = np.matmul(up, _grouped(padded[index], groups).swapaxes(-1, -2)).sum(0)
        dw[..., i, j] = products.reshape(w.shape[:2])
    return dw


def adamw(p: Array, g: Array, m: Array, v: Array, step: int, lr: float, decay: float) -> tuple[Array, Array, Array]:
    """One AdamW step with betas 0.9 and 0.999 and eps 1e-8: the new p, m and v."""
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    update = (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    return p * (1 - lr * decay) - lr * update, m, v


class AdamW:
    """AdamW over several arrays, updated in place in the list."""

    def __init__(self, params: Sequence[Array], lr: float, decay: float) -> None:
        self.params, self.lr, self.decay, self.steps = list(params), lr, decay, 0
        self.moments = [(np.zeros_like(p), np.zeros_like(p)) for p in self.params]

    def step(self, grads: Sequence[Array]) -> None:
        """Apply the gradients."""
        self.steps += 1
        for i, (p, g, (m, v)) in enumerate(zip(self.params, grads, self.moments)):
            self.params[i], *moments = adamw(p, g, m, v, self.steps, self.lr, self.decay)
            self.moments[i] = (moments[0], moments[1])


def perceptron(x: Array, labels: Array, params: Sequence[Array]) -> tuple[Array, list[Array]]:
    """Loss and gradients of linear layers (weight (out, in), bias, ...) with ReLU between them and cross-entropy."""
    loss, grads, _ = _perceptron(x, labels, params)
    return loss, grads


def _perceptron(x: Array, labels: Array, params: Sequence[Array]) -> tuple[Array, list[Array], Array]:
    """The same and the gradient of x."""
    weights, biases, kept = params[::2], params[1::2], [x]
    for w, b in zip(weights, biases):
        kept.append(np.maximum(kept[-1] @ w.T + b, 0) if w is not weights[-1] else kept[-1] @ w.T + b)
    loss, g = cross_entropy(kept[-1], labels)
    grads: list[Array] = []
    for i in reversed(range(len(weights))):
        grads = [g.T @ kept[i], g.sum(0), *grads]
        g = (g @ weights[i]) * ((kept[i] > 0) if i else 1)
    return loss, grads, g


def pooled(x: Array) -> tuple[Array, Array]:
    """Max-pooling of (N, C, H, W) over 2 by 2, and the mask (N, C, H, W) of the first largest of each block."""
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(n, c, h // 2, w // 2, 4)
    mask = np.arange(4) == blocks.argmax(-1)[..., None]
    mask = mask.reshape(n, c, h // 2, w // 2, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(x.shape)
    return blocks.max(-1), mask


def digits_network(x: Array, labels: Array, params: Sequence[Array]) -> tuple[Array, list[Array]]:
    """Loss and gradients of three 3x3 convolutions with ReLU, the last two also pooled, then `perceptron`'s layers."""
    layers, rest, kept = list(zip(params[0:6:2], params[1:6:2])), params[6:], []
    for i, (w, b) in enumerate(layers):
        y = np.maximum(conv(x, w, padding=1) + b[:, None, None], 0)
        out, mask = pooled(y) if i else (y, np.array(True))
        kept.append((x, y, mask))
        x = out
    loss, grads, g = _perceptron(x.reshape(len(x), -1), labels, rest)
    g = g.reshape(x.shape)
    for i in (2, 1, 0):
        x, y, mask = kept[i]
        g = (g.repeat(2, axis=2).repeat(2, axis=3) if i else g) * mask * (y > 0)
        grads = [conv_weight_grad(x, layers[i][0], g, padding=1), g.sum((0, 2, 3)), *grads]
        g = conv_input_grad(x, layers[i][0], g, padding=1)
    return loss, grads
