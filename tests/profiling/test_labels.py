"""What a profile says each launch was for: module, op and direction, eager, compiled and replayed."""

import numpy as np
import pytest

import netcl as nc
from netcl import ag, nn
from netcl.core import callers
from netcl.profiling import KernelProfiler, ProfileContext


def network(queue):
    with nc.device(queue):
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Sequential(nn.Linear(8, 3)))


def batch(queue):
    return nc.ones(queue, (5, 4)), nc.tensor(np.arange(5) % 3, queue=queue)


def labels(prof):
    return {row.label for row in prof.stats(labels=True)}


EXPECTED = {
    ("0 Linear", "linear", "forward"),
    ("0 Linear", "linear", "backward"),
    ("2.0 Linear", "linear", "forward"),
    ("2.0 Linear", "linear", "backward"),
    ("1 Tanh", "tanh", "forward"),
    ("1 Tanh", "tanh", "backward"),
    ("", "cross_entropy", "forward"),
    ("", "SGD", "update"),
}


@pytest.mark.parametrize("recorded", [False, True], ids=["eager", "replayed"])
def test_every_launch_of_a_step_is_named(queue, recorded):
    model, (x, y) = network(queue), batch(queue)
    optimizer = nc.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        with ag.Tape() as tape:
            loss = ag.cross_entropy(model(ag.tensor(x)), ag.tensor(y))
        tape.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = ag.CompiledStep(step) if recorded else step
    with KernelProfiler() as prof:
        for _ in range(2):
            step(x, y)
    if recorded:
        with KernelProfiler() as prof:
            step(x, y)
    assert labels(prof) >= EXPECTED
    assert all(row.label.op for row in prof.stats(labels=True) if row.name not in ("write", "fill"))


def test_ops_outside_autograd_are_named_by_their_function(queue):
    x = nc.ones(queue, (3, 4))
    with KernelProfiler() as prof:
        nc.ops.sum(x)
        nc.ops.matmul(x, x.T)
    assert {("", "sum", "forward"), ("", "matmul", "forward")} <= labels(prof)


def test_rows_by_kernel_add_up_to_rows_by_label(queue):
    x = nc.ones(queue, (3, 4))
    with ProfileContext() as prof:
        ag.exp(x), ag.exp(ag.exp(x))
        nc.ops.exp(x)
    found, by_label = prof.kernels.stats(), prof.kernels.stats(labels=True)
    assert sum(r.calls for r in found) == sum(r.calls for r in by_label) == prof.kernels.totals.calls
    assert sum(r.share for r in by_label) == pytest.approx(1) and all(r.share <= 1 for r in by_label)
    assert all(r.of_peak is None or r.of_peak <= 1 for r in prof.kernels.stats(with_peak=True))
    assert "direction" in prof.table() and "exp" in prof.table() and "direction" not in prof.kernels.table()


def test_nothing_is_labelled_without_a_profiler(queue):
    with KernelProfiler(), KernelProfiler():
        assert callers.labeller is not None
    assert callers.labeller is None and callers.label() is None
    with ag.Tape() as tape:
        ag.exp(ag.tensor(nc.ones(queue, 3), requires_grad=True))
    assert tape.records[0].module == ""
