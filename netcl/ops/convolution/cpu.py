"""Convolutions on CPU devices: geometry and launches of conv_cpu.cl."""

from __future__ import annotations

from typing import Any

from netcl.core.backend.opencl import Kernel, launch
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import INT64, NARROW, DType, compute_dtype
from netcl.core.layout import Shape
from netcl.core.tensor import Tensor, allocate
from netcl.kernels.plans import remember
from netcl.ops.convolution import depthwise_cpu, winograd, winograd_cpu
from netcl.ops.convolution import residue as conv_residue
from netcl.ops.convolution.lanes_cpu import RECORD, pack_dims, unit_rows
from netcl.ops.convolution.problem import Geometry
from netcl.ops.product.cpu import ACTS, ITEMS_PER_UNIT, OPTIONS, sizes, text
from netcl.runtime.cache import get_kernel

FORWARD = (*(None,) * 5, *(INT64,) * 4, RECORD)
WEIGHTS = (*(None,) * 3, INT64, INT64, RECORD)
SUM = (None, None, *(INT64,) * 4)
CHUNK = 1 << 15  # elements of the output per work-item and block: they are added to once per block of taps


def forward(y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry, activation: str | None) -> None:
    """y = activation(conv(x, w) + bias); y and w are contiguous."""
    _forward(y, y.strides, 0, x, w, bias, g, activation)


def _forward(
    y: Tensor, strides: Any, start: int, x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry, activation: str | None
) -> None:
    """As `forward`, with the output's strides and first element given: it may be a strided part of y."""
    queue, x = x.queue, unit_rows(x)
    if depthwise_cpu.fits(g, queue):
        return depthwise_cpu.forward(y, strides, start, x, w, bias, g, activation)
    if winograd_cpu.fits(g, x.dtype, queue) and winograd_cpu.pays(g, queue):
        return winograd_cpu.forward(y, strides, start, x, w, bias, g, activation)
    key = ("conv_cpu", g, x.strides, strides, x.dtype, bias is None, activation)
    kernel, grid, partial, dims = remember(
        queue, key, lambda: _plan(queue, g, x.strides, strides, x.dtype, bias is not None, activation)
    )
    part = y if partial is None else allocate(queue, partial, compute_dtype(x.dtype))
    extra = w if bias is None else bias
    launch(
        kernel, queue, grid, (1, 1, 1), y.buffer, part.buffer, x.buffer, w.buffer, extra.buffer,
        y.offset + start, x.offset, w.offset, extra.offset, dims,
    )  # fmt: skip


def _plan(queue: Any, g: Geometry, xs: Shape, ys: Shape, dtype: DType, bias: bool, activation: str | None) -> Any:
    """Kernel, global size, shape of the partial sums (None without) and Dims of a forward convolution."""
    row, m, q = sizes(profile_of(queue), dtype), g.o // g.groups, g.n * g.out[0] * g.out[1]
    rows = -(-m // row["MC"])
    mc = -(-m // (rows * row["MR"])) * row["MR"]
    block = 64  # columns copied at once
    wanted = max(1, ITEMS_PER_UNIT * profile_of(queue).compute_units // (rows * g.groups))
    nc = min(max(256, CHUNK // mc // block * block), -(-q // (wanted * block)) * block)
    kstep = _kstep(row["KC"], g.kh * g.kw)
    kernel = _kernel(queue, "conv", dtype, bias or activation is not None, FORWARD)
    dims = pack_dims(g, xs, ys, mc, nc, kstep, ACTS[activation], bias)
    partial = (g.o, q) if dtype in NARROW and g.taps > kstep else None
    return kernel, (-(-m // mc), -(-q // nc), g.groups), partial, dims


def input_grad(dx: Tensor, g: Tensor, w: Tensor, form: Geometry) -> None:
    """dx of a convolution; w is contiguous."""
    conv_residue.input_grad(_forward, dx, g, w, form)


def weight_grad(dw: Tensor, g: Tensor, x: Tensor, form: Geometry) -> None:
    """dw of a convolution; g and dw are contiguous."""
    queue, x = g.queue, unit_rows(x)
    if depthwise_cpu.fits(form, queue):
        return depthwise_cpu.weight_grad(dw, g, x, form)
    sums = _kernel(queue, "conv_weights_sum", g.dtype, False, SUM)
    if winograd_cpu.fits(form, g.dtype, queue) and winograd.weights_pay(form):
        part, splits = winograd_cpu.weight_sums(g, x, form)
    else:
        key = ("conv_cpu weights", form, x.strides, g.dtype)
        products, grid, dims = remember(queue, key, lambda: _weight_plan(queue, form, x.strides, g.strides, g.dtype))
        part, splits = allocate(queue, (grid[1], form.o * form.taps), compute_dtype(g.dtype)), grid[1]
        launch(products, queue, grid, (1, 1, 1), part.buffer, g.buffer, x.buffer, g.offset, x.offset, dims)
    m = form.o // form.groups
    launch(sums, queue, (-(-m // 8), form.groups), (1, 1), dw.buffer, part.buffer, dw.offset, m, form.taps, splits)


def _weight_plan(queue: Any, form: Geometry, xs: Shape, gs: Shape, dtype: DType) -> Any:
    """Kernel, global size and Dims of the products of a weight gradient."""
    row, q = sizes(profile_of(queue), dtype), form.n * form.out[0] * form.out[1]
    window, per = form.kh * form.kw, form.c // form.groups
    channels = row["MC"] // window  # per block
    mc = -(-per // -(-per // channels)) * window if channels else row["MC"]
    blocks = -(-form.taps // mc)
    wanted = -(-ITEMS_PER_UNIT * profile_of(queue).compute_units // (blocks * form.groups))
    nc = -(-q // (min(wanted, -(-q // row["KC"])) * 8)) * 8
    splits = -(-q // nc)
    products = _kernel(queue, "conv_weights", dtype, False, WEIGHTS)
    return products, (blocks, splits, form.groups), pack_dims(form, xs, gs, mc, nc, row["KC"], 0, False)


def _kstep(kc: int, window: int) -> int:
    """Depth of a block: whole filters where they fit."""
    return kc // window * window if window <= kc else kc


def _kernel(queue: Any, name: str, dtype: DType, epilogue: bool, types: Any) -> Kernel:
    source = text(profile_of(queue), "lanes_cpu.cl", "conv_cpu.cl", dtype=dtype, epilogue=epilogue)
    return get_kernel(queue, source, name, types, OPTIONS)
