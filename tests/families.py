"""Queues for op tests: every backend and device, and one CPU device once more, running the kernels meant for GPUs."""

import dataclasses
from functools import cache

import pyopencl as cl
from conftest import DEVICES, handle

from netcl.core.profile import profile_of
from netcl.core.queue import state_of

POSING = "gpu-kernels-on-"
FAMILIES = [*DEVICES, *[POSING + name for name in DEVICES if name.endswith("-cpu")][:1]]


@cache
def queue_of(name):
    """The queue behind one of FAMILIES."""
    if not name.startswith(POSING):
        return handle(name).queue
    real = handle(name.removeprefix(POSING)).queue
    posing = cl.CommandQueue(real.context, real.device)
    state_of(posing).profile = dataclasses.replace(profile_of(real), kind="gpu")
    return posing
