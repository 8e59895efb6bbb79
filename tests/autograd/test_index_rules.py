"""Gradients through positions beyond finite differences: ties, NaN, exact sums, recorded steps, their bad indices."""

import numpy as np
import pytest

import netcl.autograd as ag
from netcl.autograd.jit.step import CompiledStep
from netcl.core.errors import CaptureError, IndexOutOfRange
from netcl.core.tensor import Tensor


def on(queue, array, dtype=np.float32):
    return Tensor.from_host(queue, np.asarray(array, dtype))


def gradient(fn, leaf, upstream=None):
    leaf.grad = None
    with ag.Tape() as tape:
        y = fn(leaf)
    tape.backward(y, upstream)
    return leaf.grad.to_host()


def test_ties_and_nan_keep_their_own_gradients(queue):
    x = ag.tensor(on(queue, [3, 1, np.nan, 1, 2]), requires_grad=True)
    g = on(queue, [10, 20, 30, 40, 50])
    assert gradient(lambda x: ag.sort(x), x, g).tolist() == [40, 10, 50, 20, 30]
    assert gradient(lambda x: ag.sort(x, descending=True), x, g).tolist() == [10, 30, 50, 40, 20]
    assert gradient(lambda x: ag.topk(x, 2)[0], x, g[:2]).tolist() == [10, 0, 0, 0, 20]
    assert gradient(lambda x: ag.topk(x, 2, largest=False)[0], x, g[:2]).tolist() == [0, 10, 0, 20, 0]


@pytest.mark.parametrize("shape", [(3, 5), (1, 5), (5,), (0, 5), (2, 3, 4)])
@pytest.mark.parametrize("largest", [True, False])
def test_topk_of_nothing_has_a_gradient_of_zeros(queue, shape, largest):
    for axis in range(-1, len(shape)):
        for fn in (
            lambda x, a=axis: ag.topk(x, 0, a, largest)[0],
            lambda x, a=axis: ag.sum(ag.topk(x, 0, a, largest)[0]),
        ):
            for form in (fn, ag.jit_compile(fn)):
                x = ag.tensor(Tensor.ones(queue, shape), requires_grad=True)
                np.testing.assert_array_equal(gradient(form, x), np.zeros(shape))


def test_cumsum_gradient_sums_what_follows(queue):
    x = ag.tensor(on(queue, np.zeros((2, 3))), requires_grad=True)
    g = on(queue, [[1, 2, 3], [4, 5, 6]])
    assert gradient(lambda x: ag.cumsum(x, 1), x, g).tolist() == [[6, 5, 3], [15, 11, 6]]
    assert gradient(lambda x: ag.cumsum(x, 0), x, g).tolist() == [[5, 7, 9], [4, 5, 6]]
    assert gradient(lambda x: ag.cumsum(x), x, g.reshape(6)).tolist() == [[21, 20, 18], [15, 11, 6]]


def test_half_weights_get_half_gradients_summed_in_float(queue):
    weight = ag.tensor(on(queue, np.ones((4, 2)), np.float16), requires_grad=True)
    index = on(queue, [1] * 3000, np.int32)
    found = gradient(lambda w: ag.embedding(w, index), weight, on(queue, np.full((3000, 2), 0.1), np.float16))
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, [[0, 0], [299.93] * 2, [0, 0], [0, 0]], rtol=1e-3)


def test_repeated_indices_add_exactly_and_alike(queue):
    weight = ag.tensor(on(queue, np.ones((10, 8))), requires_grad=True)
    index = on(queue, np.full(65536, 7), np.int64)
    found = gradient(lambda w: ag.embedding(w, index), weight)
    assert (found[7] == 65536.0).all() and np.count_nonzero(found) == 8
    upstream = on(queue, np.repeat(1e-3 * np.arange(65536), 8).reshape(65536, 8))
    runs = [gradient(lambda w: ag.embedding(w, index), weight, upstream) for _ in range(2)]
    assert np.array_equal(*runs)


def test_positions_may_come_from_the_graph(queue):
    x = ag.tensor(on(queue, [[1, 5, 2], [7, 0, 3]]), requires_grad=True)
    fn = lambda x: ag.sum(ag.square(ag.gather(x, ag.unsqueeze(ag.argmax(x, 1), 1), 1)))  # noqa: E731
    assert gradient(fn, x).tolist() == [[0, 10, 0], [14, 0, 0]]
    shifted = lambda x: ag.masked_select(x * 2.0, ag.gt(x, 2.0))  # noqa: E731
    assert gradient(shifted, x).tolist() == [[0, 2, 0], [2, 0, 2]]


def recorded(queue):
    table = ag.Parameter(on(queue, np.arange(12).reshape(4, 3)))

    @CompiledStep
    def step(index):
        table.grad = None
        with ag.Tape() as tape:
            loss = ag.sum(ag.square(ag.embedding(table, index)))
        tape.backward(loss)
        return loss, table.grad

    return table, step


def test_a_recorded_lookup_follows_its_indices(queue):
    table, step = recorded(queue)
    rows = table.to_host()
    for index in ([0, 3], [1, 1], [2, 0]):
        loss, grad = step(on(queue, index, np.int32))
        want = np.zeros((4, 3), np.float32)
        np.add.at(want, index, 2 * rows[index])
        assert np.array_equal(grad.to_host(), want)
        assert loss.item() == np.square(rows[index]).sum()


def combined(x, index, src):
    """A value that several index ops have a part in."""
    y = ag.scatter_reduce(x, index, src, 0, "amax")
    y = ag.scatter_nd(y, index[:, :1], src, "mul") + ag.scatter_reduce(x, index, src, 0, "mean", False)
    y = ag.index_put(y, (index[:, 0], index[:, 1]), src[:, 0], accumulate=True)
    y = ag.masked_scatter(y, ag.gt(x, 0.5), ag.flip(x, (0, 1)))
    return (
        ag.gather_nd(y, index[:, :2]) * ag.astype(ag.searchsorted(ag.sort(x[:, 0]), src[:, 0]), "float32")
        + y[index[:, 0]][:, 0]
    )


@pytest.mark.parametrize("form", [lambda fn: fn, ag.jit_compile], ids=["plain", "jit"])
def test_recorded_steps_of_index_ops_follow_their_inputs(queue, form):
    rng = np.random.default_rng(0)
    x = ag.Parameter(on(queue, rng.standard_normal((3, 3))))
    fn = form(combined)

    def plain(index, src):
        x.grad = None
        with ag.Tape() as tape:
            loss = ag.sum(fn(x, index, src))
        tape.backward(loss)
        return loss, x.grad

    step = CompiledStep(plain)
    with ag.no_grad():
        first = fn(x, on(queue, np.zeros((5, 3)), np.int32), on(queue, np.ones((5, 3)))).to_host()
    assert np.isfinite(first).all()
    for _ in range(4):
        index = on(queue, rng.integers(-3, 3, (5, 3)), np.int32)
        src = on(queue, rng.standard_normal((5, 3)))
        want = [t.to_host() for t in plain(index[:, :], src)]
        found = step(index, src)
        for a, b in zip(want, found, strict=True):
            np.testing.assert_array_equal(a, b.to_host())


def test_what_has_a_length_of_the_data_is_refused_in_a_recording(queue):
    x = on(queue, [1, 2, 2], np.float32)
    for name, fn in (
        ("unique", lambda x: ag.unique(x)),
        ("histogram", lambda x: ag.histogram(x)[0]),
        ("histc", lambda x: ag.histc(x)),
        ("repeat_interleave", lambda x: ag.repeat_interleave(x, on(queue, [1, 0, 2], np.int64))),
    ):
        step = CompiledStep(fn)
        step(x)
        with pytest.raises(CaptureError, match=name):
            step(x)
    step = CompiledStep(lambda x: ag.histogram(x, 2, (0, 4))[0])
    assert [step(x).tolist() for _ in range(3)] == [[1, 2]] * 3
    step = CompiledStep(lambda x: ag.repeat_interleave(x, on(queue, [1, 0, 2], np.int64), output_size=3))
    assert [step(x).tolist() for _ in range(3)] == [[1, 2, 2]] * 3


@pytest.mark.parametrize("bad", [4, -1])
def test_a_bad_index_in_a_replay_is_refused(queue, bad):
    _, step = recorded(queue)
    for _ in range(2):
        step(on(queue, [0, 3], np.int32))[0].to_host()
    with pytest.raises(IndexOutOfRange, match=rf"embedding: expected indices in \[0, 4\), got {bad}\."):
        step(on(queue, [0, bad], np.int32))[0].to_host()
