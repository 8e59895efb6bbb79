"""Layers: values against references, settings, errors, and the field cases NRM-*, POL-*."""

import numpy as np
import pytest
from scipy import signal

import netcl.autograd as ag
from netcl import nn
from netcl.core.backend import opencl
from netcl.core.device.profile import profile_of
from netcl.core.errors import DeviceError, IndexOutOfRange, ShapeError
from netcl.core.tensor import Tensor


def node(queue, values, dtype=np.float32, requires_grad=False):
    return ag.tensor(Tensor.from_host(queue, np.asarray(values, dtype)), requires_grad=requires_grad)


def random_node(queue, *shape, seed=0):
    return node(queue, np.random.default_rng(seed).standard_normal(shape))


# -- linear and convolution --------------------------------------------------------------------------------------------


def test_linear(queue):
    layer, x = nn.Linear(queue, 5, 3), random_node(queue, 2, 4, 5)
    w, b = layer.weight.to_host(), layer.bias.to_host()
    np.testing.assert_allclose(layer(x).to_host(), x.to_host() @ w.T + b, rtol=1e-5, atol=1e-6)
    assert layer.weight.shape == (3, 5) and not b.any() and np.abs(w).max() <= 1 / np.sqrt(5)
    assert nn.Linear(queue, 5, 3, bias=False).bias is None
    for shape, advice in (
        ((2, 7), "make the layer with in_features=7, or give it 5 features"),
        ((2, 2704), "make the layer with in_features=2704, or give it 5 features"),
        ((3, 5, 1), r"flatten it first, e\.g\. x\.reshape\(3, -1\) or nn\.Flatten\(\)"),
        ((5, 2), r"transpose it with x\.T"),
        ((), r"give it at least one axis, e\.g\. x\.reshape\(1, -1\)"),
    ):
        with pytest.raises(ShapeError, match=rf"Linear: expected input with last axis 5, got shape .*; {advice}\."):
            layer(random_node(queue, *shape))


def test_conv2d(queue):
    layer, x = nn.Conv2d(queue, 2, 3, (3, 2), padding=(1, 0)), random_node(queue, 2, 2, 5, 6)
    layer.bias.value.fill_(0.5)
    w, images = layer.weight.to_host(), np.pad(x.to_host(), ((0, 0), (0, 0), (1, 1), (0, 0)))
    expected = [
        [sum(signal.correlate2d(images[n, c], w[o, c], "valid") for c in range(2)) + 0.5 for o in range(3)]
        for n in range(2)
    ]
    np.testing.assert_allclose(layer(x).to_host(), expected, rtol=1e-4, atol=1e-5)
    assert nn.Conv2d(queue, 2, 4, 3, padding="same")(x).shape == (2, 4, 5, 6)
    assert nn.Conv2d(queue, 2, 4, 3, padding="valid", bias=False)(x).shape == (2, 4, 3, 4)
    for bad, message in (
        (lambda: layer(random_node(queue, 2, 3, 5, 6)), r"\(N, 2, H, W\), got \(2, 3, 5, 6\); make .* in_channels=3"),
        (lambda: layer(random_node(queue, 2, 5, 6, 2)), r"bring the channels forward with x\.permute\(0, 3, 1, 2\)"),
        (lambda: layer(random_node(queue, 2, 5, 6)), r"add the missing batch axis with x\.unsqueeze\(0\)"),
        (lambda: layer(random_node(queue, 5, 6)), r"give it images as \(N, 2, H, W\)"),
        (lambda: nn.Conv2d(queue, 1, 2, 3)(random_node(queue, 4, 5, 6)), r"x\.unsqueeze\(1\) for a batch of images"),
        (lambda: nn.Conv2d(queue, 1, 2, None), "Conv2d: expected kernel_size as an int or a .* pair of at least 1"),
        (lambda: nn.Conv2d(queue, 1, 2, 3, stride=0), "Conv2d: expected stride as an int or a .* of at least 1, got 0"),
        (lambda: nn.Conv2d(queue, 1, 2, 3, padding=(1, 2, 3)), "Conv2d: expected padding as an int or a"),
        (lambda: nn.Conv2d(queue, 3, 4, 3, groups=2), "groups that divide both channel counts, got 2 for 3 and 4"),
        (lambda: nn.Conv2d(queue, 2, 4, 2, padding="same"), "stride 1 and an odd kernel"),
    ):
        with pytest.raises(ShapeError, match=message):
            bad()


# -- pooling -----------------------------------------------------------------------------------------------------------


def test_padding_never_wins(queue):
    x = node(queue, [[[[-1, -2], [-3, -4]]]])
    np.testing.assert_array_equal(nn.MaxPool2d(2, 2, 1)(x).to_host()[0, 0], [[-1, -2], [-3, -4]])
    with pytest.raises(ShapeError, match="half"):
        nn.MaxPool2d(3, padding=3)(x)


def test_overlapping_windows_and_ties(queue):
    rows = np.arange(1, 25, dtype=np.float32).reshape(4, 6)
    rows[1, 1] = 88
    x = node(queue, rows[None, None], requires_grad=True)
    with ag.Tape() as tape:
        y = nn.MaxPool2d(3, 2, 1)(x)
        loss = y.sum()
    tape.backward(loss)
    np.testing.assert_array_equal(y.to_host()[0, 0], [[88, 88, 12], [88, 88, 24]])
    expected = np.zeros((4, 6))
    expected[1, 1], expected[1, 5], expected[3, 5] = 4, 1, 1
    np.testing.assert_array_equal(x.grad.to_host()[0, 0], expected)
    tie = node(queue, [[[[2, 2]]]], requires_grad=True)
    with ag.Tape() as tape:
        loss = nn.MaxPool2d((1, 2))(tie).sum()
    tape.backward(loss)
    np.testing.assert_array_equal(tie.grad.to_host()[0, 0], [[1, 0]])


def test_means_of_windows(queue):
    x = random_node(queue, 2, 3, 4, 6)
    a = x.to_host()
    np.testing.assert_allclose(
        nn.AvgPool2d(2)(x).to_host(), a.reshape(2, 3, 2, 2, 3, 2).mean((3, 5)), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(nn.AdaptiveAvgPool2d(1)(x).to_host()[..., 0, 0], a.mean((2, 3)), rtol=1e-5, atol=1e-6)
    corner = nn.AvgPool2d(2, padding=1, count_include_pad=False)(x).to_host()[..., 0, 0]
    np.testing.assert_allclose(corner, a[..., 0, 0], rtol=1e-6)
    assert nn.Flatten()(x).shape == (2, 72) and nn.Flatten(2)(x).shape == (2, 3, 24)


# -- norms -------------------------------------------------------------------------------------------------------------


def test_batch_norm_keeps_the_unbiased_variance(queue):
    layer = nn.BatchNorm2d(queue, 1)
    y = layer(node(queue, np.array([1, 2, 3, 4]).reshape(4, 1, 1, 1))).to_host().ravel()
    np.testing.assert_allclose(y, [-1.3416354, -0.4472118, 0.4472118, 1.3416354], rtol=1e-5)
    np.testing.assert_allclose(layer.running_mean.to_host(), [0.25], rtol=1e-6)
    np.testing.assert_allclose(layer.running_var.to_host(), [1.0666667], rtol=1e-6)
    np.testing.assert_allclose(layer.eval()(node(queue, [[[[1.0]]]])).to_host().ravel(), [0.7261810], rtol=1e-5)


@pytest.mark.parametrize(("kind", "shape"), [(nn.BatchNorm1d, (1, 3)), (nn.BatchNorm2d, (1, 3, 1, 1))])
def test_one_value_per_channel_has_no_variance(queue, kind, shape):
    layer = kind(queue, 3)
    with pytest.raises(ShapeError, match="more than one value per channel"):
        layer(random_node(queue, *shape))
    assert np.isfinite(layer.running_var.to_host()).all()
    assert np.isfinite(layer.eval()(random_node(queue, *shape)).to_host()).all()


def test_eps_stays_in_float32(queue):
    layer = nn.RMSNorm(queue, 4, eps=1e-6)
    x = np.full((1, 4), np.sqrt(2e-4), np.float32)
    np.testing.assert_allclose(layer(node(queue, x)).to_host(), x * 70.534566, rtol=1e-5)
    half = nn.RMSNorm(queue, 4, eps=1e-8, dtype="float16")
    np.testing.assert_array_equal(half(node(queue, np.zeros((1, 4)), np.float16)).to_host(), np.zeros((1, 4)))


def test_norms_against_numpy(queue):
    x = random_node(queue, 4, 6, 5)
    a = x.to_host().astype(float)

    def normal(axis, shape=a.shape):
        b = a.reshape(shape)
        return ((b - b.mean(axis, keepdims=True)) / np.sqrt(b.var(axis, keepdims=True) + 1e-5)).reshape(a.shape)

    for layer, expected in (
        (nn.LayerNorm(queue, (6, 5)), normal((1, 2))),
        (nn.LayerNorm(queue, 5, elementwise_affine=False), normal(2)),
        (nn.GroupNorm(queue, 2, 6), normal((2, 3), (4, 2, 3, 5))),
        (nn.BatchNorm1d(queue, 6, affine=False), normal((0, 2))),
    ):
        np.testing.assert_allclose(layer(x).to_host(), expected, rtol=1e-4, atol=1e-5)
    assert nn.LayerNorm(queue, 5, bias=False).bias is None
    for bad, message in (
        (lambda: nn.LayerNorm(queue, 4)(x), r"last axes \(4,\), got shape \(4, 6, 5\)"),
        (lambda: nn.BatchNorm2d(queue, 6)(x), r"\(N, 6, H, W\), got \(4, 6, 5\)"),
        (lambda: nn.GroupNorm(queue, 2, 5), "num_groups to divide 5 channels"),
        (lambda: nn.GroupNorm(queue, 2, 4)(x), r"\(N, 4, \.\.\.\)"),
    ):
        with pytest.raises(ShapeError, match=message):
            bad()


def test_batch_norm_without_statistics_uses_the_batch(queue):
    layer, x = nn.BatchNorm1d(queue, 3, track_running_stats=False).eval(), random_node(queue, 8, 3)
    assert np.abs(layer(x).to_host().mean(0)).max() < 1e-6 and not list(layer.buffers())
    assert "track_running_stats=False" in repr(layer)


# -- activations -------------------------------------------------------------------------------------------------------

ACTIVATIONS = {
    nn.ReLU: lambda x: np.maximum(x, 0),
    nn.Sigmoid: lambda x: 1 / (1 + np.exp(-x)),
    nn.LogSigmoid: lambda x: -np.log1p(np.exp(-x)),
    nn.Tanh: np.tanh,
    nn.SiLU: lambda x: x / (1 + np.exp(-x)),
    nn.LeakyReLU: lambda x: np.where(x < 0, 0.01 * x, x),
    nn.ELU: lambda x: np.where(x > 0, x, np.expm1(x)),
    nn.Softplus: lambda x: np.log1p(np.exp(x)),
    nn.Softsign: lambda x: x / (1 + np.abs(x)),
    nn.Mish: lambda x: x * np.tanh(np.log1p(np.exp(x))),
    nn.Hardsigmoid: lambda x: np.clip(x / 6 + 0.5, 0, 1),
    nn.Hardswish: lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    nn.Hardtanh: lambda x: np.clip(x, -1, 1),
    nn.Softmax: lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
    nn.LogSoftmax: lambda x: x - np.log(np.exp(x).sum(-1, keepdims=True)),
    nn.SwiGLU: lambda x: x[..., :2] / (1 + np.exp(-x[..., :2])) * x[..., 2:],
    nn.Identity: lambda x: x,
}


@pytest.mark.parametrize("kind", ACTIVATIONS, ids=lambda k: k.__name__)
def test_activations(queue, kind):
    x = node(queue, np.random.default_rng(0).standard_normal((5, 4)) * 3)
    np.testing.assert_allclose(kind()(x).to_host(), ACTIVATIONS[kind](x.to_host().astype(float)), rtol=1e-5, atol=1e-6)
    assert repr(kind()).startswith(kind.__name__)


def test_settings_of_activations(queue):
    x = node(queue, [-1.0, 2.0])
    np.testing.assert_allclose(nn.LeakyReLU(0.5)(x).to_host(), [-0.5, 2])
    np.testing.assert_allclose(nn.ELU(2.0)(x).to_host(), [2 * np.expm1(-1), 2], rtol=1e-6)
    assert nn.GELU("tanh")(x).to_host()[1] != nn.GELU()(x).to_host()[1]
    assert nn.Swish is nn.SiLU
    with pytest.raises(ShapeError, match="even last axis"):
        nn.SwiGLU()(random_node(queue, 2, 3))


# -- dropout and embedding ---------------------------------------------------------------------------------------------


def test_dropout_is_for_training(queue):
    layer, x = nn.Dropout(0.5), node(queue, np.ones(1000))
    y = layer(x).to_host()
    assert set(np.unique(y)) == {0, 2} and 0.4 < (y == 0).mean() < 0.6
    assert (layer(x).to_host() != y).any()
    assert layer.eval()(x) is x and nn.Dropout(0.0)(x) is x
    with pytest.raises(ValueError, match=r"p in \[0, 1\)"):
        nn.Dropout(1.0)


def test_embedding(queue):
    layer = nn.Embedding(queue, 5, 3, padding_idx=2)
    index = node(queue, [[0, 4], [2, 0]], np.int32)
    np.testing.assert_array_equal(layer(index).to_host(), layer.weight.to_host()[[[0, 4], [2, 0]]])
    assert not layer.weight.to_host()[2].any()
    with ag.Tape() as tape:
        loss = layer(index).sum()
    tape.backward(loss)
    np.testing.assert_array_equal(layer.weight.grad.to_host()[:, 0], [2, 0, 0, 0, 1])
    assert "padding_idx=2" in repr(layer)
    with pytest.raises(ValueError, match=r"padding_idx in \[0, 5\)"):
        nn.Embedding(queue, 5, 3, padding_idx=5)


@pytest.mark.parametrize("bad", [999, -1])
def test_a_bad_index_is_refused_everywhere(queue, bad):
    layer = nn.Embedding(queue, 3, 2)
    with pytest.raises(IndexOutOfRange, match=rf"embedding: expected indices in \[0, 3\), got {bad}"):
        layer(node(queue, [0, bad], np.int64)).to_host()


# -- losses ------------------------------------------------------------------------------------------------------------


def log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


LOSSES = {
    nn.MSELoss: lambda x, t: (x - t) ** 2,
    nn.L1Loss: lambda x, t: abs(x - t),
    nn.SmoothL1Loss: lambda x, t: np.where(abs(x - t) < 1, (x - t) ** 2 / 2, abs(x - t) - 0.5),
    nn.HuberLoss: lambda x, t: np.where(abs(x - t) < 1, (x - t) ** 2 / 2, abs(x - t) - 0.5),
    nn.BCELoss: lambda x, t: -(t * np.log(x) + (1 - t) * np.log(1 - x)),
    nn.BCEWithLogitsLoss: lambda x, t: np.log1p(np.exp(x)) - t * x,
    nn.KLDivLoss: lambda x, t: t * (np.log(t) - x),
    nn.HingeLoss: lambda x, t: np.maximum(0, 1 - x * t),
}


@pytest.mark.parametrize("kind", LOSSES, ids=lambda k: k.__name__)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses(queue, kind, reduction):
    rng = np.random.default_rng(0)
    x, t = (rng.uniform(0.1, 0.9, (6, 5)) for _ in range(2))
    expected = LOSSES[kind](x, t)
    expected = expected if reduction == "none" else getattr(expected, reduction)(keepdims=True).reshape(1)
    found = kind(reduction=reduction)(node(queue, x), node(queue, t))
    np.testing.assert_allclose(found.to_host(), expected, rtol=1e-5, atol=1e-6)
    assert f"reduction={reduction!r}" in repr(kind(reduction=reduction))


def test_losses_of_labels(queue):
    rng = np.random.default_rng(0)
    x, labels, weight = rng.standard_normal((6, 4)), np.array([0, 3, 1, 2, -100, 1]), np.array([1, 2, 0.5, 1])
    kept, rows = labels != -100, np.arange(6)
    losses = -log_softmax(x)[rows, np.where(kept, labels, 0)]
    w = weight[np.where(kept, labels, 0)]
    logits, target, weights = node(queue, x), node(queue, labels, np.int32), node(queue, weight).value
    plain, weighted = losses[kept].mean(), (losses * w)[kept].sum() / w[kept].sum()
    assert nn.CrossEntropyLoss()(logits, target).item() == pytest.approx(plain, rel=1e-5)
    assert nn.CrossEntropyLoss(weight=weights)(logits, target).item() == pytest.approx(weighted, rel=1e-5)
    logs = node(queue, log_softmax(x))
    assert nn.NLLLoss()(logs, target).item() == pytest.approx(plain, rel=1e-5)
    assert nn.NLLLoss(weight=weights)(logs, target).item() == pytest.approx(weighted, rel=1e-5)
    none = nn.CrossEntropyLoss(reduction="none")(logits, target).to_host()
    np.testing.assert_allclose(none, np.where(kept, losses, 0), rtol=1e-5, atol=1e-6)
    assert [n for n, _ in nn.CrossEntropyLoss(weight=weights).named_buffers()] == ["weight"]


def test_settings_of_losses(queue):
    x, t = node(queue, [[0.5, -2.0]]), node(queue, [[1.0, 0.0]])
    positive = nn.BCEWithLogitsLoss(pos_weight=Tensor.from_host(queue, np.array([3, 1], np.float32)))
    expected = [3 * np.log1p(np.exp(-0.5)), np.log1p(np.exp(-2.0))]
    assert positive(x, t).item() == pytest.approx(np.mean(expected), rel=1e-5)
    assert nn.HuberLoss(delta=0.5)(x, t).item() == pytest.approx((0.125 + 0.5 * (2 - 0.25)) / 2)
    assert nn.SmoothL1Loss(beta=0.5)(x, t).item() == pytest.approx((0.25 + 1.75) / 2)
    logs = node(queue, np.log([[0.25, 0.75]]))
    assert nn.KLDivLoss("batchmean", log_target=True)(logs, logs).item() == pytest.approx(0, abs=1e-6)
    with pytest.raises(ValueError, match="reduction"):
        nn.MSELoss(reduction="max")(x, t)


# -- initial values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "bound", "std"),
    [
        (lambda q, s: nn.init.uniform(q, s, -2, 3), (-2, 3), 5 / np.sqrt(12)),
        (lambda q, s: nn.init.normal(q, s, std=0.5), None, 0.5),
        (lambda q, s: nn.init.xavier_uniform(q, s), (-0.1, 0.1), 0.1 / np.sqrt(3)),
        (lambda q, s: nn.init.xavier_normal(q, s, gain=2.0), None, 2 * np.sqrt(2 / 600)),
        (lambda q, s: nn.init.kaiming_uniform(q, s, nonlinearity="relu"), (-0.1225, 0.1225), np.sqrt(2 / 400)),
        (lambda q, s: nn.init.kaiming_normal(q, s, mode="fan_out"), None, np.sqrt(2 / 200)),
        (lambda q, s: nn.init.trunc_normal(q, s, std=1.0, low=-1.0, high=1.0), (-1, 1), 0.5396),
    ],
)  # fmt: skip
def test_spread_of_initial_values(queue, make, bound, std):
    values = make(queue, (200, 400)).to_host()
    assert values.std() == pytest.approx(std, rel=0.02)
    if bound:
        assert bound[0] <= values.min() < values.max() <= bound[1]


def test_other_initial_values(queue):
    for shape in ((3, 8), (8, 3), (4, 2, 3)):
        q = nn.init.orthogonal(queue, shape, gain=2.0).to_host().reshape(shape[0], -1)
        gram = q @ q.T if shape[0] <= q.shape[1] else q.T @ q
        np.testing.assert_allclose(gram, 4 * np.eye(len(gram)), atol=1e-5)
    layer = nn.Linear(queue, 4, 4)
    weight = layer.weight
    assert nn.init.constant_(layer.weight, 3.0) is weight and (weight.to_host() == 3).all()
    nn.init.ones_(weight.value)
    nn.init.zeros_(layer.bias)
    nn.init.kaiming_uniform_(weight, nonlinearity="tanh")
    assert np.unique(weight.to_host()).size > 8
    for bad in (
        lambda: nn.init.kaiming_normal(queue, (3, 3), nonlinearity="cube"),
        lambda: nn.init.kaiming_normal(queue, (3, 3), mode="fan"),
        lambda: nn.init.xavier_uniform(queue, (3,)),
        lambda: nn.init.orthogonal(queue, (3,)),
        lambda: nn.init.trunc_normal(queue, (3,), low=2.0, high=1.0),
    ):
        with pytest.raises(ValueError, match="expected"):
            bad()


def test_a_generator_of_ones_own_repeats(queue, cpu_queue):
    from netcl.ops.create.random import Generator

    values = [nn.init.normal(q, (5,), generator=Generator(3)).to_host() for q in (queue, queue, cpu_queue)]
    np.testing.assert_array_equal(values[0], values[1])
    np.testing.assert_allclose(values[0], values[2], rtol=1e-5, atol=1e-6)


# -- models ------------------------------------------------------------------------------------------------------------


def test_mlp(queue):
    model = nn.MLP(queue, 4, 8, 2, num_hidden_layers=2, activation=nn.Tanh)
    assert model(random_node(queue, 3, 4)).shape == (3, 2)
    assert [tuple(p.shape) for p in model.parameters()] == [(8, 4), (8,), (8, 8), (8,), (2, 8), (2,)]


def test_resnet18_shapes_and_gradients(cl_queue):
    model = nn.ResNet18(cl_queue, num_classes=10)
    assert sum(p.size for p in model.parameters()) == 11_181_642
    with ag.Tape() as tape:
        y = model(random_node(cl_queue, 2, 3, 32, 32))
        loss = ag.cross_entropy(y, node(cl_queue, [1, 2], np.int32))
    tape.backward(loss)
    assert y.shape == (2, 10) and 1 < loss.item() < 5
    assert all(np.isfinite(p.grad.to_host()).all() and p.grad.to_host().any() for p in model.parameters())


def test_a_bottleneck_widens_fourfold(cpu_queue):
    block = nn.Bottleneck(cpu_queue, 16, 4, stride=2)
    assert block(random_node(cpu_queue, 2, 16, 8, 8)).shape == (2, 16, 4, 4) and block.shortcut is not None
    assert nn.BasicBlock(cpu_queue, 4, 4).shortcut is None


def test_two_queues_in_one_model_are_refused(queue, cpu_queue):
    if queue is cpu_queue:
        return
    with pytest.raises(DeviceError, match="on one queue"):
        nn.Linear(queue, 3, 3)(random_node(cpu_queue, 2, 3))


def test_a_label_that_is_no_class_is_named(queue):
    logits = random_node(queue, 2, 3)
    with pytest.raises(IndexOutOfRange, match=r"cross_entropy: expected indices in \[0, 3\), got 7"):
        ag.cross_entropy(logits, node(queue, [0, 7], np.int32)).item()


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.SiLU])
@pytest.mark.parametrize("make", [lambda q: nn.Linear(q, 6, 5), lambda q: nn.Conv2d(q, 2, 3, 3)])
def test_sequential_takes_activations_along(queue, make, activation):
    """A layer and the activation after it give what they give one by one, in training and without gradients."""
    layer, shape = make(queue), (4, 6) if "Linear" in repr(make(queue)) else (2, 2, 5, 5)
    x = ag.tensor(Tensor.from_host(queue, np.random.default_rng(0).normal(size=shape).astype(np.float32)))
    found = []
    for run in (nn.Sequential(layer, activation()), lambda v: activation()(layer(v))):
        with ag.Tape() as tape:
            y = run(x)
        tape.backward(y, Tensor.ones(queue, y.shape))
        plain = run(x)
        found.append([y.to_host(), plain.to_host(), layer.weight.grad.to_host(), layer.bias.grad.to_host()])
        layer.weight.grad = layer.bias.grad = None
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_linear_layer_and_gelu_train_with_one_launch_forward(cl_queue):
    model, names = nn.Sequential(nn.Linear(cl_queue, 6, 5), nn.GELU(), nn.Linear(cl_queue, 5, 4), nn.SiLU()), []
    x = ag.tensor(Tensor.ones(cl_queue, (3, 6)))
    hook = lambda kernel, *_: names.append(kernel.name)  # noqa: E731
    opencl.hooks.append(hook)
    with ag.Tape():
        model(x)
    opencl.hooks.remove(hook)
    if profile_of(cl_queue).kind == "cpu":
        assert names == ["gemm", "gemm"]


# -- what Sequential fuses ---------------------------------------------------------------------------------------------


def layers_to_fuse(queue):
    yield nn.Linear(queue, 4, 4), (2, 4)
    yield nn.Conv2d(queue, 3, 3, 3), (2, 3, 5, 5)
    yield nn.BatchNorm1d(queue, 4), (5, 4)
    yield nn.BatchNorm2d(queue, 3), (2, 3, 5, 5)


def test_a_replaced_forward_is_used_in_sequential(queue):
    """Set on the layer or on the activation, as wrappers and patches do; also by a subclass; and back again."""
    for layer, shape in layers_to_fuse(queue):
        act, x = nn.ReLU(), random_node(queue, *shape)
        net, fused = nn.Sequential(layer, act).eval(), None
        fused = net(x).to_host()
        original = layer.forward
        layer.forward = lambda x, f=original: ag.mul(f(x), -1.0)
        np.testing.assert_allclose(net(x).to_host(), np.maximum(-original(x).to_host(), 0), atol=1e-6)
        del layer.forward
        act.forward = lambda x: ag.mul(x, 3.0)
        np.testing.assert_allclose(net(x).to_host(), 3 * original(x).to_host(), atol=1e-5)
        del act.forward
        np.testing.assert_array_equal(net(x).to_host(), fused)


def test_a_forward_replaced_on_the_class_is_used_in_sequential(queue, monkeypatch):
    x, net = random_node(queue, 16, 4), nn.Sequential(nn.Linear(queue, 4, 4), nn.ReLU())
    plain = net(x).to_host()
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: ag.mul(x, 0.0))
    assert not net(x).to_host().any() and plain.any()
    monkeypatch.undo()
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: ag.add(ag.mul(x, 0.0), 2.0))
    assert (net(x).to_host() == 2).all()


def test_a_subclass_of_a_layer_is_called_in_sequential(queue):
    class Doubled(nn.Linear):
        def forward(self, x):
            return ag.mul(super().forward(x), 2.0)

    class Shifted(nn.ReLU):
        def forward(self, x):
            return ag.add(super().forward(x), 1.0)

    x, layer = random_node(queue, 2, 4), Doubled(queue, 4, 4)
    z = x.to_host() @ layer.weight.to_host().T
    np.testing.assert_allclose(nn.Sequential(layer, nn.ReLU())(x).to_host(), np.maximum(2 * z, 0), atol=1e-5)
    np.testing.assert_allclose(nn.Sequential(layer, Shifted())(x).to_host(), np.maximum(2 * z, 0) + 1, atol=1e-5)


def test_hooks_of_layers_in_sequential_see_what_each_computes(queue):
    for layer, shape in layers_to_fuse(queue):
        act, x, seen = nn.ReLU(), random_node(queue, *shape), []
        net = nn.Sequential(layer, act).eval()
        handles = [
            m.register_forward_hook(lambda m, args, y, kept=seen: kept.append(y.to_host())) for m in (layer, act)
        ]
        y = net(x).to_host()
        np.testing.assert_array_equal(seen[1], y)
        np.testing.assert_array_equal(np.maximum(seen[0], 0), y)
        for handle in handles:
            handle.remove()
        net(x)
        assert len(seen) == 2
