"""Arguments that were taken for something else: fractions for whole numbers, None for a dtype, expanded memory."""

import numpy as np
import pytest

import netcl
import netcl.autograd as ag
from netcl import ops, optim
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.tensor import Tensor
from netcl.nn import init
from netcl.ops import elementwise
from netcl.ops.create.random import Generator, default_generator, permutation, randint, uniform
from netcl.ops.product.op import gemm


def on(queue, values, dtype=np.float32):
    return Tensor.from_host(queue, np.asarray(values, dtype))


WHOLE = {
    "tril": lambda m, q: m.tril(on(q, np.ones((3, 3))), 1.5),
    "triu": lambda m, q: m.triu(on(q, np.ones((3, 3))), k=0.5),
    "roll": lambda m, q: m.roll(on(q, np.ones((3, 3))), (1, 1.5), (0, 1)),
    "topk": lambda m, q: m.topk(on(q, np.ones(3)), 1.5),
    "one_hot": lambda m, q: m.one_hot(on(q, [0], np.int32), 2.5),
    "flip": lambda m, q: m.flip(on(q, np.ones(3)), 0.0),
    "cumsum": lambda m, q: m.cumsum(on(q, np.ones(3)), 0.0),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("module", [ag, ops], ids=["ag", "ops"])
def test_fractions_are_no_whole_numbers(queue, module, name):
    with pytest.raises(DTypeError, match=rf"^{name}: expected .*a whole number \(int\), got \d\.\d\.$"):
        WHOLE[name](module, queue)


def test_fractions_are_no_whole_numbers_where_there_is_no_tensor_yet(queue):
    ones = on(queue, np.ones((1, 2, 4, 4)))
    for name, call in (
        ("eye", lambda: ops.eye(queue, 3, k=0.5)),
        ("linspace", lambda: ops.linspace(queue, 0, 1, 2.5)),
        ("randint", lambda: randint(queue, 3, 0, 2.5)),
        ("permutation", lambda: permutation(queue, 2.5)),
        ("attention", lambda: ag.attention(ones, ones, ones, window=1.5)),
        ("group_norm", lambda: ag.group_norm(ones, 1.5)),
    ):
        with pytest.raises(DTypeError, match=f"{name}: expected .*a whole number"):
            call()
    for call in (lambda: ag.avg_pool2d(ones, 1.5), lambda: ag.conv2d(ones, ones, stride=1.5)):
        with pytest.raises(ShapeError, match=r"as an int or a \(height, width\) pair of at least 1, got 1.5"):
            call()


@pytest.mark.parametrize("seed", [1.5, 2.0, "7"])
def test_a_seed_is_a_whole_number(seed):
    before = default_generator.state_dict()
    for call in (netcl.seed, Generator, Generator(3).manual_seed):
        with pytest.raises(DTypeError, match="seed: expected a whole number"):
            call(seed)
    assert default_generator.state_dict() == before
    assert Generator(np.int64(5)).seed == 5 and Generator(-1).seed == 2**64 - 1


def test_none_is_no_dtype(queue):
    x = on(queue, [1])
    for call in (
        lambda: Tensor.zeros(queue, 2, dtype=None),
        lambda: Tensor.ones(queue, 2, None),
        lambda: Tensor.full(queue, 2, 1, None),
        lambda: Tensor.empty(queue, 2, None),
        lambda: ops.eye(queue, 2, dtype=None),
        lambda: uniform(queue, 2, dtype=None),
        lambda: x.astype(None),
        lambda: ag.astype(x, None),
        lambda: ag.one_hot(on(queue, [0], np.int32), 2, None),
    ):
        with pytest.raises(DTypeError, match=r"dtype: expected one of float16, .*, got None"):
            call()
    assert Tensor.from_host(queue, np.float64([1]), dtype=None).shape == (1,)  # there it means that of the data


def by(cls):
    def write(t):
        p = ag.Parameter(t)
        p.grad = Tensor.ones(t.queue, t.shape)
        cls([p], lr=0.1).step()

    return write


WRITES = {
    "fill_": lambda t: t.fill_(1),
    "assign": lambda t: elementwise.assign(t, Tensor.ones(t.queue, t.shape)),
    "add": lambda t: elementwise.apply("add", Tensor.ones(t.queue, t.shape), 1.0, out=t),
    "gemm": lambda t: gemm(Tensor.ones(t.queue, (4, 2)), Tensor.ones(t.queue, (2, 3)), out=t),
    "sgd": by(optim.SGD),
    "adamw": by(optim.AdamW),
    "batch_norm": lambda t: ag.batch_norm(Tensor.ones(t.queue, (4, 3)), None, None, t[0][:1].expand(3), t[0]),
}


@pytest.mark.parametrize("name", WRITES)
def test_an_expanded_tensor_is_not_written_to(queue, name):
    row = on(queue, [[1, 2, 3]])
    with pytest.raises(ShapeError, match=f"^{name}: expected elements with memory of their own"):
        WRITES[name](row.expand(4, 3))
    assert row.to_host().tolist() == [[1, 2, 3]]


def test_an_expanded_parameter_is_not_initialised_or_loaded(queue):
    p = ag.Parameter(on(queue, [[1, 2, 3]]).expand(4, 3))
    with pytest.raises(ShapeError, match="memory of their own"):
        init.zeros_(p)


def test_single_rows_and_nothing_of_an_expanded_tensor_may_be_written_to(queue):
    row = on(queue, [[1, 2, 3]])
    for t in (row.expand(1, 3), row.expand(4, 3)[1:2], row.expand(4, 3)[2]):
        elementwise.assign(t, on(queue, [4, 5, 6]))
        assert row.to_host().tolist() == [[4, 5, 6]]
    elementwise.assign(row.expand(0, 3), Tensor.ones(queue, (0, 3)))
