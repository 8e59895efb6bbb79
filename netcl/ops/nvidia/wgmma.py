"""Products on NVIDIA's warpgroup matrix units: plan and launches of wgmma.cl, which reads operands by tensor maps.

Operands of 16 bits are read in place in either orientation. Of float operands one, "x", passes through registers and is
read in place; the other, "y", is packed into its TF32 parts. The larger one is x; if that is B, the product is computed
transposed. Operands that a tensor map cannot describe are packed first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import C_NAME, FLOAT32, NARROW
from netcl.core.memory import empty_buffer
from netcl.core.protocols import Queue
from netcl.core.tensor import Tensor, allocate
from netcl.kernels import sources
from netcl.kernels.program import program
from netcl.kernels.tiling import Tiling, cut, depth_of
from netcl.ops.nvidia.edit import activate
from netcl.ops.nvidia.pack import Operand, Pack, packing, pitch_of
from netcl.ops.nvidia.precision import UNIT_TYPE
from netcl.ops.product.problem import Product, Run
from netcl.ops.product.split_k import ending, sum_parts

ITEMS = 384
LEAST = 32  # rows, columns and k from which these kernels are used
ROWS = {
    "high": ("wgmma_high", "wgmma_high_small"),
    "medium": ("wgmma_medium", "wgmma_medium_small", "wgmma_medium_narrow"),
    "half": ("wgmma_half", "wgmma_half_small", "wgmma_half_narrow"),
}  # of the tuning table; "half" serves both types of 16 bits
RAW = ("wgmma_raw", "wgmma_raw_small")  # the same for products that are too small to pack
MAPS = 256  # bytes of the tensor maps of one group
USUAL = (
    "az",
    "aw",
    "bz",
    "bw",
    "pitch",
    "height",
    "OH",
    "OW",
    "blo",
    "col_step",
    "c0",
    "c1",
    "part_step",
    "image_step",
    "h_step",
)  # fields of a Job that are usually zero


def tiling(p: Product, profile: DeviceProfile, precision: str) -> Tiling | None:
    """The best tiling of `p`, None where these kernels do not compute it."""
    if min(p.m, p.n, p.k) < LEAST:
        return None
    kind = "half" if p.dtype in NARROW else precision
    found = []
    for rows, raw in ((ROWS[kind], False), (RAW, True))[: 2 if kind == "high" else 1]:
        form = arrange(p, 3 if kind == "high" else 1, raw)
        if not (raw and (form.pack_x or form.pack_y)):
            m, n = (p.n, p.m) if form.swap else (p.m, p.n)
            found += cut(rows, profile, m, n, p.k, p.count, form.traffic)[:1]
    return min(found, key=lambda t: t.cost)


@dataclass(frozen=True)
class Form:
    """Which operand is x, which are packed, and the bytes that packing moves."""

    x: Operand
    y: Operand
    swap: bool
    pack_x: bool
    pack_y: bool
    parts: int
    raw: bool = False  # y is split while it is multiplied
    traffic: float = field(default=0.0)

    @property
    def copies(self) -> int:
        """Parts of y in memory."""
        return 2 if self.parts == 3 and not self.raw else 1


def arrange(p: Product, parts: int, raw: bool = False) -> Form:
    """The arrangement of `p` that moves the fewest bytes beforehand. `raw` float operands are packed only where
    needed."""
    size, (outer, inner) = p.dtype.itemsize, p.axes
    (a_m, a_k), (b_k, b_n) = p.a, p.b
    a0, a1, b0, b1 = outer[1], inner[1], outer[2], inner[2]  # an axis of stride zero holds one copy
    a = Operand((outer[0] if a0 else 1, inner[0] if a1 else 1, p.m, p.k), (a0, a1, a_m, a_k), p.starts[0])
    b = Operand((outer[0] if b0 else 1, inner[0] if b1 else 1, p.n, p.k), (b0, b1, b_n, b_k), p.starts[1])
    forms = []
    for x, y, swap in ((a, b, False), (b, a, True)):
        pack_x, pack_y = not x.readable(size), (p.dtype == FLOAT32 and not raw) or not y.readable(size)
        moved = 2.0 * pack_x * x.size * size + (3.0 if parts == 3 else 2.0) * pack_y * y.size * size
        forms.append(Form(x, y, swap, pack_x, pack_y, parts, raw, moved))
    return forms[0] if p.dtype in NARROW or forms[0].traffic <= forms[1].traffic else forms[1]


def plan(queue: Queue, p: Product, tiling: Tiling) -> Run:
    """What computes `p`."""
    config, dtype = tiling.config, C_NAME[p.dtype]
    form = arrange(p, config["PARTS"], "RAW" in config)
    split = depth_of(p.k, tiling.splits, config["BK"]) // config["BK"]
    slices = -(-p.k // config["BK"])
    splits = -(-slices // split)
    pack_x = _packing(queue, form.x, dtype, 1, False) if form.pack_x else None
    pack_y = _packing(queue, form.y, dtype, form.parts, dtype == "float" and form.parts == 1) if form.pack_y else None
    x, y = (form.x if pack_x is None else pack_x.packed), (form.y if pack_y is None else pack_y.packed)
    total = sum_parts(queue, p, splits) if splits > 1 else None
    job = _job(p, form, x, y, config, (slices, split, splits), 0 if pack_y is None else pack_y.step)
    tiles = -(-x.lengths[2] // config["BM"]) * -(-y.lengths[2] // config["BN"]) * p.count * splits
    groups, size = min(tiles, profile_of(queue).compute_units), p.m * p.n * p.count
    maps = empty_buffer(queue, groups * MAPS)
    launch = program(queue, source(p, form, x, y, config, splits > 1), "gemm_wgmma", edit=activate).bind(
        (groups * ITEMS,), (ITEMS,), maps=maps, table=maps, J=job
    )

    def run(c: Tensor, a: Tensor, b: Tensor, *, bias: Tensor | None = None, alpha: float = 1.0, **_: Any) -> None:
        first, second = (b, a) if form.swap else (a, b)
        if pack_x is not None:
            first = pack_x(first)
        if pack_y is not None:
            second = pack_y(second)
        extra = a if bias is None else bias
        if total is None:
            launch(C=c, A=first, B=second, bias=extra, alpha=alpha)
        else:
            part = allocate(queue, (splits * size,), FLOAT32)
            launch(C=part, A=first, B=second, bias=extra, alpha=alpha)
            total(C=c, part=part.buffer, bias=extra, alpha=alpha)

    return run


def _packing(queue: Queue, operand: Operand, dtype: str, parts: int, rounded: bool) -> Pack:
    """How `operand` is packed."""
    w, z, rows, k = operand.lengths
    pitch = pitch_of(k, dtype)
    packed = Operand((w, z, rows, k), (z * rows * pitch, rows * pitch, pitch, 1))
    return packing(queue, packed, operand.strides, dtype, parts, rounded, start=operand.start)


def source(p: Product, form: Form, x: Operand, y: Operand, config: dict[str, int], partial: bool) -> str:
    """The program text for operands laid out as `x` and `y`."""
    narrow, storage, floats = p.dtype in NARROW, C_NAME[p.dtype], partial or p.wide
    flags = {
        "TF32": not narrow,
        "NARROW_OUT": narrow and not floats,
        "PARTIAL": partial,
        "A_ALONG_M": not x.along_k,
        "B_ALONG_N": not y.along_k,
        "RAW_B": form.raw,
    }
    defines: dict[str, int | str] = {name: config[name] for name in ("NW", "WM", "MW", "ST", "PARTS")}
    defines |= {name: 1 for name, on in flags.items() if on}
    even = 8 if narrow and not floats else 2
    whole = p.n % even == 0 and all(s % even == 0 for s in (p.c, p.starts[2], *(axis[3] for axis in p.batch)))
    defines |= {
        "S": storage,
        "OUT": "float" if floats else storage,
        "HAS_BIAS": 0,
        "SWAP": int(form.swap),
        "VEC": int(p.n % 2 == 0 if partial else whole),
    }
    preamble, more = ("", {}) if partial else ending(p, "float")
    macro = product_macro(config["NW"], UNIT_TYPE[storage], not x.along_k, not y.along_k)
    return macro + sources.load("ptx.cl", "wgmma.cl", preamble=preamble, **(defines | more))


def _job(
    p: Product, form: Form, x: Operand, y: Operand, config: dict[str, int], k: tuple[int, int, int], low: int
) -> dict[str, Any]:
    """The fields of the kernel's record: sizes, maps and steps."""
    slices, split, splits = k
    m, n, c = x.lengths[2], y.lengths[2], p.partial_fields if splits > 1 else p.fields
    tiles_m, tiles_n = -(-m // config["BM"]), -(-n // config["BN"])
    walks = [int(n > 1) for operand in (x, y) for n in (operand.lengths[1], operand.lengths[0])]
    fields = {
        "M": m,
        "N": n,
        "slices": slices,
        "split": split,
        "tiles_m": tiles_m,
        "tiles_n": tiles_n,
        "tiles": tiles_m * tiles_n * p.count * splits,
        "inner": c["inner"],
        "parts": splits,
        "az": walks[0],
        "aw": walks[1],
        "bz": walks[2],
        "bw": walks[3],
        "blo": low,
        "row_step": 1 if form.swap else c["c_m"],
        "col_step": c["c_m"] if form.swap else 1,
        "c0": c["c0"],
        "c1": c["c1"],
        "part_step": p.m * p.n * p.count,
    }
    return record(C_NAME[p.dtype], x, y, config, fields, form.copies)


def record(
    dtype: str, x: Operand, y: Operand, config: dict[str, int], fields: dict[str, int], parts: int
) -> dict[str, Any]:
    """The fields of a Job, zero where `fields` has none. y has `parts` copies behind one another."""
    beside = 32 if dtype == "float" else 64  # of the other axis, where that one is in memory
    a_map = x.map_of(dtype, config["BM"] if x.along_k else beside)
    both = y._replace(lengths=(y.lengths[0] * parts, *y.lengths[1:]))
    if parts > 1:
        both = both._replace(strides=(fields["blo"] // y.lengths[0], *y.strides[1:]))
    b_map = both.map_of(dtype, config["BN"] if y.along_k else beside)
    operands = {"adim": _extents(x), "bdim": _extents(y), "astep": _steps(x), "bstep": _steps(y)}
    maps = {"amap": a_map.tolist(), "bmap": b_map.tolist()}
    return {**maps, **operands, "unused": (0,) * 3, **dict.fromkeys(USUAL, 0), **fields}


def _extents(operand: Operand) -> Sequence[int]:
    w, z, rows, k = operand.lengths
    return (k, rows, z, w) if operand.along_k else (rows, k, z, w)


def _steps(operand: Operand) -> Sequence[int]:
    sw, sz, sr, sk = operand.strides
    return (sr if operand.along_k else sk), sz, sw


@cache
def product_macro(
    columns: int,
    kind: str,
    along_m: bool = False,
    along_n: bool = False,
    held: bool = False,
    name: str = "WG_PRODUCT",
    rows_of_four: bool = False,
) -> str:
    """`#define NAME(c, a, b, keep)`: c (64 x columns) = a b, plus c where `keep`.

    OpenCL C cannot spell the accumulators in a loop: c is an array, or with `rows_of_four` one of arrays of four. kind
    "tf32": a is four registers (16 rows by 8 of k per warp), b a descriptor of rows along k. "f16" and "bf16": both are
    descriptors, or with `held` a is four registers (16 rows by 16 of k per warp); `along_m` and `along_n` say which
    operand lies along its other axis in memory.
    """
    sums, held = columns // 2, held or kind == "tf32"
    places = [f"(c)[{i // 4}][{i % 4}]" if rows_of_four else f"(c)[{i}]" for i in range(sums)]
    outputs, registers = ",".join(f'"+f"({place})' for place in places), ",".join(f"%{i}" for i in range(sums))
    if held:
        a, inputs = "{" + ",".join(f"%{sums + i}" for i in range(4)) + "}", 4
        given = ", ".join(f'"r"((a)[{i}])' for i in range(4))
    else:
        a, inputs, given = f"%{sums}", 1, '"l"(a)'
    flags = [] if kind == "tf32" else [along_n] if held else [along_m, along_n]
    tail = "".join(f", {int(flag)}" for flag in flags)
    shape = f"m64n{columns}k{8 if kind == 'tf32' else 16}"
    b, keep = sums + inputs, sums + inputs + 1
    text = (
        f"// @@{{ .reg .pred p; setp.ne.b32 p, %{keep}, 0; wgmma.mma_async.sync.aligned.{shape}.f32.{kind}.{kind} "
        f"{{{registers}}}, {a}, %{b}, p, 1, 1{tail}; }}"
    )
    operands = f'{outputs} : {given}, "l"(b), "r"((int)(keep))'
    return f'#define {name}(c, a, b, keep) asm volatile("{text}" : {operands} : "memory")\n'
