"""CompiledStep follows what the step depends on: modes, modules' flags, numbers and parameters, names."""

import gc
import random
import warnings
import weakref

import numpy as np
import pytest
from compiled import normal

import netcl.autograd as ag
from netcl import nn
from netcl.autograd.compiler import jit_compile
from netcl.autograd.jit.step import CompiledStep
from netcl.core.live import Cell
from netcl.core.tensor import Tensor
from netcl.optim import SGD, clip_grad_norm_


class Net(nn.Module):
    """Drops half of its input in training; a number and children decide too."""

    def __init__(self, queue):
        self.drop, self.linear, self.norm, self.scale = nn.Dropout(0.5), nn.Linear(queue, 4, 4), None, 2.0
        self.norm = nn.BatchNorm1d(queue, 4)

    def forward(self, x):
        return self.drop(self.norm(self.linear(x))) * self.scale


def times(n, call):
    for _ in range(n):
        call()


def called_by(kind, model):
    """A step that reaches the model in one of several ways."""
    if kind == "closure":
        return CompiledStep(lambda x: model(ag.tensor(x)))
    if kind == "compiled function":
        fn = jit_compile(lambda x: model(x))
        return CompiledStep(lambda x: fn(ag.tensor(x)))
    if kind == "step":
        inner = CompiledStep(lambda x: model(ag.tensor(x)))
        return CompiledStep(lambda x: inner(x))

    class Trainer:
        def __init__(self):
            self.model = model

        @CompiledStep
        def step(self, x):
            return self.model(ag.tensor(x))

    trainer = Trainer()
    return trainer.step


WAYS = ("closure", "compiled function", "step", "method")


@pytest.mark.parametrize("kind", WAYS)
def test_eval_and_train_need_no_reset(queue, kind):
    model, x = Net(queue), Tensor.from_host(queue, normal(64, 4))
    step = called_by(kind, model)
    for _ in range(3):
        model.train()
        for _ in range(3):
            assert (step(x).to_host() == 0).mean() > 0.2
        model.eval()
        before = model.norm.running_mean.to_host()
        for _ in range(3):
            np.testing.assert_allclose(step(x).to_host(), model(ag.tensor(x)).to_host(), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(model.norm.running_mean.to_host(), before)
        model.train()
        model.drop.eval()
        for _ in range(3):
            assert not (step(x).to_host() == 0).any()
    assert len(step.captures) == 3


CHANGES = {
    "number": lambda m, q: setattr(m, "scale", 3.0),
    "parameter": lambda m, q: setattr(m.linear, "weight", ag.Parameter(Tensor.ones(q, (4, 4)))),
    "value": lambda m, q: setattr(m.linear.weight, "value", Tensor.ones(q, (4, 4))),
    "buffer": lambda m, q: setattr(m.norm, "running_mean", Tensor.ones(q, (4,))),
    "child": lambda m, q: setattr(m, "norm", nn.LayerNorm(q, 4)),
    "epsilon": lambda m, q: setattr(m.norm, "eps", 0.5),
    "hook": lambda m, q: m.register_forward_hook(lambda module, args, result: result * 7.0),
    "load": lambda m, q: m.load_state_dict({k: np.ones(v.shape) for k, v in m.state_dict().items()}),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("kind", WAYS)
def test_a_changed_module_computes_as_without_a_recording(queue, name, kind):
    model, x = Net(queue).eval(), Tensor.from_host(queue, normal(3, 4))
    step = called_by(kind, model)
    for _ in range(3):
        step(x)
    CHANGES[name](model, queue)
    for _ in range(4):
        np.testing.assert_allclose(step(x).to_host(), model(ag.tensor(x)).to_host(), rtol=1e-4, atol=1e-5)


def test_a_removed_hook_no_longer_counts(queue):
    model, x = nn.Linear(queue, 4, 4), Tensor.ones(queue, (2, 4))
    handle = model.register_forward_hook(lambda module, args, result: result * 0.0)
    step = CompiledStep(lambda t: model(ag.tensor(t)))
    for _ in range(3):
        assert not step(x).to_host().any()
    handle.remove()
    for _ in range(3):
        assert step(x).to_host().all()


def test_training_goes_on_with_a_replaced_parameter(queue):
    model, x = nn.Linear(queue, 4, 4), Tensor.ones(queue, (2, 4))

    def train(t):
        model.zero_grad()
        with ag.Tape() as tape:
            loss = ag.sum(model(ag.tensor(t)))
        tape.backward(loss)
        return model.weight.grad

    step = CompiledStep(train)
    for _ in range(3):
        step(x)
    old = model.weight
    model.weight = ag.Parameter(Tensor.zeros(queue, (4, 4)))
    for _ in range(4):
        assert step(x).to_host().tolist() == [[2] * 4] * 4 and model.weight.grad is not None
    assert len(step.captures) == 1
    ref = weakref.ref(old)
    del old
    gc.collect()
    assert ref() is None


def test_modes_are_recorded_of_their_own(queue):
    x, w = Tensor.ones(queue, (2,)), ag.Parameter(Tensor.ones(queue, (2,)))
    step = CompiledStep(lambda t: ag.mul(w, 2.0 if ag.is_grad_enabled() else 3.0))
    for _ in range(3):
        assert step(x).to_host()[0] == 2
        with ag.no_grad():
            assert step(x).to_host()[0] == 3
    log = CompiledStep(lambda t: ag.log(ag.tensor(t)))
    negative = Tensor.full(queue, (2,), -1.0)
    for _ in range(3):
        log(negative)
    with ag.detect_anomaly(), pytest.raises(Exception, match="log: expected finite"):
        log(negative)


FACTOR = 1.0


def test_names_bound_anew_are_noticed(queue):
    global FACTOR
    x, by = Tensor.ones(queue, (2,)), 1.0
    step = CompiledStep(lambda t: ag.mul(ag.tensor(t), FACTOR * by))
    for _ in range(2):
        for _ in range(3):
            assert step(x).to_host()[0] == FACTOR * by
        FACTOR += 1
        for _ in range(3):
            assert step(x).to_host()[0] == FACTOR * by
        by += 3


def test_what_the_step_changes_itself_does_not_count(queue):
    calls = 0
    model, x = nn.Linear(queue, 4, 4), Tensor.ones(queue, (2, 4))

    @CompiledStep
    def step(t):
        nonlocal calls
        calls += 1
        model.last = model(ag.tensor(t))
        return model.last * 2.0

    for _ in range(5):
        step(x)
    assert calls == 2 and len(step.captures) == 1
    np.testing.assert_allclose(model.last.to_host() * 2, step(x).to_host())


def test_a_number_that_the_step_changes_is_warned_about(queue):
    class Counting(nn.Module):
        steps = 0

        def forward(self, x):
            self.steps += 1
            return x * float(self.steps)

    model = Counting()
    step = CompiledStep(lambda t: model(ag.tensor(t)))
    with pytest.warns(UserWarning, match="Counting.steps changed while .* was recorded") as found:
        times(4, lambda: step(Tensor.ones(queue, (1,))))
    assert len(found) == 1


def test_a_cell_changes_without_recording_anew(queue):
    class Scaled(nn.Module):
        def __init__(self):
            self.now = Cell(1.0)

        def forward(self, x):
            return ag.mul(x, self.now)

    model, x = Scaled(), Tensor.ones(queue, (2,))
    step = CompiledStep(lambda t: model(ag.tensor(t)))
    for now in (1.0, 2.0, 3.0, 4.0):
        model.now.value = now
        assert step(x).to_host()[0] == now
    assert len(step.captures) == 1


@pytest.mark.parametrize("name", ["random", "numpy.random"])
def test_draws_that_a_recording_freezes_are_warned_about_once(queue, name):
    draw = random.random if name == "random" else np.random.rand
    step = CompiledStep(lambda x: ag.mul(ag.tensor(x), draw()))
    with pytest.warns(UserWarning, match=f"{name} drew numbers while the function was recorded") as found:
        times(4, lambda: step(Tensor.ones(queue, (2,))))
    assert len(found) == 1


def test_states_are_bounded_and_many_are_warned_about(queue):
    model, x = Net(queue).eval(), Tensor.ones(queue, (2, 4))
    step = CompiledStep(lambda t: model(ag.tensor(t)), keep=2)

    def scaled():
        model.scale += 1.0
        np.testing.assert_allclose(step(x).to_host(), model(ag.tensor(x)).to_host(), rtol=1e-5)

    with pytest.warns(UserWarning, match="8 combinations .*Net.scale"):
        times(40, scaled)
    assert sum(map(len, step._states.values())) <= 16


def test_train_and_eval_every_epoch_record_once_each(queue):
    model, x = Net(queue), Tensor.from_host(queue, normal(8, 4))
    step = CompiledStep(lambda t: model(ag.tensor(t)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(20):
            model.train()
            step(x), step(x)
            model.eval()
            step(x), step(x)
    assert len(step.captures) == 2


def test_a_dropped_step_frees_its_model(queue):
    model = Net(queue)
    step = CompiledStep(lambda t, model=model: model(ag.tensor(t)))
    for _ in range(3):
        step(Tensor.ones(queue, (2, 4)))
    ref = weakref.ref(model)
    del model, step
    gc.collect()
    assert ref() is None


# -- gradients from outside --------------------------------------------------------------------------------------------


def accumulated(queue, wrap_update, wrap_backward, rounds=6):
    """Parameters after rounds of two backward passes, clipping and a step; in one the second has no gradient."""
    a, b = (ag.Parameter(Tensor.from_host(queue, np.array([v, 1.0]))) for v in (1.0, 2.0))
    opt = SGD([a, b], lr=0.1, momentum=0.9)
    values = []

    def update():
        clip_grad_norm_([a, b], 2.0)
        opt.step()

    def backward(x, both):
        with ag.Tape() as tape:
            loss = (a * ag.tensor(x)).sum()
            loss = loss + (b * ag.tensor(x)).sum() if both else loss
        tape.backward(loss)

    update, backward = wrap_update(update), wrap_backward(backward)
    for i in range(rounds):
        for j in range(2):
            backward(Tensor.from_host(queue, np.array([i + 1.0, 2.0 * j])), i != 3)
        update()
        opt.zero_grad()
        values.append([p.value.to_host() for p in (a, b)])
    return np.array(values)


@pytest.mark.filterwarnings("ignore:CompiledStep")
def test_an_optimizer_step_reads_the_gradients_of_now(queue):
    """Each backward outside puts new memory in the place of the gradients that the recording read."""
    plain = lambda fn: fn  # noqa: E731
    np.testing.assert_array_equal(accumulated(queue, ag.CompiledStep, plain), accumulated(queue, plain, plain))


def test_gradients_that_a_recorded_step_writes_stay_where_they_are(queue):
    w = ag.Parameter(Tensor.from_host(queue, np.array([1.0, 2.0])))
    opt = SGD([w], lr=0.1)

    def backward(x):
        with ag.Tape() as tape:
            loss = (w * ag.tensor(x)).sum()
        w.grad = None
        tape.backward(loss)

    first, second = ag.CompiledStep(backward), ag.CompiledStep(opt.step)
    wanted = w.value.to_host()
    for i in range(5):
        x = np.array([i + 1.0, -1.0])
        first(Tensor.from_host(queue, x))
        if i == 2:
            held = second.captures
        second()
        wanted = wanted - 0.1 * x
        np.testing.assert_allclose(w.value.to_host(), wanted, rtol=1e-12)
    assert second.captures == held


def test_a_step_recorded_anew_again_and_again_says_so(queue):
    w = ag.Parameter(Tensor.ones(queue, (2,)))
    opt = SGD([w], lr=0.1)
    step = ag.CompiledStep(opt.step)

    def call():
        w.grad = Tensor.ones(queue, (2,))
        step()

    with pytest.warns(UserWarning, match="recorded anew 8 times .* gradients computed outside; compute"):
        times(12, call)
    np.testing.assert_allclose(w.value.to_host(), 1 - 0.1 * 12, rtol=1e-5)
