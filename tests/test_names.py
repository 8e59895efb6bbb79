"""Names of earlier pages and of the specification that must stay importable, and what the smaller of them do."""

import importlib

import numpy as np
import pytest
from netcl.profiling.timing import timing

import netcl as nc
from netcl import ag
from netcl.core.backend.cpu import CPUBackend
from netcl.core.backend.opencl import OpenCLBackend
from netcl.core.errors import CheckpointError, GradientError, ShapeError
from netcl.core.memory import (
    BufferPool,
    PersistentBufferPool,
    PinnedBufferPool,
    empty_buffer,
    get_persistent_pool,
    is_integrated_gpu,
)
from netcl.io.checkpoint import load_params, save_params

NAMES = """
netcl: Tensor device
netcl.core.device: DeviceManager DeviceHandle manager device pick_default
netcl.core.capabilities: DeviceProfile device_profile
netcl.core.kernel_selector: KernelSelector
netcl.core.tensor: Tensor reshape
netcl.core.queue: CPUQueue
netcl.core.backend.opencl: OpenCLBackend
netcl.core.backend.cpu: CPUBackend CPUQueue
netcl.core.memory: BufferPool PinnedBufferPool PersistentBufferPool PoolStats BufferHandle
netcl.core.memory: get_pinned_pool get_persistent_pool is_integrated_gpu
netcl.core.kernels.primitives: PRIMITIVE_PREAMBLE
netcl.ops: matmul relu leaky_relu gelu swish sigmoid tanh elu softplus hard_sigmoid hard_swish hard_tanh
netcl.ops.broadcast: broadcast_index_lines
netcl.autograd: Tape get_current_tape set_current_tape Node tensor apply_op no_grad set_grad_enabled is_grad_enabled
netcl.autograd: set_detect_anomaly detect_anomaly matmul add relu cross_entropy jit_compile TraceNode TracingContext
netcl.autograd: AutogradPrimitive register_primitive TrainingGraphCompiler TrainingPattern CompiledGraph debug_tape
netcl.autograd: fused_weighted_bce_smooth_l1_loss
netcl.autograd.engine: Tape Node get_current_tape set_current_tape apply_op no_grad debug_tape
netcl.autograd.debug_tape: debug_tape
netcl.autograd.graph: CompiledGraph
netcl.autograd.compiler: jit_compile TraceNode TracingContext AutogradPrimitive register_primitive
netcl.autograd.training_compiler: TrainingPattern TrainingGraphCompiler fused_weighted_bce_smooth_l1_loss
netcl.autograd.training_compiler: FusedDetectionLossPlan
netcl.runtime.cache: ProgramCache cacher
netcl.runtime.graph: Graph GraphExecutor TensorRef
netcl.runtime.capture: KernelCapture capture_disabled get_capture
netcl.runtime.scheduler: ExecutionPlan Scheduler
netcl.runtime.perf: PerfCounter timing_region
netcl.nn: Linear Conv2d BatchNorm2d Dropout Sequential ReLU GELU SwiGLU ResNet18 MLP ModuleList
netcl.nn.functional: relu cross_entropy
netcl.nn.layers: Flatten Linear
netcl.nn.resnet: BasicBlock Bottleneck ResNet ResNet18 ResNet50
netcl.optim: SGD Adam AdamW Momentum RMSProp RMSprop CosineAnnealingLR ReduceLROnPlateau WarmupCosine
netcl.optim: clip_grad_norm clip_grad_norm_device
netcl.optim.lr_scheduler: CosineAnnealingLR
netcl.data: DataLoader
netcl.utils.data: random_split
netcl.io: save_model load_model
netcl.io.checkpoint: save_params load_params save_checkpoint load_checkpoint
netcl.profiling: EventTimer KernelProfiler AutoTuner Autotuner Timer ProfileContext
netcl.profiling.timing: timing region timing_region EventTimer
netcl.profiling.autotuner: autotune AutotuneResult Autotuner WorkGroupTuner
"""


@pytest.mark.parametrize("line", NAMES.strip().splitlines())
def test_names_are_importable(line):
    path, names = line.split(": ")
    module = importlib.import_module(path)
    assert [name for name in names.split() if not hasattr(module, name)] == []


def test_unknown_names_of_old_paths_are_refused():
    with pytest.raises(AttributeError, match=r"netcl\.autograd\.engine"):
        importlib.import_module("netcl.autograd.engine").nothing  # noqa: B018


def test_backends_copy_and_launch(queue):
    data = np.arange(6, dtype=np.float32)
    if queue.device is None:
        backend, memory = CPUBackend(queue), np.zeros(24, np.uint8)
        assert backend.launch(np.add, nc.tensor(data, queue=queue), nc.tensor(data, queue=queue)).tolist()[-1] == 10
    else:
        backend, memory = OpenCLBackend(queue), empty_buffer(queue, 24)
    backend.write(memory, data)
    backend.write(memory, np.float32([7]), offset=4)
    assert backend.read(memory, np.empty(6, np.float32)).tolist() == [0, 7, 2, 3, 4, 5]
    assert backend.read(memory, np.empty(2, np.float32), offset=16).tolist() == [4, 5]
    backend.finish()


@pytest.mark.parametrize("kind", [BufferPool, PinnedBufferPool])
def test_pools_serve_every_queue(queue, kind):
    pool = kind(queue)
    first = pool.allocate(1000)
    first.release()
    first.release()
    second = pool.allocate(1000)
    assert second.nbytes == 1000 and pool.stats.requests == 2 and pool.stats.active_bytes >= 1000
    second.release()
    assert pool.stats.active_bytes == 0


def test_persistent_pools_are_one_a_queue_and_keep_a_bounded_number_of_blocks(queue):
    assert get_persistent_pool(queue) is get_persistent_pool(queue)
    assert is_integrated_gpu(queue) in (True, False)
    if queue.device is None:
        return
    pool = PersistentBufferPool(queue.context, queue, max_buffers_per_bucket=2)
    for handle in [pool.allocate(4096) for _ in range(5)]:
        handle.release()
    assert pool._pool.held_blocks <= 2
    with pytest.raises(ShapeError, match="max_buffers_per_bucket of at least 0, got -1"):
        PersistentBufferPool(queue.context, queue, max_buffers_per_bucket=-1)


def test_nodes_say_what_made_them(queue):
    x = ag.tensor(nc.tensor([1.0, 2.0], queue=queue), requires_grad=True)
    with ag.Tape() as tape, ag.detect_anomaly():
        y = x * 3.0
        z = ag.sum(y * y)
        table = ag.debug_tape()
    assert z.grad_fn.name == "sum" and repr(y.grad_fn) == "<mul backward>" and x.grad_fn is None and x.parents == ()
    assert y.parents[0].node is x and y.parents[0].op_name == "" and z.parents[0].op_name == "mul"
    assert y.grad_fn(nc.tensor([1.0, 1.0], queue=queue))[0].tolist() == [3, 3]
    assert "test_names.py" in y.creation_trace and x.creation_trace == ""
    assert [row.split()[:2] for row in table.splitlines()] == [["#", "op"], ["0", "mul"], ["1", "mul"], ["2", "sum"]]
    assert "(2,) leaf" in table
    tape.backward(z)
    assert z.grad_fn is None and ag.debug_tape(tape).count("\n") == 0
    with pytest.raises(GradientError, match="debug_tape: expected a tape, got none"):
        ag.debug_tape()


def test_set_detect_anomaly_stays_on_until_turned_off(queue):
    ag.set_detect_anomaly(True)
    try:
        with pytest.raises(GradientError, match="log"):
            ag.log(ag.tensor(nc.tensor([-1.0], queue=queue)))
    finally:
        ag.set_detect_anomaly(False)
    ag.log(ag.tensor(nc.tensor([-1.0], queue=queue)))


def test_params_go_to_a_file_and_back(queue, tmp_path):
    first, second = nc.nn.Linear(queue, 3, 2), nc.nn.Linear(queue, 3, 2)
    names = ["w", "b"]
    save_params(first.parameters(), tmp_path / "p", names)
    assert load_params(queue, second.parameters(), tmp_path / "p", names) == []
    np.testing.assert_array_equal(first.weight.value.to_host(), second.weight.value.to_host())
    assert load_params(queue, second.parameters(), tmp_path / "p", ["w", "other"]) == ["other"]
    with pytest.raises(CheckpointError, match="expected names such as 0"):
        load_params(queue, second.parameters(), tmp_path / "p")
    with pytest.raises(CheckpointError, match=r"expected the shapes of the parameters, got w: \(2, 3\) for \(4, 3\)"):
        load_params(queue, nc.nn.Linear(queue, 3, 4).parameters(), tmp_path / "p", names)
    with pytest.raises(ValueError, match="expected 2 different names, got 1"):
        save_params(first.parameters(), tmp_path / "p", ["w"])
    with pytest.raises(TypeError, match="expected Parameters or tensors, got int"):
        save_params([1], tmp_path / "p")


def test_timing_gives_each_call():
    found = timing(sum, [1, 2], repeat=3)
    assert len(found.times) == 3 and found.mean > 0 and found.std >= 0
