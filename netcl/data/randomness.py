"""Random numbers for samples: a generator for each, decided by (seed, epoch, index) alone.

So what a dataset or a transform draws is the same for any number of workers, after resuming, and on every machine.
Global generators (`numpy.random.rand`, `random.random`) are shared by all threads, whose turns differ from run to run.
"""

from __future__ import annotations

import functools
import inspect
import pickle
import random
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np

SAMPLE, BATCH = range(2)  # streams of one (seed, epoch)
_MASK = 0xFFFFFFFFFFFFFFFF


class Generators(Sequence[np.random.Generator]):
    """`generators[i]` is a new generator for sample `indices[i]`, made when it is asked for.

    Philox with the key (seed, epoch), starting at block index * 2^192: streams of different samples never meet.
    """

    def __init__(self, seed: int, epoch: int, indices: Sequence[int] | np.ndarray) -> None:
        self.seed, self.epoch, self.indices = seed, epoch, indices

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, i: int) -> np.random.Generator: ...
    @overload
    def __getitem__(self, i: slice) -> Generators: ...
    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return Generators(self.seed, self.epoch, self.indices[i])
        return self._generator(SAMPLE, int(self.indices[i]))

    def of_batch(self) -> np.random.Generator:
        """A generator for what is drawn once for the whole batch, decided by its first sample."""
        return self._generator(BATCH, int(self.indices[0]) if len(self.indices) else 0)

    def _generator(self, stream: int, index: int) -> np.random.Generator:
        key = np.array([self.seed & _MASK, self.epoch & _MASK], np.uint64)
        counter = np.array([0, 0, stream, index & _MASK], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))


def takes(fn: Any, name: str) -> bool:
    """Whether `fn` has a parameter of that name."""
    try:
        return name in _parameters(getattr(fn, "__func__", fn))
    except TypeError:  # not hashable
        return name in _parameters.__wrapped__(fn)


@functools.lru_cache(maxsize=256)
def _parameters(fn: Any) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(fn).parameters)
    except (TypeError, ValueError):  # some functions written in C
        return frozenset()


def call(fn: Callable[..., Any], *args: Any, rng: Callable[[], np.random.Generator]) -> Any:
    """`fn(*args)`, with a generator where it has a parameter `rng`."""
    return fn(*args, rng=rng()) if takes(fn, "rng") else fn(*args)


def global_state() -> tuple[bytes, Any]:
    """What changes when somebody draws from the global generators of NumPy or Python."""
    return pickle.dumps(np.random.get_state(legacy=False)), random.getstate()  # noqa: NPY002
