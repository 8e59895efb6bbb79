"""3x3 convolutions of stride 1 on CPU devices by Winograd's F(4x4, 3x3): geometry and launches of winograd_cpu.cl."""

from __future__ import annotations

from typing import Any

from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import FLOAT32, DType
from netcl.core.layout import Shape
from netcl.core.protocols import Launch, Queue
from netcl.core.tensor import Tensor
from netcl.kernels import tuning
from netcl.kernels.plans import remember
from netcl.kernels.program import Program, program
from netcl.ops.convolution.problem import Geometry
from netcl.ops.convolution.winograd import POINTS, suits, tile_count, tiles
from netcl.ops.product.cpu import ACTS, ITEMS_PER_UNIT, OPTIONS, sizes, text

MANY = 32  # tiles that pay for writing and reading filters in memory
SMALL = f"for filters that fit in the cache, or at least {MANY} tiles"
BAND = 4 * 6 * 73 * (16 + 1)  # bytes of the transposed pixels and their peaks
COSTS = {
    "winograd_cpu": tuning.Footprint(
        lambda p: (1, BAND + 4 * POINTS * (p["TB"] * (p["CB"] + 16 + p["OB"]) + 32) + 196 * p["TB"] + 32),
        (("TB", 12), ("OB", 32), ("CB", 16)),
    ),
    "winograd_weights_cpu": tuning.Footprint(
        lambda p: (
            1,
            BAND + 4 * POINTS * (p["TB"] * (p["CB"] + 32 + p["OB"]) + p["CB"] * p["OB"] + 48) + 384 * p["TB"] + 32,
        ),
        (("TB", 4), ("CB", 8), ("OB", 32)),
    ),
}


def fits(g: Geometry, dtype: DType, queue: Queue) -> bool:
    """Whether these kernels can do it, and weight gradients are faster than by the direct ones."""
    local = profile_of(queue).local_mem
    return suits(g, dtype) and all(cost.needs(dict(cost.shrink))[1] <= local for cost in COSTS.values())


def pays(g: Geometry, queue: Queue) -> bool:
    """Whether they are also faster forward: transformed filters that no cache holds must serve many tiles."""
    filters = 4 * POINTS * g.o * g.c // g.groups
    return filters <= profile_of(queue).cache or tile_count(g) >= MANY


def _blocks(kernel: str, profile: DeviceProfile) -> tuning.Config:
    """Tiles and channels per block: whole register tiles and panels, as many as local memory holds."""
    config, cost = tuning.parameters(kernel, profile), COSTS[kernel]
    whole = {name: -(-config[name] // least) * least for name, least in cost.shrink}
    return tuning.shrink(kernel, whole, cost, profile)


def _fields(made: Program, g: Geometry, x: Shape, y: Shape, each: int) -> dict[str, int]:
    """The fields of Tiles of winograd_cpu.cl, for images with the strides `x` and `y`."""
    spans = (1 + sum((n - 1) * s for n, s in zip(shape, at)) for shape, at in ((g.x_shape, x), (g.y_shape, y)))
    fields = g.fields(made.kernel.signature.records["D"].names, x, y) | {
        "Q": tile_count(g),
        "K": POINTS * g.c // g.groups,
    }
    fields |= dict(zip(("Ty", "Tx", "xspan", "yspan"), (*tiles(g), *spans), strict=True))
    return {**fields, "each": each, "act": 0, "has_bias": 0}


def forward(y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry, activation: str | None) -> None:
    """As that of cpu.py; rows of x have unit stride."""
    key = ("winograd_cpu", g, x.strides, y.strides, x.dtype, bias is None, activation)
    filters, launch = remember(x.queue, key, lambda: _plan(g, x, y.strides, bias is not None, activation))
    launch(Y=y, X=x, F=filters(W=w).buffer, W=w, bias=w if bias is None else bias)


def _plan(
    g: Geometry, x: Tensor, strides: Shape, bias: bool, activation: str | None
) -> tuple[Launch[Any], Launch[Any]]:
    """The launches that transform filters and that multiply by them; `strides` of y."""
    queue, dtype, profile = x.queue, x.dtype, profile_of(x.queue)
    config, width = _blocks("winograd_cpu", profile), sizes(profile, dtype)["VW"]
    outs, per, count = g.o // g.groups, g.c // g.groups, tile_count(g)
    panels, blocks = -(-outs // (2 * width)), -(-outs // config["OB"])
    wanted = max(1, ITEMS_PER_UNIT * profile.compute_units // (blocks * g.groups))
    each = min(config["TB"], -(-count // (wanted * 4)) * 4)
    size = g.groups * panels * (POINTS * (per * 2 * width + width) + 1)
    filters = _program(queue, "winograd_filters", dtype, config).bind(
        (panels, g.groups), (1, 1), {"F": ((size,), FLOAT32)}, M=outs, C=per
    )
    made = _program(queue, "winograd", dtype, config)
    fields = _fields(made, g, x.strides, strides, each) | {"act": ACTS[activation], "has_bias": bias}
    return filters, made.bind((-(-count // each), blocks, g.groups), (1, 1, 1), D=fields)


def _program(queue: Queue, name: str, dtype: DType, config: tuning.Config) -> Program:
    """The program of a kernel. Filters and products are one program, for all epilogues."""
    forward = name != "winograd_weights"
    file = "winograd_forward_cpu.cl" if forward else "winograd_weights_cpu.cl"
    source = text(profile_of(queue), "winograd.cl", "winograd_cpu.cl", file, dtype=dtype, epilogue=forward, **config)
    return program(queue, source, name, OPTIONS)


def weight_sums(g: Tensor, x: Tensor, form: Geometry) -> tuple[Tensor, int]:
    """Sums (splits, groups, 9 * C, M) of a weight gradient, and how many splits. Rows of g and x have unit stride."""
    key = ("winograd_cpu weights", form, x.strides, g.strides, g.dtype)
    launch = remember(g.queue, key, lambda: _weight_plan(form, x, g))
    part = launch(G=g, X=x)
    return part, part.shape[0]


def _weight_plan(form: Geometry, x: Tensor, g: Tensor) -> Launch[Any]:
    """The launch that returns the sums of a weight gradient."""
    queue, profile = g.queue, profile_of(g.queue)
    config = _blocks("winograd_weights_cpu", profile)
    count = tile_count(form)
    blocks = -(-form.c // form.groups // config["CB"]) * -(-form.o // form.groups // config["OB"])
    wanted = max(1, ITEMS_PER_UNIT * profile.compute_units // (blocks * form.groups))
    each = -(-count // (min(wanted, -(-count // config["TB"])) * config["TB"])) * config["TB"]
    splits = -(-count // each)
    made = _program(queue, "winograd_weights", g.dtype, config)
    part = {"part": ((splits, form.o * form.taps), FLOAT32)}
    return made.bind((blocks, splits, form.groups), (1, 1, 1), part, D=_fields(made, form, x.strides, g.strides, each))
