"""What the device can do at most: plain copies and bare multiply-adds, the measure behind the share column."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.timing import rouse

SOURCE = """
typedef VECTOR V __attribute__((aligned(4)));
__kernel void copy(__global const float* restrict x, __global float* restrict y, int n) {
    size_t i = (size_t)get_global_id(0) * 8192;
    for (size_t e = min(i + 8192, (size_t)n); i + LANES <= e; i += LANES)
         *(__global V*)(y + i) = *(__global const V*)(x + i);
}
// Ten independent sums hide the latency of a multiply-add; both factors stay in registers.
__kernel void peak(__global float* restrict y, float b, float c, int n) {
    VECTOR s0 = b, s1 = b + 1, s2 = b + 2, s3 = b + 3, s4 = b + 4;
    VECTOR s5 = c, s6 = c + 1, s7 = c + 2, s8 = c + 3, s9 = c + 4;
    for (int i = 0; i < n; i++) {
        s0 = s0 * b + c; s1 = s1 * b + c; s2 = s2 * b + c; s3 = s3 * b + c; s4 = s4 * b + c;
        s5 = s5 * b + c; s6 = s6 * b + c; s7 = s7 * b + c; s8 = s8 * b + c; s9 = s9 * b + c;
    }
    *(__global V*)(y + get_global_id(0) * LANES) = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7 + s8 + s9;
}
"""
COPY_FLOATS = (1 << 20, 1 << 22, 1 << 25)  # caches hold the smaller ones, so a case is compared with a copy of its size
LOOP, VECTORS = 20000, 10


def best_of(queue: Any, runs: int, enqueue: Any) -> float:
    """Seconds of the fastest of `runs` launches."""
    rouse(enqueue, queue.finish)
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        enqueue()
        queue.finish()
        best = min(best, time.perf_counter() - start)
    return best


def ceilings(queue: Any, profile: Any) -> dict[str, Any]:
    """{"copy": [[bytes, GB/s], ...], "flops": GFLOP/s} of an OpenCL CPU device, by best of several; {} elsewhere."""
    if profile.kind != "cpu":
        return {}
    from netcl.core.backend.opencl import launch
    from netcl.core.tensor import Tensor
    from netcl.runtime.cache import get_kernel

    options = ("-cl-mad-enable", "-cl-single-precision-constant")
    lanes = profile.vector
    source = f"#define VECTOR float{lanes}\n#define LANES {lanes}\n{SOURCE}"
    copy = get_kernel(queue, source, "copy", options)
    peak = get_kernel(queue, source, "peak", options)
    rates = []
    for n in COPY_FLOATS:
        x, y = Tensor.zeros(queue, (n,)), Tensor.zeros(queue, (n,))
        args = ((n // 8192,), (1,), x.buffer, y.buffer, n)
        rates.append([8 * n, 8e-9 * n / best_of(queue, 15, lambda args=args: launch(copy, queue, *args))])
    items = 8 * profile.compute_units
    y = Tensor.zeros(queue, (items * lanes,))
    seconds = best_of(queue, 9, lambda: launch(peak, queue, (items,), (1,), y.buffer, 0.5, 0.25, LOOP))
    return {"copy": rates, "flops": 2e-9 * items * LOOP * VECTORS * lanes / seconds}


def share(found: dict[str, Any], flops: float, nbytes: float, seconds: float) -> tuple[float, str, float | None]:
    """(rate, unit, share of the ceiling) of a work that took `seconds`; arithmetic counts where there is any."""
    if flops:
        rate, top = 1e-9 * flops / seconds, found.get("flops")
        return rate, "GFLOP/s", rate / top if top else None
    if not nbytes:
        return 0.0, "", None
    rate, copies = 1e-9 * nbytes / seconds, found.get("copy")
    if not copies:
        return rate, "GB/s", None
    fitting = [top for size, top in copies if size <= nbytes] or [copies[0][1]]
    return rate, "GB/s", rate / fitting[-1]
