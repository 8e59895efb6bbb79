"""Plans are looked up on the queue, whoever made it."""

import numpy as np
import pyopencl as cl
import pytest

from netcl import ops
from netcl.core.queue import state_of
from netcl.kernels.plans import remember


@pytest.mark.parametrize("make", [lambda q: ops.arange(q, 3), lambda q: ops.randint(q, (3,), 0, 1) + ops.arange(q, 3)])
def test_a_user_s_own_queue_may_start_with_any_op(cl_queue, make):
    own = cl.CommandQueue(cl_queue.context, cl_queue.device)
    np.testing.assert_array_equal(make(own).to_host(), [0, 1, 2])


def test_a_plan_is_made_once_per_key_and_queue(cl_queue):
    own, made = cl.CommandQueue(cl_queue.context, cl_queue.device), []
    for key in ("a", "b", "a"):
        remember(own, key, lambda: made.append(1) or len(made))
    assert len(made) == 2 and state_of(own).plans == {"a": 1, "b": 2}
