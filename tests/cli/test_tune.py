"""netcl tune: what it tries, what it keeps, and what it refuses."""

import json

import pytest

from netcl.cli import tune
from netcl.cli.main import main
from netcl.core.device import manager
from netcl.core.queue import state_of
from netcl.kernels import tuning


@pytest.fixture
def overlay(tmp_path, monkeypatch):
    path = tmp_path / "tuning.json"
    monkeypatch.setenv("NETCL_TUNING", str(path))
    tuning.tables.cache_clear()
    yield path
    tuning.tables.cache_clear()


def test_the_best_config_is_saved_and_used(cl_queue, overlay, monkeypatch, capsys):
    handle = next(h for h in manager.handles if h.queue == cl_queue)
    kernel = "matmul_cpu" if handle.profile.kind == "cpu" else "matmul_gpu"
    usual = tuning.parameters(kernel, handle.profile)
    other = {**usual, next(iter(usual)): 2 * next(iter(usual.values()))}
    seen = []

    def search(self, name, configs, prepare, queue=None):
        for config in configs:
            with tune.trial(name, config, handle.queue):
                seen.append(tuning.parameters(name, handle.profile))
        prepare(other)()
        self.configs[name] = {handle.profile.name: other}
        return other, {str(usual): 2.0, str(other): 1.0}

    monkeypatch.setattr("netcl.profiling.AutoTuner.search", search)
    number = str(list(manager.handles).index(handle))
    monkeypatch.setattr(manager, "default", lambda request: handle)
    assert main(["tune", kernel, "--device", number, "--size", "64"]) == 0
    told = capsys.readouterr().out
    assert "2.00 times" in told and "routes, with costs" in told and "matmul  > tiled" in told
    assert json.loads(overlay.read_text()) == {kernel: {handle.profile.name: other}}
    assert len(seen) == 1 + len(tune.configs(kernel)) and not state_of(cl_queue).plans
    tuning.tables.cache_clear()
    assert tuning.parameters(kernel, handle.profile) == tuning.fit(kernel, other, handle.profile)


def test_a_dry_run_writes_nothing(cl_queue, overlay, monkeypatch, capsys):
    monkeypatch.setattr(tune, "configs", lambda kernel: [])
    assert main(["tune", "--dry-run", "--size", "32", "--device", "0"]) == 0
    assert "1 tried" in capsys.readouterr().out and not overlay.exists()


def test_what_cannot_be_tuned_is_refused(overlay, capsys):
    assert main(["tune", "nonsense"]) == 1
    assert "expected kernels among" in capsys.readouterr().err
    assert main(["tune", "--device", "cpu"]) == 1
    assert "NumPy" in capsys.readouterr().err
