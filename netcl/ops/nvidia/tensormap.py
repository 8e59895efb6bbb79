"""Tensor maps: 128 bytes that describe a strided array and a box of it to the bulk copy unit (compute capability 9.0).

The unit copies the box at given coordinates into shared memory, with zeros for what lies outside the array. OpenCL has
no call that makes such a map, so it is written here; the layout was read off maps made by a driver (580). 32-bit words:

    0-1   address          2  rank - 1 << 4 | type << 7 | swizzle << 13 | caching << 17
    3-6   strides of axes 1..4 in units of 16 bytes, their bits 32..35 in word 7, four each
    8-12  lengths - 1      13  box of axis 0 - 1 << 24      14  box of axes 1..4 - 1, a byte each
    16    bytes of a box   18  alignment of the box in shared memory
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from netcl.core.errors import ShapeError

TYPES = {"half": (6, 2), "float": (7, 4), "bfloat": (10, 2)}  # storage type -> (code, bytes)
SWIZZLE_128, CACHE_256 = (
    3 << 13,
    3 << 17,
)  # rows of 128 bytes, exchanged in 16-byte chunks; lines fetched into the cache
RANK = 4


def tensor_map(dtype: str, lengths: Sequence[int], strides: Sequence[int], box: Sequence[int]) -> np.ndarray:
    """The 32 words of a map without its address, which the kernel fills in. Axes run from the innermost outwards.

    Args: lengths: of up to four axes. strides: in elements, of every axis but the innermost, which has stride 1.
        box: lengths of a box; its innermost axis takes 128 bytes.
    Raises ShapeError for strides that are not multiples of 16 bytes and lengths or boxes out of range.
    """
    code, size = TYPES[dtype]
    missing = RANK - len(lengths)
    lengths, box = [*lengths, *(1,) * missing], [*box, *(1,) * missing]
    strides = [
        s * size if n > 1 else 16 for s, n in zip([*strides, *(1,) * missing], lengths[1:])
    ]  # any, of length one
    if box[0] * size != 128 or any(not 1 <= b <= 256 for b in box):
        raise ShapeError(f"tensor_map: expected boxes of 128 bytes by up to 256, got {box} of {dtype}.")
    if any(s % 16 or not 0 < s < 1 << 40 for s in strides) or any(not 0 < n <= 1 << 32 for n in lengths):
        raise ShapeError(f"tensor_map: expected strides of whole 16 bytes below 2^40, got {strides} for {lengths}.")
    words = [0] * 32
    words[2] = (RANK - 1) << 4 | code << 7 | SWIZZLE_128 | CACHE_256
    for axis, stride in enumerate(strides):
        words[3 + axis] = stride >> 4 & 0xFFFFFFFF
        words[7] |= (stride >> 36) << 4 * axis
    for axis, n in enumerate(lengths):
        words[8 + axis] = n - 1
    words[13] = (box[0] - 1) << 24
    words[14] = sum((b - 1) << 8 * axis for axis, b in enumerate(box[1:]))
    words[16], words[18] = box[0] * box[1] * box[2] * box[3] * size, 1024
    return np.array(words, np.uint32)


def fits(offset: int, strides: Sequence[int], itemsize: int) -> bool:
    """Whether memory at `offset` with these outer strides (both in elements) can be described by a map."""
    return offset * itemsize % 16 == 0 and all(s * itemsize % 16 == 0 and 0 < s * itemsize < 1 << 40 for s in strides)
