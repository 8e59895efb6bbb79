"""Parameters without a gradient at some steps, beside PyTorch's published formulas in float64, each on its own."""

import itertools

import numpy as np
import pytest

import netcl.autograd as ag
from netcl.autograd.node import Parameter
from netcl.core.errors import CaptureError, DeviceError, DTypeError, ShapeError
from netcl.core.tensor import Tensor
from netcl.ops import elementwise
from netcl.optim import SGD, Adam, AdamW, Momentum, RMSprop
from netcl.runtime.capture import KernelCapture

SHAPES = [(3,), (5, 7), (1,), (65,), (8, 9)]


class One:
    """One parameter: its value, its count and its states, stepped only with a gradient."""

    def __init__(self, kind, value, **settings):
        self.kind, self.p, self.o = kind, value.astype(np.float64), settings
        self.t, self.state = 0, {}

    def _state(self, name):
        return self.state.get(name, np.zeros_like(self.p))

    def step(self, g):
        self.t += 1
        self.p = getattr(self, f"_{self.kind}")(g.astype(np.float64))

    def _sgd(self, g):
        mu, lr = self.o.get("momentum", 0.0), self.o["lr"]
        g = g + self.o["weight_decay"] * self.p
        if mu:
            b = g if self.t == 1 else mu * self.state["b"] + (1 - self.o.get("dampening", 0.0)) * g
            self.state["b"] = b
            g = g + mu * b if self.o.get("nesterov") else b
        return self.p - lr * g

    def _adam(self, g):
        (b1, b2), lr, decay, p = self.o["betas"], self.o["lr"], self.o["weight_decay"], self.p
        if self.o.get("decoupled"):
            p = p - lr * decay * p
        else:
            g = g + decay * p
        m, v = b1 * self._state("m") + (1 - b1) * g, b2 * self._state("v") + (1 - b2) * g**2
        top = np.maximum(self._state("top"), v) if self.o.get("amsgrad") else v
        self.state |= {"m": m, "v": v, "top": top}
        return p - lr * (m / (1 - b1**self.t)) / (np.sqrt(top / (1 - b2**self.t)) + self.o["eps"])

    def _rmsprop(self, g):
        alpha, lr = self.o["alpha"], self.o["lr"]
        g = g + self.o["weight_decay"] * self.p
        v = alpha * self._state("v") + (1 - alpha) * g**2
        self.state["v"], spread = v, v
        if self.o.get("centered"):
            self.state["a"] = alpha * self._state("a") + (1 - alpha) * g
            spread = v - self.state["a"] ** 2
        step = g / (np.sqrt(spread) + self.o["eps"])
        if self.o.get("momentum"):
            step = self.state["b"] = self.o["momentum"] * self._state("b") + step
        return self.p - lr * step


ADAM = {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
RMS = {"lr": 0.01, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.1}
CASES = {
    "sgd": (SGD, "sgd", {"lr": 0.1, "weight_decay": 0.01}),
    "dampened": (SGD, "sgd", {"lr": 0.1, "momentum": 0.8, "dampening": 0.3, "weight_decay": 0.01}),
    "nesterov": (SGD, "sgd", {"lr": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.01}),
    "momentum": (Momentum, "sgd", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0}),
    "adam": (Adam, "adam", ADAM),
    "amsgrad": (Adam, "adam", {**ADAM, "amsgrad": True}),
    "adamw": (AdamW, "adam", {**ADAM, "decoupled": True}),
    "adamw-amsgrad": (AdamW, "adam", {**ADAM, "amsgrad": True, "decoupled": True}),
    "rmsprop": (RMSprop, "rmsprop", RMS),
    "rmsprop-momentum": (RMSprop, "rmsprop", {**RMS, "momentum": 0.7}),
    "rmsprop-centered": (RMSprop, "rmsprop", {**RMS, "centered": True}),
    "rmsprop-centered-momentum": (RMSprop, "rmsprop", {**RMS, "centered": True, "momentum": 0.7}),
}
cases = pytest.mark.parametrize("case", CASES)


def given(case, **changes):
    kind, name, settings = CASES[case]
    settings = {**settings, **changes}
    return kind, name, settings, {k: v for k, v in settings.items() if k != "decoupled"}


class Pair:
    """The same parameters in an optimizer (two groups) and in the reference."""

    def __init__(self, queue, case, dtype=np.float32, seed=0):
        self.rng = np.random.default_rng(seed)
        values = [self.rng.standard_normal(s).astype(dtype) for s in SHAPES]
        kind, name, settings, accepted = given(case)
        self.params = [Parameter(Tensor.from_host(queue, v), f"p{i}") for i, v in enumerate(values)]
        second = {"params": self.params[3:], "lr": 0.02, "weight_decay": 0.0}
        self.opt = kind([{"params": self.params[:3]}, second], **accepted)
        other = {**settings, "lr": 0.02, "weight_decay": 0.0}
        self.ones = [One(name, v, **(settings if i < 3 else other)) for i, v in enumerate(values)]

    def gradients(self):
        return [self.rng.standard_normal(s).astype(one.p.dtype) for s, one in zip(SHAPES, self.ones)]

    def step(self, present):
        for p, one, g, there in zip(self.params, self.ones, self.gradients(), present):
            g = g.astype(p.dtype)
            p.grad = Tensor.from_host(p.value.queue, g) if there else None
            if there and p.requires_grad:
                one.step(g)
        self.opt.step()

    def check(self, rtol=5e-5):
        assert [self.opt.state.get(p, {"step": 0})["step"] for p in self.params] == [one.t for one in self.ones]
        for p, one in zip(self.params, self.ones):
            np.testing.assert_allclose(p.value.to_host().astype(float), one.p, rtol=rtol, atol=rtol)


PATTERN = [
    (1, 1, 1, 1, 0),
    (1, 0, 1, 0, 0),
    (1, 1, 1, 1, 1),  # three counts in two groups
    (0, 1, 0, 1, 1),
    (1, 1, 1, 1, 1),
    (0, 0, 0, 0, 0),
    (0, 0, 0, 1, 0),
    (1, 1, 1, 1, 1),
]


# -- eager -------------------------------------------------------------------------------------------------------------


def test_a_parameter_counts_only_steps_with_a_gradient(queue):
    a, b = (Parameter(Tensor.from_host(queue, np.ones(2, np.float32))) for _ in range(2))
    opt = Adam([a, b], lr=0.1)
    for present in ((1, 1), (1, 0), (1, 1)):
        for p, there in zip((a, b), present):
            p.grad = Tensor.from_host(queue, np.ones(2, np.float32)) if there else None
        opt.step()
    assert (opt.state[a]["step"], opt.state[b]["step"]) == (3, 2)
    np.testing.assert_allclose(a.value.to_host(), 0.7, rtol=1e-6)  # with a constant gradient each step is lr
    np.testing.assert_allclose(b.value.to_host(), 0.8, rtol=1e-6)


@cases
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_each_parameter_is_stepped_as_if_it_were_alone(queue, case, dtype):
    pair = Pair(queue, case, dtype)
    for present in PATTERN:
        pair.step(present)
        pair.check(5e-5 if dtype == np.float32 else 1e-9)


@cases
def test_frozen_parameters_sit_out_and_go_on(queue, case):
    pair = Pair(queue, case)
    for i, present in enumerate(PATTERN):
        pair.params[i % 5].requires_grad_(False)
        pair.params[(i + 3) % 5].requires_grad_(True)
        pair.step(present)
        pair.check()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@cases
def test_a_state_with_different_counts_resumes_bit_for_bit(queue, case, dtype):
    straight, first, second = (Pair(queue, case, dtype) for _ in range(3))
    for i, present in enumerate(PATTERN):
        straight.step(present)
        (first if i < 4 else second).step(present)
        if i == 3:
            for p, q in zip(second.params, first.params):
                p.value = Tensor.from_host(queue, q.value.to_host())
            second.opt.load_state_dict(first.opt.state_dict())
            second.rng = first.rng
    for p, q in zip(straight.params, second.params):
        np.testing.assert_array_equal(p.value.to_host(), q.value.to_host())
        assert straight.opt.state[p]["step"] == second.opt.state[q]["step"]


def test_a_skipped_step_takes_back_only_what_it_counted(queue):
    pair = Pair(queue, "adam")
    for present in PATTERN[:3]:
        pair.step(present)
    before = [pair.opt.state[p]["step"] for p in pair.params]
    for p, there in zip(pair.params, PATTERN[3]):
        p.grad = Tensor.from_host(queue, np.ones(p.shape, np.float32)) if there else None
    pair.opt.step(gate=Tensor.from_host(queue, np.array([np.inf], np.float32)))
    pair.opt.skip_last()
    pair.opt.skip_last()  # once is all there is
    assert [pair.opt.state[p]["step"] for p in pair.params] == before
    pair.check()


def test_a_parameter_taken_out_of_its_group_is_left_alone(queue):
    pair = Pair(queue, "momentum")
    pair.step((1,) * 5)
    del pair.opt.param_groups[0]["params"][1]
    kept = pair.params[1].value.to_host()
    pair.step((1, 0, 1, 1, 1))
    pair.params[1].grad = Tensor.from_host(queue, np.ones(SHAPES[1], np.float32))
    pair.opt.step()
    np.testing.assert_array_equal(pair.params[1].value.to_host(), kept)
    del pair.opt.param_groups[0]  # the second group is now the first
    before = pair.params[0].value.to_host()
    pair.params[0].grad = Tensor.from_host(queue, np.ones(SHAPES[0], np.float32))
    pair.opt.step()
    np.testing.assert_array_equal(pair.params[0].value.to_host(), before)


def test_a_wrong_gradient_changes_nothing(queue, cpu_queue):
    wrong = [
        (ShapeError, r"p4: expected shape \(8, 9\), got \(9,\)", Tensor.zeros(queue, (9,))),
        (DTypeError, "p4: expected tensors, got ndarray", np.ones((8, 9), np.float32)),
    ]
    if queue is not cpu_queue:
        wrong.append((DeviceError, "p4: expected operands on one queue", Tensor.zeros(cpu_queue, (8, 9))))
    for error, message, grad in wrong:
        pair = Pair(queue, "adam")
        pair.step((1, 1, 1, 1, 1))
        pair.params[0].grad = Tensor.zeros(queue, (3,))
        pair.params[4].grad = grad
        with pytest.raises(error, match=message):
            pair.opt.step()
        pair.check()


# -- recorded ----------------------------------------------------------------------------------------------------------


def recorded(pair):
    """A CompiledStep of `pair` whose plain argument says which parameters have a gradient."""

    @ag.CompiledStep
    def step(present, *factors):
        with ag.Tape() as tape:
            products = [ag.sum(p * ag.tensor(x)) for p, x, there in zip(pair.params, factors, present) if there]
            loss = products[0]
            for other in products[1:]:
                loss = loss + other
        tape.backward(loss)
        pair.opt.step()
        pair.opt.zero_grad()
        return loss

    return step


def walk(pair, step, present):
    """One recorded step; the gradient of sum(p * x) is x."""
    queue, factors = pair.params[0].value.queue, pair.gradients()
    factors = [g.astype(p.dtype) for g, p in zip(factors, pair.params)]
    for p, one, g, there in zip(pair.params, pair.ones, factors, present):
        if there and p.requires_grad:
            one.step(g)
    step(tuple(present), *[Tensor.from_host(queue, g) for g in factors])
    pair.check()


ALL, SOME, FEW = (1, 1, 1, 1, 1), (1, 0, 1, 1, 0), (0, 0, 1, 0, 0)


@cases
def test_recordings_made_with_and_without_some_gradients_go_on_in_any_order(queue, case):
    pair = Pair(queue, case)
    step = recorded(pair)
    for present in [ALL, ALL, ALL, SOME, SOME, SOME, ALL, FEW, ALL, FEW, FEW, SOME, ALL, ALL]:
        walk(pair, step, present)
    assert len(step.captures) == 3


def test_a_recording_is_replayed_while_counts_stay_together(queue):
    pair = Pair(queue, "adam")
    step = recorded(pair)
    for present in [ALL, ALL, SOME, SOME, ALL]:
        walk(pair, step, present)
    kept = {id(c) for c in step.captures}
    for present in [ALL, SOME, ALL, SOME]:  # counts are apart now and go on so
        walk(pair, step, present)
    assert {id(c) for c in step.captures} == kept


def test_freezing_and_loading_record_again(queue):
    pair = Pair(queue, "amsgrad")
    step = recorded(pair)
    for _ in range(3):
        walk(pair, step, ALL)
    pair.params[1].requires_grad_(False)
    walk(pair, step, ALL)
    walk(pair, step, ALL)
    saved, counts = pair.opt.state_dict(), [one.t for one in pair.ones]
    values = [p.value.to_host() for p in pair.params]
    references = [(one.p, dict(one.state)) for one in pair.ones]
    pair.params[1].requires_grad_(True)
    walk(pair, step, ALL)
    walk(pair, step, SOME)
    pair.opt.load_state_dict(saved)
    for p, v, one, t, (q, states) in zip(pair.params, values, pair.ones, counts, references):
        elementwise.assign(p.value, Tensor.from_host(queue, v))
        one.p, one.t, one.state = q, t, states
    for present in (ALL, ALL, SOME, ALL):
        walk(pair, step, present)


def test_settings_that_ask_for_another_update_record_again(queue):
    pair = Pair(queue, "momentum")
    step = recorded(pair)
    for momentum in (0.9, 0.9, 0.9, 0.0, 0.0, 0.9, 0.9):
        for group, ones in zip(pair.opt.param_groups, (pair.ones[:3], pair.ones[3:])):
            group["momentum"] = momentum
            for one in ones:
                one.o["momentum"] = momentum
        if momentum == 0:
            for one in pair.ones:
                one.state["b"] = np.zeros_like(one.p)  # without momentum nothing is kept
        walk(pair, step, ALL)


def test_a_plain_recording_refuses_counts_that_went_apart(queue):
    pair = Pair(queue, "adam")
    pair.step(ALL)
    capture = KernelCapture()
    with capture:
        pair.opt.step()
    capture.replay()
    assert [pair.opt.state[p]["step"] for p in pair.params] == [3] * 5
    pair.params[0].grad = None
    pair.opt.step()
    before = [p.value.to_host() for p in pair.params]
    with pytest.raises(CaptureError, match="record again"):
        capture.replay()
    assert [pair.opt.state[p]["step"] for p in pair.params] == [3, 4, 4, 4, 4]
    for p, v in zip(pair.params, before):
        np.testing.assert_array_equal(p.value.to_host(), v)


def test_replays_can_be_skipped_one_by_one(queue):
    pair = Pair(queue, "adam")
    gate = Tensor.from_host(queue, np.ones(1, np.float32))
    pair.step(ALL)
    capture = KernelCapture()
    with capture:
        pair.opt.step(gate=gate)
    for _ in itertools.repeat(None, 3):
        capture.replay()
        pair.opt.skip_last()
    assert [pair.opt.state[p]["step"] for p in pair.params] == [2] * 5
