"""Fused equals eager on random graphs: maps, reductions, softmax, products, views, several outputs, and gradients."""

import random

import numpy as np
import pytest

import netcl.autograd as ag
from netcl.autograd.compiler import jit_compile
from netcl.core.tensor import Tensor

UNARY = (ag.tanh, ag.sigmoid, lambda a: a * 0.5, lambda a: 1.0 - a, ag.softplus, lambda a: ag.square(ag.tanh(a)),
         lambda a: -a)  # fmt: skip
BINARY = (lambda a, b: a + b, lambda a, b: a - b, lambda a, b: ag.tanh(a) * b, lambda a, b: a / (1.5 + ag.tanh(b)))
REDUCTIONS = (ag.sum, ag.mean, ag.max, ag.var, ag.logsumexp)
SHAPES = (((3, 5), (5,)), ((4, 4), (4,), (4, 1)), ((2, 3, 4), (3, 1), (4,)), ((6,), (6,)), ((9, 16), (9, 1), (16,)),
          ((8, 4), (4, 8)), ((2, 1, 5), (3, 5), (1,)))  # fmt: skip


def joins(s, t):
    try:
        return np.prod(np.broadcast_shapes(s, t)) < 2000
    except ValueError:
        return False


class Graph:
    """A random function: each operation picks values made before."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.inputs = self.rng.choice(SHAPES)
        self.shapes, self.ops = list(self.inputs), []
        while len(self.ops) < self.rng.randint(2, 12):
            self.grow()
        made = range(len(self.inputs), len(self.shapes))
        self.outputs = [made[-1], *(self.rng.choice(made) for _ in range(self.rng.randint(0, 2)))]

    def add(self, fn, operands, shape):
        self.ops.append((fn, operands))
        self.shapes.append(shape)

    def grow(self):
        rng = self.rng
        i, kind = rng.randrange(len(self.shapes)), rng.random()
        s = self.shapes[i]
        if kind < 0.3:
            self.add(rng.choice(UNARY), (i,), s)
        elif kind < 0.6:
            j = rng.choice([j for j, t in enumerate(self.shapes) if joins(s, t)])
            self.add(rng.choice(BINARY), (i, j), np.broadcast_shapes(s, self.shapes[j]))
        elif kind < 0.8:
            axis = rng.choice([-1, None, 0, *([(-2, -1)] if len(s) > 1 else [])])
            keep, fn = rng.random() < 0.6, rng.choice(REDUCTIONS)
            shape = np.zeros(s).sum(axis=axis, keepdims=keep).shape or (1,)
            self.add(lambda a: fn(a, axis=axis, keepdims=keep), (i,), shape)
        elif kind < 0.86:
            self.add(ag.permute, (i,), s[::-1])
        elif kind < 0.9:
            fits = [j for j, t in enumerate(self.shapes) if len(s) == len(t) == 2 and s[1] == t[0]]
            if fits:
                j = rng.choice(fits)
                self.add(ag.matmul, (i, j), (s[0], self.shapes[j][1]))
        elif kind < 0.95:
            self.add(lambda a: ag.unsqueeze(a, -1), (i,), (*s, 1))
        else:
            self.add(lambda a: ag.softmax(a, -1), (i,), s)

    def __call__(self, *leaves):
        values = list(leaves)
        for fn, operands in self.ops:
            values.append(fn(*(values[i] for i in operands)))
        return [values[i] for i in self.outputs]


def run(fn, queue, arrays):
    leaves = [ag.tensor(Tensor.from_host(queue, a), requires_grad=True) for a in arrays]
    with ag.Tape() as tape:
        ys = fn(*leaves)
        total = None
        for k, y in enumerate(ys):
            weights = Tensor.from_host(queue, np.cos(np.arange(y.value.size) + k).reshape(y.shape))
            part = (y * weights).sum()
            total = part if total is None else total + part
    tape.backward(total)
    return [y.value.to_host() for y in ys], [None if n.grad is None else n.grad.to_host() for n in leaves]


def check(queue, seed):
    graph = Graph(seed)
    arrays = [np.random.default_rng(seed + i).uniform(-1, 1, s) for i, s in enumerate(graph.inputs)]
    compiled = jit_compile(lambda *leaves: graph(*leaves))
    values, grads = run(graph, queue, arrays)
    found, found_grads = run(compiled, queue, arrays)
    assert compiled.cache_info().unfused == 0, compiled.reasons
    for a, b in zip(found + found_grads, values + grads, strict=True):
        assert (a is None) == (b is None), seed
        if a is not None:
            assert (a.shape, a.dtype) == (b.shape, b.dtype), seed
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8, err_msg=str(seed))


@pytest.mark.parametrize("block", range(4))
def test_random_graphs_on_numpy(cpu_queue, block):
    for seed in range(100 * block, 100 * block + 100):
        check(cpu_queue, seed)


@pytest.mark.slow
def test_random_graphs(cl_queue):
    for seed in range(1000, 1006):
        check(cl_queue, seed)
