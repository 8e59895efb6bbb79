"""Convolutions on GPUs as matrix products whose right operand is gathered from the image (conv_gpu.cl)."""

from __future__ import annotations

from typing import Any

import numpy as np

from netcl.core.backend.opencl import write
from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import C_NAME, FLOAT64, DType, compute_dtype
from netcl.core.layout import Shape, size_of
from netcl.core.memory import empty_buffer
from netcl.core.protocols import Launch, Queue
from netcl.core.tensor import Tensor
from netcl.kernels import sources, tuning
from netcl.kernels.plans import remember
from netcl.kernels.program import Program, program
from netcl.kernels.tiling import cut
from netcl.ops.convolution.problem import Geometry, residue_geometry, residues
from netcl.ops.product.split_k import epilogue

OPTIONS = ("-cl-mad-enable",)
ROWS = ("conv_gpu", "conv_gpu_large", "conv_gpu_flat")  # of the tuning table; the last for few output channels
PIXELS = (*ROWS, "conv_gpu_pixels")  # where pixels are read four at a time
WEIGHTS_ROWS = ("conv_gpu", "conv_gpu_weights")
GROUPS_PER_UNIT = 4  # work-groups per compute unit that the pixels of a weight gradient are split for
LEAST_DEPTH = 256  # pixels of a split
DOUBLES = tuning.conv_tiles(16)  # the table is for floats


def cost(g: Geometry, queue: Queue) -> float:
    """What tiles of an implicit product cost forward."""
    m, q, k = _sizes(g)
    return cut(ROWS, profile_of(queue), m, q, k, g.groups, most=1)[0].cost


def input_parts(form: Geometry) -> list[Geometry]:
    """The convolutions that an input gradient falls apart into (residue.py)."""
    axes = zip((form.h, form.w), (form.kh, form.kw), form.stride, form.padding, form.dilation)
    rows, columns = (list(residues(*axis)) for axis in axes)
    found = [residue_geometry(form, y, x) for y in rows for x in columns if y.taps * x.taps]
    return found if form.o * form.pixels else []


def weights_cost(g: Geometry, queue: Queue) -> float:
    """What a weight gradient costs."""
    m, q, k = _sizes(g)
    return cut(WEIGHTS_ROWS, profile_of(queue), m, k, q, g.groups)[0].cost


def forward(y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry, activation: str | None) -> None:
    """y = activation(conv(x, w) + bias); w is contiguous, y any strided part of a tensor."""
    aligned = y.offset % 4 == 0, x.offset % 4 == 0, w.offset % 4 == 0
    key = ("conv_gpu", g, x.strides, y.strides, x.dtype, bias is None, activation, aligned)
    launch = remember(x.queue, key, lambda: plan(g, x, y.strides, aligned, bias is not None, activation))
    launch(Y=y, X=x, Wt=w, bias=w if bias is None else bias)


def plan(
    g: Geometry, x: Tensor, strides: Shape, aligned: tuple[bool, ...], bias: bool, activation: str | None
) -> Launch[Any]:
    """`aligned`: whether the first elements of y, x and w lie at multiples of four."""
    queue, (m, q, _) = x.queue, _sizes(g)
    preamble, more = epilogue(bias, activation, C_NAME[compute_dtype(x.dtype)])
    fours = aligned[1] and _in_place(g, x)
    config = _tiles(PIXELS if fours else ROWS, x.dtype, profile_of(queue), m, q, g.taps, g.groups)
    more |= {
        "A_VEC": 4 if aligned[2] and g.taps % 4 == 0 else 1,
        "B_VEC": 4 if fours else 1,
        "Y_VEC": 4 if aligned[0] and _in_fours(strides, g.y_shape) else 1,
        "CHECKED": int(g.padded or g.taps % config["BK"] > 0),
    }
    more["PAD"] = 4 if more["A_VEC"] == 1 else 0
    made = _program(queue, "conv", g, x, strides, config, preamble, more)
    items = config["BM"] // config["RM"] * (config["BN"] // config["RN"])
    tiles = -(-q // config["BN"]) * -(-m // config["BM"])
    taps = _taps(queue, g, x.strides, 2 * config["BK"])
    return made.bind((tiles * items, g.groups), (items, 1), taps=taps, D=_fields(made, g, x, strides))


def _in_fours(strides: Shape, shape: Shape) -> bool:
    """Whether pixels lie behind one another, in whole fours: images of these strides and this shape."""
    n, c, h, w = strides
    return w == 1 and h == shape[3] and shape[2] * shape[3] % 4 == 0 and n % 4 == 0 and c % 4 == 0


def _in_place(g: Geometry, x: Tensor) -> bool:
    """Whether an output reads the pixel where it lies itself, and so four of them four."""
    return g.kh == g.kw == 1 and g.padding == (0, 0) and g.out == (g.h, g.w) and _in_fours(x.strides, x.shape)


def plan_weights(g: Geometry, x: Tensor, upstream: Tensor, aligned: tuple[bool, ...]) -> tuple[Launch[Any], int]:
    """The launch that returns the parts of a weight gradient, and how many these are.

    `aligned`: whether the first elements of the upstream gradient and of x lie at multiples of four.
    """
    queue, profile, (m, q, k) = x.queue, profile_of(x.queue), _sizes(g)
    config = _tiles(WEIGHTS_ROWS, x.dtype, profile, m, k, q, g.groups)
    tiles = -(-k // config["BN"]) * -(-m // config["BM"])
    wanted = max(1, min(GROUPS_PER_UNIT * profile.compute_units // (tiles * g.groups), -(-q // LEAST_DEPTH)))
    depth = -(-q // (wanted * config["BK"])) * config["BK"]
    splits = -(-q // depth)
    more = {
        "A_VEC": 4 if aligned[0] and _in_fours(upstream.strides, g.y_shape) else 1,
        "PAD": 4,
        "B_VEC": 4 if aligned[1] and _in_place(g, x) else 1,
        "CHECKED": int(g.padded),
        "PART_VEC": 1 if k % 4 else 4,
    }
    made = _program(queue, "conv_weights", g, x, upstream.strides, config, "", more)
    items = config["BM"] // config["RM"] * (config["BN"] // config["RN"])
    part = {"part": ((splits, size_of(g.w_shape)), compute_dtype(x.dtype))}
    launch = made.bind(
        (tiles * items, splits * g.groups),
        (items, 1),
        part,
        taps=_taps(queue, g, x.strides),
        groups=g.groups,
        D=_fields(made, g, x, upstream.strides, depth),
    )
    return launch, splits


def _tiles(
    kernels: tuple[str, ...], dtype: DType, profile: DeviceProfile, m: int, n: int, k: int, count: int
) -> dict[str, int]:
    """The best config of the tuning table, made for floats; its tiles of doubles may be smaller."""
    config = cut(kernels, profile, m, n, k, count, most=1)[0].config
    return tuning.shrink("conv2d", config, DOUBLES, profile) if dtype == FLOAT64 else config


def _sizes(g: Geometry) -> tuple[int, int, int]:
    """Output channels of a group, output pixels, and taps."""
    return g.o // g.groups, g.pixels, g.taps


def _taps(queue: Queue, g: Geometry, strides: Any, more: int = 0) -> Any:
    """Device memory with the taps that conv_gpu.cl reads, for an input of `strides`, and `more` that lie outside."""

    def make() -> Any:
        c, u, v = (axis.ravel() for axis in np.indices((g.c // g.groups, g.kh, g.kw)))
        u, v = u * g.dilation[0], v * g.dilation[1]
        to = c * strides[1] + u * strides[2] + v * strides[3]
        table = np.stack([to & 0xFFFFFFFF, u, v, to >> 32], axis=1).astype(np.uint32)
        table = np.concatenate((table, np.tile(np.array([[0, 1 << 31, 0, 0]], np.uint32), (more, 1))))
        buffer = empty_buffer(queue, table.nbytes)
        write(queue, buffer, table)
        return buffer

    return remember(queue, ("conv_gpu taps", g.c // g.groups, g.kh, g.kw, g.dilation, strides[1:], more), make)


def _program(
    queue: Queue,
    name: str,
    g: Geometry,
    x: Tensor,
    strides: Shape,
    config: dict[str, int],
    preamble: str,
    more: dict[str, Any],
) -> Program:
    given = {f"USE_{name.upper()}": 1, **config, **more}
    source = _text(x.dtype, is_wide(g, x, strides), preamble, *sorted(given.items()))
    return program(queue, source, name, OPTIONS)


def _text(dtype: DType, wide: bool, preamble: str, *defines: tuple[str, Any]) -> str:
    names = {"RATE", "GROUPS"}  # of the tuning table alone
    given: dict[str, Any] = {"A_VEC": 1, "B_VEC": 1, **{k: v for k, v in defines if k not in names}}
    given |= {"S": C_NAME[dtype], "E": C_NAME[compute_dtype(dtype)], "I": "long" if wide else "int"}
    return sources.load("conv_finish.cl", "tile_gpu.cl", "conv_gpu.cl", preamble=preamble, **given)


def is_wide(g: Geometry, x: Tensor, strides: Shape) -> bool:
    """Whether offsets need 64 bits."""
    reach = [sum(abs(s) * n for s, n in zip(t, shape)) for t, shape in ((x.strides, x.shape), (strides, g.y_shape))]
    return max(reach) + (g.kh * g.dilation[0] + g.padding[0] + 1) * abs(x.strides[2]) >= 1 << 31


def _fields(made: Program, g: Geometry, x: Tensor, strides: Shape, depth: int = 0) -> dict[str, int]:
    """The fields of Dims of conv_gpu.cl; `strides` of y."""
    return {**g.fields(made.kernel.signature.records["D"].names, x.strides, strides), "depth": depth}
