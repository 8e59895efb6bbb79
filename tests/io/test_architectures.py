"""Architectures in files: what comes back is the network that was saved, whatever was changed after it was made."""

import copy
import dataclasses
import gc
import weakref

import numpy as np
import pytest

import netcl.autograd as ag
from netcl import nn
from netcl.core.errors import CheckpointError
from netcl.core.tensor import Tensor
from netcl.io import load_checkpoint, load_model, save_checkpoint, save_model


def small(queue):
    """A residual network that is quick to save."""
    return nn.ResNet(queue, counts=(1,), num_classes=3, in_channels=1)


def image(queue):
    return ag.tensor(Tensor.from_host(queue, np.random.default_rng(0).standard_normal((2, 1, 8, 8)).astype(np.float32)))


def again(model, queue, path, **settings):
    """The model out of its file."""
    save_model(model, path)
    return load_model(path, queue, **settings)


def same(model, other, x):
    """Whether two models are built alike and compute the same."""
    assert repr(other) == repr(model)
    assert list(other.state_dict()) == list(model.state_dict())
    model.eval(), other.eval()
    np.testing.assert_array_equal(other(x).to_host(), model(x).to_host())


# -- replaced, added and removed ---------------------------------------------------------------------------------------


def other_stem(model, queue):
    model.stem = nn.Sequential(nn.Conv2d(queue, 1, 64, 3, padding=1), nn.GELU(), nn.MaxPool2d(2))


def other_head(model, queue):
    model.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(queue, 64, 5))


def other_classes(model, queue):
    model.head.layers[2] = nn.Linear(queue, 64, 7, bias=False)


def other_activation(model, queue):
    model.stages[0][0].body.layers[2] = nn.GELU()


def other_activation_settings(model, queue):
    model.stem.layers[2] = nn.LeakyReLU(0.3)
    model.stem[2].negative_slope = 0.4


def other_block(model, queue):
    model.stages.layers[0] = nn.Sequential(nn.Bottleneck(queue, 64, 16), nn.BasicBlock(queue, 64, 64))


def one_more_layer(model, queue):
    model.stages.append(nn.Sequential(nn.Tanh()))


def one_less_layer(model, queue):
    del model.stem.layers[2]


def no_norm(model, queue):
    model.stages[0][0].body.layers[1] = nn.Identity()


def nothing_changed(model, queue):
    pass


CHANGES = [
    other_stem, other_head, other_classes, other_activation, other_activation_settings, other_block, one_more_layer,
    one_less_layer, no_norm, nothing_changed,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_replaced_children_come_back(queue, tmp_path, change):
    model = small(queue)
    change(model, queue)
    model(image(queue))  # running statistics move
    same(model, again(model, queue, tmp_path / "m"), image(queue))
    fresh = small(queue)
    change(fresh, queue)
    same(model, load_model(tmp_path / "m", model=fresh), image(queue))
    twice = again(load_model(tmp_path / "m", queue), queue, tmp_path / "n")  # what was loaded is saved as well
    same(model, twice, image(queue))
    assert (tmp_path / "m").read_bytes() == (tmp_path / "n").read_bytes() or change is not nothing_changed


def test_a_whole_resnet18_with_another_activation_and_head(cpu_queue, tmp_path):
    model = nn.ResNet18(cpu_queue, num_classes=10, in_channels=1)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Sequential):
            module.layers = [nn.GELU() if isinstance(m, nn.ReLU) else m for m in module.layers]
            assert name
    model.head.layers[-1] = nn.Linear(cpu_queue, 512, 4)
    same(model, again(model, cpu_queue, tmp_path / "m"), image(cpu_queue))


def test_changed_settings_come_back(queue, tmp_path):
    model = nn.Sequential(nn.Linear(queue, 4, 3), nn.BatchNorm1d(queue, 3), nn.Dropout(0.5), nn.Linear(queue, 3, 2))
    model[1].momentum, model[1].eps, model[2].p = 0.01, 1e-3, 0.25
    model[3].bias = None
    model[0].weight = nn.Parameter(Tensor.ones(queue, (3, 4)))
    other = again(model, queue, tmp_path / "m")
    assert (other[1].momentum, other[1].eps, other[2].p, other[3].bias) == (0.01, 1e-3, 0.25, None)
    same(model, other, ag.tensor(Tensor.ones(queue, (2, 4))))


def test_parameters_and_buffers_of_other_shapes_come_back(queue, tmp_path):
    model = nn.MLP(queue, 4, 5, 2)
    last = model.layers[2]
    last.weight, last.bias = nn.Parameter(Tensor.ones(queue, (7, 5))), nn.Parameter(Tensor.ones(queue, (7,)))
    model.scale = nn.Parameter(Tensor.full(queue, (), 3.0))
    model.register_buffer("count", Tensor.from_host(queue, np.array(5, np.int64)))
    other = again(model, queue, tmp_path / "m")
    assert other.count.to_host() == 5 and other.count.dtype == "int64" and other.scale.to_host() == 3
    same(model, other, ag.tensor(Tensor.ones(queue, (2, 4))))


class Residual(nn.Module):
    """x + f(x) for a module given."""

    def __init__(self, inner, scale=1.0):
        self.body, self.scale = inner, scale

    def forward(self, x):
        return ag.add(self.body(x) * self.scale, x)


def test_modules_given_to_a_constructor_come_back_with_their_changes(queue, tmp_path):
    inner = nn.Sequential(nn.Linear(queue, 3, 3), nn.ReLU(), nn.Dropout(0.5))
    inner[2].p = 0.125
    inner.layers[1] = nn.Tanh()
    model = nn.Sequential(Residual(inner, scale=2.0), Residual(nn.Linear(queue, 3, 3)))
    model[1].body = nn.Linear(queue, 3, 3, bias=False)
    x = ag.tensor(Tensor.ones(queue, (2, 3)))
    other = again(model, queue, tmp_path / "m", classes=[Residual])
    assert other[0].body[2].p == 0.125
    same(model, other, x)
    del inner
    twin = copy.deepcopy(model)
    del model
    gc.collect()
    same(twin, again(twin, queue, tmp_path / "n", classes=[Residual]), x)


def test_a_module_in_two_places_stays_one(queue, tmp_path):
    norm, act = nn.BatchNorm1d(queue, 3), nn.ReLU()
    model = nn.Sequential(norm, act, norm, nn.Sequential(norm, nn.Linear(queue, 3, 2)), act)
    x = ag.tensor(Tensor.from_host(queue, np.arange(12, dtype=np.float32).reshape(4, 3)))
    model(x)
    for other in (
        again(model, queue, tmp_path / "m"),
        load_model(tmp_path / "m", model=copy.deepcopy(model)),
        again(copy.deepcopy(model), queue, tmp_path / "n"),
    ):
        assert other[0] is other[2] is other[3][0] and other[1] is other[4]
        np.testing.assert_array_equal(other[0].running_mean.to_host(), norm.running_mean.to_host())
    same(model, load_model(tmp_path / "m", queue), x)
    loaded = load_model(tmp_path / "m", queue)
    model.train(), loaded.train()
    np.testing.assert_array_equal(loaded(x).to_host(), model(x).to_host())
    same(model, loaded, x)


def test_modules_that_a_constructor_made_may_be_used_elsewhere(queue, tmp_path):
    model = nn.Sequential(nn.MLP(queue, 3, 3, 3), nn.MLP(queue, 3, 3, 3))
    model[0].layers.layers[0] = model[1].layers[2]
    model[1].layers[2].note = "shared"
    other = again(model, queue, tmp_path / "m")
    assert other[0].layers[0] is other[1].layers[2] and other[1].layers[2].note == "shared"
    same(model, other, ag.tensor(Tensor.ones(queue, (2, 3))))
    model = small(queue)
    model.spare = model.head
    assert again(model, queue, tmp_path / "m").spare.layers[2].weight.shape == (3, 64)


def test_buffers_in_the_dtype_they_had(cpu_queue, tmp_path):
    model = nn.BatchNorm1d(cpu_queue, 2).double()
    model.running_mean.fill_(1 / 3)
    other = again(model, cpu_queue, tmp_path / "m")
    assert other.running_mean.dtype == "float64" and other.running_mean.to_host()[0] == 1 / 3


# -- constructor arguments ---------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Keeps none of its arguments as they were given."""

    def __init__(self, queue, n, slope=0.1, *extra, act=nn.LeakyReLU, sizes=(), **settings):
        self.layer, self.n = nn.Linear(queue, n, n), n * 2
        self.act = act(slope)
        self.outer = nn.ModuleList([nn.Linear(queue, n, m) for m in sizes])
        self.text = repr((extra, sizes, settings))
        if isinstance(sizes, list):
            sizes.clear()

    def forward(self, x):
        return self.act(self.layer(x))


class Deep(Net):
    """Passes on what it was given."""

    def __init__(self, queue, n, *, slope):
        super().__init__(queue, n + 1, slope)
        self.more = nn.Linear(queue, n, 1)


class Inherits(Deep):
    pass


class Mixin:
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.mixed = True


class Mixed(Mixin, Net):
    pass


@dataclasses.dataclass(eq=False)
class Data(nn.Module):
    queue: object
    n: int = 3
    slope: float = 0.5

    def __post_init__(self):
        self.layer = nn.Linear(self.queue, self.n, self.n)
        self.act = nn.LeakyReLU(self.slope)
        self.queue = None

    forward = Net.forward


class Stacked(nn.Sequential):
    def __init__(self, q, n):
        super().__init__(nn.Linear(q, n, n), nn.LeakyReLU(n / 10))


@pytest.mark.parametrize(
    "make",
    [
        lambda q: Net(q, 3, 0.7), lambda q: Net(q, 3), lambda q: Net(n=3, queue=q, slope=0.25),
        lambda q: Net(q, 3, 0.2, "x", (1, [2, None]), act=nn.ELU, sizes=[2, 3], note={"a": (1, 2)}),
        lambda q: Net(q, np.int64(3), np.float32(0.5), sizes=np.array([2, 3]), kind=np.dtype("float16")),
        lambda q: Deep(q, 2, slope=0.3), lambda q: Inherits(q, 2, slope=0.3), lambda q: Mixed(q, 3, 0.4),
        lambda q: Data(q, slope=0.75), lambda q: Stacked(q, 3),
    ],
)  # fmt: skip
def test_constructor_arguments_come_back_unasked(queue, tmp_path, make):
    model = make(queue)
    other = again(model, queue, tmp_path / "m", classes=[Net, Deep, Inherits, Mixed, Data, Stacked])
    assert type(other) is type(model)
    plain = [k for k, v in vars(model).items() if isinstance(v, (int, str, np.number))]
    assert [getattr(other, k) for k in plain] == [getattr(model, k) for k in plain]
    same(model, other, ag.tensor(Tensor.from_host(queue, -np.ones((2, 3), np.float32))))


def test_tensors_given_to_a_loss_come_back(queue, tmp_path):
    loss = nn.CrossEntropyLoss(Tensor.from_host(queue, np.array([1, 2, 3], np.float32)), label_smoothing=0.1)
    other = again(loss, queue, tmp_path / "m")
    assert other.weight.to_host().tolist() == [1, 2, 3] and other.label_smoothing == 0.1


class Calls(nn.Module):
    def __init__(self, queue, function, tensor=None):
        self.function, self.layer = function, nn.Linear(queue, 2, 2)

    def forward(self, x):
        return self.function(self.layer(x))


def test_an_argument_that_a_file_cannot_hold_is_named(queue, tmp_path):
    model, path = nn.Sequential(nn.ReLU(), Calls(queue, ag.tanh)), tmp_path / "m"
    with pytest.raises(CheckpointError, match=r"function for Calls\(function=\.\.\.\) at 1; .* architecture=False"):
        save_model(model, path)
    for value in (object(), {1: 2}, {1, 2}, Tensor.ones(queue, (2,)), print, lambda x: x):
        with pytest.raises(CheckpointError, match=r"Calls\(function=\.\.\.\); "):
            save_model(Calls(queue, value), path)
    with pytest.raises(CheckpointError, match=r"Tensor for Calls\(tensor=\.\.\.\); "):
        save_model(Calls(queue, None, Tensor.ones(queue, (2,))), path)
    assert not path.exists()
    save_model(model, path, architecture=False)
    other = load_model(path, model=nn.Sequential(nn.ReLU(), Calls(queue, ag.tanh)))
    np.testing.assert_array_equal(other[1].layer.weight.to_host(), model[1].layer.weight.to_host())
    with pytest.raises(CheckpointError, match=r"weights only in .*it was left out.*pass model="):
        load_model(path, queue, classes=[Calls])
    save_checkpoint(model, path, epoch=3)  # a run can always be saved
    assert load_checkpoint(other, path)["epoch"] == 3
    with pytest.raises(CheckpointError, match=r"weights only in .*Calls\(function=.*pass model="):
        load_model(path, queue, classes=[Calls])


def test_what_takes_the_place_of_a_module_without_being_one_is_named(queue, tmp_path):
    def as_function(model):
        model.act = ag.tanh

    def as_forward(model):
        model.layer.forward = lambda x: x

    def as_list(model):
        model.outer.layers = [nn.ReLU(), object()]

    def inside(model):
        model.act = nn.Sequential(Calls(queue, ag.tanh))

    for change, name in (
        (as_function, "act"),
        (as_forward, r"layer\.forward"),
        (as_list, "outer"),
        (inside, r"act\.0"),
    ):
        model = Net(queue, 3)
        change(model)
        with pytest.raises(CheckpointError, match=f"at {name}"):
            save_model(model, tmp_path / "m")


def test_what_a_run_keeps_on_a_module_does_not_stop_a_save(queue, tmp_path):
    model = Net(queue, 3)
    model.forward = ag.jit_compile(model.forward)
    model.cache, model.log, model.optimizer = np.zeros(5000), list(range(5000)), object()
    model.last = Tensor.ones(queue, (2,))
    model.register_forward_hook(lambda *args: None)
    other = again(model, queue, tmp_path / "m", classes=[Net])
    assert not hasattr(other, "log") and not hasattr(other, "optimizer") and "forward" not in vars(other)


def test_a_class_with_the_name_of_another_is_not_taken_for_it(queue, tmp_path):
    class Linear(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 0.0

    save_model(nn.Sequential(Linear(queue, 2, 2)), tmp_path / "m")
    with pytest.raises(CheckpointError, match="'Linear'"):
        load_model(tmp_path / "m", queue)
    assert type(load_model(tmp_path / "m", queue, classes=[Linear])[0]) is Linear


def test_a_constructor_that_makes_other_modules_now_is_refused(queue, tmp_path):
    kinds = [nn.ReLU, nn.GELU]

    class Moody(nn.Module):
        def __init__(self):
            self.act = kinds.pop(0)()

    save_model(Moody(), tmp_path / "m")
    with pytest.raises(CheckpointError, match=r"act: GELU for ReLU"):
        load_model(tmp_path / "m", queue, classes=[Moody])


def test_recipes_keep_nothing_alive(queue):
    layer = nn.Linear(queue, 3, 3)
    weight, inner = weakref.ref(layer.weight.value), weakref.ref(layer)
    model = nn.Sequential(Residual(layer), nn.CrossEntropyLoss(Tensor.ones(queue, (3,))))
    given = weakref.ref(model[1].weight)
    model[0].body = model[1].weight = None
    del layer
    gc.collect()
    assert weight() is None and inner() is None and given() is None


def test_saving_draws_no_random_numbers_and_calls_no_constructor(queue, tmp_path):
    import netcl

    count = []

    class Counts(nn.Module):
        def __init__(self):
            count.append(self)
            self.layer = nn.Linear(queue, 2, 2)

    model = Counts()
    netcl.seed(3)
    expected = nn.Linear(queue, 2, 2).weight.to_host()
    netcl.seed(3)
    save_model(model, tmp_path / "m")
    np.testing.assert_array_equal(nn.Linear(queue, 2, 2).weight.to_host(), expected)
    assert len(count) == 1
