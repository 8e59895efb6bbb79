"""Every schedule against a hundred steps of PyTorch's; resumes, later groups, wrong settings."""

import json
from pathlib import Path

import numpy as np
import pytest
import schedule_cases as cases
from safetensors.numpy import load_file

from netcl.autograd.node import Parameter
from netcl.core.errors import CheckpointError
from netcl.core.tensor import Tensor
from netcl.optim import SGD, Adam, lr_scheduler

EXPECTED = load_file(Path(__file__).parents[1] / "fixtures" / "schedules.safetensors")


def parameter(queue):
    return Parameter(Tensor.from_host(queue, np.zeros(1, np.float32)))


def optimizer_for(queue, name="", groups=2):
    given = [{"params": [parameter(queue)], "lr": rate} for rate in cases.RATES[:groups]]
    return Adam(given) if name in cases.ADAM else SGD(given, momentum=0.9)


def state(optimizer):
    first = optimizer.param_groups[0]
    momentum = first["betas"][0] if "betas" in first else first["momentum"]
    return [*(g["lr"] for g in optimizer.param_groups), momentum]


def run(schedule, steps):
    found = [state(schedule.optimizer)]
    for _ in range(steps):
        schedule.step()
        found.append(state(schedule.optimizer))
    return np.array(found)


@pytest.mark.parametrize("name", cases.CASES)
def test_a_hundred_steps_equal_pytorchs(cpu_queue, name):
    schedule = cases.CASES[name](lr_scheduler, optimizer_for(cpu_queue, name))
    np.testing.assert_allclose(run(schedule, cases.STEPS), EXPECTED[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", cases.CASES)
def test_a_resumed_schedule_goes_on_where_it_was(cpu_queue, name):
    first = optimizer_for(cpu_queue, name)
    schedule = cases.CASES[name](lr_scheduler, first)
    run(schedule, 37)
    saved = json.loads(json.dumps(schedule.state_dict()))
    second = optimizer_for(cpu_queue, name)
    resumed = cases.CASES[name](lr_scheduler, second)
    resumed.load_state_dict(saved)
    np.testing.assert_array_equal(run(resumed, 30), run(schedule, 30))


def test_one_cycle_takes_a_step_behind_its_last_and_no_more(cpu_queue):
    schedule = lr_scheduler.OneCycleLR(optimizer_for(cpu_queue), 1.0, total_steps=10)
    run(schedule, 10)
    assert schedule.get_last_lr()[0] == pytest.approx(1 / 25 / 1e4)
    with pytest.raises(ValueError, match="OneCycleLR: expected at most 10 steps, as it was made for, got step 11"):
        schedule.step()
    assert schedule.last_epoch == 10


def test_warm_restarts_take_fractions_of_an_epoch(cpu_queue):
    schedule = lr_scheduler.CosineAnnealingWarmRestarts(optimizer_for(cpu_queue, groups=1), T_0=2)
    schedule.step(0.5)
    assert schedule.get_last_lr()[0] == pytest.approx((1 + np.cos(np.pi / 4)) / 2)
    again = lr_scheduler.CosineAnnealingWarmRestarts(optimizer_for(cpu_queue, groups=1), T_0=2)
    again.load_state_dict(schedule.state_dict())
    assert again.last_epoch == 0.5 and again.get_last_lr() == schedule.get_last_lr()


def test_a_group_added_later_is_scheduled_from_its_own_rate(cpu_queue):
    optimizer = optimizer_for(cpu_queue, groups=1)
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.5)
    schedule.step()
    optimizer.add_param_group({"params": [parameter(cpu_queue)], "lr": 0.4})
    schedule.step()
    assert schedule.get_last_lr() == pytest.approx([0.25, 0.1])
    functions = lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (n + 1))
    optimizer.add_param_group({"params": [parameter(cpu_queue)], "lr": 0.2})
    functions.step()
    assert functions.get_last_lr() == pytest.approx([0.5, 0.2, 0.1])


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.LambdaLR(o, [lambda n: 1.0]),
        lambda o: lr_scheduler.OneCycleLR(o, 1.0, total_steps=10),
        lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0),
    ],
)
def test_a_group_added_later_is_refused_where_settings_were_given_for_each(cpu_queue, make):
    optimizer = optimizer_for(cpu_queue, groups=1)
    schedule = make(optimizer)
    optimizer.add_param_group({"params": [parameter(cpu_queue)], "lr": 0.4})
    with pytest.raises(ValueError, match=f"{type(schedule).__name__}: expected "):
        schedule.step()
    assert schedule.last_epoch == 0 and optimizer.param_groups[1]["lr"] == 0.4


S = lr_scheduler


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda o: S.MultiStepLR(o, 5), "MultiStepLR: expected milestones as a list of counts, got 5"),
        (lambda o: S.MultiStepLR(o, [1.5]), "MultiStepLR: expected milestones as a whole number, got 1.5"),
        (lambda o: S.ExponentialLR(o, -1), "ExponentialLR: expected gamma at least 0, got -1"),
        (lambda o: S.LinearLR(o, total_iters=0), "LinearLR: expected total_iters of at least 1, got 0"),
        (lambda o: S.PolynomialLR(o, 5, float("nan")), "PolynomialLR: expected power at least 0, got nan"),
        (
            lambda o: S.CosineAnnealingWarmRestarts(o, 0),
            "CosineAnnealingWarmRestarts: expected T_0 of at least 1, got 0",
        ),
        (lambda o: S.CyclicLR(o, 0.1, 1.0, mode="round"), "CyclicLR: expected mode among .*, got 'round'"),
        (lambda o: S.CyclicLR(o, [0.1], 1.0), "CyclicLR: expected base_lr as a number or one for each of 2 groups"),
        (
            lambda o: S.OneCycleLR(o, 1.0),
            "OneCycleLR: expected total_steps, or epochs and steps_per_epoch, got neither",
        ),
        (lambda o: S.OneCycleLR(o, 1.0, 10, pct_start=2), "OneCycleLR: expected pct_start from 0 to 1"),
        (lambda o: S.SequentialLR(o, [S.StepLR(o, 1)], [3]), "SequentialLR: expected 0 milestones that rise"),
        (lambda o: S.SequentialLR(o, [S.ReduceLROnPlateau(o)], []), "expected a list of schedules that follow a count"),
        (lambda o: S.ChainedScheduler([]), "ChainedScheduler: expected a list of schedules"),
    ],
)
def test_wrong_settings_name_themselves(cpu_queue, make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make(optimizer_for(cpu_queue))


def test_momentum_cycles_only_where_there_is_one(cpu_queue):
    plain = optimizer_for(cpu_queue)
    from netcl.optim import Adagrad

    rows = Adagrad([parameter(cpu_queue)])
    with pytest.raises(ValueError, match="expected an optimizer with momentum or betas, got Adagrad; pass cycle_mom"):
        lr_scheduler.OneCycleLR(rows, 1.0, total_steps=5)
    lr_scheduler.OneCycleLR(rows, 1.0, total_steps=5, cycle_momentum=False)
    with pytest.raises(ValueError, match="expected schedules of one optimizer"):
        lr_scheduler.ChainedScheduler([lr_scheduler.StepLR(plain, 1), lr_scheduler.StepLR(rows, 1)])


def test_a_state_of_other_schedules_is_refused_whole(cpu_queue):
    build = cases.CASES["SequentialLR"]
    schedule = build(lr_scheduler, optimizer_for(cpu_queue))
    saved = schedule.state_dict()
    saved["schedulers"][2]["gamma"] = -1.0
    before = schedule.state_dict()
    with pytest.raises(CheckpointError, match="gamma"):
        schedule.load_state_dict(saved)
    assert schedule.state_dict() == before


def test_the_older_module_path_stays():
    from netcl.optim.schedule import StepLR

    assert StepLR is lr_scheduler.StepLR
