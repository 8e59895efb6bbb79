"""3x3 convolutions of stride 1 on GPUs by Winograd's F(4x4, 3x3): transforms (winograd_gpu.cl) round a batched product.

Against the direct sum, a quarter of the multiplications are left, but for each 4x4 outputs 36 numbers per channel in
and out are written and read between the launches, all float32: 352 (C + O) bytes a tile, with the images themselves,
for 144 - 36 = 108 C O multiply-adds less. So it pays from a number of channels on that depends on how many
multiply-adds a device can do in the time of a byte; `_cost` weighs both with the numbers of the tuning table.

Tiles go through in turns of at most CHUNK bytes of what lies between the launches; filters that are larger do not come
this way.

On an H200 with ordinary arithmetic (us, 32 x 64 x 56 x 56 to 64 channels): 120 against 316 forward, 130 against 633 for
the weights. Of the 120 are 25 patches, 71 products, 23 outputs, 5 filters; memory alone takes 66, arithmetic alone 41.
Turns that fit its second-level cache lose more by short launches than they gain.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from netcl.core.backend.opencl import Kernel, launch
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import C_NAME, FLOAT32, INT32, INT64, DType
from netcl.core.tensor import Tensor, allocate
from netcl.kernels import sources, tuning
from netcl.kernels.plans import remember
from netcl.kernels.tiling import LAUNCH
from netcl.ops.convolution.problem import Geometry, residue_geometry, residues
from netcl.ops.convolution.winograd import POINTS, tile_count, tiles
from netcl.ops.product import gpu as matmul_gpu
from netcl.ops.product.problem import Product
from netcl.ops.product.split_k import epilogue
from netcl.runtime.cache import get_kernel

IMAGE = struct.Struct("4q6i")  # Image of winograd_gpu.cl
RECORD = np.dtype(f"V{IMAGE.size}")
TYPES = {
    "winograd_patches": (*(None,) * 3, INT64, *(INT32,) * 3, RECORD),
    "winograd_tiles": (*(None,) * 3, INT64, *(INT32,) * 3, RECORD),
    "winograd_outputs": (*(None,) * 3, INT64, INT64, *(INT32,) * 3, RECORD),
    "winograd_again": (*(None,) * 5, *(INT64,) * 4, *(INT32,) * 4, RECORD, RECORD),
    "winograd_filters": (*(None,) * 4, INT64, INT64, *(INT32,) * 5, RECORD),
    "winograd_limits": (*(None,) * 3, INT64, INT64, *(INT32,) * 4, RECORD, RECORD),
    "winograd_taps": (*(None,) * 5, *(INT64,) * 3, *(INT32,) * 4, RECORD, RECORD),
}
OPTIONS = ("-cl-mad-enable",)
ALIGNED = 8  # tiles that rows are a multiple of, for aligned vectors
MARKS = 3  # numbers before the marks of tiles
AGAIN = 4  # groups per compute unit that look for marks
LAUNCHES = 4  # more than the direct form has
Run = Callable[..., None]


class Turn(NamedTuple):
    """Tiles that go through together: the first, how many, and how many a row has room for."""

    first: int
    length: int
    pitch: int


def forward_cost(g: Geometry, dtype: DType, queue: Any) -> float:
    """What a forward convolution costs this way, as tiling.py counts: cycles of a compute unit."""
    product = _product(g, g.o // g.groups, _pitch(tile_count(g)), g.c // g.groups)
    return _cost(g, dtype, queue, product)


def weights_cost(g: Geometry, dtype: DType, queue: Any) -> float:
    """The same of a weight gradient."""
    product = _product(g, g.o // g.groups, g.c // g.groups, _pitch(tile_count(g)), accumulate=False)
    return _cost(g, dtype, queue, product)


def _cost(g: Geometry, dtype: DType, queue: Any, product: Product) -> float:
    """Of the products, the memory traffic and the launches."""
    profile, row = profile_of(queue), tuning.parameters("winograd_gpu", profile_of(queue))
    images, filters = g.n * (g.c * g.h * g.w + g.o * g.out[0] * g.out[1]), g.o * g.c // g.groups
    between = POINTS * (tile_count(g) * (g.c + g.o) + filters)
    if POINTS * filters * FLOAT32.itemsize > row["CHUNK"]:
        return float("inf")
    moved = (images + 9 * filters) * dtype.itemsize + 2 * between * FLOAT32.itemsize
    return (
        matmul_gpu.tiled(product, profile).cost + LAUNCHES * LAUNCH + moved / (row["TRAFFIC"] * profile.compute_units)
    )


def forward(y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry, activation: str | None) -> None:
    """y = activation(conv(x, w) + bias); y and w are contiguous."""
    key = ("winograd_gpu", g, x.strides, x.dtype, bias is None, activation, x.offset % 4, y.offset % 4)
    run = remember(x.queue, key, lambda: _forward_plan(g, x, y, bias is not None, activation))
    run(x.queue, y, x, w, bias)


def input_grad(dx: Tensor, g: Tensor, w: Tensor, form: Geometry) -> None:
    """dx of a convolution: one over g, with the filters turned; dx and w are contiguous."""
    key = ("winograd_gpu input", form, g.strides, g.dtype, g.offset % 4, dx.offset % 4)
    run = remember(g.queue, key, lambda: _forward_plan(turned(form), g, dx, turn=True))
    run(g.queue, dx, g, w, None)


def turned(form: Geometry) -> Geometry:
    """The convolution over the output's gradient that gives the input's."""
    axes = zip((form.h, form.w), (3, 3), form.stride, form.padding, form.dilation)
    (rows,), (columns,) = (list(residues(*axis)) for axis in axes)
    return residue_geometry(form, rows, columns)


def _forward_plan(
    g: Geometry, x: Tensor, y: Tensor, bias: bool = False, activation: str | None = None, turn: bool = False
) -> Run:  # fmt: skip
    """A function (queue, y, x, w, bias) that launches the convolution."""
    queue, per, outs, size = x.queue, g.c // g.groups, g.o // g.groups, g.o * g.c // g.groups
    preamble, how = epilogue(bias, activation, "float")
    patches, into = _transform("winograd_patches", g, x, g.padding)
    filters = _kernel(queue, "winograd_filters", x.dtype, TURNED=int(turn))
    finish = {"OUT_VEC": _vector(y), "TURNED": int(turn)} | how
    outputs, again = (
        _kernel(queue, name, x.dtype, preamble, **finish) for name in ("winograd_outputs", "winograd_again")
    )
    (_, group), out_of, tiles = _over(queue, per), _image(g, y), tile_count(g)
    over, few = ((g.o + 1) * group[0],), _over(queue, tiles * g.o)[1]
    spread = (min(-(-tiles * g.o // few[0]), AGAIN * profile_of(queue).compute_units) * few[0],)
    turns = [
        (part, _over(queue, part.pitch, g.c), _over(queue, part.length, g.o),
         _product_plan(queue, _product(g, outs, part.pitch, per)))
        for part in _turns(queue, g)
    ]  # fmt: skip
    sizes = [POINTS * n for n in (size, g.c * turns[0][0].pitch, g.o * turns[0][0].pitch)]

    def run(queue: Any, y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None) -> None:
        extra, (u, v, sums) = w if bias is None else bias, (allocate(queue, (n,), FLOAT32) for n in sizes)
        marks = allocate(queue, (MARKS + tiles + g.o,), INT32)
        launch(
            filters, queue, over, group, u.buffer, w.buffer, x.buffer, marks.buffer, w.offset, x.offset,
            outs, per, tiles, g.n, g.c, into,
        )  # fmt: skip
        for part, columns, rows, product in turns:
            launch(patches, queue, *columns, v.buffer, x.buffer, marks.buffer, x.offset, *part, into)
            product(sums, u, v)
            launch(
                outputs, queue, *rows, y.buffer, sums.buffer, extra.buffer, y.offset, extra.offset, *part, out_of
            )  # fmt: skip
        launch(
            again, queue, spread, few, y.buffer, x.buffer, w.buffer, extra.buffer, marks.buffer, y.offset, x.offset,
            w.offset, extra.offset, tiles, g.o, outs, per, into, out_of,
        )  # fmt: skip

    return run


def weight_grad(dw: Tensor, g: Tensor, x: Tensor, form: Geometry) -> None:
    """dw of a convolution; dw is contiguous. Sums stay in float, in an order that never changes."""
    key = ("winograd_gpu weights", form, x.strides, g.strides, x.dtype, x.offset % 4, g.offset % 4)
    run = remember(x.queue, key, lambda: _weight_plan(form, x, g))
    run(x.queue, dw, g, x)


def _weight_plan(form: Geometry, x: Tensor, g: Tensor) -> Run:
    """A function (queue, dw, g, x) that launches the weight gradient."""
    queue, per, outs, size = x.queue, form.c // form.groups, form.o // form.groups, form.o * form.c // form.groups
    (patches, into), (upstream, over) = (
        _transform("winograd_patches", form, x, form.padding), _transform("winograd_tiles", form, g)
    )  # fmt: skip
    taps, limits = (_kernel(queue, name, x.dtype) for name in ("winograd_taps", "winograd_limits"))
    whole, tiles = _over(queue, size), tile_count(form)
    group = _over(queue, 256)[1]
    turns = [
        (part, _over(queue, part.pitch, form.c), _over(queue, part.pitch, form.o),
         _product_plan(queue, _product(form, outs, per, part.pitch, accumulate=part.first > 0)))
        for part in _turns(queue, form)
    ]  # fmt: skip
    sizes = [POINTS * n for n in (size, form.c * turns[0][0].pitch, form.o * turns[0][0].pitch)]

    def run(queue: Any, dw: Tensor, g: Tensor, x: Tensor) -> None:
        sums, v, z = (allocate(queue, (n,), FLOAT32) for n in sizes)
        marks = allocate(queue, (MARKS + tiles,), INT32)
        launch(
            limits, queue, (2 * group[0],), group, marks.buffer, x.buffer, g.buffer, x.offset, g.offset, tiles, form.n,
            form.c, form.o, into, over,
        )  # fmt: skip
        for part, columns, rows, product in turns:
            launch(patches, queue, *columns, v.buffer, x.buffer, marks.buffer, x.offset, *part, into)
            launch(upstream, queue, *rows, z.buffer, g.buffer, marks.buffer, g.offset, *part, over)
            product(sums, z, v)
        launch(
            taps, queue, *whole, dw.buffer, sums.buffer, x.buffer, g.buffer, marks.buffer, dw.offset, x.offset,
            g.offset, size, outs, per, tiles, into, over,
        )  # fmt: skip

    return run


def _product(g: Geometry, m: int, n: int, k: int, accumulate: bool | None = None) -> Product:
    """A matrix product for every point and group: rows of filters by tiles, or, where they may accumulate, by turned
    tiles."""
    batch = ((POINTS * g.groups, m * k, k * n, m * n),)
    b = (n, 1) if accumulate is None else (1, k)
    return Product(m, n, k, (k, 1), b, n, batch, FLOAT32, accumulate=bool(accumulate))


def _product_plan(queue: Any, product: Product) -> Run:
    """A function that launches it, as that of a product, on ordinary arithmetic whatever the precision.

    Operands rounded to TF32 would give an error of 1.5e-3 where those of the direct sum give 3e-4.
    """
    return matmul_gpu.tiled_plan(queue, product, matmul_gpu.tiled(product, profile_of(queue)))


def _turns(queue: Any, g: Geometry) -> list[Turn]:
    """The turns, the first of which is the longest."""
    total, each = tile_count(g), POINTS * (g.c + g.o) * FLOAT32.itemsize
    most = max(ALIGNED, tuning.parameters("winograd_gpu", profile_of(queue))["CHUNK"] // each)
    most = _pitch(-(-total // -(-total // most)))
    counts = [(first, min(most, total - first)) for first in range(0, total, most)]
    return [Turn(first, count, _pitch(count)) for first, count in counts]


def _pitch(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


def _transform(name: str, g: Geometry, t: Tensor, padding: tuple[int, int] = (0, 0)) -> tuple[Kernel, bytes]:
    """The kernel that transforms t with so much padding, and its Image."""
    vector = _vector(t) if 0 <= padding[1] <= 2 else 1
    kernel = _kernel(t.queue, name, t.dtype, IN_VEC=vector, PADDING=padding[1] if vector == 4 else 0)
    return kernel, _image(g, t, padding)


def _vector(t: Tensor) -> int:
    """4 where rows of images lie at multiples of four elements and have no part of four more, else 1."""
    return 4 if t.strides[3] == 1 and not any(n % 4 for n in (t.offset, t.shape[3], *t.strides[:3])) else 1


def _kernel(queue: Any, name: str, dtype: DType, preamble: str = "", **defines: Any) -> Kernel:
    how = {"S": C_NAME[dtype], "E": "float", "IN_VEC": 1, "OUT_VEC": 1, "PADDING": 0, "TURNED": 0} | defines
    return get_kernel(
        queue, sources.load("winograd.cl", "winograd_gpu.cl", preamble=preamble, **how), name, TYPES[name], OPTIONS
    )


def _image(g: Geometry, t: Tensor, padding: tuple[int, int] = (0, 0)) -> bytes:
    return IMAGE.pack(*t.strides, *t.shape[2:], *padding, *tiles(g))


def _over(queue: Any, *size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The global size, its first axis rounded up to whole groups, and the local one."""
    group = tuning.parameters("winograd_gpu", profile_of(queue))["WG"]
    while group > 32 and group >= 2 * size[0]:
        group //= 2
    return (-(-size[0] // group) * group, *size[1:]), (group, *(1 for _ in size[1:]))
