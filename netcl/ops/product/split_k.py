"""How products end in all GPU families: the epilogue, and adding the parts of a product whose k was divided."""

from __future__ import annotations

from typing import Any

from netcl.core.device.profile import profile_of
from netcl.core.dtypes import C_NAME, DType, compute_dtype
from netcl.core.kernels import dialect
from netcl.core.protocols import Launch, Queue
from netcl.core.tensor import Tensor
from netcl.kernels import sources
from netcl.kernels.plans import remember
from netcl.kernels.program import program
from netcl.ops.product.problem import Product

GROUP = 256  # work-items that add parts together
LANES = 32  # neighbouring elements of a group, where there are many parts


def epilogue(bias: bool, activation: str | None, element: str) -> tuple[str, dict[str, int | str]]:
    """Text and defines of what happens to a result before it is stored: ACT(x) and whether there is a bias."""
    if not bias and activation is None:
        return "", {}
    name = "" if activation is None else activation.upper()
    return dialect.preamble(frozenset({name} - {""}), element, 1), {"EPILOGUE": 1, "ACT": name, "HAS_BIAS": int(bias)}


def ending(p: Product, element: str) -> tuple[str, dict[str, int | str]]:
    """`epilogue` of `p`, or ACCUMULATE."""
    return ("", {"ACCUMULATE": 1}) if p.accumulate else epilogue(p.bias, p.activation, element)


def sum_parts(queue: Queue, p: Product, splits: int) -> Launch[Any]:
    """A launch of C, part, bias and alpha (and `sums` of A's rows, where `p` asks for them) that finishes `p`.

    `part` is memory with (splits, batch, M, N) sums and, where `p` asks for them, (splits, M) sums of A's rows.
    """
    storage = compute_dtype(p.dtype) if p.wide else p.dtype
    return _launch(queue, p, splits, storage, compute_dtype(p.dtype), profile_of(queue).group(GROUP))


def add_parts(dw: Tensor, part: Tensor, parts: int) -> None:
    """dw = the sum of the `parts` arrays of dw's size in `part`; dw is contiguous."""
    queue, size = dw.queue, dw.size
    key = ("split_k", size, parts, dw.dtype, part.dtype)
    flat = Product(1, size, 0, (0, 0), (0, 0), size, (), dw.dtype)
    add = remember(queue, key, lambda: _launch(queue, flat, parts, dw.dtype, part.dtype, LANES))
    add(C=dw, part=part.buffer, bias=dw, alpha=1.0)


def _launch(queue: Queue, p: Product, parts: int, storage: DType, compute: DType, lanes: int) -> Launch[Any]:
    """A launch of split_k.cl whose groups add `lanes` elements."""
    preamble, defines = epilogue(p.bias, p.activation, C_NAME[compute])
    group, size = profile_of(queue).group(GROUP), p.m * p.n * p.count
    lanes = min(lanes, group)
    slices = group // lanes
    flags = {"SUMS": p.sums, "FLAT": p.contiguous}
    defines |= {"LANES": lanes, "SLICES": slices, **{name: 1 for name, on in flags.items() if on}}
    source = sources.load("split_k.cl", preamble=preamble, S=C_NAME[storage], E=C_NAME[compute], **defines)
    fields = {"M": p.m, "N": p.n, "step": size, "c_m": p.c, **{n: p.fields[n] for n in ("c0", "c1", "inner")}}
    items = size + p.m if p.sums else size
    fields |= {"parts": parts, "accumulate": p.accumulate}
    grid, group = -(-items // lanes) * lanes * slices, lanes * slices
    return program(queue, source, "split_k").bind((grid,), (group,), P=fields)
