"""Convolution and its gradients on the NumPy backend."""

from __future__ import annotations

import numpy as np

from netcl.core.dtypes import compute_dtype
from netcl.core.kernels import dialect
from netcl.ops.convolution.problem import Geometry


def _patches(x: np.ndarray, g: Geometry) -> np.ndarray:
    """x as (N, groups, C / groups, KH, KW, Ho, Wo): a view of the padded input."""
    (sy, sx), (py, px), (dy, dx) = g.stride, g.padding, g.dilation
    padded = np.pad(x, ((0, 0), (0, 0), (py, py), (px, px)))
    n, c, h, w = padded.strides
    per = g.c // g.groups
    return np.lib.stride_tricks.as_strided(
        padded,
        (g.n, g.groups, per, g.kh, g.kw, *g.out),
        (n, c * per, c, h * dy, w * dx, h * sy, w * sx),
        writeable=False,
    )


def _columns(x: np.ndarray, g: Geometry) -> np.ndarray:
    """x as (N, groups, taps, pixels), copied."""
    return np.ascontiguousarray(_patches(x, g)).reshape(g.n, g.groups, g.taps, g.out[0] * g.out[1])


def forward(
    x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None, *, g: Geometry, activation: str | None = None
) -> np.ndarray:
    """`conv2d` with NumPy; half is computed in float."""
    compute = compute_dtype(x.dtype)
    weights = w.astype(compute, copy=False).reshape(g.groups, g.o // g.groups, g.taps)
    y = np.matmul(weights, _columns(x.astype(compute, copy=False), g)).reshape(g.y_shape)
    if b is not None:
        y = y + b.astype(compute, copy=False)[:, None, None]
    if activation is not None:
        y = dialect.NUMPY[activation.upper()](y)
    return np.asarray(y).astype(x.dtype, copy=False)


def weight_grad(g: np.ndarray, x: np.ndarray, *, form: Geometry) -> np.ndarray:
    """`conv2d_weight_grad` with NumPy."""
    compute = compute_dtype(x.dtype)
    upstream = g.astype(compute, copy=False).reshape(
        form.n, form.groups, form.o // form.groups, form.out[0] * form.out[1]
    )
    columns = _columns(x.astype(compute, copy=False), form)
    dw: np.ndarray = np.matmul(upstream, columns.swapaxes(-1, -2)).sum(0)
    return dw.reshape(form.w_shape).astype(x.dtype, copy=False)


def input_grad(g: np.ndarray, w: np.ndarray, *, form: Geometry) -> np.ndarray:
    """`conv2d_input_grad` with NumPy: the gradient of every tap, added where the tap read."""
    compute, per = compute_dtype(g.dtype), form.c // form.groups
    weights = w.astype(compute, copy=False).reshape(form.groups, form.o // form.groups, form.taps)
    upstream = g.astype(compute, copy=False).reshape(
        form.n, form.groups, form.o // form.groups, form.out[0] * form.out[1]
    )
    taps = np.matmul(weights.swapaxes(-1, -2), upstream).reshape(form.n, form.groups * per, form.kh, form.kw, *form.out)
    (sy, sx), (py, px), (dy, dx) = form.stride, form.padding, form.dilation
    padded = np.zeros((form.n, form.c, form.h + 2 * py, form.w + 2 * px), compute)
    for u in range(form.kh):
        for v in range(form.kw):
            rows, columns = slice(u * dy, u * dy + sy * form.out[0], sy), slice(v * dx, v * dx + sx * form.out[1], sx)
            padded[:, :, rows, columns] += taps[:, :, u, v]
    return padded[:, :, py : py + form.h, px : px + form.w].astype(g.dtype, copy=False)
