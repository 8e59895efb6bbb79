"""Convolutions on CPU devices: geometry and launches of conv_cpu.cl."""

from __future__ import annotations

from typing import Any

from netcl.core.device.profile import profile_of
from netcl.core.dtypes import NARROW, DType, compute_dtype
from netcl.core.layout import Shape
from netcl.core.tensor import Tensor, allocate
from netcl.kernels.plans import remember
from netcl.kernels.program import Launch, Program, program
from netcl.ops.convolution import depthwise_cpu, winograd, winograd_cpu
from netcl.ops.convolution import residue as conv_residue
from netcl.ops.convolution.lanes_cpu import lanes_fields, unit_rows
from netcl.ops.convolution.problem import Geometry
from netcl.ops.product.cpu import ACTS, ITEMS_PER_UNIT, OPTIONS, sizes, text

CHUNK = 1 << 15  # elements of the output per work-item and block: they are added to once per block of taps


def forward(y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry, activation: str | None) -> None:
    """y = activation(conv(x, w) + bias); w is contiguous, y any strided part of a tensor."""
    queue, x = x.queue, unit_rows(x)
    if depthwise_cpu.fits(g, queue):
        return depthwise_cpu.forward(y, x, w, bias, g, activation)
    if winograd_cpu.fits(g, x.dtype, queue) and winograd_cpu.pays(g, queue):
        return winograd_cpu.forward(y, x, w, bias, g, activation)
    key = ("conv_cpu", g, x.strides, y.strides, x.dtype, bias is None, activation)
    launch, partial = remember(
        queue, key, lambda: _plan(queue, g, x.strides, y.strides, x.dtype, bias is not None, activation)
    )
    part = y if partial is None else allocate(queue, partial, compute_dtype(x.dtype))
    launch(Y=y, part=part.buffer, X=x, Wt=w, bias=w if bias is None else bias)


def _plan(
    queue: Any, g: Geometry, xs: Shape, ys: Shape, dtype: DType, bias: bool, activation: str | None
) -> tuple[Launch, Shape | None]:
    """The launch of a forward convolution, and the shape of the partial sums (None without)."""
    row, m, q = sizes(profile_of(queue), dtype), g.o // g.groups, g.pixels
    rows = -(-m // row["MC"])
    mc = -(-m // (rows * row["MR"])) * row["MR"]
    block = 64  # columns copied at once
    wanted = max(1, ITEMS_PER_UNIT * profile_of(queue).compute_units // (rows * g.groups))
    nc = min(max(256, CHUNK // mc // block * block), -(-q // (wanted * block)) * block)
    kstep = _kstep(row["KC"], g.kh * g.kw)
    made = _program(queue, "conv", dtype, bias or activation is not None)
    dims = lanes_fields(made, g, xs, ys, mc=mc, nc=nc, kstep=kstep, act=ACTS[activation], has_bias=bias)
    launch = made.bind((-(-m // mc), -(-q // nc), g.groups), (1, 1, 1), D=dims)
    return launch, (g.o, q) if dtype in NARROW and g.taps > kstep else None


def input_grad(dx: Tensor, g: Tensor, w: Tensor, form: Geometry) -> None:
    """dx of a convolution; w is contiguous."""
    conv_residue.input_grad(forward, dx, g, w, form)


def weight_grad(dw: Tensor, g: Tensor, x: Tensor, form: Geometry) -> None:
    """dw of a convolution; g and dw are contiguous."""
    queue, x = g.queue, unit_rows(x)
    if depthwise_cpu.fits(form, queue):
        return depthwise_cpu.weight_grad(dw, g, x, form)
    if winograd_cpu.fits(form, g.dtype, queue) and winograd.weights_pay(form):
        part, splits = winograd_cpu.weight_sums(g, x, form)
    else:
        key = ("conv_cpu weights", form, x.strides, g.dtype)
        launch, splits = remember(queue, key, lambda: _weight_plan(queue, form, x.strides, g.strides, g.dtype))
        part = launch(G=g, X=x)
    add = remember(queue, ("conv_cpu sum", form, splits, g.dtype), lambda: _sum_plan(queue, form, splits, g.dtype))
    add(dW=dw, part=part.buffer)


def _weight_plan(queue: Any, form: Geometry, xs: Shape, gs: Shape, dtype: DType) -> tuple[Launch, int]:
    """The launch of the products of a weight gradient, which returns their parts, and how many these are."""
    row, q = sizes(profile_of(queue), dtype), form.pixels
    window, per = form.kh * form.kw, form.c // form.groups
    channels = row["MC"] // window  # per block
    mc = -(-per // -(-per // channels)) * window if channels else row["MC"]
    blocks = -(-form.taps // mc)
    wanted = -(-ITEMS_PER_UNIT * profile_of(queue).compute_units // (blocks * form.groups))
    nc = -(-q // (min(wanted, -(-q // row["KC"])) * 8)) * 8
    splits = -(-q // nc)
    made = _program(queue, "conv_weights", dtype)
    part = {"part": ((splits, form.o * form.taps), compute_dtype(dtype))}
    dims = lanes_fields(made, form, xs, gs, mc=mc, nc=nc, kstep=row["KC"])
    return made.bind((blocks, splits, form.groups), (1, 1, 1), part, D=dims), splits


def _sum_plan(queue: Any, form: Geometry, splits: int, dtype: DType) -> Launch:
    """The launch that makes dW of its parts."""
    m = form.o // form.groups
    made = _program(queue, "conv_weights_sum", dtype)
    return made.bind((-(-m // 8), form.groups), (1, 1), M=m, K=form.taps, splits=splits)


def _kstep(kc: int, window: int) -> int:
    """Depth of a block: whole filters where they fit."""
    return kc // window * window if window <= kc else kc


def _program(queue: Any, name: str, dtype: DType, epilogue: bool = False) -> Program:
    source = text(profile_of(queue), "lanes_cpu.cl", "conv_cpu.cl", dtype=dtype, epilogue=epilogue)
    return program(queue, source, name, OPTIONS)
