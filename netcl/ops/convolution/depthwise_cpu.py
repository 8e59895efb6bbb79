"""Depthwise convolutions on CPU devices: geometry and launches of depthwise_cpu.cl."""

from __future__ import annotations

from typing import Any

from netcl.core.device.profile import profile_of
from netcl.core.dtypes import DType
from netcl.core.layout import Shape
from netcl.core.protocols import Launch, Queue
from netcl.core.tensor import Tensor
from netcl.kernels.plans import remember
from netcl.kernels.program import Program, program
from netcl.ops.convolution.problem import Geometry
from netcl.ops.product.cpu import ACTS, OPTIONS, text

BAND = 16384  # elements of a copied band of rows
MOST = 64  # taps of the largest filter
GRAIN = 1 << 14  # outputs per work-item
VECTOR = 16  # elements of the widest vector, which may reach behind a row
LIMITS = f"for groups of one input channel, filters of at most {MOST} taps and rows that fit in local memory"


def fits(g: Geometry, queue: Queue) -> bool:
    """Whether these kernels can do it: one input channel per group, a filter and a row of x that are not huge."""
    if not g.depthwise:
        return False
    needed = ((g.kh - 1) * g.dilation[0] + 1) * _wide(g)
    return g.kh * g.kw <= MOST and needed <= BAND and profile_of(queue).local_mem >= 8 * BAND


def forward(y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry, activation: str | None) -> None:
    """As that of cpu.py; rows of x have unit stride."""
    queue = x.queue
    key = ("depthwise_cpu", g, x.strides, y.strides, x.dtype, bias is None, activation)
    launch = remember(queue, key, lambda: _plan(queue, g, x.strides, y.strides, x.dtype, bias is not None, activation))
    launch(Y=y, X=x, Wt=w, bias=w if bias is None else bias)


def _plan(
    queue: Queue, g: Geometry, xs: Shape, ys: Shape, dtype: DType, bias: bool, activation: str | None
) -> Launch[Any]:
    planes, count = max(1, GRAIN // (g.out[0] * g.out[1])), g.n * g.o
    made = _program(queue, "depthwise", dtype, bias or activation is not None)
    dims = _fields(made, g, xs, ys, count=count, planes=planes, act=ACTS[activation], has_bias=bias)
    return made.bind((-(-count // planes),), (1,), D=dims)


def weight_grad(dw: Tensor, g: Tensor, x: Tensor, form: Geometry) -> None:
    """dw; g is contiguous, rows of x have unit stride."""
    queue = g.queue

    def make() -> Launch[Any]:
        made = _program(queue, "depthwise_weights", g.dtype)
        dims = _fields(made, form, x.strides, g.strides, count=form.n, planes=1, act=0, has_bias=0)
        return made.bind((form.o,), (1,), D=dims)

    launch = remember(queue, ("depthwise_cpu weights", form, x.strides, g.strides, g.dtype), make)
    launch(dW=dw, G=g, X=x)


def _wide(g: Geometry) -> int:
    """Elements of a copied row: the padded input, or what the windows of a part of an input gradient reach."""
    reach = (g.out[1] - 1) * g.stride[1] + (g.kw - 1) * g.dilation[1] + 1
    return max(g.w + g.padding[1], reach) + VECTOR * max(g.stride[1], 2)


def _program(queue: Queue, name: str, dtype: DType, epilogue: bool = False) -> Program:
    defines = {"BAND": BAND, "MOST": MOST, f"USE_{name.upper()}": 1}
    source = text(profile_of(queue), "memory.cl", "depthwise_cpu.cl", dtype=dtype, epilogue=epilogue, **defines)
    return program(queue, source, name, OPTIONS)


def _fields(made: Program, g: Geometry, xs: Shape, ys: Shape, **more: int) -> dict[str, int]:
    """The fields of Dims of depthwise_cpu.cl."""
    band = (BAND // _wide(g) - (g.kh - 1) * g.dilation[0] - 1) // g.stride[0] + 1
    fields = g.fields(made.kernel.signature.records["D"].names, xs, ys)
    return {**fields, "O": g.o, "each": g.o // g.c, "wide": _wide(g), "band": band, **more}
