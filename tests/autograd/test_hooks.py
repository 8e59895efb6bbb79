"""Hooks on nodes: when they are called, with what, and how what they return goes on."""

import gc

import numpy as np
import pytest

import netcl.autograd as ag
from netcl.autograd import hooks
from netcl.core.errors import DTypeError, GradientError
from netcl.core.tensor import Tensor


def leaf(queue, values, dtype=np.float64):
    return ag.tensor(Tensor.from_host(queue, np.asarray(values, dtype)), requires_grad=True)


def host(tensor):
    return tensor.to_host().tolist()


def test_a_hook_sees_the_sum_over_all_uses_once_each_pass(queue):
    seen = []
    x = leaf(queue, [3.0])
    x.register_hook(lambda g: seen.append(host(g)))
    for _ in range(2):
        with ag.Tape() as tape:
            y = x * x + x
        y.register_hook(lambda g: seen.append(("y", host(g))))
        tape.backward(y)
    assert seen == [("y", [1]), [7], ("y", [1]), [7]]
    assert host(x.grad) == [14]


def test_what_a_hook_returns_goes_on(queue):
    x = leaf(queue, [3.0])
    x.register_hook(lambda g: g * 10.0)
    x.register_hook(lambda g: ag.tensor(g) + 1.0)  # a node will do, too
    with ag.Tape() as tape:
        h = x * 2.0
        y = h * h
    h.retain_grad()
    h.register_hook(lambda g: g * 0.5)
    tape.backward(y)
    assert host(h.grad) == [6]
    assert host(x.grad) == [121]


def test_hooks_of_one_of_several_results(queue):
    x = leaf(queue, [[1.0, 2.0, 3.0, 4.0]])
    with ag.Tape() as tape:
        a, b = ag.split(x, 2, axis=1)
        y = (a * b).sum()
    b.register_hook(lambda g: g * 100.0)
    tape.backward(y)
    assert host(x.grad) == [[3, 4, 100, 200]]


def test_a_hook_is_removed_once_by_its_handle_or_at_the_end_of_a_block(queue):
    x, seen = leaf(queue, [1.0]), []

    def hook(g):
        seen.append(1)
        first.remove()

    def once():
        with ag.Tape() as tape:
            y = x * 2.0
        tape.backward(y)

    first, second = x.register_hook(hook), x.register_hook(lambda g: seen.append(2))
    once()
    first.remove()
    once()
    second.remove()
    with x.register_hook(lambda g: seen.append(3)):
        once()
    once()
    assert seen == [1, 2, 2, 3]


def test_hooks_take_part_in_grad_on_the_way_alone(queue):
    x, w, seen = leaf(queue, [2.0]), leaf(queue, [5.0]), []
    x.register_hook(lambda g: g * 3.0)
    w.register_hook(lambda g: seen.append("w"))
    with ag.Tape():
        v = w * 1.0
        y = x * v
    v.register_hook(lambda g: seen.append("v"))
    (dx,) = ag.grad(y, x)
    assert host(dx) == [15] and not seen


def test_what_a_hook_returned_stays_the_users(queue):
    x, constant = leaf(queue, [1.0]), Tensor.ones(queue, (1,), "float64")
    x.register_hook(lambda g: constant)
    with ag.Tape() as tape:
        y = x * 2.0
    tape.backward(y)
    x.grad.fill_(9)
    assert host(constant) == [1]


def test_a_recorded_step_runs_hooks_and_records_again_when_they_change(queue):
    w = ag.Parameter(Tensor.from_host(queue, np.array([1.0, 2.0])))

    def step(x):
        with ag.Tape() as tape:
            y = (w * ag.tensor(x)).sum()
        w.grad = None
        tape.backward(y)
        return w.grad

    compiled, x = ag.CompiledStep(step), Tensor.from_host(queue, np.array([3.0, 4.0]))
    for _ in range(3):
        assert host(compiled(x)) == [3, 4]
    handle = w.register_hook(lambda g: g * 2.0)
    for _ in range(3):
        assert host(compiled(x)) == [6, 8]
    handle.remove()
    for _ in range(3):
        assert host(compiled(x)) == [3, 4]


def test_hooks_do_not_outlive_their_node(queue):
    gc.collect()
    before = len(hooks.LEAVES)
    x = leaf(queue, [1.0])
    x.register_hook(lambda g: None)
    assert len(hooks.LEAVES) == before + 1
    del x
    gc.collect()
    assert len(hooks.LEAVES) == before


def test_misuse_is_explained(queue):
    x = leaf(queue, [1.0, 2.0])
    with pytest.raises(GradientError, match="register_hook: expected a node that requires a gradient"):
        ag.tensor(x.value).register_hook(print)
    with pytest.raises(DTypeError, match="register_hook: expected a function of the gradient, got int"):
        x.register_hook(3)
    for wrong, text in (
        (lambda g: 3.0, "return a tensor or None, got float"),
        (lambda g: g.sum(), r"shape \(2,\) and float64 on the same device, got \(1,\)"),
        (lambda g: g.astype("float32"), r"got \(2,\) and float32"),
    ):
        with x.register_hook(wrong), ag.Tape() as tape:
            y = x * 2.0
            with pytest.raises(GradientError, match=text):
                tape.backward(y)
    assert x.grad is None
