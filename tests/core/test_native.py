"""Launches through `_send.c` and through pyopencl: the same results, errors and hooks."""

import threading

import numpy as np
import pyopencl as cl
import pytest

from netcl.core.backend import native, opencl
from netcl.core.dtypes import FLOAT32, FLOAT64, INT32
from netcl.core.errors import DeviceError, NumberOutOfRange
from netcl.core.live import Cell
from netcl.core.tensor import Tensor
from netcl.ops import elementwise, reduction
from netcl.runtime.cache import get_kernel

WAYS = ("native", "pyopencl")
FILL = """
__kernel void fill_with(__global float* y, float v, long n) { long i = get_global_id(0); if (i < n) y[i] = v; }
"""
MIXED = """
__kernel void fill_mixed(int n, __global float* y, float v) { int i = get_global_id(0); if (i < n) y[i] = v; }
"""
RECORD = """
typedef struct { int first; int pad; long add[3]; } sizes;
__kernel void with_record(__global long* y, sizes s) { y[get_global_id(0)] = s.first + s.add[get_global_id(0)]; }
"""


@pytest.fixture(params=WAYS)
def fresh(request, cl_queue, monkeypatch):
    """A queue without kernels, whose launches go one of the two ways; the one there is where `_send.c` is not built."""
    library = request.getfixturevalue("c_library") if request.param == "native" else None
    monkeypatch.setattr(native, "extension", lambda: library)
    return cl.CommandQueue(cl_queue.context)


def test_the_ways_are_what_they_say(fresh, request):
    kernel = get_kernel(fresh, FILL, "fill_with")
    built = native.extension() is not None
    assert (kernel.sender is not None) == built
    assert built == ("native" in request.node.name and request.getfixturevalue("c_library") is not None)


def test_arguments_change_one_by_one(fresh):
    kernel = get_kernel(fresh, FILL, "fill_with")
    tensors = [Tensor.zeros(fresh, (8,)) for _ in range(3)]
    for i, t in enumerate(tensors):
        opencl.launch(kernel, fresh, (8,), None, t.buffer, 1.5, 8)
        opencl.launch(kernel, fresh, (8,), (1,), t.buffer, Cell(lambda i=i: i), np.int64(4))
    for i, t in enumerate(tensors):
        assert t.to_host().tolist() == [i] * 4 + [1.5] * 4


def test_memory_may_come_after_numbers(fresh):
    kernel = get_kernel(fresh, MIXED, "fill_mixed")
    y = Tensor.zeros(fresh, (8,))
    opencl.launch(kernel, fresh, (8,), None, 3, y.buffer, 2.0)
    opencl.launch(kernel, fresh, (8,), None, 1, y.buffer, 1e300)
    assert y.to_host().tolist() == [float("inf")] + [2.0] * 2 + [0.0] * 5


def test_every_type_of_number_is_passed(fresh):
    names = "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "float"
    arguments, body = (sep.join(form.format(t, i) for i, t in enumerate(names)) for sep, form in
                       ((", ", "{0} a{1}"), (" ", "y[{1}] = a{1};")))  # fmt: skip
    types = [np.dtype(t) for t in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4")]
    source = f"__kernel void every(__global float* y, {arguments}) {{ {body} }}"
    kernel, y = get_kernel(fresh, source, "every"), Tensor.zeros(fresh, (len(names),))
    numbers = [-3 if t.kind == "i" else 100 + i for i, t in enumerate(types)]
    opencl.launch(kernel, fresh, (1,), None, y.buffer, *numbers)
    assert y.to_host().tolist() == numbers


@pytest.mark.parametrize("types", [(None, None, INT32), (None, INT32, None)])
def test_local_memory_goes_through_pyopencl(fresh, types):
    order = ["__local int* shared", "int n"] if types[1] is None else ["int n", "__local int* shared"]
    body = "shared[get_local_id(0)] = n; barrier(CLK_LOCAL_MEM_FENCE); y[get_global_id(0)] = shared[0] + 1;"
    source = f"__kernel void share(__global int* y, {', '.join(order)}) {{ {body} }}"
    kernel, y = get_kernel(fresh, source, "share"), Tensor.zeros(fresh, (8,), "int32")
    for n in (1, 5):
        shared = [cl.LocalMemory(16), n]
        opencl.launch(kernel, fresh, (8,), (4,), y.buffer, *(shared if types[1] is None else shared[::-1]))
        assert y.to_host().tolist() == [n + 1] * 8


def test_records_are_passed_by_value(fresh):
    kernel = get_kernel(fresh, RECORD, "with_record")
    y = Tensor.empty(fresh, (3,), "int64")
    for first in (1, 2):
        record = np.array([first], np.int32).tobytes() + bytes(4) + np.array([10, 20, 30], np.int64).tobytes()
        opencl.launch(kernel, fresh, (3,), None, y.buffer, record)
        assert y.to_host().tolist() == [first + 10, first + 20, first + 30]


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_numbers_too_large_for_their_type(fresh, dtype):
    x = Tensor.ones(fresh, (3,), dtype)
    for value in (1e300, -1e300, float("inf"), float("nan"), 3):
        with np.errstate(over="ignore"):
            expected = np.full(3, np.array(value).astype(dtype))
        for _ in range(2):  # the second time by the kept plan
            np.testing.assert_array_equal((x * value).to_host(), expected)
    with pytest.raises(NumberOutOfRange):
        Tensor.ones(fresh, (3,), "int32") * 2**40


def test_kept_launches_of_every_form(fresh):
    """One, two and three operands, views, numbers, several results, results in place: first and kept launches agree."""
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(6, 10)).astype(np.float32) for _ in range(2))
    x, y = (Tensor.from_host(fresh, v) for v in (a, b))
    for _ in range(3):
        np.testing.assert_array_equal((x + y).to_host(), a + b)
        np.testing.assert_array_equal((x[:, 1:4] * y[2:3, ::3][:, :3]).to_host(), a[:, 1:4] * b[2:3, ::3][:, :3])
        np.testing.assert_array_equal((2.0 - x).to_host(), np.float32(2) - a)
        np.testing.assert_array_equal(elementwise.where(x > y, x, 0.5).to_host(), np.where(a > b, a, np.float32(0.5)))
        np.testing.assert_array_equal(elementwise.clip(x, -0.5, 0.5).to_host(), a.clip(-0.5, 0.5))
        np.testing.assert_allclose(reduction.sum(x * y, 1).to_host(), (a * b).sum(1), rtol=1e-5)
        da, db = elementwise.gradients("mul", x, None, (x, y), (True, True))
        np.testing.assert_array_equal(da.to_host(), a * b)
        np.testing.assert_array_equal(db.to_host(), a * a)
        out = Tensor.zeros(fresh, (6, 10))
        elementwise.apply("add", x, y, out=out)
        np.testing.assert_array_equal(out.to_host(), a + b)
        assert (Tensor.empty(fresh, (0, 3)) + Tensor.empty(fresh, (0, 3))).shape == (0, 3)


def test_layouts_of_one_shape_are_told_apart(fresh):
    base = np.arange(36, dtype=np.float32).reshape(6, 6)
    x = Tensor.from_host(fresh, base)
    views = [(x, base), (x.T, base.T), (x[:1].expand(6, 6), np.broadcast_to(base[:1], (6, 6)))]
    for _ in range(2):
        for u, v in views:
            for s, t in views:
                np.testing.assert_array_equal((u - s).to_host(), v - t)


def test_hooks_get_events(fresh):
    x = Tensor.ones(fresh, (4,))
    x + x
    seen = []
    hook = lambda kernel, queue, size, local, args, event: seen.append((kernel, args, event))  # noqa: E731
    opencl.hooks.append(hook)
    try:
        y = x + x
    finally:
        opencl.hooks.remove(hook)
    kernel, args, event = seen[0]
    event.wait()
    assert (kernel.name, len(args), len(seen)) == ("netcl_add", kernel.handle.num_args, 1)
    assert list(args[:3]) == [x.buffer, x.buffer, y.buffer] and y.to_host().tolist() == [2.0] * 4


def test_a_refused_launch_names_kernel_and_reason(fresh):
    kernel = get_kernel(fresh, FILL, "fill_with")
    y, too_many = Tensor.zeros(fresh, (8,)), fresh.device.max_work_group_size * 2
    with pytest.raises(DeviceError, match=r"fill_with: launch over .* failed on .*INVALID_WORK_(GROUP|ITEM)_SIZE"):
        opencl.launch(kernel, fresh, (too_many,), (too_many,), y.buffer, 1.0, 8)
    opencl.launch(kernel, fresh, (8,), (1,), y.buffer, 1.0, 8)
    assert y.to_host().tolist() == [1.0] * 8


def test_threads_share_kernels_and_plans(fresh):
    """Two threads on this queue and two on another: arguments are never mixed, with and without a hook."""
    import pyopencl as cl

    other, wrong = cl.CommandQueue(fresh.context), []

    def work(queue, constant):
        x = Tensor.full(queue, (64,), constant)
        for _ in range(150):
            y = x + constant + x
            if not np.array_equal(y.to_host(), np.full(64, 3 * constant, np.float32)):
                wrong.append(constant)

    hook = lambda *_: None  # noqa: E731
    threads = [threading.Thread(target=work, args=(q, float(i))) for i, q in enumerate((fresh, other, fresh, other))]
    for t in threads:
        t.start()
    for _ in range(50):  # the way with events and back, while the others launch
        opencl.hooks.append(hook)
        x = Tensor.ones(fresh, (64,)) + 1.0
        assert x.to_host()[0] == 2.0
        opencl.hooks.remove(hook)
    for t in threads:
        t.join()
    assert wrong == []


def test_without_the_extension(monkeypatch):
    native.extension.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    try:
        assert native.extension() is None
    finally:
        native.extension.cache_clear()
