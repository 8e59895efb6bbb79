"""Matrix products on CPU devices: geometry and launch of matmul_cpu.cl."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from netcl.core.device.profile import DeviceProfile
from netcl.core.dtypes import C_NAME, FLOAT32, NARROW, DType, compute_dtype, is_float
from netcl.core.kernels import dialect
from netcl.core.protocols import Launch, Queue
from netcl.core.tensor import Tensor, allocate
from netcl.kernels import sources, tuning
from netcl.kernels.program import program
from netcl.kernels.route import FIRST, Route
from netcl.ops.product import simple as matmul_simple
from netcl.ops.product.problem import Product, Run

MASKS = {"float": "int", "double": "long"}  # integers as wide as an element
ACTS = {None: 0, "relu": 1, "gelu": 2, "silu": 3}
FEW = 64  # rows up to which operands are read where they lie
# For the tallest register tile: rows of the next tile when 1, 2, ... rows remain; with more it is the tallest.
HEIGHTS = {6: (4,) * 4 + (6,) * 2 + (4,) * 2, 12: (4,) * 4 + (8,) * 4 + (12,) * 4 + (8,) * 4}
OFTEN = 4  # blocks of rows from which B is copied once for all of them
PAGE = 4096  # bytes after which addresses fall on the same sets of a first-level cache
ITEMS_PER_UNIT = 4  # work-items per compute unit, so that a core that is late leaves little to wait for
# Measured costs in cycles: of copying an element of A, and NR elements of B; of a work-item, and of one that does not
# copy A; of a late unit, in items.
COPY_A, COPY_B, ITEM, LIGHT, LATE = 1.0, 8.0, 8000.0, 1000.0, 0.2
OPTIONS = ("-cl-mad-enable",)


def routes(queue: Queue, p: Product, profile: DeviceProfile) -> list[Route]:
    """The ways to compute `p`."""
    if not is_float(p.dtype):
        return [matmul_simple.route(queue, p)]
    return [Route(FIRST, "tiled", partial(_plan, queue, p, profile, sizes(profile, p.dtype))), matmul_simple.FLOATS]


def _plan(queue: Queue, p: Product, profile: DeviceProfile, row: dict[str, int]) -> Run:
    """What computes `p` by tiles of registers, with `sizes` row."""
    mc, nc, a_lies, b_lies, packed = blocks_of(p, profile, row)
    forms = (("A_IN_PLACE", a_lies), ("B_IN_PLACE", b_lies), ("B_PACKED", packed), ("BOTH", p.keep))
    flags = {name: 1 for name, on in forms if on}
    epilogue = p.bias or p.activation is not None
    source = text(profile, "matmul_cpu.cl", dtype=p.dtype, epilogue=epilogue, row=row, **flags)
    grid = (-(-p.m // mc), -(-p.n // nc), p.count)
    kstep = -(-p.k // (max(1, -(-p.k // row["KC"])) * 8)) * 8 or 8  # even blocks of the depth
    kinds = {"accumulate": p.accumulate, "act": ACTS[p.activation], "has_bias": p.bias}
    kinds |= {"has_mask": p.mask, "row_sums": p.sums}
    dims = {**p.fields, "mc": mc, "nc": nc, "kstep": kstep, **kinds}
    launch = program(queue, source, "gemm", OPTIONS).bind(grid, (1, 1, 1), D=dims)
    partial = (p.count * p.m * p.n,) if p.dtype in NARROW and p.k > kstep else None

    pack = _pack(queue, source, p, row, kstep, dims) if packed else None

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
        part = c if partial is None else allocate(queue, partial, FLOAT32)
        right = b if pack is None else pack(B=b)
        bias, mask, sums = a if bias is None else bias, a if mask is None else mask, c if sums is None else sums
        launch(C=c, part=part.buffer, A=a, B=right, bias=bias, mask=mask, sums=sums.buffer, alpha=alpha)

    return run


class Blocks(NamedTuple):
    """Rows and columns per work-item, whether A and B are read where they lie, and whether B is packed beforehand."""

    mc: int
    nc: int
    a_lies: bool
    b_lies: bool
    packed: bool


def blocks_of(p: Product, profile: DeviceProfile, row: dict[str, int]) -> Blocks:
    """How `p` is divided among work-items, and what they copy.

    Few rows do not pay for copies. B then needs rows of unit stride and whole panels, A rows of unit stride and whole
    tiles that do not all fall on the same sets of the first-level cache. Many rows pay for copying B into panels once
    for all work-items: every block of rows copies B else, a tenth of the time at 2048 rows, of which that gains 4%.
    """
    b_lies = p.m <= FEW and p.b[1] == 1 and p.n % (2 * row["VW"]) == 0 and p.dtype not in NARROW
    rest = p.m % row["MR"]
    whole = rest == 0 or HEIGHTS[row["MR"]][rest - 1] == rest
    a_lies = b_lies and whole and p.a[1] == 1 and p.a[0] * p.dtype.itemsize % PAGE != 0 and not (p.mask or p.sums)
    size = (p.m, p.n, p.k, p.count, profile.compute_units, row)
    mc, nc = macro_tile(*size, (not a_lies, not b_lies))
    packed = -(-p.m // mc) >= OFTEN and not b_lies and p.count == 1 and p.k > 0 and p.dtype not in NARROW
    if packed:
        mc, nc = macro_tile(*size, (not a_lies, False))
    return Blocks(mc, nc, a_lies, b_lies, packed)


def _pack(queue: Queue, source: str, p: Product, row: dict[str, int], kstep: int, dims: dict[str, int]) -> Launch[Any]:
    """A launch that copies B into panels P."""
    panel = 2 * row["VW"]
    blocks = (-(-p.n // (row["NP"] * panel)), -(-p.k // kstep))
    size = (-(-p.n // panel) * panel * blocks[1] * kstep,)
    return program(queue, source, "gemm_pack", OPTIONS).bind(blocks, (1, 1), {"P": (size, p.dtype)}, D=dims)


def sizes(profile: DeviceProfile, dtype: DType) -> dict[str, int]:
    """Blocks, and the register tile of MR rows x 2 vectors of VW elements, for a storage type."""
    (row,) = tuning.configs(("matmul_cpu",), profile)
    wide = compute_dtype(dtype).itemsize // 4
    return row | {"KC": row["KC"] // wide, "VW": row["VW"] // wide}


def text(
    profile: DeviceProfile,
    *files: str,
    dtype: DType,
    epilogue: bool,
    row: Any = None,
    **defines: Any,
) -> str:
    """The text of panel_cpu.cl and `files` for a storage type, with the activations when there is an epilogue.

    `row` is what `sizes` gives, where it is known.
    """
    element = C_NAME[compute_dtype(dtype)]
    defines |= row or sizes(profile, dtype)
    width, masks = defines["VW"], MASKS[element]
    defines |= {"S": C_NAME[dtype], "E": element, "MASK": masks, "MASKS": f"{masks}{width}"}
    defines["HEIGHTS"] = ", ".join(map(str, HEIGHTS[defines["MR"]]))
    defines["VECTOR"] = f"{element}{width}"
    if not epilogue:
        return sources.load("panel_cpu.cl", *files, **defines)
    functions = dialect.preamble(frozenset({"RELU", "GELU", "SILU"}), element, width, on_cpu=True)
    return sources.load("panel_cpu.cl", *files, preamble=functions, EPILOGUE=1, **defines)


def macro_tile(
    m: int, n: int, k: int, batch: int, units: int, row: dict[str, int], copied: tuple[bool, bool] = (True, True)
) -> tuple[int, int]:
    """Rows and columns of C per work-item with `sizes` row: the split whose slowest unit should be done first.

    An item of mc x nc costs its products, the copies of its mc rows of A and nc columns of B where these are `copied`,
    and a fixed part. Small items copy more in total; few items leave units idle, or waiting for one that is late.
    """
    copy_a, copy_b = (cost * needed for cost, needed in zip((COPY_A, COPY_B), copied))
    fixed = ITEM if copied[0] else LIGHT
    best = (float("inf"), 0, 0)
    tall, panel = row["MR"], 2 * row["VW"]
    fewest = -(-m // (row["MC"] // tall * tall))
    widths = _counts(-(-n // panel), 1)
    for rows in _counts(-(-m // tall), fewest):
        mc = -(-m // (rows * tall)) * tall
        for columns in widths:
            nc = -(-n // (columns * panel)) * panel
            items = batch * -(-m // mc) * -(-n // nc)
            item = (min(mc, m) + copy_b) * nc / panel * k + copy_a * mc * k + fixed
            best = min(best, (item * (-(-items // units) + LATE), mc, nc))
    return best[1], best[2]


def _counts(most: int, fewest: int) -> list[int]:
    """Numbers of parts worth trying, from `fewest` on: all up to 16, then steps of about an eighth."""
    counts, count = [], max(1, min(fewest, most))
    while count <= most:
        counts.append(count)
        count += max(1, count // 8)
    return counts
