"""Convolutions on GPUs: geometry and launches of conv_gpu.cl."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from netcl.core.backend.opencl import Kernel, launch
from netcl.core.dtypes import C_NAME, INT32, INT64, DType, compute_dtype
from netcl.core.kernels import dialect
from netcl.core.profile import profile_of
from netcl.core.tensor import Tensor, allocate
from netcl.ops import conv_residue, sources, tuning
from netcl.ops.conv_shape import Geometry
from netcl.ops.matrix_units import conv as units
from netcl.runtime.cache import get_kernel

ACTS = {None: 0, "relu": 1, "gelu": 2, "silu": 3}
OPTIONS = ("-cl-mad-enable",)
DIMS = struct.Struct("27q")  # Dims of conv_gpu.cl
RECORD = np.dtype(f"V{DIMS.size}")
FORWARD = (*(None,) * 4, *(INT64,) * 4, RECORD)
WEIGHTS = (*(None,) * 3, INT64, INT64, INT32, RECORD)
SUM = (None, None, *(INT64,) * 3)
GROUPS_PER_UNIT = 4  # work-groups per compute unit that the pixels of a weight gradient are split for
GROUP = 64


def forward(y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry, activation: str | None) -> None:
    """y = activation(conv(x, w) + bias); y and w are contiguous."""
    if units.usable(g, x.dtype, x.queue) and units.attempt(lambda: units.forward(y, x, w, bias, g, activation)):
        return
    _forward(y, y.strides, 0, x, w, bias, g, activation)


def _forward(
    y: Tensor, strides: Any, start: int, x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry, activation: str | None
) -> None:
    """As `forward`, with the output's strides and first element given: it may be a strided part of y."""
    row = _row(x.queue)
    kernel = _kernel(x.queue, "conv", x.dtype, bias is not None or activation is not None, FORWARD)
    items, extra = _items(row), w if bias is None else bias
    m, q = g.o // g.groups, g.n * g.out[0] * g.out[1]
    grid = (-(-q // row["BN"]) * items[0], -(-m // row["BM"]) * items[1], g.groups)
    launch(
        kernel, x.queue, grid, (*items, 1), y.buffer, x.buffer, w.buffer, extra.buffer, y.offset + start, x.offset,
        w.offset, extra.offset, _dims(g, x, strides, ACTS[activation], bias is not None, 0),
    )  # fmt: skip


def input_grad(dx: Tensor, g: Tensor, w: Tensor, form: Geometry) -> None:
    """dx of a convolution; w is contiguous."""
    if units.usable(form, g.dtype, g.queue) and units.attempt(lambda: units.input_grad(dx, g, w, form)):
        return
    conv_residue.input_grad(_forward, dx, g, w, form)


def weight_grad(dw: Tensor, g: Tensor, x: Tensor, form: Geometry) -> None:
    """dw of a convolution; dw is contiguous."""
    if units.usable(form, g.dtype, g.queue) and units.attempt(lambda: units.weight_grad(dw, g, x, form)):
        return
    queue, row = g.queue, _row(g.queue)
    items, profile = _items(row), profile_of(queue)
    m, q = form.o // form.groups, form.n * form.out[0] * form.out[1]
    tiles = -(-form.taps // row["BN"]) * -(-m // row["BM"]) * form.groups
    wanted = max(1, GROUPS_PER_UNIT * profile.compute_units // tiles)
    depth = -(-q // (min(wanted, -(-q // 256)) * row["BK"])) * row["BK"]
    splits = -(-q // depth)
    part = allocate(queue, (splits, dw.size), compute_dtype(g.dtype))
    grid = (-(-form.taps // row["BN"]) * items[0], -(-m // row["BM"]) * items[1], splits * form.groups)
    launch(
        _kernel(queue, "conv_weights", g.dtype, False, WEIGHTS), queue, grid, (*items, 1), part.buffer, g.buffer,
        x.buffer, g.offset, x.offset, form.groups, _dims(form, x, g.strides, 0, False, depth),
    )  # fmt: skip
    group = min(GROUP, profile.max_work_group)
    launch(
        _kernel(queue, "conv_weights_sum", g.dtype, False, SUM), queue, (-(-dw.size // group) * group,), (group,),
        dw.buffer, part.buffer, dw.offset, dw.size, splits,
    )  # fmt: skip


def _row(queue: Any) -> dict[str, int]:
    return tuning.parameters("conv_gpu", profile_of(queue))


def _items(row: dict[str, int]) -> tuple[int, int]:
    return row["BN"] // row["RN"], row["BM"] // row["RM"]


def _kernel(queue: Any, name: str, dtype: DType, epilogue: bool, types: Any) -> Kernel:
    element = C_NAME[compute_dtype(dtype)]
    defines: dict[str, Any] = {"S": C_NAME[dtype], "E": element, **_row(queue)}
    functions = ""
    if epilogue:
        functions, defines["EPILOGUE"] = dialect.preamble(frozenset({"RELU", "GELU", "SILU"}), element, 1), 1
    return get_kernel(queue, sources.load("conv_gpu.cl", preamble=functions, **defines), name, types, OPTIONS)


def _dims(g: Geometry, x: Tensor, strides: Any, act: int, bias: bool, depth: int) -> bytes:
    return DIMS.pack(
        g.o // g.groups, g.n * g.out[0] * g.out[1], g.taps, g.c // g.groups, g.h, g.w, g.kh, g.kw, *g.stride,
        *g.padding, *g.dilation, *g.out, *x.strides, *strides, act, bias, depth,
    )  # fmt: skip
