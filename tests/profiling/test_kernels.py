"""The kernel profiler: what it sees, what it adds up to, and that it leaves nothing behind."""

import dataclasses
import gzip
import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from families import FAMILIES, queue_of

from netcl.cli.main import main
from netcl.cli.train import Run
from netcl.core import process
from netcl.core.backend import cpu, opencl
from netcl.core.device.profile import override_profile, profile_of
from netcl.core.errors import NetclError
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor
from netcl.ops import elementwise as E
from netcl.ops.convolution.op import conv2d, conv2d_weight_grad
from netcl.ops.nvidia import probe
from netcl.ops.product.op import matmul
from netcl.profiling import (
    KernelProfiler,
    MemoryTimeline,
    Peaks,
    ProfileContext,
    kernels,
    peak,
    peaks,
    region,
    trace,
)  # fmt: skip
from netcl.profiling.work import operations
from netcl.runtime.capture import KernelCapture

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    assert not (opencl.hooks or opencl.copy_hooks or cpu.hooks or process.gate)


def test_calls_bytes_and_operations_are_counted(cl_queue):
    x = Tensor.from_host(cl_queue, np.ones((64, 64), np.float32))
    with KernelProfiler() as prof:
        for _ in range(5):
            y = E.neg(x)
        matmul(x, y)
        E.copy(y).to_host()
        x.fill_(0)
    rows = {r.name: r for r in prof.stats()}
    assert rows["netcl_neg"].calls == 5 and rows["netcl_neg"].nbytes == pytest.approx(5 * 2 * 64 * 64 * 4, rel=0.1)
    assert rows["gemm"].operations == 2 * 64**3 and rows["gemm"].gflops > 0
    assert {"copy", "read", "fill"} <= set(rows) and rows["copy"].nbytes == 2 * 64 * 64 * 4
    assert sum(r.share for r in rows.values()) == pytest.approx(1)
    assert rows["netcl_neg"].mean == rows["netcl_neg"].seconds / 5
    assert prof.stats() == sorted(prof.stats(), key=lambda r: -r.seconds)
    prof.clear()
    assert prof.samples == []


def test_times_add_up_to_the_busy_time(cl_queue):
    x = Tensor.ones(cl_queue, (1 << 20,))
    with KernelProfiler() as prof:
        for _ in range(20):
            x = E.exp(E.mul(x, 0.1))
    assert len(prof.samples) == 40
    assert prof.seconds == pytest.approx(sum(s.end - s.start for s in prof.samples), rel=1e-6)
    stamps = [(round(s.start * 1e9), round(s.end * 1e9)) for s in prof.samples]
    assert prof.busy_seconds == pytest.approx(union(stamps) * 1e-9, rel=1e-3)  # rounded twice a command
    starts = [s.start for s in prof.samples]
    assert starts == sorted(starts)
    assert all(s.start <= s.end for s in prof.samples)


def union(intervals):
    """Length of what the intervals cover, in whole nanoseconds."""
    covered, reached = 0, 0
    for start, end in sorted(intervals):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def test_a_digits_training_adds_up_to_the_busy_time_of_the_queue(cl_queue, tmp_path):
    """Eager, recorded and replayed steps, by the driver's own time stamps and by the trace file."""
    work, events = Run(cl_queue, 1, 16, 0), []
    batches = [tuple(Tensor.from_host(cl_queue, a) for a in batch) for batch, _ in zip(work.loader, range(4))]
    launched = lambda kernel, queue, size, group, args, event: events.append(event)  # noqa: E731
    copied = lambda kind, queue, target, source, nbytes, details, event: events.append(event)  # noqa: E731
    opencl.hooks.append(launched), opencl.copy_hooks.append(copied)
    try:
        with ProfileContext(cl_queue, trace=tmp_path / "trace.json") as prof:
            for x, y in batches:
                loss = work.step(x, y)
            loss.value.to_host()
    finally:
        opencl.hooks.remove(launched), opencl.copy_hooks.remove(copied)
    stamps = [(event.profile.start, event.profile.end) for event in events]
    total, busy = sum(end - start for start, end in stamps), union(stamps)
    assert prof.kernels.seconds == pytest.approx(total * 1e-9, rel=1e-6)
    assert prof.kernels.busy_seconds == pytest.approx(busy * 1e-9, rel=1e-3)
    assert sum(row.seconds for row in prof.kernels.stats()) == pytest.approx(total * 1e-9, rel=1e-6)
    spans = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert len(spans) == len(events) > 4 * work.step.num_launches
    assert sum(e["dur"] for e in spans) * 1e3 == pytest.approx(total, rel=1e-6)


def test_a_clock_that_counts_from_1970_loses_no_nanosecond():
    """Such stamps are past 2^53: as floats they would be multiples of 256."""
    epoch, prof, queue = 1_796_000_000_000_000_123, KernelProfiler(), object()
    times = [(0, 700, 5_004), (900, 5_100, 6_333)]  # queued, start, end
    for queued, start, end in times:
        stamps = SimpleNamespace(queued=epoch + queued, start=epoch + start, end=epoch + end)
        event = SimpleNamespace(wait=lambda: None, profile=stamps)
        prof._add(event, "k", "kernel", queue, 50.0 + queued * 1e-9, 0, 0, (1,), None)
    lengths = [(s.end - s.start) * 1e9 for s in prof.samples]
    assert lengths == pytest.approx([4_304, 1_233], abs=0.02)
    assert prof.seconds * 1e9 == pytest.approx(5_537, abs=0.05)
    assert prof.busy_seconds * 1e9 == pytest.approx(5_537, abs=0.05)
    assert (prof.samples[1].start - prof.samples[0].end) * 1e9 == pytest.approx(96, abs=0.02)


def test_numpy_calls_are_timed(cpu_queue):
    x = Tensor.ones(cpu_queue, (1000,))
    with KernelProfiler() as prof:
        E.assign(x, E.add(x, 1.0))
    assert len(prof.samples) == 2 and all(s.kind == "numpy" and s.end > s.start for s in prof.samples)
    assert "calls" in prof.table(with_peak=True)


def test_only_the_queue_asked_for(cl_queue, cpu_queue):
    with KernelProfiler(cpu_queue) as prof:
        E.neg(Tensor.ones(cl_queue, (3,))).to_host()
        E.neg(Tensor.ones(cpu_queue, (3,)))
    assert [s.kind for s in prof.samples] == ["numpy"]


def test_replays_are_seen_kernel_by_kernel(queue):
    x, cap = Tensor.ones(queue, (100,)), KernelCapture()
    with cap:
        E.exp(E.neg(x))
    with KernelProfiler() as prof:
        cap.replay()
        cap.replay()
    assert len(prof.samples) == 4
    cap.replay()
    assert len(prof.samples) == 4


def test_events_do_not_pile_up(cl_queue, monkeypatch):
    monkeypatch.setattr(kernels, "PENDING", 16)
    x = Tensor.ones(cl_queue, (4,))
    with KernelProfiler() as prof:
        for _ in range(100):
            E.neg(x)
            assert len(prof._pending) <= 17
    assert len(prof.samples) == 100


def test_no_command_of_any_thread_is_lost(cl_queue, monkeypatch):
    monkeypatch.setattr(kernels, "PENDING", 8)
    x = Tensor.ones(cl_queue, (4,))
    E.neg(x)

    together = threading.Barrier(4)  # a thread that has ended leaves its number to the next

    def work():
        together.wait()
        for _ in range(100):
            E.neg(x)
        together.wait()

    with KernelProfiler() as prof:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [row.calls for row in prof.stats()] == [400]
    assert len({s.thread for s in prof.samples}) == 4


def test_a_profiler_runs_once_at_a_time_and_can_go_on(queue):
    x, prof = Tensor.ones(queue, (4,)), KernelProfiler()
    prof.stop()
    for _ in range(2):
        with prof:
            E.neg(x)
            with pytest.raises(NetclError, match="not running"):
                prof.start()
    assert len(prof.samples) == 2


def test_the_table_names_the_rest(cl_queue):
    x = Tensor.ones(cl_queue, (4,))
    with KernelProfiler() as prof:
        E.neg(x), E.exp(x), E.sqrt(x)
    text = prof.table(limit=1)
    assert "2 more" in text and str(prof) == prof.table()


def test_threads_and_regions_and_memory_are_in_the_trace(queue, tmp_path):
    x = Tensor.ones(queue, (1000,))
    path = tmp_path / "trace.json"
    with ProfileContext(queue, trace=path) as prof:
        with prof.region("outer"), region("inner"):
            y = E.neg(x)
        thread = threading.Thread(target=lambda: E.exp(y).to_host())
        thread.start()
        thread.join()
    with region("after"):
        pass
    assert [r.name for r in prof.regions] == ["inner", "outer"]
    events = json.loads(path.read_text())["traceEvents"]
    spans = {e["name"]: e for e in events if e["ph"] == "X"}
    inner, outer = spans["inner"], spans["outer"]
    assert outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1
    assert all(e["dur"] >= 0 and e["ts"] >= -1e-3 for e in spans.values())
    names = {"host", "MainThread"} | (set() if isinstance(queue, CPUQueue) else {"commands"})
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} >= names
    assert any(e["ph"] == "C" and e["args"]["active"] > 0 for e in events)
    if not isinstance(queue, CPUQueue):
        assert {"netcl_neg", "netcl_exp"} <= set(spans)
        assert len({e["tid"] for e in events if e.get("cat") == "sent" and e["ph"] == "i"}) == 2
    packed = prof.save_trace(tmp_path / "trace.json.gz")
    assert json.loads(gzip.decompress(packed.read_bytes()))["traceEvents"] == events
    assert "device busy" in prof.table() and prof.memory.peak_bytes >= 4000


def test_the_documented_use(queue, tmp_path, monkeypatch, capsys):
    text, x = (DOCS / "profiling.md").read_text(), Tensor.ones(queue, (100,))
    monkeypatch.chdir(tmp_path)
    profiled, routed = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(profiled, {"queue": queue, "train_one_epoch": lambda: E.neg(x)})
    assert "device busy" in capsys.readouterr().out
    if queue.device is None:  # NumPy has one route
        routed = routed.replace('"tiled"', '"host"')
    exec(routed, {"a": Tensor.ones(queue, (256, 256)), "b": Tensor.ones(queue, (256, 256))})
    assert "matmul" in capsys.readouterr().out
    assert any(e["name"] == "epoch" for e in json.loads((tmp_path / "epoch.json").read_text())["traceEvents"])
    (picture,) = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert 0 < (DOCS / picture).stat().st_size < 200_000


def test_an_empty_trace_is_a_trace(tmp_path):
    path = trace.write(tmp_path / "t.json", [])
    assert json.loads(path.read_text())["displayTimeUnit"] == "ms"


def test_memory_over_time_is_thinned_when_long(cl_queue, monkeypatch):
    from netcl.profiling import memory

    monkeypatch.setattr(memory, "LIMIT", 50)
    with MemoryTimeline() as timeline:
        x = Tensor.ones(cl_queue, (1000,))
        for _ in range(300):
            y = E.neg(x)
    assert len(timeline.moments) <= 51 and timeline.peak_bytes >= 8000
    assert [m.time for m in timeline.moments] == sorted(m.time for m in timeline.moments)
    del y


def test_a_timeline_runs_once_at_a_time(queue):
    timeline = MemoryTimeline(queue)
    timeline.stop()
    with timeline, pytest.raises(NetclError, match="stop"):
        timeline.start()
    timeline.stop()
    assert len(timeline.moments) == 2


def test_peaks_are_measured_once(queue):
    found = peaks(queue)
    assert found.bandwidth > 1e8 and found.operations > 1e8 and peaks(queue) is found
    assert Peaks(100.0, 10.0).share(50.0, 9.0) == 0.9


def test_peaks_use_whole_registers(cl_queue, monkeypatch):
    sources = []
    build = peak.get_kernel
    monkeypatch.setattr(
        peak, "get_kernel", lambda queue, text, *rest: sources.append(text) or build(queue, text, *rest)
    )
    for vector in (8, 16):
        with override_profile(cl_queue, dataclasses.replace(profile_of(cl_queue), kind="cpu", vector=vector)):
            assert peak._measure(cl_queue).operations > 1e8
        assert sources[-1].startswith(f"#define W {vector}\n")


def test_operations_of_a_product():
    dims = np.array([3, 4, 5, 99], np.int64).tobytes()
    assert operations("gemm", [1, dims], (7, 7, 2)) == 2 * 3 * 4 * 5 * 2
    assert operations("gemm", [1], (7,)) == operations("netcl_add", [dims], (7,)) == 0


@pytest.mark.parametrize("name", FAMILIES[1:])
def test_operations_of_batches_groups_and_parts(name):
    """On CPU devices and, with k and pixels divided among many units, by the kernels for GPUs."""
    queue, counted = queue_of(name), {}
    with override_profile(queue, dataclasses.replace(profile_of(queue), compute_units=64)):
        a, b = Tensor.zeros(queue, (3, 40, 6000)), Tensor.zeros(queue, (3, 6000, 20))
        x, w = Tensor.zeros(queue, (2, 32, 30, 20)), Tensor.zeros(queue, (64, 16, 2, 2))
        for work in (lambda: matmul(a, b), lambda: conv2d(x, w, groups=2), lambda: weights(queue, x, w)):
            with KernelProfiler(queue) as prof:
                work()
            counted |= {row.name: row.operations for row in prof.stats() if row.operations}
    pixels = 2 * 29 * 19
    expected = {"gemm": 2 * 3 * 40 * 6000 * 20}
    expected |= dict.fromkeys(("conv", "conv_weights"), 2 * 64 * 16 * 4 * pixels)
    assert counted == expected


def weights(queue, x, w):
    return conv2d_weight_grad(Tensor.zeros(queue, (2, 64, 29, 19)), x, w.shape, groups=2)


def test_operations_of_winograd_are_its_products(cl_queue):
    x, w = Tensor.zeros(cl_queue, (4, 256, 30, 20)), Tensor.zeros(cl_queue, (256, 128, 3, 3))
    with KernelProfiler(cl_queue) as prof, probe.only():
        y = conv2d(x, w, padding=1, groups=2)
        conv2d_weight_grad(y, x, w.shape, padding=1, groups=2)
    counted = {row.name: row.operations for row in prof.stats() if row.operations}
    direct, tiles = 2 * 256 * 128 * 9 * 4 * 30 * 20, 4 * 8 * 5
    products = 2 * 256 * 128 * 36 * tiles
    by_tiles = {"winograd": products, "winograd_weights": products}
    assert counted in (by_tiles, {"gemm": 2 * products}, {"conv": direct, "conv_weights": direct})


def test_the_command_profiles_a_script(tmp_path):
    script = tmp_path / "work.py"
    script.write_text(
        "import sys\nfrom netcl import Tensor\nfrom netcl.core.device import manager\n"
        "from netcl.ops.elementwise import exp\n"
        "q = manager.default('auto').queue\nexp(Tensor.ones(q, (1000,))).to_host()\nsys.exit(len(sys.argv))\n"
    )
    out = tmp_path / "t.json"
    command = [sys.executable, "-m", "netcl", "profile", "--trace", str(out), str(script), "a", "--b"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stderr
    assert "calls" in done.stdout and "device busy" in done.stdout and str(out) in done.stdout
    assert any(e["ph"] == "X" for e in json.loads(out.read_text())["traceEvents"])
    for arguments, message in (
        (["nowhere.py"], "expected a Python script"),
        (["-m", "no.such.module"], "expected the name of a module"),
        (["-m", "netcl.core"], "expected the name of a module"),
        (["--trace", str(tmp_path / "no" / "t.json"), str(script)], "expected a trace file that can be written"),
    ):
        wrong = subprocess.run([*command[:4], *arguments], capture_output=True, text=True, timeout=120)
        assert wrong.returncode == 1 and message in wrong.stderr and "Traceback" not in wrong.stderr


@pytest.mark.parametrize(
    ("leave", "status", "message"),
    [("sys.exit('enough')", 1, "enough"), ("raise KeyboardInterrupt", 130, ""), ("sys.exit()", 0, "")],
)
def test_the_table_is_shown_also_when_a_module_stops_early(tmp_path, monkeypatch, capsys, leave, status, message):
    (tmp_path / "stopping_early.py").write_text(f"import sys\n{leave}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NETCL_PROFILE", "")
    before = sys.path[:], sys.argv[:]
    assert main(["profile", "-m", "stopping_early"]) == status
    assert (sys.path, sys.argv) == before
    printed = capsys.readouterr()
    assert "calls" in printed.out and message in printed.err
