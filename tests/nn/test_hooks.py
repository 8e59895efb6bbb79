"""Hooks of modules: with keyword arguments, in order, and on gradients."""

import numpy as np
import pytest

import netcl.autograd as ag
from netcl.autograd.compiler import jit_compile
from netcl.core.errors import DTypeError, GradientError
from netcl.core.tensor import Tensor
from netcl.nn import Linear, Module, ReLU, Sequential
from netcl.nn.parameter import Parameter


def leaf(queue, values):
    return ag.tensor(Tensor.from_host(queue, np.asarray(values, np.float64)), requires_grad=True)


def lists(gradients):
    return tuple(None if g is None else g.to_host().tolist() for g in gradients)


class Scaled(Module):
    """x * scale + y, and x * y."""

    def __init__(self, queue):
        self.scale = Parameter(Tensor.from_host(queue, np.array([2.0])))

    def forward(self, x, y=None, *, shift=0.0):
        return x * self.scale + shift if y is None else (x * self.scale + y, x * y)


# -- forward -----------------------------------------------------------------------------------------------------------


def test_hooks_with_kwargs_see_and_replace_them(queue):
    module, seen = Scaled(queue), []
    module.register_forward_pre_hook(lambda m, args, kwargs: seen.append((len(args), kwargs)), with_kwargs=True)
    module.register_forward_pre_hook(lambda m, args, kwargs: (args, {"shift": 5.0}), with_kwargs=True)
    module.register_forward_hook(lambda m, args, kwargs, result: seen.append(kwargs), with_kwargs=True)
    module.register_forward_hook(lambda m, args, result: result * 10.0)
    assert module(leaf(queue, [1.0]), shift=1.0).to_host().tolist() == [70]
    assert seen == [(1, {"shift": 1.0}), {"shift": 5.0}]


def test_prepended_hooks_are_called_first(queue):
    module, seen = Scaled(queue), []
    for register in (module.register_forward_pre_hook, module.register_forward_hook):
        register(lambda *_: seen.append("second"))
        first = register(lambda *_: seen.append("first"), prepend=True)
        module(leaf(queue, [1.0]))
        first.remove()
    assert seen == ["first", "second", "second", "first", "second"]


def test_a_pre_hook_with_kwargs_returns_both(queue):
    module = Scaled(queue)
    module.register_forward_pre_hook(lambda m, args, kwargs: args, with_kwargs=True)
    with pytest.raises(TypeError, match="a hook with_kwargs to return None"):
        module(leaf(queue, [1.0]))


# -- gradients ---------------------------------------------------------------------------------------------------------


def test_a_backward_hook_sees_the_gradients_of_arguments_and_results(queue):
    module, seen = Scaled(queue), []
    module.register_full_backward_hook(lambda m, gi, go: seen.append((m is module, lists(gi), lists(go))))
    x, y = leaf(queue, [3.0]), ag.tensor(Tensor.from_host(queue, np.array([5.0])))
    with ag.Tape() as tape:
        a, b = module(x, y)
        z = a * 10.0 + b * 100.0
    tape.backward(z)
    assert seen == [(True, ([520.0], None), ([10.0], [100.0]))]
    assert x.grad.item() == 520 and module.scale.grad.item() == 30


def test_what_backward_hooks_return_goes_on_in_order(queue):
    module = Scaled(queue)
    module.register_full_backward_pre_hook(lambda m, go: (go[0] * 2.0,))
    module.register_full_backward_hook(lambda m, gi, go: gi[0] + go[0])
    first = module.register_full_backward_hook(lambda m, gi, go: (gi[0] * 100.0,), prepend=True)
    x = leaf(queue, [3.0])
    with ag.Tape() as tape:
        y = module(x)
    tape.backward(y)
    assert x.grad.item() == 2 * 2 * 100 + 2
    assert module.scale.grad.item() == 2 * 3  # the pre-hook's gradient reaches parameters, too
    first.remove()
    x.grad = None
    with ag.Tape() as tape:
        y = module(x)
    tape.backward(y)
    assert x.grad.item() == 2 * 2 + 2


def test_without_a_gradient_for_arguments_it_is_called_with_none(queue):
    module, seen = Scaled(queue), []
    module.register_full_backward_hook(lambda m, gi, go: seen.append((lists(gi), lists(go))))
    with ag.Tape() as tape:
        y = module(ag.tensor(Tensor.from_host(queue, np.array([3.0]))))
    tape.backward(y)
    assert seen == [((None,), ([1.0],))] and module.scale.grad.item() == 3
    with ag.no_grad():
        module(leaf(queue, [1.0]))
    module(leaf(queue, [1.0]))
    assert len(seen) == 1


def test_layers_of_a_model_with_hooks_are_not_fused_and_run_in_turn_backward(queue):
    model, seen = Sequential(Linear(queue, 2, 3), ReLU(), Linear(queue, 3, 1)), []
    for i in (0, 1, 2):
        model[i].register_full_backward_hook(lambda m, gi, go, i=i: seen.append((i, gi[0].shape, go[0].shape)))
    x = ag.tensor(Tensor.ones(queue, (4, 2)), requires_grad=True)
    with ag.Tape() as tape:
        y = model(x).sum()
    tape.backward(y)
    assert seen == [(2, (4, 3), (4, 1)), (1, (4, 3), (4, 3)), (0, (4, 2), (4, 3))]


def test_hooks_on_gradients_in_compiled_checkpointed_and_recorded_runs(queue):
    module, x = Scaled(queue), leaf(queue, [3.0])
    module.register_full_backward_hook(lambda m, gi, go: (gi[0] * 10.0,))
    for call in (jit_compile(lambda x: module(x)), lambda x: ag.checkpoint(module, x)):
        with ag.Tape() as tape:
            y = call(x)
        tape.backward(y)
        assert x.grad.item() == 20
        x.grad = None

    def step(v):
        node = ag.tensor(v) * module.scale
        with ag.Tape():
            h = node * module.scale
            y = module(h)
        return ag.grad(y, h)[0]

    compiled = ag.CompiledStep(step)
    for _ in range(4):
        assert compiled(x.value).item() == 20
    module.register_full_backward_hook(lambda m, gi, go: (gi[0] + 1.0,))
    for _ in range(4):
        assert compiled(x.value).item() == 21


def test_misuse_is_explained(queue):
    module, x = Scaled(queue), leaf(queue, [3.0])
    for hook, text in (
        (lambda m, gi, go: (gi[0], gi[0]), "got 2 for 1 of which 0 None"),
        (lambda m, gi, go: 3.0, "a tensor or None, got float"),
        (lambda m, gi, go: gi[0].astype("float32"), "got .* and float32"),
    ):
        with module.register_full_backward_hook(hook), ag.Tape() as tape:
            y = module(x)
            with pytest.raises(GradientError, match=f"register_full_backward_hook: .*{text}"):
                tape.backward(y)

    class Table(Module):
        def forward(self, x):
            return {"x": x}

    table = Table()
    table.register_full_backward_hook(lambda *_: None)
    with ag.Tape(), pytest.raises(GradientError, match="Table: expected forward to return a node or a tuple of nodes"):
        table(x)


def test_what_is_no_function_is_refused_as_a_hook(cpu_queue):
    layer = Linear(cpu_queue, 2, 2)
    for register in (
        layer.register_forward_hook,
        layer.register_forward_pre_hook,
        layer.register_full_backward_hook,
        layer.register_full_backward_pre_hook,
    ):
        with pytest.raises(DTypeError, match="Linear: expected a hook as a function, got str"):
            register("print")
    with pytest.raises(DTypeError, match="checkpoint: expected a function, got int"):
        ag.checkpoint(3, Tensor.ones(cpu_queue, (2,)))
