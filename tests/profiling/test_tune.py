"""Tuning: what is tried, what is chosen, and the table it writes."""

import json

import numpy as np
import pytest

from netcl.core.backend.opencl import launch
from netcl.core.device.profile import profile_of
from netcl.core.errors import DeviceError, NetclError
from netcl.core.tensor import Tensor
from netcl.ops import elementwise as E
from netcl.profiling import AutoTuner, Autotuner, AutotuneResult, WorkGroupTuner, tune
from netcl.runtime.cache import cacher, get_kernel

SOURCE = "__kernel void twice(__global float* a, int n) { int i = get_global_id(0); if (i < n) a[i] *= 2; }"


@pytest.fixture
def kernel(cl_queue):
    return get_kernel(cl_queue, SOURCE, "twice")


def test_the_fastest_local_size_is_found(cl_queue, kernel):
    x = Tensor.ones(cl_queue, (4096,))
    result = WorkGroupTuner(kernel, global_size=(4096,), args=(x.buffer, 4096)).tune(cl_queue)
    assert isinstance(result, AutotuneResult) and result.best_local_size in result.tried
    assert result.runtime_us == min(result.tried.values()) > 0
    assert set(result.tried) == {(1 << i,) for i in range(9) if 1 << i <= profile_of(cl_queue).max_work_group}
    chosen = WorkGroupTuner(kernel, (4096,), args=(x.buffer, 4096)).tune(cl_queue, candidates=[4, (3,), (16,)])
    assert set(chosen.tried) == {(4,), (16,)}
    launch(kernel, cl_queue, (4096,), result.best_local_size, x.buffer, 4096)


def test_launches_do_not_take_numbers_of_the_tuner(cl_queue, kernel):
    """Launches leave numbers that they have set before as they are, so nobody else may set them."""
    x, tuned, y = (Tensor.ones(cl_queue, (256,)) for _ in range(3))
    launch(kernel, cl_queue, (256,), (1,), x.buffer, 64)
    WorkGroupTuner(kernel, (256,), args=(tuned.buffer, 256)).tune(cl_queue, [1])
    launch(kernel, cl_queue, (256,), (1,), y.buffer, 64)
    assert y.to_host().tolist() == [2.0] * 64 + [1.0] * 192


def test_a_raw_kernel_with_its_arguments_set(cl_queue):
    import pyopencl as cl

    raw, x = (
        cl.Kernel(cacher.get_program(cl_queue.context, SOURCE, cl_queue.device), "twice"),
        Tensor.ones(cl_queue, (64,)),
    )
    raw.set_args(x.buffer, np.int32(64))
    assert WorkGroupTuner(raw, (64,)).tune(cl_queue, [8, 64]).best_local_size in {(8,), (64,)}


def test_no_candidate_fits(cl_queue, kernel):
    with pytest.raises(DeviceError, match="divides"):
        WorkGroupTuner(kernel, (7,), args=(Tensor.ones(cl_queue, (7,)).buffer, 7)).tune(cl_queue, [2, 4])


def test_results_are_kept_by_device_kernel_and_size(cl_queue, kernel):
    tuner, x = Autotuner(device=cl_queue), Tensor.ones(cl_queue, (256,))
    tuner.add("twice", kernel, (256,), args=(x.buffer, 256), candidates=[1, 2])
    results = tuner.tune_all()
    assert list(results) == [(profile_of(cl_queue).name, "twice", (256,))]
    found = tuner.lookup("twice", (256,))
    assert found is tuner.lookup("twice", (256,), cl_queue) and found is tuner.tune_all(cl_queue)[next(iter(results))]
    assert tuner.lookup("twice", (512,)) is None
    tuner.clear()
    assert tuner.results == {} and tuner.tune_all(cl_queue) == {}
    with pytest.raises(DeviceError, match="expected a queue"):
        AutoTuner().tune_all()


def test_configs_are_searched_and_saved_beside_what_was_there(queue, tmp_path, monkeypatch):
    x, path, work = Tensor.ones(queue, (1 << 12,)), tmp_path / "new" / "tuning.json", []

    def measure(timer, run, runs):  # counted, not timed: a busy machine must not choose
        work.clear()
        run()
        return float(len(work))

    monkeypatch.setattr(tune.EventTimer, "measure", measure)

    def prepare(config):
        if config["WG"] == 3:
            raise DeviceError("does not fit")

        def run():
            for _ in range(config["WG"]):
                work.append(E.exp(x))

        return run

    tuner = AutoTuner(queue)
    config, tried = tuner.search("mine", [{"WG": 60}, {"WG": 1}, {"WG": 3}], prepare)
    assert config == {"WG": 1} and tried == {"{'WG': 60}": 60.0, "{'WG': 1}": 1.0}
    tuner.save(path)
    device = profile_of(queue).name
    assert json.loads(path.read_text()) == {"mine": {device: {"WG": 1}}}
    path.write_text(json.dumps({"mine": {"gpu": {"WG": 8}, device: {"WG": 5}}, "other": {"cpu": {"TM": 2}}}))
    tuner.save(path)
    assert json.loads(path.read_text()) == {
        "mine": {"gpu": {"WG": 8}, device: {"WG": 1}}, "other": {"cpu": {"TM": 2}}
    }  # fmt: skip
    assert [p.name for p in path.parent.iterdir()] == ["tuning.json"]
    path.write_text("not json")
    with pytest.raises(NetclError, match="repair or delete"):
        tuner.save(path)
    with pytest.raises(DeviceError, match="expected a config"):
        tuner.search("mine", [{"WG": 3}], prepare)
