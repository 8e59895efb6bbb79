"""Learning-rate schedules: field cases SCH-*, and each formula."""

import json
import math

import numpy as np
import pytest

from netcl.autograd.node import Parameter
from netcl.core.tensor import Tensor
from netcl.optim import SGD, CosineAnnealingLR, LambdaLR, ReduceLROnPlateau, StepLR, WarmupCosine, lr_scheduler

COSINE = [1, 0.9755283, 0.9045085, 0.7938926, 0.6545085, 0.5, 0.3454915, 0.2061074, 0.0954915, 0.0244717, 0]


@pytest.fixture
def optimizer(cpu_queue):
    return make(cpu_queue)


def make(queue, lr=1.0):
    return SGD([Parameter(Tensor.from_host(queue, np.ones(1, np.float32)))], lr=lr)


def rates(schedule, steps):
    """The rate now and after each step."""
    found = [schedule.get_last_lr()[0]]
    for _ in range(steps):
        schedule.step()
        found.append(schedule.optimizer.param_groups[0]["lr"])
    return found


def test_a_resumed_cosine_goes_on_where_it_was(cpu_queue, optimizer):
    schedule = CosineAnnealingLR(optimizer, T_max=10, eta_min=0)
    assert rates(schedule, 4) == pytest.approx(COSINE[:5], rel=1e-6)
    saved = json.loads(json.dumps([optimizer.state_dict(), schedule.state_dict()]))
    other = make(cpu_queue)
    other.load_state_dict(saved[0])
    resumed = CosineAnnealingLR(other, T_max=10)
    resumed.load_state_dict(saved[1])
    assert other.param_groups[0]["lr"] == resumed.get_last_lr()[0] == pytest.approx(0.6545085)
    assert rates(resumed, 6) == pytest.approx(COSINE[4:], abs=1e-7)
    direct = CosineAnnealingLR(make(cpu_queue), T_max=10, last_epoch=3)
    assert rates(direct, 6) == pytest.approx(COSINE[4:], abs=1e-7)


SCHEDULES = [
    lambda opt: CosineAnnealingLR(opt, T_max=5, eta_min=0.1),
    lambda opt: WarmupCosine(opt, 3, 8, eta_min=0.05),
    lambda opt: StepLR(opt, 2, gamma=0.3),
    lambda opt: LambdaLR(opt, lambda n: 1 / (n + 1)),
]


@pytest.mark.parametrize("build", SCHEDULES)
def test_three_and_three_steps_equal_six(cpu_queue, build):
    straight = rates(build(make(cpu_queue)), 6)
    first_opt = make(cpu_queue)
    first = build(first_opt)
    head = rates(first, 3)
    second_opt = make(cpu_queue)
    second = build(second_opt)
    second_opt.load_state_dict(first_opt.state_dict())
    second.load_state_dict(first.state_dict())
    assert head + rates(second, 3)[1:] == straight


def test_plateau_resumes(cpu_queue):
    metrics = [5, 4, 4, 4, 3, 3, 3, 3]

    def run(schedule, values):
        found = []
        for m in values:
            schedule.step(m)
            found.append(schedule.get_last_lr()[0])
        return found

    straight = run(ReduceLROnPlateau(make(cpu_queue), patience=1), metrics)
    first = ReduceLROnPlateau(make(cpu_queue), patience=1)
    head = run(first, metrics[:3])
    second = ReduceLROnPlateau(make(cpu_queue), patience=1)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert head + run(second, metrics[3:]) == straight


def test_a_new_cycle_starts_from_the_initial_rate(optimizer):
    rates(CosineAnnealingLR(optimizer, T_max=4), 4)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-12)
    assert rates(CosineAnnealingLR(optimizer, T_max=4), 2) == pytest.approx([1, 0.8535534, 0.5])


def test_warmup_rises_to_the_base_rate_and_falls_to_the_end(optimizer):
    found = rates(WarmupCosine(optimizer, warmup_steps=3, total_steps=7, eta_min=0.2), 9)
    fall = [0.2 + 0.8 * (1 + math.cos(math.pi * i / 4)) / 2 for i in range(5)]
    assert found == pytest.approx([0.25, 0.5, 0.75, *fall, 0.2, 0.2])


def test_steps_and_functions(cpu_queue):
    assert rates(StepLR(make(cpu_queue), 2, 0.1), 4) == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    assert rates(LambdaLR(make(cpu_queue, 2.0), lambda n: 0.5**n), 2) == pytest.approx([2, 1, 0.5])
    with pytest.raises(ValueError, match="one per group"):
        LambdaLR(make(cpu_queue), [lambda n: 1, lambda n: 2])


def test_each_group_keeps_its_ratio(cpu_queue):
    a, b = (Parameter(Tensor.from_host(cpu_queue, np.ones(1, np.float32))) for _ in range(2))
    opt = SGD([{"params": a, "lr": 1.0}, {"params": b, "lr": 0.1}])
    schedule = lr_scheduler.CosineAnnealingLR(opt, T_max=2)
    schedule.step()
    assert schedule.get_last_lr() == pytest.approx([0.5, 0.05])


def test_plateau_cuts_after_patience_and_respects_cooldown(optimizer):
    schedule = ReduceLROnPlateau(optimizer, factor=0.5, patience=1, cooldown=2, min_lr=0.2)
    found = []
    for metric in [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]:
        schedule.step(metric)
        found.append(schedule.get_last_lr()[0])
    assert found == [1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.2]


def test_plateau_modes_and_margins(cpu_queue):
    down = ReduceLROnPlateau(make(cpu_queue))
    down.best = -10.0
    assert down.better(-10.1) and not down.better(-10.0001) and not down.better(math.nan)
    up = ReduceLROnPlateau(make(cpu_queue), mode="max", threshold=0.5, threshold_mode="abs")
    up.step(Tensor.from_host(cpu_queue, [1.0]))
    assert up.best == 1 and up.better(1.6) and not up.better(1.4)


@pytest.mark.parametrize(
    "build",
    [
        lambda opt: CosineAnnealingLR(opt, T_max=0),
        lambda opt: StepLR(opt, 0),
        lambda opt: WarmupCosine(opt, 5, 5),
        lambda opt: ReduceLROnPlateau(opt, mode="low"),
        lambda opt: ReduceLROnPlateau(opt, factor=1.0),
    ],
)
def test_bad_settings_are_refused(optimizer, build):
    with pytest.raises(ValueError, match="expected"):
        build(optimizer)
    with pytest.raises(TypeError, match="expected an Optimizer"):
        StepLR(None, 1)
