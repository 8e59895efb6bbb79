"""jit_compile: what runs unfused and says why, and errors."""

import numpy as np
import pytest
from compiled import gradients, leaf, normal

import netcl.autograd as ag
from netcl.autograd.compiler import jit_compile, tracing_context
from netcl.core import debug
from netcl.core.errors import NetclError, ShapeError
from netcl.core.tensor import Tensor


def branch(x):
    return x * 2.0 if (x > 0).value.to_host().all() else x


def truth(x):
    if ag.mean(x) > 0:
        return x * 2.0
    return x


def host(x):
    return x * float(x.sum())


def test_what_cannot_be_traced_runs_as_it_is_and_names_the_line(queue, capsys):
    before = debug.set_level(1)
    try:
        for fn, reason in ((branch, "host"), (truth, "branches on a result"), (host, "host")):
            compiled = jit_compile(fn)
            x = np.float32([1, 2, 3])
            for _ in range(2):
                np.testing.assert_allclose(compiled(leaf(queue, x)).value.to_host(), fn(leaf(queue, x)).value.to_host())
            assert compiled.cache_info().unfused == 2
            assert reason in compiled.reasons[0]
            assert f"{__file__}:{fn.__code__.co_firstlineno + 1}" in compiled.reasons[0]
            assert f"{fn.__name__}: " in capsys.readouterr().err
            assert "ran unfused" in compiled.explain()
            capsys.readouterr()
    finally:
        debug.set_level(before)


def test_an_unknown_operation_runs_unfused(queue):
    ag.register_op("cube", lambda x: x * x * x, lambda g, y, x: g * x * x * 3)
    compiled = jit_compile(lambda x: ag.apply_op("cube", x) + 1.0)
    x = normal(4)
    value, grads = gradients(compiled, queue, [x])
    np.testing.assert_allclose(value, x**3 + 1, rtol=1e-5)
    np.testing.assert_allclose(grads[0], 3 * x * x * np.cos(np.arange(4)), rtol=1e-4, atol=1e-6)
    assert compiled.cache_info().unfused == 1
    assert "'cube'" in compiled.reasons[0]
    with pytest.raises(NetclError, match="cube"):
        jit_compile(lambda x: ag.apply_op("cube", x), fallback=False)(leaf(queue, x))


def test_the_users_own_errors_come_through(queue):
    with pytest.raises(ShapeError, match="broadcast"):
        jit_compile(lambda x, y: x + y)(leaf(queue, normal(3)), leaf(queue, normal(4)))
    with pytest.raises(ZeroDivisionError):
        jit_compile(lambda x: x * (1 / 0))(leaf(queue, normal(3)))
    assert not tracing_context.active
    assert jit_compile(lambda: 3)() == 3


def test_a_result_from_outside_must_be_an_argument(queue):
    x = leaf(queue, normal(3))
    with ag.Tape() as tape:
        y = ag.exp(x)
        compiled = jit_compile(lambda t: t * y)
        z = compiled(x)
    tape.backward(z)
    assert "pass it as an argument" in compiled.reasons[0]
    value = x.value.to_host()
    np.testing.assert_allclose(x.grad.to_host(), np.exp(value) * (1 + value), rtol=1e-5)


def test_empty_tensors(queue):
    y = jit_compile(lambda x: ag.relu(x) + 1.0)(Tensor.from_host(queue, np.zeros((0, 3), np.float32)))
    assert y.shape == (0, 3)
