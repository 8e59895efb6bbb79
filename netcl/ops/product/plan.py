"""What computes a product on a device: the best route of the kernel family that is for it."""

from __future__ import annotations

from netcl.core.device.profile import profile_of
from netcl.core.protocols import Queue
from netcl.kernels.route import choose
from netcl.ops.product import cpu, gpu
from netcl.ops.product.problem import MATMUL, Product, Run


def plan_of(queue: Queue, p: Product) -> Run:
    """How the kernels for the device of `queue` compute `p`."""
    profile = profile_of(queue)
    run: Run = choose(MATMUL, (cpu if profile.kind == "cpu" else gpu).routes(queue, p, profile))
    return run
