"""Ranges, identity, grids and triangles against NumPy on every backend."""

import numpy as np
import pytest
from fake_opencl import NarrowFills
from families import FAMILIES, queue_of

from netcl import ops
from netcl.core import tensor
from netcl.core.backend import opencl
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import as_dtype
from netcl.core.errors import DeviceError, DTypeError, ShapeError
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor
from netcl.runtime.capture import KernelCapture


@pytest.fixture(params=FAMILIES)
def queue(request):
    return queue_of(request.param)


def same(tensor, array):
    assert tensor.shape == array.shape and tensor.dtype == array.dtype
    assert np.array_equal(tensor.to_host(), array)


def test_arange(queue):
    for arguments in [(5,), (0,), (-3,), (2, 9), (2, 9, 3), (2, 8, 3), (9, 2, -2), (5, 5), (1 << 40, (1 << 40) + 3)]:
        same(ops.arange(queue, *arguments), np.arange(*arguments))
    for arguments in [(0.0, 1.0, 0.125), (1, 0, -0.25), (2.5,)]:
        same(ops.arange(queue, *arguments), np.arange(*arguments).astype(np.float32))
    same(ops.arange(queue, 100003, dtype="int32"), np.arange(100003, dtype=np.int32))
    for dtype in ("float16", "bfloat16"):
        same(ops.arange(queue, 9, dtype=dtype), np.arange(9).astype(dtype))
    with pytest.raises(ValueError, match="step other than 0"):
        ops.arange(queue, 0, 1, 0)
    with pytest.raises(DTypeError, match="got bool"):
        ops.arange(queue, 2, dtype="bool")


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "bfloat16", "float32", "float64", "int64"])
def test_large_fills(queue, dtype, monkeypatch):
    """On GPUs a kernel writes whole words of 16 bytes and what lies round them; nothing else changes."""
    monkeypatch.setattr(tensor, "LARGE_FILL", 0)
    launched = []
    monkeypatch.setattr(opencl, "hooks", [lambda kernel, *rest: launched.append(kernel.name)])
    large = not isinstance(queue, CPUQueue) and profile_of(queue).kind == "gpu"
    for size, start, end in [(1000, 0, 1000), (1000, 1, 997), (1000, 64, 640), (40, 17, 18), (9, 3, 3)]:
        base = ops.arange(queue, size).astype(dtype)
        wanted = np.arange(size).astype(dtype)
        base[start:end].fill_(1)
        wanted[start:end] = 1
        same(base, wanted)
    assert launched.count("fill") == (4 if large else 0)


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "bfloat16", "float32", "float64", "int64"])
def test_fills_past_the_driver_s_reach_go_by_a_kernel(cl_queue, dtype, monkeypatch):
    """At any offset, of any size, also zeros and full, also in replays; what is within reach stays the driver's."""
    driver = NarrowFills(2048)
    monkeypatch.setattr(opencl, "fill_buffer", driver)
    monkeypatch.setattr(opencl, "FILL_END", 2048)
    width = np.dtype(as_dtype(dtype)).itemsize
    size = 5000 // width + 3
    for start, end in [(size - 3, size), (0, size), (1, size - 1), (2048 // width - 1, 2048 // width + 1), (7, size)]:
        base, wanted = ops.arange(cl_queue, size).astype(dtype), np.arange(size).astype(as_dtype(dtype))
        base[start:end].fill_(1)
        wanted[start:end] = 1
        same(base, wanted)
    for made, value in [(Tensor.zeros(cl_queue, (size,), dtype), 0), (Tensor.full(cl_queue, (size,), 1, dtype), 1)]:
        same(made, np.full(size, value, as_dtype(dtype)))
    assert driver.sent == 0
    base.fill_(0)
    Tensor.zeros(cl_queue, (16,), dtype)
    assert driver.sent == 1
    capture = KernelCapture()
    with capture:
        base[size - 3 :].fill_(1)
        y = Tensor.zeros(cl_queue, (size,), dtype)
    assert [launch.name for launch in capture.launches] == ["fill", "fill"] and driver.sent == 1
    base.fill_(0)
    y.fill_(1)
    capture.replay()
    same(base, np.array([0] * (size - 3) + [1] * 3).astype(as_dtype(dtype)))
    same(y, np.zeros(size, as_dtype(dtype)))


@pytest.mark.parametrize("at", [2**31 - 2**20, 2**31 + 13, 2**32 + 13])
def test_far_fills_send_their_whole_offsets(cl_queue, at, monkeypatch):
    """Without the memory: what a kernel is sent, and that the driver is not asked."""
    monkeypatch.setattr(opencl, "fill_buffer", NarrowFills(2**31 - 2**20))
    sent = []
    monkeypatch.setattr(opencl, "launch", lambda kernel, queue, grid, local, buffer, *numbers: sent.append(numbers))
    monkeypatch.setattr(opencl, "hooks", [None])  # launches that hooks are told of go through opencl.launch
    memory = Tensor.empty(cl_queue, (4,), "int8")
    Tensor(memory.buffer, (40,), (1,), at, memory.dtype, cl_queue).fill_(7)
    pattern = int.from_bytes(bytes([7] * 8), "little")
    first = -(-at // 16)
    assert sent == [(pattern, pattern, at, at + 40, first, (at + 40) // 16 - first, *sent[0][6:])]


def test_linspace(queue):
    for arguments in [(0, 1, 7), (-3, 5, 100), (2, 2, 3), (1, 0, 1), (0, 1, 0), (0, 1e6, 70001)]:
        same(ops.linspace(queue, *arguments), np.linspace(*arguments).astype(np.float32))
    same(ops.linspace(queue, 0, 1, 5, endpoint=False), np.linspace(0, 1, 5, endpoint=False, dtype=np.float32))
    same(ops.linspace(queue, 0, 0.3, 11, dtype="float64"), np.linspace(0, 0.3, 11))
    with pytest.raises(ShapeError, match="at least 0"):
        ops.linspace(queue, 0, 1, -1)
    with pytest.raises(DTypeError, match="floating dtype"):
        ops.linspace(queue, 0, 1, 3, dtype="int32")


def test_eye(queue):
    for n, m, k in [(3, None, 0), (3, 5, 1), (5, 3, -2), (2, 2, 7), (4, 4, -9), (0, 3, 0), (3, 4, 3)]:
        same(ops.eye(queue, n, m, k), np.eye(n, m, k, dtype=np.float32))
    same(ops.eye(queue, 3, dtype="bool"), np.eye(3, dtype=bool))


def test_triangles(queue):
    x = np.random.default_rng(0).standard_normal((3, 9, 70)).astype(np.float32)
    x[0, 0, 69] = np.nan
    x[:, 8, 0] = np.inf
    t = Tensor.from_host(queue, x)
    for view, array in [
        (t, x),
        (t.transpose(1, 2), x.swapaxes(1, 2)),
        (t[1:, ::-1, 1::3], x[1:, ::-1, 1::3]),
        (t[0], x[0]),
    ]:
        for k in (-80, -3, 0, 2, 80):
            assert np.array_equal(ops.tril(view, k).to_host(), np.tril(array, k), equal_nan=True)
            assert np.array_equal(ops.triu(view, k).to_host(), np.triu(array, k), equal_nan=True)
    same(ops.tril(Tensor.ones(queue, (4, 4), "bool")), np.tril(np.ones((4, 4), bool)))
    same(ops.triu(t[:, :0]), x[:, :0])
    with pytest.raises(ShapeError, match="matrices"):
        ops.tril(t[0, 0])


def test_meshgrid(queue):
    a, b, c = (np.arange(n, dtype=np.int32) for n in (3, 4, 2))
    tensors = [Tensor.from_host(queue, v) for v in (a, b, c)]
    for indexing in ("ij", "xy"):
        for ours, theirs in zip(
            ops.meshgrid(*tensors, indexing=indexing), np.meshgrid(a, b, c, indexing=indexing), strict=True
        ):
            same(ours, theirs)
    same(ops.meshgrid(tensors[0], tensors[1][:0])[0], np.empty((3, 0), np.int32))
    with pytest.raises(ShapeError, match="one axis"):
        ops.meshgrid(tensors[0].unsqueeze(0))
    with pytest.raises(ValueError, match="indexing"):
        ops.meshgrid(tensors[0], indexing="yx")
    with pytest.raises(DeviceError, match="one queue"):
        ops.meshgrid(tensors[0], Tensor.zeros(next(queue_of(n) for n in FAMILIES if queue_of(n) is not queue), (2,)))
