"""PoCL's own cache, given a folder beside ours: no binaries are asked for, and what is damaged there harms nobody."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from netcl.core import driver
from netcl.core.device import manager, pocl_cache
from netcl.runtime import cache

pytestmark = pytest.mark.skipif(
    not any("PoCL" in profile.vendor for profile in manager.profiles) or sys.platform != "linux",
    reason="needs PoCL on Linux",
)
REPO = Path(__file__).resolve().parents[2]
RUN = """
import sys, numpy as np, pyopencl as cl
from netcl.core.device import manager
from netcl.runtime.cache import cacher, get_kernel
from netcl.core.backend.opencl import launch
dev = next(h for h, p in zip(manager.handles, manager.profiles) if p.vendor == "PoCL")
for value in range(int(sys.argv[1])):
    text = f"__kernel void put(__global int* out, int n) {{ out[0] = {value} + n; }}"
    out, host = cl.Buffer(dev.context, cl.mem_flags.READ_WRITE, 4), np.zeros(1, np.int32)
    launch(get_kernel(dev.queue, text, "put"), dev.queue, (1,), (1,), out, 1)
    cl.enqueue_copy(dev.queue, host, out)
    assert host[0] == value + 1
    if len(sys.argv) > 2: print(value, flush=True)
stats = cacher.stats
print(stats.builds, stats.disk_hits, stats.rejected)
"""


@pytest.fixture
def command(tmp_path):
    """Keywords of a process with caches below tmp_path."""
    env = {**os.environ, "PYTHONPATH": str(REPO), "NETCL_CACHE_DIR": str(tmp_path), "POCL_CACHE_DIR": ""}
    return {"env": {**env, "NETCL_CACHE_MB": "64"}, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


@pytest.fixture
def run(command):
    """run(programs) -> [builds, disk hits, rejected] of a new process that runs so many programs."""

    def call(programs=1):
        done = subprocess.run([sys.executable, "-c", RUN, str(programs)], check=False, timeout=240, **command)
        assert done.returncode == 0, done.stderr
        return [int(n) for n in done.stdout.split()]

    return call


def files(folder, name):
    return sorted((folder / "pocl").rglob(name))


def test_the_second_process_builds_nothing(run, tmp_path):
    assert run(2) == [2, 0, 0]
    assert len(files(tmp_path, "program.bc")) == 2
    assert {path.parent.name for path in files(tmp_path, "put.so")} == {"1-1-1-goffs0-smallgrid"}  # no other sizes
    assert max(path.stat().st_size for path in tmp_path.glob("*.bin")) < 3000
    written = {path: path.stat().st_mtime_ns for path in files(tmp_path, "*.so") + files(tmp_path, "program.bc")}
    assert run(3) == [1, 2, 0]
    assert written.items() <= {path: path.stat().st_mtime_ns for path in [*written]}.items()


def test_damaged_files_are_built_anew(run, tmp_path):
    """As after a loss of power: PoCL itself would end the process, or find no kernel for ever."""
    run()
    for name in ("program.bc", "put.so"):
        (path,) = files(tmp_path, name)
        whole = path.stat().st_size
        for keep in (0, 3, 100, whole // 2, whole - 1):
            os.truncate(path, keep)
            assert not pocl_cache._complete(str(path.parent))
        run()
        assert files(tmp_path, name)[0].stat().st_size == whole
    (path,) = files(tmp_path, "program.bc")
    path.write_bytes(path.read_bytes()[:40] + bytes(160) + path.read_bytes()[200:])  # complete, and wrong
    assert run() == [1, 0, 1]
    assert run() == [0, 1, 0]


def test_killed_builds_leave_a_good_folder(run, command, tmp_path):
    for _ in range(2):
        work = subprocess.Popen([sys.executable, "-c", RUN, "20", "aloud"], **command)
        work.stdout.readline()
        time.sleep(random.random() / 4)
        work.kill()
        work.communicate()
    assert sum(run(20)[:2]) == 20
    assert all(map(pocl_cache._complete, [str(kept.path) for kept in pocl_cache.programs(tmp_path / "pocl")]))
    assert run(20) == [0, 20, 0]


def test_two_processes_fill_one_folder(run, command):
    crowd = [subprocess.Popen([sys.executable, "-c", RUN, "8"], **command) for _ in range(2)]
    for work in crowd:
        out, err = work.communicate(timeout=240)
        assert work.returncode == 0 and sum(map(int, out.split())) == 8, err
    assert run(8) == [0, 8, 0]


def program(folder, name, age, size=1000):
    """A program as PoCL keeps it, used `age` seconds ago."""
    path = folder / name[:2] / (name[2:] * 20)[:37]
    (path / "put" / "1-1-1").mkdir(parents=True)
    (path / "put" / "1-1-1" / "other").write_bytes(bytes(size))
    (path / "last_accessed").touch()
    os.utime(path / "last_accessed", (time.time() - age,) * 2)
    return path


def test_programs_used_longest_ago_go_when_there_are_too_many(tmp_path):
    old = [program(tmp_path, f"AA{name}", 1e6 - i) for i, name in enumerate("ABCD")]
    now = program(tmp_path, "BBA", 10)
    pocl_cache.tend(tmp_path, 5000)
    assert all(path.exists() for path in (*old, now))
    more = program(tmp_path, "BBB", 10)
    pocl_cache.tend(tmp_path, 5000)
    assert [path.exists() for path in (*old, now, more)] == [False, False, True, True, True, True]
    pocl_cache.tend(tmp_path, 10)
    assert [path.exists() for path in (*old, now, more)] == [False] * 4 + [True] * 2  # these may be in use


def test_leftovers_of_killed_builds_go(tmp_path):
    for name in ("tempfile_old", "tempfile_old.so", "tempfile_new", "other"):
        (tmp_path / name).touch()
    for name in ("tempfile_old", "tempfile_old.so", "other"):
        os.utime(tmp_path / name, (1, 1))
    pocl_cache.tend(tmp_path, 1000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["netcl", "other", "tempfile_new"]


def test_a_folder_of_the_users_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "chosen"))
    kept = program(tmp_path / "chosen", "AAA", 1e6)
    pocl_cache.tend_once(10)
    assert kept.exists() and not (tmp_path / "chosen" / "netcl").exists()
    monkeypatch.setenv("NETCL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "pocl"))
    kept = program(tmp_path / "pocl", "AAA", 1e6)
    pocl_cache.tend_once(10)
    assert not kept.exists() and driver.own_pocl_folder() == tmp_path / "pocl"


def test_a_line_is_said_after_seconds_of_building(cl_queue, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cache, "PATIENCE", 0.0)
    monkeypatch.delenv("NETCL_CACHE_MB", raising=False)
    for quiet, expected in (("1", 0), ("0", 1)):
        monkeypatch.setenv("NETCL_QUIET", quiet)
        found = cache.ProgramCache(tmp_path / quiet)
        for value in range(2):
            text = f"__kernel void put(__global int* out) {{ out[0] = {value}; }}"
            found.get_program(cl_queue.context, text, cl_queue.device)
        err = capsys.readouterr().err
        said = f"netcl: building kernels for {cl_queue.device.name.strip()}, kept for next time\n"
        assert err == said * expected
