"""Forms of samples, errors of datasets, and what loaders, samplers and subsets refuse."""

import collections
import dataclasses
import os
import subprocess
import sys
import threading
import traceback
import typing

import numpy as np
import pytest

from netcl.core.errors import DataError, DTypeError, IndexOutOfRange, NetclError, ShapeError
from netcl.core.tensor import Tensor
from netcl.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset, default_collate, random_split
from netcl.data.sampler import order_of

WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Pair(typing.NamedTuple):
    x: np.ndarray
    y: int


class Point(collections.namedtuple("Point", "x y")):
    """A named tuple whose constructor takes something else."""

    def __new__(cls, both):
        return super().__new__(cls, both, both)


class Row(list):
    def __init__(self, *, of=()):
        super().__init__(of)


class Record(dict):
    def __init__(self, name, **entries):
        super().__init__(entries)
        self.name = name


# -- forms -------------------------------------------------------------------------------------------------------------


@WORKERS
def test_samples_keep_their_type(queue, workers):
    samples = [Pair(np.full(2, i, np.float32), i) for i in range(5)]
    for sent in (None, queue):
        batch = next(iter(DataLoader(samples, 3, num_workers=workers, device_queue=sent)))
        assert type(batch) is Pair and isinstance(batch.x, np.ndarray if sent is None else Tensor)
        x, y = (np.asarray(t) if sent is None else t.to_host() for t in batch)
        assert x.tolist() == [[0, 0], [1, 1], [2, 2]] and y.tolist() == [0, 1, 2]
    nested = [{"a": Pair(np.zeros(1), i), "b": [i, (i, "w")]} for i in range(2)]
    batch = next(iter(DataLoader(nested, 2, num_workers=workers)))
    assert type(batch["a"]) is Pair and type(batch["b"]) is list and type(batch["b"][1]) is tuple
    assert batch["a"].y.tolist() == [0, 1] and batch["b"][1][1] == ["w", "w"]


@WORKERS
def test_subclasses_keep_their_type_whatever_their_constructors_take(queue, workers):
    ordered = collections.OrderedDict(b=1, a=2)
    default = collections.defaultdict(list, a=1)
    for make, look in (
        (lambda: Point(3), lambda b: [b.x.tolist(), b.y.tolist()] == [[3, 3]] * 2),
        (lambda: Row(of=(3, 4)), lambda b: [t.tolist() for t in b] == [[3, 3], [4, 4]]),
        (lambda: Record("r", a=1), lambda b: b.name == "r" and b["a"].tolist() == [1, 1]),
        (lambda: ordered, lambda b: list(b) == ["b", "a"]),
        (lambda: default, lambda b: b["new"] == []),
    ):
        batch = next(iter(DataLoader([make(), make()], 2, num_workers=workers)))
        assert type(batch) is type(make()) and look(batch)
        sent = next(iter(DataLoader([make(), make()], 2, num_workers=workers, device_queue=queue)))
        assert type(sent) is type(make())
    assert ordered == {"b": 1, "a": 2} and "new" not in default  # samples stay what they were


@pytest.mark.parametrize("samples", [[1, 2.5, 3], [1.0, 2, 3], [1, 2, 3.0]])
def test_numbers_of_one_batch_have_one_dtype_in_any_order(samples):
    batch = default_collate(samples)
    assert batch.dtype == np.float32 and batch.tolist() == samples


@pytest.mark.parametrize("strange", [None, object(), {1}, lambda: 1, range(3).__iter__()])
def test_samples_that_make_no_array_are_refused(strange):
    for samples in ([strange, strange], [1, strange], [strange, 1.0]):
        with pytest.raises(DTypeError, match=r"DataLoader: expected samples of arrays, numbers, text, .* got "):
            default_collate(samples)
        with pytest.raises(DTypeError, match="give a collate_fn"):
            list(DataLoader([(0, s) for s in samples], 2, num_workers=1))
    with pytest.raises(DTypeError, match="got 1180591620717411303424"):
        default_collate([1, 2**70])


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([(1, 2), (1,)], "the same number of entries"),
        ([[1, 2], [1, 2, 3]], "the same number of entries"),
        ([(1, 2), 3], "the same number of entries"),
        ([{"a": 1}, {"b": 1}], r"the same keys, got \['a'\] and \['b'\]"),
        ([{"a": 1}, {"a": 1, "b": 2}], r"the same keys, got \['a'\] and \['a', 'b'\]"),
        ([{"a": 1}, 3], r"the same keys, got \['a'\] and int"),
        ([np.zeros(2), np.zeros(3)], "samples of one shape"),
    ],
)
def test_samples_of_different_forms_are_refused(samples, message):
    with pytest.raises(ShapeError, match=f"DataLoader: expected .*{message}"):
        default_collate(samples)
    for workers in (0, 1):
        with pytest.raises(ShapeError, match=f"DataLoader: expected .*{message}"):
            list(DataLoader(samples, 2, num_workers=workers))


# -- errors ------------------------------------------------------------------------------------------------------------


class Raising(Dataset):
    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == 5:
            raise self.make()
        return index


class TwoArguments(Exception):
    def __init__(self, path, line):
        super().__init__(f"{path} at {line}")
        self.path = path


class KeywordOnly(KeyError):
    def __init__(self, *, key):
        self.key = key

    def __str__(self):
        return f"no key {self.key}"


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class NoNotes(ValueError):
    add_note = None


class Slots(Exception):
    __slots__ = ("code",)

    def __init__(self, code):
        self.code = code


ERRORS = {
    "two arguments": (
        lambda: TwoArguments("a.png", 3),
        lambda e: e.path == "a.png" and str(e).startswith("a.png at 3"),
    ),
    "keyword only": (lambda: KeywordOnly(key="k"), lambda e: e.key == "k" and str(e) == "no key k"),
    "frozen": (lambda: Frozen(7), lambda e: e.code == 7),
    "no notes": (lambda: NoNotes("bad"), lambda e: "bad" in str(e)),
    "slots": (lambda: Slots(7), lambda e: e.code == 7),
    "group": (lambda: OSError(2, "none", "a.png"), lambda e: e.filename == "a.png"),
}


@WORKERS
@pytest.mark.parametrize("name", ERRORS)
def test_errors_keep_type_message_and_traceback(name, workers):
    make, look = ERRORS[name]
    loader = DataLoader(Raising(make), 2, num_workers=workers)
    with pytest.raises(type(make())) as caught:
        list(loader)
    assert look(caught.value)
    frames = [f.name for f in traceback.extract_tb(caught.tb)]
    assert frames[0] == "test_errors_keep_type_message_and_traceback" and frames[-1] == "__getitem__"
    with pytest.raises(type(make())):
        list(DataLoader(list(range(10)), 2, num_workers=workers, collate_fn=lambda s: Raising(make)[5]))
    with pytest.raises(type(make())):
        list(DataLoader(list(range(10)), 2, num_workers=workers, transform=Raising(make).__getitem__))


ENDS = [lambda: SystemExit(3), lambda: SystemExit("stop"), lambda: GeneratorExit("over"), lambda: StopIteration(7)]


@pytest.mark.parametrize("make", ENDS, ids=["exit 3", "exit stop", "generator exit", "stop iteration"])
def test_what_would_end_the_program_in_a_worker_is_named(make):
    loader = DataLoader(Raising(make), 2, num_workers=2)
    name = type(make()).__name__
    with pytest.raises(DataError, match=rf"DataLoader: expected a batch, got {name}\(.*\) in a worker .* batch 2") as e:
        list(loader)
    assert isinstance(e.value, NetclError) and type(e.value.__cause__) is type(make())
    assert "__getitem__" in "".join(traceback.format_exception(e.value))
    assert not [t for t in threading.enumerate() if t.name.startswith("netcl-data")]


def test_stop_iteration_without_workers_is_named():
    with pytest.raises(DataError, match=r"DataLoader: expected a batch, got StopIteration\(7\) making batch 2"):
        list(DataLoader(Raising(lambda: StopIteration(7)), 2))


def test_a_program_whose_dataset_exits_says_so():
    program = (
        "import sys\nfrom netcl.data import DataLoader, Dataset\n"
        "class D(Dataset):\n"
        "    def __len__(self): return 9\n"
        "    def __getitem__(self, i): sys.exit(0) if i == 4 else None; return i\n"
        "for b in DataLoader(D(), 2, num_workers=2): pass\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 1 and "DataError: DataLoader: expected a batch, got SystemExit(0)" in done.stderr


# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1, 50])
@pytest.mark.parametrize("n", [0, 1, 3])
def test_few_samples_and_many_workers(n, workers):
    data = TensorDataset(np.arange(n, dtype=np.float32))
    for batch_size in (1, 2, 100):
        for drop_last in (False, True):
            loader = DataLoader(data, batch_size, num_workers=workers, drop_last=drop_last, shuffle=True)
            found = [len(b) for b in loader]
            full, rest = divmod(n, batch_size)
            assert found == [batch_size] * full + [rest] * (bool(rest) and not drop_last) and len(found) == len(loader)


def test_an_order_is_the_same_everywhere_and_for_ever():
    # the first block of Philox4x32-10 as published: 6627e8d5 e169c58d bc57ac4c 9b00dbd8
    assert order_of(4, True, 0, 0).tolist() == [0, 3, 2, 1]
    assert order_of(0, True, 0, 0).tolist() == [] and order_of(3, False, 9, 9).tolist() == [0, 1, 2]


@WORKERS
def test_loaders_inside_loaders(workers):
    loader = DataLoader(TensorDataset(np.arange(6)), 2, num_workers=workers)
    found = [(a.tolist(), b.tolist()) for a in loader for b in loader]
    parts = [[0, 1], [2, 3], [4, 5]]
    assert found == [(a, b) for a in parts for b in parts]

    class Outer(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return sum(int(b.sum()) for b in DataLoader(TensorDataset(np.arange(i + 1)), 2, num_workers=workers))

    assert [b.tolist() for b in DataLoader(Outer(), 4, num_workers=workers)] == [[0, 1, 3, 6]]


# -- refused -----------------------------------------------------------------------------------------------------------

COUNTS = [-1, 1.5, 2.0, "3", None, True, float("nan")]
REFUSED = {
    "batch_size": [0, *COUNTS],
    "num_workers": COUNTS,
    "prefetch": [0, *COUNTS],
    "seed": [1.5, "3", True, float("nan")],
    "shuffle": [None, 1, "yes"],
    "drop_last": [None, 1, "yes"],
    "sampler": [3, None.__class__],
    "collate_fn": [3, "stack"],
    "transform": [3, "flip"],
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_of_loaders(name):
    for value in REFUSED[name]:
        with pytest.raises((ValueError, TypeError), match=f"^DataLoader: expected .*{name}.*, got "):
            DataLoader([1, 2], **{name: value})


def test_what_is_no_dataset():
    for wrong in (None, 3, iter([1]), (i for i in range(3)), {1, 2}, len):
        with pytest.raises(DTypeError, match="DataLoader: expected a dataset with __len__ and __getitem__, got"):
            DataLoader(wrong)
    with pytest.raises(DTypeError, match="a sampler that gives indices for each pass, got list_iterator, which ends"):
        DataLoader([1, 2], sampler=iter([0, 1]))
    with pytest.raises(ShapeError, match="TensorDataset: expected arrays, got what makes none"):
        TensorDataset([[1, 2], [3]])
    for wrong in (-1, 1.5, None, "1", True):
        with pytest.raises((ValueError, TypeError), match=r"DataLoader\.set_epoch: expected epoch .*, got"):
            DataLoader([1]).set_epoch(wrong)


def test_indices_are_whole_numbers():
    data = TensorDataset(np.arange(4))
    for wrong in ([0.5, 1.7], np.array([True, False, True, False]), ["a"], [[0, 1]], [None], 3):
        with pytest.raises(TypeError, match="Subset: expected indices as a list of whole numbers, got"):
            Subset(data, wrong)
        if not isinstance(wrong, int):
            with pytest.raises(TypeError, match="DataLoader: expected the indices of the sampler as a list of whole"):
                list(DataLoader(data, 2, sampler=wrong))
    with pytest.raises(TypeError, match=r"take np\.flatnonzero of a mask"):
        Subset(data, np.ones(4, bool))
    assert len(Subset(data, [])) == 0 and len(Subset(data, range(2))) == 2
    assert list(DataLoader(data, 2, sampler=[])) == []
    with pytest.raises(IndexOutOfRange):
        Subset(data, [4])


def test_settings_of_samplers_and_splits():
    data = TensorDataset(np.arange(10))
    for options in ({"num_replicas": 0}, {"num_replicas": 1.5}, {"rank": 2}, {"rank": -1}, {"rank": "0"}, {"seed": 0.5},
                    {"shuffle": 1}, {"drop_last": None}):  # fmt: skip
        with pytest.raises((ValueError, TypeError), match="DistributedSampler: expected"):
            DistributedSampler(data, **{"num_replicas": 2, "rank": 0, **options})
    for epoch in (-1, 1.5, None):
        with pytest.raises((ValueError, TypeError), match=r"DistributedSampler\.set_epoch: expected epoch"):
            DistributedSampler(data, 2, 0).set_epoch(epoch)
    for lengths in (
        [],
        [11],
        [5, 6],
        [-1, 11],
        [0.5, 0.6],
        [float("nan"), 0.5],
        [5.0, 5.0],
        ["5", "5"],
        [0.5, -0.5, 1],
    ):
        with pytest.raises((ValueError, TypeError), match="random_split: expected"):
            random_split(data, lengths)
    with pytest.raises(TypeError, match="random_split: expected seed as a whole number"):
        random_split(data, [5, 5], seed=0.5)
    assert [len(p) for p in random_split(data, np.array([0.5, 0.5]))] == [5, 5]
