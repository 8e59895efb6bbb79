"""What optimizers, schedules and clipping are given: everything that makes no sense is refused in the user's words."""

import math

import numpy as np
import pytest

import netcl.autograd as ag
from netcl import nn
from netcl.autograd.node import Parameter
from netcl.core.errors import DTypeError, GradientError, ShapeError
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
    clip_grad_norm_,
    clip_grad_value_,
)

NUMBERS = [math.nan, math.inf, -1, -1e-9, "0.1", None, True, [0.1], np.ones(1), 1j]
SHARES = [*NUMBERS, 1, 1.5]  # in [0, 1)
FLAGS = [None, 1, 0, "no", [], np.ones(1)]
COUNTS = [math.nan, math.inf, -1, 1.5, 2.0, "3", None, True, [1]]
POSITIVE = [*COUNTS, 0]
PAIRS = [0.9, None, (), (0.9,), (0.9, 0.99, 0.999), "09", (0.9, 1.0), (-0.1, 0.9), (math.nan, 0.9), (0.9, "0.9"),
         (True, 0.9), {0.9, 0.99}, (0.9, None)]  # fmt: skip
CHOICES = ["low", None, 0, "", ["min"]]

OPTIMIZERS = {
    SGD: {"lr": NUMBERS, "momentum": NUMBERS, "dampening": NUMBERS, "weight_decay": NUMBERS, "nesterov": FLAGS},
    Momentum: {"lr": NUMBERS, "momentum": NUMBERS, "weight_decay": NUMBERS, "nesterov": FLAGS},
    Adam: {"lr": NUMBERS, "betas": PAIRS, "eps": NUMBERS, "weight_decay": NUMBERS, "amsgrad": FLAGS},
    AdamW: {"lr": NUMBERS, "betas": PAIRS, "eps": NUMBERS, "weight_decay": NUMBERS, "amsgrad": FLAGS},
    RMSprop: {"lr": NUMBERS, "alpha": SHARES, "eps": NUMBERS, "weight_decay": NUMBERS, "momentum": NUMBERS,
              "centered": FLAGS},
}  # fmt: skip
SCHEDULES = {
    StepLR: ({"step_size": 3}, {"step_size": POSITIVE, "gamma": NUMBERS, "last_epoch": [*COUNTS[:2], -2, *COUNTS[3:]]}),
    CosineAnnealingLR: ({"T_max": 3}, {"T_max": POSITIVE, "eta_min": NUMBERS}),
    WarmupCosine: (
        {"warmup_steps": 2, "total_steps": 5},
        {"warmup_steps": [*COUNTS, 5, 6], "total_steps": [*POSITIVE, 2], "eta_min": NUMBERS},
    ),
    LambdaLR: (
        {"lr_lambda": lambda n: 1.0},
        {"lr_lambda": [None, 0.5, "0.5", [], [abs, abs], [0.5], {"a": abs}, lambda n: -1, lambda n: math.nan,
                       lambda n: "1", lambda n: None]},
    ),
    ReduceLROnPlateau: (
        {},
        {"mode": CHOICES, "factor": SHARES, "patience": COUNTS, "threshold": NUMBERS, "threshold_mode": CHOICES,
         "cooldown": COUNTS, "min_lr": NUMBERS, "eps": NUMBERS},
    ),
}  # fmt: skip


def parameter(queue, grad=True):
    p = Parameter(Tensor.from_host(queue, np.ones(3, np.float32)))
    p.grad = Tensor.from_host(queue, np.full(3, 2, np.float32)) if grad else None
    return p


def cases(table):
    given = [(owner, name, v) for owner, names in table.items() for name, values in names.items() for v in values]
    return [pytest.param(*case, id=f"{case[0].__name__}-{case[1]}-{case[2]!r:.18}") for case in given]


@pytest.mark.parametrize(("kind", "name", "value"), cases(OPTIMIZERS))
def test_settings_of_optimizers(cpu_queue, kind, name, value):
    for make in (
        lambda: kind([parameter(cpu_queue)], **{name: value}),
        lambda: kind([{"params": [parameter(cpu_queue)], name: value}]),
    ):
        with pytest.raises((ValueError, TypeError), match=f"^{kind.__name__}: expected .*{name}.*, got "):
            make()
    opt = kind([parameter(cpu_queue)])
    with pytest.raises((ValueError, TypeError), match=f"^{kind.__name__}: expected .*{name}.*, got "):
        opt.add_param_group({"params": [parameter(cpu_queue)], name: value})
    assert len(opt.param_groups) == 1


@pytest.mark.parametrize(
    ("kind", "name", "value"), cases({kind: wrong for kind, (_, wrong) in SCHEDULES.items()})
)  # fmt: skip
def test_settings_of_schedules(cpu_queue, kind, name, value):
    opt = SGD([parameter(cpu_queue)], lr=0.5)
    with pytest.raises((ValueError, TypeError), match=f"^{kind.__name__}.*: expected .*, got "):
        kind(opt, **{**SCHEDULES[kind][0], name: value})
    assert opt.param_groups[0]["lr"] == 0.5 and "initial_lr" not in opt.param_groups[0]
    for wrong in (None, [opt], SGD):
        with pytest.raises(TypeError, match=f"^{kind.__name__}: expected an Optimizer, got "):
            kind(wrong, **SCHEDULES[kind][0])


def test_numbers_of_numpy_are_taken_as_numbers(cpu_queue):
    opt = Adam([parameter(cpu_queue)], lr=np.float32(0.5), betas=[np.float64(0.5), 0], amsgrad=np.bool_(True))
    group = opt.param_groups[0]
    assert group["betas"] == (0.5, 0) and [type(group[k]) for k in ("lr", "amsgrad")] == [float, bool]
    schedule = CosineAnnealingLR(opt, np.int64(4), eta_min=np.float32(0))
    assert type(schedule.T_max) is int and type(schedule.eta_min) is float
    SGD([parameter(cpu_queue)], lr=0)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda q: None, DTypeError, "a list of Parameters, got NoneType"),
        (lambda q: 3, DTypeError, "a list of Parameters, got int"),
        (lambda q: "abc", DTypeError, "expected Parameters, got str"),
        (lambda q: [], ValueError, "at least one parameter"),
        (lambda q: {parameter(q)}, DTypeError, "got set; a set has no order"),
        (lambda q: nn.Linear(q, 2, 2), DTypeError, r"got Linear; pass its parameters\(\)"),
        (lambda q: [nn.Linear(q, 2, 2)], DTypeError, "expected Parameters, got Linear"),
        (
            lambda q: Tensor.ones(q, (3,)),
            DTypeError,
            "Parameters, got Tensor",
        ),
        (lambda q: [np.ones(3)], DTypeError, "expected Parameters, got ndarray"),
        (lambda q: [(parameter(q), parameter(q))], DTypeError, "expected Parameters, got tuple"),
        (lambda q: [{"lr": 0.1}], ValueError, r'groups as {"params": \[...\], "lr": ...}, got'),
        (lambda q: [{"params": [parameter(q)]}, parameter(q)], ValueError, r'groups as {"params"'),
        (lambda q: [{"params": [parameter(q)], 3: 4}], ValueError, r"expected settings among .*, got \['3'\]"),
    ],
)
def test_parameters_of_optimizers(cpu_queue, make, error, message):
    with pytest.raises(error, match=f"^SGD: .*({message})"):
        SGD(make(cpu_queue))


def test_a_result_is_no_parameter(queue):
    p = parameter(queue)
    with ag.Tape():
        q = p * 2
    with pytest.raises(GradientError, match="SGD: expected Parameters, got the result of 'mul'"):
        SGD([q])


def test_one_parameter_needs_no_list(queue):
    p = parameter(queue)
    SGD(p, lr=0.5).step()
    np.testing.assert_array_equal(p.value.to_host(), np.zeros(3))
    clip_grad_norm_(p, 1.0)


@pytest.mark.parametrize("gate", [1.0, "1", np.ones(1, np.float32)])
def test_a_gate_is_a_number_on_the_device(queue, gate):
    opt = Adam([parameter(queue)])
    for wrong in (gate, Tensor.ones(queue, (2,)), Tensor.ones(queue, (1,), "int32")):
        with pytest.raises(ShapeError, match="Adam: expected gate as one float32 on the device, got"):
            opt.step(gate=wrong)
    assert not opt.state


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        *[((v,), "max_norm") for v in (-1, -1e-9, math.nan, None, "1", True, [1.0])],
        *[((1.0, v), "norm_type") for v in (0, 0.0, -1, -math.inf, math.nan, None, "2", True)],
        *[((1.0, 2.0, v), "error_if_nonfinite") for v in (None, 1, "yes")],
    ],
)
def test_arguments_of_clipping(queue, arguments, name):
    p = parameter(queue)
    with pytest.raises((ValueError, TypeError), match=f"^clip_grad_norm_: expected {name} .*, got "):
        clip_grad_norm_([p], *arguments)
    if name == "max_norm":
        with pytest.raises((ValueError, TypeError), match=r"^clip_grad_value_: expected clip_value .*, got "):
            clip_grad_value_([p], *arguments)
    np.testing.assert_array_equal(p.grad.to_host(), [2, 2, 2])


def test_limits_of_clipping(queue):
    p = parameter(queue)
    assert clip_grad_norm_([p], math.inf).item() == pytest.approx(math.sqrt(12))
    clip_grad_value_([p], math.inf)
    np.testing.assert_array_equal(p.grad.to_host(), [2, 2, 2])
    clip_grad_norm_([p], 0.0)
    np.testing.assert_array_equal(p.grad.to_host(), [0, 0, 0])
    for wrong, message in ((None, "got NoneType"), (nn.ReLU(), "got ReLU; pass its"), ([3], "got int")):
        with pytest.raises(DTypeError, match=f"clip_grad_norm_: expected .*Parameters, {message}"):
            clip_grad_norm_(wrong, 1.0)


def test_a_function_that_gives_no_rate_changes_nothing(cpu_queue):
    opt = SGD([parameter(cpu_queue)], lr=0.5)
    schedule = LambdaLR(opt, lambda n: 1.0 if n < 2 else -1.0)
    schedule.step()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"LambdaLR at count 2: expected a rate at least 0, got -0.5"):
            schedule.step()
    assert schedule.last_epoch == 1 and opt.param_groups[0]["lr"] == 0.5
    for wrong in (-1, 1.5, "2", True):
        with pytest.raises((ValueError, TypeError), match=r"LambdaLR\.step: expected epoch"):
            schedule.step(wrong)


@pytest.mark.parametrize("metric", [None, "0.1", [0.1], True, np.ones(2), 1j])
def test_a_metric_is_a_number(cpu_queue, metric):
    schedule = ReduceLROnPlateau(SGD([parameter(cpu_queue)]))
    with pytest.raises((ValueError, TypeError), match=r"ReduceLROnPlateau\.step: expected metrics as one number"):
        schedule.step(metric)
    assert schedule.last_epoch == 0
