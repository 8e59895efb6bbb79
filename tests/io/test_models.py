"""Model files: what goes in comes out, and a bad file changes nothing. Field cases CKP-*."""

import json
import os
import pickle
import zipfile

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import netcl.autograd as ag
from netcl import nn
from netcl.core.errors import CheckpointError
from netcl.core.tensor import Tensor
from netcl.io import load_model, save_model
from netcl.io.file import write
from netcl.optim import SGD


class Tied(nn.Module):
    """An input table and an output layer that may be one weight."""

    def __init__(self, queue, size=5, width=2, tied=True):
        self.size, self.width, self.tied = size, width, tied
        self.embed = nn.Linear(queue, width, size, bias=False)
        self.head = nn.Linear(queue, width, size, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(x) + self.embed(x)


def network(queue):
    return nn.Sequential(
        nn.Conv2d(queue, 1, 2, 3, stride=(1, 2), padding=1, bias=False), nn.BatchNorm2d(queue, 2), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.25), nn.Linear(queue, 8, 3), nn.LayerNorm(queue, 3),
        nn.Sequential(nn.Linear(queue, 3, 4, bias=False), nn.GELU("tanh"), nn.LeakyReLU(0.2)),
        nn.MLP(queue, 4, 5, 2, num_hidden_layers=2, activation=nn.Tanh),
    )  # fmt: skip


def images(queue):
    return ag.tensor(Tensor.from_host(queue, np.random.default_rng(0).standard_normal((4, 1, 4, 8)).astype(np.float32)))


# -- round trips -------------------------------------------------------------------------------------------------------


def test_a_model_is_built_from_its_file(queue, tmp_path):
    model, path = network(queue), tmp_path / "exactly.this.name"
    model(images(queue))  # running statistics move
    save_model(model, path)
    assert os.listdir(tmp_path) == [path.name]
    other = load_model(path, queue)
    assert repr(other) == repr(model)
    model.eval(), other.eval()
    np.testing.assert_array_equal(other(images(queue)).to_host(), model(images(queue)).to_host())


def test_a_file_goes_to_another_backend(queue, cpu_queue, tmp_path):
    model = network(queue).eval()
    save_model(model, tmp_path / "m.netcl")
    other = load_model(tmp_path / "m.netcl", cpu_queue).eval()
    expected = model(images(queue)).to_host()
    np.testing.assert_allclose(other(images(cpu_queue)).to_host(), expected, rtol=1e-4, atol=1e-5)
    assert load_model(tmp_path / "m.netcl")[0].weight.shape == (2, 1, 3, 3)  # a queue is chosen when none is given


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_dtypes_are_kept(cpu_queue, tmp_path, dtype):
    save_model(nn.Linear(cpu_queue, 2, 3, dtype=dtype), tmp_path / "m.netcl")
    assert load_model(tmp_path / "m.netcl", cpu_queue).weight.dtype == dtype


def test_bfloat16_is_the_upper_half_of_each_float_in_files(queue, tmp_path):
    """Files of other programs, byte by byte as the format has them: BF16, little-endian."""
    values = np.array([[1.5, -2.0], [3.0e38, 1e-40]], np.float32)
    bits = (values.view(np.uint32) >> 16).astype("<u2")
    header = b'{"weight":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}}'
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bits.tobytes())
    model = load_model(path, model=nn.Linear(queue, 2, 2, bias=False, dtype="bfloat16"))
    np.testing.assert_array_equal(model.weight.to_host().view(np.uint16), bits)
    wide = load_model(path, model=nn.Linear(queue, 2, 2, bias=False))
    np.testing.assert_array_equal(wide.weight.to_host().view(np.uint32), bits.astype(np.uint32) << 16)
    save_model(model, tmp_path / "m.netcl")
    assert b'"dtype":"BF16"' in (tmp_path / "m.netcl").read_bytes()


def test_a_model_of_ones_own_class(queue, tmp_path):
    model, path = Tied(queue, size=3, tied=False), tmp_path / "m.netcl"
    save_model(model, path)
    with pytest.raises(CheckpointError, match=r"netcl\.nn classes, got 'Tied'"):
        load_model(path, queue)
    for other in (load_model(path, queue, classes=[Tied]), load_model(path, model=Tied(queue, size=3, tied=False))):
        np.testing.assert_array_equal(other.head.weight.to_host(), model.head.weight.to_host())
    with pytest.raises(CheckpointError, match=r"shapes differ: embed\.weight: \(3, 2\) for \(4, 2\)"):
        load_model(path, model=Tied(queue, size=4, tied=False))


def test_weights_of_another_origin_go_into_a_model(queue, tmp_path):
    save_file({"weight": np.ones((2, 2), np.float32), "bias": np.zeros(2, np.float32)}, tmp_path / "w.safetensors")
    model = load_model(tmp_path / "w.safetensors", model=nn.Linear(queue, 2, 2))
    assert model.weight.to_host().tolist() == [[1, 1], [1, 1]]
    with pytest.raises(CheckpointError, match="weights only"):
        load_model(tmp_path / "w.safetensors", queue)


def test_the_file_is_a_safetensors_file(cpu_queue, tmp_path):
    model = nn.Linear(cpu_queue, 2, 2)
    save_model(model, tmp_path / "m.netcl")
    np.testing.assert_array_equal(load_file(tmp_path / "m.netcl")["weight"], model.weight.to_host())


# -- field cases -------------------------------------------------------------------------------------------------------


class Marker:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_reading_runs_no_code(cpu_queue, tmp_path):
    marker, path = tmp_path / "marker", tmp_path / "bad.netcl"
    path.write_bytes(pickle.dumps(Marker(marker)))
    files = [path.read_bytes()]
    np.savez(tmp_path / "objects.npz", a=np.array([Marker(marker)], object))
    files.append((tmp_path / "objects.npz").read_bytes())
    with zipfile.ZipFile(tmp_path / "traversal.npz", "w") as archive:
        archive.writestr("../../escaped.npy", b"x")
    files.append((tmp_path / "traversal.npz").read_bytes())
    for data in files:
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=r"expected a \.netcl or safetensors file"):
            load_model(path, cpu_queue)
    assert not marker.exists()


def test_a_file_cannot_name_other_classes(cpu_queue, tmp_path):
    path = tmp_path / "m.netcl"
    for name in ("print", "Sequential.forward", "init", "Handle"):
        write(path, {}, {"kind": "model", "architecture": {"class": name, "args": {}}, "aliases": {}})
        with pytest.raises(CheckpointError, match=r"netcl\.nn classes"):
            load_model(path, cpu_queue)


def test_views_are_saved_as_they_look(queue, tmp_path):
    base = Tensor.from_host(queue, np.array([[1, 2, 3], [4, 5, 6]], np.float32))

    class Views(nn.Module):
        def __init__(self):
            self.turned, self.column = nn.Parameter(base.T), nn.Parameter(base[:, 1])

    path = tmp_path / "views.netcl"
    save_model(Views(), path)
    arrays = load_file(path)
    assert arrays["turned"].tolist() == [[1, 4], [2, 5], [3, 6]] and arrays["column"].tolist() == [2, 5]
    assert sum(a.nbytes for a in arrays.values()) == 4 * 8
    model = load_model(path, model=Views())
    save_model(model, path)  # to the path it came from
    assert load_file(path)["turned"].tolist() == [[1, 4], [2, 5], [3, 6]]


def test_tied_weights_are_stored_once_and_stay_tied(queue, tmp_path):
    model, path = Tied(queue), tmp_path / "tied.netcl"
    save_model(model, path)
    assert list(load_file(path)) == ["embed.weight"]
    x = Tensor.ones(queue, (1, 2))
    for other in (load_model(path, model=Tied(queue)), load_model(path, queue, classes=[Tied])):
        assert other.head.weight is other.embed.weight
        opt = SGD(other.parameters(), lr=0.1)
        with ag.Tape() as tape:
            loss = other(ag.tensor(x)).sum()
        tape.backward(loss)
        opt.step()
        np.testing.assert_allclose(other.head.weight.to_host(), model.head.weight.to_host() - 0.2, rtol=1e-5, atol=1e-6)
    untied = load_model(path, model=Tied(queue, tied=False))
    assert untied.head.weight is not untied.embed.weight
    np.testing.assert_array_equal(untied.head.weight.to_host(), untied.embed.weight.to_host())


def test_after_a_load_both_names_are_one_parameter(queue, tmp_path):
    class Sum(nn.Module):
        def __init__(self):
            self.a = nn.Parameter(Tensor.ones(queue, (1,)))
            self.b = self.a

        def forward(self):
            return self.a * 1.0 + self.b * 2.0

    save_model(Sum(), tmp_path / "m.netcl")
    model = load_model(tmp_path / "m.netcl", model=Sum())
    opt = SGD(model.parameters(), lr=0.1)
    assert len(opt.param_groups[0]["params"]) == 1
    with ag.Tape() as tape:
        loss = model()
    tape.backward(loss)
    assert model.a.grad.item() == 3
    opt.step()
    assert model.b.item() == pytest.approx(0.7) and model.a is model.b


# -- damage ------------------------------------------------------------------------------------------------------------


def damaged(data):
    yield data[: len(data) // 2]
    yield data[:4]
    yield b""
    yield os.urandom(200)
    yield data[:20] + b"\xff" + data[21:]
    yield data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]
    yield data + b"x"


def test_a_damaged_file_is_named_and_changes_nothing(queue, tmp_path):
    model, path = nn.Linear(queue, 4, 4), tmp_path / "m.netcl"
    save_model(model, path)
    data, target = path.read_bytes(), nn.Linear(queue, 4, 4)
    before = target.weight.to_host()
    for bad in damaged(data):
        path.write_bytes(bad)
        with pytest.raises(CheckpointError, match=r"m\.netcl"):
            load_model(path, model=target)
    np.testing.assert_array_equal(target.weight.to_host(), before)


def test_a_file_of_another_version_or_shape_is_refused(cpu_queue, tmp_path):
    path = tmp_path / "m.netcl"
    for metadata, message in (
        ({"version": 9}, "expected a file of version 2 or 1, got 9"),
        ({"version": 1, "crc32": 0}, "without its architecture"),
        ([], "not a table"),
        ({"version": 1, "crc32": 0, "aliases": {"a": "b"}, "architecture": {}}, "without its architecture"),
    ):
        save_file({}, path, {"netcl": json.dumps(metadata)})
        with pytest.raises(CheckpointError, match=message):
            load_model(path, cpu_queue)
    with pytest.raises(CheckpointError, match="found none"):
        load_model(tmp_path / "absent.netcl", cpu_queue)


def test_a_failed_save_leaves_the_old_file(cpu_queue, tmp_path, monkeypatch):
    path = tmp_path / "m.netcl"
    save_model(nn.Linear(cpu_queue, 2, 2), path)
    data = path.read_bytes()
    monkeypatch.setattr("netcl.io.file.os.replace", lambda a, b: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(CheckpointError, match="disk full"):
        save_model(nn.Linear(cpu_queue, 3, 3), path)
    assert path.read_bytes() == data and os.listdir(tmp_path) == ["m.netcl"]
    with pytest.raises(CheckpointError, match="expected to write"):
        save_model(nn.ReLU(), tmp_path / "no" / "folder.netcl")
    with pytest.raises(TypeError, match="expected a Module, got dict"):
        save_model({}, path)
