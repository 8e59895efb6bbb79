"""jit_compile follows what a function depends on: grad mode, modules' flags, numbers and parameters, names."""

import gc
import weakref

import numpy as np
import pytest
from compiled import leaf, normal

import netcl.autograd as ag
from netcl import nn
from netcl.autograd.compiler import jit_compile, register_primitive
from netcl.autograd.training_compiler import fused_norm_activation
from netcl.core.kernels.dialect import define_function
from netcl.core.memory import pool_of
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor


def ones(queue, *shape):
    return Tensor.ones(queue, shape)


def value(result):
    """The numbers of a Node, or of the Tensor that a function of Tensors returns where it runs unfused."""
    return result.to_host()


# -- modes -------------------------------------------------------------------------------------------------------------


GATED = {
    "swiglu": lambda x: ag.swiglu(x, x),
    "geglu": lambda x: ag.geglu(x, x),
    "norm": lambda x: fused_norm_activation(x, Tensor.ones(x.queue, (4,)), activation="silu"),
    "lambda": jit_compile(lambda x: ag.exp(x) * 2.0),
    "keyword": lambda x: _keyword(x, by=2.0),
}
_keyword = jit_compile(lambda x, *, by: ag.exp(x) * by)


@pytest.mark.parametrize("name", GATED)
def test_a_call_without_gradients_leaves_those_of_later_calls(queue, name):
    fn, x = GATED[name], normal(3, 4)
    with ag.no_grad():
        fn(leaf(queue, x))
    with ag.no_grad(), ag.Tape():
        assert not fn(leaf(queue, x)).requires_grad
    node = leaf(queue, x)
    with ag.Tape() as tape:
        y = ag.sum(fn(node))
    tape.backward(y)
    assert np.abs(node.grad.to_host()).max() > 0


def test_a_function_may_ask_whether_gradients_are_recorded(queue):
    fn = jit_compile(lambda x: x * 2.0 if ag.is_grad_enabled() else x * 3.0)
    for _ in range(2):
        assert value(fn(ones(queue, 1))) == 2
        with ag.no_grad():
            assert value(fn(ones(queue, 1))) == 3
    assert fn.cache_info().misses == 2


# -- modules -----------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Drops half of its input in training; a number, a plain list and a child decide too."""

    def __init__(self, queue):
        self.drop, self.linear, self.scale = nn.Dropout(0.5), nn.Linear(queue, 4, 4), 2.0

    def forward(self, x):
        return self.drop(self.linear(x)) * self.scale


def reached_by(kind, model):
    """The model called by compiled functions that reach it in different ways."""
    if kind == "closure":
        return jit_compile(lambda x: model(x) * 1.0)
    if kind == "module":
        return jit_compile(model)
    if kind == "method":
        return jit_compile(model.forward)
    if kind == "argument":
        fn = jit_compile(lambda m, x: m(x) * 1.0)
        return lambda x: fn(model, x)
    if kind == "keyword":
        fn = jit_compile(lambda x, m: m(x) * 1.0)
        return lambda x: fn(x, m=model)
    if kind == "nested":
        inner = jit_compile(lambda x: model(x))
        return jit_compile(lambda x: inner(x) * 1.0)
    if kind == "bound argument":
        fn = jit_compile(lambda call, x: call(x) * 1.0)
        return lambda x: fn(model.forward, x)
    holder = {"models": [model]}
    return jit_compile(lambda x: holder["models"][0].forward(x) * 1.0)


WAYS = ("closure", "module", "method", "argument", "keyword", "nested", "bound argument", "held")


@pytest.mark.parametrize("kind", WAYS)
def test_the_training_flag_of_every_module_counts(queue, kind):
    model, x = Net(queue), ones(queue, 64, 4)
    fn = reached_by(kind, model)
    for _ in range(2):
        model.train()
        assert (value(fn(x)) == 0).mean() > 0.2
        model.eval()
        np.testing.assert_allclose(value(fn(x)), value(model(ag.tensor(x))), rtol=1e-5, atol=1e-6)
        model.train()
        model.drop.eval()
        assert not (value(fn(x)) == 0).any()


def test_train_and_eval_do_not_trace_each_time(queue):
    model, x = Net(queue), ones(queue, 4, 4)
    fn = jit_compile(lambda t: model(t))
    for _ in range(5):
        fn(x), fn(x)
        model.eval()
        fn(x), fn(x)
        model.train()
    assert fn.cache_info()[:3] == (18, 2, 0)


def test_running_statistics_rest_after_eval(queue):
    model, x = nn.BatchNorm1d(queue, 4), Tensor.from_host(queue, normal(8, 4))
    fn = jit_compile(lambda t: model(t) + 0.0)
    fn(x), fn(x)
    model.eval()
    before = model.running_mean.to_host()
    fn(x), fn(x)
    np.testing.assert_array_equal(model.running_mean.to_host(), before)
    assert np.abs(before).max() > 0


def test_statistics_move_though_nobody_reads_the_result(queue):
    models = [nn.BatchNorm1d(queue, 4) for _ in range(2)]
    x = Tensor.from_host(queue, normal(8, 4))

    def forward(model, t):
        model(t)
        return t * 2.0

    fn = jit_compile(forward)
    for _ in range(3):
        fn(models[0], x), forward(models[1], ag.tensor(x))
    np.testing.assert_array_equal(models[0].running_mean.to_host(), models[1].running_mean.to_host())


@pytest.mark.parametrize("kind", WAYS)
def test_a_replaced_parameter_is_used_and_gets_the_gradient(queue, kind):
    model, x = Net(queue).eval(), ones(queue, 2, 4)
    fn = reached_by(kind, model)
    fn(x), fn(x)
    model.linear.weight = ag.Parameter(Tensor.zeros(queue, (4, 4)))
    with ag.Tape() as tape:
        y = ag.sum(fn(x))
    np.testing.assert_allclose(value(y), 4 * model.linear.bias.value.to_host().sum(), rtol=1e-5)
    tape.backward(y)
    np.testing.assert_allclose(model.linear.weight.grad.to_host(), np.full((4, 4), 4), rtol=1e-6)


CHANGES = {
    "replace": lambda m, q: m.replace("linear.weight", ag.Parameter(Tensor.ones(q, (4, 4)))),
    "value": lambda m, q: setattr(m.linear.weight, "value", Tensor.ones(q, (4, 4))),
    "number": lambda m, q: setattr(m, "scale", 3.0),
    "an int that equals the float": lambda m, q: setattr(m, "scale", 2),
    "child": lambda m, q: setattr(m, "linear", nn.Linear(q, 4, 4)),
    "removed bias": lambda m, q: setattr(m.linear, "bias", None),
    "deleted number": lambda m, q: (setattr(type(m), "scale", 5.0), delattr(m, "scale")),
    "new attribute": lambda m, q: setattr(m, "drop", nn.Sequential(nn.ReLU())),
    "double": lambda m, q: m.double(),
    "half": lambda m, q: m.half(),
    "load": lambda m, q: m.load_state_dict({k: np.ones(v.shape) for k, v in m.state_dict().items()}),
    "added layer": lambda m, q: m.drop.append(nn.ReLU()),
    "hook": lambda m, q: m.register_forward_hook(lambda module, args, result: result * 7.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_module_computes_as_without_the_compiler(queue, name):
    model = Net(queue).eval()
    if name == "added layer":
        model.drop = nn.Sequential(nn.Identity() if hasattr(nn, "Identity") else nn.ReLU())
    fn, x = jit_compile(lambda t: model(t) * 1.0), Tensor.from_host(queue, normal(3, 4))
    fn(x), fn(x)
    try:
        CHANGES[name](model, queue)
        x = x.astype(model.linear.weight.dtype)
        for _ in range(2):
            np.testing.assert_allclose(value(fn(x)), value(model(ag.tensor(x))), rtol=1e-3, atol=1e-6)
    finally:
        if "scale" in vars(Net):
            del Net.scale


def test_a_removed_hook_no_longer_runs(queue):
    model, x = Net(queue).eval(), ones(queue, 3, 4)
    calls = []
    handle = model.linear.register_forward_hook(lambda *_: calls.append(1))
    fn = jit_compile(lambda t: model(t) * 1.0)
    fn(x), fn(x), fn(x)
    assert len(calls) == 3 and "hooks" in fn.reasons[0]
    handle.remove()
    fn(x), fn(x)
    assert len(calls) == 3 and fn.cache_info().unfused == 3


def test_a_module_that_changes_itself_runs_as_it_is(queue):
    class Counting(nn.Module):
        def __init__(self):
            self.steps = 0

        def forward(self, x):
            self.steps += 1
            return x * float(self.steps)

    model = Counting()
    fn = jit_compile(lambda t: model(t) + 1.0)
    for i in range(1, 5):
        assert value(fn(ones(queue, 1))) == i + 1
    assert model.steps == 4 and "changes Counting.steps" in fn.reasons[0]


def test_a_module_made_inside_is_traced(queue):
    fn = jit_compile(lambda t: nn.GELU()(t) + 1.0)
    fn(ones(queue, 3))
    assert fn.cache_info().unfused == 0


def test_what_changes_at_every_call_ends_in_unfused_calls(queue):
    model = Net(queue).eval()
    fn, x = jit_compile(lambda t: model(t)), ones(queue, 1, 4)
    for i in range(50):
        model.scale = float(i)
        np.testing.assert_allclose(value(fn(x)), value(model(ag.tensor(x))), rtol=1e-5)
    info = fn.cache_info()
    assert info.misses <= 32 and info.unfused == 50 - info.misses and "Net.scale" in fn.reasons[-1]


def test_other_modules_cost_no_look(queue):
    """Only what a program depends on moves the counter that programs compare."""
    from netcl.autograd.follow import changes

    model, other = Net(queue).eval(), Net(queue)
    fn = jit_compile(lambda t: model(t))
    fn(ones(queue, 1, 4))
    version = changes.version
    other.scale, other.extra = 5.0, 3
    other.eval()
    model.eval()
    model.scale = 2.0
    Net(queue)
    assert changes.version == version
    model.scale = 2.5
    assert changes.version != version


# -- names -------------------------------------------------------------------------------------------------------------

SCALE = 2.0
MODEL = None


def scaled(x):
    return x * SCALE


def modelled(x):
    return MODEL(x) * 1.0


def test_a_name_bound_anew_is_noticed(queue):
    global SCALE, MODEL
    x = ones(queue, 1, 4)
    by, net = 3.0, Net(queue).eval()
    fns = [jit_compile(f) for f in (scaled, modelled, lambda t: t * by, lambda t: net(t), ag.no_grad()(scaled))]
    MODEL = Net(queue).eval()
    for _ in range(2):
        for fn in fns:
            np.testing.assert_allclose(value(fn(x)), value(fn.fn(ag.tensor(x))), rtol=1e-5)
        SCALE, MODEL, by, net = SCALE + 1, Net(queue).eval(), by + 1, Net(queue).eval()
    assert all(fn.cache_info().unfused == 0 for fn in fns)


def test_a_function_that_rebinds_its_names_runs_as_it_is(queue):
    calls = 0

    @jit_compile
    def fn(x):
        nonlocal calls
        calls += 1
        return x * float(calls)

    for i in range(1, 4):
        assert value(fn(ones(queue, 1))) == i
    assert calls == 3 and "changes a variable" in fn.reasons[0]


# -- primitives --------------------------------------------------------------------------------------------------------


def test_a_primitive_registered_again_is_the_new_one(queue):
    def register(function):
        register_primitive("mine_again", lambda a, k: f"{function}({a[0]}, {a[1]})", lambda a, g, k, o: ["", ""], 2)

    fn = jit_compile(lambda a, b: ag.apply_op("mine_again", a, b) * 1.0)
    a, b = Tensor.full(queue, (3,), 5.0), Tensor.full(queue, (3,), 3.0)
    for function, wanted in (("MUL", 15), ("ADD", 8), ("MUL", 15)):
        register(function)
        for _ in range(2):
            assert value(fn(a, b)).tolist() == [wanted] * 3
            assert value(ag.apply_op("mine_again", a, b)).tolist() == [wanted] * 3


def test_an_operation_that_becomes_a_primitive_is_fused_from_then_on(queue):
    name = f"late_{type(queue).__name__}_{id(queue)}"
    ag.register_op(name, lambda x: x * x, lambda g, y, x: g * x * 2)
    fn = jit_compile(lambda x: ag.apply_op(name, x) + 1.0)
    x = Tensor.full(queue, (3,), 3.0)
    assert value(fn(x))[0] == 10 and fn.cache_info().unfused == 1
    register_primitive(name, lambda a, k: f"MUL({a[0]}, {a[0]})", lambda a, g, k, o: [f"MUL({g}, {a[0]})"], 1)
    assert value(fn(x))[0] == 10 and fn.cache_info().unfused == 1


# -- random numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["random", "numpy.random"])
def test_draws_that_a_trace_freezes_are_warned_about_once(queue, name):
    import random

    draw = random.random if name == "random" else np.random.rand
    fn = jit_compile(lambda x: x * draw())
    with pytest.warns(UserWarning, match=f"{name} drew numbers while the function was traced") as found:
        fn(ones(queue, 2)), fn(ones(queue, 3)), fn(ones(queue, 2))
    assert len(found) == 1


def test_a_failed_trace_draws_nothing(queue):
    import random

    fn = jit_compile(lambda x: x * random.random() * float(x.sum()))
    random.seed(3)
    wanted = [random.random() for _ in range(3)]
    random.seed(3)
    for want in wanted:
        np.testing.assert_allclose(value(fn(ones(queue, 1))), want, rtol=1e-6)


# -- memory ------------------------------------------------------------------------------------------------------------


def test_a_dropped_model_is_freed(queue):
    @jit_compile
    def fn(model, x):
        return model(x) * ag.tensor(Tensor.ones(queue, (4,)))

    x = ones(queue, 2, 4)
    fn(Net(queue), x)
    models = [Net(queue) for _ in range(3)]
    gc.collect()
    bytes_before = None if isinstance(queue, CPUQueue) else pool_of(queue).stats.active_bytes
    refs = []
    for _ in range(3):
        models.append(Net(queue))
        with ag.Tape() as tape:
            y = ag.sum(fn(models[-1], x))
        tape.backward(y)
        refs += [weakref.ref(o) for o in (models[-1], models[-1].linear.weight, models[-1].linear.bias.value)]
        del tape, y
        models.pop()
    gc.collect()
    assert not any(ref() for ref in refs)
    if bytes_before is not None:
        assert pool_of(queue).stats.active_bytes - bytes_before < 3 * 4 * 4 * 4 * 2


def test_a_dropped_function_frees_its_model(queue):
    def make():
        model = Net(queue)
        fn = jit_compile(lambda x: model(x) * 1.0)
        with ag.Tape() as tape:
            y = ag.sum(fn(ones(queue, 2, 4)))
        tape.backward(y)
        return weakref.ref(model), weakref.ref(model.linear.weight)

    refs = make()
    gc.collect()
    assert not any(ref() for ref in refs)


def test_clearing_the_cache_frees_what_programs_hold(queue):
    held = []

    @jit_compile
    def fn(x):
        constant = Tensor.full(queue, (64,), 3.0)
        held.append(weakref.ref(constant))
        return x * constant

    for _ in range(2):
        assert value(fn(ones(queue, 64)))[0] == 3
    gc.collect()
    assert held[0]() is not None
    fn.cache_clear()
    gc.collect()
    assert held[0]() is None and fn.cache_info() == (0, 0, 0, 0)


def test_caches_are_bounded(queue):
    looked = jit_compile(lambda x, a: x * a if a > 0 else x)
    counted = jit_compile(lambda x, n: x * float(n))
    for i in range(300):
        x = ones(queue, 2)
        assert value(looked(x, i + 0.5))[0] == i + 0.5
        assert value(counted(x, i))[0] == i
    assert looked.cache_info().currsize <= 32 and "float" in looked.reasons[0]
    assert counted.cache_info().currsize <= 256 and len(counted._entries) <= 256


def test_closed_over_constants_become_arguments(cl_queue):
    from netcl.runtime.cache import cacher

    x, builds = ones(cl_queue, 3), []

    def make(c):
        return jit_compile(lambda t: ag.exp(t * c) - c)

    for i in range(20):
        c = 0.125 + i / 7
        np.testing.assert_allclose(value(make(c)(x)), np.exp(np.float32(c)) - c, rtol=1e-5)
        builds.append(cacher.stats.builds)
    assert builds[-1] == builds[5]


def test_a_function_defined_late_is_used_when_it_is_there(queue):
    name = f"LATE_{abs(hash(str(queue)))}"
    register_primitive(name.lower(), lambda a, k: f"{name}({a[0]})", lambda a, g, k, o: [f"MUL({g}, 2)"], 1)
    fn = jit_compile(lambda x: ag.apply_op(name.lower(), x) + 1.0)
    x = ones(queue, 2)
    for call in (fn, lambda t: ag.apply_op(name.lower(), t)):
        with pytest.raises(Exception, match=f"{name}.*define_function"):
            call(x)
    define_function(name, ("a",), "a * 4")
    for _ in range(2):
        assert value(fn(x)).tolist() == [5, 5]
