"""The gradient of `where`: what was not chosen gets exactly nothing from it."""

import numpy as np
import pytest

import netcl.autograd as ag
from netcl.core.tensor import Tensor

SPECIAL = np.float32([np.nan, np.inf, -np.inf, 1])


def leaf(queue, values):
    return ag.Parameter(Tensor.from_host(queue, np.float32(values)))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_what_was_not_chosen_gets_zero_from_any_upstream_gradient(queue, compiled):
    condition = Tensor.from_host(queue, np.array([True, True, True, True, False, False, False, False]))
    a, b = leaf(queue, np.ones(8)), leaf(queue, np.ones(8))
    function = ag.jit_compile(lambda c, a, b: ag.where(c, a, b)) if compiled else ag.where
    with ag.Tape() as tape:
        y = function(condition, a, b)
    tape.backward(y, Tensor.from_host(queue, np.tile(SPECIAL, 2)))
    np.testing.assert_array_equal(a.grad.to_host(), [*SPECIAL, 0, 0, 0, 0])
    np.testing.assert_array_equal(b.grad.to_host(), [0, 0, 0, 0, *SPECIAL])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_an_infinite_slope_behind_where_is_kept_out_by_its_argument(queue, compiled):
    """0 * inf = NaN, as in other frameworks, unless the argument stays where the function is defined."""

    def naive(x):
        return ag.where(ag.gt(x, 0.0), ag.sqrt(x), x)

    def careful(x):
        inside = ag.gt(x, 0.0)
        return ag.where(inside, ag.sqrt(ag.where(inside, x, 1.0)), x)

    for function, wanted in ((naive, [np.nan, 0.25]), (careful, [1, 0.25])):
        x = leaf(queue, [-1, 4])
        with ag.Tape() as tape:
            y = (ag.jit_compile(function) if compiled else function)(x)
        tape.backward(y)
        np.testing.assert_array_equal(y.to_host(), [-1, 2])
        np.testing.assert_array_equal(x.grad.to_host(), np.float32(wanted))
