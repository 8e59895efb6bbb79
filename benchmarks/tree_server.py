"""The process of a checkout for `benchmarks.trees`: convolutions by replays, and the host's time of warm calls.

A case is a function (queue, finish) -> (measure seconds of a call, a number by which results are compared). Only names
that both checkouts have are used.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SHAPES = {  # of the input and of the filters
    "32 x 64 x 56 x 56 to 64": ((32, 64, 56, 56), (64, 64, 3, 3)),
    "16 x 128 x 28 x 28 to 128": ((16, 128, 28, 28), (128, 128, 3, 3)),
    "2 x 16 x 8 x 8 to 16": ((2, 16, 8, 8), (16, 16, 3, 3)),
}
DIRECTIONS = ("forward", "input", "weights")
SECONDS = 0.02  # a measurement should take
MOST = 200  # calls of a recording
HOST_CALLS, HOST_BATCHES = 50, 6  # the least of the batches counts: what else runs only makes a batch longer

Finish = Callable[[], None]
Measured = tuple[Callable[[], float], float]


# -- convolutions, replayed, so that the host's work does not count ----------------------------------------------------


def convolution(queue: Any, finish: Finish, shape: str, direction: str) -> Measured:
    """A 3x3 convolution or one of its gradients."""
    from netcl.core.tensor import Tensor
    from netcl.ops.convolution.op import conv2d, conv2d_input_grad, conv2d_weight_grad
    from netcl.runtime.capture import KernelCapture

    (n, c, h, w), filters = SHAPES[shape]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s, np.float32) for s in ((n, c, h, w), filters, (n, filters[0], h, w))]
    x, f, g = (Tensor.from_host(queue, a) for a in arrays)
    call = {
        "forward": lambda: conv2d(x, f, padding=1),
        "input": lambda: conv2d_input_grad(g, f, x.shape, padding=1),
        "weights": lambda: conv2d_weight_grad(g, x, f.shape, padding=1),
    }[direction]
    mean = float(np.abs(call().to_host()).mean())

    def record(calls: int) -> Callable[[], float]:
        capture = KernelCapture()
        capture.begin()
        for _ in range(calls):
            call()
        capture.end()

        def sample() -> float:
            start = time.perf_counter()
            capture.replay()
            finish()
            return (time.perf_counter() - start) / calls

        return sample

    once = record(1)
    calls = max(1, min(MOST, round(SECONDS / min(once() for _ in range(5)))))
    return record(calls), mean


# -- warm calls on tensors so small that the host is what takes the time -----------------------------------------------


def host(queue: Any, finish: Finish, name: str) -> Measured:
    """One of HOST."""
    call, result = HOST[name](queue)
    for _ in range(HOST_CALLS):
        call()
    finish()
    size = float(np.abs(result().to_host()).mean())

    def batch() -> float:
        start = time.perf_counter()
        for _ in range(HOST_CALLS):
            call()
        seconds = time.perf_counter() - start
        finish()
        return seconds / HOST_CALLS

    return (lambda: min(batch() for _ in range(HOST_BATCHES))), size


def _network(queue: Any) -> tuple[Any, Any, Any]:
    """Three layers with equal parameters in each checkout, an input and labels."""
    import netcl.autograd as ag
    from netcl.core.tensor import Tensor
    from netcl.nn import Linear, ReLU, Sequential

    rng = np.random.default_rng(0)
    model = Sequential(Linear(queue, 16, 32), ReLU(), Linear(queue, 32, 32), ReLU(), Linear(queue, 32, 10))
    for p in model.parameters():
        p.value = Tensor.from_host(queue, 0.1 * rng.standard_normal(p.value.shape, np.float32))
    x = Tensor.from_host(queue, rng.standard_normal((8, 16), np.float32))
    return model, ag.tensor(x), ag.tensor(Tensor.from_host(queue, np.arange(8, dtype=np.int32)))


def _gradients(queue: Any) -> tuple[Any, Callable[[], Any]]:
    import netcl.autograd as ag

    model, x, labels = _network(queue)

    def step() -> Any:
        with ag.Tape() as tape:
            loss = ag.cross_entropy(model(x), labels)
        tape.backward(loss)
        return loss

    return model, step


def _eager(queue: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Forward and backward; gradients are dropped."""
    model, step = _gradients(queue)

    def call() -> Any:
        loss = step()
        for p in model.parameters():
            p.grad = None
        return loss

    return call, lambda: call().value


def _forward(queue: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    import netcl.autograd as ag

    model, x, _ = _network(queue)

    def call() -> Any:
        with ag.no_grad():
            return model(x)

    return call, lambda: call().value


def _jit(queue: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    import netcl.autograd as ag
    from netcl.autograd.compiler import jit_compile
    from netcl.core.tensor import Tensor

    x = ag.tensor(Tensor.from_host(queue, np.arange(64, dtype=np.float32)))
    f = jit_compile(lambda x: ag.add(ag.relu(ag.mul(x, 0.5)), 1.0))
    return lambda: f(x), lambda: f(x).value


def _recorded(queue: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A recorded training step by plain SGD."""
    import netcl.autograd as ag
    from netcl.optim import SGD

    model, x, labels = _network(queue)
    optimizer = SGD(list(model.parameters()), lr=1e-4)

    def step(x: Any, labels: Any) -> Any:
        with ag.Tape() as tape:
            loss = ag.cross_entropy(model(x), labels)
        tape.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    run = ag.CompiledStep(step)
    return lambda: run(x.value, labels.value), lambda: run(x.value, labels.value).value


def _optimizer(name: str) -> Callable[[Any], tuple[Callable[[], Any], Callable[[], Any]]]:
    def case(queue: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
        from netcl import optim

        model, step = _gradients(queue)
        optimizer = getattr(optim, name)(list(model.parameters()), lr=1e-6)
        step()
        return optimizer.step, lambda: next(iter(model.parameters())).value

    return case


def _clip(queue: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    from netcl.optim import clip_grad_norm_

    model, step = _gradients(queue)
    step()
    params = list(model.parameters())
    return lambda: clip_grad_norm_(params, 1.0), lambda: params[0].grad


HOST = {
    "forward": _forward,
    "eager backward": _eager,
    "jit_compile": _jit,
    "CompiledStep": _recorded,
    "SGD.step": _optimizer("SGD"),
    "AdamW.step": _optimizer("AdamW"),
    "clip_grad_norm_": _clip,
}


def serve(device: str) -> None:
    """Answer the commands of the parent: to prepare a convolution, or to measure the one that is prepared."""
    import netcl
    from netcl.core.backend import opencl
    from netcl.core.device import manager

    handle = manager.default(device)
    queue, sample = handle.queue, lambda: 0.0
    finish = (lambda: None) if handle.profile.kind == "numpy" else (lambda: opencl.finish(queue))
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any] = {"netcl": netcl.__file__, "device": handle.profile.name}
        if "shape" in command:
            sample, answer["mean"] = convolution(queue, finish, command["shape"], command["direction"])
        elif "host" in command:
            sample, answer["mean"] = host(queue, finish, command["host"])
        elif "time" in command:
            answer["seconds"] = sample()
        channel.write(json.dumps(answer) + "\n")
        channel.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
