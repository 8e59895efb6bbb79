"""Cells: numbers read at each use."""

import threading

import numpy as np
import pytest

from netcl.core import live
from netcl.core.live import Cell, each_step, fresh, resolve, unrecorded
from netcl.core.tensor import Tensor
from netcl.ops import elementwise


class Recorder:
    def __init__(self):
        self.thread, self.paused, self.steps = threading.get_ident(), 0, []

    def on_step(self, fn):
        self.steps.append(fn)


@pytest.fixture
def recorder(monkeypatch):
    found = Recorder()
    monkeypatch.setattr(live, "active", found)
    return found


def test_a_cell_holds_a_number_or_computes_it():
    step = [1]
    assert (float(Cell(0.5)), int(Cell(3)), Cell(lambda: 2 * step[0]).value) == (0.5, 3, 2)
    cell = Cell(lambda: step[0])
    step[0] = 7
    assert cell.value == 7 and repr(cell) == "Cell(7)"
    cell.value = 1
    assert cell.value == 1 and [10, 20][cell] == 20


def test_cells_stand_for_numbers_in_ops(queue):
    x, cell = Tensor.from_host(queue, np.arange(4, dtype=np.float32)), Cell(2.0)
    np.testing.assert_array_equal(elementwise.mul(x, cell).to_host(), [0, 2, 4, 6])
    cell.value = 3
    np.testing.assert_array_equal(elementwise.sub(cell, x).to_host(), [3, 2, 1, 0])
    np.testing.assert_array_equal(elementwise.leaky_relu(-x, slope=Cell(lambda: 0.5)).to_host(), [0, -0.5, -1, -1.5])


def test_each_step_runs_now_and_registers_with_a_recording(recorder):
    ran = []
    each_step(lambda: ran.append(1))
    assert ran == [1] and len(recorder.steps) == 1
    draws = iter(range(10, 20))
    cell = fresh(lambda: next(draws))
    assert cell.value == 10
    recorder.steps[1]()
    assert cell.value == 11


def test_nothing_is_recorded_inside_unrecorded_or_on_another_thread(recorder):
    with unrecorded():
        assert live.recording() is None
        each_step(lambda: None)
    assert live.recording() is recorder and not recorder.steps
    seen = []
    thread = threading.Thread(target=lambda: seen.append(live.recording()))
    thread.start()
    thread.join()
    assert seen == [None]


def test_unrecorded_without_a_recording_does_nothing():
    with unrecorded():
        assert live.recording() is None


def test_resolve_reads_cells_in_attributes():
    assert resolve({"lr": Cell(1), "scalars": (Cell(lambda: 2), 3.0), "axis": (0, 1), "name": "x"}) == {
        "lr": 1, "scalars": (2, 3.0), "axis": (0, 1), "name": "x",
    }  # fmt: skip
