"""PyTorch's words, names and order of arguments, on tensors and nodes, plain and compiled."""

import numpy as np
import pytest

import netcl as nc
import netcl.autograd as ag
from netcl import ops
from netcl.core.tensor import Tensor
from netcl.nn import Flatten, Linear, LogSoftmax, Softmax

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 7.5
M = X[0]


def of(kind, queue, array):
    value = Tensor.from_host(queue, np.asarray(array))
    return ag.tensor(value) if kind == "node" else value


kinds = pytest.mark.parametrize("kind", ["tensor", "node"])
LONG = np.array([[0, 1, 2, 0], [2, 2, 1, 0]])

METHODS = {  # what a user of PyTorch types, and NumPy's answer
    "sum": (lambda x: x.sum(dim=1, keepdim=True), X.sum(1, keepdims=True)),
    "sum of two": (lambda x: x.sum(dim=(0, 2)), X.sum((0, 2))),
    "mean": (lambda x: x.mean(dim=-1), X.mean(-1)),
    "var": (lambda x: x.var(dim=0, correction=1), X.var(0, ddof=1)),
    "argmax": (lambda x: x.argmax(dim=2), X.argmax(2)),
    "any": (lambda x: (x > 10).any(dim=0), (X > 10).any(0)),
    "cumsum": (lambda x: x.cumsum(dim=1), X.cumsum(1)),
    "softmax": (lambda x: x.softmax(dim=1).sum(dim=1), np.ones((2, 4), np.float32)),
    "sort": (lambda x: x.sort(dim=0, descending=True), -np.sort(-X, 0)),
    "topk": (lambda x: x.topk(2, dim=-1)[0], X[..., :1:-1]),
    "flip": (lambda x: x.flip(dims=(0, 2)), X[::-1, :, ::-1]),
    "roll": (lambda x: x.roll(1, dims=1), np.roll(X, 1, 1)),
    "squeeze": (lambda x: x.unsqueeze(dim=1).squeeze(dim=1), X),
    "flatten": (lambda x: x.flatten(start_dim=1), X.reshape(2, 12)),
    "flatten to": (lambda x: x.flatten(0, 1), X.reshape(6, 4)),
    "flatten end": (lambda x: x.flatten(end_dim=1), X.reshape(6, 4)),
    "split": (lambda x: x.split(2, dim=2)[1], X[..., 2:]),
    "chunk": (lambda x: x.chunk(2, dim=2)[0], X[..., :2]),
    "clamp": (lambda x: x.clamp(min=-1, max=2), X.clip(-1, 2)),
    "narrow": (lambda x: x.narrow(1, 1, 2), X[:, 1:3]),
    "narrow by name": (lambda x: x.narrow(dim=1, start=-2, length=1), X[:, 1:2]),
    "select": (lambda x: x.select(dim=0, index=-1), X[1]),
    "unbind": (lambda x: x.unbind(dim=1)[2], X[:, 2]),
    "swapaxes": (lambda x: x.swapaxes(0, -1), X.swapaxes(0, -1)),
    "movedim": (lambda x: x.movedim(0, -1), np.moveaxis(X, 0, -1)),
    "mT": (lambda x: x.mT, X.swapaxes(1, 2)),
    "t": (lambda x: x[0].t(), M.T),
    "ravel": (lambda x: x.ravel(), X.ravel()),
    "unflatten": (lambda x: x.unflatten(-1, (2, -1)), X.reshape(2, 3, 2, 2)),
    "expand_as": (lambda x: x[:1].expand_as(x), np.broadcast_to(X[:1], X.shape)),
    "view_as": (lambda x: x.ravel().view_as(x), X),
    "count_nonzero": (lambda x: (x - 0.5).count_nonzero(dim=1), np.count_nonzero(X - 0.5, 1)),
    "bmm": (lambda x: x.bmm(x.mT), X @ X.swapaxes(1, 2)),
    "mm": (lambda x: x[0].mm(x[1].t()), X[0] @ X[1].T),
    "mv": (lambda x: x[0].mv(x[1, 0]), X[0] @ X[1, 0]),
    "outer": (lambda x: x[0, 0].outer(x[1, 0]), np.outer(X[0, 0], X[1, 0])),
    "long": (lambda x: x.long(), X.astype(np.int64)),
    "half": (lambda x: x.half().float(), X.astype(np.float16).astype(np.float32)),
    "bool": (lambda x: (x - 0.5).bool(), (X - 0.5).astype(bool)),
    "clone": (lambda x: x.clone(), X),
    "floor division": (lambda x: x // 2, X // 2),
    "shift": (lambda x: x.long() << 2, X.astype(np.int64) << 2),
    "xor": (lambda x: x.long() ^ 5, X.astype(np.int64) ^ 5),
    "format": (lambda x: x.new_full((2,), 3.0), np.full(2, 3.0, np.float32)),
}


@kinds
@pytest.mark.parametrize("name", METHODS)
def test_methods_take_pytorchs_words(queue, kind, name):
    call, expected = METHODS[name]
    found = call(of(kind, queue, X))
    found = found.to_host() if isinstance(found, Tensor) else found.value.to_host()
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert found.dtype == np.asarray(expected).dtype


FUNCTIONS = {
    "cat": (lambda m, x: m.cat([x, x], dim=1), np.concatenate([X, X], 1)),
    "stack": (lambda m, x: m.stack([x, x], dim=-1), np.stack([X, X], -1)),
    "sum": (lambda m, x: m.sum(x, dim=0, keepdim=True), X.sum(0, keepdims=True)),
    "logsumexp": (lambda m, x: m.logsumexp(x * 0, dim=(0, 1)), np.full(4, np.log(6), np.float32)),
    "softmax": (lambda m, x: m.softmax(x, dim=0).sum(dim=0), np.ones((3, 4), np.float32)),
    "log_softmax": (lambda m, x: m.exp(m.log_softmax(x, dim=0)).sum(0), np.ones((3, 4), np.float32)),
    "outer": (lambda m, x: m.outer(x[0, 0], x[1, 1]), np.outer(X[0, 0], X[1, 1])),
    "addmm": (lambda m, x: m.addmm(x[0, :, :3], x[0], x[1].t(), beta=0.5), 0.5 * X[0, :, :3] + X[0] @ X[1].T),
    "baddbmm": (lambda m, x: m.baddbmm(x[..., :3], x, x.mT, beta=0, alpha=2), 2 * X @ X.swapaxes(1, 2)),
    "multiply": (lambda m, x: m.multiply(x, x), X * X),
    "amax": (lambda m, x: m.amax(x, axis=1), X.max(1)),
    "hstack": (lambda m, x: m.hstack([x[0], x[1]]), np.hstack([X[0], X[1]])),
    "vstack": (lambda m, x: m.vstack([x[0, 0], x[1, 0]]), np.vstack([X[0, 0], X[1, 0]])),
    "clamp": (lambda m, x: m.clamp(x, min=0), X.clip(0)),
    "movedim": (lambda m, x: m.movedim(x, (0, 1), (1, 0)), np.moveaxis(X, (0, 1), (1, 0))),
    "flatten": (lambda m, x: m.flatten(x, start_dim=1), X.reshape(2, 12)),
}


@kinds
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_take_pytorchs_words(queue, kind, name):
    call, expected = FUNCTIONS[name]
    found = call(ag if kind == "node" else ops, of(kind, queue, X))
    assert isinstance(found, Tensor) == (kind == "tensor")
    np.testing.assert_allclose(found.to_host() if kind == "tensor" else found.value.to_host(), expected, rtol=1e-5)


@kinds
def test_ops_of_an_index_take_pytorchs_order(queue, kind):
    module = ag if kind == "node" else ops
    x, index, src = (of(kind, queue, a) for a in (M, LONG[:, :4], np.ones((2, 4), np.float32)))
    rows = of(kind, queue, np.array([2, 0]))
    pairs = {
        "gather": (lambda: module.gather(x, 0, index), lambda: module.gather(x, index, 0), lambda: x.gather(0, index)),
        "gather by name": (
            lambda: module.gather(x, dim=0, index=index), lambda: module.gather(x, index, axis=0),
            lambda: x.gather(dim=0, index=index),
        ),
        "index_select": (
            lambda: module.index_select(x, 0, rows), lambda: module.index_select(x, rows, 0),
            lambda: x.index_select(0, rows),
        ),
        "scatter_add": (
            lambda: module.scatter_add(x, 0, index, src), lambda: module.scatter_add(x, index, src, 0),
            lambda: x.scatter_add(0, index, src),
        ),
        "index_add": (
            lambda: module.index_add(x, 0, rows, src, alpha=2), lambda: module.index_add(x, rows, src, 0, 2),
            lambda: x.index_add(0, rows, src, alpha=2),
        ),
    }  # fmt: skip
    for name, (function, ours, method) in pairs.items():
        values = [r.to_host() if isinstance(r, Tensor) else r.value.to_host() for r in (ours(), function(), method())]
        for value in values[1:]:
            np.testing.assert_array_equal(value, values[0], err_msg=name)


def test_gradients_go_through_them(queue):
    x = ag.tensor(Tensor.from_host(queue, X), requires_grad=True)
    with ag.Tape() as tape:
        loss = ag.sum(ag.cat([x.clone(), x], dim=0).narrow(0, 1, 2) * 3.0) + x.bmm(x.mT).sum(dim=(0, 1, 2))
    tape.backward(loss)
    expected = 2 * X.sum(1, keepdims=True) + 3.0 * np.ones_like(X)
    np.testing.assert_allclose(x.grad.to_host(), np.broadcast_to(expected, X.shape), rtol=1e-5)


def test_compiled_functions_take_them(queue):
    f = ag.jit_compile(lambda x: ag.softmax(x, dim=0).sum(dim=1, keepdim=True) + x.mean(dim=(1, 2), keepdim=True))
    x = ag.tensor(Tensor.from_host(queue, X))
    e = np.exp(X - X.max(0))
    expected = (e / e.sum(0)).sum(1, keepdims=True) + X.mean((1, 2), keepdims=True)
    for _ in range(3):
        np.testing.assert_allclose(f(x).to_host(), expected, rtol=1e-5)


def test_layers_take_pytorchs_words(queue):
    x = ag.tensor(Tensor.from_host(queue, X))
    np.testing.assert_allclose(Softmax(dim=1)(x).to_host().sum(1), 1, rtol=1e-5)
    assert LogSoftmax(dim=-1)(x).shape == X.shape
    assert Flatten(start_dim=0, end_dim=1)(x).shape == (6, 4) and Flatten()(x).shape == (2, 12)
    assert Linear(queue, 4, 2, False).bias is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.sum(axis=1, dim=1), "sum: expected axis or dim, which mean the same, got both"),
        (lambda x: ops.sum(x, axis=0, dim=0), "sum: expected axis or dim, which mean the same, got both"),
        (
            lambda x: x.max(dim=1),
            r"max: expected axis, got dim, for which PyTorch gives values and indices; max\(x, ax",
        ),
        (lambda x: ops.min(x, dim=1), "min: expected axis, got dim"),
        (lambda x: x.unsqueeze(), r"unsqueeze: expected axis \(or dim\), got none"),
        (lambda x: ops.gather(x, x.long()), "axis"),
        (lambda x: x.bmm(x[0]), "bmm: expected b with 3 axes, got shape"),
        (lambda x: x.narrow(1, 2, 5), "narrow: expected a part of the 3 elements of axis 1, got 5 from 2 on"),
        (lambda x: x.narrow(1), "narrow: expected "),
        (lambda x: x.select(1), "select: expected "),
        (lambda x: x.t(), "t: expected at most 2 axes"),
        (lambda x: x.unflatten(2, (3, 2)), "unflatten: expected sizes whose product is 4"),
        (lambda x: x.flatten(2, 1), "flatten: expected start_axis not behind end_axis, got 2 and 1"),
        (lambda x: ops.movedim(x, (0, 1), 2), "movedim: expected as many different axes on both sides"),
        (lambda x: ops.nosuch(x), "has no attribute 'nosuch'"),
    ],
)
def test_wrong_use_is_named(cpu_queue, call, message):
    with pytest.raises((TypeError, ValueError, AttributeError), match=message):
        call(Tensor.from_host(cpu_queue, X))


def test_new_tensors_are_alike(queue):
    x = Tensor.from_host(queue, X.astype(np.float64))
    for made in (x.new_zeros(2, 3), x.new_ones((2, 3)), x.new_full((2, 3), 2.0), x.new_tensor([[1, 2, 3]])):
        assert made.queue is queue and made.dtype == np.float64
    assert x.new_zeros(3, dtype="int32").dtype == np.int32 and x.element_size() == 8 and x.is_floating_point()


def test_numpy_2s_copy_keyword(queue):
    x = nc.tensor([1.0, 2.0], queue=queue)
    copied = np.array(x, copy=True)
    copied[0] = 9
    assert x.tolist() == [1, 2] and np.asarray(x, dtype=np.float64).dtype == np.float64
    if x.backend == "cpu":
        seen = np.asarray(x, copy=False)
        x.fill_(5.0)
        assert seen.tolist() == [5, 5] and not seen.flags.writeable
        with pytest.raises(ValueError, match="copy"):
            np.asarray(x, dtype=np.float64, copy=False)
    else:
        with pytest.raises(ValueError, match="copy"):
            np.asarray(x, copy=False)
