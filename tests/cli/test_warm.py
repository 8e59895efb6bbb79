"""`netcl warm`: what it builds is found by the next process, and errors in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from netcl import nn
from netcl.cli.main import main
from netcl.core.device import manager
from netcl.io import save_model

pytestmark = pytest.mark.skipif(not manager.profiles, reason="no OpenCL device here")
REPO = Path(__file__).resolve().parents[2]
MAKERS = """
from netcl import nn
def image(): return nn.Sequential(nn.Conv2d(None, 1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(None, 256, 3))
def on(queue): return nn.Linear(queue, 4, 2)
def words(): return nn.Sequential(nn.Embedding(None, 9, 4), nn.Linear(None, 4, 2))
def fails(): raise KeyError("weights")
def number(): return 3
def bare(): return nn.ReLU()
THREE = 3
"""
LATER = """
import sys, netcl, numpy as np
from netcl.runtime.cache import cacher
model = netcl.load(sys.argv[1])
with netcl.no_grad():
    model(netcl.tensor(np.ones((8, 6), np.float32))).to_host()
print(cacher.stats.builds, cacher.stats.disk_hits)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a module of models, a model's file and a file that is none, and an own cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NETCL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NETCL_CACHE_MB", "64")
    (tmp_path / "makers_of_models.py").write_text(MAKERS)
    (tmp_path / "text.netcl").write_text("text")
    (tmp_path / "breaks_at_import.py").write_text("1 / 0")
    save_model(nn.Sequential(nn.Linear(None, 6, 5), nn.GELU(), nn.Linear(None, 5, 3)), tmp_path / "mlp.netcl")
    return tmp_path


def test_a_later_start_finds_what_was_built(folder):
    env = {**os.environ, "PYTHONPATH": str(REPO), "POCL_CACHE_DIR": ""}
    command = [sys.executable, "-m", "netcl", "warm", "mlp.netcl", "--batch", "8", "--json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    result = json.loads(done.stdout)
    assert result["programs_built"] > 0 and result["kernels"] and str(folder / "cache") in result["folders"]
    assert result["batches"] == [8] and result["seconds"] > 0
    later = subprocess.run(
        [sys.executable, "-c", LATER, "mlp.netcl"], env=env, capture_output=True, text=True, check=True, timeout=240
    )
    built, found = map(int, later.stdout.split())
    assert built == 0 and found > 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["makers_of_models:image", "--shape", "1,8,8", "--batch", "2,3"],
        ["makers_of_models:on", "--train", "--loss", "mse_loss", "--optimizer", "SGD", "--options", "momentum=0.9"],
        ["makers_of_models:on", "--train", "--jit", "--dtype", "float16"],
        ["makers_of_models:words", "--tokens", "--shape", "5"],
        ["mlp.netcl", "--train"],
    ],
)
def test_models(folder, capsys, arguments):
    assert main(["warm", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == "" and out.startswith(f"{arguments[0]} on ") and " kernels of " in out
    assert f"kept in {folder / 'cache'}\n" in out


WRONG = [  # arguments, and what the line says
    (["no.netcl"], "found none"),
    (["text.netcl"], "damaged or not one"),
    (["resnet19"], "expected a file, one of ResNet18"),
    (["no_such_module_here:f"], "module that can be imported"),
    (["breaks_at_import:f"], "ZeroDivisionError"),
    (["makers_of_models:none"], "has no such name"),
    (["makers_of_models:THREE"], "is of type int"),
    (["makers_of_models:number"], "to return a Module, got int"),
    (["makers_of_models:fails"], "KeyError: 'weights'"),
    (["makers_of_models:image"], "expected --shape"),
    (["makers_of_models:image", "--shape", "3,8,8"], "1 channels"),
    (["makers_of_models:words", "--shape", "5"], "ndices"),
    (["makers_of_models:on", "--train", "--loss", "mine"], "--loss among cross_entropy"),
    (["makers_of_models:on", "--train", "--optimizer", "Best"], "--optimizer among Adadelta"),
    (["makers_of_models:on", "--train", "--options", "speed=3"], "does not take {'speed': 3.0}"),
    (["makers_of_models:bare", "--shape", "3", "--train"], "model with parameters"),
    (["makers_of_models:on", "--device", "cpu"], "NumPy has no kernels"),
    (["makers_of_models:on", "--device", "nope"], "got 'nope'"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG, ids=[" ".join(a) for a, _ in WRONG])
def test_wrong_input(folder, capsys, arguments, said):
    assert main(["warm", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == "" and said in err and err.count("\n") == 1 and "Traceback" not in err


SPLIT = ("", "a:b more", "a:b --shape 3,x", "a:b --shape 0", "a:b --shape ,", "a:b --batch 0", "a:b --batch 1.5")


@pytest.mark.parametrize(
    "line", [*SPLIT, "a:b --dtype int8", "a:b --options lr", "a:b --options lr=x", "a:b --options"]
)
def test_wrong_arguments(capsys, line):
    with pytest.raises(SystemExit) as leave:
        main(["warm", *line.split()])
    err = capsys.readouterr().err
    assert leave.value.code == 2 and err.startswith("netcl") and err.count("\n") == 1


def test_nothing_would_be_kept(folder, capsys, monkeypatch):
    monkeypatch.setenv("NETCL_CACHE_MB", "0")
    assert main(["warm", "makers_of_models:on"]) == 1
    assert "NETCL_CACHE_MB is 0" in capsys.readouterr().err
