"""`ag.checkpoint`: everything is as without it, but for the memory between forward and backward."""

import gc

import numpy as np
import pytest

import netcl.autograd as ag
from netcl.autograd.state import state
from netcl.core.errors import GradientError
from netcl.core.memory import pool_of
from netcl.core.tensor import Tensor
from netcl.nn import BatchNorm1d, Dropout, Linear, Module, Parameter, ReLU, Sequential
from netcl.ops.create import random
from netcl.optim import SGD


def leaf(queue, values, dtype=np.float64):
    return ag.tensor(Tensor.from_host(queue, np.asarray(values, dtype)), requires_grad=True)


def plainly(function, *args, **kwargs):
    return function(*args, **kwargs)


class Blocks(Module):
    """Three blocks with dropout and batch norm, each through `call`, all of them through `outer`."""

    def __init__(self, queue, call, outer=plainly):
        self.blocks = [Sequential(Linear(queue, 6, 6), BatchNorm1d(queue, 6), ReLU(), Dropout(0.3)) for _ in range(3)]
        self.call, self.outer = call, outer

    def inside(self, x):
        for block in self.blocks:
            x = self.call(block, x)
        return x

    def forward(self, x):
        return self.outer(self.inside, x * 1.0)


def same_weights(queue, *models):
    """The models with equal parameters."""
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(p.shape) for p in models[0].parameters()]
    for model in models:
        for p, value in zip(model.double().parameters(), values, strict=True):
            p.value = Tensor.from_host(queue, value)
    return models


def trained(model, x, steps=2):
    """Gradients, buffers and losses of some passes, and where the stream of random numbers is afterwards."""
    random.seed(5)
    found = []
    for _ in range(steps):
        with ag.Tape() as tape:
            y = model(x)
            loss = (y * y).sum()
        tape.backward(loss)
        found.append(loss.to_host())
    tensors = [p.grad for p in model.parameters()] + list(model.buffers()) + [x.grad]
    x.grad = None
    return [*found, *[t.to_host() for t in tensors], random.default_generator.offset]


@pytest.mark.parametrize("outer", [plainly, ag.checkpoint], ids=["each", "nested"])
def test_gradients_draws_and_statistics_are_those_without(queue, outer):
    models = same_weights(queue, Blocks(queue, plainly), Blocks(queue, ag.checkpoint, outer))
    x = leaf(queue, np.random.default_rng(1).standard_normal((5, 6)))
    wanted, found = (trained(model, x) for model in models)
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(b, a)


def test_arguments_results_and_nodes_from_outside_of_any_kind(queue):
    x, w, v = leaf(queue, [1.0, 2.0]), leaf(queue, [3.0, 5.0]), leaf(queue, [7.0, 11.0])
    with ag.Tape() as tape:
        h, outside = x * 1.0, v * 1.0

        def function(pair, extra, *, scale, table):
            a = pair[0] * pair[1] * scale
            return {"a": a, "more": (a * outside, 3, table["b"])}, extra

        result, extra = ag.checkpoint(function, (h, w), "text", scale=2.0, table={"b": h})
        y = (result["a"] + result["more"][0]).sum()
    assert extra == "text" and result["more"][1] == 3 and y.tape is tape
    tape.backward(y)
    assert x.grad.to_host().tolist() == [6 * 8, 10 * 12]
    assert w.grad.to_host().tolist() == [2 * 8, 4 * 12]
    assert v.grad.to_host().tolist() == [6, 20]


def test_results_that_go_nowhere_and_inputs_without_gradients(queue):
    x, plain = leaf(queue, [1.0, 2.0]), ag.tensor(Tensor.from_host(queue, np.array([3.0, 5.0])))
    with ag.Tape() as tape:
        a, _ = ag.checkpoint(lambda x, y: (x * y, x * x), x, plain)
        only = ag.checkpoint(lambda y: y * 2.0, plain)
        y = (a * only).sum()
    assert not only.requires_grad
    tape.backward(y)
    assert x.grad.to_host().tolist() == [18, 50] and plain.grad is None


def test_it_runs_once_in_forward_and_once_in_backward(queue):
    x, calls = leaf(queue, [2.0]), []

    def function(x):
        calls.append((state.enabled, state.tape is not None))
        return ag.square(x) * x

    assert ag.checkpoint(function, x).item() == 8
    with ag.Tape(), ag.no_grad():
        assert not ag.checkpoint(function, x).requires_grad
    assert len(calls) == 2
    with ag.Tape() as tape:
        y = ag.checkpoint(function, x)
    tape.backward(y, retain_graph=True)
    assert len(calls) == 4
    with ag.no_grad():
        tape.backward(y)
    assert calls[4] == (True, True) and len(calls) == 5
    assert x.grad.item() == 24


def test_hooks_retained_gradients_and_grad_reach_inside(queue):
    x, seen, inside = leaf(queue, [3.0]), [], []

    def function(x):
        h = x * 2.0
        h.register_hook(lambda g: seen.append(g.item()))
        h.retain_grad()
        inside.append(h)
        return h * h

    with ag.Tape() as tape:
        y = ag.checkpoint(function, x)
    (dx,) = ag.grad(y, x, retain_graph=True)
    tape.backward(y)
    assert dx.item() == x.grad.item() == 24 and seen == [12, 12]
    assert inside[0].grad.item() == 12


def test_compiled_functions_inside_and_around(queue):
    x = leaf(queue, [0.5, -1.0])
    inner = ag.jit_compile(lambda x: ag.tanh(x) * x)
    outer = ag.jit_compile(lambda x: ag.checkpoint(lambda v: ag.tanh(v) * v, x))
    host = np.array([0.5, -1.0])
    for function in (lambda x: ag.checkpoint(inner, x), outer):
        x.grad = None
        with ag.Tape() as tape:
            y = function(x)
        tape.backward(y)
        np.testing.assert_allclose(x.grad.to_host(), np.tanh(host) + host * (1 - np.tanh(host) ** 2), rtol=1e-12)
    assert outer.cache_info().unfused == 1
    with ag.no_grad():
        np.testing.assert_allclose(outer(x).to_host(), np.tanh(host) * host, rtol=1e-12)
    assert outer.cache_info().unfused == 1


@pytest.mark.parametrize("outer", [plainly, ag.checkpoint], ids=["each", "nested"])
def test_a_recorded_step_trains_as_without(queue, outer):
    """New masks at every replay, the same in forward and when it runs again."""
    models = same_weights(queue, Blocks(queue, plainly), Blocks(queue, ag.checkpoint, outer))
    rng, results = np.random.default_rng(1), []
    batches = [Tensor.from_host(queue, rng.standard_normal((5, 6))) for _ in range(5)]
    for model, wrap in zip(models, (lambda step: step, ag.CompiledStep), strict=True):
        opt = SGD(model.parameters(), lr=0.01)

        def step(x, model=model, opt=opt):
            with ag.Tape() as tape:
                loss = ag.square(model(ag.tensor(x))).mean()
            tape.backward(loss)
            opt.step()
            opt.zero_grad()
            return loss

        random.seed(5)
        run = wrap(step)
        results.append([run(x).item() for x in batches])
        results.append([t.to_host() for t in (*(p.value for p in model.parameters()), *model.buffers())])
    assert results[0] == results[2]
    for a, b in zip(results[1], results[3], strict=True):
        np.testing.assert_array_equal(b, a)


def test_it_runs_again_under_the_autocast_of_forward(queue, monkeypatch):
    def halved(name, args):
        return [a.astype("float16") if isinstance(a, ag.Node) and name == "mul" else a for a in args]

    x, dtypes = leaf(queue, [1.0, 2.0], np.float32), []

    def function(x):
        y = x * x
        dtypes.append(y.dtype.name)
        return y

    with ag.Tape() as tape:
        monkeypatch.setattr(state, "autocast", halved)
        y = ag.checkpoint(function, x)
        monkeypatch.setattr(state, "autocast", None)
    tape.backward(y)
    assert dtypes == ["float16"] * 2
    assert x.grad.dtype == np.float32 and x.grad.to_host().tolist() == [2, 4]


def test_the_tape_goes_on_after_an_error_inside(queue):
    def failing(x):
        ag.square(x)
        raise RuntimeError("mine")

    x = leaf(queue, [2.0])
    with ag.Tape() as tape:
        with pytest.raises(RuntimeError, match="mine"):
            ag.checkpoint(failing, x)
        y = x * x
    tape.backward(y)
    assert x.grad.item() == 4


def peak(queue, call, depth=8):
    """Most bytes in use beyond those at the start, at each op of a pass forward and back."""
    pool, x = pool_of(queue), ag.tensor(Tensor.ones(queue, (64, 1024)), requires_grad=True)
    most = [0]
    start = pool.stats.active_bytes

    def block(x):
        for _ in range(4):
            x = ag.tanh(x * 1.01)
            most[0] = max(most[0], pool.stats.active_bytes - start)
        return x

    with ag.Tape() as tape:
        y = x
        for _ in range(depth):
            y = call(block, y)
        tape.backward(y)
    return max(most[0], pool.stats.active_bytes - start) / x.value.nbytes


def test_the_peak_of_memory_falls(cl_queue):
    """Eight blocks of eight results: all of them without, with it one a block and those of one block."""
    gc.collect()
    assert peak(cl_queue, plainly) >= 32
    assert peak(cl_queue, ag.checkpoint) <= 8 + 4 + 4


def test_the_peak_of_a_recorded_step_falls(cl_queue):
    w, peaks, found = Parameter(Tensor.ones(cl_queue, (1,))), [], []
    x = Tensor.ones(cl_queue, (64, 1024))

    def block(y):
        for _ in range(4):
            y = ag.tanh(y * 1.01)
        return y

    for call in (plainly, ag.checkpoint):

        def step(x, call=call):
            with ag.Tape() as tape:
                y = ag.tensor(x) * w
                for _ in range(8):
                    y = call(block, y)
            w.grad = None
            tape.backward(y)
            return w.grad

        compiled = ag.CompiledStep(step)
        found += [compiled(x).to_host() for _ in range(3)]
        peaks.append(compiled.captures[-1].peak_bytes / x.nbytes)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
    assert peaks[1] <= 0.5 * peaks[0]


def test_nothing_stays_when_backward_never_comes(cl_queue):
    gc.collect()
    pool = pool_of(cl_queue)
    x = ag.tensor(Tensor.ones(cl_queue, (64, 1024)), requires_grad=True)
    before = pool.stats.active_bytes
    gc.disable()
    try:
        with ag.Tape() as tape:
            y = ag.checkpoint(lambda v: ag.tanh(v) * 2.0, x * 1.0)
        del tape, y
        assert pool.stats.active_bytes == before
    finally:
        gc.enable()


def test_what_is_read_again_may_not_change(queue):
    w = Parameter(Tensor.from_host(queue, np.array([1.0, 2.0])))
    x = leaf(queue, [3.0, 4.0])
    for change in (lambda: w.value.fill_(0), lambda: setattr(w, "value", w.value.copy()), lambda: x.value.fill_(1)):
        with ag.Tape() as tape:
            y = ag.checkpoint(lambda x: (x * w).sum(), x)
        change()
        with pytest.raises(GradientError, match=r"as forward read them, got one of shape \(2,\)"):
            tape.backward(y)
    assert x.grad is None


def test_modules_in_another_mode_are_refused(queue):
    """A batch norm's gradient would be another, without a word."""
    norm, x = BatchNorm1d(queue, 2).double(), leaf(queue, [[1.0, 2.0], [3.0, 5.0]])
    with ag.Tape() as tape:
        y = ag.checkpoint(lambda x: norm(x) * 2.0, x)
    norm.eval()
    with pytest.raises(GradientError, match="the mode that they had in forward, got a BatchNorm1d with training=False"):
        tape.backward(y, retain_graph=True)
    norm.train()
    tape.backward(y)


def test_other_operations_or_draws_are_refused(queue):
    x, mode = leaf(queue, [3.0, 4.0]), {}

    def function(x):
        if mode["now"] == "longer":
            x = x * 2.0
        return ag.tanh(x) if mode["now"] == "other" else ag.dropout(ag.exp(x), 0.5) if mode["now"] else ag.exp(x)

    for first, then, text in (
        ("", "other", r"the same operations when it runs again \(exp of .*\), got tanh of"),
        ("draw", "", "got 1 of them"),
        ("", "draw", "the same random numbers when it runs again, got one draw more"),
        ("longer", "draw", r"\(mul of .*\), got exp of"),
    ):
        mode["now"] = first
        with ag.Tape() as tape:
            y = ag.checkpoint(function, x)
        mode["now"] = then
        with pytest.raises(GradientError, match=text):
            tape.backward(y)
    with pytest.raises(GradientError, match="use_reentrant=False, got True"):
        ag.checkpoint(function, x, use_reentrant=True)
