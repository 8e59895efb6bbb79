"""Parts, repeats, padding and products of what is single or empty: values by NumPy, gradients by counting."""

import numpy as np
import pytest

import netcl.autograd as ag
from netcl import ops
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.tensor import Tensor


def leaf(queue, values):
    return ag.Parameter(Tensor.from_host(queue, np.asarray(values, np.float32)))


def gradients(function, *nodes, up=None):
    """The result and the gradients for the upstream gradient `up`, or 1, 2, 3, ..."""
    with ag.Tape() as tape:
        y = function(*nodes)
    up = np.arange(1, 1 + y.size, dtype=np.float32).reshape(y.shape) if up is None else up
    tape.backward(y, Tensor.from_host(y.queue, up))
    return y.to_host(), [n.grad.to_host() for n in nodes]


def by_index(shape, move, up=None):
    """What `move`, a NumPy function that moves elements, gives for 0, 1, 2, ..., and the gradient of `gradients`."""
    places = np.arange(np.prod(shape)).reshape(shape)
    y = move(places)
    grad = np.zeros(places.size)
    np.add.at(grad, y.reshape(-1), np.arange(1, 1 + y.size))
    return y, grad.reshape(shape)


MOVES = {  # shape, the op, NumPy's
    "split of all": ((3, 2), lambda x: ag.split(x, 3)[0], lambda x: x),
    "split of more": ((3, 2), lambda x: ag.split(x, 5)[0], lambda x: x),
    "split in one": ((3, 2), lambda x: ag.split(x, [3])[0], lambda x: x),
    "split of nothing": ((0, 2), lambda x: ag.split(x, 3)[0], lambda x: x),
    "chunk in one": ((3, 2), lambda x: ag.chunk(x, 1, 1)[0], lambda x: x),
    "chunk of one": ((1, 2), lambda x: ag.chunk(x, 4)[0], lambda x: x),
    "no times": ((2, 3), lambda x: ag.tile(x, (0, 2)), lambda x: np.tile(x, (0, 2))),
    "never": ((3,), lambda x: ag.tile(x, 0), lambda x: np.tile(x, 0)),
    "tile by NumPy's number": ((3,), lambda x: ag.tile(x, np.int64(2)), lambda x: np.tile(x, 2)),
    "no repeats": ((3, 2), lambda x: ag.repeat(x, 0, 0), lambda x: np.repeat(x, 0, 0)),
    "expand to nothing": ((1, 3), lambda x: ag.reshape(ag.expand(x, 0, 3), 3, 0), lambda x: x[:0].reshape(3, 0)),
    "reflect less": ((5,), lambda x: ag.pad(x, ((-1, 2),), "reflect"), lambda x: np.pad(x[1:], (0, 2), "reflect")),
    "reflect least": ((5,), lambda x: ag.pad(x, ((-1, -2),), "reflect"), lambda x: x[1:3]),
    "replicate less": ((5,), lambda x: ag.pad(x, ((2, -1),), "replicate"), lambda x: np.pad(x[:-1], (2, 0), "edge")),
    "reflect on two axes": (
        (3, 4),
        lambda x: ag.pad(x, ((1, 1), (2, -1)), "reflect"),
        lambda x: np.pad(x[:, :-1], ((1, 1), (2, 0)), "reflect"),
    ),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", MOVES)
def test_moves_of_single_and_empty_parts(queue, name, compiled):
    shape, op, move = MOVES[name]
    y, grad = by_index(shape, move)
    x = leaf(queue, np.arange(np.prod(shape)).reshape(shape))
    found, (dx,) = gradients(ag.jit_compile(op) if compiled else op, x)
    assert found.shape == y.shape and np.array_equal(found, y)
    assert np.array_equal(dx, grad)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate"])
def test_padding_is_the_same_with_and_without_a_tape(queue, mode):
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    for widths in (((-1, 2), (1, -3)), ((0, 0), (2, 2)), ((1, -2), (-1, -1))):
        t = Tensor.from_host(queue, x)
        assert np.array_equal(ag.pad(t, widths, mode).to_host(), ops.pad(t, widths, mode).to_host())


EMPTY = [
    ((0, 3), (3, 2)), ((2, 0), (0, 3)), ((2, 3), (3, 0)), ((0, 2, 3), (3, 2)), ((2, 0, 3), (3, 2)), ((2, 2, 0), (0, 3)),
    ((0, 2, 3), (0, 3, 2)), ((2, 3), (5, 3, 0)), ((3,), (3, 0)), ((0,), (0,)), ((0,), (0, 2)), ((2, 0), (0,)),
]  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize(("a", "b"), EMPTY, ids=str)
def test_a_product_with_an_empty_axis_has_gradients(queue, a, b, compiled):
    function = ag.jit_compile(lambda a, b: ag.matmul(a, b)) if compiled else ag.matmul
    y, (da, db) = gradients(function, leaf(queue, np.ones(a)), leaf(queue, np.ones(b)))
    wanted = np.ones(a) @ np.ones(b)
    assert y.shape == wanted.shape and not y.any()
    assert da.shape == a and db.shape == b and not da.any() and not db.any()


@pytest.mark.parametrize("name", ["linear", "linear_relu", "linear_gelu", "linear_silu"])
@pytest.mark.parametrize(
    ("x", "w"),
    [((0, 3), (2, 3)), ((2, 0), (3, 0)), ((2, 3), (0, 3)), ((2, 0, 3), (4, 3)), ((2, 2, 0), (4, 0))],
    ids=str,
)
def test_a_layer_with_an_empty_axis_has_gradients(queue, name, x, w):
    nodes = [leaf(queue, np.ones(shape)) for shape in (x, w, w[:1])]
    y, (dx, dw, db) = gradients(getattr(ag, name), *nodes, up=np.ones((*x[:-1], w[0]), np.float32))
    assert y.shape == (*x[:-1], w[0])
    assert dx.shape == x and dw.shape == w and not dx.any() and not dw.any()
    rows = int(np.prod(x[:-1]))
    if name in ("linear", "linear_relu"):  # the bias 1 is all there is to the result
        assert np.array_equal(db, np.full(w[0], float(rows)))


def test_impossible_counts_are_refused_with_and_without_a_tape(queue):
    t = Tensor.from_host(queue, np.ones((4, 3), np.float32))
    for module in (ag, ops):
        for call, message in (
            (lambda m: m.chunk(t, 0), "chunk: expected chunks of at least 1, got 0"),
            (lambda m: m.chunk(t, -1), "chunk: expected chunks of at least 1, got -1"),
            (lambda m: m.split(t, 0), "split: expected sizes of at least 1, got 0"),
            (lambda m: m.split(t, [2, 1]), "split: expected sizes that add up to 4"),
            (lambda m: m.repeat(t, -1, 0), r"repeat: expected .* at least 0.*, got -1"),
            (lambda m: m.tile(t, (1, -1)), r"tile: expected .* at least 0"),
            (lambda m: m.pad(t, ((-3, -3),)), "pad: expected widths that leave at least nothing"),
            (lambda m: m.pad(t, ((-3, -3),), "reflect"), "pad: expected widths that leave at least nothing"),
        ):
            with pytest.raises(ShapeError, match=message):
                call(module)


def test_counts_are_whole_numbers(queue):
    t = Tensor.from_host(queue, np.ones((4, 3), np.float32))
    calls = {
        "tile": lambda m: m.tile(t, 1.5),
        "repeat": lambda m: m.repeat(t, 1.5, 0),
        "split": lambda m: m.split(t, 1.5),
        "chunk": lambda m: m.chunk(t, 1.5),
    }
    for name, call in calls.items():
        for module in (ag, ops):
            with pytest.raises(DTypeError, match=rf"{name}: expected .*a whole number \(int\), got [01].5"):
                call(module)
    for call in (lambda: t.reshape(1.5, 8), lambda: ag.reshape(t, 1.5, 8)):
        with pytest.raises(DTypeError, match=r"reshape: expected .*whole number"):
            call()
    with pytest.raises(DTypeError, match=r"expand: expected .*whole number"):
        ag.expand(t, 1.5, 4, 3)
