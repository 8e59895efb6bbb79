"""Convolutions on NVIDIA's warpgroup matrix units, by the kernel of wgmma.cl.

Images are packed (images.py) so that a tap of the filter is a shift of the pixel index. The forward product is then

    Y (pixels, O) = sum over taps X (pixels + shift of the tap, C) W (tap, C, O)

with each tap's piece of X copied by one box, and the input gradient the same over the upstream gradient. The weight
gradient dW (tap, C, O) = X^T (pixels + shift, C) G (pixels, O) reads X along its other axis (along memory no shift is
possible) and is divided among groups along pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from netcl.core.backend.opencl import write
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import C_NAME, FLOAT32, NARROW, DType
from netcl.core.memory import empty_buffer
from netcl.core.protocols import Launch, Queue
from netcl.core.tensor import Tensor
from netcl.kernels import sources
from netcl.kernels.program import Program, program
from netcl.kernels.tiling import Tiling, depth_of
from netcl.ops.convolution.problem import Geometry, residue_geometry, residues
from netcl.ops.nvidia import probe, wgmma
from netcl.ops.nvidia.edit import activate
from netcl.ops.nvidia.images import forward_images, gradient_images, pack_gradient
from netcl.ops.nvidia.pack import STORED, Operand
from netcl.ops.nvidia.precision import UNIT_TYPE, matmul_precision
from netcl.ops.nvidia.wgmma import ITEMS, MAPS
from netcl.ops.product.split_k import epilogue

GROUP, CHANNELS = 256, 64  # as in pack.cl
LEAST_CHANNELS = 8  # of a group; with fewer most of a slice would be zeros
LARGE = 1 << 22  # multiplications from which the units pay
SMALL = f"for at least {LEAST_CHANNELS} channels in and out, and {LARGE} multiplications"
Run = Callable[..., None]


def against(g: Geometry, dtype: DType, queue: Queue) -> str:
    """Why these kernels cannot compute the convolution; "" where they can."""
    if dtype not in (*NARROW, FLOAT32) or (dtype == FLOAT32 and matmul_precision() == "highest"):
        return "for 16-bit floats, and float32 below precision 'highest'"
    fits = g.n * max(g.c, g.o) * (g.h + g.kh * g.dilation[0]) * (g.w + g.kw * g.dilation[1]) < 1 << 31
    if not fits:
        return "for images whose elements are counted in 31 bits"
    return "" if "wgmma" in probe.available(profile_of(queue)) else probe.ABSENT


def pays(g: Geometry) -> bool:
    """Whether there are enough channels and is enough to do."""
    c, o = g.c // g.groups, g.o // g.groups
    return c >= LEAST_CHANNELS and o >= LEAST_CHANNELS and g.n * prod(g.out) * g.taps * o >= LARGE


class Part(NamedTuple):
    """A convolution over one input: its geometry, which taps of the filter it has, and its first output element."""

    g: Geometry
    taps: tuple[int, ...]
    first: int = 0


def plan_forward(y: Tensor, x: Tensor, g: Geometry, bias: bool, activation: str | None) -> Run:
    """A function (y, x, w, bias) that computes y = activation(conv(x, w) + bias); w is contiguous."""
    c, window = g.c // g.groups, g.kh * g.kw
    strides = (g.o // g.groups * c * window, c * window, window)  # of groups, rows and channels of w
    return _forward_plan(x.queue, [Part(g, tuple(range(window)))], x, y.strides, strides, bias, activation)


def plan_input_grad(dx: Tensor, g: Tensor, form: Geometry) -> Run:
    """A function (dx, g, w) of one convolution over g for each residue modulo the stride; w is contiguous."""
    parts = _residue_parts(form, dx)
    c, window = form.c // form.groups, form.kh * form.kw
    n_step, c_step, h_step, w_step = dx.strides
    strides = (n_step, c_step, h_step * form.stride[0], w_step * form.stride[1])
    transposed = (form.o // form.groups * c * window, window, c * window)
    whole = len(parts) == min(form.stride[0], form.h) * min(form.stride[1], form.w)
    run = _forward_plan(g.queue, parts, g, strides, transposed, False, None) if parts else None

    def launch(dx: Tensor, g: Tensor, w: Tensor) -> None:
        if not whole:  # some pixels see no tap
            dx.fill_(0)
        if run is not None:
            run(dx, g, w, None)

    return launch


def _residue_parts(form: Geometry, dx: Tensor) -> list[Part]:
    axes = zip((form.h, form.w), (form.kh, form.kw), form.stride, form.padding, form.dilation)
    ys, xs = (list(residues(*axis)) for axis in axes)
    parts = []
    for ry in ys:
        for rx in xs:
            rows, cols = ([r.start + (r.taps - 1 - j) * r.step for j in range(r.taps)] for r in (ry, rx))
            taps = tuple(u * form.kw + v for u in rows for v in cols)
            if taps:
                first = ry.first * dx.strides[2] + rx.first * dx.strides[3]
                parts.append(Part(residue_geometry(form, ry, rx), taps, first))
    return parts


def _kind(dtype: DType) -> tuple[str, str, int, int]:
    """(storage type, kind of rows in the tuning table, parts, elements of a slice)."""
    if dtype in NARROW:
        return C_NAME[dtype], "half", 1, 64
    precision = matmul_precision()
    return "float", precision, 3 if precision == "high" else 1, 32


def _forward_plan(
    queue: Queue, parts: list[Part], x: Tensor, strides: Sequence[int], w_strides: tuple[int, int, int], bias: bool,
    activation: str | None,
) -> Run:  # fmt: skip
    """A function (y, x, w, bias) that packs x and w and launches the convolutions."""
    dtype, kind, split, depth = _kind(x.dtype)
    g, even = parts[0].g, dtype != "float"
    c, o, slots = g.c // g.groups, g.o // g.groups, -(-g.c // g.groups // depth) * depth  # whole slices of channels
    images = forward_images(queue, [part.g for part in parts], x, wgmma.ROWS[kind], slots, even)
    choice, rows = images.tiling, g.n * images.grids[0].pixels
    taps = [tap for part in parts for tap in part.taps]
    pack_w = _pack_weights(queue, dtype, split, (g.groups, o, slots, c), w_strides, taps)
    preamble, more = epilogue(bias, activation, "float")
    made = _program(queue, x.dtype, choice, "conv_wgmma", preamble, more | {"SWAP": 1, "PIXELS": 1, "TABLE_K": 1})
    launches, start, depth_w = [], 0, len(taps) * slots
    for index, (part, layout) in enumerate(zip(parts, images.grids)):
        table = images.table(index, slots, depth)
        weights = Operand((g.groups, 1, o, len(part.taps) * slots), (o * depth_w, 1, depth_w, 1))
        fields = {
            "M": rows, "N": o, "slices": len(table), "split": len(table), "parts": 1, "inner": 1,
            "aw": int(g.groups > 1), "bw": int(g.groups > 1), "pitch": layout.width, "height": layout.height,
            "OH": part.g.out[0], "OW": part.g.out[1], "blo": g.groups * o * depth_w, "row_step": strides[3],
            "h_step": strides[2], "image_step": strides[0], "col_step": strides[1], "c0": o * strides[1],
        }  # fmt: skip
        job, groups = _job(queue, dtype, images.pack.packed, weights, choice, fields, g.groups, split)
        launch = made.bind(
            (groups * ITEMS,), (ITEMS,), maps=empty_buffer(queue, groups * MAPS),
            table=_upload(queue, np.array(table, np.int32)), oA=0, oB=start * slots, alpha=1.0, J=job,
        )  # fmt: skip
        launches.append((launch, part.first))
        start += len(part.taps)

    def run(y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None) -> None:
        pixels, weights = images.pack(x), pack_w(w)
        extra = w if bias is None else bias
        for launch, first in launches:
            launch(C=y if first == 0 else _from(y, first), A=pixels, B=weights, bias=extra)

    return run


def _from(y: Tensor, first: int) -> Tensor:
    """`y` without its first elements in memory."""
    return Tensor(y.buffer, y.shape, y.strides, y.offset + first, y.dtype, y.queue)


def _pack_weights(
    queue: Queue,
    dtype: str,
    parts: int,
    sizes: tuple[int, int, int, int],
    strides: tuple[int, int, int],
    taps: list[int],
) -> Callable[[Tensor], Tensor]:
    """A function that copies weights to a flat tensor of (groups, rows, taps, slots), along the slots.

    `sizes`: groups, rows of one, slots (channels with padding) and channels; `strides` of groups, rows and channels.
    """
    groups, rows, slots, channels = sizes
    size, together = groups * rows * len(taps) * slots, min(len(taps), 64)
    flags = {"FLOAT": dtype == "float", "ROUND": dtype == "float" and parts == 1, "WEIGHTS": True}
    text = sources.load("pack.cl", S=dtype, PARTS=parts, TAPS=together, **{k: 1 for k, on in flags.items() if on})
    blocks = -(-slots // CHANNELS) * -(-len(taps) // together)
    steps = dict(zip(("g_step", "row_step", "c_step"), strides, strict=True))
    launch = program(queue, text, "pack_weights").bind(
        (blocks * GROUP, rows, groups),
        (GROUP, 1, 1),
        {"to": ((size * (2 if parts == 3 else 1),), STORED[dtype])},
        tap_at=_upload(queue, np.array(taps, np.int32)),
        taps=len(taps),
        slots=slots,
        real=channels,
        part_step=size,
        **steps,
    )
    return lambda w: launch(Wt=w)


def plan_weight_grad(queue: Queue, g: Geometry, x: Tensor, upstream: Tensor) -> Run:
    """A function (dw, g, x) that launches the weight gradient."""
    dtype, kind, parts, depth = _kind(x.dtype)
    o, slots = g.o // g.groups, -(-g.c // g.groups // 64) * 64
    images = gradient_images(queue, g, x, wgmma.ROWS[kind], slots)
    choice, layout, m = images.tiling, images.grids[0], g.kh * g.kw * slots
    rows, pack_g = g.n * layout.pixels, pack_gradient(queue, g, layout, upstream, parts)
    slices = -(-rows // depth)
    split = depth_of(rows, choice.splits, depth) // depth
    splits = -(-slices // split)
    table = images.table(0, slots, 64)
    table += table[-1:] * (choice.config["BM"] // 64)  # a tile at the border reads more blocks than there are
    blocks = _upload(queue, np.array(table, np.int32))
    how: dict[str, int | str] = {"SWAP": 0, "PARTIAL": 1, "TABLE_M": 1, "A_ALONG_M": 1, "VEC": 1 - o % 2}
    fields = {
        "M": m, "N": o, "slices": slices, "split": split, "parts": splits, "inner": 1, "aw": int(g.groups > 1),
        "bw": int(g.groups > 1), "blo": pack_g.step, "row_step": o, "c0": m * o, "part_step": g.groups * m * o,
    }  # fmt: skip
    (w, z, pixels, channels), (sw, sz, along, _) = images.pack.packed.lengths, images.pack.packed.strides
    transposed = Operand((w, z, channels, pixels), (sw, sz, 1, along))
    job, groups = _job(queue, dtype, transposed, pack_g.packed, choice, fields, g.groups * splits, parts)
    launch = _program(queue, x.dtype, choice, "conv_wgmma", "", how).bind(
        (groups * ITEMS,), (ITEMS,), {"C": ((splits * g.groups * m * o,), FLOAT32)},
        maps=empty_buffer(queue, groups * MAPS), table=blocks, alpha=1.0, J=job,
    )  # fmt: skip
    add = _adding(queue, g, x.dtype, slots, splits)

    def run(dw: Tensor, g_: Tensor, x: Tensor) -> None:
        pixels, upstream = images.pack(x), pack_g(g_)
        part = launch(A=pixels, B=upstream, bias=upstream)
        add(dW=dw, part=part.buffer)

    return run


def _adding(queue: Queue, g: Geometry, dtype: DType, slots: int, splits: int) -> Launch[Any]:
    """A launch that makes dW of `part`, memory with `splits` sums (groups, taps, slots, filters)."""
    c, o, window = g.c // g.groups, g.o // g.groups, g.kh * g.kw
    together = 32 if g.o * c * window >= 1 << 18 else 8  # else there would be few work-groups
    text = sources.load("pack.cl", S=C_NAME[dtype], PARTS=1, TAPS=together, WEIGHTS=1)
    return program(queue, text, "sum_weights").bind(
        (-(-c * window // together) * GROUP, -(-o // 32), g.groups),
        (GROUP, 1, 1),
        step=g.groups * window * slots * o,
        parts=splits,
        N=o,
        slots=slots,
        real=c,
        window=window,
    )


def _program(
    queue: Queue, dtype: DType, choice: Tiling, name: str, preamble: str, more: dict[str, int | str]
) -> Program:
    narrow, partial = dtype in NARROW, "PARTIAL" in more
    defines: dict[str, int | str] = {k: choice.config[k] for k in ("NW", "WM", "MW", "ST", "PARTS")}
    defines |= {"NAME": name, "S": C_NAME[dtype], "OUT": "float" if partial else C_NAME[dtype], "HAS_BIAS": 0, "VEC": 0}
    defines |= {k: 1 for k, on in (("TF32", not narrow), ("NARROW_OUT", narrow and not partial)) if on}
    macro = wgmma.product_macro(choice.config["NW"], UNIT_TYPE[C_NAME[dtype]], along_m="A_ALONG_M" in more)
    text = macro + sources.load("ptx.cl", "wgmma.cl", preamble=preamble, **(defines | more))
    return program(queue, text, name, edit=activate)


def _job(
    queue: Queue, dtype: str, a: Operand, b: Operand, choice: Tiling, fields: dict[str, int], count: int, parts: int
) -> tuple[dict[str, Any], int]:
    """(the kernel's record, number of work-groups)."""
    config = choice.config
    tiles_m, tiles_n = -(-fields["M"] // config["BM"]), -(-fields["N"] // config["BN"])
    fields = fields | {"tiles_m": tiles_m, "tiles_n": tiles_n, "tiles": tiles_m * tiles_n * count}
    groups = min(fields["tiles"], profile_of(queue).compute_units)
    return wgmma.record(dtype, a, b, config, fields, 2 if parts == 3 else 1), groups


def _upload(queue: Queue, table: np.ndarray) -> Any:
    buffer = empty_buffer(queue, table.nbytes)
    write(queue, buffer, table)
    return buffer
