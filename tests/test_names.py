"""Names of earlier pages and of the specification that must stay importable, and what the smaller of them do."""

import importlib
import json
from types import ModuleType

import numpy as np
import pytest
from netcl.profiling.timing import timing

import netcl as nc
from netcl import ag
from netcl.core.backend.cpu import CPUBackend
from netcl.core.backend.opencl import OpenCLBackend
from netcl.core.errors import CheckpointError, DeviceError, DTypeError, GradientError, ShapeError
from netcl.core.memory import (
    BufferPool,
    PersistentBufferPool,
    PinnedBufferPool,
    empty_buffer,
    get_persistent_pool,
    is_integrated_gpu,
)
from netcl.io.checkpoint import load_params, save_params
from netcl.ops import fused_ops, older, record
from netcl.runtime.capture import capture_graph
from netcl.runtime.scheduler import Stream

NAMES = """
netcl: Tensor device matmul build_matmul_kernel elementwise_binary relu bias_add reduce_sum softmax conv2d KernelSpec
netcl.core.device: DeviceManager DeviceHandle manager device pick_default
netcl.core.device: DeviceManager.default DeviceManager.devices DeviceManager.profiles DeviceManager.profile
netcl.core.device: DeviceHandle.platform DeviceHandle.device DeviceHandle.context DeviceHandle.queue
netcl.core.device: DeviceHandle.backend DeviceHandle.device_name
netcl.core.capabilities: DeviceProfile device_profile DeviceProfile.has_fp16 DeviceProfile.has_subgroups
netcl.core.capabilities: DeviceProfile.has_svm_support
netcl.core.kernel_selector: KernelSelector KernelSpec KernelSelector.register KernelSelector.select
netcl.core.tensor: Tensor reshape Tensor.from_host Tensor.from_shape Tensor.to_host Tensor.zeros Tensor.ones
netcl.core.tensor: Tensor.reshape Tensor.transpose Tensor.shape Tensor.strides Tensor.dtype Tensor.buffer Tensor.queue
netcl.core.tensor: Tensor.context Tensor.backend
netcl.core.queue: CPUQueue
netcl.core.backend.opencl: OpenCLBackend
netcl.core.backend.cpu: CPUBackend CPUQueue
netcl.core.memory: BufferPool PinnedBufferPool PersistentBufferPool PoolStats BufferHandle
netcl.core.memory: get_pinned_pool get_persistent_pool is_integrated_gpu BufferHandle.release PoolStats.hit_rate
netcl.core.memory: BufferPool.allocate BufferPool.release BufferPool.stats PoolStats.hits
netcl.core.memory: PinnedBufferPool.allocate PinnedBufferPool.release PinnedBufferPool.stats
netcl.core.kernels.primitives: PRIMITIVE_PREAMBLE KernelSpec KernelSpec.build KernelSpec.run WorkGroupTuner
netcl.ops: matmul matmul_optimized build_matmul_kernel elementwise_binary elementwise_unary elementwise_optimized
netcl.ops: relu leaky_relu gelu swish sigmoid tanh elu softplus prelu clamp hard_sigmoid hard_swish hard_tanh bias_add
netcl.ops: reduce_sum reduce_mean softmax conv2d depthwise_conv2d winograd_fused fused_ops conv2d_planner
netcl.ops: attention cross_entropy batch_norm group_norm layer_norm rms_norm norm linear max_pool2d avg_pool2d
netcl.ops: adaptive_avg_pool2d global_avg_pool2d MATMUL_NAIVE MATMUL_TILED MATMUL_REGISTER_TILED MATMUL_VECTORIZED
netcl.ops: CONV2D_NAIVE CONV2D_IM2COL CONV2D_IMPLICIT_GEMM CONV2D_TILED_LOCAL CONV2D_WINOGRAD
netcl.ops.matmul: matmul MATMUL_NAIVE MATMUL_TILED MATMUL_REGISTER_TILED MATMUL_VECTORIZED
netcl.ops.conv2d_planner: CONV2D_NAIVE CONV2D_IM2COL CONV2D_IMPLICIT_GEMM CONV2D_TILED_LOCAL CONV2D_WINOGRAD conv2d
netcl.ops.fused_ops: conv2d_relu_bn
netcl.ops.reduction: reduce_sum reduce_mean
netcl.ops.broadcast: broadcast_index_lines
netcl.autograd: Tape get_current_tape set_current_tape Node tensor apply_op no_grad set_grad_enabled is_grad_enabled
netcl.autograd: set_detect_anomaly detect_anomaly matmul add relu cross_entropy jit_compile TraceNode TracingContext
netcl.autograd: AutogradPrimitive register_primitive TrainingGraphCompiler TrainingPattern CompiledGraph debug_tape
netcl.autograd: fused_weighted_bce_smooth_l1_loss FusedDetectionLossPlan TrainingGraphCompiler.register Tape.backward
netcl.autograd: Tape.reset Node.value Node.grad_fn Node.parents Node.grad Node.requires_grad Node.op_name
netcl.autograd: Node.creation_trace Node.sum sub mul div maximum minimum where lt le gt ge
netcl.autograd.engine: Tape Node get_current_tape set_current_tape apply_op no_grad debug_tape
netcl.autograd.debug_tape: debug_tape
netcl.autograd.graph: CompiledGraph
netcl.autograd.compiler: jit_compile TraceNode TracingContext AutogradPrimitive register_primitive tracing_context
netcl.autograd.training_compiler: TrainingPattern TrainingGraphCompiler fused_weighted_bce_smooth_l1_loss
netcl.autograd.training_compiler: FusedDetectionLossPlan
netcl.runtime.cache: ProgramCache cacher ProgramCache.get_program program_cache KernelHandle
netcl.runtime.graph: Graph GraphExecutor TensorRef Graph.add_op GraphExecutor.run
netcl.runtime.graph_fusion: fuse_graph
netcl.runtime.capture: KernelCapture capture_disabled get_capture capture_graph KernelCapture.begin KernelCapture.end
netcl.runtime.capture: KernelCapture.replay KernelCapture.replay_with_new_buffers
netcl.runtime.scheduler: ExecutionPlan Scheduler Scheduler.submit Scheduler.run Stream Stream.wait_for
netcl.runtime.perf: PerfCounter timing_region
netcl.nn: Linear Conv2d BatchNorm1d BatchNorm2d LayerNorm GroupNorm Dropout Sequential ReLU GELU SwiGLU Flatten
netcl.nn: ResNet18 MLP ModuleList functional build_sequential fast_bn_cnn_config
netcl.nn.functional: relu cross_entropy
netcl.nn.layers: Flatten Linear
netcl.nn.simple: MLP
netcl.nn.resnet: BasicBlock Bottleneck ResNet ResNet18 ResNet34 ResNet50 ResNet101 ResNet152
netcl.optim: SGD Adam AdamW Momentum RMSProp RMSprop CosineAnnealingLR ReduceLROnPlateau WarmupCosine
netcl.optim: clip_grad_norm clip_grad_norm_device AdamW.step AdamW.zero_grad
netcl.optim.lr_scheduler: CosineAnnealingLR
netcl.data: DataLoader
netcl.utils.data: random_split
netcl.io: save_model load_model
netcl.io.checkpoint: save_params load_params save_checkpoint load_checkpoint
netcl.profiling: EventTimer KernelProfiler AutoTuner Autotuner Timer ProfileContext AutotuneResult autotune
netcl.profiling: timing region timing_region WorkGroupTuner
netcl.profiling.timing: timing region timing_region EventTimer
netcl.profiling.autotuner: autotune AutotuneResult Autotuner WorkGroupTuner Autotuner.add Autotuner.tune_all
netcl.profiling.autotuner: AutotuneResult.best_local_size AutotuneResult.runtime_us
netcl.profiling.autotuner: Autotuner.lookup Autotuner.clear WorkGroupTuner.tune
"""
TO_COME = """
netcl.amp: GradScaler autocast is_autocast_enabled autocast_enabled supports_fp16 maybe_cast_tensor master_param
netcl.optim: AMPGradScaler
netcl.ops: conv_transpose2d
netcl.data.shared_batch: SharedBatchRingBuffer worker_write_to_shm
netcl.data.augment: random_erase cutout color_jitter
netcl.data.augment_gpu: flip_horizontal apply_color_jitter cutout
netcl.data.filters: apply_filters to_float normalize horizontal_flip random_crop
netcl.data.filters: default_cifar10_filters basic_cifar10_filters
netcl.distributed: all_reduce broadcast scatter gather data_parallel_step all_reduce_p2p shard_batch replicate_params
netcl.distributed: sync_grads broadcast_params prepare_replicas DeviceManager
netcl.distributed.replica: __name__
netcl.transformer: RMSNorm RotaryAttention DecoderBlock KVCache FlashAttention
netcl.text: BPETokenizer ChatFormat
netcl.cluster: KMeans MiniBatchKMeans SphericalKMeans BalancedKMeans GaussianMixture DBSCAN SpectralClustering
netcl.ssl: SimCLR MoCo BYOL SimSiam BarlowTwins VICReg SwAV DINO
netcl.evo: GA ES OpenAIES DE SepCMAES ArchSpace ArchitectureSearch
netcl.trainer: Trainer Trainer.fit
"""  # of packages and parts that are not built yet


def found(path, name):
    """Whether `name`, or an attribute such as Class.method, is there."""
    try:
        place = importlib.import_module(path)
    except ModuleNotFoundError:
        return False
    for part in name.split("."):
        if not hasattr(place, part) and part not in getattr(place, "__annotations__", ()):
            return False
        place = getattr(place, part, None)
    return True


def names(listed):
    """(path, name) of every name in a list."""
    for line in listed.strip().splitlines():
        path, _, rest = line.partition(": ")
        yield from ((path, name) for name in rest.split())


def test_names_are_importable():
    missing = [f"{path}: {name}" for path, name in names(NAMES) if not found(path, name)]
    assert missing == []


def test_names_to_come_are_not_there_yet():
    there = [f"{path}: {name}" for path, name in names(TO_COME) if found(path, name)]
    assert there == [], "move these to NAMES"


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


def drawn(queue, *shapes):
    """Tensors of normal numbers, and the same on the host."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    return [nc.tensor(a, queue=queue) for a in arrays], arrays


def test_old_modules_and_functions_of_one_name_go_side_by_side():
    for name in ("softmax", "attention", "cross_entropy", "batch_norm", "group_norm", "norm", "matmul"):
        assert callable(getattr(nc.ops, name)) and not isinstance(getattr(nc.ops, name), ModuleType), name
        assert callable(getattr(importlib.import_module(f"netcl.ops.{name}"), {"norm": "rms_norm"}.get(name, name)))
    assert nc.softmax is nc.ops.softmax and {"softmax", "conv2d"} <= {*dir(nc.ops)}


def test_every_op_is_a_function_on_tensors():
    importlib.import_module("netcl.ops.declared")
    ours = [n for n, op in record.every().items() if op.public.__module__.startswith(("netcl.ops.", "netcl.core."))]
    missing = [name for name in ours if not callable(getattr(nc.ops, name, None))]
    assert missing == []


def test_functions_that_load_late_give_their_result_alone(queue):
    (x, w, b), (_, _, bias) = drawn(queue, (2, 4, 6, 6), (4, 4, 3, 3), (4,))
    with ag.no_grad():
        wanted = {
            "conv2d": ag.conv2d(x, w, b),
            "softmax": ag.softmax(x, 1),
            "batch_norm": ag.batch_norm(x, b, b),
            "group_norm": ag.group_norm(x, 2, b, b),
            "layer_norm": ag.layer_norm(x),
            "rms_norm": ag.rms_norm(x),
            "max_pool2d": ag.max_pool2d(x, 2),
            "avg_pool2d": ag.avg_pool2d(x, 2),
            "adaptive_avg_pool2d": ag.adaptive_avg_pool2d(x, 2),
            "global_avg_pool2d": ag.global_avg_pool2d(x),
            "attention": ag.attention(x, x, x),
            "norm": ag.norm(x),
            "flatten": ag.flatten(x),
        }
        labels = nc.tensor(np.int32([0, 3]), queue=queue)
        loss = ag.cross_entropy(x[:, :, 0, 0], labels)
    more = {"conv2d": (w, b), "softmax": (1,), "batch_norm": (b, b), "group_norm": (2, b, b), "attention": (x, x)}
    more |= {name: (2,) for name in wanted if name.endswith("pool2d") and name != "global_avg_pool2d"}
    for name, value in wanted.items():
        np.testing.assert_array_equal(getattr(nc.ops, name)(x, *more.get(name, ())).to_host(), value.to_host(), name)
    assert nc.ops.cross_entropy(x[:, :, 0, 0], labels).tolist() == loss.tolist()
    np.testing.assert_array_equal(nc.ops.prelu(x, b).to_host(), ag.prelu(x, b).to_host())
    assert nc.ops.prelu(x, b).to_host()[0, :, 0, 0] == pytest.approx(
        np.where(x.to_host()[0, :, 0, 0] < 0, bias, 1) * x.to_host()[0, :, 0, 0]
    )
    with pytest.raises(DTypeError, match=r"ops\.softmax: expected a Tensor, got Node"):
        nc.ops.softmax(ag.tensor(x))
    with pytest.raises(ShapeError, match=r"prelu: expected one weight or 4 for \(2, 4, 6, 6\), got \(6,\)"):
        ag.prelu(x, x[0, 0, 0])


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("x > 0.0f ? x : 0.1f * x", "where(x > 0.0, x, 0.1 * x)"),
        ("fmax(x, a) + (x < 1 ? (x < 0 ? 0 : x) : exp(x))", "MAXIMUM(x, a) + where(x < 1, where(x < 0, 0, x), exp(x))"),
        ("x < 0 ? 1 : x < 1 ? 2 : 3", "where(x < 0, 1, where(x < 1, 2, 3))"),
        ("pow(x, x > 0 ? 2 : 3.f)", "pow(x, where(x > 0, 2, 3.0))"),
    ],
)
def test_c_expressions_become_formulas(text, formula):
    assert older.formula_of(text) == formula


def test_elementwise_of_an_expression(queue):
    (x, y), (a, b) = drawn(queue, (3, 1), (4,))
    found = nc.ops.elementwise_unary(x, "x > 0 ? x : 0.5f * x")
    np.testing.assert_array_equal(found.to_host(), np.where(a > 0, a, np.float32(0.5) * a))
    np.testing.assert_allclose(nc.elementwise_binary(x, y, "fmin(a, b) * 2").to_host(), np.minimum(a, b) * 2)
    assert nc.ops.elementwise_optimized is not None and found.dtype == np.float32
    half = nc.ops.elementwise_binary(x.astype("float16"), y.astype("float64"), "a + b")
    assert half.dtype == np.float64 and half.shape == (3, 4)
    for text in ("x +", "x ? 1", "z + 1", "x % 2"):
        with pytest.raises(DTypeError, match="elementwise_unary: expected a C expression of x, got"):
            nc.ops.elementwise_unary(x, text)


def test_products_and_convolutions_by_their_older_names(queue):
    (x, w, b), (a, _, c) = drawn(queue, (2, 12, 6, 6), (12, 1, 3, 3), (12,))
    np.testing.assert_allclose(nc.bias_add(x, b).to_host(), a + c[:, None, None])
    np.testing.assert_allclose(nc.ops.bias_add(x[..., 0, 0], b).to_host(), a[..., 0, 0] + c)
    with pytest.raises(ShapeError, match=r"bias_add: expected a bias of shape \(6,\) for axis 2"):
        nc.ops.bias_add(x, b, 2)
    same = nc.ops.conv2d(x, w, b, 2, 1, groups=12)
    np.testing.assert_array_equal(nc.ops.depthwise_conv2d(x, w, b, 2, 1).to_host(), same.to_host())
    (mean, var, full), _ = drawn(queue, (12,), (12,), (12, 12, 3, 3))
    var = nc.ops.abs(var)
    plain = nc.ops.conv2d(x, full, b, padding=1)
    normed = nc.ops.batch_norm(nc.ops.relu(plain), b, b, mean, var, training=False, eps=1e-3)
    fused = fused_ops.conv2d_relu_bn(x, full, b, b, b, mean, var, padding=1, eps=1e-3)
    np.testing.assert_allclose(fused.to_host(), normed.to_host(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(nc.ops.winograd_fused(x, full, b, 1).to_host(), plain.to_host(), atol=2e-4)
    with pytest.raises(ShapeError, match="winograd_fused: expected 3x3 filters"):
        nc.ops.winograd_fused(x, full[..., :2])
    assert nc.ops.clamp(x, min=0).to_host().min() == 0 and nc.reduce_sum(x).tolist() == nc.ops.sum(x).tolist()


def test_the_source_of_a_product_can_be_read(queue):
    if queue.device is None:
        with pytest.raises(DeviceError, match="build_matmul_kernel: expected an OpenCL device, got NumPy"):
            nc.build_matmul_kernel(queue, 64, 64, 64)
    else:
        text = nc.build_matmul_kernel(queue, 64, 64, 64)
        assert "gemm" in text and "__kernel" in text


def test_names_of_routes_can_be_forced(queue):
    (x, w), _ = drawn(queue, (1, 12, 8, 8), (12, 12, 3, 3))
    if queue.device is None:
        return
    with nc.ops.force(nc.ops.conv2d_planner.CONV2D_WINOGRAD, nc.ops.MATMUL_TILED):
        assert nc.ops.explain(nc.ops.conv2d, x, w).chosen["conv2d"] == "winograd"


def test_streams_run_by_priority_and_wait_for_others():
    seen = []
    first, second = Stream(), Stream()
    first.submit(lambda: seen.append("low"))
    first.submit(lambda: seen.append("high"), priority=1)
    second.submit(lambda: seen.append("last"))
    second.wait_for(first)
    assert second.run() == [] and seen == ["high", "low", "last"]
    assert first.run() == second.run() == []


def test_a_graph_is_captured_by_one_call(queue):
    (x,), (a,) = drawn(queue, (5,))
    out = nc.ops.mul(x, 2.0)
    graph = capture_graph(lambda: nc.ops.assign(out, nc.ops.mul(x, 2.0)))
    x.fill_(3.0)
    graph.replay()
    assert graph.num_launches > 0 and out.tolist() == [6.0] * 5 and a.shape == (5,)


def test_sequential_models_come_from_plain_data(queue):
    config = nc.nn.fast_bn_cnn_config(num_classes=5, in_channels=1, width=4)
    model = nc.nn.build_sequential(queue, config)
    assert model(nc.zeros(2, 1, 16, 16, queue=queue)).shape == (2, 5) and json.loads(json.dumps(config)) == config
    with pytest.raises(ValueError, match=r"type of layer 0 as a layer of netcl\.nn, got 'Liner'.*Linear"):
        nc.nn.build_sequential(queue, [{"type": "Liner"}])
    with pytest.raises(TypeError):
        nc.nn.build_sequential(queue, [{"type": "ReLU", "size": 3}])


def test_timing_gives_each_call():
    found = timing(sum, [1, 2], repeat=3)
    assert len(found.times) == 3 and found.mean > 0 and found.std >= 0
