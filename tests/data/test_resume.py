"""A run that is saved inside an epoch goes on with the next batch, as if it had never stopped."""

import json

import numpy as np
import pytest

import netcl.autograd as ag
from netcl import nn
from netcl.core.errors import CheckpointError
from netcl.core.tensor import Tensor
from netcl.data import DataLoader, Dataset, DistributedSampler, TensorDataset
from netcl.io import load_checkpoint, save_checkpoint
from netcl.ops.create import random as randomness
from netcl.optim import AdamW, WarmupCosine

N = 23


class Drawn:
    """A sampler with a generator of its own, which its state holds."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return N

    def __iter__(self):
        return iter(self.rng.integers(0, N, N).tolist())

    def state_dict(self):
        return self.rng.bit_generator.state

    def load_state_dict(self, state):
        self.rng.bit_generator.state = state


class Forgetful:
    """A sampler whose order cannot be made again."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return N

    def __iter__(self):
        return iter(self.rng.permutation(N))


LOADERS = {
    "in order": lambda **o: DataLoader(TensorDataset(np.arange(N)), 4, **o),
    "shuffled": lambda **o: DataLoader(TensorDataset(np.arange(N)), 4, shuffle=True, seed=3, **o),
    "short": lambda **o: DataLoader(TensorDataset(np.arange(N)), 4, shuffle=True, drop_last=True, **o),
    "whole": lambda **o: DataLoader(TensorDataset(np.arange(N)), 40, shuffle=True, **o),
    "sampler": lambda **o: DataLoader(TensorDataset(np.arange(N)), 4, sampler=Drawn(7), **o),
    "ranks": lambda **o: DataLoader(
        TensorDataset(np.arange(N)), 4, sampler=DistributedSampler(range(N), 2, 1, seed=5), **o
    ),
    "list": lambda **o: DataLoader(TensorDataset(np.arange(N)), 4, sampler=[5, 3, 8, 1, 1, 0, -1], **o),
}
WORKERS = [{}, {"num_workers": 2, "prefetch": 2}]


def flow(loader, passes):
    return [[batch.tolist() for batch in loader] for _ in range(passes)]


def stored(state):
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("options", WORKERS, ids=["here", "workers"])
@pytest.mark.parametrize("kind", LOADERS)
def test_a_loader_goes_on_with_the_next_batch(kind, options):
    wanted = flow(LOADERS[kind](**options), 4)
    for done in range(len(wanted[1]) + 1):
        loader = LOADERS[kind](**options)
        flow(loader, 1)
        running = iter(loader)
        head = [next(running).tolist() for _ in range(done)]
        other = LOADERS[kind](**{**options, "num_workers": 0} if done % 2 else options)
        other.load_state_dict(stored(loader.state_dict()))
        assert other.state_dict() == loader.state_dict()  # before anything is asked for
        rest = flow(other, 3)
        if done == 0:  # the second pass has not begun
            assert rest == wanted[1:]
            continue
        assert [head + rest[0], *rest[1:]] == wanted[1:]
        assert other.state_dict()["epoch"] == 4 and other.state_dict()["position"] == 0
        running.close()


def test_the_rest_of_an_order_that_cannot_be_made_again_is_saved():
    loader = DataLoader(TensorDataset(np.arange(N)), 4, sampler=Forgetful())
    running = iter(loader)
    head = [next(running).tolist() for _ in range(2)]
    state = stored(loader.state_dict())
    rest = [b.tolist() for b in running]
    other = DataLoader(TensorDataset(np.arange(N)), 4, sampler=Forgetful(99))
    other.load_state_dict(state)
    again = iter(other)
    assert next(again).tolist() == rest[0]
    third = DataLoader(TensorDataset(np.arange(N)), 4, sampler=Forgetful(98))
    third.load_state_dict(stored(other.state_dict()))  # saved again inside what is left
    assert flow(third, 1)[0] == rest[1:]
    assert sorted(i for part in head + rest for i in part) == list(range(N)) and len(flow(third, 1)[0]) == 6


def test_a_pass_left_early_is_saved_where_it_was_left():
    def broken(left):
        loader = LOADERS["shuffled"]()
        try:
            for i, _ in enumerate(loader):
                if i == 2:
                    left()
        except KeyboardInterrupt:
            pass
        return loader

    def interrupt():
        raise KeyboardInterrupt

    loader = broken(interrupt)
    other = LOADERS["shuffled"]()
    other.load_state_dict(loader.state_dict())
    wanted = flow(LOADERS["shuffled"](), 2)
    assert flow(other, 2) == [wanted[0][3:], wanted[1]]
    assert flow(loader, 1)[0] == wanted[1]  # in the same run the next loop is the next pass
    loader = broken(interrupt)
    loader.set_epoch(1)
    assert loader.state_dict() == {"epoch": 1, "seed": 3, "position": 0}
    assert flow(loader, 1)[0] == wanted[1]


def test_a_pass_whose_last_batch_was_taken_is_over_once_it_is_left():
    loader = LOADERS["whole"]()
    running = iter(loader)
    next(running)
    inside = loader.state_dict()
    assert (inside["epoch"], inside["position"]) == (0, N)  # its loop has yet to end
    running.close()
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 0)
    other = LOADERS["whole"]()
    other.load_state_dict(inside)
    assert flow(other, 1)[0] == [] and flow(other, 1) == flow(LOADERS["whole"](), 2)[1:]


def test_a_batch_that_failed_is_made_again():
    class Failing(Dataset):
        broken = True

        def __len__(self):
            return N

        def __getitem__(self, i):
            if i == 9 and self.broken:
                raise OSError("gone")
            return i

    data = Failing()
    for workers in (0, 2):
        data.broken = True
        loader = DataLoader(data, 4, num_workers=workers)
        with pytest.raises(OSError, match="gone"):
            list(loader)
        data.broken = False
        other = DataLoader(data, 4)
        other.load_state_dict(loader.state_dict())
        assert next(iter(other)).tolist() == [8, 9, 10, 11]


def test_states_of_before_positions_are_taken():
    loader = LOADERS["shuffled"]()
    loader.load_state_dict({"epoch": 1, "seed": 3})
    assert flow(loader, 1) == flow(LOADERS["shuffled"](), 2)[1:]


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("shuffled", {"epoch": -1}, "expected epoch of at least 0, got -1"),
        ("shuffled", {"epoch": None}, "expected epoch as a whole number, got None"),
        ("shuffled", {"epoch": 1.5}, "expected epoch as a whole number, got 1.5"),
        ("shuffled", {"seed": "3"}, "expected seed as a whole number, got '3'"),
        ("shuffled", {"position": -4}, "expected position of at least 0, got -4"),
        ("shuffled", {"position": float("nan")}, "expected position as a whole number, got nan"),
        ("shuffled", {"position": 24}, "expected a position of at most 23 samples, got 24"),
        ("shuffled", {"order": [1]}, "expected an order of none without a sampler"),
        ("list", {"order": [23]}, r"expected an order of indices in \[-23, 23\)"),
        ("list", {"order": [0.5]}, r"expected an order of indices"),
        ("list", {"order": None}, r"expected an order of indices"),
        ("shuffled", {"sampler": {}}, "expected none of a sampler with a state, got one"),
        ("ranks", {"sampler": {"epoch": -1, "seed": 0}}, "expected epoch of at least 0, got -1"),
        ("ranks", {"sampler": None}, "DistributedSampler.load_state_dict: expected a dict, got NoneType"),
    ],
)
def test_a_state_that_makes_no_sense_changes_nothing(kind, change, message):
    loader = LOADERS[kind]()
    next(running := iter(loader))
    state = loader.state_dict()
    for call in (loader.check_state, loader.load_state_dict):
        with pytest.raises(CheckpointError, match=message):
            call({**state, **change})
    assert loader.state_dict() == state
    running.close()
    for wrong in (None, [], 3, {}, {"epoch": 1}):
        with pytest.raises(CheckpointError, match=r"DataLoader\.load_state_dict: expected"):
            loader.load_state_dict(wrong)
    if kind == "ranks":
        with pytest.raises(CheckpointError, match="expected one of a sampler with a state, got none"):
            loader.load_state_dict({"epoch": 0, "seed": 0})


# -- a whole run -------------------------------------------------------------------------------------------------------


class Noisy(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, index, rng):
        x = np.random.default_rng(index).standard_normal(6).astype(np.float32)
        return x + rng.standard_normal(6, np.float32) / 10, np.float32([index % 3, 1])


class Training:
    """Model with dropout, AdamW, schedule, shuffled noisy loader, and the losses seen."""

    def __init__(self, queue, workers, compiled):
        self.rng = randomness.default_generator.manual_seed(11)
        self.model = nn.Sequential(nn.Linear(queue, 6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(queue, 8, 2))
        self.opt = AdamW(self.model.parameters(), lr=0.01)
        self.schedule = WarmupCosine(self.opt, 3, 18)
        self.loader = DataLoader(Noisy(), 4, shuffle=True, seed=9, num_workers=workers, device_queue=queue)
        self.step = ag.CompiledStep(self._step) if compiled else self._step
        self.losses = []

    def _step(self, x, y):
        with ag.Tape() as tape:
            loss = ag.mse_loss(self.model(ag.tensor(x)), ag.tensor(y))
        tape.backward(loss)
        self.opt.step()
        self.opt.zero_grad()
        return loss

    def parts(self):
        return {"optimizer": self.opt, "schedule": self.schedule, "loader": self.loader, "rng": self.rng}

    def run(self, passes, path=None, stop=None):
        for _ in range(passes):
            for x, y in self.loader:
                self.losses.append(self.step(x, y).value.item())
                self.schedule.step()
                if len(self.losses) == stop:
                    return save_checkpoint(self.model, path, **self.parts())
        return None


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("stop", [3, 8, 12])
def test_a_run_resumed_inside_an_epoch_is_the_uninterrupted_one(queue, tmp_path, stop, compiled):
    straight = Training(queue, 2, compiled)
    straight.run(3)
    path = tmp_path / "run.netcl"
    first = Training(queue, 0, compiled)
    first.run(3, path, stop)
    second = Training(queue, 2, compiled)
    load_checkpoint(second.model, path, **second.parts())
    second.run(3 - (stop - 1) // 6)  # passes of six batches; the loop of one that gave its last is still to end
    assert first.losses + second.losses == straight.losses
    for p, q in zip(straight.model.parameters(), second.model.parameters()):
        np.testing.assert_array_equal(p.value.to_host(), q.value.to_host())


def test_tensors_arrive_after_resuming(queue):
    loader = DataLoader(TensorDataset(np.arange(N)), 4, device_queue=queue, num_workers=1)
    next(running := iter(loader))
    other = DataLoader(TensorDataset(np.arange(N)), 4, device_queue=queue)
    other.load_state_dict(loader.state_dict())
    running.close()
    x = next(iter(other))
    assert isinstance(x, Tensor) and x.to_host().tolist() == [4, 5, 6, 7]
