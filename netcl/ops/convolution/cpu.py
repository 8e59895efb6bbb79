"""Convolutions on CPU devices: geometry and launches of conv_cpu.cl."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from netcl.core.device.profile import profile_of
from netcl.core.dtypes import NARROW, DType, compute_dtype
from netcl.core.layout import Shape
from netcl.core.protocols import Launch, Queue
from netcl.core.tensor import Tensor, allocate
from netcl.kernels import route
from netcl.kernels.plans import remember
from netcl.kernels.program import Program, program
from netcl.kernels.route import FIRST, LAST, Route, cannot, choose
from netcl.ops.convolution import depthwise_cpu, residue, winograd, winograd_cpu
from netcl.ops.convolution.lanes_cpu import lanes_fields, unit_rows
from netcl.ops.convolution.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, Geometry
from netcl.ops.product.cpu import ACTS, ITEMS_PER_UNIT, OPTIONS, sizes, text

CHUNK = 1 << 15  # elements of the output per work-item and block: they are added to once per block of taps

Run = Callable[..., None]  # of y, x, w and bias; dw, g and x


def forward(
    y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry, activation: str | None, op: str = FORWARD
) -> None:
    """y = activation(conv(x, w) + bias); w is contiguous, y any strided part of a tensor. `op`: what it is part of."""
    x = unit_rows(x)
    key = op, g, x.strides, y.strides, x.dtype, bias is None, activation, route.mode
    run: Run = remember(x.queue, key, lambda: choose(op, forward_routes(y, x, bias is not None, g, activation)))
    run(y, x, w, bias)


def forward_routes(y: Tensor, x: Tensor, bias: bool, g: Geometry, activation: str | None) -> list[Route]:
    """The ways forward."""
    queue, xs, ys, dtype = x.queue, x.strides, y.strides, x.dtype

    def depthwise(y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None) -> None:
        depthwise_cpu.forward(y, x, w, bias, g, activation)

    def transformed(y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None) -> None:
        winograd_cpu.forward(y, x, w, bias, g, activation)

    pays = winograd_cpu.fits(g, dtype, queue) and winograd_cpu.pays(g, queue)
    return [
        _depthwise(g, queue, depthwise),
        _by_winograd(g, dtype, queue, transformed, "" if pays else winograd_cpu.SMALL),
        Route(FIRST, "implicit_gemm", lambda: _plan(queue, g, xs, ys, dtype, bias, activation)),
    ]


def _depthwise(g: Geometry, queue: Queue, run: Run) -> Route:
    if not depthwise_cpu.fits(g, queue):
        return cannot("depthwise", depthwise_cpu.LIMITS)
    return Route(FIRST, "depthwise", lambda: run)


def _by_winograd(g: Geometry, dtype: DType, queue: Queue, run: Run, against: str) -> Route:
    if not winograd_cpu.fits(g, dtype, queue):
        return cannot("winograd", winograd.LIMITS)
    return Route(LAST if against else FIRST, "winograd", lambda: run, against)


def _plan(queue: Queue, g: Geometry, xs: Shape, ys: Shape, dtype: DType, bias: bool, activation: str | None) -> Run:
    """A function (y, x, w, bias) that launches a forward convolution."""
    config, m, q = sizes(profile_of(queue), dtype), g.o // g.groups, g.pixels
    rows = -(-m // config["MC"])
    mc = -(-m // (rows * config["MR"])) * config["MR"]
    block = 64  # columns copied at once
    wanted = max(1, ITEMS_PER_UNIT * profile_of(queue).compute_units // (rows * g.groups))
    nc = min(max(256, CHUNK // mc // block * block), -(-q // (wanted * block)) * block)
    kstep = _kstep(config["KC"], g.kh * g.kw)
    made = _program(queue, "conv", dtype)
    dims = lanes_fields(made, g, xs, ys, mc=mc, nc=nc, kstep=kstep, act=ACTS[activation], has_bias=bias)
    launch = made.bind((-(-m // mc), -(-q // nc), g.groups), (1, 1, 1), D=dims)
    sums = (g.o, q) if dtype in NARROW and g.taps > kstep else None

    def run(y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None) -> None:
        part = y if sums is None else allocate(queue, sums, compute_dtype(dtype))
        launch(Y=y, part=part.buffer, X=x, Wt=w, bias=w if bias is None else bias)

    return run


def input_grad(dx: Tensor, g: Tensor, w: Tensor, form: Geometry) -> None:
    """dx of a convolution, whose routes are those of the convolutions that it falls apart into; w is contiguous."""
    residue.input_grad(partial(forward, op=INPUT_GRAD), dx, g, w, form)


def weight_grad(dw: Tensor, g: Tensor, x: Tensor, form: Geometry) -> None:
    """dw of a convolution; g and dw are contiguous."""
    x = unit_rows(x)
    key = WEIGHT_GRAD, form, x.strides, g.strides, g.dtype, route.mode
    run: Run = remember(g.queue, key, lambda: choose(WEIGHT_GRAD, weight_routes(g, x, form)))
    run(dw, g, x)


def weight_routes(g: Tensor, x: Tensor, form: Geometry) -> list[Route]:
    """The ways to the weights' gradient."""
    queue, dtype, xs, gs = g.queue, g.dtype, x.strides, g.strides

    def depthwise(dw: Tensor, g: Tensor, x: Tensor) -> None:
        depthwise_cpu.weight_grad(dw, g, x, form)

    def transformed(dw: Tensor, g: Tensor, x: Tensor) -> None:
        part, splits = winograd_cpu.weight_sums(g, x, form)
        _sum(queue, form, splits, dtype)(dW=dw, part=part.buffer)

    def by_tiles() -> Run:
        launch, splits = _weight_plan(queue, form, xs, gs, dtype)
        add = _sum(queue, form, splits, dtype)
        return lambda dw, g, x: add(dW=dw, part=launch(G=g, X=x).buffer)

    return [
        _depthwise(form, queue, depthwise),
        _by_winograd(form, dtype, queue, transformed, "" if winograd.weights_pay(form) else winograd.SMALL),
        Route(FIRST, "implicit_gemm", by_tiles),
    ]


def _sum(queue: Queue, form: Geometry, splits: int, dtype: DType) -> Launch[Any]:
    """The launch that makes dW of its parts."""
    return remember(queue, ("conv_cpu sum", form, splits, dtype), lambda: _sum_plan(queue, form, splits, dtype))


def _weight_plan(queue: Queue, form: Geometry, xs: Shape, gs: Shape, dtype: DType) -> tuple[Launch[Any], int]:
    """The launch of the products of a weight gradient, which returns their parts, and how many these are."""
    config, q = sizes(profile_of(queue), dtype), form.pixels
    window, per = form.kh * form.kw, form.c // form.groups
    channels = config["MC"] // window  # per block
    mc = -(-per // -(-per // channels)) * window if channels else config["MC"]
    blocks = -(-form.taps // mc)
    wanted = -(-ITEMS_PER_UNIT * profile_of(queue).compute_units // (blocks * form.groups))
    nc = -(-q // (min(wanted, -(-q // config["KC"])) * 8)) * 8
    splits = -(-q // nc)
    made = _program(queue, "conv_weights", dtype)
    part = {"part": ((splits, form.o * form.taps), compute_dtype(dtype))}
    dims = lanes_fields(made, form, xs, gs, mc=mc, nc=nc, kstep=config["KC"])
    return made.bind((blocks, splits, form.groups), (1, 1, 1), part, D=dims), splits


def _sum_plan(queue: Queue, form: Geometry, splits: int, dtype: DType) -> Launch[Any]:
    """The launch that makes dW of its parts."""
    m = form.o // form.groups
    made = _program(queue, "conv_weights_sum", dtype)
    return made.bind((-(-m // 8), form.groups), (1, 1), M=m, K=form.taps, splits=splits)


def _kstep(kc: int, window: int) -> int:
    """Depth of a block: whole filters where they fit."""
    return kc // window * window if window <= kc else kc


def _program(queue: Queue, name: str, dtype: DType) -> Program:
    """A kernel of the one program for every epilogue and gradient."""
    source = text(profile_of(queue), "lanes_cpu.cl", "conv_cpu.cl", dtype=dtype, epilogue=True)
    return program(queue, source, name, OPTIONS)
