"""Copies of operands in the layout that the warpgroup kernels read: launches of pack.cl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from netcl.core.dtypes import BFLOAT16, C_NAME, FLOAT16, FLOAT32
from netcl.core.protocols import Launch, Queue
from netcl.core.tensor import Tensor
from netcl.kernels import sources
from netcl.kernels.program import program
from netcl.ops.nvidia.tensormap import fits, tensor_map

ITEMS = 256
STORED = {C_NAME[dtype]: dtype for dtype in (FLOAT32, FLOAT16, BFLOAT16)}
SIZE = {name: dtype.itemsize for name, dtype in STORED.items()}


class Operand(NamedTuple):
    """A matrix seen as (w, z, rows, k), outermost first: lengths and strides of each axis, in elements."""

    lengths: tuple[int, int, int, int]
    strides: tuple[int, int, int, int]
    start: int = 8  # it lies at a multiple of this

    def readable(self, itemsize: int) -> bool:
        """Whether a tensor map can describe it."""
        across = 2 if self.along_k else 3
        outer = [self.strides[axis] for axis in (0, 1, across) if self.lengths[axis] > 1]
        return 1 in self.strides[2:] and fits(self.start, outer, itemsize)

    @property
    def size(self) -> int:
        """Number of elements."""
        w, z, rows, k = self.lengths
        return w * z * rows * k

    @property
    def along_k(self) -> bool:
        """Whether k is the axis in memory."""
        return self.strides[3] == 1

    def map_of(self, dtype: str, box: int) -> np.ndarray:
        """The tensor map for boxes of 128 bytes by `box`, the axis in memory first."""
        (w, z, rows, k), (sw, sz, sr, sk) = self.lengths, self.strides
        if self.along_k:
            return tensor_map(dtype, (k, rows, z, w), (sr, sz, sw), self._box(dtype, box))
        return tensor_map(dtype, (rows, k, z, w), (sk, sz, sw), self._box(dtype, box))

    @staticmethod
    def _box(dtype: str, box: int) -> tuple[int, int, int, int]:
        return (32 if dtype == "float" else 64), box, 1, 1


def pitch_of(k: int, dtype: str) -> int:
    """Elements of a packed row: whole 16 bytes."""
    return -(-k * SIZE[dtype] // 16) * 16 // SIZE[dtype]


class Pack:
    """Packs an operand into memory of its own: `pack(x)` gives a flat tensor."""

    def __init__(self, launch: Launch[Any], packed: Operand, step: int):
        self.packed, self.step = packed, step  # what it makes, and elements between its parts
        self._launch = launch

    def __call__(self, x: Tensor) -> Tensor:
        packed: Tensor = self._launch(X=x)
        return packed


def packing(
    queue: Queue,
    packed: Operand,
    strides: tuple[int, int, int, int],
    dtype: str,
    parts: int,
    rounded: bool = False,
    pixels: Pixels | None = None,
    start: int = 1,
    real: int = 0,
) -> Pack:
    """The Pack that makes `packed` of a source with `strides` (w, z, rows, k).

    parts 3 splits floats in a high and a low part, `rounded` rounds them to TF32. The source starts at a multiple of
    `start`. With columns, the source has `real` channels of a tap.
    """
    w, z, rows, k = packed.lengths
    pitch = packed.strides[2]
    slots, inner, steps = pitch, z, (z * rows * pitch, rows * pitch)
    if pixels is not None and pixels.slots:
        slots, inner, k, steps = pixels.slots, pixels.views[0], real, (packed.strides[0], pixels.slots)
    flags = {"FLOAT": dtype == "float", "ROUND": rounded, "ALONG_K": strides[3] == 1}
    if pixels is not None:
        flags |= {"MAP_ROWS": pixels.axis == "rows", "MAP_K": pixels.axis == "k", "ALONG_K": pixels.axis == "k"}
    whole = k % 4 == 0 and start % 4 == 0 and all(s % 4 == 0 for s in strides[:3])
    flags["VEC"] = dtype == "float" and strides[3] == 1 and pixels is None and whole
    defines = {name: 1 for name, on in flags.items() if on}
    source = sources.load("pack.cl", S=dtype, PARTS=parts, **defines)
    tiles_k, tiles_r = -(-slots * SIZE[dtype] // 256), -(-rows // (64 if flags["ALONG_K"] else 32))
    step = w * z * rows * pitch
    fields = {"row_step": strides[2], "k_step": strides[3], "z0_step": strides[0], "z1_step": strides[1]}
    fields |= {"part_step": step, "to0_step": steps[0], "to1_step": steps[1], "rows": rows, "k": k, "inner": inner}
    fields |= {"row_pitch": pitch, "slots": slots, "tiles_k": tiles_k, **(pixels or NO_PIXELS).fields()}
    made = {"to": ((step * (2 if parts == 3 else 1),), STORED[dtype])}
    grid = (tiles_k * tiles_r * ITEMS, w * inner)
    return Pack(program(queue, source, "pack").bind(grid, (ITEMS, 1), made, P=fields), packed, step)


@dataclass(frozen=True)
class Pixels:
    """How `axis` ("rows" or "k") walks the pixels of images padded to `height` x `width` (see pack.cl)."""

    axis: str
    width: int
    height: int
    size: tuple[int, int]  # (H, W) of the source
    steps: tuple[int, int]  # elements from image to image and from row to row
    strides: tuple[int, int]  # of the convolution, between neighbours
    images: int
    looks: tuple[int, ...] = ()  # how many views of the source there are, how many in a row, their steps and starts
    slots: int = 0  # elements of a tap: views lie behind one another in every row; 0 where each is a matrix

    @property
    def views(self) -> tuple[int, ...]:
        """`looks`, by default at the phases of a stride."""
        return self.looks or (self.strides[0] * self.strides[1], self.strides[1], 1, 1, 0, 0)

    def fields(self) -> dict[str, int]:
        """As the record of pack.cl names them."""
        names = ("views", "ry", "rx", "oy", "ox")
        (height, width), (image_step, h_step), (sh, sw) = self.size, self.steps, self.strides
        sizes = {"width": self.width, "height": self.height, "W": width, "H": height, "images": self.images}
        steps = {"image_step": image_step, "h_step": h_step, "sh": sh, "sw": sw}
        return {**sizes, **steps, **dict(zip(names, self.views[1:], strict=True))}


NO_PIXELS = Pixels("", 1, 1, (1, 1), (0, 0), (1, 1), 1, (1,) * 6)
