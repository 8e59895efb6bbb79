"""Convolutions of groups with few channels on GPUs, depthwise ones above all: conv_strips.cl reads rows about once."""

from __future__ import annotations

from math import gcd
from typing import Any

from netcl.core.device.profile import profile_of
from netcl.core.dtypes import C_NAME, compute_dtype
from netcl.core.layout import Shape
from netcl.core.tensor import Tensor, allocate
from netcl.kernels import sources
from netcl.kernels import windows as strips
from netcl.kernels.plans import remember
from netcl.kernels.program import program
from netcl.ops.convolution.problem import Geometry
from netcl.ops.product.split_k import add_parts, epilogue

FILES = ("conv_finish.cl", "strips.cl", "conv_strips.cl")
OPTIONS = ("-cl-mad-enable",)
FEW = 4  # channels of a group from which on it is no longer summed here
GROUPS = 8  # work-groups per compute unit that the pixels of a weight gradient are split for
ROWS = 4  # of a tile there


def suits(g: Geometry) -> bool:
    """Whether groups are that small."""
    return g.groups > 1 and min(g.c, g.o) // g.groups < FEW


def forward(
    y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry, activation: str | None = None,
    turned: bool = False,
) -> bool:  # fmt: skip
    """y = activation(conv(x, w) + bias), all but x contiguous; False where these kernels cannot do it.

    `turned`: y is the input's gradient and x that of the output.
    """
    if not suits(g):
        return False
    key = ("conv_strips", g, x.strides, x.offset % 8, x.dtype, bias is None, activation, turned)
    launch = remember(x.queue, key, lambda: _plan(y.shape, x, g, bias is not None, activation, turned))
    if not launch:
        return False
    launch(Y=y, X=x, Wt=w, bias=w if bias is None else bias)
    return True


def _plan(result: Shape, x: Tensor, g: Geometry, bias: bool, activation: str | None, turned: bool) -> Any:
    """The launch, or nothing."""
    cut = strips.cut(_windows(g), x, result, x.offset, turned)
    if cut is None:
        return ()
    preamble, more = epilogue(bias, activation, C_NAME[compute_dtype(x.dtype)])
    mine, theirs = result[1] // g.groups, x.shape[1] // g.groups
    more |= {"USE_CONV": 1, "DEPTH": 1 if theirs == 1 else "D.theirs"}
    made = program(x.queue, sources.load(*FILES, preamble=preamble, **cut.defines, **more), "conv", OPTIONS)
    return made.bind(cut.grid, cut.group, D=cut.dims(result[1], mine, theirs))


def weight_grad(dw: Tensor, g: Tensor, x: Tensor, form: Geometry) -> bool:
    """dw of a convolution; dw and g are contiguous; False where these kernels cannot do it."""
    if not suits(form):
        return False
    key = ("conv_strips weights", form, x.strides, x.offset % 8, g.offset % 8, x.dtype)
    plan = remember(x.queue, key, lambda: _weight_plan(form, x, gcd(x.offset, g.offset)))
    if not plan:
        return False
    launch, splits = plan
    part = allocate(g.queue, (splits, dw.size), compute_dtype(g.dtype))
    launch(part=part.buffer, G=g, X=x)
    add_parts(dw, part, splits)
    return True


def _weight_plan(g: Geometry, x: Tensor, offset: int) -> Any:
    """(launch, splits), or nothing."""
    cut, theirs = strips.cut(_windows(g), x, g.y_shape, offset, rows=ROWS), g.c // g.groups
    if cut is None:
        return ()
    tiles, (group,), filters = cut.tiles // g.o, cut.group, g.o * theirs
    wanted = GROUPS * profile_of(x.queue).compute_units // filters
    chunk = -(-tiles // max(1, min(wanted, tiles // group)))
    splits = -(-tiles // chunk)
    source = sources.load(*FILES, USE_CONV_WEIGHTS=1, WG=group, **cut.defines)
    dims = cut.dims(g.o, g.o // g.groups, theirs, chunk)
    made = program(x.queue, source, "conv_weights", OPTIONS)
    return made.bind((splits * group, filters), (group, 1), D=dims), splits


def _windows(g: Geometry) -> Any:
    return (g.kh, g.kw), g.stride, g.padding, g.dilation
