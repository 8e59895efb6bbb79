"""Batches made ahead by threads, and sent to a GPU by a queue of their own."""

import _thread
import dataclasses
import gc
import threading
import traceback
import weakref

import ml_dtypes
import numpy as np
import pyopencl as cl
import pytest

import netcl.autograd as ag
from netcl import nn, optim
from netcl.core import process
from netcl.core.backend import opencl
from netcl.core.device.profile import override_profile, profile_of
from netcl.core.errors import DeviceError, DTypeError
from netcl.core.memory import pool_of
from netcl.core.tensor import Tensor
from netcl.data import DataLoader, Dataset, Subset, TensorDataset
from netcl.data.feed import Feed
from netcl.profiling import KernelProfiler
from netcl.runtime.capture.capture import KernelCapture, replay

X = np.random.default_rng(0).standard_normal((50, 4, 64)).astype(np.float32)
Y = np.arange(50, dtype=np.int32)
WORKERS = [(0, 1), (1, 1), (1, 2), (3, 2)]  # threads, batches ahead of each


@pytest.fixture
def gpu(cl_queue):
    """A queue of the device that counts as a GPU with memory of its own."""
    queue = cl.CommandQueue(cl_queue.context, cl_queue.device)
    profile = dataclasses.replace(profile_of(queue), kind="gpu", integrated=False)
    with override_profile(queue, profile):
        yield queue
        queue.finish()


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    assert not [t for t in threading.enumerate() if t.name.startswith("netcl-data")]


def loader(queue, workers=1, prefetch=1, data=None, **options):
    data = TensorDataset(X, Y) if data is None else data
    options = {"batch_size": 8, "num_workers": workers, "prefetch": prefetch, "device_queue": queue, **options}
    return DataLoader(data, **options)


def arrays(batches):
    return [tuple(t if isinstance(t, np.ndarray) else t.to_host() for t in batch) for batch in batches]


def same(found, wanted):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        for s, t in zip(a, b, strict=True):
            assert s.dtype == t.dtype
            np.testing.assert_array_equal(s, t)


@pytest.fixture
def writes():
    """(bytes, event) of every write to a device."""
    found = []

    def hook(kind, queue, target, source, nbytes, details, event):
        if kind == "write":
            found.append((nbytes, event))

    opencl.copy_hooks.append(hook)
    yield found
    opencl.copy_hooks.remove(hook)


# -- values ------------------------------------------------------------------------------------------------------------


class Samples(Dataset):
    """One by one: an array, a number and a word."""

    def __len__(self):
        return 20

    def __getitem__(self, i):
        return {"x": X[i], "n": i, "half": i / 2, "word": f"w{i}"}


@pytest.mark.parametrize(("workers", "prefetch"), WORKERS)
def test_the_same_batches_with_and_without_workers(queue, workers, prefetch):
    options = {"shuffle": True, "seed": 3}
    one, many = loader(queue, 0, **options), loader(queue, workers, prefetch, **options)
    for _ in range(2):
        same(arrays(many), arrays(one))
    host = loader(None, workers, prefetch, **options)
    host.load_state_dict({"epoch": 2, "seed": 3})
    same(list(host), arrays(one))
    assert many.epoch == 2 and (many.feed is not None) == Feed.suits(queue)  # the others share memory with the host


@pytest.mark.parametrize(("workers", "prefetch"), WORKERS)
def test_the_same_batches_by_a_queue_of_their_own(gpu, workers, prefetch):
    for data in (None, Subset(TensorDataset(X, Y), [*range(40, 10, -1)]), [(x, y) for x, y in zip(X, Y, strict=True)]):
        one, many = loader(None, 0, 1, data, shuffle=True), loader(gpu, workers, prefetch, data, shuffle=True)
        for _ in range(2):
            same(arrays(many), list(one))


def test_what_is_no_array_stays_on_the_host(gpu):
    first = next(iter(loader(gpu, 2, 1, Samples())))
    assert first["word"] == [f"w{i}" for i in range(8)] and first["x"].queue is gpu
    assert first["n"].to_host().tolist() == list(range(8)) and first["half"].dtype == np.float32
    np.testing.assert_array_equal(first["x"].to_host(), X[:8])
    joined = loader(gpu, 1, 1, Samples(), collate_fn=lambda samples: np.stack([s["x"].T for s in samples]))
    np.testing.assert_array_equal(next(iter(joined)).to_host(), X[:8].swapaxes(1, 2))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64, np.bool_, np.uint8, np.int64])
def test_dtypes(gpu, dtype):
    values = (np.arange(60).reshape(10, 6) % 7).astype(dtype)
    for array in (values, np.asfortranarray(values), values[:, ::2], values[:, :0]):
        found = list(loader(gpu, 1, 2, TensorDataset(array), batch_size=4))
        same([(t.to_host(),) for t in found], [(array[i : i + 4],) for i in (0, 4, 8)])


def test_float64_on_a_device_without(gpu):
    with (
        override_profile(gpu, dataclasses.replace(profile_of(gpu), has_fp64=False)),
        pytest.warns(UserWarning, match="double"),
    ):
        x = next(iter(loader(gpu, data=TensorDataset(X.astype(np.float64)))))
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x.to_host(), X[:8])


@pytest.mark.parametrize("dtype", ["int16", "uint32", ">f4", "complex64", "O"])
@pytest.mark.parametrize("workers", [0, 1])
def test_dtypes_that_tensors_cannot_have(gpu, workers, dtype):
    with pytest.raises(DTypeError, match="expected one of"):
        list(loader(gpu, workers, data=TensorDataset(X.astype(dtype))))


class Lists(Dataset):
    """Batches as lists, put together where they are copied from."""

    def __len__(self):
        return 50

    def batch(self, indices, empty=np.empty):
        out = empty((len(indices), *X.shape[1:]), X.dtype)
        out[...] = X[indices]
        return [out, ["word"], {"last": Y[indices[-1]]}]


@pytest.mark.parametrize("workers", [0, 1])
def test_arrays_in_lists_are_sent(gpu, workers):
    found = list(loader(gpu, workers, data=Lists()))
    same(arrays(batch[:1] for batch in found), [(X[i : i + 8],) for i in range(0, 50, 8)])
    assert all(type(b) is list and isinstance(b[0], Tensor) for b in found)
    assert all(b[1] == ["word"] and isinstance(b[2]["last"], np.int32) for b in found)


def test_positions_of_a_sampler_are_checked(gpu):
    data = TensorDataset(X, Y)
    same(arrays(loader(gpu, data=data, sampler=[-1, 3])), [(X[[-1, 3]], Y[[-1, 3]])])
    with pytest.raises(IndexError):
        list(loader(gpu, data=data, sampler=[0, 50]))


def test_settings_are_checked():
    for name in ("num_workers", "prefetch"):
        with pytest.raises(ValueError, match=f"expected {name} of at least"):
            DataLoader([1], **{name: -1})
    assert DataLoader([1], pin_memory=True)


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "prefetch"), WORKERS)
def test_an_epoch_moves_its_bytes_once_and_allocates_nothing_new(gpu, writes, workers, prefetch):
    many, ahead = loader(gpu, workers, prefetch, drop_last=True), max(1, workers * prefetch)
    made = []
    for _ in range(4):
        writes.clear()
        before = pool_of(gpu).stats.requests
        for _ in many:
            pass
        assert sum(n for n, _ in writes) == X[:48].nbytes + Y[:48].nbytes and len(writes) == 2 * 6
        assert pool_of(gpu).stats.requests == before  # no memory of the queue's own pool
        made.append((len(many.feed.blocks), many.feed.pinned.stats.misses))
    assert made[0][0] <= 2 * (ahead + 2) and made[0][1] <= 2 * 2 * ahead
    assert max(made) <= (2 * (ahead + 2), 2 * 2 * ahead)
    assert many.feed.pinned.stats.requests == 4 * 2 * 6  # each array was put together where it is copied from


def test_batches_that_are_kept_keep_their_memory(gpu):
    kept = [batch for _ in range(3) for batch in loader(gpu, 2, 1, shuffle=True)]
    many = loader(gpu, 2, 1, shuffle=True)
    views = [(x[1:, 0], y) for _ in range(2) for x, y in many]
    list(many)
    same(arrays(kept[:7]), list(loader(None, 0, shuffle=True)))
    want = loader(None, 0, shuffle=True)
    same(arrays(views), [(x[1:, 0], y) for _ in range(2) for x, y in want])


def test_a_recording_keeps_the_batch_it_reads(gpu):
    many, capture = loader(gpu, 1, 1, drop_last=True), KernelCapture()
    for i, (x, _) in enumerate(many):
        if i == 1:
            with capture:
                y = x * 2.0
    del x
    list(many)
    capture.replay()
    np.testing.assert_array_equal(y.to_host(), 2 * X[8:16])


def test_a_dropped_loader_takes_its_memory_along(gpu):
    many = loader(gpu, 2, 2)
    list(many)
    found = [weakref.ref(many.feed), weakref.ref(many.feed.pinned)]
    gc.collect()
    gc.disable()
    try:
        del many
        assert [r() for r in found] == [None, None]
    finally:
        gc.enable()


def test_memory_that_the_queues_pool_keeps_is_freed_for_batches(gpu, monkeypatch):
    many = loader(gpu)
    feed = many._feed_of_queue()
    Tensor.empty(gpu, (1 << 16,))
    assert pool_of(gpu).stats.cached_bytes
    refused = []

    def buffer(nbytes, original=feed.pool.buffer):
        if not refused:
            refused.append(nbytes)
            raise opencl.OutOfMemoryError("full")
        return original(nbytes)

    monkeypatch.setattr(feed.pool, "buffer", buffer)
    same(arrays(many), list(loader(None, 0)))
    assert refused and not pool_of(gpu).stats.cached_bytes


# -- order -------------------------------------------------------------------------------------------------------------


COMPLETE = cl.command_execution_status.COMPLETE


def is_done(event):
    return event.command_execution_status == COMPLETE


@pytest.fixture
def held(gpu):
    """An event that comes when a test says so, at its end at the latest."""
    event = cl.UserEvent(gpu.context)
    yield event
    if not is_done(event):
        event.set_status(COMPLETE)


def test_the_queue_waits_for_a_slow_copy_and_the_host_does_not(gpu, held, writes, monkeypatch):
    copy = cl.enqueue_copy

    def slow(queue, *args, wait_for=(), **options):
        return copy(queue, *args, wait_for=[*wait_for, held], **options)

    with monkeypatch.context() as patch:
        patch.setattr(cl, "enqueue_copy", slow)
        batches = iter(loader(gpu, 1, 2, drop_last=True))
        found = [x * 2.0 for x, _ in (next(batches), next(batches))]
        arrived = cl.enqueue_marker(gpu)
        gpu.flush()
        assert len(writes) >= 4 and not any(is_done(event) for _, event in writes) and not is_done(arrived)
    held.set_status(COMPLETE)
    for i, y in enumerate(found):
        np.testing.assert_array_equal(y.to_host(), 2 * X[8 * i : 8 * i + 8])
    assert is_done(arrived)
    batches.close()


def test_the_queue_waits_for_the_copies_of_every_queue(gpu, held, monkeypatch):
    """A profile that begins or ends may come between the copies of a batch: they then go to two queues."""
    batches = loader(gpu, 1, 1)
    feed = batches._feed_of_queue()
    early, late = (cl.CommandQueue(gpu.context, gpu.device) for _ in range(2))
    cl.enqueue_barrier(early, wait_for=[held])
    shipment = feed.shipment()
    for copies, array in ((early, X), (late, Y)):
        monkeypatch.setattr(process, "gate", lambda queue, to=copies: to if queue is feed.copies else queue)
        shipment.send(array)
    late.finish()
    shipment.deliver()
    arrived = cl.enqueue_marker(gpu)
    gpu.flush()
    threading.Event().wait(0.05)
    assert not is_done(arrived)
    held.set_status(COMPLETE)
    arrived.wait()


def test_no_copy_overwrites_what_the_queue_has_yet_to_read(gpu, held, writes):
    """The queue stands still, so the copy of the third batch, to the block of the first, has to."""
    many = loader(gpu, 1, 1, drop_last=True, data=TensorDataset(X))
    (Tensor.ones(gpu, (8, 4, 64)) * 2.0).to_host()
    cl.enqueue_barrier(gpu, wait_for=[held])
    batches = iter(many)
    found = [next(batches) * 2.0 for _ in range(3)]
    gpu.flush()
    for _, event in writes[:2]:
        event.wait()
    assert len(many.feed.blocks) == 2 and not is_done(writes[2][1])
    held.set_status(COMPLETE)
    found += [x * 2.0 for x in batches]
    for i, y in enumerate(found):
        np.testing.assert_array_equal(y.to_host(), 2 * X[8 * i : 8 * i + 8])
    assert len(many.feed.blocks) <= 3


def train(batches, tier=None):
    """The losses of three recorded epochs."""
    model = nn.Linear(batches.device_queue, 64, 3)
    for p in model.parameters():
        p.value.fill_(0.01)
    opt = optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        with ag.Tape() as tape:
            loss = ag.mse_loss(model(ag.tensor(x)), ag.tensor(y))
        tape.backward(loss)
        opt.step()
        opt.zero_grad()
        return loss

    step = ag.CompiledStep(step, tier=tier)
    return [step(x, y).value.copy() for _ in range(3) for x, y in batches]


PAIRS = TensorDataset(X[:, 0], np.random.default_rng(1).standard_normal((50, 3)).astype(np.float32))


def test_recorded_steps_give_the_same_losses(gpu):
    def losses(workers, tier):
        found = train(loader(gpu, workers, 1, PAIRS, drop_last=True, shuffle=True), tier)
        return [loss.item() for loss in found]

    wanted = losses(0, None)
    assert len(wanted) == 18 and wanted[-1] < wanted[0]
    for tier in replay.available(gpu):
        assert losses(2, tier) == wanted


def test_recorded_steps_read_batches_where_they_are(gpu):
    train(loader(gpu, 0, 1, PAIRS, drop_last=True))  # makes what is kept for the sizes of this model
    kinds = []
    hook = lambda kind, *_: kinds.append(kind)  # noqa: E731
    opencl.copy_hooks.append(hook)
    try:
        train(loader(gpu, 1, 1, PAIRS, drop_last=True), "python")
    finally:
        opencl.copy_hooks.remove(hook)
    assert kinds.count("write") == 2 * 18
    assert kinds.count("copy") == 2 + 18  # the inputs of the recording, and the losses that `train` keeps


def test_a_profile_sees_the_copies(gpu):
    want = list(loader(None, 0))
    with KernelProfiler() as prof:
        found = [(x * 1.0, y) for x, y in loader(gpu, 2, 2)]
    same(arrays(found), want)
    assert {r.name: r.calls for r in prof.stats()}["write"] == 2 * 7
    assert prof.stats()[0].seconds > 0


def test_a_fork_is_told(gpu, monkeypatch):
    used = loader(gpu)
    list(used)
    monkeypatch.setattr(process, "forked", True)
    for batches in (used, loader(gpu)):
        with pytest.raises(DeviceError, match="got a fork"):
            next(iter(batches))


@pytest.mark.parametrize("place", ["lend", "enqueue"])
def test_a_profile_that_begins_or_ends_while_a_worker_copies(gpu, monkeypatch, place):
    """Only events of queues that take time stamps may be told to it."""
    many, prof, copied = loader(gpu, 1, 1), KernelProfiler(), []
    feed, turns = many._feed_of_queue(), iter([None, prof.start, None, None, prof.stop])
    owner, name = (feed, "lend") if place == "lend" else (cl, "enqueue_copy")
    original = getattr(owner, name)

    def between(*args, **options):
        turn = next(turns, None)
        if turn is not None:
            turn()
        return original(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, between)
        copied += many
    assert not prof.running and 1 <= len(prof.samples) <= 3
    same(arrays(copied), list(loader(None, 0)))


# -- ends --------------------------------------------------------------------------------------------------------------


class OwnError(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


class Failing(Dataset):
    """Squares, of which one cannot be read."""

    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == 5 and self.error is not None:
            raise self.error
        return np.full(3, index * index, np.float32)


@pytest.mark.parametrize("error", [OwnError(1, 2), KeyError("k"), StopIteration(7)], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("sent", [False, True])
def test_an_error_is_raised_once_where_its_batch_was_due(gpu, error, sent):
    data = Failing(error)
    batches = loader(gpu if sent else None, 3, 2, data, batch_size=2)
    pass_ = iter(batches)
    assert len([next(pass_), next(pass_)]) == 2
    kind = RuntimeError if isinstance(error, StopIteration) else type(error)  # as any generator that meets one
    with pytest.raises(kind) as caught:
        next(pass_)
    found = caught.value.__cause__ if isinstance(error, StopIteration) else caught.value
    assert found is error and "__getitem__" in [f.name for f in traceback.extract_tb(found.__traceback__)]
    said = " ".join([str(found), *getattr(found, "__notes__", [])])
    assert "in a worker of DataLoader, making batch 2 of samples [4, 5]" in said
    assert list(pass_) == []
    data.error = None
    assert len(list(batches)) == 5


@pytest.mark.parametrize("sent", [False, True])
def test_a_loop_left_early_leaves_nothing_behind(gpu, sent):
    batches = loader(gpu if sent else None, 2, 2, shuffle=True, drop_last=True)
    for _ in range(3):
        for _ in batches:
            break
    assert not [t for t in threading.enumerate() if t.name.startswith("netcl-data")]
    want = loader(None, 0, shuffle=True, drop_last=True)
    want.set_epoch(3)
    same(arrays(batches), list(want))
    if sent:
        assert len(batches.feed.blocks) <= 2 * (2 * 4 + 2) and batches.feed.pinned.stats.misses <= 2 * 2 * 4


@pytest.mark.parametrize("sent", [False, True])
def test_an_interrupt_ends_the_pass(gpu, sent):
    class Interrupting(Failing):
        def __getitem__(self, index):
            if index == 5 and self.error:
                _thread.interrupt_main()
                threading.Event().wait(0.2)  # the interrupt comes while the loop waits for this batch
            return super().__getitem__(0)

    data = Interrupting(OwnError(0, 0))
    batches = loader(gpu if sent else None, 1, 1, data, batch_size=2)
    with pytest.raises(KeyboardInterrupt):
        list(batches)
    data.error = None
    assert len(list(batches)) == 5
