"""Forward norms keep their plans: what one depends on is in its key, everything else is taken from the call."""

import numpy as np
import pyopencl as cl
import pytest
from families import FAMILIES, queue_of

from netcl.core.device.profile import override_profile, profile_of
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor
from netcl.ops.normalization.batch_norm import batch_norm
from netcl.ops.normalization.group_norm import group_norm
from netcl.ops.normalization.norm import layer_norm, rms_norm

SHAPE = (3, 8, 8)  # as many channels as elements of a row, so that all norms take the same parameters
PLAIN = {"weight": "float32", "bias": "float32", "dtype": "float32", "shift": 0, "turned": False, "eps": 1e-3}
CALLS = [PLAIN | change for change in (
    {"eps": 0.5}, {"shift": 1}, {"shift": 4}, {"shift": 6}, {"turned": True}, {"weight": None}, {"bias": None},
    {"weight": None, "bias": None}, {"weight": "float16", "bias": "float16"}, {"bias": "float16"}, {"dtype": "float16"},
    {"weight shift": 1}, {"bias shift": 2},
)]  # fmt: skip


def norms(x, w, b, running, eps):
    """The results of each norm, by its name."""
    train, fixed = ([t.copy() for t in running] for _ in range(2))
    found = {
        "layer": layer_norm(x, w, b, eps=eps),
        "rms": (rms_norm(x, w, eps=eps)),
        "two": layer_norm(x, axes=[1, 2], eps=eps),
        "group": group_norm(x, 2, w, b, eps=eps),
        "groups": group_norm(x, 4, w, b, eps=eps),
        "relu": batch_norm(x, w, b, eps=eps, activation="relu"),
        "train": (*batch_norm(x, w, b, *train, momentum=eps, eps=eps), *train),
        "eval": batch_norm(x, w, b, *fixed, training=False, eps=eps)[:1],
    }
    return {name: [t.to_host() for t in tensors] for name, tensors in found.items()}


def shifted(queue, array, shift):
    """`array` as a view that begins `shift` elements behind the start of its memory; NaN is before it."""
    flat = np.concatenate([np.full(shift, np.nan, array.dtype), array.ravel()])
    return Tensor.from_host(queue, flat)[shift:].reshape(*array.shape)


def run(queue, call, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(SHAPE).astype(call["dtype"])
    w, b, mean, var = (rng.random(8) + 0.5 for _ in range(4))
    if call["turned"]:
        given = Tensor.from_host(queue, np.ascontiguousarray(x.swapaxes(0, 2))).transpose(0, 2)
    else:
        given = shifted(queue, x, call["shift"])
    parameters = [
        None if call[name] is None else shifted(queue, a.astype(call[name]), call.get(f"{name} shift", 0))
        for name, a in (("weight", w), ("bias", b))
    ]
    return norms(given, *parameters, [Tensor.from_host(queue, a.astype("f4")) for a in (mean, var)], call["eps"])


@pytest.fixture(params=[name for name in FAMILIES if name != "numpy"], scope="module")
def queue(request):
    """A queue of its own, with no plans yet."""
    known = queue_of(request.param)
    fresh = cl.CommandQueue(known.context, known.device)
    with override_profile(fresh, profile_of(known)):
        yield fresh


def test_a_plan_serves_the_calls_of_its_layout_and_no_others(queue):
    """Every call stands between two of the plain one, which makes the plan that it might be taken for."""
    run(queue, PLAIN, 0)
    plans = len(queue.netcl_state.plans)
    for seed, call in enumerate(CALLS):
        for each in (call, PLAIN, call):
            found, wanted = run(queue, each, seed), run(CPUQueue(), each, seed)
            tolerance = 4e-3 if each["dtype"] == "float16" else 1e-5
            for name in wanted:
                for a, b in zip(found[name], wanted[name], strict=True):
                    assert a.dtype == b.dtype
                    np.testing.assert_allclose(a, b, tolerance, tolerance, err_msg=f"{name} of {each}")
        if call == PLAIN | {"eps": 0.5}:
            assert len(queue.netcl_state.plans) == plans  # numbers are no part of a plan
