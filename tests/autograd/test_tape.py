"""The tape: recording, walking back, accumulation, misuse, and ops of one's own."""

import threading

import numpy as np
import pytest

import netcl.autograd as ag
from netcl.core.errors import DTypeError, GradientError
from netcl.core.kernels.primitives import TABLE, Primitive
from netcl.core.tensor import Tensor


def leaf(queue, values, dtype=np.float32):
    return ag.tensor(Tensor.from_host(queue, np.asarray(values, dtype)), requires_grad=True)


def grad(node):
    return node.grad.to_host().tolist()


# -- recording ---------------------------------------------------------------------------------------------------------


def test_backward_after_the_block(queue):
    x = leaf(queue, [1.0, 2.0])
    with ag.Tape() as tape:
        y = (x * x).sum()
    tape.backward(y)
    assert grad(x) == [2, 4]
    assert y.shape == (1,) and y.op_name == "sum"


def test_a_node_used_twice_collects_both_gradients(queue):
    x = leaf(queue, [3.0])
    with ag.Tape() as tape:
        y = x * 2.0
        z = y * y + y
    tape.backward(z)
    assert grad(x) == [2 * (2 * 6 + 1)]


def test_gradients_accumulate_over_passes(queue):
    x = leaf(queue, [1.0])
    for _ in range(3):
        with ag.Tape() as tape:
            y = x * 2.0
        tape.backward(y)
    assert grad(x) == [6]


def test_micro_batches_add_up_to_the_batch(queue):
    rng = np.random.default_rng(0)
    a, w = rng.standard_normal((8, 3)).astype(np.float32), rng.standard_normal((3, 2)).astype(np.float32)
    whole, parts = leaf(queue, w), leaf(queue, w)
    for node, chunks in ((whole, [a]), (parts, [a[:4], a[4:]])):
        for chunk in chunks:
            with ag.Tape() as tape:
                loss = ag.square(ag.tensor(Tensor.from_host(queue, chunk)) @ node).sum()
            tape.backward(loss)
    np.testing.assert_allclose(parts.grad.to_host(), whole.grad.to_host(), rtol=1e-5)


def test_a_second_backward_needs_retain_graph(queue):
    x = leaf(queue, [2.0])
    with ag.Tape() as tape:
        y = x * x
    tape.backward(y, retain_graph=True)
    tape.backward(y)
    assert grad(x) == [8]
    with pytest.raises(GradientError, match="retain_graph"):
        tape.backward(y)


def test_an_upstream_gradient_is_taken(queue):
    x = leaf(queue, [1.0, 2.0])
    with ag.Tape() as tape:
        y = x * x
    tape.backward(y, Tensor.from_host(queue, np.array([1, 10], np.float32)))
    assert grad(x) == [2, 40]
    with ag.Tape() as tape:
        y = x * x
    with pytest.raises(GradientError, match=r"shape \(2,\), got \(3,\)"):
        tape.backward(y, Tensor.ones(queue, (3,)))


def test_what_does_not_depend_on_a_leaf_is_refused(queue):
    x = ag.tensor(Tensor.ones(queue, (2,)))
    with ag.Tape() as tape:
        y = x * 2.0
    assert len(tape) == 0 and not y.requires_grad
    with pytest.raises(GradientError, match="requiring a gradient"):
        tape.backward(y)
    with pytest.raises(GradientError, match="got a leaf"):
        leaf(queue, [1.0]).backward()


@pytest.mark.parametrize("given", [False, True])
def test_a_leaf_does_not_share_the_memory_of_the_upstream_gradient(queue, given):
    """Optimizers and clipping write into gradients."""
    upstream = Tensor.ones(queue, (1,)) if given else None
    for _ in range(2):
        x = leaf(queue, [3.0])
        with ag.Tape() as tape:
            y = x.reshape(1, 1).reshape(1)
        tape.backward(y, upstream)
        assert grad(x) == [1]
        x.grad.fill_(7)
    assert upstream is None or upstream.item() == 1


def test_nothing_is_recorded_outside_a_tape_or_without_grad(queue):
    x = leaf(queue, [1.0])
    assert not (x * 2.0).requires_grad

    @ag.no_grad
    def f(a):
        return a * 2.0

    with ag.Tape() as tape:
        with ag.no_grad():
            assert not ag.is_grad_enabled()
            a = x * 2.0
            with ag.enable_grad():
                b = x * 3.0
        c, d = f(x), x.detach() * 2.0
        assert ag.is_grad_enabled()
    assert [n.requires_grad for n in (a, b, c, d)] == [False, True, False, False] and len(tape) == 1


def test_grad_mode_can_be_set_as_a_statement(queue):
    before = ag.set_grad_enabled(False)
    assert not ag.is_grad_enabled()
    before.__exit__()
    with ag.set_grad_enabled(False):
        assert not ag.is_grad_enabled()
    assert ag.is_grad_enabled()


def test_tapes_nest_and_reset(queue):
    x = leaf(queue, [1.0])
    with ag.Tape() as outer:
        with ag.Tape() as inner:
            y = x * 2.0
        assert ag.get_current_tape() is outer
        z = x * 3.0
    assert len(outer) == len(inner) == 1 and ag.get_current_tape() is None
    inner.backward(y)
    outer.backward(z)
    assert grad(x) == [5]
    outer.reset()
    assert len(outer) == 0


def test_a_loss_that_is_a_leaf(queue):
    x = leaf(queue, [1.0, 2.0])
    ag.Tape().backward(x)
    assert grad(x) == [1, 1]


def test_threads_have_tapes_of_their_own(cpu_queue):
    seen = []

    def work():
        seen.append(ag.get_current_tape())
        x = leaf(cpu_queue, [2.0])
        with ag.Tape() as tape:
            y = x * x
        tape.backward(y)
        seen.append(grad(x))

    with ag.Tape() as tape:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert len(tape) == 0
    assert seen == [None, [4.0]]


def test_intermediate_gradients_can_be_kept(queue):
    x = leaf(queue, [1.0])
    with ag.Tape() as tape:
        y = (x * 2.0).retain_grad()
        z = y * y
    tape.backward(z)
    assert grad(y) == [4] and grad(x) == [8]


# -- shapes and dtypes -------------------------------------------------------------------------------------------------


def test_broadcast_gradients_are_summed(queue):
    a, b = leaf(queue, np.ones((3, 1))), leaf(queue, np.ones(4))
    with ag.Tape() as tape:
        y = (a * 2.0 * b).sum()
    tape.backward(y)
    assert grad(a) == [[8]] * 3 and grad(b) == [6] * 4


def test_views_carry_gradients(queue):
    x = leaf(queue, np.arange(12).reshape(3, 4))
    with ag.Tape() as tape:
        y = x[1:, ::2].T.reshape(-1)
        loss = (y * ag.tensor(Tensor.from_host(queue, np.arange(4, dtype=np.float32)))).sum()
    tape.backward(loss)
    expected = np.zeros((3, 4))
    expected[1:, ::2] = [[0, 2], [1, 3]]
    np.testing.assert_array_equal(x.grad.to_host(), expected)


def test_gradients_have_memory_of_their_own(queue):
    """Optimizers and clipping write into gradients: two leaves must not share one."""
    a, b = leaf(queue, [1.0, 2.0]), leaf(queue, [1.0, 2.0])
    with ag.Tape() as tape:
        y = (a + b).sum()
    tape.backward(y)
    a.grad.fill_(7)
    assert grad(b) == [1, 1]


def test_gradients_come_in_the_dtype_of_their_leaf(queue):
    x, w = leaf(queue, [1.0, 2.0], np.float16), leaf(queue, [3.0, 4.0])
    with ag.Tape() as tape:
        y = (x * w).sum()
    tape.backward(y)
    assert (x.grad.dtype, w.grad.dtype) == (np.float16, np.float32)
    with pytest.raises(DTypeError, match="float16, bfloat16, float32 or float64"):
        ag.tensor(Tensor.ones(queue, (2,), "int32"), requires_grad=True)
    with pytest.raises(DTypeError, match="expected a Tensor, got list"):
        ag.tensor([1.0])


def test_ties_share_the_gradient(queue):
    a, b = leaf(queue, [1.0]), leaf(queue, [1.0])
    x = leaf(queue, [[2.0, 5.0, 5.0], [1.0, 1.0, 1.0]])
    with ag.Tape() as tape:
        y = ag.maximum(a, b).sum() + ag.max(x, axis=1).sum()
    tape.backward(y)
    assert grad(a) == grad(b) == [0.5]
    np.testing.assert_allclose(x.grad.to_host(), [[0, 0.5, 0.5], [1 / 3] * 3], rtol=1e-6)


def test_products_with_zeros_have_exact_gradients(queue):
    x = leaf(queue, [[2.0, 3.0, 4.0], [2.0, 0.0, 4.0], [0.0, 0.0, 4.0]])
    with ag.Tape() as tape:
        y = ag.prod(x, axis=1).sum()
    tape.backward(y)
    np.testing.assert_allclose(x.grad.to_host(), [[12, 8, 6], [0, 8, 0], [0, 0, 0]], rtol=1e-6)


def test_logsumexp_of_nothing_but_minus_infinity(queue):
    x = leaf(queue, [[1.0, 2.0], [-np.inf, -np.inf]])
    with ag.Tape() as tape:
        y = ag.logsumexp(x, axis=1)
    tape.backward(y)
    np.testing.assert_allclose(y.to_host(), [2.3132617, -np.inf], rtol=1e-6)
    np.testing.assert_allclose(x.grad.to_host(), [[0.26894142, 0.73105858], [0, 0]], rtol=1e-5)


# -- anomalies ---------------------------------------------------------------------------------------------------------


def test_an_anomaly_names_the_op_and_its_line(queue):
    x = leaf(queue, [-1.0, 1.0])
    message = r"log: expected finite values.*test_tape\.py:\d+: .*ag\.log\(x\)"
    with pytest.raises(GradientError, match=message), ag.detect_anomaly(), ag.Tape():
        ag.log(x)


def test_an_anomaly_in_backward_names_the_forward_line(queue):
    x = leaf(queue, [0.0])
    with ag.detect_anomaly():
        with ag.Tape() as tape:
            y = ag.sqrt(x)
        with pytest.raises(GradientError, match=r"backward of sqrt: .*ag\.sqrt\(x\)"):
            tape.backward(y)


# -- ops of one's own --------------------------------------------------------------------------------------------------


def test_a_registered_op(queue):
    from netcl.ops import elementwise

    name = "test_cube"
    ag.register_op(
        name,
        lambda x, scale=1.0: elementwise.mul(elementwise.mul(elementwise.square(x), x), scale),
        lambda g, y, x, scale=1.0: elementwise.mul(elementwise.mul(g, elementwise.square(x)), 3.0 * scale),
        saves=(0,),
    )
    try:
        x = leaf(queue, [1.0, 2.0])
        with ag.Tape() as tape:
            y = ag.apply_op(name, x, scale=2.0)
        tape.backward(y)
        assert y.to_host().tolist() == [2, 16] and grad(x) == [6, 24]
        assert ag.gradcheck(lambda a: ag.apply_op(name, a, scale=0.5), x)
    finally:
        del ag.OPS[name]
    with pytest.raises(GradientError, match="elementwise primitive"):
        ag.register_op("add", lambda x: x)


def test_an_op_with_two_results_and_something_kept(queue):
    from netcl.ops import elementwise

    name, seen = "test_both", []

    def backward(g, y, x, *, needs, aux):
        seen.append((needs, aux, type(x).__name__))
        parts = [elementwise.mul(g[0], 2.0)] if g[0] is not None else []
        parts += [elementwise.mul(g[1], 3.0)] if g[1] is not None else []
        return parts[0] if len(parts) == 1 else elementwise.add(*parts)

    ag.register_op(
        name, lambda x: ((elementwise.mul(x, 2.0), elementwise.mul(x, 3.0)), "kept"), backward, saves=(), aux=True
    )
    try:
        x = leaf(queue, [1.0])
        with ag.Tape() as tape:
            a, b = ag.apply_op(name, x)
            loss = a + b
        tape.backward(loss)
        assert grad(x) == [5]
        x.grad = None
        with ag.Tape() as tape:
            a, b = ag.apply_op(name, x)
        tape.backward(b)
        assert grad(x) == [3]
        assert seen[0] == ((True,), "kept", "Spec")
    finally:
        del ag.OPS[name]


def test_a_registered_row(queue):
    if "test_square_plus" not in TABLE:
        ag.register_row(Primitive("test_square_plus", "a * a + k", ("2 * g * a",), ("k",)))
    try:
        x = leaf(queue, [1.0, 2.0])
        with ag.Tape() as tape:
            y = ag.apply_op("test_square_plus", x, k=0.5)
        tape.backward(y)
        assert y.to_host().tolist() == [1.5, 4.5] and grad(x) == [2, 4]
    finally:
        del TABLE["test_square_plus"]
    with pytest.raises(ValueError, match="outside the dialect"):
        ag.register_row(Primitive("test_bad", "a ** 2"))


# -- gradcheck ---------------------------------------------------------------------------------------------------------


def test_gradcheck_finds_a_wrong_gradient(queue):
    x = leaf(queue, [0.3, 0.5])
    assert ag.gradcheck(lambda a: ag.exp(a) * a, x)
    with pytest.raises(GradientError, match=r"gradient of input 0 .* got .*allowed"):
        ag.gradcheck(lambda a: a * ag.exp(a).detach(), x)
    with pytest.raises(GradientError, match="at least one floating input"):
        ag.gradcheck(lambda a: a, Tensor.ones(queue, (2,), "int32"))


# -- nodes -------------------------------------------------------------------------------------------------------------


def test_nodes_feel_like_tensors(queue):
    x = leaf(queue, [[1.0, -2.0], [3.0, 4.0]])
    np.testing.assert_array_equal((1.0 - x).to_host(), [[0, 3], [-2, -3]])
    np.testing.assert_allclose((2.0 / x).to_host(), [[2, -1], [2 / 3, 0.5]], rtol=1e-6)
    np.testing.assert_allclose((2.0**x).to_host(), [[2, 0.25], [8, 16]], rtol=1e-5)
    np.testing.assert_array_equal((x > 0.0).to_host(), [[True, False], [True, True]])
    assert x.mean().item() == 1.5 and float(x[0, 1]) == -2 and len(x) == 2
    assert x.T.shape == (2, 2) and x.flatten().shape == (4,) and x.abs().max().item() == 4
    assert "requires_grad=True" in repr(x) and "op=mul" in repr(x * x)


def test_requires_grad_is_for_leaves(queue):
    x = leaf(queue, [1.0])
    with ag.Tape():
        y = x * 2.0
    with pytest.raises(GradientError, match="expected a leaf"):
        y.requires_grad_()
    assert x.requires_grad_(False).requires_grad is False
