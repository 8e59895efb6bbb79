"""conv2d and its gradients by their definition, tap by tap, in double precision."""

import itertools

import numpy as np
from scipy import special

from netcl.core.layout import contiguous_strides
from netcl.core.tensor import Tensor
from netcl.kernels.route import ranked
from netcl.ops.convolution import gpu
from netcl.ops.convolution.op import conv2d, conv2d_input_grad, conv2d_weight_grad
from netcl.ops.convolution.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD

TOLERANCE = {"bfloat16": 0.024, "float16": 3e-3, "float32": 4e-6, "float64": 1e-13}
ACTIVATIONS = {
    None: lambda v: v,
    "relu": lambda v: np.maximum(v, 0),
    "gelu": lambda v: v * special.ndtr(v),
    "silu": lambda v: v * special.expit(v),
}


def values(shape, dtype="float32", seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def best_routes(queue, g, dtype):
    """The names of the routes that a GPU takes for a convolution and its gradients, of tensors without memory."""
    x, w, y = (
        Tensor(None, shape, contiguous_strides(shape), 0, np.dtype(dtype), queue)
        for shape in (g.x_shape, g.w_shape, g.y_shape)
    )
    ways = (
        (FORWARD, gpu.forward_routes(y, x, w, False, g, None)),
        (INPUT_GRAD, gpu.input_routes(x, y, g)),
        (WEIGHT_GRAD, gpu.weight_routes(y, x, g)),
    )
    return tuple(ranked(op, routes)[0].name for op, routes in ways)


def two(v):
    return (v, v) if isinstance(v, int) else v


class Reference:
    """The definition, tap by tap, in double precision."""

    def __init__(self, x_shape, w_shape, stride=1, padding=0, dilation=1, groups=1):
        self.x_shape, self.w_shape, self.groups = x_shape, w_shape, groups
        self.s, self.p, self.d = two(stride), two(padding), two(dilation)
        size = [
            (x_shape[2 + i] + 2 * self.p[i] - self.d[i] * (w_shape[2 + i] - 1) - 1) // self.s[i] + 1 for i in (0, 1)
        ]
        self.y_shape = (x_shape[0], w_shape[0], *size)

    def taps(self):
        """(u, v, window of the padded input that tap (u, v) reads)."""
        for u, v in itertools.product(range(self.w_shape[2]), range(self.w_shape[3])):
            at = [t * d for t, d in zip((u, v), self.d)]
            yield u, v, tuple(slice(a, a + s * n, s) for a, s, n in zip(at, self.s, self.y_shape[2:]))

    def pad(self, x):
        return np.pad(x.astype("f8"), ((0, 0), (0, 0), (self.p[0],) * 2, (self.p[1],) * 2))

    def split(self, a, axis):
        return np.split(a, self.groups, axis)

    def forward(self, x, w):
        y = np.zeros(self.y_shape)
        for yg, xg, wg in zip(self.split(y, 1), self.split(self.pad(x), 1), self.split(w.astype("f8"), 0)):
            for u, v, window in self.taps():
                yg += np.einsum("nchw,oc->nohw", xg[:, :, window[0], window[1]], wg[:, :, u, v])
        return y

    def input_grad(self, g, w):
        padded = self.pad(np.zeros(self.x_shape))
        for dx, gg, wg in zip(self.split(padded, 1), self.split(g.astype("f8"), 1), self.split(w.astype("f8"), 0)):
            for u, v, window in self.taps():
                dx[:, :, window[0], window[1]] += np.einsum("nohw,oc->nchw", gg, wg[:, :, u, v])
        (py, px), (h, w) = self.p, self.x_shape[2:]
        return padded[:, :, py : py + h, px : px + w]

    def weight_grad(self, g, x):
        dw = np.zeros(self.w_shape)
        for dwg, gg, xg in zip(self.split(dw, 0), self.split(g.astype("f8"), 1), self.split(self.pad(x), 1)):
            for u, v, window in self.taps():
                dwg[:, :, u, v] = np.einsum("nohw,nchw->oc", gg, xg[:, :, window[0], window[1]])
        return dw


def close(y, expected, dtype="float32", terms=1):
    y = y.to_host() if isinstance(y, Tensor) else y
    assert y.shape == expected.shape
    assert y.dtype == np.dtype(dtype)
    scale = TOLERANCE[dtype] * max(1.0, float(np.sqrt(terms)), float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(y.astype("f8"), expected, rtol=TOLERANCE[dtype], atol=scale)


def check(queue, x_shape, w_shape, dtype="float32", **options):
    """Forward and both gradients of one convolution."""
    ref = Reference(x_shape, w_shape, **options)
    x, w, g = values(x_shape, dtype), values(w_shape, dtype, 1), values(ref.y_shape, dtype, 2)
    put = [Tensor.from_host(queue, a) for a in (x, w, g)]
    taps = int(np.prod(w_shape[1:]))
    close(conv2d(put[0], put[1], **options), ref.forward(x, w), dtype, taps)
    close(conv2d_input_grad(put[2], put[1], x_shape, **options), ref.input_grad(g, w), dtype, taps)
    pixels = ref.y_shape[0] * ref.y_shape[2] * ref.y_shape[3]
    close(conv2d_weight_grad(put[2], put[0], w_shape, **options), ref.weight_grad(g, x), dtype, pixels)
