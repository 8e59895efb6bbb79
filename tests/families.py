"""Queues for op tests: every backend and device, and one CPU device once more, running the kernels meant for GPUs."""

import dataclasses
from functools import cache

import pyopencl as cl
from conftest import DEVICES, handle

from netcl.core.device.profile import profile_of
from netcl.core.queue import state_of
from netcl.runtime.cache import cacher

POSING = "gpu-kernels-on-"
FAMILIES = [*DEVICES, *[POSING + name for name in DEVICES if name.endswith("-cpu")][:1]]


@cache
def queue_of(name):
    """The queue behind one of FAMILIES. Those that pose as GPUs have a context of their own."""
    if not name.startswith(POSING):
        return handle(name).queue
    real = handle(name.removeprefix(POSING)).queue
    context = cl.Context([real.device])
    posing = cl.CommandQueue(context, real.device)
    state_of(posing).profile = dataclasses.replace(profile_of(real), kind="gpu")
    _build_unoptimised(context)  # keeps it: queues of the Intel CPU runtime do not
    return posing


def _build_unoptimised(context):
    """From now on build the programs of `context` without optimising.

    For every barrier of a kernel PoCL makes loops over the group that take its optimiser up to ten seconds.
    """
    build = cacher.get_program

    def get_program(ctx, source, device, options=(), *edit):
        return build(ctx, source, device, (*options, "-cl-opt-disable") if ctx == context else options, *edit)

    cacher.get_program = get_program
