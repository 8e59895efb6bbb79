"""Convolutions of filters with few taps on GPUs, as first layers have them (direct.cl): direct sums out of registers.

Tiles of a product of such depth are hardly filled when they have to be stored, and columns write and read many times
the image. Here every work-item reads the pixels below a filter once for many output channels.
"""

from __future__ import annotations

from typing import Any

from netcl.core.device.profile import profile_of
from netcl.core.dtypes import C_NAME, FLOAT64, DType, compute_dtype
from netcl.core.protocols import Launch
from netcl.core.tensor import Tensor
from netcl.kernels import sources, tuning
from netcl.kernels.program import program
from netcl.ops.convolution.problem import MOST_PIXELS, Geometry
from netcl.ops.product.split_k import epilogue

OPTIONS = ("-cl-mad-enable",)
TAPS = 64  # most taps of a filter,
CHANNELS = 32  # and of one of a single pixel, for which tiles load four pixels at a time
LIMITS = f"for one group of at most {TAPS} taps ({CHANNELS} of one pixel), not of doubles"
HELD = 128  # input pixels that a work-item keeps in registers


def suits(g: Geometry, dtype: DType) -> bool:
    """Whether filters are small enough."""
    most = CHANNELS if g.kh == g.kw == 1 else TAPS
    return g.groups == 1 and 0 < g.taps <= most and dtype != FLOAT64 and g.pixels <= MOST_PIXELS


def plan(y: Tensor, x: Tensor, bias: bool, g: Geometry, activation: str | None, wide: bool) -> Launch[Any]:
    """The launch of y = activation(conv(x, w) + bias), with contiguous w and bias. `wide`: offsets need 64 bits."""
    profile, element = profile_of(x.queue), C_NAME[compute_dtype(x.dtype)]
    config = tuning.parameters("conv_direct", profile)
    each = next(n for n in (4, 2, 1) if n * g.taps <= HELD)
    preamble, more = epilogue(bias, activation, element)
    defines = {"S": C_NAME[x.dtype], "E": element, "I": "long" if wide else "int", "EACH": each, **config, **more}
    defines |= {"C": g.c, "KH": g.kh, "KW": g.kw}
    source = sources.load("conv_finish.cl", "direct.cl", preamble=preamble, **defines)
    made = program(x.queue, source, "conv_direct", OPTIONS)
    dims = {**g.fields(made.kernel.signature.records["D"].names, x.strides, y.strides), "O": g.o}
    groups = -(-g.pixels // (config["WG"] * each))
    return made.bind((groups * config["WG"], -(-g.o // config["OUTS"])), (config["WG"], 1), D=dims)
