"""Memory written between forward and backward: what backward reads is what forward read, or one clear error."""

import numpy as np
import pytest

import netcl.autograd as ag
from netcl import nn, optim
from netcl.core import versions
from netcl.core.errors import GradientError
from netcl.core.tensor import Tensor
from netcl.nn import init
from netcl.ops import elementwise, update
from netcl.ops.product.op import gemm
from netcl.optim import clip_grad_norm_
from netcl.runtime.capture import KernelCapture

X = np.float32([[1, 2], [3, 4]])


def on(queue, values):
    return Tensor.from_host(queue, np.float32(values))


def leaf(queue, values):
    return ag.Parameter(on(queue, values))


def by_optimizer(cls, **settings):
    def write(w):
        w.grad = on(w.queue, np.ones(w.shape))
        cls([w], lr=0.1, **settings).step()

    return write


def by_load_state_dict(w):
    module = nn.Linear(w.queue, 2, 2, bias=False)
    module.weight = w
    module.load_state_dict({"weight": on(w.queue, X)})


def by_replay(w):
    capture = KernelCapture()
    with capture:
        elementwise.assign(w.value, on(w.queue, X))
    return capture


def by_compiled_step(w):
    opt = optim.SGD([w], lr=0.1)

    @ag.CompiledStep
    def step(x):
        with ag.Tape() as tape:
            loss = ag.sum(ag.mul(w, x))
        tape.backward(loss)
        opt.step()
        opt.zero_grad()
        return loss

    x = on(w.queue, X)
    step(x), step(x)  # runs as it is, then is recorded
    return lambda: step(x)


WRITES = {
    "fill_": lambda w: w.value.fill_(7),
    "fill_ of a view": lambda w: w.value[0, 1:].fill_(7),
    "fill_ across": lambda w: w.value.T[0].fill_(7),
    "assign": lambda w: elementwise.assign(w.value, on(w.queue, X)),
    "assign to a view": lambda w: elementwise.assign(w.value[1], on(w.queue, X[0])),
    "out= of a row": lambda w: elementwise.apply("add", on(w.queue, X), 1.0, out=w.value),
    "out= of a product": lambda w: gemm(on(w.queue, X), on(w.queue, X), out=w.value),
    "a moving average": lambda w: update.update("ema", [w.value], [on(w.queue, X)], keep=0.5),
    "SGD": by_optimizer(optim.SGD),
    "momentum": by_optimizer(optim.SGD, momentum=0.9),
    "AdamW": by_optimizer(optim.AdamW),
    "load_state_dict": by_load_state_dict,
    "initialisation": lambda w: init.normal_(w),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_a_parameter_written_before_backward_is_refused(queue, write, compiled):
    w, x = leaf(queue, X + 1), leaf(queue, X)
    function = ag.jit_compile(lambda w, x: ag.mul(w, x)) if compiled else ag.mul
    with ag.Tape() as tape:
        loss = ag.sum(function(w, x))
    write(w)
    with pytest.raises(GradientError, match=r"backward of .*mul.*: expected its saved tensor of shape \(2, 2\)"):
        tape.backward(loss)


@pytest.mark.parametrize("write", [WRITES["fill_"], WRITES["SGD"]], ids=["fill_", "SGD"])
@pytest.mark.parametrize("name", ["linear", "matmul", "linear_relu", "linear_gelu"])
def test_the_weight_of_a_product_written_before_backward_is_refused(queue, name, write):
    w, x = leaf(queue, X + 1), leaf(queue, X)
    with ag.Tape() as tape:
        loss = ag.sum(getattr(ag, name)(x, w))
    write(w)
    with pytest.raises(GradientError, match="expected its saved tensor"):
        tape.backward(loss)


@pytest.mark.parametrize("record", [by_replay, by_compiled_step], ids=["capture", "compiled step"])
def test_a_replay_counts_as_a_write(queue, record):
    w, x = leaf(queue, X + 1), leaf(queue, X)
    recorded = record(w)
    w.grad = None
    with ag.Tape() as tape:
        loss = ag.sum(ag.mul(w, x))
    tape.backward(loss, retain_graph=True)
    (recorded.replay if isinstance(recorded, KernelCapture) else recorded)()
    with pytest.raises(GradientError, match="a replay"):
        tape.backward(loss)


def test_a_result_that_the_next_replay_overwrites_is_not_read_by_backward(queue):
    w = leaf(queue, X)
    step = ag.CompiledStep(lambda x: elementwise.mul(x, 2.0))
    for _ in range(2):
        step(on(queue, X))
    with ag.Tape() as tape:
        loss = ag.sum(ag.mul(w, step(on(queue, X))))
    step(on(queue, X + 1))
    with pytest.raises(GradientError, match="expected its saved tensor"):
        tape.backward(loss)


def test_a_recording_that_is_gone_has_still_written(queue):
    w, x = leaf(queue, X), leaf(queue, X)
    capture = by_replay(w)
    with ag.Tape() as tape:
        loss = ag.sum(ag.mul(w, x))
    capture.replay()
    del capture
    with pytest.raises(GradientError, match="expected its saved tensor"):
        tape.backward(loss)


def test_running_statistics_count(queue):
    x, mean, variance = leaf(queue, X), on(queue, [0, 0]), on(queue, [1, 1])
    with ag.Tape() as tape:
        loss = ag.sum(ag.batch_norm(x, running_mean=mean, running_var=variance, training=False))
    ag.batch_norm(on(queue, X), running_mean=mean, running_var=variance)
    with pytest.raises(GradientError, match=r"backward of batch_norm: .* shape \(2,\)"):
        tape.backward(loss)


def test_class_weights_count(queue):
    logits, target, weight = leaf(queue, X), Tensor.from_host(queue, np.int32([0, 1])), on(queue, [1, 2])
    with ag.Tape() as tape:
        loss = ag.sum(ag.cross_entropy(logits, target, weight=weight, reduction="none"))
    weight.fill_(3)
    with pytest.raises(GradientError, match="backward of cross_entropy"):
        tape.backward(loss)


def test_the_error_names_the_line_that_called_the_op(queue):
    w = leaf(queue, X)
    with ag.detect_anomaly():
        with ag.Tape() as tape:
            loss = ag.sum(ag.exp(w))
            square = ag.square(w)  # its line
        w.value.fill_(1)
        tape.backward(loss, retain_graph=True)  # exp keeps its result, not w
        with pytest.raises(GradientError, match=r"of square: .*test_versions\.py:\d+: square = ag\.square\(w\)"):
            tape.backward(square)


# -- what must not be refused ------------------------------------------------------------------------------------------


def test_what_the_wanted_gradients_do_not_read_may_be_written(queue):
    """Twice the gradient of one graph, with a step between: the gradient of w reads the data alone."""
    w, b, x = leaf(queue, X + 1), leaf(queue, [1, 1]), on(queue, X)
    opt = optim.SGD([w, b], lr=0.5)
    for function in (
        lambda: ag.mul(w, x),
        lambda: ag.matmul(x, w),
        lambda: ag.linear(x, w, b),
        lambda: ag.conv2d(x.reshape(1, 1, 2, 2), ag.reshape(w, 1, 1, 2, 2)),
    ):
        with ag.Tape() as tape:
            loss = ag.sum(function())
        tape.backward(loss, retain_graph=True)
        before = w.grad.to_host()
        opt.step()
        tape.backward(loss)
        np.testing.assert_allclose(w.grad.to_host(), 2 * before)
        opt.zero_grad()


def test_values_may_be_written_when_only_shapes_are_kept(queue):
    w = leaf(queue, X)
    with ag.Tape() as tape:
        loss = ag.sum(ag.add(ag.reshape(w, 4), 1.0))
    w.value.fill_(5)
    tape.backward(loss)
    assert w.grad.to_host().tolist() == [[1, 1], [1, 1]]


def test_a_normal_loop_is_never_refused(queue):
    """Accumulated gradients, clipping, momentum, a shared weight, batch norm used twice, averages, loading, no_grad."""
    net = nn.Sequential(nn.Linear(queue, 2, 2), nn.BatchNorm1d(queue, 2), nn.ReLU())
    average = [Tensor.zeros(queue, p.shape) for p in net.parameters()]
    opt = optim.AdamW(net.parameters(), lr=1e-2)
    saved = {k: v.copy() for k, v in net.state_dict().items()}
    for step in range(6):
        for part in range(2):
            with ag.Tape() as tape:
                x = ag.tensor(on(queue, X + part))
                loss = ag.mean(ag.square(net(net(x))))
            tape.backward(loss, retain_graph=True)
            tape.backward(loss)
        clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        update.update("ema", average, [p.value for p in net.parameters()], keep=0.9)
        with ag.no_grad():
            net(ag.tensor(on(queue, X)))
        if step == 3:
            net.load_state_dict(saved)
    assert all(np.isfinite(p.value.to_host()).all() for p in net.parameters())


def test_a_recorded_step_and_an_eager_one_take_turns(queue):
    w, x = leaf(queue, X), on(queue, X)
    opt = optim.SGD([w], lr=0.1)

    def step(x):
        with ag.Tape() as tape:
            loss = ag.sum(ag.square(ag.sub(w, x)))
        tape.backward(loss)
        opt.step()
        opt.zero_grad()
        return loss

    recorded, expected = ag.CompiledStep(step), X.copy()
    for _ in range(4):
        recorded(elementwise.add(x, 1.0))
        step(x)
        expected -= np.float32(0.1) * 2 * (expected - (X + 1))
        expected -= np.float32(0.1) * 2 * (expected - X)
    np.testing.assert_allclose(w.value.to_host(), expected, rtol=1e-5)


def test_new_memory_is_no_write(queue):
    x = on(queue, X)
    before = versions.now
    Tensor.zeros(queue, (3,)), elementwise.add(x, 1.0), x.copy(), x.T.contiguous(), gemm(x, x)
    with ag.Tape() as tape:
        loss = ag.sum(ag.mul(leaf(queue, X), x))
    tape.backward(loss)
    assert versions.now == before
