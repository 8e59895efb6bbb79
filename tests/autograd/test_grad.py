"""`ag.grad`: values, what stays as it was, and what is refused."""

import numpy as np
import pytest

import netcl.autograd as ag
from netcl.core.errors import DTypeError, GradientError
from netcl.core.tensor import Tensor


def leaf(queue, values, dtype=np.float64):
    return ag.tensor(Tensor.from_host(queue, np.asarray(values, dtype)), requires_grad=True)


def values(gradients):
    return [None if g is None else g.to_host().tolist() for g in gradients]


def test_gradients_of_leaves_and_results_come_back_and_grad_stays(queue):
    x, w = leaf(queue, [1.0, 2.0]), leaf(queue, [3.0, 5.0])
    w.grad = kept = Tensor.ones(queue, (2,), "float64")
    with ag.Tape():
        h = x * w
        y = (h * h).sum()
    assert values(ag.grad(y, [x, h, w, x])) == [[18, 100], [6, 20], [6, 40], [18, 100]]
    assert x.grad is None and w.grad is kept and h.grad is None


def test_one_input_gives_a_tuple_and_several_outputs_add_up(queue):
    x = leaf(queue, [1.0, 2.0])
    with ag.Tape():
        a, b = x * 3.0, x * x
    upstream = Tensor.from_host(queue, np.array([10.0, 100.0]))
    assert values(ag.grad([a, b], x, grad_outputs=[upstream, None])) == [[32, 304]]


def test_outputs_may_be_inputs(queue):
    x = leaf(queue, [1.0, 2.0])
    with ag.Tape():
        y = x * 3.0
    assert values(ag.grad([y, x], (y, x), retain_graph=True)) == [[1, 1], [4, 4]]
    assert values(ag.grad(x, x)) == [[1, 1]]


def test_the_graph_is_freed_unless_it_is_retained(queue):
    x = leaf(queue, [2.0])
    with ag.Tape() as tape:
        y = x * x
    assert values(ag.grad(y, x, retain_graph=True)) == values(ag.grad(y, x)) == [[4]]
    with pytest.raises(GradientError, match="grad: expected a recorded graph, got one already used"):
        ag.grad(y, x)
    with pytest.raises(GradientError, match="backward: expected a recorded graph"):
        tape.backward(y)


def test_only_what_lies_between_is_walked(queue):
    """The pullback of an op below the input is not called."""
    called = []
    x = leaf(queue, [2.0])
    ag.register_op("test_noted", lambda x: x, lambda g, y, x: called.append(1) or g)
    try:
        with ag.Tape():
            h = ag.apply_op("test_noted", x)
            y = h * h
    finally:
        del ag.OPS["test_noted"]
    assert values(ag.grad(y, h, retain_graph=True)) == [[4]] and not called
    assert values(ag.grad(y, x)) == [[4]] and called


def test_gradients_have_memory_of_their_own(queue):
    a, b = leaf(queue, [1.0]), leaf(queue, [2.0])
    with ag.Tape():
        y = a + b
    upstream = Tensor.ones(queue, (1,), "float64")
    da, db = ag.grad(y, [a, b], grad_outputs=upstream)
    da.fill_(7)
    assert values([da, db, upstream]) == [[7], [1], [1]]


def test_it_works_in_a_recorded_step(queue):
    x = leaf(queue, [1.0, 2.0])

    def step(scale):
        with ag.Tape():
            y = (x * x * ag.tensor(scale)).sum()
        return ag.grad(y, x)[0]

    compiled = ag.CompiledStep(step)
    for i in range(4):
        scale = Tensor.from_host(queue, np.array([1.0, i]))
        assert compiled(scale).to_host().tolist() == [2, 4 * i]


def test_it_works_in_a_compiled_function(queue):
    f = ag.jit_compile(lambda x: ag.tanh(x) * x)
    x = leaf(queue, [0.5, -1.0])
    with ag.Tape():
        y = f(x)
    host = np.array([0.5, -1.0])
    (found,) = ag.grad(y, x)
    np.testing.assert_allclose(found.to_host(), np.tanh(host) + host * (1 - np.tanh(host) ** 2), rtol=1e-12)


def test_misuse_is_explained(queue):
    x, other, plain = leaf(queue, [1.0]), leaf(queue, [1.0]), ag.tensor(Tensor.ones(queue, (1,), "float64"))
    with ag.Tape():
        y = x * 2.0
    with ag.Tape():
        z = x * 2.0
    with pytest.raises(GradientError, match="without influence at position 1; pass allow_unused=True"):
        ag.grad(y, [x, other], retain_graph=True)
    assert values(ag.grad(y, [x, other], retain_graph=True, allow_unused=True)) == [[2], None]
    with pytest.raises(GradientError, match="inputs that require a gradient, got one that does not at position 0"):
        ag.grad(y, plain)
    with pytest.raises(GradientError, match="grad: expected a node that depends on something requiring a gradient"):
        ag.grad(plain, x)
    with pytest.raises(GradientError, match="outputs recorded on one tape"):
        ag.grad([y, z], x)
    with pytest.raises(GradientError, match="create_graph=False, got True"):
        ag.grad(y, x, create_graph=True)
    with pytest.raises(GradientError, match="for each of 1 outputs, got 2"):
        ag.grad(y, x, grad_outputs=[None, None])
    with pytest.raises(GradientError, match=r"grad: expected an upstream gradient of shape \(1,\), got \(2,\)"):
        ag.grad(y, x, grad_outputs=Tensor.ones(queue, (2,)))
    with pytest.raises(DTypeError, match="grad: expected inputs as a node or several, got Tensor"):
        ag.grad(y, x.value)
    with pytest.raises(DTypeError, match="grad: expected outputs as a node or several, got float"):
        ag.grad(3.0, x)
    assert values(ag.grad(y, x)) == [[2]]
