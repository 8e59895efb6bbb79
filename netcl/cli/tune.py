"""Find the kernel sizes that are fastest on this device and keep them in your tuning table, which ops ask first."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from netcl.cli.values import whole
from netcl.core.protocols import Queue

HELP = "find the fastest kernel sizes for this device"

Config = dict[str, int]

# What to try for each kernel of the tuning table. Configs that do not fit a device are made to fit, or left out.
SPACES: dict[str, dict[str, tuple[int, ...]]] = {
    "matmul_cpu": {"MC": (96, 192, 384), "KC": (128, 256, 512), "NP": (2, 4, 8)},
    "matmul_gpu": {"BM": (64, 128), "BN": (64, 128), "BK": (8, 16, 32), "RM": (4, 8), "RN": (4, 8)},
    "conv_gpu": {"BM": (64, 128), "BN": (64, 128), "BK": (8, 16, 32), "RM": (4, 8), "RN": (4, 8)},
}
# The routes that use the kernels: others may be faster for what is timed.
ROUTES = {"matmul_cpu": "matmul.tiled", "matmul_gpu": "matmul.tiled", "conv_gpu": "conv2d.implicit_gemm"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Which kernels, which device, and whether to write."""
    parser.add_argument("kernels", nargs="*", metavar="kernel", help=f"among {', '.join(SPACES)} (default: what fits)")
    parser.add_argument("--device", default="auto", help='which device, as in `netcl devices` (default "auto")')
    parser.add_argument("--size", type=whole(1), default=512, metavar="N", help="size of what is timed (default 512)")
    parser.add_argument("--dry-run", action="store_true", help="show what was found without keeping it")


def configs(kernel: str) -> list[Config]:
    """Every combination of the sizes of `kernel`."""
    space = SPACES[kernel]
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]


@contextmanager
def trial(kernel: str, config: Config, queue: Queue) -> Iterator[None]:
    """Ops take `config` for `kernel` on the device of `queue` inside."""
    from netcl.core.device.profile import profile_of
    from netcl.core.queue import state_of
    from netcl.kernels import tuning

    before, table = tuning.tables, {kernel: {profile_of(queue).name: config}}
    tuning.tables = lambda: (table, *before())  # type: ignore[assignment]  # without the cache of the original
    plans = state_of(queue).plans
    try:
        plans.clear()
        yield
    finally:
        tuning.tables = before
        plans.clear()


def largest(profile: Any) -> int:
    """The size whose problems take an eighth of the memory, which the host may share, at most."""
    return max(1, math.isqrt(min(profile.max_alloc, profile.global_mem // 8) // 12))


def work(kernel: str, queue: Queue, size: int) -> Callable[[], Any]:
    """The op that `kernel` is timed by."""
    import numpy as np

    from netcl.core.tensor import Tensor
    from netcl.ops.convolution.op import conv2d
    from netcl.ops.product.op import matmul

    rng = np.random.default_rng(0)
    if kernel.startswith("conv"):
        side = max(4, size // 16)
        x = Tensor.from_host(queue, rng.standard_normal((8, 64, side, side), np.float32))
        w = Tensor.from_host(queue, rng.standard_normal((64, 64, 3, 3), np.float32))
        return lambda: conv2d(x, w, padding=1)
    a, b = (Tensor.from_host(queue, rng.standard_normal((size, size), np.float32)) for _ in range(2))
    return lambda: matmul(a, b)


def timed(kernel: str, op: Callable[[], Any], queue: Queue) -> Callable[[Config], Callable[[], Any]]:
    """A function of a config that prepares `op` on the route that uses `kernel`."""
    from netcl.kernels.route import force

    def prepare(config: Config) -> Callable[[], Any]:
        def once() -> None:
            with trial(kernel, config, queue), force(ROUTES[kernel]):
                op()

        return once

    return prepare


def routes_of(kernel: str, config: Config, op: Callable[[], Any], queue: Queue) -> str:
    """What `op` chooses where `kernel` has this config, as text."""
    from netcl.kernels.explain import lines_of
    from netcl.kernels.route import watch

    with trial(kernel, config, queue), watch(queue) as decisions:
        op()
    return "\n  ".join(["routes, with costs in cycles of a compute unit:", *lines_of(decisions)])


def run(args: argparse.Namespace) -> int:
    """Search each kernel and save the tuning table."""
    from netcl.core.device import manager
    from netcl.core.errors import NetclError
    from netcl.kernels import tuning
    from netcl.profiling import AutoTuner

    unknown = sorted(set(args.kernels) - set(SPACES))
    if unknown:
        raise NetclError(f"tune: expected kernels among {', '.join(SPACES)}, got {', '.join(unknown)}.")
    path = tuning.overlay_path()
    if path is None and not args.dry_run:
        raise NetclError("tune: expected a place for the tuning table, got no home folder; set NETCL_TUNING to a file.")
    handle = manager.default(args.device)
    if handle.backend == "cpu":
        raise NetclError("tune: expected an OpenCL device, got NumPy, which has nothing to tune; see `netcl devices`.")
    most = largest(handle.profile)
    if args.size > most:
        raise NetclError(f"tune: expected --size of at most {most} on {handle.device_name}, got {args.size}.")
    suffix = "_cpu" if handle.profile.kind == "cpu" else "_gpu"
    tuner = AutoTuner(handle.queue)
    for kernel in args.kernels or [k for k in SPACES if k.endswith(suffix)]:
        op, before = work(kernel, handle.queue, args.size), tuning.parameters(kernel, handle.profile)

        best, tried = tuner.search(kernel, [before, *configs(kernel)], timed(kernel, op, handle.queue))
        least = min(tried.values())  # 0 where the clock is coarse
        gain = tried[str(before)] / least if least and str(before) in tried else 1.0
        print(f"{kernel} on {handle.device_name}: {best}, {gain:.2f} times the speed of {before}; {len(tried)} tried")
        if best == before:
            tuner.configs.pop(kernel)
        print(routes_of(kernel, best, op, handle.queue))
    if args.dry_run or path is None or not tuner.configs:
        return 0
    print(f"saved to {tuner.save(path)}")
    return 0
