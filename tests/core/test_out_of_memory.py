"""Memory that is not there: refused with figures before the system ends the process, and used again after frees."""

import os
import subprocess
import sys
import textwrap
from functools import partial
from types import SimpleNamespace

import numpy as np
import pyopencl as cl
import pytest

from netcl.core import host_memory
from netcl.core.backend import cpu, opencl
from netcl.core.errors import DeviceError, OutOfMemoryError
from netcl.core.memory import BufferPool, pool_of
from netcl.core.tensor import Tensor

MIB, GIB = 1 << 20, 1 << 30


def script(text, limit=None, **environment):
    """What `text` prints in a process of its own, whose address space may be limited."""
    import resource

    def restrict():
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, preexec_fn=restrict,
        env={**os.environ, **environment}, timeout=120,
    )  # fmt: skip
    assert found.returncode == 0, f"ended by {found.returncode}: {found.stderr}"
    return found.stdout


FILL_UP = """
    from netcl.core.device import manager
    from netcl.core.errors import OutOfMemoryError
    from netcl.core.tensor import Tensor

    queue, kept = manager.default("auto").queue, []
    Tensor.zeros(queue, (1 << 18,)).sum().item()  # what compiles it has its memory by then
    try:
        for _ in range(100):
            kept.append(Tensor.zeros(queue, (32 << 18,)))
    except OutOfMemoryError as error:
        print(len(kept), error)
    half = len(kept) // 2
    del kept[half:]
    kept += [Tensor.full(queue, (32 << 18,), i) for i in range(half // 2)]
    print([t.sum().item() for t in kept[half:]] == [float(i * (32 << 18)) for i in range(half // 2)], half > 4)
"""


def on_cpu(queue):
    return queue.device.type & cl.device_type.CPU


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit that the system keeps")
def test_a_full_device_refuses_and_recovers(cl_queue):
    """The driver promises more than the device has, and the system would end the process."""
    if "PoCL" not in cl_queue.device.platform.version:
        pytest.skip("the limit is PoCL's")
    out = script(FILL_UP, POCL_MEMORY_LIMIT="1")
    count, message = out.split(" ", 1)
    assert 24 <= int(count) < 32  # of 32 MiB in 1 GiB
    assert "expected room for 33,554,432 bytes, got none: in use" in message
    assert "device total 1,073,741,824" in message and "True True" in message


@pytest.mark.skipif(sys.platform != "linux", reason="needs ulimit")
def test_a_full_address_space_refuses_and_recovers(cl_queue):
    if "PoCL" not in cl_queue.device.platform.version:
        pytest.skip("other drivers need more than the limit to start")
    out = script(FILL_UP, limit=2 * GIB)
    assert "the address space (ulimit -v) has 2,147,483,648 bytes" in out and "True True" in out


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Files like Linux's, of a system with 8 GiB of which 6 are free, changed by `system(path, text)`."""

    def put(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    put("proc/meminfo", "MemTotal:  8388608 kB\nMemFree: 100 kB\nMemAvailable:  6291456 kB\nHugePages: 0\n")
    put("proc/self/statm", "100000 20000 0 0 0 0 0")
    monkeypatch.setattr(host_memory, "ROOT", tmp_path)
    return put


def test_room_is_what_the_system_has(system):
    found = host_memory.room()
    assert found.nbytes == 6 * GIB - 256 * MIB and "6,442,450,944 of 8,589,934,592" in found.limit
    assert host_memory.room(promised=5 * GIB).nbytes == GIB - 256 * MIB
    assert host_memory.room(promised=7 * GIB).nbytes == 0
    system("proc/meminfo", "")
    assert host_memory.room().nbytes >= 1 << 62  # a system that does not tell


@pytest.mark.parametrize(
    ("line", "folder", "limit", "used", "cached"),
    [
        ("0::/a/b", "sys/fs/cgroup/a", "memory.max", "memory.current", "inactive_file"),  # of a group around it
        ("0::/", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("4:cpu,memory:/a/b", "sys/fs/cgroup/memory/a/b", "memory.limit_in_bytes", "memory.usage_in_bytes",
         "total_inactive_file"),
        ("4:memory:/not/seen/here", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
         "total_inactive_file"),
    ],
)  # fmt: skip
def test_room_is_what_control_groups_leave(system, line, folder, limit, used, cached):
    system("proc/self/cgroup", f"9:name=systemd:/\n3:cpuset:/\n{line}\n")
    system(f"{folder}/{limit}", f"{2 * GIB}\n")
    system(f"{folder}/{used}", f"{GIB}\n")
    system(f"{folder}/memory.stat", f"anon 5\n{cached} {GIB // 2}\n")
    host_memory._groups.cache_clear()
    found = host_memory.room()
    assert found.nbytes == GIB + GIB // 2 - 256 * MIB and "control group" in found.limit
    system(f"{folder}/{limit}", "max\n")
    assert host_memory.room().nbytes == 6 * GIB - 256 * MIB


def test_pools_of_cpu_devices_refuse_what_the_host_lacks(cl_queue, system):
    """Also when it is asked for in parts, and what was freed can be had again."""
    if not on_cpu(cl_queue):
        pytest.skip("a device with memory of its own")
    pool_of(cl_queue).free_held()
    system("proc/meminfo", f"MemTotal: {1 << 20} kB\nMemAvailable: {(1 << 17) + 65536} kB\n")  # 64 MiB but the reserve
    pool = BufferPool(cl_queue)
    pool._budget.free = 0
    blocks = []
    with pytest.raises(OutOfMemoryError, match=r"in use .*the system has 201,326,592 of 1,073,741,824 bytes left"):
        blocks.extend(pool.buffer(8 * MIB) for _ in range(20))
    assert 4 <= len(blocks) <= 8
    del blocks[1:]
    assert pool.buffer(8 * MIB) is not None
    with pytest.raises(OutOfMemoryError, match="room for 104,857,600 bytes"):
        pool.buffer(100 * MIB)
    pool._budget.free = 0


def test_idle_blocks_are_used_when_nothing_is_left(cl_queue, system):
    if not on_cpu(cl_queue):
        pytest.skip("a device with memory of its own")
    pool = BufferPool(cl_queue)
    block = pool.buffer(8 * MIB)
    del block
    misses = pool.stats.misses
    system("proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 0 kB\n")
    pool._budget.free = 0
    assert pool.buffer(8 * MIB) is not None and pool.stats.misses == misses
    pool._budget.free = 0


def test_another_pool_of_the_device_gives_back_what_is_idle(cl_queue, system):
    if not on_cpu(cl_queue):
        pytest.skip("a device with memory of its own")
    pool_of(cl_queue).free_held()
    one, two = BufferPool(cl_queue), BufferPool(cl_queue)
    block = one.buffer(64 * MIB)
    del block
    one._budget.total, total = sum(p.managed_bytes for p in one._budget.pools) + 8 * MIB, one._budget.total
    one._budget.free = 0
    try:
        assert two.buffer(32 * MIB) is not None and one.managed_bytes == 0
    finally:
        one._budget.total, one._budget.free = total, 0


@pytest.mark.parametrize("shape", [(1 << 31, 1 << 31), (1 << 40, 1 << 40), (1 << 62,), (1 << 50,)])
def test_sizes_beyond_any_memory_never_reach_the_driver(queue, shape, monkeypatch):
    def asked(*_):
        raise AssertionError("the driver was asked")

    if isinstance(queue, cl.CommandQueue):
        fake = SimpleNamespace(allocate=asked, managed_bytes=0, active_bytes=0, active_blocks=0, held_blocks=0)
        pool = BufferPool(queue)
        pool._pool = fake
        pool._make = partial(queue.netcl_state.maker.allocate, fake)
        monkeypatch.setattr(queue.netcl_state, "pool", pool)
    with pytest.raises(OutOfMemoryError, match=r"expected room .*for [\d,]+ bytes, got none"):
        Tensor.empty(queue, shape)
    with pytest.raises(MemoryError):
        Tensor.zeros(queue, shape, "int8")


def test_numpy_refuses_what_the_system_would_only_promise(cpu_queue, system):
    with pytest.raises(OutOfMemoryError, match=r"room on the host for 68,719,476,736 bytes.*the system has"):
        Tensor.zeros(cpu_queue, (1 << 34,))
    x = Tensor.ones(cpu_queue, (1, 1 << 12)).expand(1 << 24, 1 << 12)
    with pytest.raises(OutOfMemoryError, match="to_host: expected room"):
        x.to_host()
    assert Tensor.ones(cpu_queue, (3,)).sum().item() == 3


def test_numpy_out_of_memory_is_our_error(cpu_queue):
    def greedy(*_):
        raise MemoryError("Unable to allocate 1.00 TiB")

    x = Tensor.ones(cpu_queue, (3,))
    for call in (lambda: cpu.compute(greedy, x), lambda: cpu.update(greedy, [x], x)):
        with pytest.raises(OutOfMemoryError, match=r"what greedy makes \(Unable to allocate 1.00 TiB\)"):
            call()


REFUSALS = [(cl.MemoryError, -4, OutOfMemoryError), (cl.RuntimeError, -5, OutOfMemoryError),
            (cl.RuntimeError, -6, OutOfMemoryError), (cl.RuntimeError, -9999, DeviceError)]  # fmt: skip


@pytest.mark.parametrize(("kind", "code", "expected"), REFUSALS)
def test_commands_that_the_driver_refuses_raise_our_errors(cl_queue, monkeypatch, kind, code, expected):
    x, y = Tensor.ones(cl_queue, (100,)), Tensor.ones(cl_queue, (100,))
    x.to_host()

    refused = type("Refused", (kind,), {"code": code})

    def refuse(*_, **__):
        raise refused("refused")

    calls = {
        "copy of 400 bytes to the device": lambda: Tensor.from_host(cl_queue, np.ones(100, "f4")),
        "copy of 400 bytes to the host": x.to_host,
        "fill of 400 bytes": lambda: x.fill_(2),
        "copy of 400 bytes on the device": lambda: opencl.copy_buffer(cl_queue, x.buffer, y.buffer, 400),
    }
    with monkeypatch.context() as patch:
        patch.setattr(cl, "enqueue_copy", refuse)
        patch.setattr(cl, "enqueue_fill_buffer", refuse)
        for what, call in calls.items():
            with pytest.raises(expected, match=f"{what} failed on "):
                call()
    assert x.to_host().sum() == 100
