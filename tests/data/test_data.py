"""Datasets, splitting, batching, sharding."""

import numpy as np
import pytest

from netcl.core.device import manager
from netcl.core.errors import DeviceError, IndexOutOfRange, ShapeError
from netcl.core.tensor import Tensor
from netcl.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset, datasets, random_split


class Squares(Dataset):
    """Samples as tuples of a number and an array."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index, np.full(3, index * index, np.float32)


def sizes(loader):
    return [len(batch) for batch in loader]


# -- datasets ----------------------------------------------------------------------------------------------------------


def test_tensor_dataset():
    data = TensorDataset(np.arange(6).reshape(3, 2), [7, 8, 9])
    x, y = data[1]
    assert x.tolist() == [2, 3] and y == 8 and len(data) == 3
    assert TensorDataset(np.arange(3))[-1] == 2
    with pytest.raises(IndexOutOfRange, match=r"in \[-3, 3\), got 3"):
        data[3]
    with pytest.raises(ShapeError, match="one length"):
        TensorDataset(np.arange(3), np.arange(4))


def test_subset_and_random_split():
    data = TensorDataset(np.arange(10))
    parts = random_split(data, [7, 3], seed=1)
    assert sorted(int(v) for part in parts for v in part) == list(range(10))
    assert [p.indices.tolist() for p in random_split(data, [0.7, 0.3], seed=1)] == [p.indices.tolist() for p in parts]
    assert [p.indices.tolist() for p in random_split(data, [7, 3], seed=2)] != [p.indices.tolist() for p in parts]
    assert Subset(Squares(), [3, 5])[1][0] == 5
    with pytest.raises(IndexOutOfRange, match="got 10"):
        Subset(data, [0, 10])
    with pytest.raises(ValueError, match="add up to 10"):
        random_split(data, [7, 4])
    with pytest.raises(ValueError, match="add up to 1"):
        random_split(data, [0.7, 0.4])


def test_digits_are_complete_and_stratified():
    train, test, everything = (datasets.digits(split) for split in ("train", "test", "all"))
    assert (len(train), len(test), len(everything)) == (1433, 364, 1797)
    images, labels = test.batch(slice(None))
    assert images.shape == (364, 1, 8, 8) and images.dtype == np.float32 and labels.dtype == np.int32
    assert images.min() == 0 and images.max() == 1
    assert all(abs(n - 36) <= 1 for n in np.bincount(labels, minlength=10))
    rows = {x.tobytes() for x in train.arrays[0]} | {x.tobytes() for x in images}
    assert rows == {x.tobytes() for x in everything.arrays[0]}
    np.testing.assert_array_equal(datasets.digits("test").arrays[0], images)
    with pytest.raises(ValueError, match="'train', 'test' or 'all'"):
        datasets.digits("validation")


def test_digits_equal_their_source():
    sklearn = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.digits("all").arrays
    found = sklearn.load_digits()
    np.testing.assert_array_equal(images.reshape(-1, 64) * 16, found.data)
    np.testing.assert_array_equal(labels, found.target)


# -- loading -----------------------------------------------------------------------------------------------------------


def test_batch_sizes():
    data = TensorDataset(np.arange(10))
    assert sizes(DataLoader(data, 4)) == [4, 4, 2]
    assert sizes(DataLoader(data, 4, drop_last=True)) == [4, 4]
    assert sizes(DataLoader(data, 20)) == [10]
    assert sizes(DataLoader(data, 20, drop_last=True)) == []
    assert [len(DataLoader(data, b, drop_last=d)) for b, d in ((4, False), (4, True), (20, False), (20, True))] == [
        3,
        2,
        1,
        0,
    ]


def test_shards():
    def shards(**options):
        return [list(DistributedSampler(range(5), 2, rank, shuffle=False, **options)) for rank in (0, 1)]

    assert shards() == [[0, 2, 4], [1, 3, 0]]
    assert shards(drop_last=True) == [[0, 2], [1, 3]]
    assert list(DistributedSampler(range(1), 4, 3)) == [0]
    assert list(DistributedSampler(range(0), 2, 0)) == []


def test_orders_differ_by_epoch_and_agree_between_ranks():
    samplers = [DistributedSampler(range(8), 2, rank, seed=3) for rank in (0, 1)]
    orders = []
    for epoch in range(2):
        for s in samplers:
            s.set_epoch(epoch)
        parts = [list(s) for s in samplers]
        assert sorted(parts[0] + parts[1]) == list(range(8))
        orders.append(parts)
    assert orders[0] != orders[1]


def test_shuffled_epochs_differ_and_repeat():
    def epochs(seed, count=3):
        loader = DataLoader(TensorDataset(np.arange(20)), 5, shuffle=True, seed=seed)
        return [np.concatenate(list(loader)).tolist() for _ in range(count)]

    first = epochs(0)
    assert all(sorted(e) == list(range(20)) for e in first) and len({tuple(e) for e in first}) == 3
    assert epochs(0) == first and epochs(1) != first
    assert epochs(None) != epochs(None)


def test_a_loader_resumes_with_the_next_epoch():
    def loader():
        return DataLoader(TensorDataset(np.arange(20)), 20, shuffle=True, seed=4)

    straight = loader()
    orders = [next(iter(straight)).tolist() for _ in range(3)]
    other = DataLoader(TensorDataset(np.arange(20)), 20, shuffle=True)
    one = loader()
    next(iter(one))
    other.load_state_dict(one.state_dict())
    assert [next(iter(other)).tolist() for _ in range(2)] == orders[1:]


def test_a_loader_tells_its_sampler_the_epoch():
    loader = DataLoader(TensorDataset(np.arange(8)), 4, sampler=DistributedSampler(range(8), 2, 0))
    assert len(loader) == 1
    assert next(iter(loader)).tolist() != next(iter(loader)).tolist()


def test_samples_are_joined():
    numbers, arrays = next(iter(DataLoader(Squares(), 4)))
    assert numbers.tolist() == [0, 1, 2, 3] and numbers.dtype == np.int64
    assert arrays.shape == (4, 3) and arrays.dtype == np.float32
    pairs = [(np.zeros(2), 0.5), (np.ones(2), 1.5)]
    x, y = next(iter(DataLoader(pairs, 2)))
    assert x.shape == (2, 2) and y.dtype == np.float32
    batch = next(iter(DataLoader([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}], 2)))
    assert batch["a"].tolist() == [1, 2] and batch["b"] == ["x", "y"]
    assert next(iter(DataLoader(Squares(), 3, collate_fn=len))) == 3
    with pytest.raises(ShapeError, match="one shape"):
        list(DataLoader([np.zeros(2), np.zeros(3)], 2))


def test_batches_can_be_sent_to_a_device(queue):
    x, y = next(iter(DataLoader(TensorDataset(np.eye(4, dtype=np.float32), np.arange(4)), 2, device_queue=queue)))
    assert isinstance(x, Tensor) and x.queue is queue
    np.testing.assert_array_equal(x.to_host(), np.eye(4)[:2])
    assert y.to_host().tolist() == [0, 1]


def test_a_device_is_named_by_its_queue_its_handle_or_its_name(queue, cpu_queue):
    data = TensorDataset(np.arange(4))
    handle = next(h for h in manager.handles if h.queue == queue) if queue is not cpu_queue else manager.default("cpu")
    for given in (queue, handle):
        assert next(iter(DataLoader(data, 2, device_queue=given))).queue is handle.queue
    for name in ("auto", "cpu"):
        x = next(iter(DataLoader(data, 2, device_queue=name)))
        assert x.queue is manager.default(name).queue and x.to_host().tolist() == [0, 1]
    for wrong in ("toaster", 3.5, [], object(), True, data):
        with pytest.raises(DeviceError, match=r"DataLoader: device_queue: expected .*, got "):
            DataLoader(data, device_queue=wrong)


@pytest.mark.parametrize(
    "options", [{"batch_size": 0}, {"num_workers": -1}, {"shuffle": True, "sampler": [0]}], ids=lambda o: next(iter(o))
)
def test_bad_settings_are_refused(options):
    with pytest.raises(ValueError, match="DataLoader: expected"):
        DataLoader([1, 2], **options)
    with pytest.raises(ValueError, match="a rank in"):
        DistributedSampler([1, 2], 2, 2)
