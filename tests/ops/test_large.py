"""Tensors of more than 2^31 elements, on GPUs with room for them: what lies past the reach of an int must be right.

Which integers a kernel takes is decided per plan; that views far from each other share none needs no memory to test.
"""

import numpy as np
import pytest
from families import FAMILIES, POSING, queue_of

from netcl.core.device import manager
from netcl.core.dtypes import FLOAT32, INT64
from netcl.core.tensor import Tensor
from netcl.fusion import fold, map, rows
from netcl.fusion.chain import Chain
from netcl.kernels import windows as strips
from netcl.kernels.grid import reach
from netcl.ops import elementwise as E
from netcl.ops import reduction
from netcl.ops.index.pick import take
from netcl.ops.normalization import channels
from netcl.ops.normalization.norm import layer_norm
from netcl.ops.normalization.problem import Types
from netcl.ops.normalization.softmax import softmax
from netcl.ops.product.op import matmul

COLUMNS = 1024
ROWS = (1 << 31) // COLUMNS + 3
ROOM = 40 << 30  # bytes


@pytest.fixture(scope="module")
def large():
    """(queue, x, last): x (ROWS, COLUMNS) of halves, whose last rows are the random `last`, and zeros before."""
    found = [i for i, p in enumerate(manager.profiles) if p.kind == "gpu" and p.global_mem >= ROOM]
    if not found:
        pytest.skip("no GPU with 40 GiB")
    queue = manager.default(found[0]).queue
    last = np.random.default_rng(0).standard_normal((5, COLUMNS)).astype("f2")
    x = Tensor.full(queue, (ROWS, COLUMNS), 0.0, "float16")
    E.assign(x[-5:], Tensor.from_host(queue, last))
    yield queue, x, last.astype("f8")
    queue.netcl_state.pool.free_held()


def tail(t, rows=5):
    """The last rows, and the first."""
    return t[-rows:].to_host().astype("f8"), t[:2].to_host().astype("f8")


@pytest.mark.gpu
def test_elementwise_and_copies(large):
    _, x, last = large
    end, start = tail(E.add(E.mul(x, 2.0), 1.0))
    np.testing.assert_allclose(end, last * 2 + 1, rtol=2e-3, atol=2e-3)
    assert (start == 1).all()
    turned = x.transpose(0, 1).contiguous()  # (COLUMNS, ROWS)
    np.testing.assert_array_equal(turned[:, -5:].to_host().T.astype("f8"), last)
    assert (turned[:, :2].to_host() == 0).all()


@pytest.mark.gpu
def test_rows(large):
    queue, x, last = large
    end, start = tail(softmax(x))
    e = np.exp(last - last.max(-1, keepdims=True))
    np.testing.assert_allclose(end, e / e.sum(-1, keepdims=True), rtol=2e-3, atol=1e-6)
    np.testing.assert_allclose(start, 1 / COLUMNS, rtol=1e-3)
    w, b = (Tensor.full(queue, (COLUMNS,), v, "float16") for v in (2.0, 1.0))
    end, start = tail(layer_norm(x, w, b)[0])
    normal = (last - last.mean(-1, keepdims=True)) / np.sqrt(last.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(end, 2 * normal + 1, rtol=4e-3, atol=4e-3)
    assert (start == 1).all()


@pytest.mark.gpu
def test_reductions(large):
    _, x, last = large
    np.testing.assert_allclose(reduction.sum(x, 0).to_host(), last.sum(0), rtol=2e-3, atol=4e-3)
    np.testing.assert_allclose(reduction.sum(x, 1).to_host()[-5:], last.sum(1), rtol=2e-3, atol=4e-2)
    assert float(reduction.max(x).to_host()[0]) == last.max()
    assert int(reduction.argmax(x, 0).to_host()[3]) == ROWS - 5 + last[:, 3].argmax() and last[:, 3].max() > 0
    assert int(reduction.argmax(x).to_host()[0]) == (ROWS - 5) * COLUMNS + last.argmax()


@pytest.mark.gpu
def test_products_and_rows_by_index(large):
    queue, x, last = large
    w = np.random.default_rng(1).standard_normal((COLUMNS, 64)).astype("f2")
    y = matmul(x, Tensor.from_host(queue, w)).to_host()[-5:].astype("f8")
    np.testing.assert_allclose(y, last @ w.astype("f8"), rtol=4e-3, atol=8e-2)
    index = Tensor.from_host(queue, np.array([ROWS - 1, 0, ROWS - 4], np.int64))
    np.testing.assert_array_equal(take(x, index, 0).to_host().astype("f8"), [last[4], 0 * last[0], last[1]])


# -- plans -------------------------------------------------------------------------------------------------------------

COPY = Chain("copy", ("v0",), (), (("v1", "ADD", ("v0", "1")),), ("v1",))
ROW_SUMS = Chain("row_sums", ("v0",), (), (("v1", "SUM", ("v0",)),), ("v1",), ("drop",), 1)
STARTS = (0, 8, (1 << 28) - 8, 1 << 28, 1 << 31, (1 << 31) + 8)  # of three plans: near, among the next 2^28, far


@pytest.fixture
def posing():
    """A CPU device that runs GPU kernels, or on machines without one the GPU itself: plans need no memory."""
    return queue_of(next((f for f in FAMILIES if f.startswith(POSING)), FAMILIES[-1]))


def view(queue, start, step=4):
    """A view of (8, 4) floats in memory that does not exist."""
    return Tensor(None, (8, 4), (step, 1), start, FLOAT32, queue)


def test_maps_of_far_views_take_long_positions(posing):
    views = [[view(posing, start)] for start in STARTS]
    plans = [map.plan_of(posing, COPY, FLOAT32, (FLOAT32,), x) for x in views]
    kernels = [map.kernel_of(posing, COPY, FLOAT32, (FLOAT32,), x) for x in views]
    assert [INT64 in k.types for k in kernels] == [False] * 4 + [True] * 2
    assert plans[0] is plans[1] is plans[2]
    assert plans[4] is plans[5]


@pytest.mark.parametrize("step", [(1 << 28) - (1 << 26), 1 << 28])
def test_a_plan_reaches_from_wherever_its_views_start(posing, step):
    """Near 2^31 elements: a view that ends just before them has the plan of one that starts, and ends, later."""
    x, later = view(posing, 0, step), view(posing, (1 << 28) - 8, step)
    plan = map.plan_of(posing, COPY, FLOAT32, (FLOAT32,), [x])
    assert plan is map.plan_of(posing, COPY, FLOAT32, (FLOAT32,), [later])
    kernel = map.kernel_of(posing, COPY, FLOAT32, (FLOAT32,), [x])
    assert INT64 in kernel.types or reach(later) < 1 << 31
    assert rows._walk(posing, ROW_SUMS, FLOAT32, (FLOAT32,), [x])[0].wide or reach(later) < 1 << 31


def test_far_views_are_planned_anew(posing, monkeypatch):
    made = []
    monkeypatch.setattr(rows, "_plan", lambda *a: made.append(a) or ((lambda t: t), ()))
    monkeypatch.setattr(fold, "_plan", lambda *a: made.append(a) or fold.Stages((lambda t: t,), (8,), 0.0))
    for start in STARTS:
        rows.run_rows(ROW_SUMS, FLOAT32, (FLOAT32,), [view(posing, start)])
    assert len(made) == 3
    for start in STARTS:
        fold.run_fold(fold.Fold(fold.IDENTITY, "sum", 1, False, (FLOAT32,)), [view(posing, start)])[0]
    assert len(made) == 6
    posing.netcl_state.plans.clear()


@pytest.mark.parametrize("size", [(1 << 30) - 1, (1 << 31) - 1, 1 << 31])
def test_batch_norm_counts_past_the_end(posing, size):
    """The last split and the last group reach behind the last element, which has to be an integer still."""
    x = Tensor(None, (1, 1, size), (size, size, 1), 0, FLOAT32, posing)
    sizes, dims = channels._gpu_tile(x, Types(FLOAT32, FLOAT32, FLOAT32))
    last = dims["splits"] * dims["chunk"] + channels.VECTORS_PER_ITEM * sizes["LANES"] + channels.ITEMS_PER_GROUP
    assert sizes["I"] == "long" or last * sizes["VEC"] < 1 << 31


@pytest.mark.parametrize(("images", "wide"), [(1 << 17, False), (1 << 18, True)])
def test_strips_of_many_rows_take_long_positions(posing, images, wide):
    """Of 2^13 pixels an image: the result reaches 2^31, or rows that are read do behind the last one."""
    x = Tensor(None, (images, 1, 64, 128), (8192, 8192, 128, 1), 0, FLOAT32, posing)
    windows = ((3, 3), (1, 1), (1, 1), (1, 1))
    for turned in (False, True):
        assert strips.cut(windows, x, x.shape, 0, turned).defines["I"] == ("long" if wide else "int")
    last = Tensor(None, ((1 << 18) - 1, 1, 64, 128), (8192, 8192, 128, 1), 0, FLOAT32, posing)
    assert strips.cut(((3, 3), (64, 1), (1, 1), (1, 1)), last, (1, 1, 1, 128), 0).defines["I"] == "long"
