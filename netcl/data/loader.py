"""DataLoader: batches of a dataset, in an order that differs by epoch and can be repeated."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from netcl.core.errors import add_note
from netcl.core.tensor import Tensor
from netcl.data.dataset import gather
from netcl.data.feed import Feed
from netcl.data.sampler import order_of

_Made = list[Any]  # [batch, shipment or None], emptied by who takes it: workers let go of a list somewhat later


class DataLoader:
    """Yields batches as NumPy arrays (a tuple of them when samples are tuples), or as tensors when `device_queue` is
    given: arrays in tuples, lists and dicts are sent, everything else is yielded as it is.

    `dataset` is a Dataset or any sequence of samples. With `shuffle` each epoch has an order of its own, decided by
    `seed` (None: another one in every run) and the epoch number, which counts the passes made and is part of
    `state_dict`. The last batch may be shorter unless `drop_last`. `sampler` gives the indices instead; `collate_fn`
    joins samples.

    With `num_workers` threads of this process make batches ahead, `prefetch` of them each, in the same order: reading,
    decoding and copying overlap with training where they let go of Python's lock, as NumPy does. The dataset is then
    used by several threads at once. What a worker raises is raised here once, in the place of its batch.

    For the `device_queue` of a GPU that has memory of its own, batches are put together in page-locked memory and
    copied by a second queue while the first one computes, which waits for the copy and nothing else does.
    Memory on both sides is used again: hold on to as many batches as you need, each then takes memory of its own. CPU
    devices and GPUs that share memory with the host gain nothing by a second queue; for them the queue itself copies.

    Args: pin_memory: accepted for compatibility; staging memory is chosen by the device.
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
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        prefetch: int = 2,
        device_queue: Any = None,
        pin_memory: bool | None = None,
    ) -> None:
        for name, value, least in (
            ("batch_size", batch_size, 1), ("num_workers", num_workers, 0), ("prefetch", prefetch, 1)
        ):  # fmt: skip
            if value < least:
                raise ValueError(f"DataLoader: expected {name} of at least {least}, got {value}.")
        if sampler is not None and shuffle:
            raise ValueError("DataLoader: expected either a sampler or shuffle=True, got both; shuffle in the sampler.")
        self.dataset, self.batch_size, self.shuffle, self.drop_last = dataset, batch_size, shuffle, drop_last
        self.seed = secrets.randbits(32) if seed is None else int(seed)
        self.sampler, self.collate_fn, self.device_queue = sampler, collate_fn, device_queue
        self.num_workers, self.prefetch = num_workers, prefetch
        self.epoch = 0
        self.feed: Feed | None = None  # memory and the second queue, made when they are first needed

    def set_epoch(self, epoch: int) -> None:
        """The number of the next pass."""
        self.epoch = epoch

    def indices(self) -> np.ndarray:
        """The order of the next pass."""
        if self.sampler is None:
            return order_of(len(self.dataset), self.shuffle, self.seed, self.epoch)
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(self.epoch)
        return np.fromiter(self.sampler, np.int64)

    def __len__(self) -> int:
        n = len(self.dataset if self.sampler is None else self.sampler)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        order = self.indices()
        self.epoch += 1
        stop = len(order) - self.batch_size + 1 if self.drop_last else len(order)
        parts = [order[start : start + self.batch_size] for start in range(0, stop, self.batch_size)]
        feed = self._feed_of_queue()
        if self.num_workers:
            yield from self._made_ahead(feed, parts)
            return
        for part in parts:
            batch = self._arrived(self._make(feed, part))
            yield batch
            del batch  # its memory is wanted

    def state_dict(self) -> dict[str, Any]:
        """What the next epoch's order depends on."""
        return {"epoch": self.epoch, "seed": self.seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the order of a saved loader."""
        self.epoch, self.seed = int(state["epoch"]), int(state["seed"])

    # -- batches made ahead ----------------------------------------------------------------------------------------

    def _made_ahead(self, feed: Feed | None, parts: list[np.ndarray]) -> Iterator[Any]:
        """The batches of `parts`, which threads make before they are asked for."""
        threads = ThreadPoolExecutor(self.num_workers, "netcl-data")
        jobs = (threads.submit(self._work, feed, number, part) for number, part in enumerate(parts))
        under_way: deque[Future[_Made]] = deque()
        try:
            under_way.extend(islice(jobs, self.num_workers * self.prefetch))
            while under_way:
                batch = self._arrived(under_way.popleft().result())
                under_way.extend(islice(jobs, 1))
                yield batch
                del batch
        finally:  # also when the loop over the batches is left early
            threads.shutdown(wait=True, cancel_futures=True)
            for future in under_way:
                if not future.cancelled() and future.exception() is None:
                    shipment = future.result().pop()
                    if shipment is not None:
                        shipment.drop()

    def _work(self, feed: Feed | None, number: int, part: np.ndarray) -> _Made:
        """Batch `number`, on a worker's thread."""
        try:
            return self._make(feed, part)
        except Exception as error:
            add_note(error, f"in a worker of DataLoader, making batch {number} of samples {part[:8].tolist()}")
            raise

    def _make(self, feed: Feed | None, part: np.ndarray) -> _Made:
        """The batch of samples `part`, on its way to the device if there is a feed."""
        shipment = None if feed is None else feed.shipment()
        try:
            batch = gather(self.dataset, part, self.collate_fn, np.empty if shipment is None else shipment.empty)
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


def _mapped(send: Callable[[np.ndarray], Tensor], batch: Any) -> Any:
    """`batch` with its arrays replaced by what `send` makes of them."""
    if isinstance(batch, (tuple, list)):
        parts = [_mapped(send, part) for part in batch]
        return parts if isinstance(batch, list) else tuple(parts)
    if isinstance(batch, dict):
        return {key: _mapped(send, part) for key, part in batch.items()}
    return send(batch) if isinstance(batch, np.ndarray) else batch
