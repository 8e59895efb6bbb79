"""Whatever is done to a model, every way of running it goes on like the plain one, and like PyTorch."""

import os
from pathlib import Path

import numpy as np
import pytest
import training_programs as programs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from safetensors.numpy import load_file
from training_runs import OPTIMIZERS, Run, compare

from netcl.core.device import manager

FIXTURE = Path(__file__).parent / "fixtures" / "training_state.safetensors"  # made by tools/fixtures/training_state.py
CLOSE = 1e-9  # everything is float64
EXAMPLES = 200 if os.environ.get("NETCL_TEST_ALL") == "1" else 15

WAYS = (*programs.WAYS, "checkpoint")
layers, seeds, rows = st.sampled_from(programs.LAYERS), st.integers(0, 99), st.sampled_from((4, 5))


@pytest.mark.parametrize("way", [None, *WAYS], ids=["mixed", "eager", "jit", "recorded", "checkpoint"])
@pytest.mark.parametrize("seed", range(12))
def test_training_goes_on_as_in_pytorch(queue, seed, way, tmp_path):
    wanted = load_file(FIXTURE)
    run = Run(queue, "sgd" if seed % 2 else "adamw", way, tmp_path)
    for i, (name, given) in enumerate(programs.program(seed)):
        found = programs.observe(run.act(name, given))
        where = f"action {i} of program {seed}: {name} {given}"
        np.testing.assert_allclose(found, wanted[f"{seed}.{i}"], rtol=1e-7, atol=1e-9, err_msg=where)


class Training(RuleBasedStateMachine):
    """Two runs of the same actions: one plain, one as the action says."""

    device = "cpu"
    folder = Path()

    def __init__(self):
        super().__init__()
        queue = manager.default(self.device).queue
        self.plain = Run(queue, self.kind, "eager", self.folder / "plain")
        self.other = Run(queue, self.kind, None, self.folder / "other")
        for run in (self.plain, self.other):
            run.folder.mkdir(exist_ok=True)

    def both(self, name, **given):
        """The action in both runs; everything seen is equal."""
        wanted = self.plain.act(name, given)
        compare(self.other.act(name, given), wanted, f"{name} {given}", CLOSE)

    @rule(
        way=st.sampled_from(WAYS),
        rows=rows,
        seed=seeds,
        without=st.sampled_from(("", "first.weight")),
    )
    def step(self, way, rows, seed, without):
        self.both("step", way=way, rows=rows, seed=seed, without=without)

    @rule(way=st.sampled_from(programs.WAYS[:2]), rows=rows, seed=seeds, grad=st.booleans())
    def look(self, way, rows, seed, grad):
        self.both("look", way=way, rows=rows, seed=seed, grad=grad)

    @rule(child=st.sampled_from(programs.CHILDREN), on=st.booleans())
    def training(self, child, on):
        self.both("training", child=child, on=on)

    @rule(layer=layers, seed=seeds)
    def replace(self, layer, seed):
        self.both("replace", layer=layer, seed=seed)

    @rule(layer=layers, seed=seeds)
    def write(self, layer, seed):
        self.both("write", layer=layer, seed=seed)

    @rule(layer=layers, on=st.booleans())
    def freeze(self, layer, on):
        self.both("freeze", layer=layer, on=on)

    @rule(lr=st.sampled_from(programs.RATES))
    def rate(self, lr):
        self.both("rate", lr=lr)

    @rule(factor=st.sampled_from((0.5, 1.5, 2.0)))
    def factor(self, factor):
        self.both("factor", factor=factor)

    @rule()
    def reload(self):
        self.both("reload")


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_every_way_of_running_goes_on_as_the_plain_one(kind, device, tmp_path):
    machine = type("Training", (Training,), {"device": device, "kind": kind, "folder": tmp_path})
    case = machine.TestCase
    case.settings = settings(max_examples=EXAMPLES, stateful_step_count=20, deadline=None)
    case("runTest").runTest()
