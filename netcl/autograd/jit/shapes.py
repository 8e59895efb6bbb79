"""Shapes and dtypes of results without computing them: what a trace knows about each operation.

Elementwise ops follow from the primitive table, the others from the shape in their record; an op without one makes the
traced function run unfused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netcl.autograd.follow import changes
from netcl.core import layout
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import BOOL, FLOAT64, DType, as_dtype, common_dtype, compute_dtype, on_device
from netcl.core.errors import NetclError
from netcl.core.kernels import dialect
from netcl.core.kernels.primitives import TABLE
from netcl.core.layout import Shape
from netcl.core.protocols import Queue
from netcl.ops import promotion
from netcl.ops.record import OPS

Facts = tuple[Shape, DType]
PRIMITIVES: dict[str, Any] = {}  # name -> AutogradPrimitive, filled by primitive.py
ELEMENTWISE: set[str] = set()  # registered primitives that run as chains of length one outside the JIT


class _Registered:
    """Counts registrations of primitives and operations: a program made before the last one may be out of date."""

    serial = 0

    def count(self) -> None:
        """Something is another than before: programs look at it at their next call."""
        self.serial += 1
        changes.add()


registered = _Registered()
dialect.forget.append(registered.count)


def takes_scalars(name: str) -> bool:
    """Whether attributes of the op may be kernel arguments."""
    return name in TABLE


def signature_of(name: str, operands: Sequence[Any], attrs: dict[str, Any]) -> tuple[Any, ...]:
    """Dtypes of traced operands, and classes of numbers among operands and attributes of a row."""
    given = [attrs[a] for a in TABLE[name].attrs] if name in TABLE else []
    return tuple(
        [
            x.dtype if hasattr(x, "op_name") else type(x) if type(x) in promotion.NUMBERS else promotion.kind(name, x)
            for x in (*operands, *given)
        ]
    )


def compute_type(name: str, operands: Sequence[Any], queue: Queue, attrs: dict[str, Any]) -> tuple[DType, DType]:
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


def infer(name: str, operands: Sequence[Any], attrs: dict[str, Any], queue: Queue) -> tuple[bool, list[Facts]]:
    """Whether the op returns a tuple, and shape and dtype of each result. Raises NetclError for an unknown op."""
    tensors = [x for x in operands if hasattr(x, "op_name")]
    if name in TABLE or name in ELEMENTWISE or (name in PRIMITIVES and PRIMITIVES[name].fusible):
        shape = layout.broadcast(name, *(t.shape for t in tensors))
        return False, [(shape, compute_type(name, operands, queue, attrs)[1])]
    op = OPS.get(name)
    if op is None or op.shape is None:
        raise NetclError(f"{name!r} is no elementwise primitive and has no shape rule")
    result = op.shape(*operands, **attrs)
    return (True, result) if isinstance(result, list) else (False, [result])


def trailing(x: Any, axis: Any) -> Shape:
    """The reduced axes when they are the last ones, else ()."""
    axes = layout.as_axes("reduction", axis, x.ndim)
    return axes if axes == tuple(range(x.ndim - len(axes), x.ndim)) else ()
