"""The launch path: threads, forks, asynchronous copies, the index-error flag, no signal handlers."""

import multiprocessing
import pickle
import signal
import threading

import numpy as np
import pytest

from netcl.core.backend import opencl
from netcl.core.errors import BuildError, DeviceError, IndexOutOfRange
from netcl.core.memory import BufferPool, PinnedBufferPool
from netcl.core.tensor import Tensor
from netcl.ops import elementwise
from netcl.ops.create.random import uniform
from netcl.profiling.kernels import KernelProfiler
from netcl.runtime.cache import get_kernel
from netcl.runtime.capture import KernelCapture

FLAG = """
__kernel void report(__global int* flag, int code, int value, int limit) {
    if (value < 0 || value >= limit) {
        if (atomic_cmpxchg(flag, 0, 1) == 0) { flag[1] = code; flag[2] = value; flag[3] = limit; }
    }
}
"""


def test_one_kernel_many_threads(cl_queue):
    """8 threads add their own constants with one cached kernel; arguments are never mixed."""
    wrong = []

    def work(constant):
        x = Tensor.full(cl_queue, (64,), constant)
        for _ in range(200):
            if not np.array_equal((x + constant).to_host(), np.full(64, 2 * constant)):
                wrong.append(constant)

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_two_threads_two_queues(cl_queue):
    import pyopencl as cl

    results = {}

    def work(name, queue):
        x = Tensor.from_host(queue, np.arange(1000, dtype=np.float32))
        for _ in range(100):
            x = x * 0.5 + 1
        results[name] = x.to_host()

    queues = [cl.CommandQueue(cl_queue.context) for _ in range(2)]
    threads = [threading.Thread(target=work, args=(i, q)) for i, q in enumerate(queues)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    expected = np.arange(1000, dtype=np.float32)
    for _ in range(100):
        expected = expected * np.float32(0.5) + np.float32(1)
    assert np.allclose(results[0], expected) and np.array_equal(results[0], results[1])


def test_many_asynchronous_writes_keep_their_arrays(cl_queue):
    tensors = [Tensor.from_host(cl_queue, np.full(2000, i, np.float32)) for i in range(300)]
    assert [t.to_host()[-1] for t in tensors] == list(range(300))
    assert len(cl_queue.netcl_state.pending) <= opencl.PENDING_LIMIT + 1


def test_index_errors_surface_at_the_next_synchronisation(cl_queue):
    kernel = get_kernel(cl_queue, FLAG, "report")
    flag = opencl.flag_buffer(cl_queue)
    opencl.launch(kernel, cl_queue, (1,), (1,), flag, opencl.arm_flag(cl_queue, "lookup"), 7, 3)
    x = Tensor.ones(cl_queue, (2,))
    with pytest.raises(IndexOutOfRange, match=r"lookup: expected indices in \[0, 3\), got 7"):
        x.to_host()
    assert x.to_host().sum() == 2  # reported once
    opencl.launch(kernel, cl_queue, (1,), (1,), flag, opencl.arm_flag(cl_queue, "lookup"), 2, 3)
    opencl.finish(cl_queue)
    opencl.launch(kernel, cl_queue, (1,), (1,), flag, opencl.arm_flag(cl_queue, "other"), -1, 3)
    with pytest.raises(IndexError):  # also the built-in kind
        opencl.finish(cl_queue)


def test_launch_errors_name_the_kernel(cl_queue):
    kernel = get_kernel(cl_queue, FLAG, "report")
    too_many = cl_queue.device.max_work_group_size * 2
    with pytest.raises(DeviceError, match="report: launch over"):
        opencl.launch(kernel, cl_queue, (too_many,), (too_many,), opencl.flag_buffer(cl_queue), 0, 0, 1)
    with pytest.raises(BuildError):
        get_kernel(cl_queue, "__kernel void broken( {", "broken", ())


def test_hooks_see_every_launch(cl_queue):
    x = Tensor.ones(cl_queue, (10,))
    seen = []

    def hook(kernel, queue, global_size, local_size, args, event):
        seen.append(kernel.name)

    opencl.hooks.append(hook)
    try:
        elementwise.relu(x * 2)
    finally:
        opencl.hooks.remove(hook)
    assert seen == ["netcl_mul", "netcl_relu"]


def _child(connection, uses):
    for name, use in uses.items():
        try:
            use()
            connection.send((name, "ran"))
        except DeviceError as error:
            connection.send((name, str(error)))
        except Exception as error:
            connection.send((name, repr(error)))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_refuses_whatever_needs_the_device(cl_queue, cpu_queue):
    """Also where only new memory is needed, which the driver would wait for without end."""
    x, y = Tensor.ones(cl_queue, (4,)), Tensor.ones(cl_queue, (4, 4))
    capture = KernelCapture()
    with capture:
        elementwise.add(x, 1)
    pool, pinned = BufferPool(cl_queue), PinnedBufferPool(cl_queue)
    handle = pool.allocate(100)
    elementwise.add(x, 1).to_host()
    pickled = pickle.dumps(x)
    uses = {
        "empty": lambda: Tensor.empty(cl_queue, (1 << 20,)),
        "zeros": lambda: Tensor.zeros(cl_queue, (4,)),
        "from_host": lambda: Tensor.from_host(cl_queue, np.ones(4)),
        "add": lambda: x + 1,
        "matmul": lambda: y @ y,
        "copy": x.copy,
        "contiguous": lambda: y.T.contiguous(),
        "fill": lambda: x.fill_(2),
        "to_host": x.to_host,
        "pickle": lambda: pickle.dumps(x),
        "unpickle": lambda: pickle.loads(pickled),
        "item": lambda: x[0].item(),
        "finish": lambda: opencl.finish(cl_queue),
        "random": lambda: uniform(cl_queue, (4,)),
        "replay": capture.replay,
        "pool": lambda: pool.allocate(1 << 20),
        "free": pool.free_all,
        "pinned": lambda: pinned.allocate(100),
        "new pool": lambda: BufferPool(cl_queue),
        "timed": lambda: KernelProfiler(cl_queue).start() and x.fill_(1),
    }
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    uses["NumPy"] = lambda: (Tensor.ones(cpu_queue, (4,)) + 1).sum().item()  # needs no device
    child = context.Process(target=_child, args=(theirs, uses))
    child.start()
    for name in uses:
        assert ours.poll(60), f"{name}: the child hangs"
        got, message = ours.recv()
        assert got == name and (message == "ran" if name == "NumPy" else "'spawn'" in message), (got, message)
    child.join()
    handle.release()


def test_no_signal_handlers_are_replaced():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
