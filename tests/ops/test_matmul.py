"""matmul, linear and gemm against NumPy in double precision: tile borders, views, dtypes, special values."""

import dataclasses
import itertools

import numpy as np
import pytest
from families import FAMILIES, POSING, queue_of
from scipy import special

from netcl.core.backend import opencl
from netcl.core.device.profile import override_profile, profile_of
from netcl.core.dtypes import is_float
from netcl.core.errors import DeviceError, DTypeError, ShapeError
from netcl.core.tensor import Tensor
from netcl.ops.product import cpu as matmul_cpu
from netcl.ops.product import gpu as matmul_gpu
from netcl.ops.product.cpu import macro_tile
from netcl.ops.product.op import gemm, linear, linear_keeping, matmul

POSED = [name for name in FAMILIES if name.startswith(POSING)]
TOLERANCE = {"bfloat16": 0.016, "float16": 2e-3, "float32": 3e-6, "float64": 1e-14}


@pytest.fixture(params=FAMILIES)
def queue(request):
    return queue_of(request.param)


def values(shape, dtype="float32", seed=0):
    rng = np.random.default_rng([seed, *shape])
    if is_float(np.dtype(dtype)):
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2 if dtype == "bool" else 9, shape).astype(dtype)


def close(y, expected, dtype="float32", k=1):
    """Within a few roundings of the storage type, on the scale of a sum of k products."""
    y = y.to_host() if isinstance(y, Tensor) else y
    assert y.shape == expected.shape
    assert y.dtype == np.dtype(dtype)
    scale = max(1.0, float(np.sqrt(k)))
    np.testing.assert_allclose(y.astype("f8"), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale)


def put(queue, array, form=""):
    """`array` on the queue, laid out as rows, as columns, with gaps, or backwards."""
    if form == "transposed":
        return Tensor.from_host(queue, np.ascontiguousarray(np.swapaxes(array, -1, -2))).transpose(-1, -2)
    if form == "strided":
        big = np.full((*array.shape[:-2], 2 * array.shape[-2], 2 * array.shape[-1] + 1), np.nan).astype(array.dtype)
        big[..., ::2, 1::2] = array
        return Tensor.from_host(queue, big)[..., ::2, 1::2]
    if form == "reversed":
        return Tensor.from_host(queue, np.ascontiguousarray(array[..., ::-1, ::-1]))[..., ::-1, ::-1]
    return Tensor.from_host(queue, array)


SIZES = [
    (1, 1, 1), (5, 6, 7), (6, 16, 4), (7, 17, 5), (15, 16, 17), (63, 64, 65), (64, 63, 66), (1, 257, 255),
    (257, 1, 256),
    (384, 64, 256), (385, 65, 257), (255, 256, 513), (12, 300, 3), (400, 20, 40), (3, 5, 1000),
]  # fmt: skip


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_sizes_round_the_tiles(queue, m, n, k):
    a, b = values((m, k)), values((k, n), seed=1)
    close(matmul(put(queue, a), put(queue, b)), a.astype("f8") @ b.astype("f8"), k=k)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize(("m", "n", "k"), [(5, 6, 7), (65, 33, 300), (7, 17, 513)])
def test_other_floats(queue, m, n, k, dtype):
    a, b = values((m, k), dtype), values((k, n), dtype, seed=1)
    close(matmul(put(queue, a), put(queue, b)), a.astype("f8") @ b.astype("f8"), dtype, k)


FORMS = ["", "transposed", "strided", "reversed"]


@pytest.mark.parametrize(("left", "right"), list(itertools.product(FORMS, FORMS)))
def test_views_of_either_operand(queue, left, right):
    for m, n, k in ((7, 17, 9), (70, 50, 300)):
        a, b = values((m, k)), values((k, n), seed=1)
        close(matmul(put(queue, a, left), put(queue, b, right)), a.astype("f8") @ b.astype("f8"), k=k)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_views_in_other_floats(queue, dtype):
    for left, right in (("transposed", ""), ("", "transposed"), ("strided", "reversed")):
        a, b = values((13, 20), dtype), values((20, 33), dtype, seed=1)
        close(matmul(put(queue, a, left), put(queue, b, right)), a.astype("f8") @ b.astype("f8"), dtype, 20)


SHAPES = [
    ((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((5, 2, 3), (3,)), ((3,), (5, 3, 4)), ((5, 2, 3), (5, 3, 4)),
    ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((6, 1, 2, 3), (5, 3, 4)), ((6, 5, 2, 3), (6, 1, 3, 4)),
    ((2, 1, 3, 1, 4, 5), (1, 7, 1, 6, 5, 2)), ((1, 1, 4), (1, 4, 1)), ((4, 1), (1, 4)),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_numpy_shapes(queue, left, right):
    a, b = values(left), values(right, seed=1)
    close(matmul(put(queue, a), put(queue, b)), np.matmul(a.astype("f8"), b.astype("f8")), k=left[-1])


def test_batches_through_views(queue):
    a, b = values((4, 70, 3, 20)), values((4, 20, 3, 33), seed=1)  # heads next to the last axis, as attention has them
    y = matmul(Tensor.from_host(queue, a).permute(0, 2, 1, 3), Tensor.from_host(queue, b).permute(0, 2, 1, 3))
    close(y, np.einsum("bmhk,bkhn->bhmn", a.astype("f8"), b.astype("f8")), k=20)
    expanded = Tensor.from_host(queue, a[:1]).expand(4, 70, 3, 20).permute(0, 2, 1, 3)
    expected = np.einsum("mhk,bkhn->bhmn", a[0].astype("f8"), b.astype("f8"))
    close(matmul(expanded, Tensor.from_host(queue, b).permute(0, 2, 1, 3)), expected, k=20)


@pytest.mark.parametrize(
    ("left", "right"), [((2, 0), (0, 3)), ((0, 4), (4, 3)), ((2, 4), (4, 0)), ((0, 2, 3), (3, 4)), ((0,), (0,))]
)
def test_NUM_10_zero_sizes(queue, left, right):
    y = matmul(Tensor.zeros(queue, left), Tensor.zeros(queue, right)).to_host()
    np.testing.assert_array_equal(y, np.matmul(np.zeros(left), np.zeros(right)))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "bool"])
def test_integers(queue, dtype):
    a, b = values((2, 9, 40), dtype), values((40, 65), dtype, seed=1)
    y = matmul(put(queue, a), put(queue, b, "transposed")).to_host()
    expected = np.matmul(a, b)  # wraps as the dtype does
    assert y.dtype == expected.dtype
    np.testing.assert_array_equal(y, expected)


def test_dtypes_promote(queue):
    a, b = values((3, 4), "float16"), values((4, 5), "int32")
    y = matmul(put(queue, a), put(queue, b)).to_host()
    assert y.dtype == np.result_type("float16", "int32")
    np.testing.assert_allclose(y, a.astype("f8") @ b, rtol=1e-6)


def test_zero_times_infinity_is_nan_and_padding_does_not_leak(queue):
    a, b = values((7, 9)), values((9, 18), seed=1)
    a[3, 2], b[2] = 0, 1
    b[2, 5] = np.inf
    a[6, 8], b[8, 17] = np.nan, -np.inf
    with np.errstate(all="ignore"):
        expected = a.astype("f8") @ b.astype("f8")
    y = matmul(put(queue, a), put(queue, b)).to_host()
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 127, 250])
def test_DEV_05_nothing_is_written_outside(cl_queue, size):
    guard = np.float32(-7)
    whole = Tensor.full(cl_queue, (size + 2, size + 2), guard)
    a, b = values((size, 9)), values((9, size), seed=1)
    gemm(put(cl_queue, a), put(cl_queue, b), out=whole[1:-1, 1:-1])
    result = whole.to_host()
    close(result[1:-1, 1:-1], a.astype("f8") @ b.astype("f8"), k=9)
    result[1:-1, 1:-1] = guard
    assert (result == guard).all()


ACTIVATIONS = {
    None: lambda v: v,
    "relu": lambda v: np.maximum(v, 0),
    "gelu": lambda v: v * special.ndtr(v),
    "silu": lambda v: v * special.expit(v),
}


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_linear(queue, activation, bias, dtype):
    for rows, features, k in ((5, 10, 33), (64, 48, 300)):
        x, w, b = values((rows, k), dtype), values((features, k), dtype, 1) / 8, values((features,), dtype, 2)
        y = linear(put(queue, x), put(queue, w.astype(dtype)), put(queue, b) if bias else None, activation)
        affine = x.astype("f8") @ w.astype(dtype).astype("f8").T + (b.astype("f8") if bias else 0)
        close(y, ACTIVATIONS[activation](affine), dtype, k)


@pytest.mark.parametrize("activation", ["gelu", "silu"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_linear_keeps_what_goes_into_the_activation(queue, activation, dtype):
    for rows, features, k, form in ((5, 10, 33, ""), (70, 49, 300, "transposed"), (64, 64, 300, ""), (3, 2, 0, "")):
        x, w, b = values((rows, k), dtype), values((features, k), dtype, 1) / 8, values((features,), dtype, 2)
        w = w.astype(dtype)
        bias = put(queue, b) if rows != 5 else None
        y, z = linear_keeping(put(queue, x, form), put(queue, w), bias, activation)
        affine = x.astype("f8") @ w.astype("f8").T + (0 if bias is None else b.astype("f8"))
        close(z, affine, dtype, max(k, 1))
        close(y, ACTIVATIONS[activation](affine), dtype, max(k, 1))


def test_keeping_takes_one_launch_on_cpu_devices_of_both_widths(cl_queue):
    if profile_of(cl_queue).kind != "cpu":
        pytest.skip("products of GPUs take two")
    x, w, b, names = values((33, 70)), values((21, 70), seed=1), values((21,), seed=2), []
    hook = lambda kernel, *_: names.append(kernel.name)  # noqa: E731
    for vector in (8, 16):
        with override_profile(cl_queue, dataclasses.replace(profile_of(cl_queue), vector=vector)):
            opencl.hooks.append(hook)
            y, z = linear_keeping(put(cl_queue, x), put(cl_queue, w), put(cl_queue, b), "gelu")
            opencl.hooks.remove(hook)
            affine = x.astype("f8") @ w.astype("f8").T + b.astype("f8")
            close(z, affine, k=70)
            close(y, ACTIVATIONS["gelu"](affine), k=70)
    assert names == ["gemm", "gemm"]


def test_linear_takes_any_leading_axes_and_views(queue):
    x, w, b = values((2, 3, 4, 5)), values((7, 5), seed=1), values((14,), seed=2)
    expected = np.einsum("abck,nk->bacn", x.astype("f8"), w.astype("f8")) + b[::2].astype("f8")
    y = linear(Tensor.from_host(queue, x).permute(1, 0, 2, 3), put(queue, w, "transposed"), put(queue, b)[::2])
    close(y, expected, k=5)
    close(linear(put(queue, x[0, 0, 0]), put(queue, w)), x[0, 0, 0].astype("f8") @ w.astype("f8").T, k=5)
    assert linear(Tensor.zeros(queue, (0, 5)), put(queue, w)).shape == (0, 7)
    empty = linear(Tensor.zeros(queue, (2, 0)), Tensor.zeros(queue, (7, 0)), put(queue, b)[:7], "relu")
    close(empty, np.maximum(np.broadcast_to(b[:7].astype("f8"), (2, 7)), 0))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_gemm_accumulates_and_scales(queue, dtype):
    a, b, c = values((9, 600), dtype), values((600, 20), dtype, 1), values((9, 20), dtype, 2)
    out = Tensor.from_host(queue, c)
    assert gemm(put(queue, a), put(queue, b), out=out, alpha=0.25, accumulate=True) is out
    close(out, c.astype("f8") + 0.25 * (a.astype("f8") @ b.astype("f8")), dtype, 600)
    columns = Tensor.from_host(queue, np.ascontiguousarray(c.T)).T
    gemm(put(queue, a), put(queue, b), out=columns, accumulate=True)
    close(columns, c.astype("f8") + a.astype("f8") @ b.astype("f8"), dtype, 600)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("k", [70, 3000])
def test_narrow_types_into_floats(queue, k, dtype):
    """Sums beyond the largest half, also where k is divided."""
    a, b = values((2, 33, k), dtype), values((2, k, 35), dtype, 1)
    a[0] *= 60
    b[0] *= 60
    out = Tensor.empty(queue, (2, 33, 35))
    gemm(*(Tensor.from_host(queue, v) for v in (a, b)), out, alpha=8.0)
    expected = 8 * (a.astype("f8") @ b.astype("f8"))
    np.testing.assert_allclose(out.to_host(), expected, rtol=3e-6, atol=1e-6 * np.abs(expected).max())


def test_only_the_compute_type_is_wider(queue):
    a = Tensor.zeros(queue, (3, 3), "float16")
    with pytest.raises(DTypeError, match="gemm: expected out of float16 or float32, got float64; allocate"):
        gemm(a, a, Tensor.empty(queue, (3, 3), "float64"))
    with pytest.raises(DTypeError, match=r"expected out of float16 with a bias, .* got float32; leave them out"):
        gemm(a, a, Tensor.empty(queue, (3, 3)), activation="relu")


@pytest.mark.skipif(not POSED, reason="needs an OpenCL driver for the CPU")
@pytest.mark.parametrize("units", [1, 132])
@pytest.mark.parametrize("kernel", matmul_gpu.PORTABLE)
def test_every_gpu_tile(monkeypatch, kernel, units):
    """With many units k is divided among groups, for a product with an epilogue."""
    queue = queue_of(POSED[0])
    monkeypatch.setitem(matmul_gpu.ROWS, np.dtype("f4"), (kernel,))
    with override_profile(queue, dataclasses.replace(profile_of(queue), compute_units=units)):
        for m, n, k in ((70, 50, 300), (9, 33, 263)):
            x, w, b = values((m, k)), values((n, k), seed=1), values((n,), seed=2)
            y = linear(put(queue, x), put(queue, w), put(queue, b), "relu")
            close(y, np.maximum(x.astype("f8") @ w.astype("f8").T + b, 0), k=k)


def test_the_same_plan_serves_other_offsets(cl_queue):
    a, b = values((10, 8, 6)), values((10, 6, 4), seed=1)
    left, right = put(cl_queue, a), put(cl_queue, b)
    for i in (0, 3, 9):
        close(matmul(left[i], right[i]), a[i].astype("f8") @ b[i].astype("f8"), k=6)


def test_errors_name_the_shapes(queue, cpu_queue):
    def zeros(*shape, on=queue):
        return Tensor.zeros(on, shape)

    with pytest.raises(ShapeError, match=r"matmul: expected .* equal K, got \(2, 3\) and \(4, 5\)"):
        matmul(zeros(2, 3), zeros(4, 5))
    with pytest.raises(ShapeError, match=r"leading axes.*broadcast"):
        matmul(zeros(2, 3, 4), zeros(3, 4, 5))
    with pytest.raises(ShapeError, match="matmul"):
        matmul(zeros(), zeros(3))
    with pytest.raises(ShapeError, match=r"linear: expected x \(.., K\) and w"):
        linear(zeros(2, 3), zeros(4, 5))
    with pytest.raises(ShapeError, match=r"bias of shape \(4,\), got \(3,\)"):
        linear(zeros(2, 5), zeros(4, 5), zeros(3))
    with pytest.raises(ShapeError, match="activation"):
        linear(zeros(2, 5), zeros(4, 5), None, "tan")
    if queue is not cpu_queue:
        with pytest.raises(DeviceError, match="one queue"):
            matmul(zeros(2, 2), zeros(2, 2, on=cpu_queue))


@pytest.mark.parametrize("vector", [8, 16])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_registers_of_both_widths(cl_queue, vector, dtype):
    """Kernels for 16 floats a register work where registers hold 8, and the other way round."""
    with override_profile(cl_queue, dataclasses.replace(profile_of(cl_queue), vector=vector)):
        for m, n, k in ((1, 31, 17), (4, 32, 8), (8, 33, 40), (13, 64, 300), (25, 97, 64), (41, 70, 529)):
            a, b, bias = values((m, k), dtype), values((k, n), dtype, 1), values((n,), dtype, 2)
            expected = a.astype("f8") @ b.astype("f8")
            for left, right in (("", ""), ("transposed", "transposed"), ("strided", "reversed")):
                close(matmul(put(cl_queue, a, left), put(cl_queue, b, right)), expected, dtype, k)
            y = linear(put(cl_queue, a), put(cl_queue, b.T.copy()), put(cl_queue, bias), "relu")
            close(y, np.maximum(expected + bias.astype("f8"), 0), dtype, k)


@pytest.mark.parametrize("vector", [8, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_panels_copied_once_for_all_rows(monkeypatch, cl_queue, vector, dtype):
    """Around the borders of panels, of what is copied at once and of blocks of k; with all that a launch can add."""
    monkeypatch.setattr(matmul_cpu, "OFTEN", 1)
    names = []
    monkeypatch.setattr(opencl, "hooks", [lambda kernel, *_: names.append(kernel.name)])
    with override_profile(cl_queue, dataclasses.replace(profile_of(cl_queue), kind="cpu", vector=vector)):
        for m, n, k in ((65, 1, 1), (66, 31, 255), (80, 33, 257), (97, 127, 40), (70, 129, 529), (400, 16, 8)):
            a, b, bias = values((m, k), dtype), values((k, n), dtype, 1), values((n,), dtype, 2)
            expected = a.astype("f8") @ b.astype("f8")
            for left, right in (("", ""), ("transposed", "transposed"), ("", "strided"), ("strided", "reversed")):
                close(matmul(put(cl_queue, a, left), put(cl_queue, b, right)), expected, dtype, k)
            y = linear(put(cl_queue, a), put(cl_queue, b.T.copy()), put(cl_queue, bias), "relu")
            close(y, np.maximum(expected + bias.astype("f8"), 0), dtype, k)
            out = put(cl_queue, expected.astype(dtype))
            gemm(put(cl_queue, a), put(cl_queue, b), out=out, alpha=0.5, accumulate=True)
            close(out, 1.5 * expected, dtype, k)
    assert names == ["gemm_pack", "gemm"] * 36


def test_many_rows_share_one_copy_of_the_right_operand(monkeypatch, cl_queue):
    names = []
    monkeypatch.setattr(opencl, "hooks", [lambda kernel, *_: names.append(kernel.name)])
    # how many blocks of rows there are depends on units and registers
    profile = dataclasses.replace(profile_of(cl_queue), kind="cpu", compute_units=2, vector=8)
    with override_profile(cl_queue, profile):
        a, b = values((1900, 40)), values((40, 70), seed=1)
        close(matmul(put(cl_queue, a), put(cl_queue, b)), a.astype("f8") @ b.astype("f8"), k=40)
        matmul(put(cl_queue, a[:100]), put(cl_queue, b))
    assert names == ["gemm_pack", "gemm", "gemm"]


@pytest.mark.parametrize("units", [1, 2, 64])
@pytest.mark.parametrize(
    ("m", "n", "k", "batch"), [(32, 256, 784, 1), (2048, 2048, 2048, 1), (64, 64, 64, 64), (1, 10, 5, 1)]
)
def test_macro_tiles_cover_the_matrix_and_keep_units_busy(m, n, k, batch, units):
    for mr, vw in ((6, 8), (12, 16)):
        mc, nc = macro_tile(m, n, k, batch, units, {"MC": 384, "MR": mr, "VW": vw})
        assert mc % mr == 0
        assert nc % (2 * vw) == 0
        assert mc <= 384
        items = -(-m // mc) * -(-n // nc) * batch
        assert items >= min(units, max(1, batch * m * n * k >> 21))


# -- single columns ----------------------------------------------------------------------------------------------------


def test_a_bias_of_one_element_may_have_any_stride(queue):
    x, w, b = values((3, 8)), values((1, 8)), values((2,))
    strided = Tensor.from_host(queue, b)[::2]
    assert strided.strides == (2,)
    expected = x.astype("f8") @ w.T + b[:1]
    on = [Tensor.from_host(queue, a) for a in (x, w)]
    close(linear(*on, strided), expected)
    close(linear(*on, strided, "relu"), np.maximum(expected, 0))
    for y in linear_keeping(*on, strided, "silu")[1:]:
        close(y, expected)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("shape", [(3, 1), (1, 1), (2, 3, 1), (3, 2)])
def test_gemm_into_columns_of_a_larger_tensor(queue, shape, accumulate):
    a, b = values((*shape[:-1], 5)), values((5, shape[-1]), seed=1)
    whole = values((*shape[:-1], 2 * shape[-1]), seed=2)
    target = Tensor.from_host(queue, whole)
    gemm(Tensor.from_host(queue, a), Tensor.from_host(queue, b), target[..., ::2], accumulate=accumulate)
    expected = whole.astype("f8")
    expected[..., ::2] = a.astype("f8") @ b + (whole[..., ::2] if accumulate else 0)
    close(target, expected, k=5)


def test_gemm_refuses_what_does_not_fit(queue):
    one = lambda *shape: Tensor.ones(queue, shape)  # noqa: E731
    for operands, message in (
        ((one(3, 4), one(5, 2)), r"gemm: expected a \(\.\., M, K\) and b \(\.\., K, N\) with equal K"),
        ((one(4), one(4, 2)), r"gemm: expected a \(\.\., M, K\)"),
        ((one(3, 4), one(4, 2), one(2, 3)), r"gemm: expected out of shape \(3, 2\), got \(2, 3\)"),
        ((one(3, 4), one(4, 2), None, one(3)), r"gemm: expected a bias of shape \(2,\), got \(3,\)"),
    ):
        with pytest.raises(ShapeError, match=message):
            gemm(*operands)
