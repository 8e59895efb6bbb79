"""Datasets: indexable collections of samples on the host."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from netcl.core.arguments import whole
from netcl.core.errors import DTypeError, IndexOutOfRange, ShapeError
from netcl.core.tensor import Tensor
from netcl.data.randomness import Generators, call, takes
from netcl.data.sampler import order_of, whole_numbers

Empty = Callable[..., np.ndarray]  # as np.empty(shape, dtype)


class Dataset:
    """Base: subclasses say how many samples there are and give each by its index (an array, a number, or a tuple of
    them).

    A subclass that can gather many samples at once also defines `batch(indices)`, which spares the loader a Python
    loop; or `batch(indices, empty=np.empty)`, which takes the memory of what it returns from `empty(shape, dtype)`.
    Devices may copy from there, and it is written again for another batch.

    A dataset that draws random numbers takes a generator: `__getitem__(index, rng)`, or `batch(indices, rngs)` with one
    for each sample. The loader hands over `numpy.random.Generator`s that (seed, epoch, index) decide, so results are
    the same for any number of workers.
    """

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__}: expected a method __len__().")

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__}: expected a method __getitem__(index).")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} samples)"


class TensorDataset(Dataset):
    """Arrays of equal length; sample i is a tuple of their i-th elements (the element itself for a single array)."""

    def __init__(self, *arrays: Any) -> None:
        if not arrays:
            raise ShapeError("TensorDataset: expected at least one array, got none.")
        try:
            self.arrays = tuple(a.to_host() if isinstance(a, Tensor) else np.asarray(a) for a in arrays)
        except ValueError as error:  # rows of different lengths
            raise ShapeError(f"TensorDataset: expected arrays, got what makes none: {error}") from None
        lengths = [a.shape[0] if a.ndim else None for a in self.arrays]
        if None in lengths or len(set(lengths)) > 1:
            raise ShapeError(
                f"TensorDataset: expected arrays of one length, got shapes {[a.shape for a in self.arrays]}."
            )

    def __repr__(self) -> str:
        shown = ", ".join(f"{a.shape} {a.dtype}" for a in self.arrays)
        return f"{type(self).__name__}({shown})"

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexOutOfRange(f"TensorDataset: expected an index in [{-len(self)}, {len(self)}), got {index}.")
        return self.batch(index)

    def batch(self, indices: Any, empty: Empty = np.empty) -> Any:
        """The samples at `indices`, gathered from each array."""
        found = tuple(_rows(a, indices, empty) for a in self.arrays)
        return found[0] if len(found) == 1 else found


class Subset(Dataset):
    """The samples of `dataset` at `indices`."""

    def __init__(self, dataset: Any, indices: Any) -> None:
        self.dataset, self.indices = dataset, whole_numbers("Subset", "indices", indices)
        bad = self.indices[(self.indices < 0) | (self.indices >= len(dataset))]
        if bad.size:
            raise IndexOutOfRange(f"Subset: expected indices in [0, {len(dataset)}), got {bad[0]}.")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} of {self.dataset!r})"

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[int(self.indices[index])]

    def batch(self, indices: Any, empty: Empty = np.empty, rngs: Sequence[np.random.Generator] | None = None) -> Any:
        """The samples at `indices` of the subset."""
        return gather(self.dataset, self.indices[indices], empty=empty, rngs=rngs)


def _rows(array: np.ndarray, indices: Any, empty: Empty) -> Any:
    """`array[indices]`; whole positions in memory from `empty`."""
    many = isinstance(indices, np.ndarray) and indices.ndim == 1 and indices.dtype.kind in "iu"
    if not many or not array.flags.c_contiguous:
        return array[indices]
    out = empty((len(indices), *array.shape[1:]), array.dtype)
    if indices.size and indices.min() >= 0 and indices.max() < len(array):
        return np.take(array, indices, 0, out, mode="clip")  # the mode that writes to `out` without a detour
    out[...] = array[indices]  # counts from the end, or raises
    return out


def gather(
    dataset: Any,
    indices: np.ndarray,
    collate: Any = None,
    empty: Empty = np.empty,
    rngs: Sequence[np.random.Generator] | None = None,
    transform: Any = None,
) -> Any:
    """The samples of `dataset` at `indices` as one batch, in memory from `empty` where the dataset can do that.

    `rngs` are generators, one for each sample, for whatever takes one.
    """
    if collate is None and transform is None and _gathers(dataset):
        options: dict[str, Any] = {"empty": empty} if takes(dataset.batch, "empty") else {}
        if rngs is not None and takes(dataset.batch, "rngs"):
            options["rngs"] = rngs
        return dataset.batch(indices, **options)
    samples = []
    for k, index in enumerate(indices):
        sample = _sample(dataset, int(index), rngs, k)
        if transform is not None:
            sample = transform(sample) if rngs is None else call(transform, sample, rng=partial(rngs.__getitem__, k))
        samples.append(sample)
    if collate is None:
        return default_collate(samples, empty)
    return call(collate, samples, rng=rngs.of_batch) if isinstance(rngs, Generators) else collate(samples)


def _gathers(dataset: Any) -> bool:
    """Whether `batch` says what `dataset[i]` does: not where a subclass gave samples another meaning."""
    for kind in type(dataset).__mro__:
        if "batch" in vars(kind) or "__getitem__" in vars(kind):
            return "batch" in vars(kind)
    return False


def _sample(dataset: Any, index: int, rngs: Sequence[np.random.Generator] | None, k: int) -> Any:
    """Sample `index`, with generator k where the dataset takes one."""
    while type(dataset).__getitem__ is Subset.__getitem__:
        dataset, index = dataset.dataset, int(dataset.indices[index])
    if rngs is not None and takes(type(dataset).__getitem__, "rng"):
        return dataset.__getitem__(index, rng=rngs[k])
    return dataset[index]


def default_collate(samples: Sequence[Any], empty: Empty = np.empty) -> Any:
    """Samples joined along a new first axis: arrays and numbers are stacked, tuples, lists and dicts handled by entry.

    Python floats become float32 and whole numbers int64. Named tuples and other subclasses stay what they are.
    `empty(shape, dtype)` gives the memory of stacked arrays. Raises ShapeError for samples that differ in form.
    """
    first = samples[0]
    if isinstance(first, (tuple, list)):
        if len({len(s) if isinstance(s, (tuple, list)) else None for s in samples}) > 1:
            raise ShapeError("DataLoader: expected samples with the same number of entries, got several; pad them.")
        return alike(first, [default_collate(column, empty) for column in zip(*samples, strict=True)])
    if isinstance(first, dict):
        wrong = next((s for s in samples if not isinstance(s, Mapping) or s.keys() != first.keys()), None)
        if wrong is not None:
            got = list(wrong) if isinstance(wrong, Mapping) else type(wrong).__name__
            raise ShapeError(f"DataLoader: expected samples with the same keys, got {list(first)} and {got}.")
        return alike(first, {key: default_collate([s[key] for s in samples], empty) for key in first})
    if isinstance(first, (str, bytes)):
        return list(samples)
    if any(type(s) is float for s in samples) and all(type(s) in (int, float) for s in samples):
        return np.asarray(samples, np.float32)
    arrays = [s.to_host() if isinstance(s, Tensor) else np.asarray(s) for s in samples]
    strange = [s for s, a in zip(samples, arrays) if a.dtype == object and not isinstance(s, np.ndarray)]
    if strange:
        raise DTypeError(
            f"DataLoader: expected samples of arrays, numbers, text, tuples, lists or dicts, got {strange[0]!r:.60}; "
            "give a collate_fn for others."
        )
    if len({a.shape for a in arrays}) > 1:
        raise ShapeError(
            f"DataLoader: expected samples of one shape, got {sorted({a.shape for a in arrays})}; "
            "pad them or give a collate_fn."
        )
    if len({a.dtype for a in arrays}) > 1:
        return np.stack(arrays)  # promotes
    return np.stack(arrays, out=empty((len(arrays), *arrays[0].shape), arrays[0].dtype))


def alike(container: Any, parts: Any) -> Any:
    """`parts` in a tuple, list or dict of the class of `container`, whatever its constructor takes."""
    kind = type(container)
    if isinstance(container, tuple):
        return tuple(parts) if kind is tuple else tuple.__new__(kind, parts)
    if kind in (list, dict):
        return kind(parts)
    found = copy.copy(container)
    if isinstance(container, dict):
        found.update(parts)
    else:
        found[:] = parts
    return found


def random_split(dataset: Any, lengths: Sequence[float], seed: int = 0) -> list[Subset]:
    """`dataset` cut at random into subsets of the given lengths, or shares that add up to 1; reproducible by `seed`."""
    if not hasattr(lengths, "__iter__"):
        raise TypeError(f"random_split: expected lengths as a list, got {lengths!r}.")
    n, sizes = len(dataset), list(lengths)
    whole("random_split", "seed", seed)
    if any(isinstance(s, (float, np.floating)) for s in sizes):
        if not (all(math.isfinite(s) for s in sizes) and abs(sum(sizes) - 1) <= 1e-6 and min(sizes) >= 0):
            raise ValueError(f"random_split: expected shares that add up to 1, got {sizes}.")
        ends = [round(n * sum(sizes[: i + 1])) for i in range(len(sizes))]
        sizes = [b - a for a, b in zip([0, *ends[:-1]], ends)]
    sizes = [whole("random_split", "lengths", s) for s in sizes]
    if not sizes or sum(sizes) != n or min(sizes) < 0:
        raise ValueError(f"random_split: expected lengths that add up to {n}, got {sizes}.")
    order = order_of(n, True, seed, 0)
    parts = np.split(order, np.cumsum(sizes)[:-1])
    return [Subset(dataset, part) for part in parts]
