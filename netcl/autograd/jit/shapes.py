"""Shapes and dtypes of results without computing them: what a trace knows about each operation.

Elementwise ops follow from the primitive table. The others that a trace may contain have a rule here; an op without one
makes the traced function run unfused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netcl.core import layout
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import BOOL, FLOAT64, INT64, DType, as_dtype, common_dtype, compute_dtype, is_float, on_device
from netcl.core.errors import NetclError, ShapeError
from netcl.core.kernels.primitives import TABLE
from netcl.core.layout import Shape
from netcl.ops import promotion
from netcl.ops.convolution.problem import geometry, pair
from netcl.ops.pooling import op as pooling
from netcl.ops.record import OPS

Facts = tuple[Shape, DType]
PRIMITIVES: dict[str, Any] = {}  # name -> AutogradPrimitive, filled by primitive.py
ELEMENTWISE: set[str] = set()  # registered primitives that run as chains of length one outside the JIT
RULES: dict[str, Callable[..., Facts | list[Facts]]] = {}


class _Registered:
    """Counts registrations of primitives and operations: a program made before the last one may be out of date."""

    serial = 0


registered = _Registered()


def takes_scalars(name: str) -> bool:
    """Whether attributes of the op may be kernel arguments."""
    return name in TABLE


def signature_of(name: str, operands: Sequence[Any], attrs: dict[str, Any]) -> tuple[Any, ...]:
    """Dtypes of traced operands, and classes of numbers among operands and attributes of a row."""
    given = [attrs[a] for a in TABLE[name].attrs] if name in TABLE else []
    return tuple(x.dtype if hasattr(x, "op_name") else promotion.kind(name, x) for x in (*operands, *given))


def compute_type(name: str, operands: Sequence[Any], queue: Any, attrs: dict[str, Any]) -> tuple[DType, DType]:
    """The dtype that a primitive computes in, and the dtype of its result."""
    signature = signature_of(name, operands, attrs)
    if name in TABLE:
        _, compute, dtype = promotion.resolve(name, signature)
    else:
        dtype = as_dtype(common_dtype(*[s if isinstance(s, np.dtype) else s() for s in signature]))
        compute = compute_dtype(dtype)
    if compute == FLOAT64:
        profile = profile_of(queue)
        compute = on_device(compute, profile.has_fp64, profile.name)
        dtype = dtype if dtype == BOOL else on_device(dtype, profile.has_fp64, profile.name)
    return compute, dtype


def infer(name: str, operands: Sequence[Any], attrs: dict[str, Any], queue: Any) -> tuple[bool, list[Facts]]:
    """Whether the op returns a tuple, and shape and dtype of each result. Raises NetclError for an unknown op."""
    tensors = [x for x in operands if hasattr(x, "op_name")]
    if name in TABLE or name in ELEMENTWISE or (name in PRIMITIVES and PRIMITIVES[name].fusible):
        shape = layout.broadcast(name, *(t.shape for t in tensors))
        return False, [(shape, compute_type(name, operands, queue, attrs)[1])]
    op = OPS.get(name)
    if op is None or (op.shape is None and name not in RULES):
        raise NetclError(f"{name!r} is no elementwise primitive and has no shape rule")
    result = (op.shape or RULES[name])(*operands, **attrs)
    return (True, result) if isinstance(result, list) else (False, [result])


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the shape rule of these ops, called with the op's own arguments."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        RULES.update(dict.fromkeys(names, function))
        return function

    return add


# -- reductions --------------------------------------------------------------------------------------------------------


def trailing(x: Any, axis: Any) -> Shape:
    """The reduced axes when they are the last ones, else ()."""
    axes = layout.as_axes("reduction", axis, x.ndim)
    return axes if axes == tuple(range(x.ndim - len(axes), x.ndim)) else ()


@rule("masked_select")
def _masked_select(*_: Any) -> Facts:
    raise NetclError("the length of masked_select's result depends on the data")


@rule("cumsum")
def _cumsum(x: Any, axis: Any = None) -> Facts:
    return (x.size,) if axis is None else x.shape, x.dtype if is_float(x.dtype) else INT64


@rule(
    "softmax", "log_softmax", "flip", "roll", "contiguous", "stop_gradient", "dropout", "batch_norm", "group_norm",
    "layer_norm", "rms_norm",
)  # fmt: skip
def _same(x: Any, *_: Any, **__: Any) -> Facts:
    return x.shape, x.dtype


# -- products ----------------------------------------------------------------------------------------------------------


@rule("matmul")
def _matmul(a: Any, b: Any, **_: Any) -> Facts:
    left = a.shape if a.ndim > 1 else (1, *a.shape)
    right = b.shape if b.ndim > 1 else (*b.shape, 1)
    if left[-1] != right[-2] or min(a.ndim, b.ndim) == 0:
        raise ShapeError(f"matmul: expected a (.., M, K) and b (.., K, N) with equal K, got {a.shape} and {b.shape}.")
    batch = layout.broadcast("matmul", left[:-2], right[:-2])
    shape = (*batch, *left[-2:-1][: a.ndim > 1], *right[-1:][: b.ndim > 1])
    return shape, as_dtype(common_dtype(a.dtype, b.dtype))


@rule("linear", "linear_relu")
def _linear(x: Any, w: Any, b: Any = None, **_: Any) -> Facts:
    if x.shape[-1] != w.shape[-1]:
        raise ShapeError(f"linear: expected input with last axis {w.shape[-1]}, got shape {x.shape}.")
    return (*x.shape[:-1], w.shape[0]), _promoted(x, w, b)


@rule("conv2d", "conv2d_relu")
def _conv2d(
    x: Any, w: Any, b: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1, **_: Any
) -> Facts:
    shape = geometry("conv2d", x.shape, w.shape, stride, padding, dilation, groups).y_shape
    return shape, _promoted(x, w, b)


@rule("max_pool2d", "avg_pool2d")
def _pool2d(
    x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False, **_: Any
) -> Facts:
    return pooling.window_of("pooling", x.shape, kernel_size, stride, padding, dilation, ceil_mode).y_shape, x.dtype


@rule("adaptive_avg_pool2d")
def _adaptive_avg_pool2d(x: Any, output_size: Any) -> Facts:
    return (*x.shape[:2], *pair("adaptive_avg_pool2d", "output_size", output_size, 1)), x.dtype


@rule("cross_entropy")
def _cross_entropy(z: Any, target: Any, reduction: str = "mean", **_: Any) -> Facts:
    return (1,) if reduction != "none" else (z.shape[0], *z.shape[2:]), compute_dtype(z.dtype)


def _promoted(*operands: Any) -> DType:
    """The common dtype of the operands that are given."""
    return as_dtype(common_dtype(*(x.dtype for x in operands if x is not None)))
