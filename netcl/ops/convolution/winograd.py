"""Winograd's F(4x4, 3x3) on every device: which convolutions it computes, and when (ops/convolution/winograd.cl).

All results of a tile share its rounding. With u = 2^-24 and X the largest |x| of a 6x6 patch, each of its 16 outputs
may be off by k (C + 20) u X sum(max |w|), the sum over C channels, where k = 751 comes from the sums of the rows of the
three transforms; in measurements it is off by u X sum |w| at most. A direct sum is off by a multiple of u sum |x w|
over its own 3x3 pixels. So a value much larger than those shows in outputs that do not meet it, and an infinity makes
them NaN. Hence tiles with such a value are computed directly:

- of a tensor, 512 samples spread evenly give q, the power of two that one in 16 of those that are not zero reaches (13
  at least, else q is 0). A tile is computed directly where its largest value is above 2^8 q, 2^50 or not finite. (CPU
  devices also ask that it is 2^8 times one of its own pixels', the largest over the channels.) All other results are
  off by 2^-16 q sum |w| at most, as measured.
- of a filter, the outputs are computed directly where the largest values of its nine taps, over the channels and zero
  ones aside, are more than 2^8 apart, or one is above 2^50.
- the gradient of weights adds tiles with such a value in the input, or in the output's gradient, directly. Where both
  have one just below their limits, the error is 2^8 times as large.

2^50 keeps transforms from overflowing. Values as networks have them stay below the limits, sparse ones and gradients of
many orders of magnitude among them: q would have to be 2^8 below the largest values, which less than one in 16 reach.
"""

from __future__ import annotations

from netcl.core.dtypes import FLOAT64, DType
from netcl.ops.convolution.problem import Geometry
from netcl.ops.nvidia.precision import matmul_precision

POINTS = 36
LEAST, PAIRS = 8, 144  # channels in and out, and products of these, from which the transforms pay
FEW = 128  # tiles below which gradients of weights are direct: see `weights_pay`
LIMITS = (
    f"for 3x3 filters of stride 1 between at least {LEAST} channels ({PAIRS} pairs) and 3x3 outputs, not of doubles "
    "nor with precision 'highest'"
)
SMALL = f"for at least {FEW} tiles, since direct sums give weights that meet nothing but zeros exactly no gradient"


def suits(g: Geometry, dtype: DType) -> bool:
    """Whether the transforms can do it, save more than they cost, and plain float32 arithmetic is not asked for."""
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
