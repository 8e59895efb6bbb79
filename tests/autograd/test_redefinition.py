"""A row, a helper function or an operation that is registered anew counts at once, wherever the old one was in use."""

import numpy as np
import pytest

import netcl as nc
from netcl import ag
from netcl.core.kernels import dialect
from netcl.core.kernels.primitives import TABLE, Primitive
from netcl.ops.record import OPS

X = [1.0, 2.0, 3.0]


def uses(queue, name):
    """How a program uses the op: (eager values, compiled values, loss and gradient of a recorded step)."""
    x = nc.tensor(X, queue=queue)
    compiled = ag.jit_compile(lambda x: ag.apply_op(name, x) + 1.0)
    summed = ag.jit_compile(lambda x: ag.sum(ag.apply_op(name, x)))

    @ag.CompiledStep
    def step(x):
        leaf = ag.tensor(x, requires_grad=True)
        with ag.Tape() as tape:
            loss = ag.sum(ag.apply_op(name, leaf))
        tape.backward(loss)
        return loss, leaf.grad

    def run():
        loss, grad = [step(x) for _ in range(3)][-1]
        found = ag.apply_op(name, x), compiled(x), summed(x), loss
        return [y.numpy().tolist() for y in found], grad.to_host().tolist()

    return run


def expected(factor):
    values = [factor * v for v in X]
    return [values, [v + 1 for v in values], [sum(values)], [sum(values)]], [factor] * 3


@pytest.fixture
def name(request):
    """A name that no other test uses, and that is gone afterwards."""
    found = "anew_" + "".join(c if c.isalnum() else "_" for c in request.node.name)
    yield found
    TABLE.pop(found, None)
    OPS.pop(found, None)


def test_a_row(queue, name):
    ag.register_row(Primitive(name, "a * 2", ("g * 2",)))
    run = uses(queue, name)
    assert run() == expected(2)
    ag.register_row(Primitive(name, "a * 5", ("g * 5",)))
    assert run() == expected(5)
    ag.register_row(Primitive(name, "a * 5", ("g * 7",)))
    assert run()[1] == [7] * 3


def test_a_helper_function(queue, name):
    helper = f"HELP_{name.upper()}"
    dialect.define_function(helper, ("a",), "a * 2")
    ag.register_row(Primitive(name, f"{helper}(a)", ("g * 2",)))
    run = uses(queue, name)
    assert run() == expected(2)
    dialect.define_function(helper, ("a",), "a * 5")
    assert run()[0] == expected(5)[0]


def test_an_operation(queue, name):
    ag.register_op(
        name, lambda x: nc.ops.mul(x, 2.0), lambda g, y, x: nc.ops.mul(g, 2.0), shape=lambda x: (x.shape, x.dtype)
    )
    run = uses(queue, name)
    assert run() == expected(2)
    ag.register_op(name, lambda x: nc.ops.mul(x, 5.0), lambda g, y, x: nc.ops.mul(g, 5.0))
    assert run() == expected(5)


def test_the_same_again_drops_nothing(queue, name):
    row = Primitive(name, "a * 2", ("g * 2",))
    ag.register_row(row)
    run = uses(queue, name)
    run()
    plans = len(queue.netcl_state.plans)
    ag.register_row(Primitive(name, "a * 2", ("g * 2",)))
    assert len(queue.netcl_state.plans) == plans and run() == expected(2)


def test_what_was_built_before_goes_on(queue):
    x = nc.tensor(X, queue=queue)
    compiled = ag.jit_compile(lambda x: ag.exp(x) * 2.0)
    before = compiled(x).numpy()
    dialect.defined_anew()
    np.testing.assert_array_equal(compiled(x).numpy(), before)
