"""Fused equals eager on random chains: up to twelve ops, broadcasts, views, dtypes, NaN and infinities, both ways.

Operations with a kink only see exact values (inputs, signs, maxima), so that a rounding error cannot flip a branch.
Building kernels dominates the time, so OpenCL devices see a part of them unless NETCL_TEST_CHAINS=200 asks for all.
"""

import os

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import netcl.autograd as ag
from netcl.autograd.compiler import jit_compile
from netcl.core.device import manager
from netcl.core.tensor import Tensor

SMOOTH = {
    "tanh": ag.tanh, "sigmoid": ag.sigmoid, "softplus": ag.softplus, "silu": ag.silu, "gelu": ag.gelu, "erf": ag.erf,
    "square": lambda a: ag.square(ag.tanh(a)), "rsqrt": lambda a: ag.rsqrt(ag.square(ag.tanh(a)) + 0.5),
    "log1p": lambda a: ag.log1p(ag.sigmoid(a)), "expm1": lambda a: ag.expm1(ag.tanh(a)), "scale": lambda a: a * 0.75,
    "shift": lambda a: 1.5 - a, "half": lambda a: a / 2.0, "cos": lambda a: ag.cos(ag.tanh(a)),
}  # fmt: skip
JOIN = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: ag.tanh(a) * b,
    "div": lambda a, b: a / (1.5 + ag.tanh(b)), "atan2": lambda a, b: ag.atan2(a, 2.5 + ag.tanh(b)),
}  # fmt: skip
KINKED = {"relu": ag.relu, "neg": lambda a: -a, "abs": ag.abs, "clip": lambda a: ag.clip(a, -1.0, 0.5),
          "leaky_relu": lambda a: ag.leaky_relu(a, 0.25)}  # fmt: skip
KINKED_JOIN = {"maximum": ag.maximum, "minimum": ag.minimum, "where": lambda a, b: ag.where(a < b, a, b * 2.0)}
VIEWS = (lambda a: a, lambda a: a[..., ::-1], lambda a: a[..., 1::2], lambda a: a[1:])
SHAPES = (
    ((3, 5), (5,)),
    ((4, 1), (1, 9)),
    ((2, 3, 8), (3, 1)),
    ((17,), (17,)),
    ((6, 33), (6, 33)),
    ((2, 1, 5), (3, 5)),
)
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0])
CHAINS = int(os.environ.get("NETCL_TEST_CHAINS", "24"))
TOLERANCE = {"bfloat16": 0.16, "float16": 2e-2, "float32": 2e-5, "float64": 1e-10}


@st.composite
def programs(draw):
    """(ops as (kind, name, operands), exactness) over two inputs, and the inputs' description."""
    exact, ops = [True, True], []
    for _ in range(draw(st.integers(1, 12))):
        kinked = draw(st.booleans())
        choices = [i for i, e in enumerate(exact) if e or not kinked]
        pick = st.sampled_from(choices)
        if draw(st.booleans()):
            table = KINKED if kinked else SMOOTH
            ops.append((table, draw(st.sampled_from(sorted(table))), (draw(pick),)))
        else:
            table = KINKED_JOIN if kinked else JOIN
            ops.append((table, draw(st.sampled_from(sorted(table))), (draw(pick), draw(pick))))
        exact.append(kinked and ops[-1][1] not in ("leaky_relu", "where"))
    return (tuple(ops), draw(st.sampled_from(SHAPES)), draw(st.sampled_from(sorted(TOLERANCE))), draw(st.booleans()),
            draw(st.integers(0, 3)), draw(st.integers(0, 999)))  # fmt: skip


def run(fn, queue, arrays, view):
    leaves = [ag.tensor(Tensor.from_host(queue, a), requires_grad=True) for a in arrays]
    with ag.Tape() as tape:
        a = VIEWS[view](leaves[0]) if min(leaves[0].shape) > 1 else leaves[0]
        y = fn(a, leaves[1] if a.shape == leaves[0].shape else a)
    g = np.cos(np.arange(y.value.size)).reshape(y.shape).astype(y.dtype)
    tape.backward(y, Tensor.from_host(queue, g))
    return y.value.to_host(), [None if n.grad is None else n.grad.to_host() for n in leaves]


def check(queue, program):
    ops, shapes, dtype, special, view, number = program
    rng = np.random.default_rng(number)
    arrays = [rng.uniform(-2, 2, s).astype(dtype) for s in shapes]
    if special:
        for a in arrays:
            a.reshape(-1)[rng.integers(0, a.size, 2)] = rng.choice(SPECIAL, 2)

    def fn(a, b):
        values = [a, b]
        for table, name, operands in ops:
            values.append(table[name](*(values[i] for i in operands)))
        return values[-1]

    compiled = jit_compile(fn)
    wanted, wanted_grads = run(fn, queue, arrays, view)
    found, grads = run(compiled, queue, arrays, view)
    assert not compiled.reasons
    tolerance = TOLERANCE[dtype]
    close(found, wanted, tolerance)
    for a, b in zip(grads, wanted_grads, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            close(a, b, 8 * tolerance)


def close(found, wanted, tolerance):
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    finite = np.abs(wanted[np.isfinite(wanted)].astype(np.float64))
    scale = 1 + (finite.max() if finite.size else 0)
    np.testing.assert_allclose(
        found.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tolerance * scale
    )


@given(programs())
@settings(max_examples=200, derandomize=True)
def test_random_chains_on_numpy(program):
    check(manager.default("cpu").queue, program)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_random_chains(cl_queue, part):
    @seed(part)
    @given(programs())
    @settings(max_examples=CHAINS // 4, database=None)
    def chains(program):
        check(cl_queue, program)

    chains()
