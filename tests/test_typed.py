"""What an editor and mypy see: a user's script passes mypy --strict, and results have types."""

import importlib.util
from pathlib import Path

import pytest
from mypy import api

SCRIPT = Path(__file__).parent / "typed" / "user_script.py"
REVEALED = """
import netcl as nc
from netcl import ag

x = nc.randn(2, 3)
reveal_type(x.sum())
reveal_type(x.sum(dim=1).mean(0).float())
reveal_type((x @ x.T).argmax(axis=1))
reveal_type(x.split(1)[0])
reveal_type(ag.softmax(x, dim=1).sum())
reveal_type(ag.tensor(x) * 2.0)
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What mypy says of the script and of the expressions, in one run that starts from mypy's own kept results."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "revealed.py").write_text(REVEALED, encoding="utf-8")
    root = SCRIPT.parents[2]
    # the options of `make check`, so that what it has looked at is kept
    options = ["--config-file", str(root / "pyproject.toml"), "--cache-dir", str(root / ".mypy_cache")]
    out, error, _ = api.run([*options, str(SCRIPT), str(folder / "revealed.py")])
    assert not error
    return out.splitlines()


def test_a_users_script_passes_mypys_strict_rules(report):
    assert [line for line in report if ": error:" in line] == []


def test_results_have_types_for_completion(report):
    shown = [line.rpartition('"')[0].rpartition('"')[2] for line in report if "Revealed type" in line]
    names = [name.rpartition(".")[2] for name in shown]
    assert names == ["Tensor"] * 4 + ["Node"] * 2


def test_the_script_runs(queue, tmp_path):
    import netcl as nc

    spec = importlib.util.spec_from_file_location("user_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with nc.device(queue):
        trained, loaded = module.main(tmp_path)
    assert trained == loaded > 0.8
