"""Winograd's F(4x4, 3x3) on every device: which convolutions it computes, and when (ops/convolution/winograd.cl)."""

from __future__ import annotations

from netcl.core.dtypes import FLOAT64, DType
from netcl.ops.convolution.problem import Geometry
from netcl.ops.nvidia.precision import matmul_precision

POINTS = 36
LEAST, PAIRS = 8, 144  # channels in and out, and products of these, from which the transforms pay
FEW = 128  # tiles below which gradients of weights are direct: see `weights_pay`


def suits(g: Geometry, dtype: DType) -> bool:
    """Whether the transforms can do it, and save more than they cost.

    Not where plain float32 arithmetic is asked for: an infinity in the input fills the 4x4 outputs of a tile with NaN.
    """
    if matmul_precision() == "highest":
        return False
    if (g.kh, g.kw, g.stride, g.dilation) != (3, 3, (1, 1), (1, 1)) or dtype == FLOAT64:
        return False
    per, outs = g.c // g.groups, g.o // g.groups
    return min(per, outs) >= LEAST and per * outs >= PAIRS and min(g.out) >= 3


def tiles(g: Geometry) -> tuple[int, int]:
    """Rows and columns of tiles of an image."""
    return -(-g.out[0] // 4), -(-g.out[1] // 4)


def tile_count(g: Geometry) -> int:
    """Tiles of all images."""
    down, across = tiles(g)
    return g.n * down * across


def weights_pay(g: Geometry) -> bool:
    """Whether weight gradients are to be computed so, where it `suits`.

    In a few small images many weights meet nothing but zeros. Direct sums give them a gradient of exactly zero, the
    transforms one of 1e-6 of their neighbours', and Adam, which divides by its size, would make steps of that.
    """
    return tile_count(g) >= FEW
