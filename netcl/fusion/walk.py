"""How work-items cover elements: what they decode from a number, what they take in vectors, in which integers.

Tensors are seen through one shape (stride 0 where they repeat). `collapse` merges axes until few are left; one of them
is taken in vectors, the others are decoded from numbers that count them: the row `r`, and in folds `q` along it. The
text of a kernel depends on its Walk alone; sizes are arguments (Extent), so that a new shape reuses the program.

Arguments of a tensor `in_0`: its first element `oin_0`, its strides `r_in_0_0`, `r_in_0_1`, ... along the axes that `r`
counts, its step `i_in_0` along the vectors' axis; `r_d1`, ... are lengths of axes, all of the index type `I`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from netcl.core import layout
from netcl.core.dtypes import C_NAME, DType, compute_dtype
from netcl.core.layout import Shape
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor
from netcl.kernels.grid import reach, width_of

SHORT = 64  # elements of a row that wide vectors do not help
STEPPED = ("strided", "turned")  # accesses whose kernels take the step along the row
COUNTERS = ("r", "q")  # the numbers that axes are decoded from, and how many of each a kernel is told
TOTALS = ("rows", "outer")


class Operand(NamedTuple):
    """How a kernel meets one tensor: its dtype and whether its last axis is walked by vector, repeated, or strided.

    "turned" is strided with vectors along the axis before (a transposed view): blocks of them are turned in registers.
    """

    dtype: DType
    access: str  # "vector" (step 1), "repeat" (step 0), "strided", "turned", or "row" (an output: one per row)


@dataclass(frozen=True)
class Walk:
    """Everything the text of a kernel depends on, the formulas aside, and what follows from it."""

    compute: DType
    on_cpu: bool
    vector: int  # floats of a CPU device's vector
    inputs: tuple[Operand, ...] = ()
    outputs: tuple[Operand, ...] = ()
    ranks: tuple[int, ...] = (0,)  # axes that each of COUNTERS counts
    wide: bool = False  # 64-bit index arithmetic
    aligned: bool = False  # vectors start at multiples of their length
    eights: bool = False  # a GPU's vectors have eight elements
    stream: bool = False  # full results bypass a CPU's caches (streaming.py)
    doubles: bool = True  # the device computes in double precision
    group: int = 1  # work-items that a GPU's kernel relies on to share a row or a chunk
    keep: int = 0  # vectors per work-item that passes over a row may hand on
    # Elements per vector: a register of floats on CPU devices, of half as many long elements; 4 or 8 on GPUs.
    width: int = field(init=False, repr=False, compare=False)
    across: int = field(init=False, repr=False, compare=False)  # work-items that turn a block, along turned operands
    element: str = field(init=False, repr=False, compare=False)  # C name of the compute type
    operands: dict[str, Operand] = field(init=False, repr=False, compare=False)  # in_0, in_1, ..., out_0, ...
    walked: list[str] = field(init=False, repr=False, compare=False)  # those with strides: not one element per row
    stepped: list[str] = field(init=False, repr=False, compare=False)  # those with a step along the vectors' axis

    def __post_init__(self) -> None:
        operands = {f"in_{k}": x for k, x in enumerate(self.inputs)}
        operands |= {f"out_{k}": x for k, x in enumerate(self.outputs)}
        vars(self).update(
            width=width_of(self.compute, self.vector) if self.on_cpu else 8 if self.eights else 4,
            across=8 if self.aligned and not self.eights else 4,
            element=C_NAME[compute_dtype(self.compute)],
            operands=operands,
            walked=[name for name, x in operands.items() if x.access != "row"],
            stepped=[name for name, x in operands.items() if x.access in STEPPED],
        )

    def over(self, tensors: Sequence[Tensor], strides: Sequence[Shape], size: int, far: int) -> Walk:
        """The walk with index type and vectors for these tensors, their strides across vectors, and `size` elements.

        far: reach from which positions need 64 bits.
        """
        wide = self.on_cpu or size >= far or any(reach(t) >= far for t in tensors)
        aligned = not self.on_cpu and is_aligned(tensors, strides)
        short = aligned and self.compute.itemsize <= 4 and is_short((*self.inputs, *self.outputs))
        eights = short and is_aligned(tensors, strides, 8)
        if (wide, aligned, eights) == (self.wide, self.aligned, self.eights):
            return self
        return replace(self, wide=wide, aligned=aligned, eights=eights)

    # -- text ------------------------------------------------------------------------------------------------------

    def pointers(self) -> list[str]:
        """The declarations of the operands' memory."""
        return [
            f"__global {'const ' * s.startswith('in')}{C_NAME[x.dtype]}* restrict {s}" for s, x in self.operands.items()
        ]

    def indices(self) -> list[str]:
        """The names of offsets, strides, steps and lengths."""
        counted = [(kind, range(rank)) for kind, rank in zip(COUNTERS, self.ranks)]
        return [
            *(f"o{s}" for s in self.operands),
            *(f"{kind}_{s}_{a}" for kind, axes in counted for s in self.walked for a in axes),
            *(f"i_{s}" for s in self.stepped),
            *(f"{kind}_d{a}" for kind, axes in counted for a in axes[1:]),
            *(total for total, _ in zip(TOTALS, self.ranks)),
            "cols",
        ]

    def decode(self, counter: int, number: str, base: str = "o", target: str = "p_") -> list[str]:
        """C lines that decode `number` and give each operand's place `<target><name>` from `<base><name>`."""
        return broadcast_index_lines(self.ranks[counter], self.walked, number, COUNTERS[counter], (base, target))


def broadcast_index_lines(
    rank: int, operands: Iterable[str], row: str = "r", kind: str = "r", names: tuple[str, str] = ("o", "p_")
) -> list[str]:
    """C lines that decode number `row` into `rank` outer indices and give each operand's first element.

    They read the lengths `<kind>_d1 ...` (the first is not needed), strides `<kind>_<operand>_<axis>` and offsets
    `o<operand>`, all of the index type `I`, and declare `p_<operand>`; `names` are those two beginnings.
    """
    (base, target), lines = names, []
    if rank > 1:
        lines.append(f"I {kind}_n = {row};")
        for a in range(rank - 1, 0, -1):
            lines += [f"I {kind}_x{a} = {kind}_n % {kind}_d{a};", f"{kind}_n /= {kind}_d{a};"]
    if rank:
        lines.append(f"I {kind}_x0 = {f'{kind}_n' if rank > 1 else row};")
    for name in operands:
        terms = [f"{base}{name}", *(f"{kind}_x{a} * {kind}_{name}_{a}" for a in range(rank))]
        lines.append(f"I {target}{name} = {' + '.join(terms)};")
    return lines


class Axes(NamedTuple):
    """Axes that one number counts, row-major: their lengths, and the strides of each operand along them."""

    lengths: Shape
    strides: tuple[Shape, ...]


class Extent(NamedTuple):
    """What a launch adds to a walk: the axes that numbers count, length and steps of the axis taken in vectors."""

    axes: tuple[Axes, ...]
    cols: int
    steps: Shape

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return layout.size_of(self.axes[0].lengths)

    def arguments(self, walk: Walk) -> dict[str, int]:
        """The numbers of `Walk.indices`, by name; offsets come with the tensors."""
        found = {"cols": self.cols}
        for kind, total, (lengths, strides) in zip(COUNTERS, TOTALS, self.axes):
            found[total] = layout.size_of(lengths)
            found |= {f"{kind}_d{a}": n for a, n in enumerate(lengths) if a}
            for name, steps in zip(walk.walked, strides, strict=True):
                found |= {f"{kind}_{name}_{a}": step for a, step in enumerate(steps)}
        return found | {f"i_{s}": n for s, n in zip(walk.walked, self.steps, strict=True) if s in walk.stepped}


@lru_cache(maxsize=8192)
def collapse(shape: Shape, strides: tuple[Shape, ...]) -> tuple[Shape, tuple[Shape, ...]]:
    """The same elements with few axes: axes of length one go, neighbours that step alike in all operands merge.

    Returns the lengths (outermost first, at least one) and each operand's strides along them.
    """
    lengths: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis, n in enumerate(shape):
        if n == 1:
            continue
        here = [s[axis] for s in strides]
        if lengths and all(outer[-1] == step * n for outer, step in zip(steps, here, strict=True)):
            lengths[-1] *= n
            for outer, step in zip(steps, here, strict=True):
                outer[-1] = step
        else:
            lengths.append(n)
            for outer, step in zip(steps, here, strict=True):
                outer.append(step)
    if not lengths:
        return (1,), tuple((0,) for _ in strides)
    return tuple(lengths), tuple(tuple(s) for s in steps)


def access_of(step: int) -> str:
    """How an axis of this stride is walked."""
    return "vector" if step == 1 else "repeat" if step == 0 else "strided"


def is_aligned(tensors: Sequence[Tensor], strides: Sequence[Shape], width: int = 4) -> bool:
    """Whether vectors of `width` start at multiples of it; `strides`: of each tensor, along all other axes."""
    return all(t.offset % width == 0 for t in tensors) and all(s % width == 0 for steps in strides for s in steps)


def is_short(operands: Sequence[Operand]) -> bool:
    """Whether vectors of eight are no more than 16 bytes."""
    return all(x.access == "repeat" or (x.access != "strided" and x.dtype.itemsize <= 2) for x in operands)


def stand_in(queue: Queue, shape: Shape, dtype: DType) -> Tensor:
    """A contiguous tensor without memory, in the place of one that is not there yet."""
    return Tensor(None, shape, layout.contiguous_strides(shape), 0, dtype, queue)


def vector_for(row: int, vector: int) -> int:
    """Floats of a vector for rows of `row` elements: short ones are mostly tail, which is taken lane by lane."""
    return vector if row >= SHORT else min(vector, 8)


def swizzles(width: int) -> list[str]:
    """The swizzles by which each lane meets the one half a vector away, then a quarter, ..., then its neighbour."""
    steps = [width >> k for k in range(1, width.bit_length())]
    return ["".join(f"{j ^ step:x}" for j in range(width)) for step in steps]
