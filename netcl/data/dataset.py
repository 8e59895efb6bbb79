"""Datasets: indexable collections of samples on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netcl.core.errors import IndexOutOfRange, ShapeError
from netcl.core.tensor import Tensor
from netcl.data.sampler import order_of


class Dataset:
    """Base: subclasses say how many samples there are and give each by its index (an array, a number, or a tuple of
    them).

    A subclass that can gather many samples at once also defines `batch(indices)`, which spares the loader a Python
    loop.
    """

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__}: expected a method __len__().")

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__}: expected a method __getitem__(index).")


class TensorDataset(Dataset):
    """Arrays of equal length; sample i is a tuple of their i-th elements (the element itself for a single array)."""

    def __init__(self, *arrays: Any) -> None:
        if not arrays:
            raise ShapeError("TensorDataset: expected at least one array, got none.")
        self.arrays = tuple(a.to_host() if isinstance(a, Tensor) else np.asarray(a) for a in arrays)
        lengths = [a.shape[0] if a.ndim else None for a in self.arrays]
        if None in lengths or len(set(lengths)) > 1:
            raise ShapeError(
                f"TensorDataset: expected arrays of one length, got shapes {[a.shape for a in self.arrays]}."
            )

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexOutOfRange(f"TensorDataset: expected an index in [{-len(self)}, {len(self)}), got {index}.")
        return self.batch(index)

    def batch(self, indices: Any) -> Any:
        """The samples at `indices`, gathered from each array."""
        found = tuple(a[indices] for a in self.arrays)
        return found[0] if len(found) == 1 else found


class Subset(Dataset):
    """The samples of `dataset` at `indices`."""

    def __init__(self, dataset: Any, indices: Any) -> None:
        self.dataset, self.indices = dataset, np.asarray(indices, np.int64)
        bad = self.indices[(self.indices < 0) | (self.indices >= len(dataset))]
        if bad.size:
            raise IndexOutOfRange(f"Subset: expected indices in [0, {len(dataset)}), got {bad[0]}.")

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[int(self.indices[index])]

    def batch(self, indices: Any) -> Any:
        """The samples at `indices` of the subset."""
        return gather(self.dataset, self.indices[indices])


def gather(dataset: Any, indices: np.ndarray, collate: Any = None) -> Any:
    """The samples of `dataset` at `indices` as one batch."""
    if collate is None and hasattr(dataset, "batch"):
        return dataset.batch(indices)
    return (collate or default_collate)([dataset[int(i)] for i in indices])


def default_collate(samples: Sequence[Any]) -> Any:
    """Samples joined along a new first axis: arrays and numbers are stacked, tuples and dicts handled by entry.

    Python floats become float32 and whole numbers int64.
    """
    first = samples[0]
    if isinstance(first, (tuple, list)):
        return tuple(default_collate(column) for column in zip(*samples, strict=True))
    if isinstance(first, dict):
        return {key: default_collate([s[key] for s in samples]) for key in first}
    if isinstance(first, (str, bytes)):
        return list(samples)
    if isinstance(first, float) and not isinstance(first, np.generic):
        return np.asarray(samples, np.float32)
    arrays = [s.to_host() if isinstance(s, Tensor) else np.asarray(s) for s in samples]
    if len({a.shape for a in arrays}) > 1:
        raise ShapeError(
            f"DataLoader: expected samples of one shape, got {sorted({a.shape for a in arrays})}; "
            "pad them or give a collate_fn."
        )
    return np.stack(arrays)


def random_split(dataset: Any, lengths: Sequence[float], seed: int = 0) -> list[Subset]:
    """`dataset` cut at random into subsets of the given lengths, or shares that add up to 1; reproducible by `seed`."""
    n, sizes = len(dataset), list(lengths)
    if any(isinstance(s, float) for s in sizes):
        if abs(sum(sizes) - 1) > 1e-6 or min(sizes) < 0:
            raise ValueError(f"random_split: expected shares that add up to 1, got {sizes}.")
        ends = [round(n * sum(sizes[: i + 1])) for i in range(len(sizes))]
        sizes = [b - a for a, b in zip([0, *ends[:-1]], ends)]
    if sum(sizes) != n or min(sizes) < 0:
        raise ValueError(f"random_split: expected lengths that add up to {n}, got {sizes}.")
    order = order_of(n, True, seed, 0)
    parts = np.split(order, np.cumsum([int(s) for s in sizes])[:-1])
    return [Subset(dataset, part) for part in parts]
