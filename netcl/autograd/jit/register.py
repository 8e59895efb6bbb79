"""Registering primitives: what the JIT fuses also runs as an op of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from netcl.autograd.jit import shapes
from netcl.autograd.jit.fused import eager_step
from netcl.autograd.jit.primitive import PRIMITIVES, AutogradPrimitive
from netcl.autograd.op import register_op
from netcl.core.errors import GradientError
from netcl.core.kernels.primitives import TABLE
from netcl.core.tensor import Tensor
from netcl.ops.record import OPS


def register_primitive(
    name: str,
    forward: Callable[[list[str], dict[str, Any]], str],
    backward: Callable[[list[str], str, dict[str, Any], str], list[str]],
    arity: int | None = None,
    fusible: bool = True,
) -> AutogradPrimitive:
    """Make an op known to the JIT (see AutogradPrimitive), and to `apply_op` unless it has an operation of that name.

    Functions in the expressions are those of PRIMITIVE_PREAMBLE or defined by `dialect.define_function`; they are
    looked up when the op is first used. Raises GradientError for an arity below 1.
    """
    if arity is not None and arity < 1:
        raise GradientError(f"register_primitive: expected an arity of at least 1 or None, got {arity} for {name!r}.")
    primitive = PRIMITIVES[name] = AutogradPrimitive(name, forward, backward, arity, fusible)
    shapes.registered.count()
    if name not in TABLE and (name not in OPS or OPS[name].forward.__name__ == "eager_primitive"):
        _register_eager(name)
    return primitive


def _register_eager(name: str) -> None:
    """The op as a chain of length one, outside the JIT."""

    def eager_primitive(*tensors: Tensor, **attrs: Any) -> Tensor:
        return eager_step(name, tensors, attrs).forward(tensors)

    def backward(g: Tensor, y: Any, *tensors: Tensor, needs: Sequence[bool], **attrs: Any) -> Sequence[Tensor | None]:
        return eager_step(name, tensors, attrs).backward((g,), tensors, needs)

    OPS.pop(name, None)
    shapes.ELEMENTWISE.add(name)
    register_op(name, eager_primitive, backward)
