"""Windows out of registers on GPUs (strips.cl): how pooling and convolutions of few channels cut results into tiles."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any, NamedTuple

from netcl.core.device.profile import profile_of
from netcl.core.dtypes import C_NAME, compute_dtype
from netcl.core.layout import Shape, size_of
from netcl.core.tensor import Tensor

Pair = tuple[int, int]
GROUP = 128
TAPS = 64  # most taps of a window
AREA = 64  # most results of a tile


class Cut(NamedTuple):
    """A result in tiles: defines of the program, how many tiles, global and local size, and the fields of `Dims`."""

    defines: dict[str, Any]
    tiles: int
    grid: tuple[int, ...]
    group: tuple[int, ...]
    dims: Callable[..., dict[str, int]]


class Axis(NamedTuple):
    """One axis of a tile: results, and what it reads: the step from tile to tile, the first element, how many."""

    tile: int
    step: int
    lead: int
    span: int


def _axis(each: int, k: int, s: int, p: int, d: int, transposed: bool) -> Axis:
    if not transposed:
        return Axis(each, each * s, -p, (each - 1) * s + (k - 1) * d + 1)
    tile, lead = each * s, -(((k - 1) * d - p) // s)
    return Axis(tile, each, lead, (tile - 1 + p) // s - lead + 1)


def cut(
    windows: tuple[Pair, Pair, Pair, Pair],
    x: Tensor,
    result: Shape,
    offset: int,
    transposed: bool = False,
    rows: int = 0,
) -> Cut | None:
    """How to cut a `result` (N, C, H, W) of windows (kernel, stride, padding, dilation) over x; None for large ones.

    `transposed`: x lies where the windows do and the result where the pixels do. `offset` divides the offsets of
    tensors. A tile has 16 bytes of a row where rows can be read and written so, and half as many rows as windows
    share (or `rows`).
    """
    (ky, kx), (sy, sx), (py, px), (dy, dx) = windows
    (high, wide), most = result[2:], min(8, 16 // x.dtype.itemsize)
    if kx * ky > TAPS:
        return None

    def vector(step: int) -> int:
        return gcd(step, x.shape[3], *x.strides[:3], offset, most) if x.strides[3] == 1 else 1

    for each in (8, 4, 2, 1):
        across = _axis(each, kx, sx, px, dx, transposed)
        if across.tile <= most and vector(across.step) > 1 and (transposed or wide % each == 0):
            break
    shared = -(-ky // sy) if transposed else ky
    down = _axis(min(rows or (shared + 1) // 2, high), ky, sy, py, dy, transposed)
    if across.tile * down.tile > AREA:
        return None
    rows, columns = -(-high // down.tile), -(-wide // across.tile)
    tiles, group = result[0] * result[1] * rows * columns, profile_of(x.queue).group(GROUP)
    reach = sum(abs(s) * n for s, n in zip(x.strides, x.shape)) + (down.span + down.step) * abs(x.strides[2])
    defines = {
        "S": C_NAME[x.dtype], "E": C_NAME[compute_dtype(x.dtype)],
        "I": "long" if max(reach, size_of(result) + GROUP) >= 1 << 31 else "int",
        "KH": ky, "KW": kx, "SY": sy, "SX": sx, "PY": py, "PX": px, "DY": dy, "DX": dx, "TRANSPOSED": int(transposed),
        "TH": down.tile, "STEPY": down.step, "LEADY": down.lead, "SPANY": down.span,
        "TW": across.tile, "STEPX": across.step, "LEADX": across.lead, "SPANX": across.span,
        "VX": vector(across.step), "VY": gcd(across.tile, wide, offset, most),
    }  # fmt: skip

    def dims(
        channels: int, mine: int = 1, theirs: int = 1, chunk: int = 0, average: tuple[int, int] = (0, 0)
    ) -> dict[str, int]:
        fields = dict(zip(("xn", "xc", "xh", "xw", "H", "W"), (*x.strides, *x.shape[2:])))
        fields |= {"tiles": tiles, "chunk": chunk, "divisor": average[0], "with_pad": average[1], "C": channels}
        return {**fields, "mine": mine, "theirs": theirs, "Rh": high, "Rw": wide, "down": rows, "across": columns}

    return Cut(defines, tiles, (-(-tiles // group) * group,), (group,), dims)
