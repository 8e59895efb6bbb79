"""Two independent products of matrices in one launch of a GPU, where they are so small that launches cost the most.

The groups of the launch are shared out between the products. Their kernels are those of any device (matmul_gpu.cl), so
that either product can mask its left operand and sum its rows. k is never divided: that takes launches. On CPU devices
launches cost little: a shared one gained 2 to 4% of a step of a small network on PoCL, and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import is_float
from netcl.core.protocols import Queue
from netcl.core.queue import CPUQueue
from netcl.core.tensor import Tensor, allocate
from netcl.kernels import route, sources
from netcl.kernels.plans import remember
from netcl.kernels.program import program
from netcl.kernels.tiling import LAUNCH, Tiling, cut_together, depth_of
from netcl.ops.product import gpu as matmul_gpu
from netcl.ops.product.problem import MATMUL, Product, describe

Run = Callable[..., None]  # of two tasks


class Factors(NamedTuple):
    """A product to compute: a b of matrices, `a` counted where `mask` (laid out like it) is positive.

    `sums` asks for the sums of the rows of `a` as well.
    """

    a: Tensor
    b: Tensor
    mask: Tensor | None = None
    sums: bool = False

    @property
    def layout(self) -> tuple[Any, ...]:
        """What a plan depends on."""
        a, b, mask = self.a, self.b, self.mask
        starts = a.offset & 7, b.offset & 7, mask is None or mask.offset & 7
        return a.shape, a.strides, b.shape, b.strides, starts, mask is None, self.sums


Result = tuple[Tensor, Tensor | None]  # the product, the sums
Task = tuple[Factors, Tensor, Tensor | None]  # with both


def may_share(queue: Queue) -> bool:
    """Whether `gemm_pair` is worth asking for."""
    return not isinstance(queue, CPUQueue) and profile_of(queue).kind != "cpu"


def gemm_pair(one: Factors, two: Factors) -> tuple[Result, Result] | None:
    """Both products, or None where their launches take less time one by one."""
    queue, dtype = one.a.queue, one.a.dtype
    if not may_share(queue) or not is_float(dtype):
        return None
    tensors = [t for f in (one, two) for t in (f.a, f.b, f.mask) if t is not None]
    if any(t.dtype is not dtype or t.size == 0 for t in tensors):
        return None
    key = ("pair", one.layout, two.layout, dtype.num, route.mode)
    run = remember(queue, key, lambda: _plan(queue, one, two))
    if run is _SINGLY:
        return None
    made = [
        (
            allocate(queue, (f.a.shape[0], f.b.shape[1]), dtype),
            allocate(queue, f.a.shape[:1], dtype) if f.sums else None,
        )
        for f in (one, two)
    ]
    run((one, *made[0]), (two, *made[1]))
    return made[0], made[1]


def _SINGLY(*_: Any) -> None:
    """In the place of a plan: the products are launched one by one."""


def _plan(queue: Queue, one: Factors, two: Factors) -> Run:
    profile = profile_of(queue)
    p, q = (_product(f) for f in (one, two))
    tiling = cut_together(matmul_gpu.ROWS[p.dtype], profile, [(x.m, x.n, x.k) for x in (p, q)])
    if route.forced(MATMUL) not in (None, "tiled") or tiling.cost >= _apart(queue, p, q, profile):
        return _SINGLY
    if p.k >= q.k:
        return _launcher(queue, p, q, tiling)
    swapped = _launcher(queue, q, p, tiling)  # groups that take long start first
    return lambda x, y: swapped(y, x)


def _product(f: Factors) -> Product:
    mask = f.mask
    out = Tensor(None, (f.a.shape[0], f.b.shape[1]), (f.b.shape[1], 1), 0, f.a.dtype, f.a.queue)
    product = describe(f.a, f.b, out, None, False, False)[0][1]
    start = math.gcd(8, f.a.offset, 0 if mask is None else mask.offset)
    return replace(product, starts=(start, *product.starts[1:]), mask=mask is not None, sums=f.sums)


def _apart(queue: Queue, p: Product, q: Product, profile: DeviceProfile) -> float:
    """What the products cost in launches of their own, with masks and sums inside or, for matrix units, before."""
    inside = sum(matmul_gpu.cost(queue, x, profile) for x in (p, q))
    bare = sum(matmul_gpu.cost(queue, replace(x, mask=False, sums=False), profile) for x in (p, q))
    return LAUNCH + min(inside, bare + LAUNCH * ((p.mask or q.mask) + p.sums + q.sums))


def _source(p: Product, q: Product, config: dict[str, int]) -> str:
    """matmul_gpu.cl twice, as the functions `first` and `second`, and the kernel that calls them."""
    text = [sources.load("tile_gpu.cl", **matmul_gpu.common(p.dtype, config, p, q))]
    for name, x in (("first", p), ("second", q)):
        defines = {"PRODUCT": name, **matmul_gpu.forms(x)}
        text += [f"#define {n} {value}\n" for n, value in defines.items()]
        text += [sources.text("matmul_gpu.cl"), *(f"#undef {n}\n" for n in defines)]
    return "".join([*text, sources.text("pair_gpu.cl")])


def _launcher(queue: Queue, p: Product, q: Product, tiling: Tiling) -> Run:
    config = tiling.config
    items = config["BM"] // config["RM"] * (config["BN"] // config["RN"]) * config.get("SL", 1)
    grids = [(-(-x.m // config["BM"]), -(-x.n // config["BN"])) for x in (p, q)]
    depths = [depth_of(x.k, 1, config["BK"] * config.get("SL", 1)) for x in (p, q)]
    d1, d2 = (matmul_gpu.dims_of(x, *grid, 1, depth) for x, grid, depth in zip((p, q), grids, depths, strict=True))
    size = (sum(m * n for m, n in grids) * items,)
    launch = program(queue, _source(p, q, config), "gemm_pair", matmul_gpu.OPTIONS).bind(size, (items,), D1=d1, D2=d2)

    def run(first: Task, second: Task) -> None:
        (one, c1, s1), (two, c2, s2) = first, second
        launch(
            c1=c1.buffer,
            a1=one.a,
            b1=one.b,
            y1=one.a if one.mask is None else one.mask,
            sums1=(c1 if s1 is None else s1).buffer,
            c2=c2.buffer,
            a2=two.a,
            b2=two.b,
            y2=two.a if two.mask is None else two.mask,
            sums2=(c2 if s2 is None else s2).buffer,
        )

    return run
