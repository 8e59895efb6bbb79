"""Index logic of eager and fused elementwise kernels: which element of each operand belongs to an output element.

Operands are seen through the output's shape (stride 0 where they repeat). `collapse` merges axes until few are left;
the last one is walked in vectors, the others are decoded from a row number by `broadcast_index_lines`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from netcl.core.layout import Shape


@lru_cache(maxsize=8192)
def collapse(shape: Shape, strides: tuple[Shape, ...]) -> tuple[Shape, tuple[Shape, ...]]:
    """The same walk with few axes: axes of length one go, neighbours that step alike in all operands merge.

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


def broadcast_index_lines(rank: int, operands: Sequence[str], row: str = "r") -> list[str]:
    """C lines that decode row number `row` into `rank` outer indices and give each operand's start in `p_<operand>`.

    They read the lengths `d1 ...` (the first is not needed), the offsets `o<operand>` and the strides
    `t_<operand>_<axis>`, all of the index type `I`.
    """
    lines = []
    if rank > 1:
        lines.append(f"I q = {row};")
        for axis in range(rank - 1, 0, -1):
            lines += [f"I x{axis} = q % d{axis};", f"q /= d{axis};"]
    if rank:
        lines.append("I x0 = q;" if rank > 1 else f"I x0 = {row};")
    for name in operands:
        terms = [f"o{name}", *(f"x{axis} * t_{name}_{axis}" for axis in range(rank))]
        lines.append(f"I p_{name} = {' + '.join(terms)};")
    return lines
