"""Check gradients against finite differences along random directions, in double precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netcl.autograd.node import Node
from netcl.autograd.tape import Tape
from netcl.core.dtypes import FLOAT64, is_float
from netcl.core.errors import GradientError
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor


def gradcheck(
    fn: Callable[..., Any],
    inputs: Node | Tensor | Sequence[Any],
    eps: float = 1e-6,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    directions: int = 2,
    seed: int = 0,
) -> bool:
    """Whether fn's gradients at `inputs` agree with central differences: True, or GradientError with the figures.

    For a random u of the output's shape and a random direction v of each floating input, <v, J^T u> from the tape must
    equal (<u, f(x + eps v)> - <u, f(x - eps v)>) / (2 eps) within atol + rtol * scale, scale being the sum of the
    magnitudes of the terms. Floating inputs are taken in float64 on their queue, which must have double precision;
    integer inputs are passed as they are. `fn` may return several nodes.
    """
    given: list[Any] = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    values = [x.value if isinstance(x, Node) else x for x in given]
    hosts = [v.to_host().astype(np.float64) if is_float(v.dtype) else v.to_host() for v in values]
    if not any(h.dtype == np.float64 for h in hosts):
        raise GradientError("gradcheck: expected at least one floating input, got none.")
    if any(is_float(v.dtype) and Tensor.empty(v.queue, (1,), FLOAT64).dtype != FLOAT64 for v in values):
        raise GradientError("gradcheck: expected a device with double precision; use the NumPy queue.")
    rng = np.random.default_rng(seed)
    queue = values[0].queue
    for _ in range(directions):
        us, grads = _analytic(fn, hosts, queue, rng)
        vs = [rng.standard_normal(h.shape) if h.dtype == np.float64 else None for h in hosts]
        for i, (v, g) in enumerate(zip(vs, grads)):
            if v is None or g is None:
                continue
            moved = [[*hosts[:i], hosts[i] + s * eps * v, *hosts[i + 1 :]] for s in (1, -1)]
            numeric = (_value(fn, moved[0], queue, us) - _value(fn, moved[1], queue, us)) / (2 * eps)
            analytic, scale = float(np.sum(v * g)), float(np.sum(np.abs(v * g)))
            if not abs(numeric - analytic) <= atol + rtol * max(scale, abs(numeric)):
                raise GradientError(
                    f"gradcheck: expected the gradient of input {i} along a random direction to be {numeric:.9g} "
                    f"(central difference, eps {eps}), got {analytic:.9g}: difference {abs(numeric - analytic):.3g}, "
                    f"allowed {atol + rtol * max(scale, abs(numeric)):.3g}."
                )
    return True


def _outputs(fn: Callable[..., Any], nodes: Sequence[Node]) -> list[Node]:
    result = fn(*nodes)
    found = list(result) if isinstance(result, (list, tuple)) else [result]
    return [y for y in found if is_float(y.dtype)]


def _analytic(
    fn: Callable[..., Any], hosts: Sequence[np.ndarray], queue: Queue, rng: np.random.Generator
) -> tuple[list[np.ndarray], list[np.ndarray | None]]:
    """Random upstream gradients and what the tape makes of them; zeros for an input that the result does not use."""
    nodes = [Node(Tensor.from_host(queue, h), h.dtype == np.float64) for h in hosts]
    with Tape() as tape:
        outputs = _outputs(fn, nodes)
    us = [rng.standard_normal(y.shape) for y in outputs]
    wanted = [(y, u) for y, u in zip(outputs, us) if y.requires_grad]
    if not wanted:
        raise GradientError("gradcheck: expected an output that depends on the inputs, got none.")
    for i, (y, u) in enumerate(wanted):
        tape.backward(y, Tensor.from_host(queue, u.astype(y.dtype)), retain_graph=i + 1 < len(wanted))
    return us, [
        (np.zeros(h.shape) if n.grad is None else n.grad.to_host()) if n.requires_grad else None
        for n, h in zip(nodes, hosts)
    ]


def _value(fn: Callable[..., Any], hosts: Sequence[np.ndarray], queue: Queue, us: Sequence[np.ndarray]) -> float:
    outputs = _outputs(fn, [Node(Tensor.from_host(queue, h)) for h in hosts])
    return float(sum(np.sum(u * y.value.to_host()) for u, y in zip(us, outputs)))
