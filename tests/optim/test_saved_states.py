"""States that do not fit are refused before anything changes: of other kinds, other parameters, damaged ones."""

import copy
import json
import math

import numpy as np
import pytest

from netcl.autograd.node import Parameter
from netcl.core.errors import CheckpointError
from netcl.core.tensor import Tensor
from netcl.optim import (
    SGD,
    Adam,
    AdamW,
    CosineAnnealingLR,
    LambdaLR,
    Momentum,
    ReduceLROnPlateau,
    RMSprop,
    StepLR,
    WarmupCosine,
)

OPTIMIZERS = {
    "sgd": lambda p: SGD(p, lr=0.5),
    "momentum": lambda p: Momentum(p, lr=0.5),
    "adam": lambda p: Adam(p, lr=0.5),
    "amsgrad": lambda p: Adam(p, lr=0.5, amsgrad=True),
    "adamw": lambda p: AdamW(p, lr=0.5),
    "rmsprop": lambda p: RMSprop(p, lr=0.5, momentum=0.9, centered=True),
}
ALIKE = ({"sgd", "momentum"}, {"adam", "amsgrad"})  # one optimizer with other settings, which a state brings along


def trained(queue, kind, names=("a", "b"), steps=2, groups=False):
    params = [Parameter(Tensor.from_host(queue, np.ones((2, i + 1), np.float32)), n) for i, n in enumerate(names)]
    opt = OPTIMIZERS[kind]([{"params": p} for p in params] if groups else params)
    for step in range(steps):
        for p in params:
            p.grad = Tensor.from_host(queue, np.full(p.shape, step + 1.0, np.float32))
        opt.step()
    return opt


def plain(opt):
    """All of a state as NumPy arrays and numbers."""
    state = opt.state_dict()
    found = {n: {k: v.to_host() if k != "step" else v for k, v in s.items()} for n, s in state["state"].items()}
    return {"state": found, "param_groups": state["param_groups"]}


def refused(opt, state, message, **options):
    before = plain(opt)
    for call in (opt.check_state, opt.load_state_dict):
        with pytest.raises(CheckpointError, match=f"^{type(opt).__name__}.load_state_dict: .*{message}"):
            call(state, **options)
    np.testing.assert_equal(plain(opt), before)


# -- optimizers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", OPTIMIZERS)
@pytest.mark.parametrize("into", OPTIMIZERS)
def test_a_state_goes_into_the_optimizer_it_was_saved_from(queue, given, into):
    source, target = trained(queue, given), trained(queue, into, steps=1)
    if given == into or {given, into} in ALIKE:
        target.load_state_dict(source.state_dict())
        np.testing.assert_equal(plain(target), plain(source))
        return
    refused(target, source.state_dict(), "expected a state of .*, got one of the update")
    older = source.state_dict()
    for group in older["param_groups"]:
        del group["update"]
    if {given, into} != {"adam", "adamw"} and {given, into} != {"amsgrad", "adamw"}:
        refused(target, older, "expected the settings .* another kind of optimizer")


def test_names_decide_which_state_is_whose(queue):
    source = trained(queue, "adam", ("a", "b"))
    turned = trained(queue, "adam", ("b", "a"), steps=0)
    with pytest.raises(CheckpointError, match=r"expected b\.m as floats of shape \(2, 1\), like its parameter"):
        turned.load_state_dict(source.state_dict())
    for names in (("a", "c"), ("c", "d")):
        other = trained(queue, "adam", names, steps=1)
        refused(other, source.state_dict(), "expected states of .*'c'.* got .*'b'.*by_position=True")
        other.load_state_dict(source.state_dict(), by_position=True)
        assert [s["step"] for s in other.state.values()] == [2, 2]
        for p, q in zip(other.parameters(), source.parameters()):
            np.testing.assert_array_equal(other.state[p]["m"].to_host(), source.state[q]["m"].to_host())
    nameless = trained(queue, "adam", (None, None), steps=0)
    refused(nameless, source.state_dict(), "expected states of '0', '1' in group 0, got 'a', 'b'")


def test_groups_keep_their_parameters(queue):
    one = trained(queue, "adam", groups=True)
    state = one.state_dict()
    refused(trained(queue, "adam"), state, r"expected groups of \[2\] parameters, got \[1, 1\]")
    state["param_groups"].reverse()
    refused(one, state, "expected states of 'a' in group 0, got 'b'")


DAMAGE = {
    "no moments": (lambda s: s["state"]["a"].pop("v"), r"expected a\.v, which adam keeps, found none"),
    "no states": (lambda s: s["state"].update(a={"step": 2}), r"expected a\.m, which adam keeps"),
    "no count": (lambda s: s["state"]["a"].pop("step"), r"expected a\.step as a whole number, got None"),
    "step -1": (lambda s: s["state"]["a"].update(step=-1), r"expected a\.step of at least 0, got -1"),
    "step 1.5": (lambda s: s["state"]["a"].update(step=1.5), r"expected a\.step as a whole number, got 1\.5"),
    "step NaN": (lambda s: s["state"]["a"].update(step=math.nan), r"expected a\.step as a whole number, got nan"),
    "step true": (lambda s: s["state"]["a"].update(step=True), r"expected a\.step as a whole number, got True"),
    "shape": (lambda s: s["state"]["a"].update(m=np.ones(2)), r"expected a\.m as floats of shape \(2, 1\)"),
    "integers": (lambda s: s["state"]["a"].update(m=np.ones((2, 1), int)), r"expected a\.m as floats"),
    "objects": (lambda s: s["state"]["a"].update(m=np.full((2, 1), None)), r"expected a\.m as floats"),
    "a number": (lambda s: s["state"]["a"].update(m=3), r"expected a\.m as floats .* got 3"),
    "lr NaN": (lambda s: s["param_groups"][0].update(lr=math.nan), "expected lr at least 0, got nan"),
    "lr -1": (lambda s: s["param_groups"][0].update(lr=-1), "expected lr at least 0, got -1"),
    "lr text": (lambda s: s["param_groups"][0].update(lr="0.1"), "expected lr as a number, got '0.1'"),
    "initial_lr": (lambda s: s["param_groups"][0].update(initial_lr=-1), "expected initial_lr at least 0, got -1"),
    "one beta": (lambda s: s["param_groups"][0].update(betas=[0.9]), r"expected betas as two numbers, got \[0\.9\]"),
    "betas NaN": (lambda s: s["param_groups"][0].update(betas=[0.9, math.nan]), r"expected betas in \[0, 1\), got nan"),
    "amsgrad": (lambda s: s["param_groups"][0].update(amsgrad="no"), "expected amsgrad as True or False"),
    "no lr": (lambda s: s["param_groups"][0].pop("lr"), "expected the settings lr, betas"),
    "more settings": (lambda s: s["param_groups"][0].update(mu=1), "expected the settings lr, betas"),
    "another's": (lambda s: s["state"].update(c={"step": 1}), "expected states of the parameters .* got states of 'c'"),
    "named twice": (lambda s: s["param_groups"][0].update(params=["a", "a"]), "expected states of 'b' in group 0"),
    "no groups": (lambda s: s.pop("param_groups"), 'expected {"state": '),
    "groups of text": (lambda s: s.update(param_groups="ab"), 'expected {"state": '),
    "no parameters": (lambda s: s["param_groups"][0].pop("params"), 'expected {"state": '),
    "no state": (lambda s: s.pop("state"), 'expected {"state": '),
    "state a list": (lambda s: s.update(state=[1]), 'expected {"state": '),
    "state of text": (lambda s: s["state"].update(a="m"), 'expected {"state": '),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_state_changes_nothing(queue, damage):
    source, target = trained(queue, "adam"), trained(queue, "adam", steps=1)
    state = plain(source)
    state = {**state, "param_groups": [dict(g) for g in state["param_groups"]]}
    hurt, message = DAMAGE[damage]
    hurt(state)
    refused(target, state, message)
    refused(trained(queue, "adam", steps=0), state, message)


@pytest.mark.parametrize("wrong", [None, 3, "state", [], [1, 2], {}, {"model": {}}])
def test_what_is_no_state_is_refused(queue, wrong):
    refused(trained(queue, "adam"), wrong, 'expected {"state": ')


def test_a_state_saved_between_a_change_of_settings_and_the_next_step(queue):
    source, target = trained(queue, "adam"), trained(queue, "adam", steps=0)
    source.param_groups[0]["amsgrad"] = True
    target.load_state_dict(source.state_dict())
    for opt in (source, target):
        for p in opt.parameters():
            p.grad = Tensor.from_host(queue, np.ones(p.shape, np.float32))
        opt.step()
    for p, q in zip(source.parameters(), target.parameters()):
        np.testing.assert_array_equal(source.state[p]["x"].to_host(), target.state[q]["x"].to_host())


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_state_survives_json_and_arrays(queue, kind):
    source, target = trained(queue, kind), trained(queue, kind, steps=0)
    state = plain(source)
    state["param_groups"] = json.loads(json.dumps(state["param_groups"]))
    target.load_state_dict(state)
    np.testing.assert_equal(plain(target), plain(source))


# -- schedules ---------------------------------------------------------------------------------------------------------

SCHEDULES = {
    StepLR: lambda opt: StepLR(opt, 2),
    LambdaLR: lambda opt: LambdaLR(opt, lambda n: 0.5**n),
    CosineAnnealingLR: lambda opt: CosineAnnealingLR(opt, 5),
    WarmupCosine: lambda opt: WarmupCosine(opt, 2, 6),
    ReduceLROnPlateau: lambda opt: ReduceLROnPlateau(opt, patience=1),
}


def scheduled(queue, kind, steps=3):
    opt = trained(queue, "sgd", steps=0, groups=True)
    schedule = SCHEDULES[kind](opt)
    for i in range(steps):
        schedule.step(*[float(i)] * (kind is ReduceLROnPlateau))
    return schedule


def schedule_refused(schedule, state, message):
    before = copy.deepcopy((schedule.state_dict(), schedule.get_last_lr()))
    for call in (schedule.check_state, schedule.load_state_dict):
        with pytest.raises(CheckpointError, match=f"^{type(schedule).__name__}.load_state_dict: .*{message}"):
            call(state)
    assert (schedule.state_dict(), schedule.get_last_lr()) == before


@pytest.mark.parametrize("given", SCHEDULES)
@pytest.mark.parametrize("into", SCHEDULES)
def test_a_schedule_takes_states_of_its_own_kind(cpu_queue, given, into):
    source, target = scheduled(cpu_queue, given), scheduled(cpu_queue, into, 1)
    state = json.loads(json.dumps(source.state_dict()))
    if given is into:
        target.check_state(state)
        target.load_state_dict(state)
        assert target.state_dict() == source.state_dict() and target.get_last_lr() == source.get_last_lr()
        return
    schedule_refused(target, state, f"expected a state of {into.__name__}, got one of {given.__name__}")
    del state["kind"]
    schedule_refused(target, state, "expected ")


NUMBERS = [math.nan, math.inf, -1, "1", None]
WRONG = {
    StepLR: {"step_size": [0, *NUMBERS], "gamma": NUMBERS},
    LambdaLR: {},
    CosineAnnealingLR: {"T_max": [0, *NUMBERS], "eta_min": NUMBERS},
    WarmupCosine: {"warmup_steps": [6, *NUMBERS], "total_steps": [0, *NUMBERS], "eta_min": NUMBERS},
    ReduceLROnPlateau: {
        "factor": [1, *NUMBERS], "patience": NUMBERS, "mode": ["low", None], "threshold_mode": [None, 0],
        "threshold": NUMBERS, "cooldown": NUMBERS, "min_lr": NUMBERS, "eps": NUMBERS, "num_bad_epochs": NUMBERS,
        "cooldown_counter": NUMBERS, "best": [math.nan, None, "1"],
        "lrs": [None, [], [0.1], [0.1, math.nan], [0.1, -1], "ab", [0.1, None]],
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_damaged_schedule_changes_nothing(cpu_queue, kind):
    schedule = scheduled(cpu_queue, kind)
    state = scheduled(cpu_queue, kind, 1).state_dict()
    wrong = {**WRONG[kind], "last_epoch": [-1, -2, 1.5, None, math.nan, True]}
    if kind is not ReduceLROnPlateau:
        wrong["base_lrs"] = [None, [], [0.1], [0.1, math.nan], [0.1, -1], "ab", 0.1]
    for name, values in wrong.items():
        for value in values:
            schedule_refused(schedule, {**state, name: value}, f"expected {name}")
    for name in state:
        if name != "kind":
            schedule_refused(schedule, {k: v for k, v in state.items() if k != name}, "expected ")
    schedule_refused(schedule, {**state, "more": 1}, "expected ")
    for other in (None, 3, [], "state", {}):
        schedule_refused(schedule, other, "expected ")


def test_a_function_that_gives_no_rate_at_the_saved_count(cpu_queue):
    schedule = LambdaLR(trained(cpu_queue, "sgd", steps=0), lambda n: 1.0 if n < 2 else -1.0)
    state = {**schedule.state_dict(), "last_epoch": 5}
    with pytest.raises(CheckpointError, match="LambdaLR at count 5: expected a rate at least 0"):
        schedule.load_state_dict(state)
    assert schedule.last_epoch == 0 and schedule.get_last_lr() == [0.5]
