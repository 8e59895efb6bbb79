"""Module: finding, naming, moving, saving and printing what it is made of."""

import copy
from collections import deque
from typing import NamedTuple

import numpy as np
import pytest

import netcl.autograd as ag
from netcl.autograd import Tape
from netcl.core.device import manager
from netcl.core.errors import CheckpointError, DTypeError
from netcl.core.tensor import Tensor
from netcl.nn import BatchNorm1d, Linear, Module, ModuleDict, ModuleList, Parameter, ReLU, Sequential
from netcl.optim import SGD


class Net(Module):
    """A bit of everything: a layer, a list, a dict, a parameter, a buffer, a tie."""

    def __init__(self, queue):
        self.first = Linear(queue, 3, 3)
        self.blocks = [Sequential(Linear(queue, 3, 3), ReLU()), Linear(queue, 3, 3, bias=False)]
        self.named = {"a": Linear(queue, 3, 2)}
        self.scale = Parameter(Tensor.ones(queue, (1,)))
        self.note = "not a parameter"
        self.register_buffer("steps", Tensor.zeros(queue, (1,)))
        self.register_buffer("scratch", Tensor.zeros(queue, (2,)), persistent=False)
        self.blocks[1].weight = self.first.weight

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.named["a"](x) * self.scale


NAMES = [
    "first.weight", "first.bias", "blocks.0.0.weight", "blocks.0.0.bias", "named.a.weight", "named.a.bias", "scale",
]  # fmt: skip


def test_parameters_are_found_once_in_lists_dicts_and_ties(cpu_queue):
    net = Net(cpu_queue)
    assert [n for n, _ in net.named_parameters()] == NAMES
    assert len(list(net.parameters())) == len(NAMES)
    assert "blocks.1.weight" in dict(net.named_parameters(remove_duplicate=False))
    assert net.first.weight.name == "first.weight"
    assert [n for n, _ in net.named_buffers()] == ["steps", "scratch"]
    assert [n for n, _ in net.named_buffers(persistent=True)] == ["steps"]
    assert [n for n, _ in net.named_modules()] == [
        "",
        "first",
        "blocks.0",
        "blocks.0.0",
        "blocks.0.1",
        "blocks.1",
        "named.a",
    ]
    assert len(list(net.children())) == 4


class Point(NamedTuple):
    left: object
    right: object


class Nested(Module):
    """Parameters and modules in any nesting of lists, tuples and dicts."""

    def __init__(self, queue):
        p = lambda k: Parameter(Tensor.full(queue, (2,), float(k)))  # noqa: E731
        self.grid = [[p(0), p(1)], [p(2)]]
        self.heads = {"a": [p(3), {"b": (p(4), Linear(queue, 2, 2))}]}
        self.pair = Point(p(5), [p(6)])
        self.sizes = {"plain": [1, 2, {3: "x"}], "names": {"a", "b"}}

    def forward(self, x):
        found = [*self.grid[0], *self.grid[1], self.heads["a"][0], self.heads["a"][1]["b"][0], self.pair.left]
        for p in (*found, self.pair.right[0]):
            x = x + p
        return self.heads["a"][1]["b"][1](x)


NESTED = [
    "grid.0.0", "grid.0.1", "grid.1.0", "heads.a.0", "heads.a.1.b.0", "heads.a.1.b.1.weight", "heads.a.1.b.1.bias",
    "pair.0", "pair.1.0",
]  # fmt: skip


def test_parameters_are_found_in_any_nesting(queue):
    net = Nested(queue)
    assert [n for n, _ in net.named_parameters()] == NESTED
    assert [n for n, _ in net.named_modules()] == ["", "heads.a.1.b.1"]
    with Tape() as tape:
        loss = net(Tensor.ones(queue, (3, 2))).sum()
    tape.backward(loss)
    assert all(p.grad is not None for p in net.parameters())
    before = net.heads["a"][1]["b"][1].weight.to_host()
    SGD(net.parameters(), lr=0.5).step()
    assert (net.heads["a"][1]["b"][1].weight.to_host() != before).all()
    assert (net.grid[1][0].to_host() != 2).all()


def test_nested_parameters_are_copied_moved_saved_and_replaced(queue):
    net = Nested(queue)
    twin = copy.deepcopy(net)
    assert not {id(p) for p in net.parameters()} & {id(p) for p in twin.parameters()}
    for p in twin.parameters():
        p.value.fill_(7.0)
    assert net.grid[1][0].to_host().tolist() == [2, 2]
    net.load_state_dict(twin.state_dict())
    assert all((p.to_host() == 7).all() for p in net.parameters())
    assert net.half().pair.right[0].dtype == np.float16
    for path in NESTED:
        other = Parameter(Tensor.zeros(queue, (2,)))
        net.replace(path, other)
        assert dict(net.named_parameters())[path] is other
    assert type(net.pair) is Point and [n for n, _ in net.named_parameters()] == NESTED
    assert net.eval().heads["a"][1]["b"][1].training is False


@pytest.mark.parametrize("kind", [set, frozenset, deque, lambda xs: dict(enumerate(xs)).values(), lambda xs: [set(xs)]])
def test_parameters_in_sets_are_refused(cpu_queue, kind):
    for held in (Parameter(Tensor.ones(cpu_queue, (1,))), Linear(cpu_queue, 1, 1), (Linear(cpu_queue, 1, 1),)):
        net = Module()
        net.blocks = kind([held])
        for ask in (net.parameters, net.modules, net.state_dict, net.eval):
            with pytest.raises(TypeError, match=r"Module: expected .* in lists, tuples or dicts, got a .* in 'blocks"):
                list(ask())
    net.blocks = kind([1, 2])
    assert list(net.parameters()) == []


def test_two_parameters_at_one_path_are_refused(cpu_queue):
    net = Module()
    net.named = {"a": {"b": Parameter(Tensor.ones(cpu_queue, (1,)))}, "a.b": Parameter(Tensor.ones(cpu_queue, (1,)))}
    with pytest.raises(CheckpointError, match=r"Module: expected one parameter at each path, got two at 'named\.a\.b'"):
        net.state_dict()


def test_what_is_set_on_containers_is_found(cpu_queue):
    for container in (ModuleDict({"a": Linear(cpu_queue, 1, 1)}), ModuleList([Linear(cpu_queue, 1, 1)])):
        container.scale = Parameter(Tensor.ones(cpu_queue, (1,)))
        assert len(list(container.parameters())) == 3 and "scale" in container.state_dict()


def test_modes_reach_everything_inside(cpu_queue):
    net = Net(cpu_queue)
    assert net.eval() is net and not net.blocks[0][0].training and not net.training
    net.train()
    assert all(m.training for m in net.modules())
    net.requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())
    seen = []
    net.apply(lambda m: seen.append(type(m).__name__))
    assert seen == ["Linear", "Linear", "ReLU", "Sequential", "Linear", "Linear", "Net"]


def test_gradients_flow_and_are_dropped(queue):
    net = Net(queue)
    with ag.Tape() as tape:
        loss = net(ag.tensor(Tensor.ones(queue, (4, 3)))).sum()
    tape.backward(loss)
    assert all(p.grad is not None and p.grad.shape == p.shape for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())


# -- state -------------------------------------------------------------------------------------------------------------


def test_a_state_goes_into_another_model(queue):
    a, b = Net(queue), Net(queue)
    a.steps.fill_(7)
    weight = b.first.weight
    keys = b.load_state_dict(a.state_dict())
    assert keys.missing_keys == keys.unexpected_keys == []
    x = ag.tensor(Tensor.ones(queue, (2, 3)))
    np.testing.assert_array_equal(a(x).to_host(), b(x).to_host())
    assert b.first.weight is weight is b.blocks[1].weight and b.steps.item() == 7


def test_a_state_is_a_snapshot_with_its_ties(queue):
    net = Net(queue)
    state, live = net.state_dict(), net.state_dict(copy=False)
    assert list(state) == [*NAMES[:4], "blocks.1.weight", *NAMES[4:], "steps"]
    assert state["first.weight"] is state["blocks.1.weight"]
    net.scale.value.fill_(5)
    assert state["scale"].item() == 1 and live["scale"].item() == 5


def test_arrays_are_accepted_and_cast(queue):
    layer = Linear(queue, 2, 1, dtype="float16")
    layer.load_state_dict({"weight": np.array([[1.0, 2.0]]), "bias": [3.0]})
    assert layer.weight.dtype == np.float16 and layer.weight.to_host().tolist() == [[1, 2]]


def test_everything_that_does_not_fit_is_listed_and_nothing_changes(queue):
    net = Sequential(Linear(queue, 2, 2), Linear(queue, 2, 2))
    before = net.state_dict()
    state = {"0.weight": np.zeros((2, 3)), "0.bias": np.zeros(2), "1.weight": np.zeros((2, 2)), "2.weight": np.zeros(1)}
    message = r"shapes differ: 0\.weight: \(2, 3\) for \(2, 2\); missing: 1\.bias; unexpected: 2\.weight"
    with pytest.raises(CheckpointError, match=message):
        net.load_state_dict(state)
    with pytest.raises(CheckpointError, match="shapes differ"):
        net.load_state_dict(state, strict=False)
    for key, value in net.state_dict().items():
        np.testing.assert_array_equal(value.to_host(), before[key].to_host())
    state["0.weight"] = np.ones((2, 2))
    keys = net.load_state_dict(state, strict=False)
    assert keys == (["1.bias"], ["2.weight"])
    np.testing.assert_array_equal(net[0].weight.to_host(), np.ones((2, 2)))


def test_weights_that_are_views_are_written_in_place(queue):
    base = Tensor.zeros(queue, (4, 2))
    layer = Linear(queue, 2, 2, bias=False)
    layer.weight = Parameter(base[2:].T)
    layer.load_state_dict({"weight": np.array([[1, 2], [3, 4]])})
    np.testing.assert_array_equal(base.to_host(), [[0, 0], [0, 0], [1, 3], [2, 4]])


# -- moving ------------------------------------------------------------------------------------------------------------


def test_models_move_between_devices_and_dtypes(queue):
    other = manager.default("cpu").queue
    net, x = Net(queue), np.ones((2, 3), np.float32)
    expected = net(ag.tensor(Tensor.from_host(queue, x))).to_host()
    weight = net.first.weight
    assert net.to(other) is net
    assert net.first.weight is weight is net.blocks[1].weight and net.steps.queue is other
    np.testing.assert_allclose(net(ag.tensor(Tensor.from_host(other, x))).to_host(), expected, rtol=1e-5)
    for narrow, dtype in ((net.half, "float16"), (net.bfloat16, "bfloat16")):
        narrow()
        assert net.first.weight.dtype == dtype and net.steps.dtype == np.float32  # buffers as they are computed with
    assert net.double().scale.dtype == np.float64
    with pytest.raises(DTypeError, match="floating dtype"):
        net.to("int32")


def test_a_copy_shares_nothing_but_the_queue(queue):
    net = Net(queue)
    net.queue = queue
    twin = copy.deepcopy(net)
    assert twin.first.weight is twin.blocks[1].weight is not net.first.weight
    assert twin.queue is queue
    net.scale.value.fill_(9)
    net.steps.fill_(9)
    assert twin.scale.item() == 1 and twin.steps.item() == 0


# -- hooks and printing ------------------------------------------------------------------------------------------------


def test_hooks_see_and_replace(cpu_queue):
    layer, seen = ReLU(), []
    x = Tensor.from_host(cpu_queue, [-1.0, 2.0])
    before = layer.register_forward_pre_hook(lambda module, args: (args[0] * 2.0,))
    after = layer.register_forward_hook(lambda module, args, result: seen.append(result.to_host().tolist()))
    layer(x)
    assert seen == [[0, 4]]
    before.remove()
    before.remove()
    after.remove()
    assert layer(x).to_host().tolist() == [0, 2] and len(seen) == 1
    layer.register_forward_hook(lambda module, args, result: "replaced")
    assert layer(x) == "replaced" and not isinstance(ReLU()(x), str)


def test_a_hook_that_removes_itself_leaves_the_next_one_its_turn(cpu_queue):
    layer, seen, handles = ReLU(), [], {}

    def once(name):
        def hook(*args):
            seen.append(name)
            handles[name].remove()

        return hook

    for register, kind in ((layer.register_forward_pre_hook, "before"), (layer.register_forward_hook, "after")):
        handles[kind] = register(once(kind))
        register(lambda *args, kind=kind: seen.append(f"{kind} always"))
    x = Tensor.from_host(cpu_queue, [1.0])
    layer(x)
    assert seen == ["before", "before always", "after", "after always"]
    layer(x)
    assert seen[4:] == ["before always", "after always"]


def test_a_hook_registered_twice_is_removed_once_a_handle(cpu_queue):
    layer, seen = ReLU(), []
    hook = lambda *args: seen.append(len(seen))  # noqa: E731
    first, second = layer.register_forward_hook(hook), layer.register_forward_hook(hook)
    first.remove()
    first.remove()
    layer(Tensor.from_host(cpu_queue, [1.0]))
    assert seen == [0]
    second.remove()
    layer(Tensor.from_host(cpu_queue, [1.0]))
    assert seen == [0]


def test_hooks_added_or_removed_in_a_call_count_from_the_next(cpu_queue):
    layer, seen = ReLU(), []

    def first(*args):
        seen.append("first")
        last.remove()
        layer.register_forward_hook(lambda *args: seen.append("new"))

    layer.register_forward_hook(first)
    last = layer.register_forward_hook(lambda *args: seen.append("last"))
    layer(Tensor.from_host(cpu_queue, [1.0]))
    assert seen == ["first", "last"]
    layer(Tensor.from_host(cpu_queue, [1.0]))
    assert seen[2:] == ["first", "new"]


def test_hooks_of_a_copied_module_are_its_own(cpu_queue):
    layer, seen = ReLU(), []
    handle = layer.register_forward_hook(lambda *args: seen.append(1))
    twin = copy.deepcopy(layer)
    handle.remove()
    layer(Tensor.from_host(cpu_queue, [1.0]))
    assert seen == []
    twin(Tensor.from_host(cpu_queue, [1.0]))
    assert seen == [1]


def test_the_printed_tree(cpu_queue):
    model = Sequential(Linear(cpu_queue, 784, 256), ReLU(), Sequential(Linear(cpu_queue, 256, 10, bias=False)))
    assert repr(model) == (
        "Sequential(\n"
        "  (0): Linear(in_features=784, out_features=256, bias=True)\n"
        "  (1): ReLU()\n"
        "  (2): Sequential(\n"
        "    (0): Linear(in_features=256, out_features=10, bias=False)\n"
        "  )\n"
        ")"
    )


# -- containers --------------------------------------------------------------------------------------------------------


def test_sequential_is_a_list(cpu_queue):
    model = Sequential([Linear(cpu_queue, 2, 3), ReLU()])
    model.append(Linear(cpu_queue, 3, 1))
    assert (
        len(model) == 3
        and isinstance(model[1], ReLU)
        and [type(m).__name__ for m in model] == ["Linear", "ReLU", "Linear"]
    )
    assert [n for n, _ in model[1:].named_parameters(remove_duplicate=False)] == ["1.weight", "1.bias"]
    with pytest.raises(TypeError, match="expected modules, got function"):
        Sequential(lambda x: x)


@pytest.mark.parametrize("kind", ["linear", "batch_norm"])
def test_sequential_fuses_the_relu_that_follows(queue, kind):
    layer = Linear(queue, 3, 3) if kind == "linear" else BatchNorm1d(queue, 3)
    x = Tensor.from_host(queue, np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32))
    with ag.Tape() as tape:
        y = Sequential(layer, ReLU())(ag.tensor(x))
    assert len(tape) == 1
    relu = ReLU()
    relu.register_forward_hook(lambda *args: None)
    with ag.Tape() as tape:
        z = Sequential(layer, relu)(ag.tensor(x))  # a hook sees every layer, so nothing is fused
    assert len(tape) == 2
    np.testing.assert_allclose(y.to_host(), z.to_host(), rtol=1e-5, atol=1e-6)


def test_module_lists_and_dicts(cpu_queue):
    layers = ModuleList([ReLU()]).append(Linear(cpu_queue, 2, 2)).extend([ReLU()])
    assert len(layers) == 3 and [n for n, _ in layers.named_parameters()] == ["1.weight", "1.bias"]
    named = ModuleDict({"a": Linear(cpu_queue, 2, 2, bias=False)})
    named["b"] = ReLU()
    assert list(named) == ["a", "b"] and len(named) == 2 and "a.weight" in named.state_dict()


def test_a_missing_forward_is_named():
    with pytest.raises(NotImplementedError, match="expected a method forward"):
        Module()(1)


def test_a_device_handle_stands_for_its_queue():
    assert Linear(manager.default("cpu"), 2, 2).weight.queue is manager.default("cpu").queue
