"""How long the way through the code is: calls of functions of netcl, and returns to a file already left.

    python tools/way.py            a table for every backend
    python tools/way.py cl:cpu     of one: "cl:cpu", "as-gpu" (kernels for GPUs on a CPU device), "cpu" (NumPy)

Every scene runs in a process of its own, whose programs a process before it has left in a cache on disk that nobody
else uses: the user's cache does not count. "very first" is the first op of its process, so that the driver's start and
its folders count as well; "first" comes after an unrelated op; a warm call is the third of its shapes. Comprehensions
are no calls here. LIMITS holds the most that is allowed, and a test holds it.
"""

import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
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
LIMITS = {  # backend: row: (calls, returns)
    "cl:cpu": {
        "very first linear": (80, 20),
        "first linear": (60, 12),
        "warm linear": (11, 3),
        "first jit": (200, 70),
        "warm jit": (6, 0),
        "first AdamW": (176, 84),
        "warm AdamW": (27, 10),
        "warm layer_norm": (28, 13),
        "warm batch_norm": (31, 14),
    },
    "as-gpu": {
        "very first linear": (102, 24),
        "first linear": (86, 14),
        "warm linear": (11, 3),
        "first jit": (200, 70),
        "warm jit": (6, 0),
        "first AdamW": (176, 84),
        "warm AdamW": (27, 10),
        "warm layer_norm": (28, 13),
        "warm batch_norm": (38, 18),
    },
    "cpu": {
        "very first linear": (23, 8),
        "first linear": (21, 7),
        "warm linear": (18, 5),
        "first jit": (148, 50),
        "warm jit": (22, 6),
        "first AdamW": (102, 45),
        "warm AdamW": (37, 14),
        "warm layer_norm": (30, 11),
        "warm batch_norm": (40, 16),
    },
}
PLAIN = 3  # calls of a launch without `_send.c`, beside those with it


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


@functools.cache
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


def very_first(backend: str) -> dict[str, tuple[int, int]]:
    """An op that is the first of its process."""
    x, w, b = operands(queue_of(backend))
    return {"very first linear": measure(lambda: ops.linear(x, w, b))}


def linear(backend: str) -> dict[str, tuple[int, int]]:
    x, w, b = opened(backend)
    return first_and_warm("linear", lambda: ops.linear(x, w, b))


def jit(backend: str) -> dict[str, tuple[int, int]]:
    x, _, _ = opened(backend)
    compiled = jit_compile(lambda x: ag.relu(x * 2.0 + 1.0))
    return first_and_warm("jit", lambda: compiled(x))


def optimizer(backend: str) -> dict[str, tuple[int, int]]:
    x, _, _ = opened(backend)
    layer = Linear(x.queue, 64, 16)
    adamw = AdamW(layer.parameters())

    def gradients() -> None:
        with ag.Tape() as tape:
            loss = ag.sum(layer(ag.tensor(x)))
        tape.backward(loss)

    return first_and_warm("AdamW", adamw.step, gradients)


def norms(backend: str) -> dict[str, tuple[int, int]]:
    x, _, _ = opened(backend)
    weight, bias, mean, var = (x[i] for i in range(4))
    layer = first_and_warm("layer_norm", lambda: ops.layer_norm(x, weight, bias))
    batch = first_and_warm("batch_norm", lambda: ops.batch_norm(x, weight, bias, mean, var, training=True))
    return {row: found for row, found in (layer | batch).items() if row.startswith("warm")}


SCENES = {scene.__name__: scene for scene in (very_first, linear, jit, optimizer, norms)}


def operands(queue: Any) -> list[Tensor]:
    rng = np.random.default_rng(0)
    return [Tensor.from_host(queue, rng.standard_normal(s).astype(np.float32)) for s in ((32, 64), (16, 64), (16,))]


def opened(backend: str) -> list[Tensor]:
    """x, w and b of a linear map on a device that has run another op."""
    found = operands(queue_of(backend))
    ops.sub(found[0], found[0])
    return found


def first_and_warm(name: str, call: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> dict[str, Any]:
    """What `measure` finds for the first and the third `call`, each after a call of `before`."""
    counts = []
    for _ in range(3):
        before()
        counts.append(measure(call))
    return {f"first {name}": counts[0], f"warm {name}": counts[2]}


def rows(backend: str) -> dict[str, tuple[int, int]]:
    """The rows of all scenes, each in a process of its own."""
    found: dict[str, tuple[int, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        own = {"NETCL_CACHE_DIR": folder, "NETCL_CACHE_MB": "100", "NETCL_TUNING": f"{folder}/none"}
        for scene in (*([] if backend == "cpu" else [",".join(SCENES)]), *SCENES):  # the first process fills the cache
            run = [sys.executable, __file__, backend, scene]
            told = subprocess.run(run, check=True, env={**os.environ, **own}, stdout=subprocess.PIPE).stdout
            found |= json.loads(told)
    return found


def main() -> int:
    """Print the table of a backend, or of all; 1 where a way is longer than its limit."""
    backend, scenes = (*sys.argv[1:], "", "")[:2]
    if scenes:
        print(json.dumps({row: found for scene in scenes.split(",") for row, found in SCENES[scene](backend).items()}))
        return 0
    long, more = False, 0 if native.extension() else PLAIN
    for name in [backend] if backend else LIMITS:
        print(f"{name:<20}{'calls':>8}{'limit':>8}{'returns':>8}{'limit':>8}")
        for row, (calls, returns) in rows(name).items():
            most, turns = LIMITS[name][row]
            print(f"{row:<20}{calls:>8}{most:>8}{returns:>8}{turns:>8}")
            long |= calls > most + more or returns > turns
    return int(long)


if __name__ == "__main__":
    sys.exit(main())
