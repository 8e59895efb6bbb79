"""Convolutions of groups with few channels on GPUs, depthwise ones above all, by register_tiled.cl.

Its kernels read rows about once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netcl.core.device.profile import profile_of
from netcl.core.dtypes import C_NAME, compute_dtype
from netcl.core.layout import Shape
from netcl.core.protocols import Launch
from netcl.core.tensor import Tensor, allocate
from netcl.kernels import sources
from netcl.kernels import windows as strips
from netcl.kernels.program import program
from netcl.ops.convolution.problem import Geometry
from netcl.ops.product.split_k import add_parts, epilogue

FILES = ("conv_finish.cl", "strips.cl", "register_tiled.cl")
OPTIONS = ("-cl-mad-enable",)
FEW = 4  # channels of a group from which on it is no longer summed here
GROUPS = 8  # work-groups per compute unit that the pixels of a weight gradient are split for
ROWS = 4  # of a tile there
LIMITS = f"for groups of fewer than {FEW} channels in or out, and small windows"


def suits(g: Geometry) -> bool:
    """Whether groups are that small."""
    return g.groups > 1 and min(g.c, g.o) // g.groups < FEW


def tiles_of(
    g: Geometry, x: Tensor, result: Shape, offset: int, transposed: bool = False, rows: int = 0
) -> strips.Cut | None:
    """How a result is cut, all tensors but x being contiguous; None where these kernels cannot do it.

    `transposed`: the result is the input's gradient and x that of the output.
    """
    return strips.cut(_windows(g), x, result, offset, transposed, rows) if suits(g) else None


def plan(tiles: Any, result: Shape, x: Tensor, g: Geometry, bias: bool, activation: str | None) -> Launch[Any]:
    """The launch of y = activation(conv(x, w) + bias)."""
    preamble, more = epilogue(bias, activation, C_NAME[compute_dtype(x.dtype)])
    mine, theirs = result[1] // g.groups, x.shape[1] // g.groups
    more |= {"USE_CONV": 1, "DEPTH": 1 if theirs == 1 else "D.theirs"}
    made = program(x.queue, sources.load(*FILES, preamble=preamble, **tiles.defines, **more), "conv", OPTIONS)
    return made.bind(tiles.grid, tiles.group, D=tiles.dims(result[1], mine, theirs))


def plan_weights(tiles: Any, x: Tensor, g: Geometry) -> Callable[..., None]:
    """A function of dw, g and x that launches the weight gradient."""
    theirs, (group,) = g.c // g.groups, tiles.group
    count, filters = tiles.tiles // g.o, g.o * theirs
    wanted = GROUPS * profile_of(x.queue).compute_units // filters
    chunk = -(-count // max(1, min(wanted, count // group)))
    splits = -(-count // chunk)
    source = sources.load(*FILES, USE_CONV_WEIGHTS=1, WG=group, **tiles.defines)
    dims = tiles.dims(g.o, g.o // g.groups, theirs, chunk)
    made = program(x.queue, source, "conv_weights", OPTIONS)
    launch = made.bind((splits * group, filters), (group, 1), D=dims)

    def run(dw: Tensor, g: Tensor, x: Tensor) -> None:
        part = allocate(g.queue, (splits, dw.size), compute_dtype(g.dtype))
        launch(part=part.buffer, G=g, X=x)
        add_parts(dw, part, splits)

    return run


def _windows(g: Geometry) -> Any:
    return (g.kh, g.kw), g.stride, g.padding, g.dilation
