"""Random numbers from one counter-based generator (Philox4x32-10): the same on every device and on NumPy.

A draw is (seed, first block, count): word i % 4 of block first + i / 4 belongs to element i. A generator only
counts blocks, so draws never overlap, a state is two integers, and dropout can redraw its mask in backward instead of
saving it. Uniforms have 24 random bits; normals come by Box-Muller and agree across devices to 1e-6.
Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

import math
import secrets
import threading
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from netcl.core import layout, live, recompute
from netcl.core.backend import cpu
from netcl.core.device.discovery import queue_of
from netcl.core.device.profile import profile_of
from netcl.core.dtypes import BOOL, C_NAME, UINT8, DType, as_dtype, is_float
from netcl.core.errors import DTypeError, ShapeError
from netcl.core.kernels import dialect
from netcl.core.layout import Shape
from netcl.core.live import Cell
from netcl.core.protocols import Launch, Queue
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor, allocate
from netcl.kernels import sources
from netcl.kernels.plans import remember
from netcl.kernels.program import program
from netcl.ops.elementwise import contiguous
from netcl.ops.record import FLOATS, Op, alike, register

UNIFORM, NORMAL, BERNOULLI, INTEGERS, DROPOUT = range(5)  # FORM in random.cl
ROUNDS = 64  # of a work-item on a CPU device


class Generator:
    """A stream of random numbers: a 64-bit seed and the number of blocks used so far.

    >>> a, b = Generator(7), Generator(7)
    >>> a.take(10) == b.take(10)
    True
    """

    def __init__(self, seed: int | None = None) -> None:
        """Args: seed: any integer (64 bits are used); None takes one from the system."""
        self._lock = threading.Lock()
        self.manual_seed(secrets.randbits(63) if seed is None else seed)

    def manual_seed(self, seed: int) -> Generator:
        """Start again from `seed`."""
        self.seed, self.offset = layout.as_int("seed", seed) & 0xFFFFFFFFFFFFFFFF, 0
        return self

    def take(self, blocks: int) -> int:
        """Reserve `blocks` blocks and return the first."""
        with self._lock:
            first, self.offset = self.offset, self.offset + blocks
        return first

    def state_dict(self) -> dict[str, int]:
        """Seed and offset: all there is."""
        return {"seed": self.seed, "offset": self.offset}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue where `state` was taken."""
        self.seed, self.offset = int(state["seed"]), int(state["offset"])

    def __getstate__(self) -> dict[str, int]:
        """For copies, and pickles to other processes."""
        return self.state_dict()

    def __setstate__(self, state: dict[str, int]) -> None:
        self._lock = threading.Lock()
        self.load_state_dict(state)

    def __repr__(self) -> str:
        return f"Generator(seed={self.seed}, offset={self.offset})"


DEFAULT_SEED = 2026  # a program that sets no seed still does the same on every run and every device
default_generator = Generator(DEFAULT_SEED)


def seed(n: int) -> Generator:
    """Seed the generator that is used where none is given."""
    return default_generator.manual_seed(n)


class Draw(NamedTuple):
    """Which numbers a random op used: enough to make them again. The cells change at every replay of a recording."""

    first: Cell
    low: Cell  # halves of the seed
    high: Cell


class Law(NamedTuple):
    """What is made of the words of a draw; see random.cl for the numbers of each kind."""

    kind: int
    a: float = 0.0
    b: float = 1.0
    low: int = 0
    range: int = 1


def draw_of(generator: Generator | None, count: int) -> Draw:
    """Reserve the blocks for `count` elements, now and before each replay. A later seed changes no earlier draw."""
    draw: Draw | None = recompute.drawn()
    if draw is not None:
        return draw
    source, draw = generator or default_generator, Draw(Cell(0), Cell(0), Cell(0))

    def redraw() -> None:
        seed = source.seed
        draw.first.value, draw.low.value, draw.high.value = source.take(-(-count // 4)), seed & 0xFFFFFFFF, seed >> 32

    live.each_step(redraw)
    recompute.note(draw)
    return draw


# -- NumPy -------------------------------------------------------------------------------------------------------------


def philox(first: int, count: int, low: int, high: int) -> np.ndarray:
    """`count` 32-bit words from block `first` on, as uint32."""
    blocks = np.arange(-(-count // 4), dtype=np.uint64) + np.uint64(first)
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0, c1 = blocks & mask, blocks >> shift
    c2 = c3 = np.zeros_like(blocks)
    for i in range(10):
        k0, k1 = np.uint64((low + i * 0x9E3779B9) & 0xFFFFFFFF), np.uint64((high + i * 0xBB67AE85) & 0xFFFFFFFF)
        p, q = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (q >> shift) ^ c1 ^ k0, q & mask, (p >> shift) ^ c3 ^ k1, p & mask
    return np.stack([c0, c1, c2, c3], 1).reshape(-1)[:count].astype(np.uint32)


def _unit(words: np.ndarray) -> np.ndarray:
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def _numpy_normal(words: np.ndarray) -> np.ndarray:
    u = _unit(words).astype(np.float64).reshape(-1, 2)
    radius, angle = np.sqrt(-2 * np.log(u[:, 0] + 2.0**-24)), 2 * np.pi * u[:, 1]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(-1)


def _numpy(*arrays: np.ndarray, law: Law, shape: Shape, dtype: DType, draw: tuple[int, int, int]) -> np.ndarray:
    kind, a, b, low, limit = law
    count = layout.size_of(shape)
    words = philox(draw[0], -(-count // 4) * 4, draw[1], draw[2])
    values: np.ndarray
    if kind == INTEGERS:
        values = low + ((words.astype(np.uint64) * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)
    elif kind == NORMAL:
        values = a + b * _numpy_normal(words)
    elif kind == UNIFORM:
        values = np.float32(a) + np.float32(b - a) * _unit(words)
    elif kind == BERNOULLI:
        values = words >> np.uint32(8) < limit
    else:
        chosen = (words >> np.uint32(8) >= limit)[:count]
        number = arrays[0].dtype.type
        values = np.where(chosen.reshape(shape), arrays[0] * number(b), number(0))
        return values
    return values[:count].astype(dtype).reshape(shape)


# -- OpenCL ------------------------------------------------------------------------------------------------------------


def _share(dtype: DType, on_cpu: bool) -> tuple[int, int]:
    """The blocks of four that a work-item makes in a round, and its rounds."""
    return (8, ROUNDS) if on_cpu else (2 if dtype.itemsize == 2 else 1, 1)


@cache
def _source(kind: int, dtype: DType, on_cpu: bool) -> str:
    width, step = _share(dtype, on_cpu)
    preamble = dialect.preamble(frozenset({"f_log", "f_sqrt"}), "float", width, on_cpu)
    extra = {"PLAIN": 1} if on_cpu else {}
    return sources.load(
        "philox.cl", "random.cl", preamble=preamble, FORM=kind, W=width, STEP=step, S=C_NAME[dtype], **extra
    )


def _generate(queue: Queue, law: Law, shape: Shape, dtype: DType, draw: Draw, **x: Tensor) -> Tensor:
    """Numbers of `law`; dropout has an `x`, which is contiguous."""
    if isinstance(queue, CPUQueue):
        made: Tensor = cpu.compute(
            _numpy, *x.values(), queue=queue, law=law, shape=shape, dtype=dtype, draw=tuple(draw)
        )
        return made
    if 0 in shape:
        return allocate(queue, shape, dtype)
    launch = remember(queue, ("random", law.kind, shape, dtype), lambda: _plan(queue, law.kind, shape, dtype))
    return launch(**x, first=draw.first, k0=draw.low, k1=draw.high, a=law.a, b=law.b, low=law.low, range=law.range)


def _plan(queue: Queue, kind: int, shape: Shape, dtype: DType) -> Launch[Tensor]:
    profile, count = profile_of(queue), layout.size_of(shape)
    on_cpu, storage = profile.kind == "cpu", UINT8 if dtype == BOOL else dtype
    group = 1 if on_cpu else profile.group(256)
    width, step = _share(storage, on_cpu)
    items = -(-count // (4 * width * step))
    made = program(queue, _source(kind, storage, on_cpu), "random", ("-cl-mad-enable", "-w"))
    return made.bind((-(-items // group) * group,), (group,), {"out": (shape, dtype)}, n=count)


# -- the ops -----------------------------------------------------------------------------------------------------------


def _float(where: str, dtype: Any) -> DType:
    result = as_dtype(dtype)
    if not is_float(result):
        raise DTypeError(f"{where}: expected a floating dtype, got {result}.")
    return result


def uniform(
    queue: Any,
    shape: Any,
    low: float = 0.0,
    high: float = 1.0,
    dtype: Any = "float32",
    generator: Generator | None = None,
) -> Tensor:
    """Numbers spread evenly over [low, high)."""
    queue = queue_of("uniform", queue)
    shape, dtype = layout.as_shape("uniform", shape), _float("uniform", dtype)
    return _generate(queue, Law(UNIFORM, low, high), shape, dtype, draw_of(generator, layout.size_of(shape)))


def normal(
    queue: Any,
    shape: Any,
    mean: float = 0.0,
    std: float = 1.0,
    dtype: Any = "float32",
    generator: Generator | None = None,
) -> Tensor:
    """Numbers from the normal distribution with this mean and standard deviation."""
    queue = queue_of("normal", queue)
    shape, dtype = layout.as_shape("normal", shape), _float("normal", dtype)
    if std < 0:
        raise ValueError(f"normal: expected a standard deviation of at least 0, got {std}.")
    return _generate(queue, Law(NORMAL, mean, std), shape, dtype, draw_of(generator, layout.size_of(shape)))


def bernoulli(
    queue: Any, shape: Any, p: float = 0.5, dtype: Any = "bool", generator: Generator | None = None
) -> Tensor:
    """True (or 1) with probability `p`."""
    queue = queue_of("bernoulli", queue)
    shape = layout.as_shape("bernoulli", shape)
    check_probability("bernoulli", p)
    law, draw = Law(BERNOULLI, range=share_of(p)), draw_of(generator, layout.size_of(shape))
    return _generate(queue, law, shape, as_dtype(dtype), draw)


def randint(
    queue: Any, shape: Any, low: int, high: int, dtype: Any = "int64", generator: Generator | None = None
) -> Tensor:
    """Whole numbers spread evenly over [low, high); the range is at most 2^32."""
    queue = queue_of("randint", queue)
    shape = layout.as_shape("randint", shape)
    low, high = layout.as_int("randint", low, "low"), layout.as_int("randint", high, "high")
    if not 0 < high - low <= 1 << 32:
        raise ValueError(f"randint: expected low < high at most 2^32 apart, got [{low}, {high}).")
    draw = draw_of(generator, layout.size_of(shape))
    return _generate(queue, Law(INTEGERS, low=low, range=high - low), shape, as_dtype(dtype), draw)


def permutation(queue: Queue, n: int, generator: Generator | None = None) -> Tensor:
    """0 ... n-1 in random order as int64. Made on the host: the stable order of n Philox words."""
    if layout.as_int("permutation", n, "n") < 0:
        raise ShapeError(f"permutation: expected a length of at least 0, got {n}.")
    return Tensor.from_host(queue, permutation_of(n, generator))


def permutation_of(n: int, generator: Generator | None = None) -> np.ndarray:
    """`permutation` as a NumPy array, for shuffling on the host."""
    first, low, high = map(int, draw_of(generator, n))
    words = philox(first, n, low, high)
    return np.argsort(words, kind="stable").astype(np.int64)


def dropout(x: Tensor, p: float = 0.5, generator: Generator | None = None) -> tuple[Tensor, Draw]:
    """x / (1 - p), or 0 with probability `p`; and the draw, from which `dropout_grad` makes the mask again."""
    check_probability("dropout", p)
    if not is_float(x.dtype):
        raise DTypeError(f"dropout: expected a floating tensor, got {x.dtype}.")
    draw = draw_of(generator, x.size)
    return dropout_grad(x, p, draw), draw


def dropout_grad(g: Tensor, p: float, draw: Draw) -> Tensor:
    """`g` under the same mask and scale: the gradient of dropout, and dropout itself."""
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return _generate(g.queue, Law(DROPOUT, b=scale, range=share_of(p)), g.shape, g.dtype, draw, x=contiguous(g))


def share_of(p: float) -> int:
    """How many of the 2^24 values that uniforms can have lie below `p`, rounded to float32."""
    return math.ceil(float(np.float32(p)) * 2**24)


def check_probability(where: str, p: float) -> None:
    if not isinstance(p, (int, float)) or not 0 <= p <= 1:
        raise ValueError(f"{where}: expected a probability in [0, 1], got {p}.")


# -- record ------------------------------------------------------------------------------------------------------------

_backward = lambda g, y, x, p=0.5, generator=None, *, aux: dropout_grad(g, p, aux)  # noqa: E731
register(Op("dropout", dropout, _backward, (), True, shape=alike, dtypes=FLOATS, onnx="Dropout"))
