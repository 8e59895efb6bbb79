"""What the compiler gains: fused chains against eager PyTorch, and a softmax written by hand against our own kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import exact
from benchmarks.case import Call, Case, Lazy, Work
from benchmarks.cases_cpu import COLUMNS, FLOAT, ROWS, Chain, normal

ag, compiler, torch = Lazy("netcl.autograd"), Lazy("netcl.autograd.compiler"), Lazy("torch")


@dataclass(frozen=True)
class Activation(Work):
    """The three ops of x * sigmoid(1.5 x) as one compiled function."""

    n: int = 1 << 22

    def inputs(self, rng: np.random.Generator) -> Sequence[np.ndarray]:
        return (normal(rng, self.n),)

    def ours(self, queue: Any, x: Any) -> Call:
        @compiler.jit_compile
        def activation(x: Any) -> Any:
            return ag.mul(ag.sigmoid(ag.mul(x, 1.5)), x)

        x = ag.tensor(x)
        return lambda: activation(x)

    def torch(self, x: Any) -> Call:
        sigmoid = torch.sigmoid
        return lambda: sigmoid(x * 1.5) * x

    def exact(self, x: np.ndarray) -> Any:
        return x / (1 + np.exp(-1.5 * x))

    def bytes(self) -> float:
        return 2.0 * FLOAT * self.n


@dataclass(frozen=True)
class HandSoftmax(Work):
    """Softmax of (rows, columns) written from primitives and compiled; the reference is ag.softmax."""

    rows: int = ROWS
    columns: int = COLUMNS

    def inputs(self, rng: np.random.Generator) -> Sequence[np.ndarray]:
        return (normal(rng, self.rows, self.columns),)

    def ours(self, queue: Any, x: Any) -> Call:
        @compiler.jit_compile
        def softmax(x: Any) -> Any:
            e = ag.exp(ag.sub(x, ag.max(x, axis=-1, keepdims=True)))
            return ag.div(e, ag.sum(e, axis=-1, keepdims=True))

        x = ag.tensor(x)
        return lambda: softmax(x)

    def other(self, queue: Any, x: Any) -> Call:
        return lambda: ag.softmax(x, axis=-1)

    exact = staticmethod(exact.softmax)

    def bytes(self) -> float:
        return 2.0 * FLOAT * self.rows * self.columns


CASES = [
    Case("chain of four on 16M, jit", Chain(True, 1 << 24), Chain(True, 1000), 5.0),
    Case("activation of three ops on 4M, jit", Activation(), Activation(1001), 3.0),
    Case("softmax from primitives, jit", HandSoftmax(), HandSoftmax(3, 70), 1 / 1.3, "netcl"),
]
