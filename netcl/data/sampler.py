"""Which samples in which order: by epoch, and by rank when several processes share a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from netcl.ops.create.random import philox


def order_of(n: int, shuffle: bool, seed: int, epoch: int) -> np.ndarray:
    """0 .. n-1, shuffled by (seed, epoch): another order each epoch, the same on every machine."""
    if not shuffle:
        return np.arange(n)
    words = philox(epoch << 32, n, seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    return np.argsort(words, kind="stable")


class DistributedSampler:
    """The share of one rank: positions rank, rank + num_replicas, ... of an order that all ranks agree on.

    Shares are equally long: the order is padded with samples from its start, or with `drop_last` cut at its end. The
    order changes with the epoch, which `set_epoch` tells (a DataLoader does so by itself).
    """

    def __init__(
        self, dataset: Any, num_replicas: int, rank: int, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> None:
        if not 0 <= rank < num_replicas:
            raise ValueError(f"DistributedSampler: expected a rank in [0, {num_replicas}), got {rank}.")
        self.length, self.num_replicas, self.rank = len(dataset), num_replicas, rank
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next pass belongs to."""
        self.epoch = epoch

    def __len__(self) -> int:
        n = self.length if self.drop_last else self.length + self.num_replicas - 1
        return n // self.num_replicas

    def __iter__(self) -> Iterator[int]:
        order = order_of(self.length, self.shuffle, self.seed, self.epoch)
        total = len(self) * self.num_replicas
        if self.length:
            order = np.resize(order, total)  # repeats from the start, or cuts
        return iter(order[self.rank : total : self.num_replicas].tolist())
