"""`netcl train digits`: accuracy, resuming, interruption, reports."""

import numpy as np
import pytest

from netcl.cli import train
from netcl.cli.main import main
from netcl.core.tensor import Tensor
from netcl.data.loader import DataLoader
from netcl.io import load_model


def command(path, *more, device="cl:cpu"):
    return ["train", "digits", "--device", device, "--out", str(path), *more]


@pytest.fixture(scope="module")
def device():
    """A CPU driver where there is one, else NumPy."""
    from netcl.core.device import manager

    return "cl:cpu" if any(p.kind == "cpu" for p in manager.profiles) else "cpu"


def weights(path, queue):
    return [p.value.to_host() for p in load_model(path, queue).parameters()]


def test_the_demo_reaches_98_percent(device, tmp_path, capsys):
    path = tmp_path / "digits.netcl"
    assert main(command(path, device=device)) == 0
    text = capsys.readouterr().out
    accuracy = float(text.split("test accuracy ")[-1].split("%")[0])
    assert accuracy >= 98
    assert "epoch  25/25" in text and "images/s" in text and "seen as" in text and "compile" in text
    assert "40,394 weights" in text and f"saved {path}" in text
    assert [p.name for p in tmp_path.iterdir()] == ["digits.netcl"]


def test_the_saved_model_sees_digits(cpu_queue, device, tmp_path, capsys):
    path = tmp_path / "d.netcl"
    assert main(command(path, "--epochs", "3", "--batch-size", "32", "--quiet", device=device)) == 0
    assert capsys.readouterr().out.count("\n") == 1
    model = load_model(path, cpu_queue).eval()
    from netcl.data import datasets

    images, labels = datasets.digits("test").arrays
    found = model(Tensor.from_host(cpu_queue, images)).to_host().argmax(1)
    assert (found == labels).mean() > 0.8


def test_the_same_seed_gives_the_same_model(cpu_queue, device, tmp_path):
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        main(command(tmp_path / name, "--epochs", "1", "--quiet", "--seed", seed, device=device))
    a, b, c = (weights(tmp_path / name, cpu_queue) for name in "abc")
    assert all((x == y).all() for x, y in zip(a, b))
    assert not all((x == y).all() for x, y in zip(a, c))


def test_an_interrupted_run_goes_on_and_ends_the_same(cpu_queue, device, tmp_path, capsys, monkeypatch):
    straight, path = tmp_path / "straight.netcl", tmp_path / "cut.netcl"
    options = ("--epochs", "4")
    main(command(straight, *options, device=device))
    whole = DataLoader.__iter__

    def cut(self):
        for i, batch in enumerate(whole(self)):
            if self.epoch == 3 and i == 5:
                raise KeyboardInterrupt
            yield batch

    with monkeypatch.context() as patch:
        patch.setattr(DataLoader, "__iter__", cut)
        assert main(command(path, *options, device=device)) == 130
    checkpoint = tmp_path / "cut.netcl.checkpoint"
    assert checkpoint.exists() and not path.exists()
    assert "interrupted after 2 of 4 epochs" in capsys.readouterr().out.replace("\n", " ")
    assert main(command(path, "--epochs", "5", device=device)) == 1  # not the settings it was started with
    assert "--fresh to start over" in capsys.readouterr().err
    assert main(command(path, *options, device=device)) == 0
    assert "2 of 4 epochs done" in capsys.readouterr().out.replace("\n", " ") and not checkpoint.exists()
    for a, b in zip(weights(straight, cpu_queue), weights(path, cpu_queue)):
        np.testing.assert_array_equal(a, b)


def test_fresh_ignores_a_checkpoint(tmp_path, capsys):
    (tmp_path / "d.netcl.checkpoint").write_bytes(b"broken")
    assert main(command(tmp_path / "d.netcl", "--epochs", "1", device="cpu")) == 1
    assert "d.netcl.checkpoint" in capsys.readouterr().err
    assert main(command(tmp_path / "d.netcl", "--epochs", "1", "--fresh", "--quiet", device="cpu")) == 0


def test_bad_arguments(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(command(tmp_path / "d", "--epochs", "0", device="cpu"))
    assert stop.value.code == 2 and "--epochs: expected a whole number of at least 1" in capsys.readouterr().err
    assert main(command(tmp_path / "d", device="toaster")) == 1
    assert "toaster" in capsys.readouterr().err
    assert train.HELP
