"""Chains that the kernel of a product takes along: bias and activation after matmul, linear or conv2d, in its epilogue.

With gradients wanted, gelu and silu need the value before them, which an epilogue does not write: then the product and
the chain run as two kernels, as they would without this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from netcl.autograd.fused import FusedStep
from netcl.autograd.node import Node
from netcl.autograd.op import OPS, register_op
from netcl.autograd.plan import CallStep
from netcl.autograd.state import state
from netcl.autograd.trace import TraceNode
from netcl.core.dtypes import is_float
from netcl.core.tensor import Tensor
from netcl.ops import elementwise, reduction
from netcl.ops.conv import conv2d
from netcl.ops.matmul import gemm, linear

ACTIVATIONS = ("relu", "gelu", "silu")
FROM_RESULT = (None, "relu")  # activations whose gradient follows from the result


class Epilogue(NamedTuple):
    """A product and the step after it that one kernel can compute."""

    product: CallStep
    step: FusedStep
    bias: TraceNode | None
    activation: str | None


def find(steps: Sequence[Any], outputs: Sequence[TraceNode]) -> dict[int, Epilogue]:
    """Epilogues among the steps, by the id of the fused step they replace."""
    found = {}
    for step in steps:
        if isinstance(step, FusedStep) and not step.axes and not step.fold and len(step.outputs) == 1:
            product = next(
                (s for s in steps if isinstance(s, CallStep) and any(x is s.node for x in step.leaves)), None
            )
            if product is not None and not any(product.node is n for n in outputs):
                readers = [s for s in steps if any(x is product.node for x in _reads(s))]
                epilogue = _match(product, step) if len(readers) == 1 else None
                if epilogue is not None:
                    found[id(step)] = epilogue
    return found


def _reads(step: Any) -> Sequence[TraceNode]:
    return step.leaves if isinstance(step, FusedStep) else step.node.operands


def _match(product: CallStep, step: FusedStep) -> Epilogue | None:
    node, nodes, value, bias = product.node, list(step.nodes), product.node, None
    if node.op_name not in ("matmul", "linear", "conv2d") or not is_float(node.dtype):
        return None
    if any(x.dtype != node.dtype for x in (*node.operands, *step.leaves, *step.outputs)):
        return None
    if nodes[0].op_name == "add":
        others = [x for x in nodes[0].operands if x is not value]
        if len(others) != 1 or not _takes_bias(node, others[0]):
            return None
        value, bias = nodes.pop(0), others[0]
    activation = None
    if nodes and nodes[0].op_name in ACTIVATIONS and nodes[0].inputs == (value,):
        value = nodes.pop(0)
        activation = value.op_name
    return None if nodes or value is not step.outputs[0] else Epilogue(product, step, bias, activation)


def _takes_bias(node: TraceNode, bias: TraceNode) -> bool:
    if node.op_name == "conv2d":
        return False  # its bias is an argument of its own
    a, b = node.operands[:2]
    plain = node.op_name == "linear" or (a.ndim >= 2 and b.ndim == 2)
    return plain and len(node.operands) == 2 and bias.shape == node.shape[-1:]


def can_run(epilogue: Epilogue, nodes: Sequence[Node]) -> bool:
    """Whether the one kernel will do for these operands: not if backward needs what it does not write."""
    wanted = state.tape is not None and state.enabled and any(n.requires_grad for n in nodes)
    return epilogue.activation in FROM_RESULT or not wanted


# -- the operation -----------------------------------------------------------------------------------------------------


def _forward(a: Tensor, b: Tensor, *bias: Tensor, product: str, activation: str | None, **geometry: Any) -> Tensor:
    extra = bias[0] if bias else None
    if product == "matmul":
        return gemm(a, b, bias=extra, activation=activation)
    if product == "linear":
        return linear(a, b, extra, activation)
    return conv2d(a, b, extra, activation=activation, **geometry)


def _backward(
    g: Tensor, y: Tensor, *xs: Any, needs: Sequence[bool], product: str, activation: str | None, **geometry: Any
) -> list[Tensor | None]:
    if activation == "relu":
        dz = elementwise.gradients("relu", g, y, (None,), (True,))[0]
        assert dz is not None
        g = dz
    backward = OPS[product].backward
    assert backward is not None
    if product == "conv2d":
        return list(backward(g, y, *xs, needs=needs, **geometry))
    grads = list(backward(g, y, *xs[:2], needs=needs[:2]))[:2]
    if len(needs) > 2:
        grads.append(reduction.sum(g, axis=tuple(range(g.ndim - 1))) if needs[2] else None)
    return grads


register_op("product_epilogue", _forward, _backward, saves=("y", 0, 1))
