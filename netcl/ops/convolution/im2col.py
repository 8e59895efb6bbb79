"""Convolutions of few input channels on GPUs as matrix products: im2col and col2im (im2col.cl).

The column of an output pixel holds the C KH KW input pixels it reads, so with W (O, C KH KW) per image

    y = W columns,    dW = sum over images of g columns^T,    dx = the products W^T g added up where their taps fall.

Tiles of an implicit product would be nearly empty in dx, whose rows are channels, and in the others would work out
where a pixel lies for every few multiplications. Columns take C KH KW / stride^2 times the memory of x, so images go
through in chunks of at most CHUNK bytes of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Any

import numpy as np

from netcl.core.backend.opencl import write
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import C_NAME, DType, compute_dtype
from netcl.core.memory import empty_buffer
from netcl.core.protocols import Launch, Queue
from netcl.core.tensor import Tensor, allocate
from netcl.kernels import sources, tuning
from netcl.kernels.plans import remember
from netcl.kernels.program import program
from netcl.kernels.tiling import LAUNCH, TRAFFIC
from netcl.ops.convolution.problem import Geometry
from netcl.ops.elementwise import contiguous
from netcl.ops.movement import concat
from netcl.ops.product import gpu as matmul_gpu
from netcl.ops.product.op import gemm
from netcl.ops.product.problem import Product
from netcl.ops.product.split_k import add_parts

EACH = 4  # as in im2col.cl
ALIGNED = 8  # elements that rows of columns are a multiple of, for aligned vectors
LEAST = 16  # rows and depth of a product that fills a tile
LARGE = 1 << 22  # multiplications from which more launches pay


def fits(g: Geometry) -> bool:
    """Whether positions in an image fit in 31 bits."""
    return g.h * g.w < 1 << 31


def pays(g: Geometry, dtype: DType, queue: Queue) -> bool:
    """Whether groups have so few input channels, and there is so much to do, that gradients should come this way."""
    config = tuning.parameters("im2col", profile_of(queue))
    large = min(g.taps, g.o // g.groups) >= LEAST and g.n * g.out[0] * g.out[1] * g.taps * g.o >= LARGE
    return g.c // g.groups <= config["CHANNELS"] and large and _image_bytes(g, compute_dtype(dtype)) <= config["CHUNK"]


def cost(g: Geometry, dtype: DType, queue: Queue) -> float:
    """What the forward product costs this way, as tiling.py counts: cycles of a compute unit."""
    profile, pitch, pixels = profile_of(queue), _pitch(g), g.out[0] * g.out[1]
    batch = ((g.n, 0, g.groups * g.taps * pitch, g.o * pixels), (g.groups, g.o // g.groups * g.taps, g.taps * pitch, 0))
    product = Product(g.o // g.groups, pixels, g.taps, (g.taps, 1), (pitch, 1), pixels, batch, dtype)
    moved = 2.0 * g.n * _image_bytes(g, dtype)
    return matmul_gpu.cost(queue, product, profile) + LAUNCH + moved / (TRAFFIC * profile.compute_units)


def forward(y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry, activation: str | None) -> None:
    """y = activation(conv(x, w) + bias); y, w and bias are contiguous. The bias is multiplied by a row of ones."""
    outs, pixels, weights = g.o // g.groups, g.out[0] * g.out[1], _filters(w, g)
    if bias is not None:
        weights = concat((weights, bias.reshape(g.groups, outs, 1)), 2)
    rows = weights.shape[2]
    images, pitch = y.reshape(g.n, g.groups, outs, pixels), _pitch(g)
    for first, count, columns in _chunks(g, x, x.dtype, (g.groups, rows, pitch)):
        _fill(columns, x, first, g, (count, rows, columns.strides[0], pitch))
        gemm(weights, columns[..., :pixels], images[first : first + count], activation=activation)


def weight_grad(dw: Tensor, g: Tensor, x: Tensor, form: Geometry) -> None:
    """dw of a convolution; dw and g are contiguous. Sums stay in the compute type, in an order that never changes.

    Either every image gives a part of its own, or, where these would be larger than g, all pixels of a chunk are a row.
    """
    outs, pixels, k, element = form.o // form.groups, form.out[0] * form.out[1], form.taps, compute_dtype(g.dtype)
    upstream, pitch = g.reshape(form.n, form.groups, outs, pixels), _pitch(form)
    together = form.n > 1 and form.n * dw.size > g.size
    chunks = list(_chunks(form, x, x.dtype, (form.groups, k, pitch)))
    part = allocate(x.queue, (len(chunks) if together else form.n, form.groups, outs, k), element)
    for chunk, (first, count, columns) in enumerate(chunks):
        images = upstream[first : first + count]
        if together:
            row = -(-count * pixels // ALIGNED) * ALIGNED
            _fill(columns, x, first, form, (count, k, pixels, row))
            every = Tensor(columns.buffer, (form.groups, k, row), (k * row, row, 1), columns.offset, x.dtype, x.queue)
            left = contiguous(images.permute(1, 2, 0, 3)).reshape(form.groups, outs, count * pixels)
            gemm(left, every[..., : count * pixels].transpose(1, 2), part[chunk])
        else:
            _fill(columns, x, first, form, (count, k, columns.strides[0], pitch))
            gemm(images, columns[..., :pixels].transpose(2, 3), part[first : first + count])
    add_parts(dw, part, part.shape[0])


def input_grad(dx: Tensor, g: Tensor, w: Tensor, form: Geometry) -> None:
    """dx of a convolution; dx and w are contiguous. Products of halves are floats."""
    outs, pixels, pitch = form.o // form.groups, form.out[0] * form.out[1], _pitch(form)
    element, weights = compute_dtype(g.dtype), _filters(w, form).transpose(1, 2)
    upstream = contiguous(g).reshape(form.n, form.groups, outs, pixels)
    for first, count, products in _chunks(form, g, element, (form.groups, form.taps, pitch)):
        gemm(weights, upstream[first : first + count], products[..., :pixels])
        _gather(dx, products, first, count, form)


def _filters(w: Tensor, g: Geometry) -> Tensor:
    return w.reshape(g.groups, g.o // g.groups, g.taps)


def _pitch(g: Geometry) -> int:
    """Elements of a row of columns of one image."""
    return -(-g.out[0] * g.out[1] // ALIGNED) * ALIGNED


def _image_bytes(g: Geometry, dtype: DType) -> int:
    return g.groups * g.taps * _pitch(g) * dtype.itemsize


def _chunks(g: Geometry, like: Tensor, dtype: DType, shape: tuple[int, ...]) -> Iterator[tuple[int, int, Tensor]]:
    """(first image, number of images, memory of shape (images, *shape)) of each chunk; all share one buffer."""
    limit = tuning.parameters("im2col", profile_of(like.queue))["CHUNK"]
    chunks = -(-g.n // max(1, limit // _image_bytes(g, dtype)))
    most = -(-g.n // chunks)
    memory = allocate(like.queue, (most, *shape), dtype)
    for first in range(0, g.n, most):
        count = min(most, g.n - first)
        yield first, count, memory[:count]


def _fill(columns: Tensor, x: Tensor, first: int, g: Geometry, layout: tuple[int, int, int, int]) -> None:
    """Columns of the images of x from `first` on; `layout`: images, rows of a group, steps of an image and a row."""
    fill = remember(x.queue, ("im2col", g, x.strides, x.dtype, layout), lambda: _fill_plan(x.queue, g, x, layout))
    fill(to=columns, X=x[first:] if first else x)


def _fill_plan(queue: Queue, g: Geometry, x: Tensor, layout: tuple[int, int, int, int]) -> Launch[Any]:
    """A launch of im2col."""
    (count, rows, image, row), pixels = layout, g.out[0] * g.out[1]
    wg = tuning.parameters("im2col", profile_of(queue))["WG"]
    while wg > 32 and wg * EACH >= 2 * pixels:
        wg //= 2
    lines = g.c * g.kh + (g.groups if rows > g.taps else 0)
    made = program(queue, _text(x.dtype), "im2col")
    fields = g.fields(made.kernel.signature.records["D"].names, x.strides)
    fields |= {"image": image, "row": row, "channels": g.c, "P": pixels, "rows": rows}
    return made.bind((-(-pixels // (wg * EACH)) * wg, lines, count), (wg, 1, 1), D=fields)


def _gather(dx: Tensor, products: Tensor, first: int, count: int, g: Geometry) -> None:
    gather = remember(dx.queue, ("col2im", g, dx.dtype, count), lambda: _gather_plan(dx.queue, g, dx, count))
    gather(dX=dx[first:] if first else dx, P=products.buffer)


def _gather_plan(queue: Queue, g: Geometry, dx: Tensor, count: int) -> Launch[Any]:
    """A launch of col2im for `count` images."""
    common = [gcd(s, d) for s, d in zip(g.stride, g.dilation)]
    table = np.array(
        [
            next((u for u in range(k) if (r - u * d) % s == 0), k)
            for k, s, d in zip((g.kh, g.kw), g.stride, g.dilation)
            for r in range(s)
        ],
        np.int32,
    )
    taps = empty_buffer(queue, table.nbytes)
    write(queue, taps, table)
    group, pitch = tuning.parameters("im2col", profile_of(queue))["WG"], _pitch(g)
    (step_y, step_x), (reach_y, reach_x) = ([n // c for n, c in zip(sizes, common)] for sizes in (g.stride, g.dilation))
    made = program(queue, _text(dx.dtype), "col2im")
    fields = g.fields(made.kernel.signature.records["D"].names) | {"image": g.groups * g.taps * pitch, "row": pitch}
    fields |= {"step_y": step_y, "step_x": step_x, "reach_y": reach_y, "reach_x": reach_x}
    return made.bind((-(-g.h * g.w // group) * group, g.c, count), (group, 1, 1), first=taps, D=fields)


def _text(dtype: DType) -> str:
    return sources.load("im2col.cl", S=C_NAME[dtype], E=C_NAME[compute_dtype(dtype)])
