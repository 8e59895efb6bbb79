"""Recording and replaying: right results, memory of its own, and clear refusals."""

import gc
import threading

import numpy as np
import pytest

from netcl.core import debug, live, memory
from netcl.core.backend import cpu, native, opencl
from netcl.core.errors import CaptureError, DeviceError
from netcl.core.live import Cell, each_step, fresh
from netcl.core.memory import pool_of
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor
from netcl.ops import elementwise as E
from netcl.runtime.cache import cacher
from netcl.runtime.capture.capture import KernelCapture, capture_disabled, get_capture, replay


def tensor(queue, *values):
    return Tensor.from_host(queue, np.array(values, np.float32))


def program_of(queue, source):
    return cacher.get_program(queue.context, source, queue.device)


@pytest.fixture(autouse=True)
def nothing_stays_patched():
    import pyopencl as cl

    before = (cl.Kernel.__call__, cl.Kernel.set_args, cl.Kernel.set_arg, cl.enqueue_nd_range_kernel, cl.enqueue_copy,
              cl.enqueue_fill_buffer, cl.enqueue_map_buffer)  # fmt: skip
    yield
    assert before == (cl.Kernel.__call__, cl.Kernel.set_args, cl.Kernel.set_arg, cl.enqueue_nd_range_kernel,
                      cl.enqueue_copy, cl.enqueue_fill_buffer, cl.enqueue_map_buffer)  # fmt: skip
    assert not (opencl.hooks or opencl.copy_hooks or cpu.hooks or live.active or memory.substitute)


# -- the examples of the documentation ---------------------------------------------------------------------------------


def test_begin_end_replay(queue):
    x = tensor(queue, 1, 2, 3)
    cap = KernelCapture()
    cap.begin()
    assert cap.is_recording
    y = E.add(E.mul(x, 2.0), 1.0)
    n = cap.end()
    assert n == cap.num_launches == len(cap.launches) == 2 and not cap.is_recording
    np.testing.assert_array_equal(y.to_host(), [3, 5, 7])
    E.assign(x, tensor(queue, 10, 20, 30))
    cap.replay()
    np.testing.assert_array_equal(y.to_host(), [21, 41, 61])


def test_capture_disabled_records_nothing_inside(queue):
    x = tensor(queue, 1, 2)
    cap = KernelCapture()
    cap.begin()
    with capture_disabled():
        scratch = E.mul(x, 5.0)
    y = E.add(scratch, 1.0)
    assert cap.end() == 1
    x.fill_(100)
    cap.replay()
    np.testing.assert_array_equal(y.to_host(), [6, 11])


def test_get_capture_is_one_object():
    assert get_capture() is get_capture() and isinstance(get_capture(), KernelCapture)


def test_raw_kernels_are_recorded(cl_queue):
    import pyopencl as cl

    program = program_of(
        cl_queue,
        """
        __kernel void scale(__global float* a, float by, int n) { int i = get_global_id(0); if (i < n) a[i] *= by; }
    """,
    )
    buffer = cl.Buffer(cl_queue.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR,
                       hostbuf=np.ones(4, np.float32))  # fmt: skip
    typed, untyped, ranged = (cl.Kernel(program, "scale") for _ in range(3))
    typed.set_scalar_arg_dtypes([None, np.float32, np.int32])
    other = cl.Buffer(cl_queue.context, cl.mem_flags.READ_WRITE, 16)
    cap = KernelCapture()
    cap.begin()
    typed(cl_queue, (4,), None, buffer, 2.0, 4)
    untyped(cl_queue, (4,), (1,), buffer, np.float32(3), np.int32(4))
    ranged.set_args(buffer, np.float32(5), np.int32(2))
    cl.enqueue_nd_range_kernel(cl_queue, ranged, (4,), (1,))
    typed(cl_queue, (2,), (2,), buffer, 7.0, 4, g_times_l=True)
    cl.enqueue_copy(cl_queue, other, buffer)
    cl.enqueue_fill_buffer(cl_queue, buffer, np.float32(2), 0, 4)
    assert cap.end() == 4
    assert [launch.name for launch in cap.launches] == ["scale"] * 4 and cap.launches[3].global_size == (4,)
    ranged.set_args(buffer, np.float32(0), np.int32(4))  # the recording has kernel objects of its own

    def host(b):
        result = np.zeros(4, np.float32)
        cl.enqueue_copy(cl_queue, result, b)
        return result

    np.testing.assert_array_equal(host(other), [210, 210, 42, 42])
    np.testing.assert_array_equal(host(buffer), [2, 210, 42, 42])
    cap.replay()
    np.testing.assert_array_equal(host(other), [2 * 210, 210 * 210, 42 * 42, 42 * 42])
    np.testing.assert_array_equal(host(buffer), [2, 210 * 210, 42 * 42, 42 * 42])


def test_buffers_are_rebound_by_address_for_one_replay(queue):
    x, other = tensor(queue, 1, 2), tensor(queue, 10, 20)
    cap = KernelCapture()
    cap.begin()
    y = E.mul(x, 3.0)
    cap.end()
    z = Tensor.zeros(queue, (2,))
    key = (lambda t: t.buffer.ctypes.data) if isinstance(queue, CPUQueue) else (lambda t: t.buffer.int_ptr)
    cap.replay_with_new_buffers({key(x): other.buffer, key(y): z})
    np.testing.assert_array_equal(z.to_host(), [30, 60])
    np.testing.assert_array_equal(y.to_host(), [3, 6])
    cap.replay()
    np.testing.assert_array_equal(y.to_host(), [3, 6])
    with pytest.raises(CaptureError, match="expected addresses of recorded buffers"):
        cap.replay_with_new_buffers({12345: other.buffer})
    with pytest.raises(CaptureError, match="another shape"):
        cap.replay_with_new_buffers({key(y): Tensor.zeros(queue, (1,))})
    with pytest.raises(CaptureError, match="got a view"):
        cap.replay_with_new_buffers({key(x): Tensor.zeros(queue, (4,))[2:]})


# -- memory ------------------------------------------------------------------------------------------------------------


def test_dropped_inputs_stay_pinned_and_nothing_else_is_overwritten(queue):
    x = tensor(queue, *range(1000))
    cap = KernelCapture()
    cap.begin()
    y = E.add(E.exp(E.mul(x, 0.0)), x)
    cap.end()
    del x
    gc.collect()
    others = [Tensor.full(queue, (1000,), i) for i in range(20)]
    for _ in range(3):
        cap.replay()
    np.testing.assert_array_equal(y.to_host(), np.arange(1000) + 1)
    for i, other in enumerate(others):
        assert (other.to_host() == i).all()


def test_memory_is_shared_inside_the_recording_and_reported(queue):
    x = Tensor.ones(queue, (1 << 16,))
    if not isinstance(queue, CPUQueue):
        queue.finish()
        before = pool_of(queue).stats.active_bytes
    cap = KernelCapture()
    cap.begin()
    y = x
    for _ in range(20):
        y = E.add(y, 1.0)
    cap.end()
    assert cap.num_launches == 20
    # One being read and one being written; on NumPy the result's own place as well.
    assert 2 * x.nbytes <= cap.peak_bytes <= (3.0 if isinstance(queue, CPUQueue) else 2.2) * x.nbytes
    assert x.nbytes <= cap.held_bytes <= 1.1 * x.nbytes
    if not isinstance(queue, CPUQueue):
        assert pool_of(queue).stats.active_bytes == before
    x.fill_(5)
    cap.replay()
    assert (y.to_host() == 25).all()


def test_a_long_run_of_replays_keeps_memory_flat(queue):
    x = Tensor.ones(queue, (256,))
    cap = KernelCapture()
    with cap:
        E.assign(x, E.mul(x, -1.0))
    sizes = []
    for i in range(300):
        cap.replay()
        if i % 100 == 99:
            gc.collect()
            sizes.append(len(gc.get_objects()))
    assert sizes[2] - sizes[1] < 50
    assert (x.to_host() == -1).all()


def test_fills_copies_and_host_data_are_repeated(queue):
    x = tensor(queue, 1, 2, 3)
    cap = KernelCapture()
    cap.begin()
    constant = tensor(queue, 10, 20, 30)
    total = Tensor.zeros(queue, (3,))
    E.assign(total, E.add(E.copy(x), constant))
    constant.fill_(0)
    cap.end()
    x.fill_(1)
    for _ in range(2):
        cap.replay()
        np.testing.assert_array_equal(total.to_host(), [11, 21, 31])
    assert "writes of host data" in cap.explain()


# -- what changes ------------------------------------------------------------------------------------------------------


def test_cells_are_read_anew_and_steps_run_before_each_replay(queue):
    x, state = Tensor.ones(queue, (3,)), {"lr": 0.5, "step": 0}

    def advance():
        state["step"] += 1

    cap = KernelCapture()
    cap.begin()
    each_step(advance)
    y = E.mul(x, Cell(lambda: state["lr"] * state["step"]))
    seed = fresh(lambda: state["step"] * 100)
    z = E.add(x, seed)
    cap.end()
    assert state["step"] == 1 and y.to_host()[0] == 0.5 and z.to_host()[0] == 101
    state["lr"] = 2.0
    for step in (2, 3, 4):
        cap.replay()
        assert state["step"] == step and y.to_host()[0] == 2 * step and z.to_host()[0] == 1 + 100 * step


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_arguments_set_before_a_recording_are_refused(cl_queue):
    import pyopencl as cl

    program = program_of(cl_queue, "__kernel void f(__global float* a) { a[0] = 1; }")
    kernel, x = cl.Kernel(program, "f"), tensor(cl_queue, 0)
    kernel.set_args(x.buffer)
    cap = KernelCapture()
    cap.begin()
    with pytest.raises(CaptureError, match="set before begin"):
        cl.enqueue_nd_range_kernel(cl_queue, kernel, (1,), (1,))


def test_another_queue_is_refused(queue):
    import pyopencl as cl

    other = CPUQueue() if isinstance(queue, CPUQueue) else cl.CommandQueue(queue.context)
    x, y = tensor(queue, 1), tensor(other, 1)
    cap = KernelCapture()
    cap.begin()
    E.neg(x)
    with pytest.raises(CaptureError, match="another queue"):
        E.neg(y)


def test_nested_and_concurrent_recordings_are_refused(queue):
    x = tensor(queue, 1)
    cap, messages = KernelCapture(), []
    cap.begin()
    with pytest.raises(CaptureError, match="nested"):
        KernelCapture().begin()
    with pytest.raises(CaptureError, match="nested"):
        cap.begin()

    def other():
        E.neg(x)  # not recorded: another thread
        with pytest.raises(CaptureError, match="concurrent") as caught:
            KernelCapture().begin()
        messages.append(str(caught.value))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert messages and cap.is_recording
    with pytest.raises(CaptureError, match="call end"):
        cap.replay()
    E.neg(x)
    assert cap.end() == 1


def test_misuse_is_explained():
    cap = KernelCapture()
    for call in (cap.end, cap.replay, lambda: cap.replay_with_new_buffers({})):
        with pytest.raises(CaptureError, match="begin"):
            call()


def test_an_exception_in_the_block_gives_the_recording_up(queue):
    x, cap = tensor(queue, 1), KernelCapture()

    def broken():
        with cap:
            E.neg(x)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    with pytest.raises(CaptureError, match="ZeroDivisionError"):
        cap.replay()
    with cap:
        y = E.neg(x)
    cap.replay()
    assert y.to_host()[0] == -1


def test_an_empty_recording_replays_to_nothing(queue):
    cap = KernelCapture()
    cap.begin()
    assert cap.end() == 0
    cap.replay()
    assert cap.launches == ()


# -- ways to replay ----------------------------------------------------------------------------------------------------


ABSENT = {
    "command buffer": "the driver has no cl_khr_command_buffer",
    "c": "not built when netcl was installed; install a C compiler, then reinstall netcl",
    "ctypes": "the OpenCL loader cannot be called through ctypes",
}


def check_refused(tier, queue):
    """A recording that asks for a tier which is not here says why; one that asks for none goes another way."""
    asking, free, x = KernelCapture(tier=tier), KernelCapture(), tensor(queue, 1)
    for cap in (asking, free):
        with cap:
            y = E.neg(x)
    with pytest.raises(DeviceError, match=f"got '{tier}': {ABSENT[tier]}"):
        asking.replay()
    free.replay()
    assert y.to_host()[0] == -1
    assert f"not here: {tier} ({ABSENT[tier]})" in free.explain() and f"replayed by: {tier}" not in free.explain()


@pytest.mark.parametrize("tier", replay.TIERS)
def test_every_tier_gives_the_same(cl_queue, tier, request, monkeypatch):
    monkeypatch.setattr(replay, "_chosen", {})
    if tier == "c":
        library = request.getfixturevalue("c_library")
        monkeypatch.setattr(native, "extension", lambda: library)
    if tier not in replay.available(cl_queue):
        check_refused(tier, cl_queue)
        return
    rng, step = np.random.default_rng(0), [1.0]
    x = Tensor.from_host(cl_queue, rng.normal(size=(33, 65)).astype(np.float32))
    cap = KernelCapture(tier=tier)
    with cap:
        a = E.exp(x[:, 1:])
        b = E.add(E.mul(a, Cell(lambda: step[0])), Tensor.ones(cl_queue, (64,)))
        c = E.copy(E.tanh(b))
        d = Tensor.from_host(cl_queue, np.arange(64, dtype=np.float32))
        y = E.add(c, E.sub(d, 1.0))
    for i in range(3):
        step[0] = 1.0 + i
        E.assign(x, Tensor.from_host(cl_queue, rng.normal(size=x.shape).astype(np.float32)))
        cap.replay()
        want = np.tanh(np.exp(x.to_host()[:, 1:]) * np.float32(step[0]) + 1) + np.arange(64) - 1
        np.testing.assert_allclose(y.to_host(), want, rtol=2e-6, atol=1e-5)
    assert f"replayed by: {tier}" in cap.explain()


def test_an_unknown_tier_is_refused(cl_queue):
    cap, x = KernelCapture(tier="magic"), tensor(cl_queue, 1)
    with cap:
        E.neg(x)
    with pytest.raises(DeviceError, match="expected a tier"):
        cap.replay()


def test_the_fastest_right_tier_is_chosen_once(cl_queue):
    found = replay.timings(cl_queue)
    assert set(found) <= set(replay.TIERS) and "python" in found
    assert found[replay.best(cl_queue)] <= 1.2 * min(found.values())
    assert replay.timings(cl_queue) is found


def test_tiers_that_are_not_here_are_explained(cl_queue, monkeypatch, c_library, capsys):
    x = tensor(cl_queue, 1)
    with KernelCapture() as cap:
        E.neg(x)
    monkeypatch.setattr(replay, "_chosen", {})
    monkeypatch.setattr(native, "extension", lambda: None)
    monkeypatch.setattr(replay.CommandBuffer, "supported", staticmethod(lambda queue, api: False))
    before = debug.set_level(1)
    try:
        assert "not here: c (not built when netcl was installed; install a C compiler" in cap.explain()
    finally:
        debug.set_level(before)
    printed = capsys.readouterr().err
    assert " are replayed by " in printed and " are replayed not by c: not built when netcl was installed" in printed
    assert "not here: command buffer (the driver has no cl_khr_command_buffer)" in cap.explain()
    with pytest.raises(DeviceError, match="got 'c': not built when"):
        replay.build("c", cap.recording.commands, cl_queue)
    monkeypatch.setattr(replay, "_chosen", {})
    monkeypatch.setattr(native, "extension", lambda: c_library)
    monkeypatch.setattr(replay.CommandBuffer, "supported", staticmethod(lambda queue, api: True))
    does_nothing = lambda commands, queue, arguments: lambda: None  # noqa: E731
    monkeypatch.setattr(replay, "_command_buffer_tier", does_nothing)
    assert "not here: command buffer (did not do what it should" in cap.explain()
    assert replay.best(cl_queue) != "command buffer" and ("not here: c (" in cap.explain()) == (c_library is None)


def test_a_failing_command_is_named(cl_queue, c_library, monkeypatch):
    monkeypatch.setattr(native, "extension", lambda: c_library)
    x = tensor(cl_queue, *range(8))
    for tier in ("ctypes",) if c_library is None else ("c", "ctypes"):
        cap = KernelCapture(tier=tier)
        with cap:
            E.copy(x)
            E.neg(x)
        cap.recording.commands[0].start = (0, 0, 1 << 40)
        with pytest.raises(DeviceError, match=r"replay: copy failed on .*: INVALID_VALUE"):
            cap.replay()


def test_hooks_see_replayed_launches(cl_queue):
    x, cap, seen = tensor(cl_queue, 1), KernelCapture(), []
    with cap:
        E.neg(E.copy(x))
    launched = lambda kernel, queue, size, local, args, event: seen.append((kernel.name, event.int_ptr))  # noqa: E731
    copied = lambda kind, *rest: seen.append((kind, rest[-1].int_ptr))  # noqa: E731
    opencl.hooks.append(launched)
    opencl.copy_hooks.append(copied)
    try:
        cap.replay()
    finally:
        opencl.hooks.remove(launched)
        opencl.copy_hooks.remove(copied)
    assert [name for name, _ in seen] == ["copy", "netcl_neg"]
