"""Environment variables: one table, checked at the import and when they are read, the same as the page for readers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from netcl.core import settings
from netcl.core.backend import opencl
from netcl.core.errors import NetclError, SettingError
from netcl.core.memory import GIB, PersistentBufferPool, pool_of
from netcl.core.tensor import Tensor

REPO = Path(__file__).resolve().parents[2]
WRONG = {
    "NETCL_DEBUG": ["4", "-1", "all", "1.5"],
    "NETCL_PROFILE": ["2", "yes please", "-1"],
    "NETCL_ASYNC_H2D": ["maybe", "01x"],
    "NETCL_MAX_CACHED_GB": ["abc", "4GB", "nan", "inf", "-1"],
    "NETCL_CACHE_MB": ["abc", "1.5", "-1", "1 GB"],
    "NETCL_MATRIX_UNITS": ["hmma", "MMA,wgmma"],
    "NETCL_TEST_ALL": ["all"],
    "NETCL_TEST_CHAINS": ["0", "many"],
    "NETCL_BENCH_TRACE": ["2"],
}


@pytest.mark.parametrize(("name", "text"), [(n, t) for n, texts in WRONG.items() for t in texts])
def test_wrong_values_name_the_accepted(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    expected = re.escape(f"{name}: expected {settings.TABLE[name].accepts}, got {text!r}; change or unset it.")
    with pytest.raises(SettingError, match=expected) as caught:
        settings.value(name)
    assert isinstance(caught.value, (NetclError, ValueError))
    with pytest.raises(SettingError, match=name):
        settings.check()


@pytest.mark.parametrize("name", settings.TABLE)
def test_empty_means_unset(monkeypatch, name):
    monkeypatch.delenv(name, raising=False)
    unset = settings.value(name)
    for text in ("", "  "):
        monkeypatch.setenv(name, text)
        assert settings.value(name) == unset


def test_values_are_read_when_they_are_needed(monkeypatch):
    for text, number in [("0.05", 0.05), ("4", 4.0), ("0", 0.0), (" 1e-3 ", 1e-3)]:
        monkeypatch.setenv("NETCL_MAX_CACHED_GB", text)
        assert settings.value("NETCL_MAX_CACHED_GB") == number


def test_the_import_refuses_wrong_values_and_warns_of_close_names():
    def run(**environment):
        command = [sys.executable, "-c", "import netcl"]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60)

    wrong = run(NETCL_MAX_CACHED_GB="4GB")
    assert wrong.returncode == 1
    assert "NETCL_MAX_CACHED_GB: expected a number of GiB of at least 0, such as 0.5, got '4GB'" in wrong.stderr
    close = run(NETCL_MAX_CACHE_GB="4", NETCL_OF_ANOTHER_PROGRAM="x")
    assert close.returncode == 0
    assert "NETCL_MAX_CACHE_GB is no variable of netcl (did you mean 'NETCL_MAX_CACHED_GB'?)" in close.stderr
    assert "ANOTHER" not in close.stderr


def test_every_variable_is_in_the_table_and_on_the_page():
    page = (REPO / "docs" / "settings.md").read_text(encoding="utf-8")
    for s in settings.TABLE.values():
        assert f"| `{s.name}` | {s.accepts} | {s.otherwise} | {s.meaning} |" in page
    assert set(re.findall(r"\bNETCL_[A-Z0-9_]+\b", page)) == set(settings.TABLE)
    files = [p for folder in ("netcl", "benchmarks", "tools", "tests") for p in (REPO / folder).rglob("*.py")]
    files += [REPO / "Makefile", *(REPO / "docs").glob("*.md"), *REPO.glob("*.md")]
    named = {}
    for path in (p for p in files if p != Path(__file__)):
        for name in re.findall(r"(?<![A-Z_])NETCL_[A-Z0-9_]+\b", path.read_text(encoding="utf-8")):
            named.setdefault(name, path)
    assert {n: p for n, p in named.items() if n not in settings.TABLE} == {}


def test_only_the_table_reads_the_environment():
    for path in (REPO / "netcl").rglob("*.py"):
        found = re.findall(
            r"(?:getenv|environ)[.(\[]+(?:get\()?[\"']NETCL_\w+[\"']\)", path.read_text(encoding="utf-8")
        )
        assert not found, path


@pytest.fixture
def capped(cl_queue, monkeypatch):
    """A queue whose memory is counted anew, under a cap of 0.05 GiB."""
    monkeypatch.setenv("NETCL_MAX_CACHED_GB", "0.05")
    opencl.finish(cl_queue)
    state = cl_queue.netcl_state
    pool = state.pool
    state.pool = None
    yield cl_queue
    state.pool = pool


def test_the_cap_on_idle_memory_holds_for_tensors(capped):
    """Whatever was in use before: at the next request, and when the host waits."""
    cap = int(0.05 * GIB)
    tensors = [Tensor.empty(capped, (20 << 18,)) for _ in range(16)]
    pool = pool_of(capped)
    assert pool.stats.cached_bytes < cap  # in use, and what blocks are rounded to
    del tensors[1:]
    assert tensors[0].shape == (20 << 18,)
    Tensor.empty(capped, (4,))
    assert pool.stats.cached_bytes <= cap
    tensors = [Tensor.zeros(capped, (20 << 18,)) for _ in range(8)]
    one = Tensor.ones(capped, (4,))
    tensors.clear()
    assert one.to_host().sum() == 4
    assert pool.stats.cached_bytes <= cap
    tensors = [Tensor.zeros(capped, (20 << 18,)) for _ in range(8)]
    tensors.clear()
    opencl.finish(capped)
    assert pool.stats.cached_bytes <= cap


def test_below_the_cap_blocks_are_reused(capped):
    Tensor.zeros(capped, (1 << 18,))
    pool = pool_of(capped)
    kept = [Tensor.zeros(capped, (30 << 18,)) for _ in range(3)]  # rounding of blocks in use is not idle memory
    before = pool.stats.misses
    for _ in range(20):
        Tensor.zeros(capped, (1 << 18,))
        Tensor.zeros(capped, (2 << 18,)).to_host()
    assert pool.stats.misses <= before + 1 and len(kept) == 3


def test_pools_by_hand_take_the_cap_too(cl_queue, monkeypatch):
    assert PersistentBufferPool(cl_queue.context, cl_queue)._max_cached == 4 * GIB
    monkeypatch.setenv("NETCL_MAX_CACHED_GB", "0.25")
    assert PersistentBufferPool(cl_queue.context, cl_queue)._max_cached == GIB // 4


def test_copies_can_be_made_to_wait(cl_queue, monkeypatch):
    waits = []
    monkeypatch.setattr(opencl, "finish", lambda queue, finish=opencl.finish: waits.append(finish(queue)))
    array = np.ones(3, np.float32)
    for text, asked, expected in [("0", None, 1), ("0", True, 1), ("1", None, 0), ("1", False, 1), ("", True, 0)]:
        monkeypatch.setenv("NETCL_ASYNC_H2D", text)
        waits.clear()
        Tensor.from_host(cl_queue, array, async_copy=asked)
        assert len(waits) == expected
