"""Checkpoints: a resumed run is the uninterrupted one."""

import copy

import numpy as np
import pytest

import netcl.autograd as ag
from netcl import nn
from netcl.core.errors import CheckpointError
from netcl.core.tensor import Tensor
from netcl.data import DataLoader, TensorDataset
from netcl.io import load_checkpoint, load_model, save_checkpoint, save_model
from netcl.io.file import read, write
from netcl.optim import SGD, AdamW, CosineAnnealingLR, ReduceLROnPlateau, WarmupCosine

X = np.random.default_rng(0).standard_normal((24, 3)).astype(np.float32)


class Run:
    """A small training run."""

    def __init__(self, queue, kind=AdamW, **settings):
        self.queue = queue
        self.model = nn.Sequential(nn.Linear(queue, 3, 8), nn.Tanh(), nn.BatchNorm1d(queue, 8), nn.Linear(queue, 8, 1))
        if not hasattr(Run, "weights"):
            Run.weights = [p.value.to_host() for p in self.model.parameters()]
        for p, w in zip(self.model.parameters(), Run.weights):
            p.value = Tensor.from_host(queue, w)
        self.opt = kind(self.model.parameters(), lr=0.05, **settings)
        self.schedule = CosineAnnealingLR(self.opt, T_max=10)
        self.loader = DataLoader(TensorDataset(X), 8, shuffle=True, seed=3)
        self.epoch = 0

    @property
    def parts(self):
        return {"optimizer": self.opt, "schedule": self.schedule, "loader": self.loader}

    def train(self, epochs):
        losses = []
        for _ in range(epochs):
            for x in self.loader:
                with ag.Tape() as tape:
                    loss = ag.square(self.model(ag.tensor(Tensor.from_host(self.queue, x))) - 1.0).mean()
                tape.backward(loss)
                self.opt.step()
                self.opt.zero_grad()
                losses.append(loss.item())
            self.schedule.step()
            self.epoch += 1
        return losses


@pytest.mark.parametrize(("kind", "settings"), [(AdamW, {"amsgrad": True}), (SGD, {"momentum": 0.9, "dampening": 0.2})])
def test_a_resumed_run_gives_the_same_losses(queue, tmp_path, kind, settings):
    straight = Run(queue, kind, **settings).train(4)
    path, first = tmp_path / "run.netcl", Run(queue, kind, **settings)
    losses = first.train(2)
    save_checkpoint(first.model, path, **first.parts, epoch=first.epoch, step=6, extra={"best": 0.5, "note": "x"})
    second = Run(queue, kind, **settings)
    second.train(1)  # whatever it did before is forgotten
    found = load_checkpoint(second.model, path, **second.parts)
    assert found == {"epoch": 2, "step": 6, "extra": {"best": 0.5, "note": "x"}}
    assert losses + second.train(2) == straight


def test_a_recorded_step_goes_on_after_a_load(queue, tmp_path):
    def losses(step, run, n):
        return [step(Tensor.from_host(queue, X[:8])).item() for _ in range(n)]

    def compiled(run):
        def fn(x):
            with ag.Tape() as tape:
                loss = ag.square(run.model(ag.tensor(x)) - 1.0).mean()
            tape.backward(loss)
            run.opt.step()
            run.opt.zero_grad()
            return loss

        return ag.CompiledStep(fn)

    path, run = tmp_path / "run.netcl", Run(queue)
    step = compiled(run)
    losses(step, run, 4)
    save_checkpoint(run.model, path, optimizer=run.opt)
    straight = losses(step, run, 4)
    load_checkpoint(run.model, path, optimizer=run.opt)
    assert losses(step, run, 4) == straight


def test_a_checkpoint_opens_as_a_model(queue, tmp_path):
    run, path = Run(queue), tmp_path / "run.netcl"
    run.train(1)
    save_checkpoint(run.model, path, **run.parts)
    model = load_model(path, queue)
    np.testing.assert_array_equal(model[0].weight.to_host(), run.model[0].weight.to_host())
    np.testing.assert_array_equal(model[2].running_mean.to_host(), run.model[2].running_mean.to_host())


def test_a_plateau_before_its_first_step_is_saved(cpu_queue, tmp_path):
    run = Run(cpu_queue)
    save_checkpoint(run.model, tmp_path / "a", schedule=ReduceLROnPlateau(run.opt))
    plateau = ReduceLROnPlateau(run.opt, patience=1)
    load_checkpoint(run.model, tmp_path / "a", schedule=plateau)
    assert plateau.best == float("inf") and plateau.patience == 10


def test_what_does_not_fit_changes_nothing(queue, tmp_path):
    run, path = Run(queue), tmp_path / "run.netcl"
    run.train(1)
    save_checkpoint(run.model, path, optimizer=run.opt)
    other = Run(queue)
    before = [p.value.to_host() for p in other.model.parameters()]

    def unchanged():
        return all((p.value.to_host() == b).all() for p, b in zip(other.model.parameters(), before))

    with pytest.raises(CheckpointError, match="state of schedule, loader, found none"):
        load_checkpoint(other.model, path, **other.parts)
    fewer = SGD([next(iter(other.model.parameters()))])
    with pytest.raises(CheckpointError, match="groups of"):
        load_checkpoint(other.model, path, optimizer=fewer)
    assert unchanged() and not other.opt.state
    with pytest.raises(CheckpointError, match="shapes differ"):
        load_checkpoint(nn.Sequential(nn.Linear(queue, 4, 8), nn.Tanh()), path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="not one"):
        load_checkpoint(other.model, path, optimizer=other.opt)
    assert unchanged() and not other.opt.state
    save_model(run.model, path)
    with pytest.raises(CheckpointError, match="expected a checkpoint, got a model file"):
        load_checkpoint(other.model, path)


class Picky:
    """An object of the user's that notices too late what it cannot take."""

    def __init__(self, limit=10):
        self.count, self.limit, self.seen = 1, limit, []

    def state_dict(self):
        return {"count": self.count, "seen": self.seen}

    def load_state_dict(self, state):
        self.seen, self.count = state["seen"], state["count"]
        if self.count > self.limit:
            raise KeyError("too many")


def test_states_of_another_class_or_without_sense_change_nothing(queue, tmp_path):
    run, path = Run(queue), tmp_path / "run.netcl"
    run.train(1)
    save_checkpoint(run.model, path, **run.parts, rng=Picky())

    def everything(other, picky):
        states = [other.model.state_dict(), other.opt.state_dict()["state"].values()]
        tensors = [*states[0].values(), *(v for s in states[1] for v in s.values() if isinstance(v, Tensor))]
        settings = [{k: v for k, v in g.items() if k != "params"} for g in other.opt.param_groups]
        return [t.to_host().tolist() for t in tensors], settings, vars(other.schedule) | {"optimizer": 0}, vars(picky)

    arrays, metadata = read(path)
    broken = []
    for change in (
        lambda m, a: m["rng"].update(count=99),
        lambda m, a: m["rng"].pop("count"),
        lambda m, a: m.update(loader={}),
        lambda m, a: m.update(loader=[1]),
        lambda m, a: m.update(schedule=3),
        lambda m, a: m["optimizer"].pop("param_groups"),
        lambda m, a: m["optimizer"].update(state=[]),
        lambda m, a: m.update(optimizer="text"),
        lambda m, a: m["optimizer"]["state"].pop(next(iter(m["optimizer"]["state"]))),
        lambda m, a: a.update({"optimizer/nobody/m": np.zeros(2, np.float32)}),
        lambda m, a: m["kinds"].update(optimizer="SGD"),
        lambda m, a: m["kinds"].update(schedule="WarmupCosine"),
        lambda m, a: m["kinds"].pop("loader"),
    ):
        broken.append((copy.deepcopy(metadata), dict(arrays)))
        change(*broken[-1])
    other, picky = Run(queue), Picky(limit=5)
    other.train(1)
    picky.seen.append("kept")
    before = copy.deepcopy(everything(other, picky))
    for plain, tensors in broken:
        write(path, tensors, plain)
        with pytest.raises(CheckpointError, match=r"load_checkpoint|load_state_dict") as caught:
            load_checkpoint(other.model, path, **other.parts, rng=picky)
        assert str(caught.value).isprintable()
        assert everything(other, picky) == before
    write(path, arrays, metadata)
    load_checkpoint(other.model, path, **other.parts, rng=picky)
    assert picky.seen == []


def test_states_of_another_class_are_refused(queue, tmp_path):
    run, path = Run(queue), tmp_path / "run.netcl"
    run.train(1)
    save_checkpoint(run.model, path, optimizer=run.opt, schedule=run.schedule)
    before = run.model[0].weight.to_host()
    run.train(1)
    after = run.model[0].weight.to_host()
    for given in (
        {"optimizer": SGD(run.model.parameters(), momentum=0.9)},
        {"optimizer": run.opt, "schedule": WarmupCosine(run.opt, 2, 10)},
        {"schedule": ReduceLROnPlateau(run.opt)},
    ):
        with pytest.raises(CheckpointError):
            load_checkpoint(run.model, path, **given)
        np.testing.assert_array_equal(run.model[0].weight.to_host(), after)
    load_checkpoint(run.model, path, optimizer=run.opt, schedule=run.schedule)
    np.testing.assert_array_equal(run.model[0].weight.to_host(), before)


def test_states_go_to_other_names_by_position_when_asked(queue, tmp_path):
    def made(name, value):
        model = nn.Linear(queue, 2, 3)
        model.weight.name, model.bias.name = f"{name}.weight", f"{name}.bias"
        optimizer = AdamW(model.parameters())
        for p in model.parameters():
            p.grad = Tensor.full(queue, p.shape, value)
        optimizer.step()
        return model, optimizer

    first, saved = made("head", 2.0)
    save_checkpoint(first, tmp_path / "a", optimizer=saved)
    model, optimizer = made("neck", 1.0)
    with pytest.raises(CheckpointError, match="by_position=True"):
        load_checkpoint(model, tmp_path / "a", optimizer=optimizer)
    assert optimizer.state[model.bias]["m"].to_host().tolist() != saved.state[first.bias]["m"].to_host().tolist()
    load_checkpoint(model, tmp_path / "a", optimizer=optimizer, by_position=True)
    for p, q in zip(model.parameters(), first.parameters(), strict=True):
        assert optimizer.state[p]["m"].to_host().tolist() == saved.state[q]["m"].to_host().tolist()


def test_only_plain_data_is_kept(cpu_queue, tmp_path):
    with pytest.raises(CheckpointError, match="expected plain data"):
        save_checkpoint(nn.ReLU(), tmp_path / "a", extra=object())
    ring = []
    ring.append(ring)
    with pytest.raises(CheckpointError, match="Circular reference"):
        save_checkpoint(nn.ReLU(), tmp_path / "a", extra=ring)
    assert not list(tmp_path.iterdir())
