"""Convolutions on GPUs: the routes of each pass, and which is taken.

Groups of few channels, depthwise convolutions among them, and filters of few taps are summed out of registers
(register_tiled.py, direct.py). Where the device has them, warpgroup matrix units take what suits them
(ops/nvidia/conv.py). Few input channels and much to do go by im2col (im2col.py), 3x3 filters
between many channels by Winograd's transforms (winograd_gpu.py), and the rest by tiles (implicit_gemm.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import gcd
from typing import Any

from netcl.core.dtypes import DType
from netcl.core.protocols import Launch, Queue
from netcl.core.tensor import Tensor
from netcl.kernels import route
from netcl.kernels.plans import remember
from netcl.kernels.route import FIRST, LAST, Route, cannot, choose
from netcl.ops.convolution import direct, im2col, implicit_gemm, register_tiled, residue, winograd, winograd_gpu
from netcl.ops.convolution.problem import FORWARD, INPUT_GRAD, MOST_PIXELS, WEIGHT_GRAD, Geometry
from netcl.ops.nvidia import conv as units
from netcl.ops.nvidia import probe
from netcl.ops.product.split_k import add_parts

Run = Callable[..., None]  # of y, x, w and bias; dx, g and w; dw, g and x


def forward(y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry, activation: str | None) -> None:
    """y = activation(conv(x, w) + bias); y is new, w contiguous."""
    key = (FORWARD, g, x.strides, x.offset & 7, w.offset & 3, x.dtype, bias is None, activation, route.mode)
    run: Run = remember(x.queue, key, lambda: choose(FORWARD, forward_routes(y, x, w, bias is not None, g, activation)))
    run(y, x, w, bias)


def forward_routes(y: Tensor, x: Tensor, w: Tensor, bias: bool, g: Geometry, activation: str | None) -> list[Route]:
    """The ways forward."""
    queue, dtype, aligned = x.queue, x.dtype, (True, x.offset % 4 == 0, w.offset % 4 == 0)
    tiles = register_tiled.tiles_of(g, x, y.shape, x.offset)

    def with_images(module: Any) -> Run:
        return lambda y, x, w, bias: module.forward(y, x, w, bias, g, activation)

    def few() -> Run:
        return _one(direct.plan(y, x, bias, g, activation, implicit_gemm.is_wide(g, x, y.strides)))

    return [
        _on_units(g, dtype, queue, lambda: units.plan_forward(y, x, g, bias, activation)),
        _depthwise(tiles, lambda: _one(register_tiled.plan(tiles, y.shape, x, g, bias, activation))),
        Route(FIRST, "direct", few) if direct.suits(g, dtype) else cannot("direct", direct.LIMITS),
        _by_tiles(
            [g],
            lambda: implicit_gemm.cost(g, queue),
            lambda: _one(implicit_gemm.plan(g, x, y.strides, aligned, bias, activation)),
        ),
        _by_im2col(g, dtype, queue, lambda: im2col.cost(g, dtype, queue), lambda: with_images(im2col)),
        _by_winograd(g, dtype, lambda: winograd_gpu.forward_cost(g, dtype, queue), lambda: with_images(winograd_gpu)),
    ]


def input_grad(dx: Tensor, g: Tensor, w: Tensor, form: Geometry) -> None:
    """dx of a convolution; dx is new, w contiguous."""
    key = INPUT_GRAD, form, g.strides, g.offset & 7, g.dtype, route.mode
    run: Run = remember(g.queue, key, lambda: choose(INPUT_GRAD, input_routes(dx, g, form)))
    run(dx, g, w)


def input_routes(dx: Tensor, g: Tensor, form: Geometry) -> list[Route]:
    """The ways to the input's gradient."""
    queue, dtype, parts = g.queue, g.dtype, implicit_gemm.input_parts(form)
    tiles = register_tiled.tiles_of(form, g, dx.shape, g.offset, transposed=True)

    def with_images(module: Any) -> Run:
        return lambda dx, g, w: module.input_grad(dx, g, w, form)

    return [
        _on_units(form, dtype, queue, lambda: units.plan_input_grad(dx, g, form)),
        _depthwise(tiles, lambda: _one(register_tiled.plan(tiles, dx.shape, g, form, False, None))),
        _by_tiles(
            parts,
            lambda: sum(implicit_gemm.cost(part, queue) for part in parts),
            lambda: partial(residue.input_grad, implicit_gemm.forward, form=form),
        ),
        _by_im2col(form, dtype, queue, lambda: FIRST, lambda: with_images(im2col)),
        _by_winograd(
            form,
            dtype,
            lambda: winograd_gpu.forward_cost(winograd_gpu.transposed(form), dtype, queue),
            lambda: with_images(winograd_gpu),
        ),
    ]


def weight_grad(dw: Tensor, g: Tensor, x: Tensor, form: Geometry) -> None:
    """dw of a convolution; dw is new, g contiguous."""
    key = WEIGHT_GRAD, form, x.strides, x.offset & 7, g.offset & 7, x.dtype, route.mode
    run: Run = remember(g.queue, key, lambda: choose(WEIGHT_GRAD, weight_routes(g, x, form)))
    run(dw, g, x)


def weight_routes(g: Tensor, x: Tensor, form: Geometry) -> list[Route]:
    """The ways to the weights' gradient."""
    queue, dtype, aligned = x.queue, x.dtype, (g.offset % 4 == 0, x.offset % 4 == 0)
    tiles = register_tiled.tiles_of(form, x, g.shape, gcd(x.offset, g.offset), rows=register_tiled.ROWS)

    def with_images(module: Any) -> Run:
        return lambda dw, g, x: module.weight_grad(dw, g, x, form)

    def by_tiles() -> Run:
        launch, splits = implicit_gemm.plan_weights(form, x, g, aligned)
        return lambda dw, g, x: add_parts(dw, launch(G=g, X=x), splits)

    return [
        _on_units(form, dtype, queue, lambda: units.plan_weight_grad(queue, form, x, g)),
        _depthwise(tiles, lambda: register_tiled.plan_weights(tiles, x, form)),
        _by_tiles([form], lambda: implicit_gemm.weights_cost(form, queue), by_tiles),
        _by_im2col(form, dtype, queue, lambda: FIRST, lambda: with_images(im2col)),
        _by_winograd(
            form,
            dtype,
            lambda: winograd_gpu.weights_cost(form, dtype, queue),
            lambda: with_images(winograd_gpu),
            winograd.weights_pay(form),
        ),
    ]


# -- one route each ----------------------------------------------------------------------------------------------------


def _one(launch: Launch[Any]) -> Run:
    """A run that is one launch."""
    return lambda y, x, w, bias=None: launch(Y=y, X=x, Wt=w, bias=w if bias is None else bias)


def _on_units(g: Geometry, dtype: DType, queue: Queue, plan: Callable[[], Run]) -> Route:
    """By warpgroup matrix units; kernels that do not build are given up."""
    large = units.pays(g)
    if not large and not route.special:  # the check of the units takes seconds
        return cannot("wgmma", units.SMALL)
    why = units.against(g, dtype, queue)
    if why:
        return cannot("wgmma", why)
    return Route(FIRST if large else LAST, "wgmma", plan, "" if large else units.SMALL, partial(probe.give_up, "wgmma"))


def _depthwise(tiles: Any, plan: Callable[[], Run]) -> Route:
    return cannot("depthwise", register_tiled.LIMITS) if tiles is None else Route(FIRST, "depthwise", plan)


def _by_tiles(parts: list[Geometry], cost: Callable[[], float], plan: Callable[[], Run]) -> Route:
    if any(g.pixels > MOST_PIXELS for g in parts):
        return cannot("implicit_gemm", f"for at most {MOST_PIXELS} output pixels; split the batch")
    return Route(cost(), "implicit_gemm", plan)


def _by_im2col(g: Geometry, dtype: DType, queue: Queue, cost: Callable[[], float], plan: Callable[[], Run]) -> Route:
    """By im2col: columns are written and read, but products are ordinary ones."""
    if not im2col.fits(g):
        return cannot("im2col", "for images whose pixels are counted in 31 bits")
    pays = not register_tiled.suits(g) and im2col.pays(g, dtype, queue)
    return Route(cost() if pays else LAST, "im2col", plan, "" if pays else "for few input channels and much to do")


def _by_winograd(
    g: Geometry, dtype: DType, cost: Callable[[], float], plan: Callable[[], Run], pays: bool = True
) -> Route:
    """By Winograd's transforms: fewer multiplications, though their operands are written and read."""
    if not winograd.suits(g, dtype):
        return cannot("winograd", winograd.LIMITS)
    return Route(cost() if pays else LAST, "winograd", plan, "" if pays else winograd.SMALL)
