"""NETCL_DEBUG: levels, what they print, and that off means off."""

import os
import subprocess
import sys

import numpy as np
import pytest

from netcl.core import debug, process
from netcl.core.backend import opencl, timed
from netcl.core.errors import NetclError
from netcl.core.tensor import Tensor
from netcl.ops import elementwise as E


@pytest.fixture
def level():
    yield debug.set_level
    debug.set_level(0)
    assert not (opencl.hooks or opencl.copy_hooks or process.gate)


def test_launches_are_printed_with_time_and_rate(cl_queue, level, capsys):
    x = Tensor.from_host(cl_queue, np.ones(1024, np.float32))
    assert level(2) == 0
    y = E.copy(E.neg(x))
    y.to_host()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["netcl_neg", "copy:", "read:"]
    assert all(" us, " in line and "GB/s" in line for line in lines)
    level(1)
    E.neg(x)
    assert not capsys.readouterr().err


def test_messages_below_the_level_are_silent(level, capsys):
    debug.log(debug.DEVICES, "quiet")
    level(1)
    debug.log(debug.DEVICES, "loud")
    debug.log(debug.LAUNCHES, "quiet")
    assert capsys.readouterr().err == "netcl: loud\n"


def test_an_unknown_level_is_refused(level, monkeypatch):
    with pytest.raises(NetclError, match="expected 0, 1, 2 or 3"):
        level(7)
    monkeypatch.setenv("NETCL_DEBUG", "all")
    with pytest.raises(NetclError, match="NETCL_DEBUG: expected 0, 1, 2 or 3, got 'all'"):
        debug.from_environment()


def test_numpy_has_nothing_to_print(cpu_queue, level, capsys):
    level(2)
    E.neg(Tensor.ones(cpu_queue, (3,))).to_host()
    assert not capsys.readouterr().err


def test_the_environment_sets_it_from_the_start(cl_queue):
    code = (
        "from netcl import Tensor\nfrom netcl.core.device import manager\n"
        "x = Tensor.ones(manager.default('auto').queue, (4,))\nprint((x + 41).to_host()[0])\n"
    )
    env = {**os.environ, "NETCL_DEBUG": "3"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "42.0"
    assert all(part in done.stderr for part in ('device "auto": ', "netcl_add (", "__kernel void netcl_add("))


def test_commands_go_to_a_queue_that_takes_time_only_while_measured(cl_queue):
    x = Tensor.ones(cl_queue, (1 << 16,))
    events = []
    hook = lambda *args: events.append(args[-1])  # noqa: E731
    opencl.hooks.append(hook)
    try:
        timed.start()
        timed.start()
        y = E.add(x, 1.0)
        timed.stop()
        assert process.gate is not None
        z = E.mul(y, 2.0)
        assert timed.queues() == [cl_queue]
        timed.finish()
        assert all(e.profile.end >= e.profile.start > 0 for e in events) and len(events) == 2
        timed.stop()
    finally:
        opencl.hooks.remove(hook)
    assert process.gate is None and timed.queues() == []
    assert (E.add(z, 1.0).to_host() == 5).all()
