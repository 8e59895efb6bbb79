"""What the tape refuses, in one clear sentence each, and what NumPy sees of a node."""

import operator

import numpy as np
import pytest

import netcl.autograd as ag
from netcl.core.errors import DTypeError, GradientError
from netcl.core.tensor import Tensor
from netcl.ops import elementwise


def on(queue, values, dtype=np.float32):
    return Tensor.from_host(queue, np.asarray(values, dtype))


def leaf(queue, values):
    return ag.Parameter(on(queue, values))


# -- backward ----------------------------------------------------------------------------------------------------------


def test_a_node_of_another_tape_is_refused(queue):
    w = leaf(queue, [1, 2])
    with ag.Tape() as first:
        loss = ag.sum(ag.square(w))
        with ag.Tape() as second:
            pass
    with pytest.raises(GradientError, match="expected a node recorded on this tape, got one of another"):
        second.backward(loss)
    assert w.grad is None
    first.backward(loss)
    assert w.grad.to_host().tolist() == [2, 4]


@pytest.mark.parametrize("forget", ["reset", "backward"])
def test_a_node_whose_graph_is_gone_is_refused(queue, forget):
    w = leaf(queue, [1, 2])
    with ag.Tape() as tape:
        loss = ag.sum(ag.square(w))
        tape.reset() if forget == "reset" else tape.backward(loss)
        other = ag.sum(w)
    with pytest.raises(GradientError, match=r"recorded before reset\(\) or freed by an earlier backward"):
        tape.backward(loss)
    w.grad = None
    tape.backward(other)
    assert w.grad.to_host().tolist() == [1, 1]


def test_a_loss_that_is_no_node_is_refused(queue):
    for loss in (3.0, on(queue, [1]), None, np.float32(1)):
        with pytest.raises(DTypeError, match=f"backward: expected a node, got {type(loss).__name__}"):
            ag.Tape().backward(loss)


def test_an_upstream_gradient_is_a_tensor_of_the_shape_of_the_loss_in_any_dtype(queue):
    w = leaf(queue, [1, 2])
    with ag.Tape() as tape:
        loss = ag.square(w)
    for grad in (1.0, np.ones(2, np.float32), ag.tensor(on(queue, [1, 1]))):
        with pytest.raises(DTypeError, match=f"a Tensor as the upstream gradient, got {type(grad).__name__}"):
            tape.backward(loss, grad)
    tape.backward(loss, on(queue, [1, 10], np.int32))
    assert w.grad.dtype == np.float32 and w.grad.to_host().tolist() == [2, 40]


def test_a_parameter_is_made_of_a_tensor(queue):
    for value in (np.zeros(3), [1.0], 2.0, None):
        with pytest.raises(DTypeError, match=f"Parameter: expected a Tensor, got {type(value).__name__}"):
            ag.Parameter(value)


# -- ops ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sigmoyd", "nosuch", None])
def test_an_unknown_op_is_named_with_the_closest(queue, name):
    hint = r" \(did you mean 'sigmoid'\?\)" if name == "sigmoyd" else ""
    for function in (ag.apply_op, ag.jit_compile(lambda name, x: ag.apply_op(name, x))):
        with pytest.raises(GradientError, match=f"the name of an operation, got {name!r}{hint}; register_op"):
            function(name, leaf(queue, [1]))


BACKWARDS = {
    "too few": (lambda g, y, a, b: (g,), "a gradient or None for each of 2 inputs, got 1"),
    "one for two": (lambda g, y, a, b: g, "a gradient or None for each of 2 inputs, got 1"),
    "too many": (lambda g, y, a, b: (g, g, g), "for each of 2 inputs, got 3"),
    "other shape": (lambda g, y, a, b: (g, g.reshape(3, 2)), r"of the input's shape \(2, 3\).*got \(3, 2\)"),
    "too short": (lambda g, y, a, b: (g, g[0]), r"of the input's shape \(2, 3\).*got \(3,\)"),
    "number": (lambda g, y, a, b: (g, 0.0), "tensors as gradients, got float"),
    "array": (lambda g, y, a, b: (g, g.to_host()), "tensors as gradients, got ndarray"),
    "node": (lambda g, y, a, b: (g, ag.tensor(g)), "tensors as gradients, got Node"),
}


@pytest.mark.parametrize(("backward", "message"), BACKWARDS.values(), ids=BACKWARDS)
def test_wrong_gradients_of_an_op_of_ones_own_are_refused(queue, backward, message):
    ag.register_op("test_misuse", elementwise.add, backward)
    try:
        a, b = leaf(queue, np.ones((2, 3))), leaf(queue, np.ones((2, 3)))
        with ag.Tape() as tape:
            loss = ag.sum(ag.apply_op("test_misuse", a, b))
        with pytest.raises(GradientError, match=f"backward of test_misuse: expected .*{message}"):
            tape.backward(loss)
    finally:
        ag.OPS.pop("test_misuse")


def test_gradients_of_an_op_of_ones_own_may_be_none_broadcast_or_of_another_dtype(queue):
    ag.register_op("test_misuse", elementwise.add, lambda g, y, a, b: (None, g.astype(np.float64)))
    try:
        a, b = leaf(queue, np.ones((2, 3))), leaf(queue, [[2, 3, 4]])
        with ag.Tape() as tape:
            loss = ag.sum(ag.apply_op("test_misuse", a, b))
        tape.backward(loss)
        assert a.grad is None and b.grad.dtype == np.float32
        assert b.grad.to_host().tolist() == [[2, 2, 2]]
    finally:
        ag.OPS.pop("test_misuse")


# -- NumPy -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [ag.tensor, ag.Parameter, lambda t: t], ids=["node", "parameter", "tensor"])
def test_numpy_sees_the_numbers_of_a_node(queue, wrap):
    x = wrap(on(queue, [1, 2]))
    for array in (np.asarray(x), np.array(x, copy=True), np.stack([x, x])[0]):
        assert array.dtype == np.float32 and array.tolist() == [1, 2]
    assert np.asarray(x, np.float64).dtype == np.float64
    np.testing.assert_allclose(np.exp(x), np.exp(np.float32([1, 2])))
    np.testing.assert_allclose(np.add(np.float32([1, 1]), x), [2, 3])
    assert Tensor.from_host(queue, x).to_host().tolist() == [1, 2]


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="NumPy 1 takes copy=False for 'if needed'")
def test_numpy_is_told_that_values_of_a_device_are_copied(cl_queue):
    for x in (leaf(cl_queue, [1]), on(cl_queue, [1])):
        with pytest.raises(ValueError, match="values reach the host, and another dtype, by a copy"):
            np.array(x, copy=False)


def test_an_array_among_operands_is_refused_on_either_side(queue):
    array = np.ones((2, 2), np.float32)
    for x in (leaf(queue, array), on(queue, array)):
        for apply in (operator.mul, operator.matmul, operator.lt):
            for operands in ((array, x), (x, array)):
                with pytest.raises(DTypeError, match="from_host"):
                    apply(*operands)


def test_looking_at_a_node_through_numpy_stops_a_trace_but_not_the_function(queue):
    compiled = ag.jit_compile(lambda x: ag.mul(x, float(np.asarray(x).sum())))
    assert compiled(leaf(queue, [1, 2])).to_host().tolist() == [3, 6]
    assert "host" in compiled.reasons[0]
