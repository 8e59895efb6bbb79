"""Matrix products of integers and booleans, on every device: one work-item per element of the result."""

from __future__ import annotations

from functools import partial
from typing import Any

from netcl.core.device.profile import profile_of
from netcl.core.dtypes import BOOL, C_NAME
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor
from netcl.kernels import sources
from netcl.kernels.program import program
from netcl.kernels.route import FIRST, Route, cannot
from netcl.ops.product.problem import Product, Run

GROUP = 64
FLOATS = cannot("naive", "for integers and booleans")


def route(queue: Queue, p: Product) -> Route:
    """The way to compute `p`, the only one there is."""
    return Route(FIRST, "naive", partial(plan, queue, p))


def plan(queue: Queue, p: Product) -> Run:
    """What computes `p`, without an epilogue."""
    source = sources.load("matmul_simple.cl", S=C_NAME[p.dtype], LOGICAL=int(p.dtype == BOOL))
    profile = profile_of(queue)
    group = 1 if profile.kind == "cpu" else profile.group(GROUP)
    launch = program(queue, source, "gemm_simple").bind(
        (-(-p.n // group) * group, p.m, p.count), (group, 1, 1), D={**p.fields, "accumulate": p.accumulate}
    )

    def run(c: Tensor, a: Tensor, b: Tensor, *, alpha: float = 1.0, **_: Any) -> None:
        launch(C=c, A=a, B=b, alpha=int(alpha))

    return run
