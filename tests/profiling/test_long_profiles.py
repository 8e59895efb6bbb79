"""Profiles longer than what is kept: sums stay exact, memory is bounded, and table and trace say what was dropped."""

import gc
import json
import subprocess
import sys
import tracemalloc

import pytest

from netcl.core.backend import opencl
from netcl.core.errors import NetclError
from netcl.core.tensor import Tensor
from netcl.ops import elementwise as E
from netcl.profiling import EventTimer, KernelProfiler, ProfileContext, kernels, region
from netcl.profiling.totals import Sample, Totals


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(kernels, "PENDING", 8)


def test_the_newest_are_kept_and_all_are_counted(queue):
    x, large = Tensor.ones(queue, (100,)), Tensor.ones(queue, (10_000,))
    with KernelProfiler(keep=10) as prof:
        for _ in range(200):
            E.neg(x)
        for _ in range(7):
            E.neg(large)
    assert [s.nbytes >= 80_000 for s in prof.samples] == [False] * 3 + [True] * 7
    assert prof.dropped == 197 and [r.calls for r in prof.stats()] == [207]
    assert sum(r.seconds for r in prof.stats()) == pytest.approx(prof.seconds)
    assert sum(r.nbytes for r in prof.stats()) >= 200 * 800 + 7 * 80_000
    prof.clear()
    assert prof.samples == [] and prof.dropped == prof.seconds == prof.busy_seconds == 0 and prof.stats() == []


def test_sums_are_those_of_all_events(cl_queue):
    """Against the same events, kept by a hook and added up at the end."""
    x, events = Tensor.ones(cl_queue, (5000,)), []
    hook = lambda kernel, queue, size, local, args, event: events.append(event)  # noqa: E731
    opencl.hooks.append(hook)
    try:
        with KernelProfiler(keep=3) as prof:
            for _ in range(100):
                E.exp(x)
    finally:
        opencl.hooks.remove(hook)
    stamps = sorted((event.profile.start, event.profile.end) for event in events)
    assert prof.seconds == pytest.approx(sum(end - start for start, end in stamps) * 1e-9, rel=1e-6)
    busy, reached = 0, 0
    for start, end in stamps:
        busy, reached = busy + max(0, end - max(start, reached)), max(end, reached)
    assert prof.busy_seconds == pytest.approx(busy * 1e-9, rel=1e-6)
    assert prof.totals.ended - prof.totals.began == pytest.approx((reached - stamps[0][0]) * 1e-9, rel=1e-6)


def command(start, end, name="k", queue="q"):
    return Sample(name, "kernel", queue, start, start, end, 10, 100.0, (), None, 1)


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
def test_sums_do_not_depend_on_the_batches(batch):
    """Three queues: with gaps, without, and with commands that overlap; busy 0.5, 1.5 and 2.7 of 0.5, 1.5 and 3.5 s."""
    gaps = [command(i, i + 0.1, "a", "gaps") for i in range(5)]
    dense = [command(i * 0.3, (i + 1) * 0.3, "b", "dense") for i in range(5)]
    overlapping = [command(i / 2, i / 2 + 0.7, "a", "over") for i in range(5)]
    commands = sorted([*gaps, *dense, *overlapping], key=lambda s: s.start)
    totals = Totals()
    for i in range(0, len(commands), batch):
        totals.add(commands[i : i + batch], {})
    assert totals.calls == 15 and (totals.began, totals.ended) == (0, 4.1)
    assert totals.seconds == pytest.approx(0.5 + 1.5 + 3.5)
    assert totals.busy_seconds == pytest.approx(0.5 + 1.5 + 2.7)
    rows = {r.name: r for r in totals.stats()}
    assert rows["a"].calls == 10 and rows["a"].nbytes == 100 and rows["b"].operations == 500
    assert rows["a"].share == pytest.approx(4 / 5.5)


def test_a_better_offset_between_the_clocks_leaves_the_busy_time_as_it_is():
    """Two commands of a second, one after the other by their own clock; between the batches the host's moves by 0.9."""
    totals, queue = Totals(), "q"
    totals.add([command(5.9, 6.9, queue=queue)], {id(queue): 5.9})
    totals.add([command(6.0, 7.0, queue=queue)], {id(queue): 5.0})
    assert totals.busy_seconds == pytest.approx(2) and totals.seconds == pytest.approx(2)


def test_commands_of_one_batch_may_come_in_any_order():
    totals = Totals()
    totals.add([command(2, 3), command(0, 2.5), command(4, 5), command(1, 2)], {})
    assert totals.busy_seconds == pytest.approx(4)


def test_memory_does_not_grow(cpu_queue):
    x = Tensor.ones(cpu_queue, (4,))
    with KernelProfiler(keep=50) as prof:
        tracemalloc.start()
        try:
            sizes = []
            for _ in range(3):
                for _ in range(1000):
                    E.neg(x)
                gc.collect()  # empties Python's own lists of freed tuples, which would count as growth
                sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    assert prof.dropped == 2950 and sizes[2] - sizes[0] < 20_000  # 2000 commands would be half a megabyte or more


def test_nothing_kept_is_the_table_only(queue):
    x = Tensor.ones(queue, (4,))
    with KernelProfiler(keep=0) as prof:
        E.neg(x)
    assert prof.samples == [] and prof.dropped == 1 and [r.calls for r in prof.stats()] == [1]


@pytest.mark.parametrize("keep", [-1, 1.5, None, "many"])
def test_a_wrong_bound_is_refused(keep):
    for make in (KernelProfiler, ProfileContext):
        with pytest.raises(NetclError, match="expected keep to be an int of at least 0, got"):
            make(keep=keep)


def test_an_event_timer_counts_all(queue):
    x = Tensor.ones(queue, (4,))
    with EventTimer(queue) as timer:
        for _ in range(100):
            E.neg(x)
    assert timer.commands == 100 and 0 < timer.busy <= timer.elapsed * (1 + 1e-6)


def test_table_and_trace_say_what_was_dropped(queue, tmp_path):
    x, path = Tensor.ones(queue, (4,)), tmp_path / "t.json"
    with ProfileContext(queue, trace=path, keep=20) as prof:
        for _ in range(1030):
            with region("step"):
                E.neg(x)
    assert prof.dropped == {"commands": 1010, "regions": 1010}
    assert "all but the 1,010 oldest commands and the 1,010 oldest regions (keep=20)" in prof.table()
    assert [row.calls for row in prof.kernels.stats()] == [1030]
    written = json.loads(path.read_text())
    assert written["otherData"] == {"dropped commands": 1010, "dropped regions": 1010}
    spans = [e for e in written["traceEvents"] if e["ph"] == "X"]
    assert len(spans) == 40
    (mark,) = [e for e in written["traceEvents"] if e.get("cat") == "dropped"]
    assert mark["name"] == "1,010 older commands dropped, 1,010 older regions dropped"
    assert mark["ts"] == pytest.approx(min(e["ts"] for e in spans), rel=1e-12)  # microseconds, added up otherwise


def test_a_short_profile_drops_nothing_and_says_nothing(queue, tmp_path):
    x, path = Tensor.ones(queue, (4,)), tmp_path / "t.json"
    with ProfileContext(queue, trace=path) as prof:
        E.neg(x)
    assert "dropped" not in prof.table() and "kept" not in prof.table()
    written = json.loads(path.read_text())
    assert written["otherData"] == {"dropped commands": 0, "dropped regions": 0}
    assert not [e for e in written["traceEvents"] if e.get("cat") == "dropped"]


def test_the_command_takes_the_bound(tmp_path):
    script, out = tmp_path / "work.py", tmp_path / "t.json"
    script.write_text(
        "from netcl.core.device import manager\nfrom netcl.core.tensor import Tensor\n"
        "x = Tensor.ones(manager.default('cpu').queue, (4,))\nfor _ in range(9): x = x + 1.0\n"
    )
    command = [sys.executable, "-m", "netcl", "profile", "--trace", str(out), "--keep", "4", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "all but the 5 oldest commands (keep=4)" in done.stdout
    assert len([e for e in json.loads(out.read_text())["traceEvents"] if e["ph"] == "X"]) == 4
    wrong = subprocess.run([*command[:-2], "-4", str(script)], capture_output=True, text=True, timeout=120)
    assert wrong.returncode != 0 and "keep" in wrong.stderr and "Traceback" not in wrong.stderr
