"""Keywords of elementwise ops: those that exist work by name, all others are refused, with the closest that exists."""

import numpy as np
import pytest

import netcl.autograd as ag
from netcl import ops
from netcl.core.errors import DTypeError
from netcl.core.kernels.primitives import INTEGER, TABLE
from netcl.core.tensor import Tensor
from netcl.ops import elementwise

NAMES = [n for n in TABLE if hasattr(ag, n)]
REQUIRED = {"threshold": [0.5, 0.0]}  # settings without a default


def operands(queue, name):
    dtype = np.int32 if TABLE[name].result == INTEGER else np.float32
    return [Tensor.from_host(queue, np.ones(3, dtype)) for _ in TABLE[name].inputs] + REQUIRED.get(name, [])


@pytest.mark.parametrize("module", [ag, ops], ids=["ag", "ops"])
def test_every_elementwise_op_refuses_keywords_that_it_does_not_have(queue, module):
    for name in NAMES:
        if not hasattr(module, name):
            continue
        function, given = getattr(module, name), operands(queue, name)
        assert function(*given).shape == (3,)
        for word in ("inplace", "out"):
            with pytest.raises(TypeError, match=f"^{name}: expected the arguments .*, got the keyword '{word}'"):
                function(*given, **{word: None})


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_the_closest_keyword_is_named(queue, compiled):
    x = ag.tensor(Tensor.from_host(queue, np.float32([-1, 1])))
    for function, wanted in (
        (lambda x: ag.leaky_relu(x, negative_slope=0.1), "'negative_slope' .did you mean 'slope'"),
        (lambda x: ag.gelu(x, approx="tanh"), "'approx' .did you mean 'approximate'"),
        (lambda x: ag.elu(x, alphas=1.0), "'alphas' .did you mean 'alpha'"),
        (lambda x: ag.clip(x, low=0), "'low' .did you mean 'lo'"),
        (lambda x: ag.add(x, x, alpha=2), "'alpha'"),
        (lambda x: ag.where(x, x, other=x, b=x), "'other'"),
        (lambda x: x.relu(inplace=True), "'inplace'"),
        (lambda x: ag.apply_op("leaky_relu", x, negative_slope=0.1), "'negative_slope' .did you mean 'slope'"),
        (lambda x: ag.apply_op("add", x, x, alpha=2), "'alpha'"),
        (lambda x: ag.apply_op("leaky_relu", x), "arguments a, slope, got none by name"),
    ):
        with pytest.raises(TypeError, match=wanted):
            (ag.jit_compile(function) if compiled else function)(x)


def test_operands_may_be_given_by_name(queue):
    x = Tensor.from_host(queue, np.float32([3, 5]))
    for module in (ag, ops):
        assert module.sub(a=x, b=1.0).to_host().tolist() == [2, 4]
        assert module.sub(x, b=1.0).to_host().tolist() == [2, 4]
        assert module.clip(a=x, hi=4, lo=0).to_host().tolist() == [3, 4]
        assert module.where(condition=x, a=x, b=0.0).to_host().tolist() == [3, 5]
        with pytest.raises(TypeError, match=r"multiple values for argument 'a'"):
            module.sub(x, a=x)
        with pytest.raises(TypeError, match=r"multiple values for argument 'b'"):
            module.sub(x, x, b=x)


def test_rows_by_name_check_their_attributes(queue):
    x = Tensor.from_host(queue, np.float32([-1, 1]))
    assert elementwise.apply("leaky_relu", x, slope=0.5).to_host().tolist() == [-0.5, 1]
    for attrs, wanted in (({}, "none by name"), ({"slop": 1.0}, "did you mean 'slope'"), ({"slope": 1, "k": 2}, "'k'")):
        with pytest.raises(DTypeError, match=wanted):
            elementwise.apply("leaky_relu", x, **attrs)
    with pytest.raises(DTypeError, match=r"expected the name of a row, got 'sigmod' \(did you mean 'sigmoid'"):
        elementwise.apply("sigmod", x)
