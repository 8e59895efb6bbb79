"""Products on NVIDIA's warp matrix units: plan and launch of mma.cl."""

from __future__ import annotations

from typing import Any

from netcl.core.device.profile import DeviceProfile
from netcl.core.dtypes import C_NAME, FLOAT32, NARROW
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor, allocate
from netcl.kernels import sources
from netcl.kernels.program import program
from netcl.kernels.tiling import Tiling, cut, depth_of
from netcl.ops.nvidia.precision import UNIT_TYPE
from netcl.ops.product.problem import Product, Run
from netcl.ops.product.split_k import ending, sum_parts

LEAST = 16  # rows, columns and k from which the units are used


def tiling(p: Product, profile: DeviceProfile, precision: str) -> Tiling | None:
    """The best tiling of `p`, None where these kernels do not compute it."""
    if min(p.m, p.n, p.k) < LEAST or not _readable(p):
        return None
    kind = "half" if p.dtype in NARROW else precision
    return cut([f"mma_{kind}", f"mma_{kind}_small"], profile, p.m, p.n, p.k, p.count)[0]


def _readable(p: Product) -> bool:
    """Whether both operands run along memory, 16-bit ones at multiples of 16 bytes (floats are copied word by word)."""
    return 1 in p.a and 1 in p.b and (p.dtype == FLOAT32 or aligned(p, 8))


def aligned(p: Product, each: int) -> bool:
    """Whether rows of A and B start at multiples of `each` elements."""
    a_step = p.a[0] if p.a[1] == 1 else p.a[1]
    b_step = p.b[1] if p.b[0] == 1 and p.b[1] != 1 else p.b[0]
    steps = [a_step if p.m > 1 else 0, b_step, p.starts[0], p.starts[1], *(s for axis in p.batch for s in axis[1:3])]
    return all(s % each == 0 for s in steps)


def plan(queue: Queue, p: Product, tiling: Tiling) -> Run:
    """What computes `p`."""
    config = tiling.config
    depth = depth_of(p.k, tiling.splits, config["BK"])
    splits = -(-p.k // depth)
    total = sum_parts(queue, p, splits) if splits > 1 else None
    tiles_m, tiles_n, items = -(-p.m // config["BM"]), -(-p.n // config["BN"]), config["WM"] * config["WN"] * 32
    size = p.m * p.n * p.count
    job = p.fields if total is None else p.partial_fields
    job |= {"split": depth, "tiles_m": tiles_m, "tiles_n": tiles_n, "parts": splits, "part_step": size}
    launch = program(queue, _source(p, tiling, splits > 1), "gemm_mma").bind(
        (tiles_m * tiles_n * items, p.count * splits), (items, 1), J=job
    )

    def run(c: Tensor, a: Tensor, b: Tensor, *, bias: Tensor | None = None, alpha: float = 1.0, **_: Any) -> None:
        extra = a if bias is None else bias
        if total is None:
            launch(C=c, A=a, B=b, bias=extra, alpha=alpha)
        else:
            part = allocate(queue, (splits * size,), FLOAT32)
            launch(C=part, A=a, B=b, bias=extra, alpha=alpha)
            total(C=c, part=part.buffer, bias=extra, alpha=alpha)

    return run


def _source(p: Product, tiling: Tiling, partial: bool) -> str:
    storage, narrow, floats = C_NAME[p.dtype], p.dtype in NARROW, partial or p.wide
    names = ("BM", "BN", "BK", "WM", "WN", "ST")
    defines: dict[str, int | str] = {name: tiling.config[name] for name in names}
    defines |= {
        "S": storage,
        "OUT": "float" if floats else storage,
        "PARTS": tiling.config["PARTS"],
        "HAS_BIAS": 0,
        "KIND": f'"{UNIT_TYPE[storage]}"',
        "ALIGNED": int(aligned(p, 16 // p.dtype.itemsize)),
        "VEC": int((partial and p.n % 2 == 0) or pairs(p)),
    }
    flags = {
        "TF32": not narrow,
        "NARROW_OUT": narrow and not floats,
        "PARTIAL": partial,
        "A_ALONG_M": p.a[1] != 1,
        "B_ALONG_N": p.b[1] == 1,
    }
    defines |= {name: 1 for name, on in flags.items() if on}
    preamble, more = ("", {}) if partial else ending(p, "float")
    return sources.load("ptx.cl", "mma.cl", preamble=preamble, **(defines | more))


def pairs(p: Product, each: int = 2) -> bool:
    """Whether rows of C can be written `each` elements at a time."""
    return all(s % each == 0 for s in (p.n, p.c, p.starts[2], *(axis[3] for axis in p.batch)))
