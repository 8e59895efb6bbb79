"""Attention on GPUs: matrix units where they serve (mma.py), else attention_gpu.cl.

A work-group computes a block of queries, and for the gradients of k and v a block of keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import C_NAME, FLOAT32, compute_dtype
from netcl.core.tensor import Tensor
from netcl.kernels import route, sources
from netcl.kernels.plans import remember
from netcl.kernels.program import Program, program
from netcl.kernels.route import FIRST, Route, choose
from netcl.kernels.tuning import parameters
from netcl.ops.attend import mma
from netcl.ops.attend.problem import (
    ATTENTION,
    ATTENTION_GRAD,
    OPTIONS,
    BiasGrad,
    Call,
    arguments,
    dims,
    flags,
    results,
    rows,
)

Defines = dict[str, Any]
Planner = Callable[[Call], Callable[..., Any]]


def geometry(rows: int, size: int, itemsize: int, profile: DeviceProfile, most: int = 4) -> Defines:
    """Work-items (GX, GY) of a group, rows of each (TR), elements per slice (DC) and padded head size (DP) that fit.

    A work-item holds TR rows x 4 columns: `most`, 4 or 8, where there are enough rows. So a group of 16 x 16, or of
    16 x 8, holds 64 x 64; few rows (decoding) take flat groups.
    """
    for gx, gy, dc in ((16, 16, 16), (8, 8, 16), (8, 8, 8), (4, 4, 8), (2, 2, 8)):
        width = -(-size // (4 * gx)) * 4 * gx
        held = max(dc * (4 * gx + 4 * gy + 8), width) + 4 * gx * (4 * gy + 4) + 4 * gy * (gx + 2)
        if gx * gy <= profile.max_work_group and held * itemsize <= min(profile.local_mem, 32 << 10):
            break
    flat = gy
    while flat > 1 and flat * 2 >= rows:  # half of the rows would stay empty
        flat //= 2
    if most == 8 and flat == gy:
        return {"GX": gx, "GY": gy // 2, "TR": 8, "DC": dc, "DP": width}
    return {"GX": gx, "GY": flat, "TR": 4, "DC": dc, "DP": width}


def forward(c: Call) -> tuple[Tensor, Tensor]:
    """o and lse."""
    readable = mma.is_readable(c.x, *rows(c))
    key = (ATTENTION, c.q.shape, c.x.width, c.q.dtype, flags(c), _aligned(c), readable, mma.in_pairs(c), route.mode)

    def make() -> Callable[[Call], tuple[Tensor, Tensor]]:
        tiled = Route(FIRST, "tiled", lambda: _plan_forward(c))
        chosen: Callable[[Call], tuple[Tensor, Tensor]] = choose(
            ATTENTION, [*mma.routes(c, readable, mma.plan_forward), tiled]
        )
        return chosen

    return remember(c.q.queue, key, make)(c)


def backward(c: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv, and the dots of g and o."""
    readable = mma.is_readable(c.x, *rows(c))
    key = (ATTENTION_GRAD, c.x, c.q.dtype, flags(c), _aligned(c), readable, mma.in_pairs(c), route.mode)

    def make() -> Callable[[Call], tuple[Tensor, Tensor, Tensor, Tensor]]:
        made, dots = _plan_dots(c)
        tiled = Route(FIRST, "tiled", lambda: _plan_backward(c))
        grads = choose(ATTENTION_GRAD, [*mma.routes(c, readable, mma.plan_backward), tiled])

        def run(c: Call) -> Any:
            d = made.record("d", **dims(c))
            delta = dots(g=c.g, o=c.o, d=d)
            return (*grads(**arguments(c), delta=delta.buffer, d=d), delta)

        return run

    return remember(c.q.queue, key, make)(c)


def bias_grad(c: Call, delta: Tensor, wanted: BiasGrad) -> Tensor:
    """The sums of ds that `wanted` names."""
    key = ("bias_grad", c.x, c.q.dtype, flags(c), _aligned(c), wanted)
    launch = remember(c.q.queue, key, lambda: _plan_bias_grad(c, wanted))
    found: Tensor = launch(c, delta)
    return found


# -- kernels of any GPU ------------------------------------------------------------------------------------------------


def _aligned(c: Call) -> bool:
    """Whether all rows begin at multiples of four elements."""
    return c.x.size % 4 == c.x.width % 4 == 0 and all(
        t.offset % 4 == 0 and all(s % 4 == 0 for s in t.strides[:3]) for t in rows(c)
    )


def _program(use: str, c: Call, sizes: Defines) -> Program:
    """The kernel of attention_gpu.cl that is named like `use`."""
    defines: Defines = {f"USE_{use}": 1, **sizes, **(dict(flags(c)) if use != "DOTS" else {})}
    if _aligned(c):
        defines["ALIGNED"] = 1
    types = {"S": C_NAME[c.q.dtype], "E": C_NAME[compute_dtype(c.q.dtype)]}
    more = ("bias_grad_gpu.cl",) if use == "BIAS_GRAD" else ()
    text = sources.load(
        "philox.cl", "attention_scores.cl", "attention_rows.cl", "attention_gpu.cl", *more, **types, **defines
    )
    return program(c.q.queue, text, use.lower(), OPTIONS)


def _tiled(use: str, c: Call, length: int, heads: int) -> tuple[Program, tuple[int, ...], tuple[int, ...]]:
    """The kernel for `length` rows of each head, its grid and its group."""
    compute, profile = compute_dtype(c.q.dtype), profile_of(c.q.queue)
    most = parameters("attention_gpu", profile).get(use, 4) if compute == FLOAT32 else 4
    sizes = geometry(length, max(c.x.size, c.x.width), compute.itemsize, profile, most)
    blocks = -(-length // (sizes["TR"] * sizes["GY"]))
    grid = (blocks * sizes["GX"], heads * sizes["GY"], c.x.batch)
    return _program(use, c, sizes), grid, (sizes["GX"], sizes["GY"], 1)


def _plan_forward(c: Call) -> Callable[..., Any]:
    """The launch of `attend`."""
    made, grid, group = _tiled("ATTEND", c, c.x.queries, c.x.heads)
    launch = made.bind(grid, group, results(c))
    return lambda c: launch(**arguments(c), d=made.record("d", **dims(c)))


def _plan_dots(c: Call) -> tuple[Program, Callable[..., Tensor]]:
    """The kernel `dots` and its launch, which makes delta."""
    x, compute = c.x, compute_dtype(c.q.dtype)
    sizes = geometry(x.queries, max(x.size, x.width), compute.itemsize, profile_of(c.q.queue))
    across, down = sizes["GX"], sizes["GY"]
    made = _program("DOTS", c, sizes)
    grid = (across, -(-x.heads * x.queries // down) * down, x.batch)
    return made, made.bind(grid, (across, down, 1), {"delta": (c.q.shape[:3], compute)})


def _plan_backward(c: Call) -> Callable[..., Any]:
    """The launches of `query_grad` and `key_grad`."""
    made, grid, group = _tiled("QUERY_GRAD", c, c.x.queries, c.x.heads)
    query_grad = made.bind(grid, group, {"dq": (c.q.shape, c.q.dtype)})
    made, grid, group = _tiled("KEY_GRAD", c, c.x.keys, c.x.heads // c.x.group)
    key_grad = made.bind(grid, group, {"dk": (c.k.shape, c.k.dtype), "dv": (c.v.shape, c.v.dtype)})
    return lambda **given: (query_grad(**given), *key_grad(**given))


def _plan_bias_grad(c: Call, wanted: BiasGrad) -> Callable[[Call, Tensor], Tensor]:
    """The launch of `bias_grad`."""
    compute, profile = compute_dtype(c.q.dtype), profile_of(c.q.queue)
    sizes = geometry(c.x.queries, max(c.x.size, c.x.width), compute.itemsize, profile)
    across, down = sizes["GX"], sizes["GY"]
    made = _program("BIAS_GRAD", c, {**sizes, **wanted.defines})
    samples, heads, *blocks = wanted.grid(sizes["TR"] * down, 4 * across)
    grid, group = (blocks[0] * blocks[1] * across, heads * down, samples), (across, down, 1)
    launch = made.bind(grid, group, {"out": (wanted.shape, compute)}, across=blocks[1], **wanted.steps)
    return lambda c, delta: launch(**arguments(c), delta=delta.buffer, d=made.record("d", **dims(c)))
