"""The file behind models and checkpoints: damage is seen, a save appears at once and only where a file may be."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from netcl import nn
from netcl.core.errors import CheckpointError
from netcl.io import load_model, save_checkpoint, save_model
from netcl.io.draft import replacing
from netcl.io.file import read, write

ARRAYS = {
    "half": np.arange(3, dtype=np.float16), "number": np.array(2.5, np.float32), "none": np.zeros((0, 4), np.int64),
    "wide": np.arange(6, dtype=np.float64).reshape(2, 3).T, "mask": np.array([True, False]),
    "brain": np.array([1.5, -2], ml_dtypes.bfloat16),
}  # fmt: skip

# Written by netcl 0.1: a checksum over the tensors alone.
VERSION_1 = (
    b'\xc8\x01\x00\x00\x00\x00\x00\x00{"__metadata__":{"netcl":"{\\"kind\\": \\"model\\", \\"architecture\\": '
    b'{\\"class\\": \\"Sequential\\", \\"children\\": [{\\"class\\": \\"Linear\\", \\"args\\": {\\"in_features\\": 2, '
    b'\\"out_features\\": 1, \\"bias\\": true}}, {\\"class\\": \\"LeakyReLU\\", \\"args\\": {\\"negative_slope\\": 0.25'
    b'}}]}, \\"aliases\\": {}, \\"version\\": 1, \\"crc32\\": 459130608}"},"0.bias":{"dtype":"F32","shape":[1],'
    b'"data_offsets":[0,4]},"0.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[4,12]}}       '
    b"\x00\x00\x00?\x00\x00\xc0?\x00\x00\x00\xc0"
)


# -- contents ----------------------------------------------------------------------------------------------------------


def test_arrays_come_back_and_other_programs_read_them(tmp_path):
    write(tmp_path / "a", ARRAYS, {"kind": "test", "text": 'say "netcl.crc32":"00000000" \N{SNOWMAN}'})
    arrays, metadata = read(tmp_path / "a")
    assert metadata["kind"] == "test" and "\N{SNOWMAN}" in metadata["text"]
    for found in (arrays, load_file(tmp_path / "a")):
        assert set(found) == set(ARRAYS)
        for name, array in ARRAYS.items():
            assert found[name].dtype == array.dtype and found[name].shape == array.shape
            np.testing.assert_array_equal(found[name].astype(np.float64), array.astype(np.float64))


def test_equal_contents_make_equal_files(tmp_path):
    write(tmp_path / "a", ARRAYS, {"n": 1})
    write(tmp_path / "b", dict(reversed(ARRAYS.items())), {"n": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_every_bit_pattern_of_16_bit_floats_is_kept(tmp_path, dtype):
    bits = np.arange(1 << 16, dtype=np.uint16)
    write(tmp_path / "a", {"x": bits.view(dtype)}, {})
    np.testing.assert_array_equal(read(tmp_path / "a")[0]["x"].view(np.uint16), bits)


def test_tensors_lie_at_multiples_of_their_item_size(tmp_path):
    write(tmp_path / "a", ARRAYS, {})
    data = (tmp_path / "a").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    assert size % 8 == 0
    for name, array in ARRAYS.items():
        assert header[name]["data_offsets"][0] % array.dtype.itemsize == 0


def test_reading_and_writing_take_no_copy_of_the_file(tmp_path):
    arrays = {str(i): np.zeros(1 << 18, np.float32) for i in range(16)}
    tracemalloc.start()
    write(tmp_path / "a", arrays, {})
    written = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    read(tmp_path / "a")
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert written < 4 << 20 and taken < (16 + 4) << 20


def test_what_a_safetensors_file_cannot_hold_is_refused(tmp_path):
    for arrays, message in (
        ({"a": np.array(["text"])}, "a of type <U4"),
        ({"__metadata__": np.zeros(2)}, "__metadata__"),
        ({"\ud800": np.zeros(2)}, "surrogates"),
    ):
        with pytest.raises(CheckpointError, match=message):
            write(tmp_path / "a", arrays, {})
    with pytest.raises(CheckpointError, match="bytes of plain data"):
        write(tmp_path / "a", {}, {"extra": "x" * 100_000_000})
    assert not os.listdir(tmp_path)


# -- damage ------------------------------------------------------------------------------------------------------------


def flipped(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_flipped_bit_anywhere_is_refused(cpu_queue, tmp_path):
    model, path = nn.Sequential(nn.Linear(cpu_queue, 40, 3), nn.LeakyReLU(0.25)), tmp_path / "m.netcl"
    save_model(model, path)
    data = path.read_bytes()
    head = 8 * (8 + int.from_bytes(data[:8], "little"))
    for bit in [*range(head), *range(head, 8 * len(data), 41)]:
        path.write_bytes(flipped(data, bit))
        with pytest.raises(CheckpointError, match=r"^load: expected .*m\.netcl.*damaged.*\.$"):
            read(path)
    for bit in range(3, 8 * len(data), 331):  # one path leads to all that is in a file
        path.write_bytes(flipped(data, bit))
        with pytest.raises(CheckpointError):
            load_model(path, model=model)


def test_bytes_put_in_left_out_or_exchanged_are_refused(tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "a"
    write(path, ARRAYS, {"note": "x" * 50})
    data = path.read_bytes()
    for _ in range(300):
        i, j = sorted(rng.integers(0, len(data), 2))
        for bad in (data[:i] + data[j + 1 :], data[:i] + rng.bytes(j - i + 1) + data[j + 1 :], data[:j] + data[i:]):
            if bad != data:
                path.write_bytes(bad)
                with pytest.raises(CheckpointError):
                    read(path)


def test_files_of_version_1_are_read_and_their_tensors_checked(queue, tmp_path):
    path = tmp_path / "old.netcl"
    path.write_bytes(VERSION_1)
    model = load_model(path, queue)
    assert model[0].weight.to_host().tolist() == [[1.5, -2]] and model[0].bias.to_host().tolist() == [0.5]
    assert model[1].negative_slope == 0.25
    for bit in range(8 * (len(VERSION_1) - 12), 8 * len(VERSION_1)):
        path.write_bytes(flipped(VERSION_1, bit))
        with pytest.raises(CheckpointError, match="damaged"):
            load_model(path, queue)


def test_a_file_that_lost_its_checksum_is_refused(tmp_path):
    path = tmp_path / "a"
    write(path, ARRAYS, {})
    path.write_bytes(path.read_bytes().replace(b"netcl.crc32", b"other.crc32"))
    with pytest.raises(CheckpointError, match="damaged"):
        read(path)


# -- where a file goes -------------------------------------------------------------------------------------------------


def test_only_regular_files_are_replaced(cpu_queue, tmp_path):
    model = nn.ReLU()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for path, kind in (
            (tmp_path / "folder", "a folder"), (tmp_path / "pipe", "a pipe"), (tmp_path / "socket", "a socket"),
            ("/dev/null", "a device"), ("/dev/full", "a device"), ("/", "a folder"), (".", "a folder"),
            ("..", "a folder"), (f"{tmp_path}/new/", "the name of a folder"), ("", "an empty name"),
        ):  # fmt: skip
            with pytest.raises(CheckpointError, match=f"save: expected the path of a file, got {kind}"):
                save_model(model, path)
            with pytest.raises(CheckpointError, match="load: expected a file at"):
                load_model(path, cpu_queue)
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode) and stat.S_ISSOCK(os.stat(tmp_path / "socket").st_mode)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("path", ["a\0b", "x" * 300, "y/" * 3000 + "z", "no/such/folder/file", "line\nbreak/file"])
def test_paths_that_the_system_refuses_are_named_on_one_line(cpu_queue, tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    for act in (lambda: save_model(nn.ReLU(), path), lambda: load_model(path, cpu_queue)):
        with pytest.raises(CheckpointError) as caught:
            act()
        assert str(caught.value).isprintable() and len(str(caught.value)) < 1000


def test_a_name_as_long_as_the_system_allows_can_be_saved(tmp_path):
    for name in ("n" * 255, "\N{SNOWMAN}" * 85):
        save_model(nn.ReLU(), tmp_path / name)
    save_model(nn.ReLU(), os.fsencode(tmp_path / "bytes"))
    assert len(os.listdir(tmp_path)) == 3


def test_links_are_followed(tmp_path):
    (tmp_path / "far").mkdir()
    for name in ("there", "dangling"):
        (tmp_path / name).symlink_to(tmp_path / "far" / name)
    (tmp_path / "far" / "there").write_bytes(b"old")
    for name in ("there", "dangling"):
        save_model(nn.ReLU(), tmp_path / name)
        assert (tmp_path / name).is_symlink() and load_file(tmp_path / "far" / name) == {}
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(CheckpointError, match="expected to write"):
        save_model(nn.ReLU(), tmp_path / "loop")


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_permissions_are_those_of_any_new_file(tmp_path, mask):
    before = os.umask(mask)
    try:
        save_model(nn.ReLU(), tmp_path / "m")
        save_checkpoint(nn.ReLU(), tmp_path / "c")
    finally:
        os.umask(before)
    for name in "mc":
        assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o666 & ~mask
    os.chmod(tmp_path / "m", 0o640)
    save_model(nn.ReLU(), tmp_path / "m")
    assert stat.S_IMODE(os.stat(tmp_path / "m").st_mode) == 0o640  # what the user chose stays


def test_threads_save_to_one_path(tmp_path):
    path = tmp_path / "m"

    def save(i):
        write(path, {"x": np.full(5000, i)}, {"i": i})
        arrays, metadata = read(path)
        assert (arrays["x"] == metadata["i"]).all()
        return i

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(save, range(50))) == list(range(50))
    assert os.listdir(tmp_path) == ["m"]


def test_the_draft_of_a_killed_save_is_removed_by_the_next(tmp_path):
    path = tmp_path / "m.netcl"
    script = (
        "import os, signal, sys, numpy as np\nfrom netcl.io import file\n"
        "os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)\n"
        "file.write(sys.argv[1], {'x': np.zeros(1000)}, {})\n"
    )
    for _ in range(2):
        killed = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
        assert killed.returncode == -signal.SIGKILL
        (draft,) = tmp_path.iterdir()  # that of the first is gone when the second writes
        assert draft.suffix == ".draft"
    near = [
        tmp_path / name for name in (".other.netcl.0123456789abcdef.draft", ".m.netcl.notes.draft", "m.netcl.draft")
    ]
    for file in near:
        file.write_bytes(b"")
    save_model(nn.ReLU(), path)
    assert sorted(tmp_path.iterdir()) == sorted([*near, path])


def test_the_draft_of_a_save_under_way_stays(tmp_path):
    path = tmp_path / "m"
    with replacing(path) as slow:
        slow.write(b"first")
        save_model(nn.ReLU(), path)
        assert os.path.exists(slow.name)
    assert path.read_bytes() == b"first" and os.listdir(tmp_path) == ["m"]


def test_the_checksum_is_in_the_metadata(tmp_path):
    write(tmp_path / "a", ARRAYS, {})
    with safe_open(tmp_path / "a", "numpy") as file:
        assert len(file.metadata()["netcl.crc32"]) == 8
