"""DataLoader: batches of a dataset, in an order that differs by epoch and can be repeated."""

from __future__ import annotations

import secrets
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from netcl.core.arguments import flag, whole
from netcl.core.device import queue_of
from netcl.core.errors import CheckpointError, DataError, DTypeError, add_note
from netcl.core.tensor import Tensor
from netcl.data.dataset import alike, gather
from netcl.data.feed import Feed
from netcl.data.randomness import Generators, global_state
from netcl.data.sampler import check_counts, order_of, whole_numbers

_COUNTS = {"epoch": 0, "seed": None, "position": 0}  # of a saved loader, and the least they can be
_Job = tuple[int, np.ndarray]  # the number of a batch and its samples
_Made = list[Any]  # [batch, shipment or None], emptied by who takes it: workers let go of a list somewhat later


class _Pass:
    """One pass over the data: what its order came from, and how far it has got."""

    def __init__(self, epoch: int, sampler: Any, order: np.ndarray, position: int, stop: int) -> None:
        self.epoch, self.sampler, self.order = epoch, sampler, order  # the sampler's state before it gave the order
        self.position, self.stop = position, stop  # samples handed out, and at its end
        self.ended = False


class DataLoader:
    """Yields batches as NumPy arrays (a tuple of them when samples are tuples), or as tensors when `device_queue` is
    given: arrays in tuples, lists and dicts are sent, everything else is yielded as it is. Named tuples and other
    subclasses of these stay what they are.

    `dataset` is a Dataset or any sequence of samples. With `shuffle` each epoch has an order of its own, decided by
    `seed` (None: another one in every run) and the epoch number, which counts the passes begun. The last batch may be
    shorter unless `drop_last`. `sampler` gives the indices instead; `transform` is applied to each sample; `collate_fn`
    joins samples.

    Random numbers: a dataset, transform or collate_fn with a parameter `rng` (see `Dataset`) gets a
    `numpy.random.Generator` decided by seed, epoch and index, the same for any number of workers. Drawing from the
    global generators in workers is warned about: their turns differ from run to run.

    `state_dict` holds the position in the pass, so a run saved inside an epoch goes on with the batch after the last
    one that was yielded; so does one saved after a pass was left early, unless `set_epoch` begins another. A sampler
    that has `state_dict` and `load_state_dict` is saved with it; of one that has not, the rest of its order is.

    With `num_workers` threads of this process make batches ahead, `prefetch` of them each, in the same order: reading,
    decoding and copying overlap with training where they let go of Python's lock, as NumPy does. The dataset is then
    used by several threads at once. What a worker raises is raised here once, in the place of its batch.

    For the `device_queue` of a GPU that has memory of its own, batches are put together in page-locked memory and
    copied by a second queue while the first one computes, which waits for the copy and nothing else does.
    Memory on both sides is used again: hold on to as many batches as you need, each then takes memory of its own. CPU
    devices and GPUs that share memory with the host gain nothing by a second queue; for them the queue itself copies.

    Args: device_queue: a queue, a device's handle or its name ("auto", "cpu", "gpu:1").
        pin_memory: accepted for compatibility; staging memory is chosen by the device.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        drop_last: bool = False,
        seed: int | None = 0,
        sampler: Any = None,
        transform: Callable[..., Any] | None = None,
        collate_fn: Callable[..., Any] | None = None,
        num_workers: int = 0,
        prefetch: int = 2,
        device_queue: Any = None,
        pin_memory: bool | None = None,
    ) -> None:
        where = type(self).__name__
        if not (hasattr(type(dataset), "__getitem__") and hasattr(type(dataset), "__len__")):
            raise DTypeError(f"{where}: expected a dataset with __len__ and __getitem__, got {type(dataset).__name__}.")
        if sampler is not None and (not hasattr(sampler, "__iter__") or hasattr(sampler, "__next__")):
            got = f"{type(sampler).__name__}{', which ends after one' * hasattr(sampler, '__next__')}"
            raise DTypeError(f"{where}: expected a sampler that gives indices for each pass, got {got}.")
        for name, function in (("transform", transform), ("collate_fn", collate_fn)):
            if function is not None and not callable(function):
                raise DTypeError(f"{where}: expected {name} as a function, got {type(function).__name__}.")
        self.dataset, self.sampler, self.transform, self.collate_fn = dataset, sampler, transform, collate_fn
        self.batch_size = whole(where, "batch_size", batch_size, 1)
        self.num_workers = whole(where, "num_workers", num_workers, 0)
        self.prefetch = whole(where, "prefetch", prefetch, 1)
        self.shuffle, self.drop_last = flag(where, "shuffle", shuffle), flag(where, "drop_last", drop_last)
        if sampler is not None and self.shuffle:
            raise ValueError(f"{where}: expected either a sampler or shuffle=True, got both; shuffle in the sampler.")
        self.seed = secrets.randbits(32) if seed is None else whole(where, "seed", seed)
        self.device_queue = None if device_queue is None else queue_of("DataLoader: device_queue", device_queue)
        self.epoch = 0
        self._pass: _Pass | None = None  # the one begun last
        self._resume: dict[str, Any] = {}  # what is left of a saved pass: position, and the order where it was saved
        self._warned = False
        self.feed: Feed | None = None  # memory and the second queue, made when they are first needed

    def __repr__(self) -> str:
        given = {"batch_size": self.batch_size, "shuffle": self.shuffle, "drop_last": self.drop_last}
        given |= {"sampler": self.sampler} if self.sampler is not None else {"seed": self.seed}
        given |= {"num_workers": self.num_workers} if self.num_workers else {}
        settings = ", ".join(f"{name}={value!r}" for name, value in given.items())
        return f"{type(self).__name__}({self.dataset!r}, {len(self)} batches, {settings})"

    def set_epoch(self, epoch: int) -> None:
        """The number of the next pass, which starts at its first batch."""
        self.epoch = whole(f"{type(self).__name__}.set_epoch", "epoch", epoch, 0)
        self._pass, self._resume = None, {}

    def indices(self) -> np.ndarray:
        """The order of the next pass."""
        if self.sampler is None:
            return order_of(len(self.dataset), self.shuffle, self.seed, self.epoch)
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(self.epoch)
        return whole_numbers(type(self).__name__, "the indices of the sampler", self.sampler)

    def __len__(self) -> int:
        n = len(self.dataset if self.sampler is None else self.sampler)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        now = self._begin()
        starts = range(now.position, now.stop, self.batch_size)
        parts = [now.order[start : min(start + self.batch_size, now.stop)] for start in starts]
        feed, numbers = self._feed_of_queue(), range(now.position // self.batch_size, 1 << 62)
        made = self._made_ahead if self.num_workers else self._made_here
        try:
            with closing(made(feed, now.epoch, zip(numbers, parts))) as batches:
                for batch in batches:
                    now.position = min(now.position + self.batch_size, now.stop)
                    yield batch
                    del batch  # its memory is wanted
        finally:
            now.ended = now.position >= now.stop

    def _begin(self) -> _Pass:
        """A new pass, or the rest of a saved one."""
        epoch, sampler, resume = self.epoch, _saved(self.sampler), self._resume
        order = np.asarray(resume["order"], np.int64) if "order" in resume else self.indices()
        position = 0 if "order" in resume else int(resume.get("position", 0))
        if position > len(order):
            raise CheckpointError(
                f"{type(self).__name__}: expected at least {position} samples to resume from, got {len(order)}."
            )
        stop = len(order) - (len(order) - position) % self.batch_size if self.drop_last else len(order)
        self.epoch, self._resume = epoch + 1, {}
        self._pass = now = _Pass(epoch, sampler, order, position, stop)
        return now

    # -- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What the batches to come depend on, as plain data."""
        now = self._pass
        if now is None or now.ended:
            saved = _saved(self.sampler)
            state = {"epoch": self.epoch, "seed": self.seed, "position": 0, **self._resume}
        else:
            saved = now.sampler
            state = {"epoch": now.epoch, "seed": self.seed, "position": now.position}
            if self.sampler is not None and saved is None and not hasattr(self.sampler, "set_epoch"):
                rest = now.order[now.position :].tolist()
                state |= {"order": rest} if rest else {}
        return state if saved is None else {**state, "sampler": saved}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise CheckpointError for what `load_state_dict` would refuse."""
        where = type(self).__name__
        check_counts(where, {"position": 0, **state} if isinstance(state, Mapping) else state, _COUNTS)
        where, position, order = f"{where}.load_state_dict", state.get("position", 0), state.get("order", [])
        n = len(self.dataset)
        most = n if self.sampler is None else getattr(self.sampler, "__len__", lambda: position)()
        if position > most:
            raise CheckpointError(f"{where}: expected a position of at most {most} samples, got {position}.")
        good = isinstance(order, list) and all(isinstance(i, int) and -n <= i < n for i in order)
        if not good or (order and self.sampler is None):
            expected = f"indices in [{-n}, {n})" if self.sampler is not None else "none without a sampler"
            raise CheckpointError(f"{where}: expected an order of {expected}, got another.")
        if ("sampler" in state) != _stateful(self.sampler):
            ours, theirs = ("one", "none") if _stateful(self.sampler) else ("none", "one")
            raise CheckpointError(f"{where}: expected {ours} of a sampler with a state, got {theirs}.")
        if hasattr(self.sampler, "check_state"):
            self.sampler.check_state(state["sampler"])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the batch after the last one that the saved loader yielded. Raises CheckpointError."""
        self.check_state(state)
        if "sampler" in state:
            self.sampler.load_state_dict(state["sampler"])
        self.epoch, self.seed, self._pass = int(state["epoch"]), int(state["seed"]), None
        self._resume = {k: state[k] for k in ("position", "order") if state.get(k)}

    # -- batches made ahead ----------------------------------------------------------------------------------------

    def _made_here(self, feed: Feed | None, epoch: int, jobs: Iterator[_Job]) -> Generator[Any, None, None]:
        """The batches of `jobs`, each made when it is asked for."""
        for number, part in jobs:
            try:
                made = self._make(feed, epoch, part)
            except StopIteration as error:
                raise _unfinished(error, f"making batch {number}") from error
            yield self._arrived(made)

    def _made_ahead(self, feed: Feed | None, epoch: int, jobs: Iterator[_Job]) -> Generator[Any, None, None]:
        """The batches of `jobs`, which threads make before they are asked for."""
        threads, before = ThreadPoolExecutor(self.num_workers, "netcl-data"), None if self._warned else global_state()
        sent = (threads.submit(self._work, feed, epoch, number, part) for number, part in jobs)
        under_way: deque[Future[_Made]] = deque()
        try:
            under_way.extend(islice(sent, self.num_workers * self.prefetch))
            while under_way:
                batch = self._arrived(under_way.popleft().result())
                if before is not None and before != global_state():  # up to here this thread only waited
                    self._warn()
                before = None
                under_way.extend(islice(sent, 1))
                yield batch
                del batch
        finally:  # also when the loop over the batches is left early
            threads.shutdown(wait=True, cancel_futures=True)
            for future in under_way:
                if not future.cancelled() and future.exception() is None:
                    shipment = future.result().pop()
                    if shipment is not None:
                        shipment.drop()

    def _warn(self) -> None:
        self._warned = True
        warnings.warn(
            f"{type(self).__name__}: random numbers were drawn from a global generator (numpy.random or random) while "
            "workers made the first batch; their turns differ from run to run. Take a generator instead, as "
            "__getitem__(self, index, rng) or transform(sample, rng): the loader gives each sample one of its own.",
            stacklevel=4,
        )

    def _work(self, feed: Feed | None, epoch: int, number: int, part: np.ndarray) -> _Made:
        """Batch `number`, on a worker's thread."""
        where = f"in a worker of DataLoader, making batch {number} of samples {part[:8].tolist()}"
        try:
            return self._make(feed, epoch, part)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if isinstance(error, Exception):
                add_note(error, where)
                if not isinstance(error, StopIteration):
                    raise
            raise _unfinished(error, where) from error

    def _make(self, feed: Feed | None, epoch: int, part: np.ndarray) -> _Made:
        """The batch of samples `part`, on its way to the device if there is a feed."""
        shipment = None if feed is None else feed.shipment()
        empty, rngs = np.empty if shipment is None else shipment.empty, Generators(self.seed, epoch, part)
        try:
            batch = gather(self.dataset, part, self.collate_fn, empty, rngs, self.transform)
            return [batch if shipment is None else _mapped(shipment.send, batch), shipment]
        except BaseException:
            if shipment is not None:
                shipment.drop()
            raise

    def _arrived(self, made: _Made) -> Any:
        """The batch, as tensors if there is a queue for them."""
        queue, shipment, batch = self.device_queue, made.pop(), made.pop()
        if shipment is not None:
            shipment.deliver()
        elif queue is not None:
            batch = _mapped(partial(Tensor.from_host, queue), batch)
        return batch

    def _feed_of_queue(self) -> Feed | None:
        if self.device_queue is None or not Feed.suits(self.device_queue):
            return None
        if self.feed is None or self.feed.queue is not self.device_queue:
            self.feed = Feed(self.device_queue, max(1, self.num_workers * self.prefetch))
        return self.feed


def _unfinished(error: BaseException, where: str) -> DataError:
    """For what would end a loop or the whole program without a word: StopIteration, SystemExit."""
    return DataError(f"DataLoader: expected a batch, got {type(error).__name__}({error}) {where}.")


def _mapped(send: Callable[[np.ndarray], Tensor], batch: Any) -> Any:
    """`batch` with its arrays replaced by what `send` makes of them."""
    if isinstance(batch, (tuple, list)):
        return alike(batch, [_mapped(send, part) for part in batch])
    if isinstance(batch, dict):
        return alike(batch, {key: _mapped(send, part) for key, part in batch.items()})
    return send(batch) if isinstance(batch, np.ndarray) else batch


def _stateful(sampler: Any) -> bool:
    """Whether a sampler can say where it is and be put there."""
    return hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")


def _saved(sampler: Any) -> Any:
    """The state of a sampler that has one."""
    return sampler.state_dict() if _stateful(sampler) else None
