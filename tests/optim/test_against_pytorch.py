"""Every optimizer with every option against ten steps of PyTorch's, groups and missing gradients included."""

from pathlib import Path

import numpy as np
import optimizer_cases as cases
import pytest
from safetensors.numpy import load_file

from netcl import optim
from netcl.autograd.node import Parameter
from netcl.core.tensor import Tensor

EXPECTED = load_file(Path(__file__).parents[1] / "fixtures" / "optimizers.safetensors")
TOLERANCE = {"float64": 1e-10, "float32": 2e-5, "bfloat16": 3e-2}


def parameters(queue, dtype):
    return [Parameter(Tensor.from_host(queue, a).astype(dtype)) for a in cases.start()]


def steps(queue, name, options, dtype="float64"):
    """The parameters after each step, flat."""
    params = parameters(queue, dtype)
    optimizer = getattr(optim, name)([{"params": params[:1]}, {"params": params[1:], **cases.SECOND_GROUP}], **options)
    found = []
    for step in range(cases.STEPS):
        for p, g in zip(params, cases.gradients(step)):
            p.grad = None if g is None else Tensor.from_host(queue, g).astype(dtype)
        optimizer.step()
        found.append(np.concatenate([p.value.astype("float64").to_host().ravel() for p in params]))
    return np.array(found)


@pytest.mark.parametrize("case", cases.CASES)
def test_ten_steps_equal_pytorchs(queue, case):
    for dtype in ("float64", "float32"):
        found = steps(queue, *cases.CASES[case], dtype)
        # PyTorch keeps NAdam's product of momenta in float32 whatever the parameters are
        tolerance = max(TOLERANCE[dtype], 1e-6 * case.startswith("NAdam"))
        np.testing.assert_allclose(found, EXPECTED[case], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", cases.FLAGS)
def test_narrow_parameters_follow_pytorchs_steps_to_their_rounding(queue, name):
    found = steps(queue, name, cases.CASES[f"{name} "][1], "bfloat16")
    np.testing.assert_allclose(found[0], EXPECTED[f"{name} "][0], rtol=TOLERANCE["bfloat16"], atol=1e-2)


def test_all_cases_have_values_of_pytorch():
    assert set(EXPECTED) == set(cases.CASES)


def lion(options):
    """Lion in NumPy, by its paper's formulas."""
    lr, (b1, b2), decay = options["lr"], options.get("betas", (0.9, 0.99)), options.get("weight_decay", 0.0)
    params, means, found = cases.start(), [0.0] * len(cases.SHAPES), []
    for step in range(cases.STEPS):
        for i, g in enumerate(cases.gradients(step)):
            if g is not None:
                g = -g if options.get("maximize") else g
                rate = cases.SECOND_GROUP["lr"] if i else lr
                params[i] = (1 - rate * decay) * params[i] - rate * np.sign(b1 * means[i] + (1 - b1) * g)
                means[i] = b2 * means[i] + (1 - b2) * g
        found.append(np.concatenate([p.ravel() for p in params]))
    return np.array(found)


@pytest.mark.parametrize("options", [{}, {"betas": (0.5, 0.8), "weight_decay": 0.3}, {"maximize": True}])
def test_lion_follows_its_formulas(queue, options):
    options = {"lr": 0.02, **options}
    np.testing.assert_allclose(steps(queue, "Lion", options), lion(options), rtol=1e-12, atol=1e-12)


def test_a_sign_of_nothing_is_nothing_and_of_nan_is_nan(queue):
    p = Parameter(Tensor.from_host(queue, np.ones(3, np.float32)))
    p.grad = Tensor.from_host(queue, np.array([0, np.nan, 1], np.float32))
    optim.Lion([p], lr=0.5).step()
    np.testing.assert_array_equal(p.value.to_host(), [1, np.nan, 0.5])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: optim.Adagrad(p, lr_decay=-1), "Adagrad: expected lr_decay at least 0, got -1"),
        (lambda p: optim.Adadelta(p, rho=1.0), r"Adadelta: expected rho in \[0, 1\), got 1.0"),
        (lambda p: optim.Adamax(p, betas=(0.9,)), r"Adamax: expected betas as two numbers, got \(0.9,\)"),
        (lambda p: optim.NAdam(p, momentum_decay=float("nan")), "NAdam: expected momentum_decay at least 0, got nan"),
        (lambda p: optim.RAdam(p, decoupled_weight_decay="no"), "RAdam: expected decoupled_weight_decay as True or"),
        (lambda p: optim.Lion(p, maximize=1), "Lion: expected maximize as True or False, got 1"),
    ],
)
def test_wrong_settings_name_themselves(cpu_queue, make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make(parameters(cpu_queue, "float32"))


def test_a_saved_state_goes_on_where_it_was(queue):
    for name in ("NAdam", "RAdam", "Adagrad"):
        straight = steps(queue, name, {"lr": 0.02})
        params = parameters(queue, "float64")
        optimizer = getattr(optim, name)(
            [{"params": params[:1]}, {"params": params[1:], **cases.SECOND_GROUP}], lr=0.02
        )
        for step in range(cases.STEPS):
            for p, g in zip(params, cases.gradients(step)):
                p.grad = None if g is None else Tensor.from_host(queue, g)
            optimizer.step()
            if step == 4:
                state = optimizer.state_dict()
                groups = [{"params": params[:1]}, {"params": params[1:], **cases.SECOND_GROUP}]
                optimizer = getattr(optim, name)(groups)
                optimizer.load_state_dict(state)
        ended = np.concatenate([p.value.to_host().ravel() for p in params])
        np.testing.assert_array_equal(ended, straight[-1])
