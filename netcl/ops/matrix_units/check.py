"""The child process of probe.py: small products on one family of matrix-unit kernels, compared with NumPy.

`python -m netcl.ops.matrix_units.check FAMILY DEVICE` exits with 0 when all of them are right.
"""

from __future__ import annotations

import sys
import warnings

import numpy as np

CASES = (("float16", 1e-3, "high"), ("float32", 1e-6, "high"), ("float32", 1e-3, "medium"))


def main(family: str, device: str) -> None:
    """Compare; raises SystemExit with a message when a product is wrong."""
    from netcl.core.device import manager
    from netcl.core.tensor import Tensor
    from netcl.ops.matmul import gemm
    from netcl.ops.matrix_units import probe
    from netcl.ops.matrix_units.precision import set_matmul_precision

    warnings.simplefilter("error")
    found = [i for i, profile in enumerate(manager.profiles) if profile.name == device]
    if not found:
        raise SystemExit(f"no device is called {device!r}")
    queue = manager.default(found[0]).queue
    rng = np.random.default_rng(1)
    for dtype, tolerance, precision in CASES:
        set_matmul_precision(precision)
        a = rng.standard_normal((320, 264)).astype(dtype)
        b = rng.standard_normal((264, 400)).astype(dtype)
        for _ in range(2):  # the second time with other memory, as tensor maps are written anew
            with probe.only(family, insist=True):
                y = gemm(Tensor.from_host(queue, a), Tensor.from_host(queue, b)).to_host()
            expected = a.astype("f8") @ b.astype("f8")
            error = float(np.linalg.norm(y - expected) / np.linalg.norm(expected))
            if not error < tolerance:
                raise SystemExit(f"{dtype} {precision}: relative error {error:.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
