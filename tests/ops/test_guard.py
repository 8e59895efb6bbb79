"""Every function of netcl.ops that takes tensors says so when it gets something else."""

import inspect
import pickle

import numpy as np
import pytest

import netcl as nc
from netcl import ag, ops
from netcl.core.errors import DTypeError
from netcl.ops.guard import FREE

FUNCTIONS = {name: getattr(ops, name) for name in ops.__all__ if name not in FREE}
NAMES = [name for name, f in FUNCTIONS.items() if callable(f) and not isinstance(f, type)]
WRONG = {
    "list": [1.0, 2.0],
    "array": np.ones(3),
    "nothing": None,
    "text": "a",
    "number in a list": [[1]],
    "node": ag.tensor(nc.ones(3, queue="cpu")),
}


def arguments(function):
    """How many arguments it needs at least."""
    needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    return max(1, sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in needed))


@pytest.mark.parametrize("name", NAMES)
def test_no_attribute_error_reaches_the_user(name):
    function = getattr(ops, name)
    for kind, given in WRONG.items():
        try:
            function(*[given] * arguments(function))
        except AttributeError as error:
            pytest.fail(f"{name} of {kind}: {error}")
        except Exception:
            continue  # refused in other words, or, for a few, taken


def test_the_message_says_what_to_do(queue):
    with pytest.raises(DTypeError, match=r"ops\.sum: expected a Tensor, got list; make one with netcl\.tensor"):
        ops.sum([1.0, 2.0])
    node = ag.tensor(nc.ones(queue, (2, 2)))
    with pytest.raises(DTypeError, match=r"ops\.contiguous: expected a Tensor, got Node; use ag\.contiguous, or"):
        ops.contiguous(node)
    with pytest.raises(DTypeError, match=r"ops\.meshgrid: expected a Tensor, got str; make one"):
        ops.meshgrid("a")
    assert ops.sum(nc.ones(queue, 3)).item() == 3


def test_guarded_functions_stay_themselves():
    assert ops.sum.__name__ == "sum" and "axis" in inspect.signature(ops.sum).parameters and ops.sum.__doc__
    assert pickle.loads(pickle.dumps(ops.sum)) is ops.sum
