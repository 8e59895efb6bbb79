"""Layers put in, replaced and taken out, used, saved and loaded."""

import numpy as np
import pytest

import netcl as nc
from netcl import nn


@pytest.fixture
def model(queue):
    with nc.device(queue):
        yield nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1000))


def test_layers_are_replaced_inserted_and_taken_out(model, tmp_path):
    model[2] = nn.Linear(8, 3)
    model.insert(2, nn.GELU())
    del model[1]
    model.append(nn.Tanh()).extend([nn.Linear(3, 2), nn.Sigmoid()])
    assert isinstance(model.pop(), nn.Sigmoid) and len(model) == 5
    assert [type(m).__name__ for m in model] == ["Linear", "GELU", "Linear", "Tanh", "Linear"]
    assert list(model.state_dict()) == [f"{i}.{n}" for i in (0, 2, 4) for n in ("weight", "bias")]
    x = nc.ones(2, 4)
    assert model(x).shape == (2, 2)
    nc.save(model, tmp_path / "model.netcl")
    np.testing.assert_array_equal(nc.load(tmp_path / "model.netcl")(x).numpy(), model(x).numpy())


def test_a_replaced_layer_is_not_run_by_the_old_ones_kernel(model):
    x = nc.randn(2, 4)
    first = model[:2](x).numpy()
    model[1] = nn.Tanh()
    assert (first >= 0).all() and (model[:2](x).numpy() < 0).any()
    del model[1:]
    assert len(model) == 1


def test_lists_of_modules_as_well(queue):
    layers = nn.ModuleList([nn.Linear(queue, 2, 2)])
    layers.extend([nn.ReLU()]).insert(0, nn.Tanh())
    layers[-1] = nn.GELU()
    assert [type(m).__name__ for m in layers] == ["Tanh", "Linear", "GELU"]
    assert isinstance(layers.pop(0), nn.Tanh) and [n for n, _ in layers.named_parameters()] == ["0.weight", "0.bias"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.__setitem__(9, nn.ReLU()), IndexError, r"Sequential: expected an index in \[-3, 3\), got 9"),
        (lambda m: m.__setitem__(0, len), TypeError, "Sequential: expected modules, got builtin_function_or_method"),
        (lambda m: m.insert("a", nn.ReLU()), TypeError, "Sequential: expected an index as a whole number, got 'a'"),
        (lambda m: m.pop(7), IndexError, "Sequential: expected an index"),
        (lambda m: m.extend([nn.ReLU(), 1]), TypeError, "Sequential: expected modules, got int"),
        (lambda m: m.__delitem__(3), IndexError, "Sequential: expected an index"),
    ],
)
def test_wrong_surgery_changes_nothing(model, call, error, message):
    before = list(model)
    with pytest.raises(error, match=message):
        call(model)
    assert list(model) == before
