"""Tensors on every backend: creation, views without copies, host transfers, promotion, errors."""

import copy
import warnings
from dataclasses import replace

import numpy as np
import pytest

from netcl.core.device import manager, override_profile, profile_of
from netcl.core.errors import DeviceError, DTypeError, ShapeError
from netcl.core.tensor import Tensor

DTYPES = ["bfloat16", "float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_from_host_keeps_dtype_and_values(queue, dtype):
    data = np.array([[0, 1, 2], [3, 100, 5]]).astype(dtype)
    t = Tensor.from_host(queue, data)
    assert (t.dtype, t.shape) == (data.dtype, (2, 3))
    assert np.array_equal(t.to_host(), data) and t.to_host().dtype == data.dtype
    assert np.array_equal(np.asarray(t), data)


def test_from_host_copies(queue):
    data = np.ones(1000, np.float32)
    t = Tensor.from_host(queue, data)
    data[:] = 7
    assert t.to_host().sum() == 1000
    out = t.to_host()
    out[:] = 3
    assert t.to_host().sum() == 1000


def test_python_numbers_become_float32_and_int64(queue):
    assert Tensor.from_host(queue, [1.5, 2.5]).dtype == np.float32
    assert Tensor.from_host(queue, [1, 2]).dtype == np.int64
    assert Tensor.from_host(queue, np.float64(3)).dtype == np.float64


def test_foreign_dtypes_are_refused_by_name(queue):
    with pytest.raises(DTypeError, match="complex64"):
        Tensor.from_host(queue, np.zeros(2, np.complex64))
    with pytest.raises(DTypeError, match="no-such"):
        Tensor.empty(queue, (2,), "no-such")


def test_views_share_memory(queue):
    x = Tensor.from_host(queue, np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    n = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    views = [
        (x.T, n.T), (x.permute(1, 0, 2), n.transpose(1, 0, 2)), (x.transpose(0, 2), n.swapaxes(0, 2)),
        (x[1], n[1]), (x[:, ::-1, 1:4:2], n[:, ::-1, 1:4:2]), (x[..., None, -1], n[..., None, -1]),
        (x.unsqueeze(1), n[:, None]), (x.unsqueeze(-1).squeeze(-1), n),
        (x[0:1].expand(5, 3, 4), np.broadcast_to(n[:1], (5, 3, 4))),
        (x.reshape(6, 4), n.reshape(6, 4)), (x.reshape(-1), n.reshape(-1)), (x[:, 1].reshape(8), n[:, 1].reshape(8)),
        (x[2:2], n[2:2]),
    ]  # fmt: skip
    for ours, theirs in views:
        assert ours.shape == theirs.shape
        assert np.array_equal(ours.to_host(), theirs)
    for ours, _ in views[:11]:
        assert ours.buffer is x.buffer
    assert np.array_equal(x.T.contiguous().to_host(), n.T) and x.T.contiguous().is_contiguous
    assert np.array_equal(x.T.reshape(4, 6).to_host(), n.T.reshape(4, 6))


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3)])
def test_a_copy_shares_no_memory(queue, shape):
    """Whether it is of data, of a result (on NumPy a view of what the op returned), or of a view."""
    data = Tensor.from_host(queue, np.arange(6, dtype=np.float32).reshape(shape))
    for t in (data, data + 1.0, (data + 1.0).reshape(3, 2), (data * 2.0).reshape(2, 3).transpose(0, 1)):
        before, other = t.to_host(), t.copy()
        other.fill_(-1)
        np.testing.assert_array_equal(t.to_host(), before)


def test_zero_sizes(queue):
    for shape in [(0,), (0, 3), (2, 0, 3)]:
        t = Tensor.zeros(queue, shape)
        assert t.to_host().shape == shape and (t + 1).shape == shape
    with pytest.raises(ShapeError, match="at least 0"):
        Tensor.zeros(queue, (-1, -1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_fills(queue, dtype):
    assert np.array_equal(Tensor.ones(queue, (3, 2), dtype).to_host(), np.ones((3, 2), dtype))
    assert np.array_equal(Tensor.from_shape(queue, (5,), dtype).to_host(), np.zeros(5, dtype))
    t = Tensor.zeros(queue, (4, 6), dtype)
    t[1:3, ::2].fill_(1)
    expected = np.zeros((4, 6), dtype)
    expected[1:3, ::2] = 1
    assert np.array_equal(t.to_host(), expected)


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_astype(queue, source, target):
    data = np.resize([0, 1, 2, 3.6, 100], 37).astype(source)  # vectors and a rest
    assert np.array_equal(Tensor.from_host(queue, data).astype(target).to_host(), data.astype(target))


@pytest.mark.parametrize("left", DTYPES)
@pytest.mark.parametrize("right", DTYPES)
def test_promotion_is_numpys(queue, left, right):
    a, b = np.array([1, 0, 2]).astype(left), np.array([1, 1, 3]).astype(right)
    half = ["float16" if d == "bfloat16" else d for d in (left, right)]  # NumPy knows what that becomes
    common = np.result_type(*half)
    if common == np.float16 and "bfloat16" in (left, right):
        common = np.dtype("float32" if "float16" in (left, right) else "bfloat16")
    expected = a.astype(common) + b.astype(common)
    got = Tensor.from_host(queue, a) + Tensor.from_host(queue, b)
    assert np.array_equal(got.to_host(), expected)
    assert got.dtype == (np.int32 if expected.dtype == np.int16 else expected.dtype)  # no int16 here: next wider


def test_python_numbers_are_weak(queue):
    for dtype in ("bfloat16", "float16", "float32", "float64"):
        t = Tensor.ones(queue, (2,), dtype)
        assert {(t * 2).dtype, (2.5 + t).dtype, (1 / t).dtype} == {np.dtype(dtype)}
    i = Tensor.ones(queue, (2,), "int32")
    assert (i + 1).dtype == np.int32 and (i / 2).dtype == np.float64 and (i * 0.5).dtype == np.float64


def test_scalars_and_repr(queue):
    t = Tensor.from_host(queue, np.array([[1.5]], np.float32))
    assert t.item() == 1.5 and float(t) == 1.5 and bool(t) and t.tolist() == [[1.5]]
    assert "shape=(1, 1)" in repr(t) and "1.5" in repr(t) and "float32" in repr(t)
    with pytest.raises(ShapeError, match="one element"):
        Tensor.zeros(queue, (2,)).item()
    with pytest.raises(TypeError):
        _ = t + "text"


def test_operators_from_the_left(queue):
    n = np.array([1.0, 2.0, 4.0], np.float32)
    t = Tensor.from_host(queue, n)
    for ours, theirs in [(2 - t, 2 - n), (2 / t, 2 / n), (2**t, 2**n), (5 % t, 5 % n), (-t, -n), (abs(-t), n)]:
        assert np.allclose(np.asarray(ours), theirs, rtol=1e-6)
    with pytest.raises(DTypeError, match="add: expected a tensor or a number, got a NumPy array"):
        _ = n + t
    assert np.array_equal((t == n[1]).to_host(), n == n[1]) and np.array_equal((t >= 2).to_host(), n >= 2)


def test_mixing_queues_is_refused_before_the_driver():
    handles = [manager.default("cpu"), *manager.handles]
    a, b = (Tensor.ones(h.queue, (2,)) for h in (handles[0], handles[-1]))
    if handles[0].queue is not handles[-1].queue:
        with pytest.raises(DeviceError, match="add: expected operands on one queue"):
            _ = a + b
        assert np.array_equal((a + b.to(a.queue)).to_host(), [2, 2])


def test_two_sub_devices_share_nothing(cl_queue):
    if profile_of(cl_queue).kind != "cpu":
        return
    first, second = manager.sub_devices(manager.default("cl:cpu"), 2)
    a, b = Tensor.ones(first.queue, (9,)), Tensor.ones(second.queue, (9,))
    with pytest.raises(DeviceError):
        _ = a * b
    assert np.array_equal((a + b.to(first.queue)).to_host(), np.full(9, 2))


def test_without_fp64(cl_queue):
    """Without double precision float64 becomes float32 with a warning, and no kernel mentions it."""
    profile = replace(profile_of(cl_queue), has_fp64=False, name=f"{profile_of(cl_queue).name} without fp64")
    with override_profile(cl_queue, profile):
        with pytest.warns(UserWarning, match="no double precision"):
            t = Tensor.from_host(cl_queue, np.array([1.0, 2.0]))
        assert t.dtype == np.float32
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            i = Tensor.from_host(cl_queue, np.array([1, 2], np.int32))
            assert (i / 2).dtype == np.float32 and np.allclose((i / 2).to_host(), [0.5, 1])


def test_deep_copies_are_copies_on_the_device(queue):
    x = Tensor.from_host(queue, np.arange(6, dtype=np.float32).reshape(2, 3))
    twin, pair = copy.deepcopy(x), copy.deepcopy([x, x])
    x.fill_(0)
    assert twin.tolist() == [[0, 1, 2], [3, 4, 5]] and twin.queue is x.queue
    assert pair[0] is pair[1] and pair[0].tolist() == twin.tolist()


def test_plans_do_not_grow_without_end(queue, monkeypatch):
    plans = type(queue.netcl_state.plans)()
    monkeypatch.setattr(queue.netcl_state, "plans", plans)
    monkeypatch.setattr(type(plans), "LIMIT", 8)
    for n in range(1, 40):
        x = Tensor.from_host(queue, np.ones((n, n), np.float32))
        assert (x @ x + x).tolist()[0][0] == n + 1
        assert len(plans) <= 8
