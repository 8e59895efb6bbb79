"""Every backward rule against finite differences in double precision, on contiguous inputs and on views."""

import dataclasses
import math

import cases
import numpy as np
import pytest
from families import FAMILIES, POSING, queue_of

import netcl.autograd as ag
from netcl.core.backend import opencl
from netcl.core.device.profile import override_profile, profile_of
from netcl.core.tensor import Tensor
from netcl.ops import elementwise
from netcl.ops.losses import cross_entropy

S = "spread"  # samples with distinct values, far from ties


def sample(shape, kind, rng):
    if kind == S:
        return rng.permutation(int(np.prod(shape))).reshape(shape) / 7.0 - 1.0
    if isinstance(kind, tuple):
        return rng.uniform(*kind, shape)
    return rng.standard_normal(shape)


CASES = {
    # reductions
    "sum": (lambda x: ag.sum(x), [(3, 4)]),
    "sum axis": (lambda x: ag.sum(x, axis=(0, 2)), [(3, 4, 5)]),
    "sum keepdims": (lambda x: ag.sum(x, axis=1, keepdims=True) * x, [(3, 4)]),
    "mean": (lambda x: ag.mean(x), [(3, 4)]),
    "mean axis": (lambda x: ag.mean(x, axis=-1), [(3, 4)]),
    "prod": (lambda x: ag.prod(x, axis=1), [(3, 4)]),
    "max": (lambda x: ag.max(x, axis=1), [(3, 4)], S),
    "max all": (lambda x: ag.max(x), [(3, 4)], S),
    "min": (lambda x: ag.min(x, axis=(0, 1), keepdims=True), [(3, 4, 2)], S),
    "var": (lambda x: ag.var(x, axis=1, correction=1), [(3, 4)]),
    "std": (lambda x: ag.std(x), [(3, 4)]),
    "logsumexp": (lambda x: ag.logsumexp(x, axis=0), [(3, 4)]),
    "norm 1": (lambda x: ag.norm(x, 1, axis=1), [(3, 4)], (0.2, 2)),
    "norm 2": (lambda x: ag.norm(x), [(3, 4)]),
    "norm inf": (lambda x: ag.norm(x, np.inf, axis=0), [(3, 4)], S),
    # movement
    "reshape": (lambda x: ag.reshape(x, 2, -1), [(3, 4)]),
    "permute": (lambda x: ag.permute(x, 2, 0, 1), [(3, 4, 2)]),
    "transpose": (lambda x: ag.transpose(x, 0, 1) * 2.0, [(3, 4)]),
    "expand": (lambda x: ag.expand(x, 5, 3, 4), [(3, 1)]),
    "squeeze": (lambda x: ag.squeeze(x) * ag.squeeze(x), [(3, 1, 4)]),
    "unsqueeze": (lambda x: ag.unsqueeze(x, 1), [(3, 4)]),
    "getitem": (lambda x: x[1:, ::-2], [(3, 4)]),
    "astype": (lambda x: ag.astype(x, "float64"), [(3, 4)]),
    "concat": (lambda x, y: ag.concat([x, y, x], axis=1), [(3, 4), (3, 2)]),
    "stack": (lambda x, y: ag.stack([x, y], axis=-1), [(3, 4), (3, 4)]),
    "flip": (lambda x: ag.flip(x, 1), [(3, 4)]),
    "roll": (lambda x: ag.roll(x, (1, -2), (0, 1)), [(3, 4)]),
    "split": (lambda x: ag.split(x, (1, 3), 1), [(3, 4)]),
    "split one part": (lambda x: ag.split(x, 2, 1)[1], [(3, 5)]),
    "chunk": (lambda x: ag.chunk(x, 2, 0), [(3, 4)]),
    "repeat": (lambda x: ag.repeat(x, 3, 1), [(3, 4)]),
    "repeat flat": (lambda x: ag.repeat(x, 2), [(3, 4)]),
    "tile": (lambda x: ag.tile(x, (2, 1, 3)), [(3, 4)]),
    "pad": (lambda x: ag.pad(x, ((1, 2), (-1, 3)), value=2.0), [(3, 4)]),
    "pad reflect": (lambda x: ag.pad(x, ((1, 2), (3, 0)), "reflect"), [(3, 4)]),
    "pad replicate": (lambda x: ag.pad(x, ((1, 2), (3, 0)), "replicate"), [(3, 4)]),
    # products
    "matmul": (ag.matmul, [(3, 4), (4, 2)]),
    "matmul vectors": (ag.matmul, [(4,), (4,)]),
    "matmul vector": (ag.matmul, [(3, 4), (4,)]),
    "vector matmul": (ag.matmul, [(4,), (4, 3)]),
    "matmul batch": (ag.matmul, [(2, 3, 4), (4, 2)]),
    "matmul batches": (ag.matmul, [(2, 1, 3, 4), (5, 4, 2)]),
    "linear": (ag.linear, [(2, 3, 4), (5, 4), (5,)]),
    "linear without bias": (ag.linear, [(3, 4), (5, 4)]),
    "linear_relu": (ag.linear_relu, [(3, 4), (5, 4), (5,)]),
    "linear_gelu": (ag.linear_gelu, [(2, 3, 4), (5, 4), (5,)]),
    "linear_silu without bias": (ag.linear_silu, [(3, 4), (5, 4)]),
    "conv2d": (lambda x, w, b: ag.conv2d(x, w, b, stride=2, padding=1), [(2, 3, 7, 6), (4, 3, 3, 3), (4,)]),
    "conv2d groups": (
        lambda x, w: ag.conv2d(x, w, stride=(1, 2), padding=(2, 0), dilation=(2, 1), groups=2),
        [(2, 4, 7, 6), (6, 2, 3, 2)],
    ),
    "conv2d_relu": (lambda x, w, b: ag.conv2d_relu(x, w, b, padding=1), [(2, 3, 5, 6), (4, 3, 3, 3), (4,)]),
    "conv2d_gelu": (lambda x, w, b: ag.conv2d_gelu(x, w, b, padding=1), [(2, 3, 5, 6), (4, 3, 3, 3), (4,)]),
    "conv2d_silu": (lambda x, w: ag.conv2d_silu(x, w, stride=2), [(2, 3, 7, 6), (4, 3, 3, 3)]),
    # pooling
    "max_pool2d": (lambda x: ag.max_pool2d(x, 2), [(2, 3, 6, 6)], S),
    "max_pool2d overlapping": (lambda x: ag.max_pool2d(x, 3, 2, 1), [(2, 3, 7, 6)], S),
    "avg_pool2d": (lambda x: ag.avg_pool2d(x, 3, 2, 1, count_include_pad=False), [(2, 3, 7, 6)]),
    "adaptive_avg_pool2d": (lambda x: ag.adaptive_avg_pool2d(x, (2, 3)), [(2, 3, 7, 5)]),
    "global_avg_pool2d": (lambda x: ag.global_avg_pool2d(x), [(2, 3, 4, 5)]),
    # norms
    "layer_norm": (ag.layer_norm, [(4, 6), (6,), (6,)]),
    "layer_norm plain": (lambda x: ag.layer_norm(x, axes=(1, 2)), [(3, 4, 5)]),
    "rms_norm": (ag.rms_norm, [(4, 6), (6,)]),
    "group_norm": (lambda x, w, b: ag.group_norm(x, 2, w, b), [(2, 4, 3, 2), (4,), (4,)]),
    "group_norm plain": (lambda x: ag.group_norm(x, 2), [(2, 4, 3)]),
    "batch_norm": (ag.batch_norm, [(5, 3), (3,), (3,)]),
    "batch_norm images": (ag.batch_norm, [(2, 3, 4, 5), (3,), (3,)]),
    "batch_norm plain": (lambda x: ag.batch_norm(x), [(5, 3)]),
    "batch_norm relu": (lambda x, w, b: ag.batch_norm(x, w, b, activation="relu"), [(5, 3), (3,), (3,)]),
    # softmax and losses
    "softmax": (lambda x: ag.softmax(x, axis=1), [(3, 4, 2)]),
    "log_softmax": (lambda x: ag.log_softmax(x), [(3, 4)]),
    "mse_loss": (ag.mse_loss, [(3, 4), (3, 4)]),
    "l1_loss": (lambda x, t: ag.l1_loss(x, t, "sum"), [(3, 4), (3, 4)]),
    "smooth_l1_loss": (lambda x, t: ag.smooth_l1_loss(x, t, beta=0.7), [(3, 4), (3, 4)]),
    "huber_loss": (lambda x, t: ag.huber_loss(x, t, 0.7, "none"), [(3, 4), (3, 4)]),
    "binary_cross_entropy": (ag.binary_cross_entropy, [(3, 4), (3, 4)], (0.1, 0.9)),
    "bce with logits": (ag.binary_cross_entropy_with_logits, [(3, 4), (3, 4)]),
    "bce with weight": (ag.binary_cross_entropy_with_logits, [(3, 4), (3, 4), (4,)]),
    "kl_div": (lambda x, t: ag.kl_div(x, t, "batchmean"), [(3, 4), (3, 4)], (0.1, 0.9)),
    "kl_div log target": (lambda x, t: ag.kl_div(x, t, log_target=True), [(3, 4), (3, 4)]),
    "hinge_loss": (ag.hinge_loss, [(3, 4), (3, 4)]),
    "attention": (ag.attention, [(2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 4)]),
    "attention causal": (
        lambda q, k, v: ag.attention(q, k, v, causal=True),
        [(1, 4, 5, 4), (1, 2, 7, 4), (1, 2, 7, 4)],
    ),
    # running sums, sorting, triangles
    "cumsum": (lambda x: ag.cumsum(x, 1), [(3, 4)]),
    "cumsum flat": (lambda x: ag.cumsum(x), [(3, 4)]),
    "sort": (lambda x: ag.sort(x, 0, descending=True), [(5, 4)], S),
    "topk": (lambda x: ag.topk(x, 2)[0], [(3, 5)], S),
    "tril": (lambda x: ag.tril(x, -1), [(2, 4, 5)]),
    "triu": (lambda x: ag.triu(x, 1), [(4, 3)]),
}
INDEXED = {
    "take": (lambda x, i: ag.take(x, i, axis=1), [(3, 5)], (2, 3), 5),
    "index_select": (lambda x, i: ag.index_select(x, i, axis=-1), [(2, 3, 5)], (4,), 5),
    "gather": (lambda x, i: ag.gather(x, i, axis=1), [(3, 5)], (3, 7), 5),
    "gather part": (lambda x, i: ag.gather(x, i, axis=0), [(3, 5)], (4, 2), 3),
    "scatter_add": (lambda x, i, s: ag.scatter_add(x, i, s, 1), [(3, 5), (3, 7)], (3, 7), 5),
    "scatter_add part": (lambda x, i, s: ag.scatter_add(x, i, s, 0), [(3, 5), (4, 2)], (4, 2), 3),
    "embedding": (lambda w, i: ag.embedding(w, i), [(5, 3)], (2, 4), 5),
    "nll_loss": (lambda x, t: ag.nll_loss(x, t), [(4, 5)], (4,), 5),
    "nll_loss images": (lambda x, t: ag.nll_loss(x, t, ignore_index=1, reduction="none"), [(2, 3, 4)], (2, 4), 3),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", ["whole", "view"])
def test_rule(queue, name, form):
    fn, shapes, *kind = CASES[name]
    rng = np.random.default_rng(7)
    inputs = [Tensor.from_host(queue, sample(s, kind[0] if kind else None, rng)) for s in shapes]
    if form == "whole":
        assert ag.gradcheck(fn, inputs)
        return

    def through_views(*nodes):  # each input reaches the op transposed twice, so with strides of a view
        return fn(*[ag.permute(ag.contiguous(ag.permute(n))) for n in nodes])

    assert ag.gradcheck(through_views, inputs)


@pytest.mark.parametrize("name", CASES)
def test_rule_in_a_checkpoint(cpu_queue, name):
    """The gradients are those without it, bit for bit."""
    fn, shapes, *kind = CASES[name]
    rng, found = np.random.default_rng(7), []
    inputs = [Tensor.from_host(cpu_queue, sample(s, kind[0] if kind else None, rng)) for s in shapes]
    for call in (lambda fn, *xs: fn(*xs), ag.checkpoint):
        nodes = [ag.tensor(x, requires_grad=True) for x in inputs]
        with ag.Tape() as tape:
            results = call(fn, *nodes)
            y = sum(ag.sum(r * r) for r in (results if isinstance(results, tuple) else (results,)))
        tape.backward(y)
        found.append([n.grad.to_host() for n in nodes])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(b, a)


def inputs_of(queue, name, dtype=np.int32):
    """The function of a case of INDEXED, and its inputs."""
    fn, shapes, index_shape, limit = INDEXED[name]
    rng = np.random.default_rng(7)
    inputs = [Tensor.from_host(queue, rng.standard_normal(s)) for s in shapes]
    inputs.insert(1, Tensor.from_host(queue, rng.integers(0, limit, index_shape).astype(dtype)))
    return fn, inputs


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_rule_with_an_index(queue, name, dtype):
    assert ag.gradcheck(*inputs_of(queue, name, dtype))


@pytest.mark.parametrize("family", [name for name in FAMILIES if name.startswith(POSING)])
@pytest.mark.parametrize("name", [*CASES, *INDEXED])
def test_rule_on_a_device_of_small_groups(family, name):
    """Of at most 12 work-items, and no power of two: what is launched keeps to it."""
    queue = queue_of(family)
    groups = []
    hook = lambda kernel, queue, size, local, *_: groups.append((math.prod(local or ()), kernel.name))  # noqa: E731
    opencl.hooks.append(hook)
    try:
        with override_profile(queue, dataclasses.replace(profile_of(queue), max_work_group=12)):
            if name in INDEXED:
                assert ag.gradcheck(*inputs_of(queue, name))
            else:
                fn, shapes, *kind = CASES[name]
                rng = np.random.default_rng(7)
                inputs = [Tensor.from_host(queue, sample(s, kind[0] if kind else None, rng)) for s in shapes]
                assert ag.gradcheck(fn, inputs)
    finally:
        opencl.hooks.remove(hook)
    assert max(groups, default=(0, "views only"))[0] <= 12, max(groups)


@pytest.mark.parametrize("shape", [(3, 4), (4,), (3, 1)])
def test_masked_select(queue, shape):
    rng = np.random.default_rng(0)
    mask = Tensor.from_host(queue, rng.random((3, 4)) < 0.5)
    x = Tensor.from_host(queue, rng.standard_normal(shape))
    assert ag.gradcheck(lambda a: ag.masked_select(a, mask), x)
    nothing = Tensor.zeros(queue, (3, 4), "bool")
    node = ag.tensor(x, requires_grad=True)
    with ag.Tape() as tape:
        y = ag.masked_select(node, nothing)
    tape.backward(y)
    assert y.shape == (0,) and not node.grad.to_host().any()


@pytest.mark.parametrize("form", [lambda fn: fn, ag.jit_compile])
def test_masked_fill_and_take_along_dim(queue, form):
    rng = np.random.default_rng(0)
    mask, places = Tensor.from_host(queue, rng.random((3, 4)) < 0.5), Tensor.from_host(queue, [[2], [0], [2], [2]])
    x, row = (Tensor.from_host(queue, rng.standard_normal(shape)) for shape in ((3, 4), (4,)))
    assert ag.gradcheck(form(lambda a: ag.masked_fill(a, mask, -2.0)), x)
    assert ag.gradcheck(form(lambda a, v: ag.masked_fill(a, mask, v)), [x, row])
    assert ag.gradcheck(form(lambda a: ag.take_along_dim(a, places, 0)), x)
    assert ag.gradcheck(form(lambda a: ag.take_along_dim(a[::-1], places)), x)


@pytest.mark.parametrize("form", [lambda fn: fn, ag.jit_compile])
def test_what_is_put_and_added_by_position(queue, form):
    rng = np.random.default_rng(0)
    x, src = (Tensor.from_host(queue, rng.standard_normal((4, 3))) for _ in range(2))
    places, line = Tensor.from_host(queue, rng.integers(0, 3, (4, 3))), Tensor.from_host(queue, np.array([2, 0, 2]))
    for axis in (0, 1):
        assert ag.gradcheck(form(lambda a, s, axis=axis: ag.scatter(a, places, s, axis)), [x, src])
    assert ag.gradcheck(form(lambda a, s: ag.scatter(a, places[:2], s[:2], 0)), [x, src])
    assert ag.gradcheck(form(lambda a, s: ag.index_copy(a, line, s, 1)), [x, src])
    assert ag.gradcheck(form(lambda a, s: ag.index_copy(a, line, s[:3], 0)), [x, src])
    assert ag.gradcheck(form(lambda a, s: ag.index_add(a, line, s, -1, alpha=-3)), [x, src])


def test_what_has_no_gradient_has_the_value(queue):
    x = Tensor.from_host(queue, np.array([2.0, 0.0, 1.0], np.float32))
    index = Tensor.from_host(queue, np.array([1, 0], np.int32))
    assert ag.argsort(x).to_host().tolist() == [1, 2, 0]
    assert ag.one_hot(index, 3).to_host().tolist() == [[0, 1, 0], [1, 0, 0]]
    assert ag.isin(index, Tensor.from_host(queue, np.array([1, 5], np.int32))).to_host().tolist() == [True, False]
    assert ag.topk(x, 2)[1].to_host().tolist() == [0, 2]


def test_the_padding_row_gets_no_gradient(queue):
    weight = ag.tensor(Tensor.ones(queue, (10, 8)), requires_grad=True)
    for indices, expected in (
        ([0] * 768, {0: 0}), ([0] * 769, {0: 0}), ([0] * 5000, {0: 0}), ([1, 1, 1, 2], {0: 0, 1: 3, 2: 1})
    ):  # fmt: skip
        weight.grad = None
        with ag.Tape() as tape:
            y = ag.embedding(weight, Tensor.from_host(queue, np.array(indices, np.int32)), 0).sum()
        tape.backward(y)
        found = weight.grad.to_host()
        for row, value in expected.items():
            np.testing.assert_array_equal(found[row], np.full(8, value))


def test_batch_norm_in_evaluation(queue):
    rng = np.random.default_rng(0)
    mean, var = (Tensor.from_host(queue, rng.uniform(0.5, 2, 3)) for _ in range(2))
    inputs = [Tensor.from_host(queue, rng.standard_normal(s)) for s in ((5, 3), (3,), (3,))]
    before = mean.to_host()
    for activation in (None, "relu"):
        fn = lambda x, w, b, a=activation: ag.batch_norm(x, w, b, mean, var, training=False, activation=a)  # noqa: E731
        assert ag.gradcheck(fn, inputs)
    np.testing.assert_array_equal(mean.to_host(), before)


def test_dropout_masks_the_gradient_as_the_value(queue):
    x = ag.tensor(Tensor.ones(queue, (1000,)), requires_grad=True)
    with ag.Tape() as tape:
        y = ag.dropout(x, 0.25)
    tape.backward(y)
    value = y.to_host()
    np.testing.assert_array_equal(x.grad.to_host(), value)
    assert set(np.unique(value)) == {np.float32(0), np.float32(1 / 0.75)} and 0.18 < (value == 0).mean() < 0.32
    assert ag.dropout(x, 0.25, training=False) is x and ag.dropout(x, 0.0) is x


# -- cross entropy -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(5, 4), (2, 4, 3)])
def test_cross_entropy_with_labels(cpu_queue, reduction, smoothing, weighted, shape):
    rng = np.random.default_rng(0)
    logits = Tensor.from_host(cpu_queue, rng.standard_normal(shape))
    labels = rng.integers(0, shape[1], shape[:1] + shape[2:]).astype(np.int32)
    labels.flat[1] = -100
    target = Tensor.from_host(cpu_queue, labels)
    weight = Tensor.from_host(cpu_queue, rng.uniform(0.5, 2, shape[1])) if weighted else None
    settings = {"weight": weight, "label_smoothing": smoothing, "reduction": reduction}
    assert ag.gradcheck(lambda z: ag.cross_entropy(z, target, **settings), logits)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(5, 4), (2, 4, 3)])
def test_cross_entropy_with_probabilities(cpu_queue, reduction, weighted, shape):
    rng = np.random.default_rng(0)
    logits = Tensor.from_host(cpu_queue, rng.standard_normal(shape))
    target = rng.uniform(0.1, 1, shape)
    target = Tensor.from_host(cpu_queue, target / target.sum(1, keepdims=True))
    weight = Tensor.from_host(cpu_queue, rng.uniform(0.5, 2, shape[1])) if weighted else None
    settings = {"weight": weight, "label_smoothing": 0.2, "reduction": reduction}
    assert ag.gradcheck(lambda z, t: ag.cross_entropy(z, t, **settings), [logits, target])


def test_smoothing_weights_and_an_ignored_label(queue):
    logits = ag.tensor(Tensor.from_host(queue, np.array([[1, 2], [3, 0.4]], np.float32)), requires_grad=True)
    labels = ag.tensor(Tensor.from_host(queue, np.array([-100, 1], np.int32)))
    weight = Tensor.from_host(queue, np.array([0.2, 0.3], np.float32))
    for settings, expected in (
        ({"weight": weight}, 2.5404506), ({"weight": weight, "reduction": "sum"}, 0.7621352), ({}, 2.5416447)
    ):  # fmt: skip
        logits.grad = None
        with ag.Tape() as tape:
            loss = ag.cross_entropy(logits, labels, label_smoothing=0.1, **settings)
        tape.backward(loss)
        assert loss.item() == pytest.approx(expected, rel=1e-5)
        assert not logits.grad.to_host()[0].any()


def test_cross_entropy_backward_takes_what_forward_left(cl_queue):
    """No launch for the implicit upstream gradient; another one, and a second backward, give the same values."""
    value = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    labels = Tensor.from_host(cl_queue, np.arange(6, dtype=np.int32) % 5)
    names = []
    hook = lambda kernel, *_: names.append(kernel.name)  # noqa: E731

    def gradient(passes, times=1.0):
        z = ag.tensor(Tensor.from_host(cl_queue, value), requires_grad=True)
        with ag.Tape() as tape:
            loss = ag.cross_entropy(z, labels)
            loss = loss if times == 1 else loss * times
        for k in range(passes):
            if z.grad is not None:  # its owner may write to it
                elementwise.assign(z.grad, Tensor.zeros(cl_queue, z.shape))
            tape.backward(loss, retain_graph=k + 1 < passes)
        return z.grad.to_host()

    opencl.hooks.append(hook)
    try:
        first = gradient(1)
        assert names == ["reduce_loss"]
        with ag.no_grad():
            ag.cross_entropy(ag.tensor(Tensor.from_host(cl_queue, value), requires_grad=True), labels)
        assert names == ["reduce_loss"] * 2
    finally:
        opencl.hooks.remove(hook)
    p = np.exp(value) / np.exp(value).sum(1, keepdims=True)
    p[np.arange(6), np.arange(6) % 5] -= 1
    np.testing.assert_allclose(first, p / 6, atol=1e-7)
    np.testing.assert_allclose(gradient(2), first, atol=1e-7)
    np.testing.assert_allclose(gradient(1, 3.0), 3 * first, atol=1e-6)


def test_one_large_gradient_a_tape_comes_with_its_loss(cl_queue, monkeypatch):
    """Memory holds no more than when backward computes them."""
    for name, value in (("FEW_CLASSES", 0), ("MANY_ON_CPU", 0), ("MANY_ON_GPU", 0)):
        monkeypatch.setattr(cross_entropy, name, value)
    labels = Tensor.from_host(cl_queue, np.arange(6, dtype=np.int32) % 5)
    values = [np.random.default_rng(k).standard_normal((6, 5)).astype(np.float32) for k in range(3)]
    leaves = [ag.tensor(Tensor.from_host(cl_queue, v), requires_grad=True) for v in values]
    names = []
    hook = lambda kernel, *_: names.append(kernel.name)  # noqa: E731
    opencl.hooks.append(hook)
    try:
        with ag.Tape() as tape:
            losses = [ag.cross_entropy(z, labels) for z in leaves]
            total = losses[0] + losses[1] + losses[2]
        assert names.count("reduce_weights") == 1
        tape.backward(total)
        assert names.count("netcl_cross_entropy_grad") == 2
        with ag.Tape() as tape:
            loss = ag.cross_entropy(leaves[0], labels)
        assert names.count("reduce_weights") == 2
        tape.reset()
        assert tape.early is None
        ag.cross_entropy(leaves[0], labels)
        assert names.count("reduce_weights") == 2
        with ag.Tape() as tape:
            ag.cross_entropy(leaves[0], labels)
            other = ag.sum(ag.tensor(leaves[1].value, requires_grad=True))
        assert tape.early
        tape.backward(other)
        assert tape.early is None
    finally:
        opencl.hooks.remove(hook)
    for value, z in zip(values, leaves, strict=True):
        p = np.exp(value) / np.exp(value).sum(1, keepdims=True)
        p[np.arange(6), np.arange(6) % 5] -= 1
        np.testing.assert_allclose(z.grad.to_host(), p / 6, atol=1e-7)
    assert loss.shape == (1,)


def test_a_small_loss_leaves_room_for_the_gradient_of_a_large_one(cl_queue, monkeypatch):
    for name in ("MANY_ON_CPU", "MANY_ON_GPU"):
        monkeypatch.setattr(cross_entropy, name, 500)
    labels = Tensor.zeros(cl_queue, (8,), "int32")
    small, large = (ag.tensor(Tensor.zeros(cl_queue, (8, n)), requires_grad=True) for n in (5, 70))
    with ag.Tape() as tape:
        total = ag.cross_entropy(small, labels)
        assert tape.early is None
        total = total + ag.cross_entropy(large, labels)
        assert [dz.shape for dz in tape.early] == [(8, 70)]
    tape.backward(total)
    for z in (small, large):
        wanted = np.full(z.shape, 1 / (8 * z.shape[1]))
        wanted[:, 0] -= 1 / 8
        np.testing.assert_allclose(z.grad.to_host(), wanted, atol=1e-7)


# -- the primitive table -----------------------------------------------------------------------------------------------


# On NumPy alone: what the kernels compute is tested in tests/ops, in float32, where they need not be built once more.
@pytest.mark.parametrize("case", [c for c in cases.ELEMENTWISE if c.grad], ids=str)
def test_primitive(cpu_queue, case):
    inputs = [Tensor.from_host(cpu_queue, x) for x in case.sample()]
    attrs = {k: v for k, v in case.attrs.items() if k != "approximate"}
    assert ag.gradcheck(lambda *xs: ag.apply_op(case.op, *xs, **attrs), inputs)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow", "maximum", "minimum", "where"])
def test_primitive_with_a_number(queue, name):
    rng = np.random.default_rng(0)
    x, mask = Tensor.from_host(queue, rng.uniform(0.5, 2, (3, 4))), Tensor.from_host(queue, rng.random((3, 4)) < 0.5)
    if name == "where":
        assert ag.gradcheck(lambda a: ag.where(mask, a, 2.0) + ag.where(mask, 0.5, a), x)
        return
    fn = getattr(ag, name)
    assert ag.gradcheck(lambda a: fn(a, 1.3) * fn(0.7, a), x)
