"""Sizes of a pooling, checked once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from netcl.core.errors import ShapeError
from netcl.core.layout import Shape
from netcl.kernels.windows import Pair
from netcl.ops.convolution.problem import pair


@dataclass(frozen=True)
class Window:
    """Sizes of a pooling: input (n, c, h, w), output (n, c, *out). With `adaptive` the windows follow from them."""

    shape: Shape
    out: Pair
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    with_pad: bool = True
    divisor: int = 0  # 0: the number of elements
    adaptive: bool = False

    @property
    def y_shape(self) -> Shape:
        """Shape of the output."""
        return (*self.shape[:2], *self.out)

    @property
    def size(self) -> Pair:
        """Height and width of the input."""
        return self.shape[2], self.shape[3]


def window_of(
    where: str, shape: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any = 1, ceil_mode: bool = False
) -> Window:
    """The checked sizes of a pooling. Raises ShapeError for what does not fit."""
    k = pair(where, "kernel_size", kernel_size, 1)
    s = k if stride is None else pair(where, "stride", stride, 1)
    p, d = pair(where, "padding", padding, 0), pair(where, "dilation", dilation, 1)
    return _window(where, tuple(shape), k, s, p, d, ceil_mode)


@lru_cache(maxsize=4096)
def _window(where: str, shape: Shape, k: Pair, s: Pair, p: Pair, d: Pair, ceil_mode: bool) -> Window:
    shape = _images(where, shape)
    reach = tuple(d[i] * (k[i] - 1) + 1 for i in (0, 1))
    if any(2 * p[i] > reach[i] for i in (0, 1)):
        raise ShapeError(f"{where}: expected a padding of at most half the window {reach}, got {p}.")
    out = []
    for length, r, step, pad in zip(shape[2:], reach, s, p):
        room = length + 2 * pad - r
        if room < 0:
            raise ShapeError(
                f"{where}: expected a window that fits the padded input, got {reach} for {shape}, padding {p}."
            )
        count = -(-room // step) + 1 if ceil_mode else room // step + 1
        out.append(count - 1 if ceil_mode and (count - 1) * step >= length + pad else count)
    return Window(shape, (out[0], out[1]), k, s, p, d)


def _images(where: str, given: Any) -> Shape:
    shape: Shape = tuple(given)
    if len(shape) != 4 or min(shape[2:]) < 1:
        raise ShapeError(f"{where}: expected images (N, C, H, W) of at least one pixel, got shape {shape}.")
    return shape


def average(
    where: str, shape: Any, k: Any, s: Any, p: Any, ceil_mode: bool, with_pad: bool, divisor: int | None
) -> Window:
    if divisor is not None and divisor < 1:
        raise ShapeError(f"{where}: expected a divisor of at least 1 or None, got {divisor}.")
    window = window_of(where, shape, k, s, p, 1, ceil_mode)
    return replace(window, with_pad=with_pad, divisor=divisor or 0)


def adaptive_window(where: str, shape: Any, output_size: Any) -> Window:
    shape = _images(where, shape)
    if isinstance(output_size, (tuple, list)) and None in output_size:
        raise ShapeError(
            f"{where}: expected output_size as an int or a (height, width) pair, got {output_size}; "
            f"write the input's length in the place of None, here one of {shape[2:]}."
        )
    out = pair(where, "output_size", output_size, 1)
    if shape[2] % out[0] or shape[3] % out[1]:
        return Window(shape, out, adaptive=True)
    size = (shape[2] // out[0], shape[3] // out[1])
    return Window(shape, out, size, size)
