"""How long the way through the code is: calls of functions of netcl, and returns to a file already left.

    python tools/way.py            a table for every backend
    python tools/way.py cl:cpu     of one: "cl:cpu", "as-gpu" (kernels for GPUs on a CPU device), "cpu" (NumPy)

Every row is of a process of its own kind: the first linear is the first op of its process, whose program the cache on
disk holds; the first jit call and the first step of an optimizer come after it. A warm call is the third of its shapes.
Comprehensions are no calls here. LIMITS holds the most that is allowed, and a test holds it.
"""

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import netcl
import netcl.autograd as ag
from netcl import ops
from netcl.autograd.compiler import jit_compile
from netcl.core.backend import native
from netcl.core.device import manager
from netcl.core.device.profile import profile_of
from netcl.core.queue import state_of
from netcl.core.tensor import Tensor
from netcl.nn import Linear
from netcl.optim import AdamW
from netcl.runtime.cache import cacher

ROOT = str(Path(netcl.__file__).parent)
INLINE = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")
ROWS = ("first linear", "warm linear", "first jit", "warm jit", "first AdamW", "warm AdamW")
LIMITS = {  # (calls, returns)
    "cl:cpu": ((115, 38), (15, 6), (540, 260), (7, 0), (380, 155), (28, 10)),
    "as-gpu": ((282, 66), (15, 6), (540, 260), (7, 0), (380, 155), (28, 10)),
    "cpu": ((31, 11), (28, 9), (340, 170), (24, 6), (215, 70), (48, 17)),
}


def measure(call: Callable[[], Any]) -> tuple[int, int]:
    """(calls, returns to a file already left) of functions of netcl while `call` runs."""
    calls = returns = 0
    left: set[str] = set()
    here = ""

    def hook(frame: Any, event: str, _: Any) -> None:
        nonlocal calls, returns, here
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(ROOT) or frame.f_code.co_name in INLINE:
            return
        calls += 1
        if file != here:
            left.add(here)
            returns += file in left
            here = file

    sys.setprofile(hook)
    try:
        call()
    finally:
        sys.setprofile(None)
    return calls, returns


def queue_of(backend: str) -> Any:
    """The queue behind a name of LIMITS."""
    if backend != "as-gpu":
        return manager.default(backend).queue
    import pyopencl as cl

    real = manager.default("cl:cpu").queue
    posing = cl.CommandQueue(cl.Context([real.device]), real.device)
    state_of(posing).profile = dataclasses.replace(profile_of(real), kind="gpu")
    build = cacher.get_program

    def unoptimised(context: Any, source: str, device: Any, options: Any = (), *edit: Any) -> Any:
        """PoCL takes up to ten seconds to optimise the barriers of a kernel."""
        return build(context, source, device, (*options, "-cl-opt-disable"), *edit)

    cacher.get_program = unoptimised  # type: ignore[method-assign]
    return posing


def rows(backend: str) -> list[tuple[int, int]]:
    """What `measure` finds for each of ROWS."""
    queue, rng = queue_of(backend), np.random.default_rng(0)
    x, w, b = (Tensor.from_host(queue, rng.standard_normal(s).astype(np.float32)) for s in ((32, 64), (16, 64), (16,)))
    compiled = jit_compile(lambda x: ag.relu(x * 2.0 + 1.0))
    layer = Linear(queue, 64, 16)
    optimizer = AdamW(layer.parameters())

    def gradients() -> None:
        with ag.Tape() as tape:
            loss = ag.sum(layer(ag.tensor(x)))
        tape.backward(loss)

    found = []
    for call, before in (
        (lambda: ops.linear(x, w, b), lambda: None),
        (lambda: compiled(x), lambda: None),
        (optimizer.step, gradients),
    ):
        for times in (0, 1):
            for _ in range(times):
                before()
                call()
            before()
            found.append(measure(call))
    return found


def main() -> int:
    """Print the table of one backend, or of all in processes of their own."""
    if len(sys.argv) > 1:
        backend = sys.argv[1]
        print(f"{backend:<16}{'calls':>8}{'limit':>8}{'returns':>8}{'limit':>8}")
        long, more = False, 0 if native.extension() else 3  # calls of a launch without `_send.c`
        for name, found, limit in zip(ROWS, rows(backend), LIMITS[backend], strict=True):
            print(f"{name:<16}{found[0]:>8}{limit[0]:>8}{found[1]:>8}{limit[1]:>8}")
            long |= found[0] > limit[0] + more or found[1] > limit[1]
        return int(long)
    return max(subprocess.run([sys.executable, __file__, backend], check=False).returncode for backend in LIMITS)


if __name__ == "__main__":
    sys.exit(main())
