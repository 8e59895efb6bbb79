"""Files that nobody saved: wrong types, sizes and descriptions are refused in one line, before memory is taken."""

import copy
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import netcl.autograd as ag
from netcl import nn
from netcl.core.errors import CheckpointError
from netcl.core.memory import BufferPool
from netcl.core.tensor import Tensor
from netcl.io import load_checkpoint, load_model, save_checkpoint, save_model
from netcl.io.file import read, write
from netcl.optim import Adam


class Tied(nn.Module):
    """Two layers that may share a weight."""

    def __init__(self, queue, size=3, tied=True):
        self.embed, self.head = nn.Linear(queue, size, size), nn.Linear(queue, size, size)
        if tied:
            self.head.weight = self.embed.weight


# -- odd sizes and types -----------------------------------------------------------------------------------------------


class Numbers(nn.Module):
    """A parameter and buffers without axes, and ones without elements."""

    def __init__(self, queue, fill):
        self.scale = nn.Parameter(Tensor.full(queue, (), fill))
        self.none = nn.Parameter(Tensor.zeros(queue, (0, 3)))
        self.register_buffer("count", Tensor.full(queue, (), int(fill), "int64"))
        self.register_buffer("seen", Tensor.full(queue, (), fill > 0, "bool"))


def test_tensors_without_axes_come_back(queue, tmp_path):
    path, model = tmp_path / "m.netcl", Numbers(queue, 2.0)
    save_model(model, path)
    assert {k: v.shape for k, v in load_file(path).items()} == {"scale": (), "none": (0, 3), "count": (), "seen": ()}
    for other in (load_model(path, queue, classes=[Numbers]), load_model(path, model=Numbers(queue, 0.0))):
        assert (other.scale.to_host(), other.count.to_host(), other.seen.to_host()) == (2.0, 2, True)
        assert other.scale.shape == other.count.shape == () and other.count.dtype == "int64"
    save_checkpoint(model, path, optimizer=(opt := Adam(model.parameters())))
    with ag.Tape() as tape:
        loss = model.scale * 3.0
    tape.backward(loss)
    opt.step()
    after = {k: v.to_host() for k, v in opt.state[model.scale].items() if k != "step"}
    save_checkpoint(model, path, optimizer=opt)
    other = Numbers(queue, 0.0)
    load_checkpoint(other, path, optimizer=(theirs := Adam(other.parameters())))
    assert all((theirs.state[other.scale][k].to_host() == v).all() for k, v in after.items())


@pytest.mark.parametrize("dtype", ["int32", "int8", "bool", "int16", "complex64", "uint64"])
def test_integers_are_not_taken_for_weights(queue, tmp_path, dtype):
    path, model = tmp_path / "m.netcl", nn.Linear(queue, 2, 2)
    save_model(model, path)
    arrays, metadata = read(path)
    arrays = {name: array.astype(dtype) for name, array in arrays.items()}
    before = model.weight.to_host()
    if dtype == "complex64":  # safetensors has it, we write no such files
        header = b'{"bias":{"dtype":"C64","shape":[2],"data_offsets":[0,16]},'
        header += b'"weight":{"dtype":"C64","shape":[2,2],"data_offsets":[16,48]}}'
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(48))
    else:
        write(path, arrays, metadata)
        with pytest.raises(CheckpointError, match=f"weight: {dtype} for float32"):
            load_model(path, queue)
    with pytest.raises(CheckpointError, match=f"weight: {dtype} for float32"):
        load_model(path, model=model)
    np.testing.assert_array_equal(model.weight.to_host(), before)


def test_a_state_of_types_that_cannot_be_written_changes_nothing(queue):
    model = Numbers(queue, 1.0)
    good = {"scale": np.array(5, np.int32), "none": np.zeros((0, 3)), "seen": np.array(True)}
    with pytest.raises(CheckpointError, match="types differ: count: float32 for int64"):
        model.load_state_dict({**good, "count": np.array(2.5, np.float32)})
    with pytest.raises(CheckpointError, match="types differ: count: uint16 for int64"):
        model.load_state_dict({**good, "count": np.array(2, np.uint16)})
    assert model.scale.to_host() == 1
    model.load_state_dict({**good, "count": np.array(2, np.int32)})
    assert model.scale.to_host() == 5 and model.count.to_host() == 2


# -- architectures that nobody saved -----------------------------------------------------------------------------------

LARGE = [
    {"class": "Linear", "args": {"in_features": 20000, "out_features": 20000, "bias": True}},
    {"class": "Embedding", "args": {"num_embeddings": 10**9, "embedding_dim": 1}},
    {"class": "Conv2d", "args": {"in_channels": 1, "out_channels": 1, "kernel_size": [30000, 30000]}},
    {"class": "LayerNorm", "args": {"normalized_shape": [10**5, 10**5]}},
    {"class": "BatchNorm1d", "args": {"num_features": 10**9, "affine": False}},
    {"class": "MLP", "args": {"input_dim": 1, "hidden_dim": 1, "output_dim": 1, "num_hidden_layers": 10**9}},
    {"class": "MLP", "args": {"input_dim": 0, "hidden_dim": 0, "output_dim": 0, "num_hidden_layers": 10**9}},
    {"class": "ResNet", "args": {"counts": [10**9]}},
    {"class": "ResNet50", "args": {}},
    {"class": "Sequential", "children": [{"class": "Linear", "args": {"in_features": 300, "out_features": 300}}] * 99},
    {"class": "CrossEntropyLoss", "args": {"weight": {"tensor": [10**9]}}},
    {"class": "ReLU", "args": {}, "changes": [[[], "weight", {"parameter": [10**9]}]]},
    {"class": "ReLU", "args": {}, "changes": [[[], "mean", {"buffer": [10**9], "dtype": "int64"}]]},
    {"class": "Linear", "args": {"in_features": 10**400, "out_features": 1}},
]


@pytest.mark.parametrize("spec", LARGE, ids=lambda spec: spec["class"])
def test_no_more_memory_is_taken_than_the_file_accounts_for(queue, tmp_path, monkeypatch, spec):
    path = tmp_path / "m.netcl"
    write(path, {"weight": np.zeros(4, np.float32)}, {"kind": "model", "architecture": spec, "aliases": {}})
    made, buffer = [], BufferPool.buffer
    monkeypatch.setattr(BufferPool, "buffer", lambda self, nbytes: made.append(nbytes) or buffer(self, nbytes))
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError) as caught:
            load_model(path, queue)
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
    assert str(caught.value).isprintable() and sum(made) < 4 << 20


def test_a_load_takes_a_small_multiple_of_the_file(cpu_queue, tmp_path):
    path = tmp_path / "m.netcl"
    save_model(nn.MLP(cpu_queue, 512, 512, 512, 8), path)
    tracemalloc.start()
    load_model(path, cpu_queue)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * path.stat().st_size


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["Linear", "ReLU"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["class", "args", "children", "changes", "id", "own", "x"]), inner, max_size=4
        )
        | st.tuples(
            st.sampled_from(
                ["module", "same", "type", "list", "dict", "array", "dtype", "queue", "parameter", "tensor"]
            ),
            inner,
        ).map(lambda pair: {pair[0]: pair[1]})
    ),
    max_leaves=12,
)


def parts(value, place=()):
    """Where the parts of a description are."""
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from parts(item, (*place, key))


def refused_or_loaded(path, queue, model):
    for target in (None, model):
        try:
            load_model(path, queue, classes=[Tied], model=target)
        except CheckpointError as error:
            text = str(error)
            assert text.isprintable() and len(text) < 2000


@pytest.fixture(scope="module")
def saved(cpu_queue, tmp_path_factory):
    """A file with one of everything, as arrays and plain data."""
    path, norm = tmp_path_factory.mktemp("saved") / "m.netcl", nn.BatchNorm1d(cpu_queue, 2)
    model = nn.Sequential(norm, nn.MLP(cpu_queue, 2, 2, 2), norm, nn.ModuleDict({"a": nn.Conv2d(cpu_queue, 1, 1, 1)}),
                          Tied(cpu_queue), nn.CrossEntropyLoss(Tensor.ones(cpu_queue, (2,))))  # fmt: skip
    model[1].layers.layers[1], model[4].extra, model[4].head.bias = nn.GELU("tanh"), [1, {"a": None}], None
    model[4].head.weight = nn.Parameter(Tensor.ones(cpu_queue, (3, 3)))
    save_model(model, path)
    return *read(path), model


@given(value=json_values, at=st.integers(0, 10**6))
@settings(max_examples=80)
def test_any_part_of_a_description_may_be_anything(cpu_queue, tmp_path, saved, value, at):
    arrays, metadata, model = saved
    changed = copy.deepcopy(metadata)
    places = [place for place in parts(changed) if place and place[0] != "version"]
    *outer, last = places[at % len(places)]
    owner = changed
    for key in outer:
        owner = owner[key]
    owner[last] = value
    write(tmp_path / "m", arrays, changed)
    refused_or_loaded(tmp_path / "m", cpu_queue, model)


@given(value=json_values, name=st.sampled_from(["architecture", "aliases", "modules", "kind"]))
@settings(max_examples=40)
def test_a_description_may_be_anything(cpu_queue, tmp_path, saved, value, name):
    arrays, metadata, model = saved
    write(tmp_path / "m", arrays, {**metadata, name: value})
    refused_or_loaded(tmp_path / "m", cpu_queue, model)


MALFORMED = [
    None, [], 5, "Linear", {}, {"class": None}, {"class": []}, {"class": "Linear"}, {"class": "Linear", "args": []},
    {"class": "Linear", "args": {"in_features": 2}},
    {"class": "Linear", "args": {"in_features": "2", "out_features": 2}},
    {"class": "Linear", "args": {"in_features": 2, "out_features": 2, "color": 1}},
    {"class": "Linear", "args": {"in_features": 2, "out_features": 2, "dtype": "int32"}},
    {"class": "Linear", "args": {"in_features": 2, "out_features": 2, "dtype": "text"}},
    {"class": "Linear", "args": {"in_features": -2, "out_features": 2}},
    {"class": "Linear", "args": {"in_features": 2.5, "out_features": 2}},
    {"class": "Linear", "args": {"self": 1, "in_features": 2, "out_features": 2}}, {"class": "Linear", "children": []},
    {"class": "Sequential", "children": [None]}, {"class": "Sequential", "children": {"a": 1}},
    {"class": "Sequential", "children": "text"}, {"class": "Module", "args": {}}, {"class": "Parameter", "args": {}},
    {"class": "ReLU", "args": {"x": 1}}, {"class": "ResNet", "args": {"block": {"type": "Linear"}}},
    {"class": "ResNet", "args": {"block": {"type": "Parameter"}}}, {"class": "ResNet", "args": {"block": 3}},
    {"class": "ResNet", "args": {"counts": 7}}, {"class": "MLP", "args": {"activation": {"module": {"class": "ReLU"}}}},
    {"class": "ReLU", "args": {}, "changes": [[[], "forward", 1]]}, {"class": "ReLU", "args": {}, "changes": [1]},
    {"class": "ReLU", "args": {}, "changes": [[["a"], "b", 1]]}, {"class": "ReLU", "args": {}, "changes": 3},
    {"class": "ReLU", "args": {}, "changes": [[[], "_before", [1]]]}, {"class": "ReLU", "args": {}, "id": []},
    {"class": "ReLU", "args": {}, "changes": [[[], "__class__", {"type": "GELU"}]]},
    {"class": "ReLU", "args": {}, "changes": [[[], "a", {"same": {"id": 0, "keys": []}}]]},
    {"class": "ReLU", "args": {}, "changes": [[[], "a", {"array": [1], "dtype": "S1000000000"}]]},
    {"class": "Dropout", "args": {"p": 7}}, {"class": "GroupNorm", "args": {"num_groups": 0, "num_channels": 1}},
    {"class": "Conv2d", "args": {"in_channels": 0, "out_channels": 0, "kernel_size": [], "groups": 0}},
]  # fmt: skip


@pytest.mark.parametrize("spec", MALFORMED, ids=repr)
def test_malformed_architectures_are_refused_in_one_line(queue, tmp_path, spec):
    path, model = tmp_path / "m", nn.Linear(queue, 2, 2)
    arrays = {k: v.to_host() for k, v in model.state_dict().items()}
    write(path, arrays, {"kind": "model", "architecture": spec, "aliases": {}})
    with pytest.raises(CheckpointError) as caught:
        load_model(path, queue)
    assert str(caught.value).isprintable()
    assert load_model(path, model=model) is model  # weights alone are good


def test_deep_nesting_is_refused(cpu_queue, tmp_path):
    nested = '{"class":"Sequential","children":[' * 5000 + "]}" * 5000
    text = f'{{"version":1,"crc32":0,"kind":"model","aliases":{{}},"architecture":{nested}}}'
    save_file({}, tmp_path / "m", {"netcl": text})
    with pytest.raises(CheckpointError, match="recursion"):
        load_model(tmp_path / "m", cpu_queue)
