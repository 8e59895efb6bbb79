"""Depthwise convolutions on CPU devices: geometry and launches of depthwise_cpu.cl."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from netcl.core.backend.opencl import Kernel, launch
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import INT64, DType
from netcl.core.layout import Shape
from netcl.core.tensor import Tensor
from netcl.kernels.plans import remember
from netcl.ops.convolution.problem import Geometry
from netcl.ops.product.cpu import ACTS, OPTIONS, text
from netcl.runtime.cache import get_kernel

DIMS = struct.Struct("27q")  # Dims of depthwise_cpu.cl
RECORD = np.dtype(f"V{DIMS.size}")
FORWARD = (*(None,) * 4, *(INT64,) * 4, RECORD)
WEIGHTS = (*(None,) * 3, *(INT64,) * 3, RECORD)
BAND = 16384  # elements of a copied band of rows
MOST = 64  # taps of the largest filter
GRAIN = 1 << 14  # outputs per work-item
VECTOR = 16  # elements of the widest vector, which may reach behind a row


def fits(g: Geometry, queue: Any) -> bool:
    """Whether these kernels can do it: one input channel per group, a filter and a row of x that are not huge."""
    if not g.depthwise:
        return False
    needed = ((g.kh - 1) * g.dilation[0] + 1) * _wide(g)
    return g.kh * g.kw <= MOST and needed <= BAND and profile_of(queue).local_mem >= 8 * BAND


def forward(
    y: Tensor, strides: Any, start: int, x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry, activation: str | None
) -> None:
    """As conv_cpu's `_forward`; rows of x have unit stride."""
    queue = x.queue
    key = ("depthwise_cpu", g, x.strides, strides, x.dtype, bias is None, activation)
    kernel, items, dims = remember(
        queue, key, lambda: _plan(queue, g, x.strides, strides, x.dtype, bias is not None, activation)
    )
    extra = w if bias is None else bias
    launch(
        kernel, queue, (items,), (1,), y.buffer, x.buffer, w.buffer, extra.buffer, y.offset + start, x.offset, w.offset,
        extra.offset, dims,
    )  # fmt: skip


def _plan(queue: Any, g: Geometry, xs: Shape, ys: Shape, dtype: DType, bias: bool, activation: str | None) -> Any:
    planes, count = max(1, GRAIN // (g.out[0] * g.out[1])), g.n * g.o
    kernel = _kernel(queue, "depthwise", dtype, bias or activation is not None, FORWARD)
    return kernel, -(-count // planes), _dims(g, xs, ys, count, planes, ACTS[activation], bias)


def weight_grad(dw: Tensor, g: Tensor, x: Tensor, form: Geometry) -> None:
    """dw; g is contiguous, rows of x have unit stride."""
    queue = g.queue

    def make() -> Any:
        dims = _dims(form, x.strides, g.strides, form.n, 1, 0, False)
        return _kernel(queue, "depthwise_weights", g.dtype, False, WEIGHTS), dims

    kernel, dims = remember(queue, ("depthwise_cpu weights", form, x.strides, g.dtype), make)
    launch(kernel, queue, (form.o,), (1,), dw.buffer, g.buffer, x.buffer, dw.offset, g.offset, x.offset, dims)


def _wide(g: Geometry) -> int:
    """Elements of a copied row: the padded input, or what the windows of a part of an input gradient reach."""
    reach = (g.out[1] - 1) * g.stride[1] + (g.kw - 1) * g.dilation[1] + 1
    return max(g.w + g.padding[1], reach) + VECTOR * max(g.stride[1], 2)


def _kernel(queue: Any, name: str, dtype: DType, epilogue: bool, types: Any) -> Kernel:
    defines = {"BAND": BAND, "MOST": MOST, f"USE_{name.upper()}": 1}
    source = text(profile_of(queue), "memory.cl", "depthwise_cpu.cl", dtype=dtype, epilogue=epilogue, **defines)
    return get_kernel(queue, source, name, types, OPTIONS)


def _dims(g: Geometry, xs: Shape, ys: Shape, count: int, planes: int, act: int, bias: bool) -> bytes:
    band = (BAND // _wide(g) - (g.kh - 1) * g.dilation[0] - 1) // g.stride[0] + 1
    return DIMS.pack(
        count, g.o, g.o // g.c, g.h, g.w, g.kh, g.kw, *g.stride, *g.padding, *g.dilation, *g.out, *xs[:3],
        *ys, planes, _wide(g), band, act, bias,
    )  # fmt: skip
