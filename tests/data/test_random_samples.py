"""Random numbers for samples: decided by seed, epoch and index, whoever makes the batch."""

# ruff: noqa: NPY002

import random
import threading
import warnings

import numpy as np
import pytest

from netcl.data import DataLoader, Dataset, Subset, TensorDataset

N = 23


class Noisy(Dataset):
    """A number that its sample's generator draws."""

    def __len__(self):
        return N

    def __getitem__(self, index, rng=None):
        return index, rng.random(3)


class Gathered(Noisy):
    """The same, gathered many at once."""

    def batch(self, indices, rngs):
        return np.asarray(indices), np.stack([rng.random(3) for rng in rngs])


def epochs(data, count=2, **options):
    options = {"batch_size": 4, "shuffle": True, "seed": 5, **options}
    loader = DataLoader(data, **options)
    return [{int(i): v.tolist() for x, y in loader for i, v in zip(x, y)} for _ in range(count)]


def expected(seed, epoch):
    """From the definition: Philox4x64-10 with the key (seed, epoch), from block index * 2^192 on."""
    found = {}
    for index in range(N):
        bits = np.random.Philox(key=np.array([seed, epoch], np.uint64), counter=index << 192)
        found[index] = np.random.Generator(bits).random(3).tolist()
    return found


@pytest.mark.parametrize("data", [Noisy(), Gathered()], ids=lambda d: type(d).__name__)
@pytest.mark.parametrize(("workers", "prefetch"), [(0, 1), (1, 1), (2, 3), (5, 2), (40, 1)])
def test_samples_are_the_same_for_any_number_of_workers(data, workers, prefetch):
    found = epochs(data, num_workers=workers, prefetch=prefetch)
    assert found == [expected(5, 0), expected(5, 1)]


def test_batch_size_order_and_subsets_do_not_matter():
    whole = epochs(Noisy())
    assert epochs(Noisy(), batch_size=7, shuffle=False) == whole and epochs(Noisy(), seed=6) != whole
    assert epochs(Noisy(), sampler=range(N), shuffle=False, num_workers=2) == whole
    for data in (Noisy(), Gathered()):
        part = epochs(Subset(Subset(data, range(N - 1, -1, -1)), range(10)), 1, num_workers=2)[0]
        assert part == {N - 1 - i: v for i, v in expected(5, 0).items() if i < 10}


def test_transforms_and_collate_functions_take_generators_too():
    def noise(sample, rng):
        return sample[0], sample[1] + rng.random(3)

    def mixed(samples, rng):
        return np.array([s[0] for s in samples]), np.stack([s[1] for s in samples]) * rng.random()

    plain = TensorDataset(np.arange(N), np.zeros((N, 3)))
    wanted = [expected(5, 0), expected(5, 1)]
    for workers in (0, 3):
        assert epochs(plain, transform=noise, num_workers=workers) == wanted
        assert epochs(plain, transform=lambda sample: sample) == [{i: [0, 0, 0] for i in range(N)}] * 2
    runs = [epochs(plain, transform=noise, collate_fn=mixed, num_workers=w, shuffle=False) for w in (0, 1, 4)]
    assert runs[0] == runs[1] == runs[2]
    factors = [v[0] / wanted[0][i][0] for i, v in runs[0][0].items()]
    assert len(set(np.round(factors, 9))) == -(-N // 4)  # one for each batch


def test_a_subclass_that_changes_samples_is_not_passed_by():
    class Doubled(TensorDataset):
        def __getitem__(self, index, rng=None):
            x, y = super().__getitem__(index)
            return x, y + rng.random(3)

    assert epochs(Doubled(np.arange(N), np.zeros((N, 3)))) == epochs(Noisy())

    class Later(Doubled):
        def batch(self, indices, empty=np.empty):
            return np.asarray(indices), np.ones((len(indices), 3))

    assert epochs(Later(np.arange(N), np.zeros((N, 3))), 1)[0] == {i: [1, 1, 1] for i in range(N)}


# -- global generators -------------------------------------------------------------------------------------------------


class Global(Dataset):
    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return N

    def __getitem__(self, index):
        return self.draw()


DRAWS = {
    "numpy": lambda: np.random.rand(),
    "numpy normal": lambda: np.random.standard_normal(),
    "random": lambda: random.random(),
    "choice": lambda: random.choice([1.0, 2.0]),
    "seeded": lambda: (np.random.seed(1), np.random.rand())[1],
}


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("workers", [1, 3])
def test_global_generators_in_workers_are_warned_about_once(draw, workers):
    loader = DataLoader(Global(DRAWS[draw]), 4, num_workers=workers)
    with pytest.warns(UserWarning, match=r"DataLoader: random numbers .*__getitem__\(self, index, rng\)") as caught:
        [list(loader) for _ in range(3)]
    assert len(caught) == 1 and caught[0].filename == __file__


def test_nothing_is_said_where_nothing_is_wrong():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(DataLoader(Global(np.random.rand), 4))  # without workers the order is that of the program
        list(DataLoader(Noisy(), 4, num_workers=2))
        for _ in DataLoader(Noisy(), 4, num_workers=2):
            np.random.rand(), random.random()  # by the loop, not by a worker
        assert threading.active_count() < 10
