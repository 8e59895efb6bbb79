"""The documented examples of netcl.runtime, as a user would type them."""

from pathlib import Path

import numpy as np

import netcl.runtime
from netcl.core.memory import BufferPool
from netcl.core.tensor import Tensor
from netcl.ops import elementwise
from netcl.runtime.cache import ProgramCache, cacher
from netcl.runtime.capture import KernelCapture, capture_disabled, get_capture
from netcl.runtime.graph import Graph, GraphExecutor, TensorRef
from netcl.runtime.scheduler import ExecutionPlan, Scheduler


def test_the_package_file_is_empty():
    assert Path(netcl.runtime.__file__).read_text() == ""


def test_program_cache(cl_queue, tmp_path, monkeypatch):
    monkeypatch.delenv("NETCL_CACHE_MB", raising=False)
    ctx, device = cl_queue.context, cl_queue.device
    src_code = "__kernel void set(__global float* a) { a[get_global_id(0)] = 7; }"
    prg = cacher.get_program(ctx, src_code, device)
    my_cache = ProgramCache(cache_dir=str(tmp_path / "my_kernels"))
    again = my_cache.get_program(ctx, src_code, device)
    for program in (prg, again):
        x = Tensor.zeros(cl_queue, (3,))
        program.set(cl_queue, (3,), None, x.buffer)
        assert (x.to_host() == 7).all()
    assert list((tmp_path / "my_kernels").glob("*.bin"))


def test_graph_pipeline(queue):
    tensor_x, tensor_y = (Tensor.from_host(queue, np.array([1, -2, 3, -4], np.float32)) for _ in range(2))
    pool = BufferPool(queue)
    graph = Graph()

    def add_fn(inputs, out):
        elementwise.assign(out, inputs[0] + inputs[1])

    ref_a = graph.add_op("add", add_fn, [tensor_x, tensor_y], shape=(4,), dtype="float32")

    def relu_fn(inputs, out):
        elementwise.assign(out, elementwise.relu(inputs[0]))

    ref_b = graph.add_op("relu", relu_fn, [ref_a], shape=(4,), dtype="float32")
    executor = GraphExecutor(pool)
    result = executor.run(graph)
    assert isinstance(ref_a, TensorRef) and isinstance(ref_b, TensorRef)
    np.testing.assert_array_equal(result.to_host(), [2, 0, 6, 0])


def test_kernel_capture(queue, capsys):
    x = Tensor.ones(queue, (4,))

    def run_forward_pass():
        elementwise.assign(x, x * 2.0)

    cap = KernelCapture()
    cap.begin()
    run_forward_pass()
    n = cap.end()
    print(f"captured {n} launches")
    cap.replay()
    assert capsys.readouterr().out == "captured 2 launches\n"
    assert (x.to_host() == 4).all()


def test_capture_disabled(queue):
    cap = get_capture()

    def allocate_scratch_buffer(queue):
        return Tensor.zeros(queue, (4,))

    def run_kernels(buf):
        elementwise.assign(buf, buf + 1.0)

    cap.begin()
    with capture_disabled():
        buf = allocate_scratch_buffer(queue)
    run_kernels(buf)
    cap.end()
    cap.replay()
    assert (buf.to_host() == 2).all()


def test_scheduler(queue):
    x, done = np.arange(3, dtype=np.float32), []

    def copy_to_device(x):
        done.append(Tensor.from_host(queue, x))

    def run_kernel(x):
        done.append(done[0] + 1.0)

    sched = Scheduler(async_mode=False)
    plan_a = ExecutionPlan(description="h2d copy")
    plan_b = ExecutionPlan(description="compute")
    sched.submit(lambda: copy_to_device(x), plan=plan_a)
    sched.submit(lambda: run_kernel(x), plan=plan_b)
    events = sched.run(wait=True)
    assert events == [] and done[1].to_host().tolist() == [1, 2, 3]
