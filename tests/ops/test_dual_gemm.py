"""Two products in one launch: values against NumPy in float64, on a device that runs the kernels for GPUs."""

import dataclasses

import numpy as np
import pytest
from families import FAMILIES, POSING, queue_of

import netcl
import netcl.autograd as ag
from netcl.core.backend import opencl
from netcl.core.device.profile import override_profile, profile_of
from netcl.core.tensor import Tensor
from netcl.kernels import tiling
from netcl.nn import Linear, ReLU, Sequential
from netcl.ops.product import dual as matmul_pair
from netcl.ops.product import gpu as matmul_gpu
from netcl.ops.product.dual import Factors, gemm_pair
from netcl.optim import AdamW

POSED = [name for name in FAMILIES if name.startswith(POSING)]
TOLERANCE = {"float16": 3e-2, "bfloat16": 2e-1, "float32": 3e-5, "float64": 1e-13}


@pytest.fixture
def gpu():
    if not POSED:
        pytest.skip("needs an OpenCL driver for the CPU")
    posing = queue_of(POSED[0])
    with override_profile(posing, dataclasses.replace(profile_of(posing), compute_units=132)):
        yield posing


@pytest.fixture
def names():
    """The names of the kernels that are launched."""
    found = []
    hook = lambda kernel, *_: found.append(kernel.name)  # noqa: E731
    opencl.hooks.append(hook)
    yield found
    opencl.hooks.remove(hook)


def layer(queue, rows, outs, ins, dtype="float32", seed=0):
    """g, y (rows, outs), x (rows, ins), w (outs, ins) as float64, and on the queue."""
    rng = np.random.default_rng(seed)
    shapes = (rows, outs), (rows, outs), (rows, ins), (outs, ins)
    arrays = [rng.standard_normal(s).astype(dtype) for s in shapes]
    return [a.astype(np.float64) for a in arrays], [Tensor.from_host(queue, a) for a in arrays]


def check(arrays, tensors, mask, sums, tolerance):
    (g, y, x, w), (tg, ty, tx, tw) = arrays, tensors
    dz = g * (y > 0) if mask else g
    made = gemm_pair(Factors(tg, tw, ty if mask else None), Factors(tg.T, tx, ty.T if mask else None, sums))
    assert made is not None
    (dx, none), (dw, db) = made
    assert none is None
    assert (db is not None) == sums
    scale = tolerance * max(1.0, len(g) ** 0.5)
    np.testing.assert_allclose(dx.to_host(), dz @ w, atol=tolerance * max(1.0, g.shape[1] ** 0.5))
    np.testing.assert_allclose(dw.to_host(), dz.T @ x, atol=scale)
    if sums:
        np.testing.assert_allclose(db.to_host(), dz.sum(0), atol=scale)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize(
    ("rows", "outs", "ins"),
    [(1, 1, 1), (32, 10, 128), (31, 33, 65), (33, 31, 64), (64, 32, 32), (5, 7, 3), (17, 16, 15), (200, 12, 4)],
)
def test_values_around_the_borders_of_tiles(gpu, rows, outs, ins, mask, sums):
    check(*layer(gpu, rows, outs, ins), mask, sums, TOLERANCE["float32"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize(("rows", "outs", "ins"), [(32, 12, 40), (9, 6, 5)])
def test_other_dtypes(gpu, dtype, rows, outs, ins):
    check(*layer(gpu, rows, outs, ins, dtype), True, True, TOLERANCE[dtype])


@pytest.mark.parametrize("kernel", matmul_gpu.PORTABLE)
def test_every_size_of_tiles(gpu, monkeypatch, kernel):
    monkeypatch.setitem(matmul_gpu.ROWS, np.dtype("float32"), (kernel,))
    monkeypatch.setattr(matmul_pair, "_apart", lambda *_: float("inf"))
    gpu.netcl_state.plans.clear()
    check(*layer(gpu, 67, 70, 36), True, True, TOLERANCE["float32"])
    gpu.netcl_state.plans.clear()


def test_views_and_starts(gpu):
    """Columns along memory, memory walked backwards, and starts that are not aligned after aligned ones."""
    arrays, (g, y, x, w) = layer(gpu, 24, 20, 12)
    turned = [Tensor.from_host(gpu, np.ascontiguousarray(a.T).astype(np.float32)).T for a in arrays]
    back = [Tensor.from_host(gpu, np.ascontiguousarray(a[::-1]).astype(np.float32))[::-1] for a in arrays]
    shifted = []
    for a in arrays:
        flat = np.concatenate([np.full(3, np.nan), a.ravel()]).astype(np.float32)
        shifted.append(Tensor.from_host(gpu, flat)[3:].reshape(a.shape))
    for tensors in ((g, y, x, w), turned, back, shifted, (g, shifted[1], x, shifted[3])):
        check(arrays, tensors, True, True, TOLERANCE["float32"])


def test_nan_and_infinity_stay_in_their_rows(gpu):
    arrays, (_, _, x, w) = layer(gpu, 40, 9, 8)
    host = arrays[0].astype(np.float32)
    host[3, 2], host[39, 8] = np.nan, np.inf
    g = Tensor.from_host(gpu, host)
    (dx, _), (dw, db) = gemm_pair(Factors(g, w), Factors(g.T, x, None, True))
    bad = [np.flatnonzero(~np.isfinite(t.to_host()).reshape(len(t), -1).all(1)).tolist() for t in (dx, dw, db)]
    assert bad == [[3, 39], [2, 8], [2, 8]]


def test_large_empty_and_mixed_products_go_one_by_one(gpu):
    def pair(*sizes, dtype=np.float32):
        a, b, c, d = (Tensor.zeros(gpu, s, t) for s, t in zip(sizes, (np.float32, np.float32, dtype, dtype)))
        return gemm_pair(Factors(a, b), Factors(c, d))

    assert pair((0, 4), (4, 3), (4, 4), (4, 3)) is None
    assert pair((4, 0), (0, 3), (4, 4), (4, 3)) is None
    assert pair((4, 4), (4, 3), (4, 4), (4, 3), dtype=np.float64) is None
    assert pair((4, 4), (4, 3), (4, 4), (4, 3)) is not None
    assert pair((16, 9000), (9000, 16), (4, 4), (4, 3)) is None  # k is worth dividing
    ints = [Tensor.zeros(gpu, (4, 4), "int32")] * 2
    assert gemm_pair(Factors(*ints), Factors(*ints)) is None


def test_longer_sums_start_first(gpu):
    """The order of the products in the launch is not that of the results."""
    rng = np.random.default_rng(2)
    a, b, c, d = (rng.standard_normal(s).astype(np.float32) for s in ((40, 3), (3, 50), (6, 90), (90, 7)))
    ta, tb, tc, td = (Tensor.from_host(gpu, t) for t in (a, b, c, d))
    (one, _), (two, sums) = gemm_pair(Factors(ta, tb), Factors(tc, td, sums=True))
    np.testing.assert_allclose(one.to_host(), a.astype(np.float64) @ b, atol=1e-5)
    np.testing.assert_allclose(two.to_host(), c.astype(np.float64) @ d, atol=1e-4)
    np.testing.assert_allclose(sums.to_host(), c.sum(1, dtype=np.float64), atol=1e-5)


def test_the_cost_of_one_product_alone_is_that_of_a_single_launch(gpu):
    """Two of the same cost no less than one of twice the columns, and no more than one after the other."""
    profile = profile_of(gpu)
    alone = tiling.cut(["matmul_gpu_small"], profile, 32, 64, 32, 1, most=1)[0].cost
    wide = tiling.cut(["matmul_gpu_small"], profile, 32, 128, 32, 1, most=1)[0].cost
    both = tiling.cut_together(["matmul_gpu_small"], profile, [(32, 64, 32)] * 2).cost
    assert alone <= both == wide < 2 * alone


# -- the gradients of layers -------------------------------------------------------------------------------------------


def gradients(queue, relu, x_shape, frozen=(), bias=True, dtype=np.float64):
    """Check the gradients of a layer against NumPy; `frozen` names inputs that need none."""
    rng = np.random.default_rng(3)
    shapes = {"x": x_shape, "w": (7, x_shape[-1]), "b": (7,)}
    arrays = {n: rng.standard_normal(shape) for n, shape in shapes.items()}
    nodes = {n: ag.tensor(Tensor.from_host(queue, a.astype(dtype)), n not in frozen) for n, a in arrays.items()}
    up = rng.standard_normal((*x_shape[:-1], 7))
    with ag.Tape() as tape:
        y = ag.linear(nodes["x"], nodes["w"], nodes["b"] if bias else None)
        y = ag.relu(y) if relu else y
        loss = (y * Tensor.from_host(queue, up.astype(dtype))).sum()
    tape.backward(loss)
    z = arrays["x"] @ arrays["w"].T + (arrays["b"] if bias else 0)
    dz = up * (z > 0) if relu else up
    flat = dz.reshape(-1, 7)
    expected = {"x": dz @ arrays["w"], "w": flat.T @ arrays["x"].reshape(-1, x_shape[-1]), "b": flat.sum(0)}
    for n, node in nodes.items():
        if n in frozen or (n == "b" and not bias):
            assert node.grad is None
        else:
            np.testing.assert_allclose(node.grad.to_host(), expected[n], atol=1e-4 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(5, 6), (2, 3, 6), (1, 1)])
@pytest.mark.parametrize(
    ("frozen", "bias", "pairs"),
    [((), True, 1), ((), False, 1), (("x",), True, 0), (("w",), True, 0), (("w", "x"), True, 0), (("b",), True, 1)],
)
def test_gradients_that_are_wanted(gpu, names, relu, shape, frozen, bias, pairs):
    for dtype in (np.float64, np.float32):
        names.clear()
        gradients(gpu, relu, shape, frozen, bias, dtype)
        assert names.count("gemm_pair") == pairs


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(0, 6), (2, 0, 6)])
def test_an_empty_batch_has_gradients(gpu, names, relu, shape):
    gradients(gpu, relu, shape)
    assert "gemm_pair" not in names


def test_both_gradients_of_a_matrix_product_take_one_launch(gpu, names):
    rng = np.random.default_rng(1)
    a, b, up = (rng.standard_normal(s).astype(np.float32) for s in ((9, 5), (5, 6), (9, 6)))
    na, nb = (ag.tensor(Tensor.from_host(gpu, t), requires_grad=True) for t in (a, b))
    with ag.Tape() as tape:
        y = na @ nb
    names.clear()
    tape.backward(y, Tensor.from_host(gpu, up))
    assert names == ["gemm_pair"]
    np.testing.assert_allclose(na.grad.to_host(), up @ b.T, atol=1e-5)
    np.testing.assert_allclose(nb.grad.to_host(), a.T @ up, atol=1e-5)


def test_recorded_steps_give_the_bits_of_eager_ones(gpu, names):
    rng = np.random.default_rng(6)
    x = Tensor.from_host(gpu, rng.standard_normal((32, 50)).astype(np.float32))
    labels = Tensor.from_host(gpu, rng.integers(0, 10, 32).astype(np.int32))

    def train(recorded):
        netcl.seed(1)
        model = Sequential(Linear(gpu, 50, 40), ReLU(), Linear(gpu, 40, 33), ReLU(), Linear(gpu, 33, 10))
        optimizer = AdamW(model.parameters(), lr=1e-2)

        def step():
            with ag.Tape() as tape:
                loss = ag.cross_entropy(model(ag.tensor(x)), labels)
            tape.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        run = ag.CompiledStep(step, warmup=1) if recorded else step
        losses = [run().item() for _ in range(4)]
        return losses, [p.value.to_host() for p in model.parameters()]

    names.clear()
    (losses, eager), (again, recorded) = train(False), train(True)
    assert names.count("gemm_pair") == 2 * 2 * 4
    assert losses == again
    assert losses[-1] < losses[0]
    for a, b in zip(eager, recorded, strict=True):
        np.testing.assert_array_equal(a, b)
