"""3x3 convolutions of stride 1 on GPUs by Winograd's F(4x4, 3x3): transforms (winograd_gpu.cl) round a batched product.

Against the direct sum, a quarter of the multiplications are left, but for each 4x4 outputs 36 numbers per channel in
and out are written and read between the launches, all float32: 352 (C + O) bytes a tile, with the images themselves,
for 144 - 36 = 108 C O multiply-adds less. So it pays from a number of channels on that depends on how many
multiply-adds a device can do in the time of a byte; `_cost` weighs both with the numbers of the tuning table.

Tiles go through in chunks of at most CHUNK bytes of what lies between the launches; filters that are larger do not come
this way.

On an H200 with ordinary arithmetic (us, 32 x 64 x 56 x 56 to 64 channels): 120 against 316 forward, 130 against 633 for
the weights. Of the 120 are 25 patches, 71 products, 23 outputs, 5 filters; memory alone takes 66, arithmetic alone 41.
Turns that fit its second-level cache lose more by short launches than they gain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from netcl.core.device.profile import profile_of
from netcl.core.dtypes import C_NAME, FLOAT32, INT32, DType
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor, allocate
from netcl.kernels import sources, tuning
from netcl.kernels.plans import remember
from netcl.kernels.program import Program, program
from netcl.kernels.tiling import LAUNCH
from netcl.ops.convolution.problem import Geometry, residue_geometry, residues
from netcl.ops.convolution.winograd import POINTS, tile_count, tiles
from netcl.ops.product import gpu as matmul_gpu
from netcl.ops.product.problem import Product
from netcl.ops.product.problem import Run as ProductRun
from netcl.ops.product.split_k import epilogue

OPTIONS = ("-cl-mad-enable",)
ALIGNED = 8  # tiles that rows are a multiple of, for aligned vectors
LAUNCHES = 3  # more than the direct form has
Defines = dict[str, Any]
Grid = tuple[tuple[int, ...], tuple[int, ...]]  # global and local size


class Chunk(NamedTuple):
    """Tiles that go through together: the first, how many, and how many a row has room for."""

    first: int
    length: int
    pitch: int


def forward_cost(g: Geometry, dtype: DType, queue: Queue) -> float:
    """What a forward convolution costs this way, as tiling.py counts: cycles of a compute unit."""
    product = _product(g, g.o // g.groups, _pitch(tile_count(g)), g.c // g.groups)
    return _cost(g, dtype, queue, product)


def weights_cost(g: Geometry, dtype: DType, queue: Queue) -> float:
    """The same of a weight gradient."""
    product = _product(g, g.o // g.groups, g.c // g.groups, _pitch(tile_count(g)), accumulate=False)
    return _cost(g, dtype, queue, product)


def _cost(g: Geometry, dtype: DType, queue: Queue, product: Product) -> float:
    """Of the products, the memory traffic and the launches."""
    profile, config = profile_of(queue), tuning.parameters("winograd_gpu", profile_of(queue))
    images, filters = g.n * (g.c * g.h * g.w + g.o * g.out[0] * g.out[1]), g.o * g.c // g.groups
    between = POINTS * (tile_count(g) * (g.c + g.o) + filters)
    if POINTS * filters * FLOAT32.itemsize > config["CHUNK"]:
        return float("inf")
    moved = (images + 9 * filters) * dtype.itemsize + 2 * between * FLOAT32.itemsize
    return (
        matmul_gpu.tiled(product, profile).cost
        + LAUNCHES * LAUNCH
        + moved / (config["TRAFFIC"] * profile.compute_units)
    )


def forward(y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry, activation: str | None) -> None:
    """y = activation(conv(x, w) + bias); y and w are contiguous."""
    key = ("winograd_gpu", g, x.strides, x.dtype, bias is None, activation, x.offset % 4, y.offset % 4)
    run = remember(x.queue, key, lambda: _forward_plan(g, x, y, bias is not None, activation))
    run(y, x, w, bias)


def input_grad(dx: Tensor, g: Tensor, w: Tensor, form: Geometry) -> None:
    """dx of a convolution: one over g, with transposed filters; dx and w are contiguous."""
    key = ("winograd_gpu input", form, g.strides, g.dtype, g.offset % 4, dx.offset % 4)
    run = remember(g.queue, key, lambda: _forward_plan(transposed(form), g, dx, transpose=True))
    run(dx, g, w, None)


def transposed(form: Geometry) -> Geometry:
    """The convolution over the output's gradient that gives the input's."""
    axes = zip((form.h, form.w), (3, 3), form.stride, form.padding, form.dilation)
    (rows,), (columns,) = (list(residues(*axis)) for axis in axes)
    return residue_geometry(form, rows, columns)


def _forward_plan(
    g: Geometry, x: Tensor, y: Tensor, bias: bool = False, activation: str | None = None, transpose: bool = False
) -> Callable[[Tensor, Tensor, Tensor, Tensor | None], None]:
    """A function (y, x, w, bias) that launches the convolution."""
    queue, outs, per = x.queue, g.o // g.groups, g.c // g.groups
    preamble, ending = epilogue(bias, activation, "float")
    how: Defines = {"TRANSPOSED": int(transpose)}
    of_x, of_y, filters = _image(x, g, g.padding), _image(y, g), {"rows": outs, "per": per}
    transform = _program(queue, "winograd_filters", x.dtype, how).bind(
        *_groups(queue, g.o + 1), {"U": ((POINTS * g.o * per,), FLOAT32), "marks": _marks(g)}, D=filters, form=of_x
    )
    patches = _program(queue, "winograd_patches", x.dtype, _vectors(x, g.padding))
    outputs = _program(queue, "winograd_outputs", x.dtype, {"OUT_VEC": _vector(y)} | how | ending, preamble)
    chunks = [
        (
            patches.bind(*_over(queue, chunk.pitch, g.c), part=chunk._asdict(), form=of_x),
            _product_plan(queue, _product(g, outs, chunk.pitch, per)),
            outputs.bind(*_over(queue, chunk.length, g.o), part=chunk._asdict(), D=filters, of_x=of_x, of_y=of_y),
        )
        for chunk in _chunks(queue, g)
    ]
    sizes = _between(queue, g)

    def run(y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None) -> None:
        extra, (v, sums) = w if bias is None else bias, (allocate(queue, size, FLOAT32) for size in sizes)
        u, marks = transform(W=w, X=x)
        for patch, product, output in chunks:
            patch(V=v.buffer, X=x, marks=marks.buffer)
            product(sums, u, v)
            output(Y=y, P=sums.buffer, bias=extra, X=x, W=w, marks=marks.buffer)

    return run


def weight_grad(dw: Tensor, g: Tensor, x: Tensor, form: Geometry) -> None:
    """dw of a convolution; dw is contiguous. Sums stay in float, in an order that never changes."""
    key = ("winograd_gpu weights", form, x.strides, g.strides, x.dtype, x.offset % 4, g.offset % 4)
    run = remember(x.queue, key, lambda: _weight_plan(form, x, g))
    run(dw, g, x)


def _weight_plan(form: Geometry, x: Tensor, g: Tensor) -> Callable[[Tensor, Tensor, Tensor], None]:
    """A function (dw, g, x) that launches the weight gradient."""
    queue, outs, per = x.queue, form.o // form.groups, form.c // form.groups
    images = {"of_x": _image(x, form, form.padding), "of_g": _image(g, form)}
    limits = _program(queue, "winograd_limits", x.dtype).bind(*_groups(queue, 2), {"marks": _marks(form)}, **images)
    operands = _program(queue, "winograd_operands", x.dtype, _vectors(x, form.padding) | {"G_VEC": _vector(g)})
    chunks = [
        (
            operands.bind(*_over(queue, chunk.pitch, form.c + form.o), part=chunk._asdict(), **images),
            _product_plan(queue, _product(form, outs, per, chunk.pitch, accumulate=chunk.first > 0)),
        )
        for chunk in _chunks(queue, form)
    ]
    count = form.o * per
    taps = _program(queue, "winograd_taps", x.dtype).bind(
        *_over(queue, count), count=count, D={"rows": outs, "per": per}, **images
    )
    sizes = ((POINTS * count,), *_between(queue, form))

    def run(dw: Tensor, g: Tensor, x: Tensor) -> None:
        sums, v, z = (allocate(queue, size, FLOAT32) for size in sizes)
        marks = limits(X=x, G=g)
        for operand, product in chunks:
            operand(V=v.buffer, Z=z.buffer, X=x, G=g, marks=marks.buffer)
            product(sums, z, v)
        taps(W=dw, P=sums.buffer, X=x, G=g, marks=marks.buffer)

    return run


def _product(g: Geometry, m: int, n: int, k: int, accumulate: bool | None = None) -> Product:
    """A matrix product for every point and group: rows of filters by tiles, or, where they may accumulate, by
    transposed tiles."""
    batch = ((POINTS * g.groups, m * k, k * n, m * n),)
    b = (n, 1) if accumulate is None else (1, k)
    return Product(m, n, k, (k, 1), b, n, batch, FLOAT32, accumulate=bool(accumulate))


def _product_plan(queue: Queue, product: Product) -> ProductRun:
    """A function that launches it, as that of a product, on ordinary arithmetic whatever the precision.

    Operands rounded to TF32 would give an error of 1.5e-3 where those of the direct sum give 3e-4.
    """
    return matmul_gpu.tiled_plan(queue, product, matmul_gpu.tiled(product, profile_of(queue)))


def _chunks(queue: Queue, g: Geometry) -> list[Chunk]:
    """The chunks, the first of which is the longest."""
    total, each = tile_count(g), POINTS * (g.c + g.o) * FLOAT32.itemsize
    most = max(ALIGNED, tuning.parameters("winograd_gpu", profile_of(queue))["CHUNK"] // each)
    most = _pitch(-(-total // -(-total // most)))
    counts = [(first, min(most, total - first)) for first in range(0, total, most)]
    return [Chunk(first, count, _pitch(count)) for first, count in counts]


def _pitch(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


def _between(queue: Queue, g: Geometry) -> tuple[tuple[int], tuple[int]]:
    """Shapes of what a chunk transforms: of channels in, and of channels out."""
    pitch = _chunks(queue, g)[0].pitch
    return (POINTS * g.c * pitch,), (POINTS * g.o * pitch,)


def _marks(g: Geometry) -> tuple[tuple[int], DType]:
    """Shape and type of the marks: three numbers, a bit for each tile, and a number for each row of filters."""
    return (3 + -(-tile_count(g) // 32) + g.o,), INT32


def _vectors(x: Tensor, padding: tuple[int, int]) -> Defines:
    """Defines of how patches of x with so much padding are read."""
    vector = _vector(x) if 0 <= padding[1] <= 2 else 1
    return {"X_VEC": vector, "PADDING": padding[1] if vector == 4 else 0}


def _vector(t: Tensor) -> int:
    """4 where rows of images lie at multiples of four elements and have no part of four more, else 1."""
    return 4 if t.strides[3] == 1 and not any(n % 4 for n in (t.offset, t.shape[3], *t.strides[:3])) else 1


def _program(queue: Queue, name: str, dtype: DType, how: Defines | None = None, preamble: str = "") -> Program:
    """A kernel of winograd_gpu.cl."""
    wg = tuning.parameters("winograd_gpu", profile_of(queue))["WG"]
    usual: Defines = {"X_VEC": 1, "G_VEC": 1, "OUT_VEC": 1, "PADDING": 0, "TRANSPOSED": 0}
    given: Defines = usual | {"S": C_NAME[dtype], "E": "float", "WG": wg} | (how or {})
    source = sources.load("winograd.cl", "winograd_gpu.cl", preamble=preamble, **given)
    return program(queue, source, name, OPTIONS)


def _image(t: Tensor, g: Geometry, padding: tuple[int, int] = (0, 0)) -> dict[str, int]:
    """The fields of Image of winograd_gpu.cl: images of t in tiles of the convolution's."""
    values = (*t.strides, *t.shape, *padding, *tiles(g))
    return dict(zip(("n", "c", "h", "w", "N", "C", "H", "W", "py", "px", "down", "across"), values, strict=True))


def _groups(queue: Queue, count: int) -> Grid:
    """Global and local size of so many whole groups."""
    group = tuning.parameters("winograd_gpu", profile_of(queue))["WG"]
    return (count * group,), (group,)


def _over(queue: Queue, *size: int) -> Grid:
    """The global size, its first axis rounded up to whole groups, and the local one."""
    group = tuning.parameters("winograd_gpu", profile_of(queue))["WG"]
    while group > 32 and group >= 2 * size[0]:
        group //= 2
    return (-(-size[0] // group) * group, *size[1:]), (group, *(1 for _ in size[1:]))
