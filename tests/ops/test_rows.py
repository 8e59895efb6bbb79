"""Row kernels: chains that reduce along rows, against NumPy written out, on every queue, and on CPUs as a GPU would."""

import dataclasses

import numpy as np
import pytest

from netcl.core.device.profile import override_profile, profile_of
from netcl.core.dtypes import FLOAT32, compute_dtype
from netcl.core.tensor import Tensor
from netcl.fusion import rows
from netcl.fusion.chain import Chain

SOFTMAX = Chain(
    "fused_0", ("v0",), (),
    (("v1", "MAX", ("v0",)), ("v2", "SUB", ("v0", "v1")), ("v3", "EXP", ("v2",)), ("v4", "SUM", ("v3",)),
     ("v5", "DIV", ("v3", "v4"))),
    ("v5", "v4", "v1"), ("full", "keep", "drop"), 1,
)  # fmt: skip
NORM = Chain(
    "fused_0", ("v0", "v1", "v2"), ("s0",),
    (("v3", "SUM", ("v0",)), ("v4", "DIV", ("v3", "n")), ("v5", "SUB", ("v0", "v4")), ("v6", "SQUARE", ("v5",)),
     ("v7", "SUM", ("v6",)), ("v8", "DIV", ("v7", "n")), ("v9", "ADD", ("v8", "s0")), ("v10", "RSQRT", ("v9",)),
     ("v11", "MUL", ("v5", "v10")), ("v12", "MUL", ("v11", "v1")), ("v13", "ADD", ("v12", "v2"))),
    ("v13", "v4"), ("full", "drop"), 1,
)  # fmt: skip
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3, "bfloat16": 8e-3}


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True), e.sum(-1, keepdims=True), x.max(-1)


def norm(x, w, b, eps):
    m, v = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - m) / np.sqrt(v + eps) * w + b, m[..., 0]


def run(chain, queue, arrays, scalars=()):
    dtype = arrays[0].dtype
    tensors = [Tensor.from_host(queue, a) for a in arrays]
    found = rows.run_rows(chain, compute_dtype(dtype), (dtype,) * len(chain.outputs), tensors, scalars)
    assert all(t.dtype == dtype for t in found)
    return [t.to_host() for t in found]


def compare(queue, shape, dtype):
    rng = np.random.default_rng(3)
    x, w, b = (rng.normal(size=s).astype(dtype) for s in (shape, shape[-1:], shape[-1:]))
    wide = [a.astype(np.float64) for a in (x, w, b)]
    for found, wanted in zip(run(SOFTMAX, queue, [x]), softmax(wide[0]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2 * TOLERANCE[dtype], atol=TOLERANCE[dtype])
    for found, wanted in zip(run(NORM, queue, [x, w, b], (1e-3,)), norm(*wide, 1e-3), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=4 * TOLERANCE[dtype], atol=4 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(1, 2), (5, 7), (9, 8), (2, 3, 31), (33, 100), (3, 1025), (2, 9000)], ids=str)
def test_rows(queue, shape, dtype):
    compare(queue, shape, dtype)


@pytest.mark.parametrize("shape", [(5, 3), (9, 32), (3, 1025), (2, 9000)], ids=str)
def test_rows_with_groups(cl_queue, shape):
    profile = dataclasses.replace(profile_of(cl_queue), kind="gpu", vendor="another", max_work_group=256)
    with override_profile(cl_queue, profile):
        cl_queue.netcl_state.plans.clear()
        compare(cl_queue, shape, "float32")
    cl_queue.netcl_state.plans.clear()


@pytest.mark.parametrize("view", [lambda t: t[::2, 3:], lambda t: t.T, lambda t: t[3], lambda t: t[:, ::3]])
def test_views_are_not_copied(queue, view):
    x = np.random.default_rng(0).normal(size=(40, 64)).astype(np.float32)
    found = rows.run_rows(SOFTMAX, FLOAT32, (FLOAT32,) * 3, [view(Tensor.from_host(queue, x))])
    np.testing.assert_allclose(found[0].to_host(), softmax(view(x))[0], rtol=1e-5, atol=1e-6)


def test_two_axes_that_do_not_merge(queue):
    x = np.random.default_rng(0).normal(size=(6, 5, 8)).astype(np.float32)
    chain = dataclasses.replace(SOFTMAX, axes=2, functions={})
    t = Tensor.from_host(queue, x).permute(1, 2, 0)
    found, total, top = rows.run_rows(chain, FLOAT32, (FLOAT32,) * 3, [t])
    wanted = softmax(x.transpose(1, 2, 0).reshape(5, 48))
    assert (found.shape, total.shape, top.shape) == ((5, 8, 6), (5, 1, 1), (5,))
    np.testing.assert_allclose(found.to_host(), wanted[0].reshape(5, 8, 6), rtol=1e-5, atol=1e-6)


def test_nan_and_infinity_travel(queue):
    x = np.array([[1, np.nan, 2] * 4, [np.inf, 1, 2] * 4, [-np.inf] * 12, [np.nan, 5, 1] * 4], np.float32)
    with np.errstate(all="ignore"):
        wanted = softmax(x)
    for found, value in zip(run(SOFTMAX, queue, [x]), wanted, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-6)


@pytest.mark.parametrize("total", [3.0, -7.0, 1e-40, 3e-45, 2e-31, 1e38, 2e30, 0.0, -0.0, np.inf, np.nan])
def test_division_by_what_a_row_sums_to(queue, total):
    """One reciprocal serves the row, of any size; special values are those of the quotient."""
    x = np.array([[1.5, -3.0, 0.0, -0.0, np.inf, np.nan, 1e-30, 1e30, 1e-38]], np.float32)
    s = np.array([[total, *[0.0] * 8]], np.float32)
    lines = (("v2", "SUM", ("v1",)), ("v3", "DIV", ("v0", "v2")))
    chain = Chain("share", ("v0", "v1"), (), lines, ("v3",), ("full",), 1)
    tensors = [Tensor.from_host(queue, a) for a in (x, s)]
    y = rows.run_rows(chain, FLOAT32, (FLOAT32,), tensors)[0].to_host()
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(y, x / np.float32(s.sum()), rtol=2.0**-22, atol=2.0**-148)
