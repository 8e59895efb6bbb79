"""DataLoader: batches of a dataset, in an order that differs by epoch and can be repeated."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from netcl.core.tensor import Tensor
from netcl.data.dataset import gather
from netcl.data.sampler import order_of


class DataLoader:
    """Yields batches as NumPy arrays (a tuple of them when samples are tuples), or as tensors when `device_queue` is
    given.

    `dataset` is a Dataset or any sequence of samples. With `shuffle` each epoch has an order of its own, decided by
    `seed` (None: another one in every run) and the epoch number, which counts the passes made and is part of
    `state_dict`. The last batch may be shorter unless `drop_last`. `sampler` gives the indices instead; `collate_fn`
    joins samples.
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
        device_queue: Any = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"DataLoader: expected batch_size of at least 1, got {batch_size}.")
        if num_workers:
            raise ValueError(
                f"DataLoader: expected num_workers=0 (samples are read in this process), got {num_workers}."
            )
        if sampler is not None and shuffle:
            raise ValueError("DataLoader: expected either a sampler or shuffle=True, got both; shuffle in the sampler.")
        self.dataset, self.batch_size, self.shuffle, self.drop_last = dataset, batch_size, shuffle, drop_last
        self.seed = secrets.randbits(32) if seed is None else int(seed)
        self.sampler, self.collate_fn, self.device_queue = sampler, collate_fn, device_queue
        self.epoch = 0

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
        for start in range(0, stop, self.batch_size):
            batch = gather(self.dataset, order[start : start + self.batch_size], self.collate_fn)
            yield batch if self.device_queue is None else _send(self.device_queue, batch)

    def state_dict(self) -> dict[str, Any]:
        """What the next epoch's order depends on."""
        return {"epoch": self.epoch, "seed": self.seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the order of a saved loader."""
        self.epoch, self.seed = int(state["epoch"]), int(state["seed"])


def _send(queue: Any, batch: Any) -> Any:
    """The arrays of a batch as tensors."""
    if isinstance(batch, tuple):
        return tuple(_send(queue, part) for part in batch)
    if isinstance(batch, dict):
        return {key: _send(queue, part) for key, part in batch.items()}
    return Tensor.from_host(queue, batch) if isinstance(batch, np.ndarray) else batch
