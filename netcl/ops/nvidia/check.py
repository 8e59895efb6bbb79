"""The child process of probe.py: small problems on one family of matrix-unit kernels, compared with NumPy.

`python -m netcl.ops.nvidia.check FAMILY DEVICE` exits with 0 when all of them are right.
"""

from __future__ import annotations

import sys
import warnings

import numpy as np

from netcl.core.protocols import Queue

CASES = (
    ("float16", 1e-3, "high"),
    ("bfloat16", 8e-3, "high"),
    ("float32", 1e-6, "high"),
    ("float32", 1e-3, "medium"),
)
ATTENTION = (("float16", 2e-3), ("bfloat16", 1.6e-2), ("float32", 2e-6))  # the last not on wgmma


def main(family: str, device: str) -> None:
    """Compare; raises SystemExit with a message when a product is wrong."""
    from netcl.core.device import manager
    from netcl.core.tensor import Tensor
    from netcl.kernels.route import force
    from netcl.ops.nvidia import probe
    from netcl.ops.nvidia.precision import set_matmul_precision
    from netcl.ops.product.op import gemm

    warnings.simplefilter("error")
    found = [i for i, profile in enumerate(manager.profiles) if profile.name == device]
    if not found:
        raise SystemExit(f"no device is called {device!r}")
    queue = manager.default(found[0]).queue
    if family.startswith("attention "):
        check_attention(queue, family.split()[-1])
        return
    rng = np.random.default_rng(1)
    for dtype, tolerance, precision in CASES:
        set_matmul_precision(precision)
        a = rng.standard_normal((320, 264)).astype(dtype)
        b = rng.standard_normal((264, 400)).astype(dtype)
        for _ in range(2):  # the second time with other memory, as tensor maps are written anew
            with probe.only(family), force(family):
                y = gemm(Tensor.from_host(queue, a), Tensor.from_host(queue, b)).to_host()
            expected = a.astype("f8") @ b.astype("f8")
            error = float(np.linalg.norm(y.astype("f8") - expected) / np.linalg.norm(expected))
            if not error < tolerance:
                raise SystemExit(f"{dtype} {precision}: relative error {error:.1e}")


def check_attention(queue: Queue, family: str) -> None:
    """Causal attention and its gradients in the dtypes of the family, compared with the NumPy backend."""
    from netcl.core.queue import CPUQueue
    from netcl.core.tensor import Tensor
    from netcl.ops.attend.op import attention, attention_grad
    from netcl.ops.nvidia import probe

    rng = np.random.default_rng(2)
    for dtype, tolerance in ATTENTION[: 2 if family == "wgmma" else 3]:
        arrays = [rng.standard_normal((1, 2, t, 64)).astype(dtype) for t in (150, 190, 190, 150)]
        results = []
        for side in (queue, CPUQueue()):
            q, k, v, g = (Tensor.from_host(side, a if side is queue else a.astype("f8")) for a in arrays)
            with probe.only(family):
                o, lse = attention(q, k, v, causal=True)
                found = (o, lse, *attention_grad(g, q, k, v, o, lse, causal=True))
                results.append([t.to_host() for t in found if t is not None])
        for name, y, expected in zip(("o", "lse", "dq", "dk", "dv"), *results):
            error = float(np.linalg.norm(y.astype("f8") - expected) / np.linalg.norm(expected))
            if not error < tolerance:
                raise SystemExit(f"attention {dtype} {name}: relative error {error:.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
