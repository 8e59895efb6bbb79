"""Every command with wrong input: one line on stderr, status 2 for arguments and 1 for the rest, no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from netcl.cli.main import main
from netcl.core.device import manager

TRAIN = ["train", "digits", "--device", "cpu", "--epochs", "1"]
needs_opencl = pytest.mark.skipif(not manager.profiles, reason="no OpenCL device here")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder with what the cases name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NETCL_TUNING", str(tmp_path / "tuning.json"))
    (tmp_path / "dir").mkdir()
    (tmp_path / "s.py").write_text("print('hi')\n")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "flat.json").write_text('{"matmul_cpu": 3}')
    (tmp_path / "text.json").write_text("{")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def run(arguments, capsys):
    """(status, stderr) of the command in this process."""
    try:
        status = main(arguments)
    except SystemExit as leave:
        status = leave.code
    return status, capsys.readouterr().err


WRONG_ARGUMENTS = [
    ["nonsense"],
    ["--nope"],
    ["devices", "more"],
    ["devices", "--nope"],
    ["devices", "-x"],
    ["devices", ""],
    ["devices", "0"],
    ["devices", "--device", "cpu"],
    ["devices", "--help=x"],
    ["train"],
    ["train", "nonsense"],
    ["train", "digits", "more"],
    *[[*TRAIN, "--out", out] for out in ("/", ".", "", "..", "dir", "dir/", "dir/.", "pipe", "no/such/x", "x" * 400)],
    [*TRAIN, "--out", os.devnull],
    [*TRAIN, "--out", "a\0b"],
    *[[*TRAIN, "--epochs", n] for n in ("0", "-1", "x", "", "1.5", "1e3", "nan")],
    *[[*TRAIN, "--batch-size", n] for n in ("0", "-1", "x", "", "1.5")],
    *[[*TRAIN, "--seed", n] for n in ("x", "", "1.5", "nan")],
    [*TRAIN, "--out"],
    ["tune", "--nope"],
    *[["tune", "--size", n] for n in ("0", "-1", "x", "", "1.5", "1e3", "nan")],
    ["tune", "--device"],
    ["profile"],
    ["profile", "--nope", "s.py"],
    *[["profile", "--keep", n, "s.py"] for n in ("-1", "x", "", "1.5")],
    *[["profile", "--limit", n, "s.py"] for n in ("-1", "x", "", "1.5")],
]
WRONG_WORK = [
    *[[*TRAIN, "--batch-size", n, "--out", "a"] for n in ("1434", "100000", str(10**30))],
    *[["train", "digits", "--device", d, "--out", "a"] for d in ("toaster", "", "gpu:99", "cpu:x", "99", "no:such")],
    *[["tune", "--device", d] for d in ("toaster", "", "gpu:99", "cpu", "99", "no:such")],
    ["tune", "nonsense"],
    ["tune", "matmul_cpu", "nonsense"],
    *[["profile", s] for s in ("", "no.py", "dir", ".", "/", os.devnull, "pipe", "x" * 400)],
    *[["profile", "-m", m] for m in ("nope", "", ".", "a..b", "netcl.core", "1/2")],
    *[["profile", "--trace", t, "s.py"] for t in ("", "/", ".", "dir", "no/such/t.json", "x" * 400)],
]


@pytest.mark.parametrize("arguments", WRONG_ARGUMENTS, ids=lambda a: " ".join(a)[:60] or "nothing")
def test_wrong_arguments(folder, capsys, arguments):
    before = sorted(folder.iterdir())
    status, err = run(arguments, capsys)
    assert status == 2 and err.count("\n") == 1 and err.startswith("netcl") and "--help`" in err
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("arguments", WRONG_WORK, ids=lambda a: " ".join(a)[:60])
def test_wrong_input_found_while_running(folder, capsys, arguments):
    before = sorted(folder.iterdir())
    status, err = run(arguments, capsys)
    assert status == 1 and err.count("\n") == 1 and err.startswith("netcl: ") and "expected" in err
    assert sorted(folder.iterdir()) == before


@needs_opencl
@pytest.mark.parametrize("size", ["1", "99999999999", str(10**30)])
def test_sizes_of_tuning(folder, capsys, monkeypatch, size):
    monkeypatch.setattr("netcl.cli.tune.configs", lambda kernel: [])
    status, err = run(["tune", "--size", size, "--device", "0"], capsys)
    if size == "1":
        assert (status, err) == (0, "")
    else:
        assert status == 1 and "tune: expected --size of at most" in err and err.count("\n") == 1


@needs_opencl
@pytest.mark.parametrize("table", ["dir", "list.json", "flat.json", "text.json", "s.py/x.json", "x" * 400])
def test_tuning_tables_that_cannot_be_written(folder, capsys, monkeypatch, table):
    from netcl.profiling import AutoTuner

    def search(self, kernel, rows, prepare, queue=None):
        self.configs[kernel] = {"a device": found}
        return found, {"{}": 1.0}

    found = {"MC": 96, "KC": 128, "NP": 2}
    monkeypatch.setattr(AutoTuner, "search", search)
    monkeypatch.setenv("NETCL_TUNING", str(folder / table))
    before = sorted(folder.iterdir())
    status, err = run(["tune", "matmul_cpu", "--device", "0", "--size", "8"], capsys)
    assert status == 1 and err.count("\n") == 1 and "tuning table" in err
    assert sorted(folder.iterdir()) == before


# -- output that cannot be written -------------------------------------------------------------------------------------

full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
OUTPUTS = [
    ["--help"],
    ["--version"],
    ["devices"],
    ["devices", "--help"],
    ["train", "--help"],
    [*TRAIN, "--batch-size", "512"],
    [*TRAIN, "--batch-size", "512", "--quiet"],
    ["profile", "quiet.py"],
    ["tune", "--help"],
]


@full
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("arguments", OUTPUTS, ids=lambda a: " ".join(a))
def test_output_to_a_full_device(tmp_path, arguments, unbuffered):
    (tmp_path / "quiet.py").write_text("x = 1\n")
    source = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONPATH": str(source)}
    with open("/dev/full", "w") as sink:
        done = subprocess.run(
            [sys.executable, "-m", "netcl", *arguments], stdout=sink, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
            env=env, timeout=300,
        )  # fmt: skip
    assert done.returncode == 1 and done.stderr == "netcl: No space left on device.\n"


def test_a_script_that_fails_is_shown_as_python_shows_it(folder, capsys):
    script = folder / "bad.py"
    script.write_text("def f():\n    raise OSError(28, 'none left')\nf()\n")
    assert main(["profile", str(script)]) == 1
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    assert lines[0] == "Traceback (most recent call last):" and f'File "{script}", line 3, in <module>' in lines[1]
    assert lines[-1] == "OSError: [Errno 28] none left" and "device busy" in printed.out
    script.write_text("def(\n")
    assert main(["profile", str(script)]) == 1
    err = capsys.readouterr().err
    assert "SyntaxError" in err and "runpy" not in err and "cli/profile" not in err
