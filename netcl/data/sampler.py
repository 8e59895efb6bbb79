"""Which samples in which order: by epoch, and by rank when several processes share a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from netcl.core.arguments import flag, whole
from netcl.core.errors import CheckpointError
from netcl.ops.create.random import philox


def order_of(n: int, shuffle: bool, seed: int, epoch: int) -> np.ndarray:
    """0 .. n-1, shuffled by (seed, epoch): another order each epoch, the same on every machine."""
    if not shuffle:
        return np.arange(n)
    words = philox(epoch << 32, n, seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    return np.argsort(words, kind="stable")


def check_counts(where: str, state: Any, least: Mapping[str, int | None]) -> None:
    """Raise CheckpointError unless `state` holds whole numbers of at least these under these names."""
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{where}.load_state_dict: expected a dict, got {type(state).__name__}.")
    for name, limit in least.items():
        try:
            whole(f"{where}.load_state_dict", name, state.get(name), limit)
        except (TypeError, ValueError) as error:
            raise CheckpointError(str(error)) from None


def whole_numbers(where: str, name: str, given: Any) -> np.ndarray:
    """`given` as int64. Raises TypeError for floats, which would be cut, and for masks, which would give 0 and 1."""
    expected = f"{where}: expected {name} as a list of whole numbers, got"
    if not hasattr(given, "__iter__"):
        raise TypeError(f"{expected} {type(given).__name__}.")
    found = np.asarray(given if isinstance(given, np.ndarray) else list(given))
    if found.size and (found.dtype.kind not in "iu" or found.ndim != 1):
        hint = "; take np.flatnonzero of a mask" if found.dtype.kind == "b" else ""
        raise TypeError(f"{expected} an array of {found.dtype} with {found.ndim} axes{hint}.")
    return found.reshape(-1).astype(np.int64)


class DistributedSampler:
    """The share of one rank: positions rank, rank + num_replicas, ... of an order that all ranks agree on.

    Shares are equally long: the order is padded with samples from its start, or with `drop_last` cut at its end. The
    order changes with the epoch, which `set_epoch` tells (a DataLoader does so by itself).
    """

    def __init__(
        self, dataset: Any, num_replicas: int, rank: int, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> None:
        where = "DistributedSampler"
        self.num_replicas, self.rank = whole(where, "num_replicas", num_replicas, 1), whole(where, "rank", rank)
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"{where}: expected a rank in [0, {num_replicas}), got {rank}.")
        self.length, self.epoch = len(dataset), 0
        self.shuffle, self.drop_last = flag(where, "shuffle", shuffle), flag(where, "drop_last", drop_last)
        self.seed = whole(where, "seed", seed)

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next pass belongs to."""
        self.epoch = whole("DistributedSampler.set_epoch", "epoch", epoch, 0)

    def state_dict(self) -> dict[str, int]:
        """What the order depends on, the same on every rank."""
        return {"epoch": self.epoch, "seed": self.seed}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise CheckpointError for what `load_state_dict` would refuse."""
        check_counts("DistributedSampler", state, {"epoch": 0, "seed": None})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the order of a saved sampler. Raises CheckpointError, changing nothing."""
        self.check_state(state)
        self.epoch, self.seed = int(state["epoch"]), int(state["seed"])

    def __len__(self) -> int:
        n = self.length if self.drop_last else self.length + self.num_replicas - 1
        return n // self.num_replicas

    def __iter__(self) -> Iterator[int]:
        order = order_of(self.length, self.shuffle, self.seed, self.epoch)
        total = len(self) * self.num_replicas
        if self.length:
            order = np.resize(order, total)  # repeats from the start, or cuts
        return iter(order[self.rank : total : self.num_replicas].tolist())
