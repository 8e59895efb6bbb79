"""Sizes of a convolution, checked once, and how its input gradient falls apart into convolutions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from operator import index as as_index
from typing import Any

import numpy as np

from netcl.core.errors import ShapeError
from netcl.core.layout import Shape, as_int, shown
from netcl.kernels.route import declare
from netcl.kernels.windows import Pair

FORWARD = declare("conv2d", "wgmma", "depthwise", "direct", "implicit_gemm", "im2col", "winograd")
INPUT_GRAD = declare("conv2d_input_grad", "wgmma", "depthwise", "implicit_gemm", "im2col", "winograd")
WEIGHT_GRAD = declare("conv2d_weight_grad", "wgmma", "depthwise", "implicit_gemm", "im2col", "winograd")
FIELDS = ("M", "Q", "K", "C", "H", "W", "KH", "KW", "sy", "sx", "py", "px", "dy", "dx", "Ho", "Wo")  # of records
MOST_PIXELS = (1 << 31) - 4096  # that GPUs count in 31 bits, with room for rounding up to whole groups


@dataclass(frozen=True)
class Geometry:
    """Sizes of a convolution: x (n, c, h, w), weights (o, c / groups, kh, kw), y (n, o, *out)."""

    n: int
    c: int
    h: int
    w: int
    o: int
    kh: int
    kw: int
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int
    out: Pair

    @property
    def taps(self) -> int:
        """Products per output element: the depth of the matrix product."""
        return self.c // self.groups * self.kh * self.kw

    @property
    def pixels(self) -> int:
        """Output pixels of all images."""
        return self.n * self.out[0] * self.out[1]

    @property
    def y_shape(self) -> Shape:
        """Shape of the output."""
        return (self.n, self.o, *self.out)

    @property
    def x_shape(self) -> Shape:
        """Shape of the input."""
        return (self.n, self.c, self.h, self.w)

    @property
    def w_shape(self) -> Shape:
        """Shape of the weights."""
        return (self.o, self.c // self.groups, self.kh, self.kw)

    def fields(self, names: Iterable[str], x: Shape = (), y: Shape = ()) -> dict[str, int]:
        """Those of a record's fields `names` that tell sizes of the convolution, or the strides `x` and `y`."""
        sizes = (self.o // self.groups, self.pixels, self.taps, self.c // self.groups, self.h, self.w, self.kh, self.kw)
        values = (*sizes, *self.stride, *self.padding, *self.dilation, *self.out)
        known = dict(zip(FIELDS, values, strict=True))
        known |= {f"{t}{axis}": step for t, strides in (("x", x), ("y", y)) for axis, step in zip("nchw", strides)}
        return {name: value for name, value in known.items() if name in names}

    @property
    def padded(self) -> bool:
        """Whether a tap of an output pixel lies outside the input."""
        axes = zip((self.h, self.w), (self.kh, self.kw), self.stride, self.padding, self.dilation, self.out)
        return any(p > 0 or (out - 1) * s - p + (k - 1) * d >= size for size, k, s, p, d, out in axes)

    @property
    def depthwise(self) -> bool:
        """Whether every group has a single input channel."""
        return self.groups == self.c and self.groups > 1


def pair(where: str, name: str, value: Any, least: int) -> Pair:
    """`value` (an int or two) as (height, width). Raises ShapeError below `least`."""
    if type(value) is int and value >= least:
        return value, value
    try:
        height, width = value if np.ndim(value) else (value, value)
        both = as_index(height), as_index(width)
        if min(both) >= least:
            return both
    except (TypeError, ValueError):
        pass
    raise ShapeError(
        f"{where}: expected {name} as an int or a (height, width) pair of at least {least}, got {shown(value)}."
    )


def geometry(where: str, x_shape: Any, w_shape: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Geometry:
    """The checked sizes of a convolution. Raises ShapeError for what does not fit."""
    settings = [v if type(v) in (int, tuple) else tuple(v) if np.ndim(v) else v for v in (stride, padding, dilation)]
    groups = groups if type(groups) is int else as_int(where, groups, "groups", 1)
    return _geometry(where, tuple(x_shape), tuple(w_shape), *settings, groups)


@lru_cache(maxsize=4096)
def _geometry(
    where: str, x_shape: Shape, w_shape: Shape, stride: Any, padding: Any, dilation: Any, groups: int
) -> Geometry:
    s, p = pair(where, "stride", stride, 1), pair(where, "padding", padding, 0)
    d = pair(where, "dilation", dilation, 1)
    if len(x_shape) != 4 or len(w_shape) != 4:
        raise ShapeError(
            f"{where}: expected x (N, C, H, W) and w (O, C / groups, KH, KW), got {x_shape} and {w_shape}."
        )
    n, c, h, w = x_shape
    o, cg, kh, kw = w_shape
    if groups < 1 or c % groups or o % groups or c // groups != cg:
        raise ShapeError(
            f"{where}: expected w (O, C / groups, KH, KW) with groups {groups} dividing C and O, "
            f"got x {x_shape} and w {w_shape}."
        )
    reach = (h + 2 * p[0] - d[0] * (kh - 1) - 1, w + 2 * p[1] - d[1] * (kw - 1) - 1)
    if min(kh, kw) < 1 or min(reach) < 0:
        raise ShapeError(
            f"{where}: expected a filter of at least 1 x 1 that fits the padded input, got filter {(kh, kw)} with "
            f"dilation {d} for input {(h, w)} with padding {p}."
        )
    return Geometry(n, c, h, w, o, kh, kw, s, p, d, groups, (reach[0] // s[0] + 1, reach[1] // s[1] + 1))


@dataclass(frozen=True)
class Residue:
    """The pixels `first`, `first` + s, ... of one axis of dx: a convolution over g with `taps` of the filter's rows.

    Tap j reads g at i + j * dilation - padding and is the filter's row start + (taps - 1 - j) * step.
    """

    first: int
    length: int
    taps: int
    start: int
    step: int
    dilation: int
    padding: int


def residues(length: int, k: int, stride: int, padding: int, dilation: int) -> Iterator[Residue]:
    """The residues modulo `stride` of an axis of dx with `length` pixels, for a filter axis of `k` taps."""
    step, reach = stride // gcd(stride, dilation), dilation // gcd(stride, dilation)
    for r in range(min(stride, length)):
        hits = [u for u in range(k) if (r + padding - u * dilation) % stride == 0]
        start = hits[0] if hits else 0
        q = (r + padding - start * dilation) // stride
        count = -(-(length - r) // stride)
        yield Residue(r, count, len(hits), start, step, reach, (len(hits) - 1) * reach - q)


def residue_geometry(form: Geometry, y: Residue, x: Residue) -> Geometry:
    """The convolution over g that gives the pixels of dx at these residues; its output is theirs."""
    sizes: dict[str, Any] = {"c": form.o, "o": form.c, "h": form.out[0], "w": form.out[1], "kh": y.taps, "kw": x.taps}
    steps: dict[str, Any] = {"stride": (1, 1), "dilation": (y.dilation, x.dilation)}
    return replace(form, **sizes, **steps, padding=(y.padding, x.padding), out=(y.length, x.length))
