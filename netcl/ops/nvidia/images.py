"""Images packed for convolutions on warpgroup matrix units: pixels are rows, channels lie along memory.

Padded images have zeros around them: a row of pixels is `width` long, an image `height` rows, so that a tap of the
filter is a shift of the pixel index, also across the borders. A stride s splits an image into s x s phases, in which a
tap is again a shift. Small images would be mostly padding, and of single taps a stride skips most pixels; these become
columns instead: every output pixel has a copy of all the pixels that it reads, tap after tap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from netcl.core.device.profile import profile_of
from netcl.core.dtypes import C_NAME
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor
from netcl.kernels.tiling import TRAFFIC, Tiling, cut
from netcl.ops.convolution.problem import Geometry
from netcl.ops.nvidia.pack import Operand, Pack, Pixels, packing, pitch_of


@dataclass(frozen=True)
class Grid:
    """Packed images of a convolution: their size with padding, and (shift, phase) of each tap."""

    width: int
    height: int
    taps: tuple[tuple[int, int], ...]

    @property
    def pixels(self) -> int:
        """Pixels of an image with its padding."""
        return self.width * self.height


def grid(g: Geometry, even: bool, least: tuple[int, int] = (0, 0)) -> Grid:
    """The packed images of `g`, of at least (height, width).

    `even` rounds the width up, so that pairs of pixels lie at even places.
    """
    (ys, height), (xs, width) = (
        _axis(*axis) for axis in zip((g.h, g.w), (g.kh, g.kw), g.stride, g.padding, g.dilation, g.out)
    )
    height, width = max(height, least[0]), max(width, least[1])
    width += even and width % 2
    taps = tuple((qy * width + qx, py * g.stride[1] + px) for qy, py in ys for qx, px in xs)
    return Grid(width, height, taps)


def _axis(length: int, k: int, s: int, p: int, d: int, out: int) -> tuple[list[tuple[int, int]], int]:
    """(shift, phase) of each tap along an axis, and the least padded length that keeps shifts off neighbours."""
    taps = [divmod(u * d - p, s) for u in range(k)]
    shifts = [q for q, _ in taps]
    return taps, max(-(-length // s) + max(0, -min(shifts)), out + max(0, *shifts))


class Images(NamedTuple):
    """Packed images: what packs them, their layout for each convolution over them, and the tiling of its products."""

    pack: Pack
    grids: list[Grid]
    tiling: Tiling
    columns: int = 0  # slots of a pixel with all its taps; 0 for padded images

    def table(self, part: int, slots: int, step: int) -> list[tuple[int, int, int, int]]:
        """(slot, shift, phase, 0) of each piece of `step` slots, tap after tap with `slots` each."""
        if self.columns:
            return [(at, 0, 0, 0) for at in range(0, self.columns, step)]
        return [(at, shift, phase, 0) for shift, phase in self.grids[part].taps for at in range(0, slots, step)]


def forward_images(
    queue: Queue, parts: Sequence[Geometry], x: Tensor, kernels: Sequence[str], slots: int, even: bool
) -> Images:
    """Images for convolutions `parts` over x, by the cheaper layout, with a tiling of their products."""
    g, o = parts[0], parts[0].o // parts[0].groups
    grids = [grid(part, even) for part in parts]
    size = max(layout.height for layout in grids), max(layout.width for layout in grids)
    grids = [grid(part, even, size) for part in parts]
    most = max(part.kh * part.kw for part in parts) * slots

    def tiling(rows: int) -> Tiling:
        return cut(kernels, profile_of(queue), rows, o, most, g.groups, most=1)[0]

    padded, dense, phases = tiling(g.n * grids[0].pixels), dense_grid(g, even), g.c * prod(g.stride)
    columns = tiling(g.n * dense.pixels)
    costs = cost(columns, queue, g, dense, g.groups * most, x), cost(padded, queue, g, grids[0], phases, x)
    if len(parts) == 1 and costs[0] < costs[1]:
        return Images(pack_columns(queue, g, dense, x, slots), [dense], columns, most)
    return Images(pack_images(queue, g, grids[0], x), grids, padded)


def gradient_images(queue: Queue, g: Geometry, x: Tensor, kernels: Sequence[str], slots: int) -> Images:
    """Images for the weight gradient of `g`, whose rows are taps and slots and whose k are pixels."""
    m, o = g.kh * g.kw * slots, g.o // g.groups
    layout, dense = grid(g, False), dense_grid(g, False)
    padded, columns = (
        cut(kernels, profile_of(queue), m, o, g.n * form.pixels, g.groups)[0] for form in (layout, dense)
    )
    if cost(columns, queue, g, dense, g.groups * m, x) < cost(padded, queue, g, layout, g.c * prod(g.stride), x):
        return Images(pack_columns(queue, g, dense, x, slots), [dense], columns, m)
    return Images(pack_images(queue, g, layout, x), [layout], padded)


def dense_grid(g: Geometry, even: bool) -> Grid:
    """Images of output pixels alone."""
    return Grid(g.out[1] + (even and g.out[1] % 2), g.out[0], ())


def cost(tiling: Tiling, queue: Queue, g: Geometry, layout: Grid, each: int, x: Tensor) -> float:
    """What products cost with the packing before them, as tiling.py counts, for `each` elements a pixel."""
    moved = 2.0 * g.n * layout.pixels * each * x.dtype.itemsize
    return tiling.cost + moved / (TRAFFIC * profile_of(queue).compute_units)


def pack_images(queue: Queue, g: Geometry, layout: Grid, x: Tensor) -> Pack:
    """The Pack of x: pixels are rows, with the channels along memory."""
    dtype, c, phases, rows = C_NAME[x.dtype], g.c // g.groups, prod(g.stride), g.n * layout.pixels
    n_step, c_step, h_step, w_step = x.strides
    pitch = pitch_of(c, dtype)
    packed = Operand((g.groups, phases, rows, c), (phases * rows * pitch, rows * pitch, pitch, 1))
    pixels = Pixels("rows", layout.width, layout.height, (g.h, g.w), (n_step, h_step), g.stride, g.n)
    return packing(queue, packed, (c * c_step, 0, w_step, c_step), dtype, 1, pixels=pixels)


def pack_gradient(queue: Queue, g: Geometry, layout: Grid, upstream: Tensor, parts: int) -> Pack:
    """The Pack of the upstream gradient with pixels along k, zero where they are padding."""
    dtype, o, rows = C_NAME[upstream.dtype], g.o // g.groups, g.n * layout.pixels
    n_step, c_step, h_step, w_step = upstream.strides
    pitch = pitch_of(rows, dtype)
    packed = Operand((g.groups, 1, o, rows), (o * pitch, o * pitch, pitch, 1))
    pixels = Pixels("k", layout.width, layout.height, g.out, (n_step, h_step), (1, 1), g.n)
    rounded = dtype == "float" and parts == 1
    return packing(queue, packed, (o * c_step, 0, c_step, w_step), dtype, parts, rounded, pixels=pixels)


def pack_columns(queue: Queue, g: Geometry, layout: Grid, x: Tensor, slots: int) -> Pack:
    """The Pack of x to columns: output pixels are rows, each with `slots` channels of every tap of `g`."""
    dtype, c, taps, rows = C_NAME[x.dtype], g.c // g.groups, g.kh * g.kw, g.n * layout.pixels
    n_step, c_step, h_step, w_step = x.strides
    packed = Operand((g.groups, 1, rows, taps * slots), (rows * taps * slots, rows * taps * slots, taps * slots, 1))
    looks = (taps, g.kw, *g.dilation, *g.padding)
    pixels = Pixels("rows", layout.width, layout.height, (g.h, g.w), (n_step, h_step), g.stride, g.n, looks, slots)
    return packing(queue, packed, (c * c_step, 0, w_step, c_step), dtype, 1, pixels=pixels, real=c)
