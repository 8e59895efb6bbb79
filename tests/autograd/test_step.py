"""CompiledStep: recorded training equals eager training bit for bit, and what cannot be recorded is refused."""

import gc
import itertools
import threading

import numpy as np
import pyopencl as cl
import pytest

import netcl.autograd as ag
from netcl.autograd.jit.step import CompiledGraph, CompiledStep
from netcl.cli.train import Run
from netcl.core.errors import CaptureError, DTypeError, GradientError
from netcl.core.live import Cell, fresh
from netcl.core.memory import pool_of
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor
from netcl.nn import Linear, ReLU, Sequential
from netcl.ops import elementwise as E
from netcl.ops.create import random
from netcl.ops.product.op import matmul
from netcl.optim import SGD, AdamW, StepLR, clip_grad_norm_
from netcl.runtime.cache import cacher
from netcl.runtime.capture import replay


def parameters(queue, sizes=(12, 16, 3), seed=0):
    rng, found = np.random.default_rng(seed), []
    for n, m in itertools.pairwise(sizes):
        found.append(ag.Parameter(Tensor.from_host(queue, rng.normal(size=(m, n), scale=0.3).astype(np.float32))))
        found.append(ag.Parameter(Tensor.from_host(queue, np.zeros(m, np.float32))))
    return found


def forward(params, x):
    for w, b in zip(params[::2], params[1::2]):
        x = ag.linear(x, w, b)
        if b is not params[-1]:
            x = ag.relu(x)
    return x


def training(queue, make=AdamW, clip=None, **settings):
    """Parameters, optimizer, and the eager step (x, y) -> loss."""
    params = parameters(queue)
    opt = make(params, **settings)

    def step(x, y):
        with ag.Tape() as tape:
            loss = ag.mean(ag.square(forward(params, ag.tensor(x)) - ag.tensor(y)))
        tape.backward(loss)
        if clip:
            clip_grad_norm_(params, clip)
        opt.step()
        opt.zero_grad()
        return loss

    return params, opt, step


def batches(queue, count, size=8, seed=1):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield tuple(Tensor.from_host(queue, rng.normal(size=(size, n)).astype(np.float32)) for n in (12, 3))


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (AdamW, {"lr": 1e-2}),
        (AdamW, {"lr": 1e-2, "clip": 0.1}),
        (SGD, {"lr": 1e-1, "momentum": 0.9, "nesterov": True}),
    ],
)
def test_a_recorded_training_equals_the_eager_one(queue, make, settings):
    eager_params, eager_opt, eager = training(queue, make, **settings)
    params, opt, step = training(queue, make, **settings)
    compiled = CompiledStep(step)
    schedules = [StepLR(o, step_size=3, gamma=0.5) for o in (eager_opt, opt)]
    for i, (x, y) in enumerate(batches(queue, 12)):
        want, got = eager(x, y), compiled(x, y)
        np.testing.assert_array_equal(got.value.to_host(), want.value.to_host())
        for schedule in schedules:
            schedule.step()
        if i == 8:
            for o in (eager_opt, opt):
                o.param_groups[0]["lr"] = 0.003
    for a, b in zip(params, eager_params):
        np.testing.assert_array_equal(a.value.to_host(), b.value.to_host())
    assert len(compiled.captures) == 1 and compiled.num_launches > 0
    assert [s["step"] for s in opt.state.values()] == [s["step"] for s in eager_opt.state.values()] == [12] * 4


def test_another_shape_is_recorded_of_its_own(queue):
    eager_params, _, eager = training(queue)
    params, _, step = training(queue)
    compiled = CompiledStep(step)
    sizes = [8, 8, 8, 5, 8, 5, 5, 8, 5]
    for i, size in enumerate(sizes):
        for x, y in batches(queue, 1, size, seed=i):
            eager(x, y), compiled(x, y)
    for a, b in zip(params, eager_params):
        np.testing.assert_array_equal(a.value.to_host(), b.value.to_host())
    assert len(compiled.captures) == 2
    assert "float32[8, 12]" in compiled.explain() and "float32[5, 3]" in compiled.explain()
    compiled.reset()
    assert compiled.captures == () and "nothing recorded" in compiled.explain()


def test_nodes_arrays_and_plain_values_as_inputs(queue):
    @CompiledStep
    def scaled(x, by):
        return ag.mul(x, by) if isinstance(x, ag.Node) else E.mul(x, by)

    for i in range(4):
        x = Tensor.full(queue, (3,), i)
        np.testing.assert_array_equal(scaled(ag.tensor(x), 2.0).value.to_host(), [2 * i] * 3)
        np.testing.assert_array_equal(scaled(x, 3.0).to_host(), [3 * i] * 3)
        np.testing.assert_array_equal(scaled(Tensor.full(queue, (3, 2), i)[:, 1], 4.0).to_host(), [4 * i] * 3)
    assert scaled.__name__ == "scaled" and CompiledGraph is CompiledStep
    arrays = CompiledStep(lambda x: E.neg(x), queue=queue)
    for i in range(4):
        np.testing.assert_array_equal(arrays(np.full(3, i, np.float32)).to_host(), [-i] * 3)
    with pytest.raises(DTypeError, match="queue="):
        CompiledStep(lambda x: x)(np.zeros(2))
    with pytest.raises(GradientError, match="need no gradient"):
        CompiledStep(lambda x: x)(ag.tensor(x, requires_grad=True))


def test_the_oldest_recording_is_dropped(queue):
    step = CompiledStep(lambda x: E.neg(x), warmup=0, keep=2)
    for n in (1, 2, 3, 1):
        assert step(Tensor.ones(queue, (n,))).to_host().tolist() == [-1] * n
    assert len(step.captures) == 2


def test_seeds_are_drawn_anew_and_shared_by_the_backward(queue):
    counter = iter(range(1, 100))

    def step(x):
        seed = fresh(lambda: next(counter))
        return E.add(x, seed), E.mul(x, seed)

    compiled, x = CompiledStep(step), Tensor.ones(queue, (2,))
    for i in range(1, 6):
        added, scaled = compiled(x)
        assert added.to_host()[0] == 1 + i and scaled.to_host()[0] == i


def test_host_reads_are_refused_with_the_reason(queue):
    def step(x):
        y = E.neg(x)
        return float(y.item())

    compiled, x = CompiledStep(step), Tensor.ones(queue, (1,))
    assert compiled(x) == -1
    with pytest.raises(CaptureError, match="the host reads"):
        compiled(x)
    assert E.neg(x).to_host()[0] == -1


def test_state_that_is_replaced_is_refused(queue):
    state = {"mean": Tensor.zeros(queue, (64,))}

    def step(x):
        state["mean"] = E.add(E.mul(state["mean"], 0.9), x)

    compiled, x = CompiledStep(step), Tensor.ones(queue, (64,))
    compiled(x)
    with pytest.raises(CaptureError, match="write its state in place"):
        compiled(x)

    def fixed(x):
        E.assign(state["mean"], E.add(E.mul(state["mean"], 0.9), x))

    state["mean"] = Tensor.zeros(queue, (64,))
    compiled = CompiledStep(fixed)
    for _ in range(4):
        compiled(x)
    np.testing.assert_allclose(state["mean"].to_host(), 1 + 0.9 + 0.81 + 0.729, rtol=1e-6)


def perceptron(queue):
    """784-256-128-10."""
    return Sequential(Linear(queue, 784, 256), ReLU(), Linear(queue, 256, 128), ReLU(), Linear(queue, 128, 10))


def mlp(queue, model=None):
    """The step of a perceptron with AdamW, and a batch of 32."""
    model = perceptron(queue) if model is None else model
    opt = AdamW(model.parameters(), lr=1e-3)

    def step(x, y):
        with ag.Tape() as tape:
            loss = ag.cross_entropy(model(ag.tensor(x)), ag.tensor(y))
        tape.backward(loss)
        opt.step()
        opt.zero_grad()
        return loss

    return step, (Tensor.ones(queue, (32, 784)), Tensor.zeros(queue, (32,), "int32"))


def digits(queue):
    """The step of `netcl train digits`, and its first batch."""
    run = Run(queue, epochs=1, batch_size=64, seed=0)
    return run._step, tuple(Tensor.from_host(queue, a) for a in next(iter(run.loader)))


def eager_peak(queue, step, batch):
    """Most bytes that a step takes beyond what is there before it."""
    step(*batch)
    queue.finish()
    gc.collect()
    pool = pool_of(queue)
    before, peak, take = pool.stats.active_bytes, [0], pool.buffer

    def watched(nbytes):
        found = take(nbytes)
        peak[0] = max(peak[0], pool.stats.active_bytes)
        return found

    pool.buffer = watched
    try:
        step(*batch)
    finally:
        del pool.buffer
    return peak[0] - before


def test_parameters_are_identical_after_100_steps(queue):
    rng, models = np.random.default_rng(0), [perceptron(queue), perceptron(queue)]
    for a, b in zip(*[m.parameters() for m in models]):
        b.value = a.value.copy()
    eager, compiled = mlp(queue, models[0])[0], CompiledStep(mlp(queue, models[1])[0])
    for _ in range(10 if isinstance(queue, CPUQueue) else 100):
        images, labels = rng.standard_normal((32, 784)), rng.integers(0, 10, 32)
        x, y = Tensor.from_host(queue, images.astype(np.float32)), Tensor.from_host(queue, labels.astype(np.int32))
        want, got = eager(x, y), compiled(x, y)
        assert want.value.item() == got.value.item()
    for a, b in zip(*[m.parameters() for m in models]):
        np.testing.assert_array_equal(a.value.to_host(), b.value.to_host())


@pytest.mark.parametrize(("make", "least", "most"), [(mlp, 0.9e6, 1.2e6), (digits, 1e6, 3.5e6)])
def test_the_peak_is_that_of_the_eager_step(cl_queue, make, least, most):
    """Bytes of activations, gradients and workspace; parameters, moments and the batch are there before."""
    step, batch = make(cl_queue)
    eager, compiled = eager_peak(cl_queue, step, batch), CompiledStep(step)
    compiled(*batch)
    compiled(*batch)
    recorded = compiled.captures[-1].peak_bytes
    assert least < recorded <= 1.1 * eager
    assert cl_queue.device.type != cl.device_type.CPU or recorded < most
    assert f"own memory: {recorded:,} bytes at the peak" in compiled.explain() and "replayed by" in compiled.explain()
    assert "launches, 0 copies, 0 fills, 0 writes" in compiled.explain()


def warmed(pools):
    """(requests, misses) of each pool."""
    return [(pool.stats.requests, pool.stats.misses) for pool in pools]


@pytest.mark.parametrize("make", [mlp, digits])
def test_the_first_replay_pays_for_nothing_more_than_the_others(cl_queue, make, monkeypatch):
    """No memory, no program, no search for the way to replay: the two calls before had all that."""
    step, batch = make(cl_queue)
    compiled = CompiledStep(step)
    compiled(*batch), compiled(*batch)
    pools = [pool_of(cl_queue), *compiled.captures[-1].recording.pools.values()]
    before, builds = warmed(pools), cacher.stats.builds
    monkeypatch.setattr(replay, "build", None)
    for _ in range(3):
        compiled(*batch)
    assert warmed(pools) == before and cacher.stats.builds == builds


@pytest.mark.parametrize("make", [mlp, digits])
def test_eager_steps_ask_the_driver_for_memory_at_first_only(cl_queue, make):
    step, batch = make(cl_queue)
    step(*batch), step(*batch)
    pool, builds = pool_of(cl_queue), cacher.stats.builds
    misses = pool.stats.misses
    for _ in range(3):
        step(*batch)
    assert pool.stats.misses == misses and cacher.stats.builds == builds


def test_a_cell_scales_the_loss(queue):
    scale, params = {"now": 8.0}, parameters(queue, (4, 2))

    def step(x):
        for p in params:
            p.grad = None
        with ag.Tape() as tape:
            loss = ag.mul(ag.sum(forward(params, ag.tensor(x))), Cell(lambda: scale["now"]))
        tape.backward(loss)
        return [p.grad for p in params]

    compiled, x = CompiledStep(step), Tensor.ones(queue, (3, 4))
    for now in (8.0, 4.0, 2.0, 0.5):
        scale["now"] = now
        np.testing.assert_array_equal(compiled(x)[1].to_host(), [3 * now] * 2)


def test_batches_are_read_where_they_are_or_copied(queue):
    @CompiledStep
    def step(x, y):
        return E.add(E.mul(x, 2.0), y), x.reshape(-1)

    rng = np.random.default_rng(0)
    for i in range(6):
        a, b = (rng.normal(size=(4, 3)).astype(np.float32) for _ in range(2))
        x, y = Tensor.from_host(queue, a), Tensor.from_host(queue, b)
        if i == 4:
            y = Tensor.from_host(queue, b.T.copy()).T
        got, view = step(x, y)
        del x, y
        Tensor.zeros(queue, (4, 3)), Tensor.zeros(queue, (4, 3))
        np.testing.assert_array_equal(got.to_host(), a * 2 + b)
        np.testing.assert_array_equal(view.to_host(), a.reshape(-1))  # so x is copied: a result shows it
    if not isinstance(queue, CPUQueue) and step.captures[0].tier != "command buffer":
        ((_, found),) = step._recordings()
        assert found.slots[0] is None and found.slots[1] is not None


def test_a_result_may_be_the_next_input(queue):
    """Large enough for several tiles of a product, which must not read what others have written."""
    w = Tensor.from_host(queue, np.random.default_rng(0).standard_normal((300, 300)).astype(np.float32) / 17)
    step = CompiledStep(lambda h: matmul(h, w))
    eager = recorded = Tensor.from_host(queue, np.random.default_rng(1).standard_normal((300, 300)).astype(np.float32))
    for _ in range(5):
        eager, recorded = matmul(eager, w), step(recorded)
        np.testing.assert_array_equal(recorded.to_host(), eager.to_host())


@pytest.mark.parametrize("trains", [False, True])
def test_a_parameter_may_get_another_value(queue, trains):
    p = ag.Parameter(Tensor.ones(queue, (3,)))

    @CompiledStep
    def step(x):
        with ag.Tape() as tape:
            y = ag.sum(ag.mul(p, ag.tensor(x)))
        if trains:
            p.grad = None
            tape.backward(y)
        return y

    x = Tensor.ones(queue, (3,))
    kept = p.value
    for value in (1, 1, 1, 5, 5, 5):
        if value == 5:
            p.value = Tensor.full(queue, (3,), 5)
        assert step(x).value.item() == 3 * value
    p.value = kept
    assert step(x).value.item() == 3 and len(step.captures) == 1


def test_methods_have_steps_of_their_own(queue):
    class Scaler:
        def __init__(self, by):
            self.by = by

        @CompiledStep
        def scaled(self, x):
            return E.mul(x, self.by)

    two, three = Scaler(2.0), Scaler(3.0)
    for _ in range(4):
        assert two.scaled(Tensor.ones(queue, (1,))).item() == 2 and three.scaled(Tensor.ones(queue, (1,))).item() == 3
    assert len(two.scaled.captures) == len(three.scaled.captures) == 1 and Scaler.scaled.captures == ()


def test_inputs_that_cannot_be_told_apart_are_explained(queue):
    x, step = Tensor.ones(queue, (2,)), CompiledStep(lambda *a: E.neg(a[0]), keep=2)
    for wrong in ([x], (x, x), {"x": x}):
        with pytest.raises(DTypeError, match="elements as arguments"):
            step(wrong)
    for _ in range(3):
        step(ag.tensor(x).value, (1, 2))
    with pytest.raises(GradientError, match="need no gradient"):
        step(ag.tensor(x, requires_grad=True), (1, 2))
    for epoch in range(5):
        step(x, epoch)
    with pytest.warns(UserWarning, match="8 combinations of shapes and plain values"):
        step(x, 5)


def test_a_step_inside_another_is_part_of_it(queue):
    inner = CompiledStep(lambda x: E.mul(x, 2.0))
    outer = CompiledStep(lambda x: E.add(inner(x), 1.0))
    for i in range(5):
        assert outer(Tensor.full(queue, (2,), i)).to_host().tolist() == [2 * i + 1] * 2
    assert outer.num_launches == 2


def test_a_step_that_launches_nothing_gives_its_input(queue):
    step = CompiledStep(lambda x: x)
    for i in range(4):
        assert step(Tensor.full(queue, (2,), i)).to_host().tolist() == [i] * 2


def test_two_threads_record_steps_of_their_own(queue):
    results = {}

    def work(name):
        step = CompiledStep(lambda x: E.mul(E.add(x, 1.0), 2.0), warmup=0)
        results[name] = [step(Tensor.full(queue, (10,), i)).to_host()[0] for i in range(10)]

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {name: [2 * (i + 1) for i in range(10)] for name in range(4)}


def test_threads_take_turns(queue):
    step, wrong = CompiledStep(lambda x: E.mul(E.add(x, 1.0), 2.0)), []

    def work(i):
        for _ in range(20):
            with step._lock:  # the result is overwritten by the next call
                got = step(Tensor.full(queue, (1000,), i)).to_host()
            if not (got == 2 * (i + 1)).all():
                wrong.append(i)
        for _ in range(20):
            step(Tensor.full(queue, (1000,), i))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(step.captures) == 1


def test_dropout_draws_a_new_mask_each_time_and_backward_the_same(queue):
    def step(x):
        y, draw = random.dropout(x, 0.5, generator)
        return y, random.dropout_grad(x, 0.5, draw)

    x, masks = Tensor.ones(queue, (1024,)), []
    generator = random.Generator(3)
    wanted = [step(x)[0].to_host() for _ in range(5)]
    generator.manual_seed(3)
    compiled = CompiledStep(step)
    for want in wanted:
        y, grad = (t.to_host() for t in compiled(x))
        np.testing.assert_array_equal(y, want)
        np.testing.assert_array_equal(grad, y)
        assert set(np.unique(y)) == {0.0, 2.0} and 0.8 < y.mean() < 1.2
        masks.append(y.tobytes())
    assert len(set(masks)) == 5
