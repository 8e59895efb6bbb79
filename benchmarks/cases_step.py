"""Whole training steps, eager and recorded, what a launch costs the host, and how long a fresh process takes."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import exact
from benchmarks.case import Call, Case, Lazy, Work, to_arrays, to_device

ag, nn, optim = Lazy("netcl.autograd"), Lazy("netcl.nn"), Lazy("netcl.optim")
elementwise, train = Lazy("netcl.ops.elementwise"), Lazy("netcl.cli.train")
torch, functional = Lazy("torch"), Lazy("torch.nn.functional")
torch_nn, torch_optim = Lazy("torch.nn"), Lazy("torch.optim")

RATE, DECAY = 1e-3, 1e-2
CHECKED_STEPS = 3  # after which parameters are compared with float64


def our_step(model: Any, queue: Any, weights: Sequence[Any], recorded: bool) -> Callable[[Any, Any], Any]:
    """A training step (x, labels) -> loss of `model`, whose parameters start as `weights`."""
    params = list(model.parameters())
    for p, w in zip(params, weights):
        p.value = w.copy()  # a step writes them in place, and both sides start alike
    optimizer = optim.AdamW(params, lr=RATE, weight_decay=DECAY)

    def step(x: Any, labels: Any) -> Any:
        with ag.Tape() as tape:
            loss = ag.cross_entropy(model(ag.tensor(x)), ag.tensor(labels))
        tape.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return ag.CompiledStep(step) if recorded else step


def torch_step(model: Any, weights: Sequence[Any]) -> Callable[[Any, Any], Any]:
    """The same in PyTorch, in its own idiom."""
    with torch.no_grad():
        for p, w in zip(model.parameters(), weights):
            p.copy_(w)
    optimizer = torch_optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)

    def step(x: Any, labels: Any) -> Any:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


class Training(Work):
    """Inputs are x, labels, then the parameters in the models' order. Subclasses give both models."""

    recorded: bool

    def model(self, queue: Any) -> Any:
        """The model in netcl."""
        raise NotImplementedError

    def torch_model(self) -> Any:
        """The same layers in PyTorch."""
        raise NotImplementedError

    def ours(self, queue: Any, x: Any, labels: Any, *weights: Any) -> Call:
        step = our_step(self.model(queue), queue, weights, self.recorded)
        return lambda: step(x, labels)

    def torch(self, x: Any, labels: Any, *weights: Any) -> Call:
        step, labels = torch_step(self.torch_model(), weights), labels.long()
        return lambda: step(x, labels)

    def trained(self, queue: Any, x: Any, labels: Any, *weights: Any) -> list[Any]:
        """The parameters after a few steps without dropout, and the loss of the last."""
        model = self.model(queue).eval()
        step = our_step(model, queue, weights, self.recorded)
        for _ in range(CHECKED_STEPS):
            loss = step(x, labels)
        return [loss, *(p.value for p in model.parameters())]

    def outputs(self, queue: Any, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
        arrays = self.inputs(np.random.default_rng(seed))
        got = to_arrays(self.trained(queue, *to_device(queue, arrays)))
        return got, to_arrays(self.exact(*arrays))

    def error(self, got: Sequence[np.ndarray], exact: Sequence[np.ndarray]) -> float:
        """By norms: where rounding turns a gradient near zero, Adam's step of full size turns, in float32 anywhere."""
        return max(float(np.linalg.norm(a.reshape(b.shape) - b) / np.linalg.norm(b)) for a, b in zip(got, exact))


def uniform(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """A weight (out, in, ...) or its bias, as layers start: within 1 / sqrt(inputs)."""
    bound = 1 / np.sqrt(np.prod(shape[1:]) if len(shape) > 1 else 64)
    return rng.uniform(-bound, bound, shape).astype(np.float32)


@dataclass(frozen=True)
class MLP(Training):
    """One AdamW step of a perceptron with ReLU between its layers."""

    batch: int
    recorded: bool
    widths: tuple[int, ...] = (784, 256, 128, 10)

    def inputs(self, rng: np.random.Generator) -> Sequence[np.ndarray]:
        x = rng.standard_normal((self.batch, self.widths[0]), np.float32)
        labels = rng.integers(0, self.widths[-1], self.batch, np.int32)
        layers = [(uniform(rng, n, k), uniform(rng, n)) for k, n in itertools.pairwise(self.widths)]
        return [x, labels, *itertools.chain(*layers)]

    def model(self, queue: Any) -> Any:
        layers: list[Any] = []
        for k, n in itertools.pairwise(self.widths):
            layers += [nn.Linear(queue, k, n), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def torch_model(self) -> Any:
        layers: list[Any] = []
        for k, n in itertools.pairwise(self.widths):
            layers += [torch_nn.Linear(k, n), torch_nn.ReLU()]
        return torch_nn.Sequential(*layers[:-1])

    def exact(self, x: np.ndarray, labels: np.ndarray, *weights: np.ndarray) -> Any:
        optimizer = exact.AdamW([w.astype(np.float64) for w in weights], RATE, DECAY)
        for _ in range(CHECKED_STEPS):
            loss, grads = exact.perceptron(x.astype(np.float64), labels, optimizer.params)
            optimizer.step(grads)
        return [loss, *optimizer.params]

    def flops(self) -> float:
        products = [2.0 * self.batch * k * n for k, n in itertools.pairwise(self.widths)]
        return 3 * sum(products) - products[0]  # the input needs no gradient


@dataclass(frozen=True)
class HostMLP(MLP):
    """The host time of the recorded step; the reference is the eager step's."""

    waits = False

    def other(self, queue: Any, x: Any, labels: Any, *weights: Any) -> Call:
        step = our_step(self.model(queue), queue, weights, recorded=False)
        return lambda: step(x, labels)

    def flops(self) -> float:
        return 0.0


DIGITS_SHAPES: list[tuple[int, ...]] = [
    (16, 1, 3, 3), (16,), (32, 16, 3, 3), (32,), (64, 32, 3, 3), (64,), (64, 256), (64,), (10, 64), (10,),
]  # fmt: skip


@dataclass(frozen=True)
class DigitsCNN(Training):
    """One AdamW step of the network that `netcl train digits` trains."""

    recorded: bool
    batch: int = 64

    def inputs(self, rng: np.random.Generator) -> Sequence[np.ndarray]:
        x = rng.uniform(0, 1, (self.batch, 1, 8, 8)).astype(np.float32)
        labels = rng.integers(0, 10, self.batch, np.int32)
        return [x, labels, *(uniform(rng, *shape) for shape in DIGITS_SHAPES)]

    def model(self, queue: Any) -> Any:
        return train.network(queue)

    def torch_model(self) -> Any:
        layer = torch_nn
        return layer.Sequential(
            layer.Conv2d(1, 16, 3, padding=1), layer.ReLU(),
            layer.Conv2d(16, 32, 3, padding=1), layer.ReLU(), layer.MaxPool2d(2),
            layer.Conv2d(32, 64, 3, padding=1), layer.ReLU(), layer.MaxPool2d(2),
            layer.Flatten(), layer.Dropout(0.3), layer.Linear(256, 64), layer.ReLU(), layer.Linear(64, 10),
        )  # fmt: skip

    def exact(self, x: np.ndarray, labels: np.ndarray, *weights: np.ndarray) -> Any:
        optimizer = exact.AdamW([w.astype(np.float64) for w in weights], RATE, DECAY)
        for _ in range(CHECKED_STEPS):
            loss, grads = exact.digits_network(x.astype(np.float64), labels, optimizer.params)
            optimizer.step(grads)
        return [loss, *optimizer.params]


@dataclass(frozen=True)
class Launch(Work):
    """The host's part of an elementwise op of three tensors whose kernel exists."""

    waits = False
    n: int = 64

    def inputs(self, rng: np.random.Generator) -> Sequence[np.ndarray]:
        return [rng.standard_normal(self.n, np.float32) for _ in range(2)]

    def ours(self, queue: Any, a: Any, b: Any) -> Call:
        add = elementwise.add
        return lambda: add(a, b)

    def exact(self, a: np.ndarray, b: np.ndarray) -> Any:
        return a + b


IMPORT = "import time; t = time.perf_counter(); import netcl; print(time.perf_counter() - t)"
FIRST_STEP = """
import time
import numpy as np
import netcl.autograd as ag
from netcl.core.device import manager
from netcl.core.tensor import Tensor
from netcl.nn import Linear, ReLU, Sequential
from netcl.optim import AdamW
t = time.perf_counter()
q = manager.default("auto").queue
model = Sequential(Linear(q, 784, 256), ReLU(), Linear(q, 256, 128), ReLU(), Linear(q, 128, 10))
opt = AdamW(model.parameters(), lr=1e-3)
x = Tensor.from_host(q, np.ones((32, 784), np.float32))
labels = Tensor.from_host(q, np.zeros(32, np.int32))
with ag.Tape() as tape:
    loss = ag.cross_entropy(model(ag.tensor(x)), ag.tensor(labels))
tape.backward(loss)
opt.step()
loss.value.to_host()
print(time.perf_counter() - t)
"""


@dataclass(frozen=True)
class Fresh(Work):
    """Seconds that a program, run by a new interpreter, prints."""

    returns_seconds = True
    program: str

    def ours(self, queue: Any) -> Call:
        def run() -> float:
            done = subprocess.run([sys.executable, "-c", self.program], capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(done.stderr.strip().splitlines()[-1])
            return float(done.stdout.split()[-1])

        return run

    def outputs(self, queue: Any, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
        return to_arrays(float(self.ours(queue)() > 0)), to_arrays(1.0)


def _mlp(batch: int, recorded: bool, target: float | None) -> Case:
    name = f"MLP 784-256-128-10 AdamW step, batch {batch}, {'recorded' if recorded else 'eager'}"
    return Case(name, MLP(batch, recorded), MLP(7, recorded, (9, 17, 5)), target)


CASES = [
    _mlp(32, True, 1.3),
    _mlp(512, True, 1.1),
    _mlp(32, False, None),
    _mlp(512, False, None),
    Case("digits CNN step, batch 64, eager", DigitsCNN(False), DigitsCNN(False, 3), 1.0),
    Case("digits CNN step, batch 64, recorded", DigitsCNN(True), DigitsCNN(True, 3), 1.3),
    Case("host time, recorded MLP against eager", HostMLP(32, True), HostMLP(7, True, (9, 17, 5)), 2.0, "netcl"),
    Case("host time, launch of add (12 us)", Launch(), Launch(65), 1.0, "limit", 12e-6),
    Case("import netcl (0.5 s)", Fresh(IMPORT), Fresh(IMPORT), 1.0, "limit", 0.5),
    Case("first training step, warm cache (1.5 s)", Fresh(FIRST_STEP), Fresh(FIRST_STEP), 1.0, "limit", 1.5),
]
