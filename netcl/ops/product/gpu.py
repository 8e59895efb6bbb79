"""Matrix products on GPUs: the routes of a product, and the tiled one of any device (matmul_gpu.cl)."""

from __future__ import annotations

from functools import partial
from typing import Any

from netcl.core.device.profile import DeviceProfile
from netcl.core.dtypes import BFLOAT16, C_NAME, FLOAT16, FLOAT32, FLOAT64, DType, compute_dtype, is_float
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor, allocate
from netcl.kernels import sources
from netcl.kernels.program import program
from netcl.kernels.route import LAST, Route, cannot
from netcl.kernels.route import cost as cheapest
from netcl.kernels.tiling import Tiling, cut
from netcl.ops.nvidia import mma, probe, wgmma
from netcl.ops.nvidia.precision import matmul_precision
from netcl.ops.product import simple as matmul_simple
from netcl.ops.product.problem import MATMUL, Product, Run
from netcl.ops.product.split_k import ending, sum_parts

OPTIONS = ("-cl-mad-enable",)
SIZES = ("", "_medium", "_narrow", "_small", "_sliced", "_thin", "_flat", "_tall")
PORTABLE = tuple(f"matmul_gpu{size}" for size in SIZES)
ROWS = {
    FLOAT64: ("matmul_gpu_double",),
    FLOAT32: PORTABLE,
    FLOAT16: PORTABLE,
    BFLOAT16: PORTABLE,
}
UNITS = (("wgmma", wgmma), ("mma", mma))


def routes(queue: Queue, p: Product, profile: DeviceProfile) -> list[Route]:
    """The ways to compute `p`: matrix units (ops/nvidia), and ordinary arithmetic on any device."""
    if not is_float(p.dtype):
        return [matmul_simple.route(queue, p)]
    tiling = tiled(p, profile)
    there = probe.available(profile)
    units = [
        _on_units(name, module, queue, p, profile) if name in there else Route(LAST, name, None, probe.ABSENT)
        for name, module in UNITS
    ]
    return [*units, Route(tiling.cost, "tiled", partial(tiled_plan, queue, p, tiling)), matmul_simple.FLOATS]


def cost(queue: Queue, p: Product, profile: DeviceProfile) -> float:
    """What `p` costs on the route that is taken."""
    return cheapest(MATMUL, routes(queue, p, profile))


def _on_units(name: str, module: Any, queue: Queue, p: Product, profile: DeviceProfile) -> Route:
    """A kernel of matrix units; one that does not build is given up."""
    precision = matmul_precision() if p.dtype == FLOAT32 else "high"
    if p.mask or p.sums:
        return cannot(name, "it neither masks nor sums its operands")
    if p.dtype == FLOAT64 or precision == "highest" or p.k == 0:
        return cannot(name, "for 16-bit floats, and float32 below precision 'highest'")
    tiling = module.tiling(p, profile, precision)
    if tiling is None:
        return cannot(name, f"for at least {module.LEAST} rows, columns and k that lie along memory")
    pays = probe.serves(name, C_NAME[p.dtype], profile)
    why = "" if pays else probe.SLOW
    plan = partial(module.plan, queue, p, tiling)
    return Route(tiling.cost if pays else LAST, name, plan, why, partial(probe.give_up, name))


def tiled(p: Product, profile: DeviceProfile) -> Tiling:
    """The best tiling on ordinary arithmetic."""
    return cut(ROWS[p.dtype], profile, p.m, p.n, p.k, p.count)[0]


def tiled_plan(queue: Queue, p: Product, tiling: Tiling) -> Run:
    """What computes `p` by tiles."""
    config, depth = tiling.config, tiling.depth
    slices, splits = config.get("SL", 1), max(1, -(-p.k // depth)) if depth else 1
    tiles_m, tiles_n = -(-p.m // config["BM"]), -(-p.n // config["BN"])
    items, size = config["BM"] // config["RM"] * (config["BN"] // config["RN"]) * slices, p.m * p.n * p.count
    dims, grid = dims_of(p, tiles_m, tiles_n, splits, depth), (tiles_m * tiles_n * items, p.count * splits)
    launch = program(queue, _source(p, config, splits > 1), "gemm", OPTIONS).bind(grid, (items, 1), D=dims)
    total = sum_parts(queue, p, splits) if splits > 1 else None
    compute, products = compute_dtype(p.dtype), splits * size
    workspace = (products + splits * p.m * p.sums,)

    def run(
        c: Tensor,
        a: Tensor,
        b: Tensor,
        *,
        bias: Tensor | None = None,
        alpha: float = 1.0,
        mask: Tensor | None = None,
        sums: Tensor | None = None,
    ) -> None:
        bias, mask = a if bias is None else bias, a if mask is None else mask
        if total is None:
            launch(C=c, A=a, B=b, bias=bias, mask=mask, sums=c if sums is None else sums, alpha=alpha)
            return
        part = allocate(queue, workspace, compute)
        rows = part if sums is None else Tensor(part.buffer, (splits, p.m), (p.m, 1), products, compute, queue)
        launch(C=part, A=a, B=b, bias=bias, mask=mask, sums=rows, alpha=alpha)
        more = {} if sums is None else {"sums": sums.buffer}
        total(C=c, part=part.buffer, bias=bias, alpha=alpha, **more)

    return run


def dims_of(p: Product, tiles_m: int, tiles_n: int, splits: int, depth: int) -> dict[str, int]:
    """The fields of Dims of matmul_gpu.cl."""
    tiles = {"tiles_m": tiles_m, "tiles_n": tiles_n, "groups": tiles_m * tiles_n * p.count * splits}
    fields = p.partial_fields if splits > 1 else p.fields
    return {**fields, **tiles, "parts": splits, "split": depth, "part_step": p.m * p.n * p.count}


def _source(p: Product, config: dict[str, int], partial: bool) -> str:
    defines, preamble = {**common(p.dtype, config, p), **forms(p, partial)}, ""
    element = defines["E"]
    if partial or p.wide:
        defines["OUT"] = element
    if partial:
        defines["PARTIAL"] = 1
    else:
        preamble, more = ending(p, element)
        defines |= more
    return sources.load("tile_gpu.cl", "matmul_gpu.cl", preamble=preamble, **defines)


def common(dtype: DType, config: dict[str, int], *products: Product) -> dict[str, Any]:
    """Defines that products in one kernel share: types and sizes."""
    reach = max(sum(abs(s) * n for s, n in zip((*p.a, *p.b), (p.m, p.k, p.k, p.n))) for p in products)
    sizes = {name: size for name, size in config.items() if name in ("BM", "BN", "BK", "RM", "RN", "SL")}
    return {
        "S": C_NAME[dtype],
        "E": C_NAME[compute_dtype(dtype)],
        "OUT": C_NAME[dtype],
        "I": "long" if reach >= 1 << 31 else "int",
        "RASTER": 8,
        **sizes,
    }


def forms(p: Product, partial: bool = False) -> dict[str, Any]:
    """Defines of one product: how its operands lie in memory, and what it does besides."""
    (a_m, a_k), (b_k, b_n), (start_a, start_b, start_c) = p.a, p.b, p.starts
    c_steps = (p.n, p.m * p.n) if partial else (p.c, *(axis[3] for axis in p.batch), start_c)
    a_axes, b_axes = [axis[1] for axis in p.batch], [axis[2] for axis in p.batch]
    return {
        "A_ALONG_K": int(a_k == 1),
        "B_ALONG_K": int(b_k == 1 and b_n != 1),
        "A_VEC": _vector(a_k, a_m, p.k, p.m, [start_a, *a_axes]),
        "B_VEC": _vector(b_n, b_k, p.n, p.k, [start_b, *b_axes]),
        "C_VEC": int(p.n % 4 == 0 and all(s % 4 == 0 for s in c_steps)),
        **{name: 1 for name, on in {"MASK": p.mask, "SUMS": p.sums, "WIDE": p.wide}.items() if on},
    }


def _vector(first: int, second: int, along_first: int, along_second: int, others: list[int]) -> int:
    """4 where one axis runs along memory in whole fours and everything else moves by fours, else 1."""
    whole, length, other = (along_first, along_second, second) if first == 1 else (along_second, along_first, first)
    steps = [other, *others] if length > 1 else others
    return 4 if 1 in (first, second) and whole % 4 == 0 and all(s % 4 == 0 for s in steps) else 1
