"""Chains that the kernel of a product takes along: bias and activation after matmul, linear or conv2d, in its epilogue.

With gradients wanted, gelu and silu need the value before them; the product then writes it as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from netcl.autograd.jit.fused import FusedStep
from netcl.autograd.jit.plan import CallStep
from netcl.autograd.jit.trace import TraceNode
from netcl.core.dtypes import is_float

ACTIVATIONS = ("relu", "gelu", "silu")


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
    if node.op_name not in ("matmul", "linear", "conv2d") or node.attrs.get("activation") or not is_float(node.dtype):
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
