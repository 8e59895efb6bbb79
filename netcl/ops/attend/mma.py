"""Launches of attention_mma.cl: attention on NVIDIA's matrix units, for the layouts that their copies can read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.dtypes import BFLOAT16, C_NAME, FLOAT16, FLOAT32, NARROW
from netcl.core.tensor import Tensor
from netcl.kernels import sources
from netcl.kernels.program import Program, program
from netcl.kernels.route import FIRST, LAST, Route, cannot
from netcl.kernels.tuning import parameters
from netcl.ops.attend.problem import Call, Geometry, arguments, dims, flags, results
from netcl.ops.nvidia import probe
from netcl.ops.nvidia.edit import activate
from netcl.ops.nvidia.precision import UNIT_TYPE, matmul_precision
from netcl.ops.nvidia.wgmma import product_macro

FILES = ("ptx.cl", "philox.cl", "attention_scores.cl", "attention_rows.cl", "attention_tile.cl", "attention_mma.cl")
LIMITS = "for heads of up to 128 elements (64 of float32) and rows that begin at multiples of 16 bytes, not of doubles"
LARGEST = {FLOAT16: 128, BFLOAT16: 128, FLOAT32: 64}  # head sizes whose sums fit in registers


def is_readable(x: Geometry, *tensors: Tensor) -> bool:
    """Whether the units can compute `x` for `tensors`, each with rows of the head size."""
    dtype = tensors[0].dtype
    if x.size != x.width or x.size > LARGEST.get(dtype, 0) or x.scale <= 0:
        return False
    each = 16 // dtype.itemsize
    return not (x.size % each or any(t.offset % each or any(s % each for s in t.strides[:3]) for t in tensors))


def in_pairs(c: Call) -> bool:
    """Whether the mask's values of two keys side by side can be read at once."""
    m = c.marks.mask
    if m is None or m.shape[3] != c.x.keys or m.strides[3] != 1:
        return False
    return not any(n % 2 for n in (c.x.keys, m.offset, *(s for n, s in zip(m.shape[:3], m.strides) if n > 1)))


def routes(c: Call, readable: bool, plan: Callable[[str, Call], Any]) -> list[Route]:
    """The units, the best first. Those that the driver does not build are given up."""
    return [_route(family, c, readable, plan) for family in reversed(probe.FAMILIES)]


def _route(family: str, c: Call, readable: bool, plan: Callable[[str, Call], Any]) -> Route:
    dtype, profile = c.q.dtype, profile_of(c.q.queue)
    if not readable:
        return cannot(family, LIMITS)
    if dtype == FLOAT32 and (family == "wgmma" or matmul_precision() == "highest"):
        return cannot(family, "for 16-bit floats, on mma also for float32 below precision 'highest'")
    if family not in probe.attention(profile):
        return cannot(family, probe.ABSENT)
    parts = sorted(name.lower() for name, _ in flags(c))
    name = " ".join(["attention", family, *(["with", *parts] if parts else [])])
    if probe.given_up(name):
        return cannot(family, "its program did not build")
    pays = probe.serves(family, C_NAME[dtype], profile)
    why, give_up = "" if pays else probe.SLOW, partial(probe.give_up, name)
    return Route(FIRST if pays else LAST, family, partial(plan, family, c), why, give_up)


def tile(family: str, use: str, narrow: bool, size: int, profile: DeviceProfile) -> dict[str, int]:
    """The head size padded to rows of 128 bytes, and from the tuning table the shape of a group's work.

    WARPS of 16 MT rows each, BC columns of a tile, RESIDENT groups that share a multiprocessor's registers.
    """
    least = 64 if narrow else 32
    padded = least if size <= least else 2 * least
    row = parameters(f"{use.lower()}_{family}_{padded if narrow else 'float'}", profile)
    return {"DP": padded, **row}


def _program(
    family: str, use: str, c: Call, length: int, heads: int
) -> tuple[Program, tuple[int, ...], tuple[int, ...]]:
    """The kernel that is named like `use`, its grid for `length` rows of each head, and its group."""
    queue, dtype = c.q.queue, c.q.dtype
    narrow, kind = dtype in NARROW, UNIT_TYPE[C_NAME[dtype]]
    sizes = tile(family, use, narrow, c.x.size, profile_of(queue))
    defines: dict[str, Any] = {f"USE_{use}": 1, "S": C_NAME[dtype], "E": "float", "KIND": f'"{kind}"', "ALIGNED": 1}
    defines |= sizes
    if not narrow:
        defines["TF32"] = 1
    defines |= dict(flags(c)) | ({"BIAS_PAIRS": 1} if in_pairs(c) else {})
    macros, edit = "", None
    if family == "wgmma":
        defines["WARPGROUP"], edit = 1, activate
        macros = product_macro(sizes["BC"], kind, name="WG_SCORES", rows_of_four=True)
        macros += product_macro(sizes["DP"], kind, along_n=True, held=True, name="WG_SPREAD", rows_of_four=True)
    made = program(queue, macros + sources.load(*FILES, **defines), use.lower(), edit=edit)
    items = sizes["WARPS"] * 32
    blocks = -(-length // (sizes["WARPS"] * sizes["MT"] * 16))
    return made, (blocks * items, c.x.batch * heads), (items, 1)


def plan_forward(family: str, c: Call) -> Callable[[Call], Any]:
    """The launch of `attend`. Raises BuildError or UnknownProgram where the driver does not build it."""
    made, grid, group = _program(family, "ATTEND", c, c.x.queries, c.x.heads)
    launch = made.bind(grid, group, results(c))
    return lambda c: launch(**arguments(c), d=made.record("d", **dims(c)))


def plan_backward(family: str, c: Call) -> Callable[..., Any]:
    """The launches of `query_grad` and `key_grad`. Raises BuildError or UnknownProgram where they do not build."""
    made, grid, group = _program(family, "QUERY_GRAD", c, c.x.queries, c.x.heads)
    query_grad = made.bind(grid, group, {"dq": (c.q.shape, c.q.dtype)})
    made, grid, group = _program(family, "KEY_GRAD", c, c.x.keys, c.x.heads // c.x.group)
    key_grad = made.bind(grid, group, dict.fromkeys(("dk", "dv"), (c.k.shape, c.k.dtype)))
    return lambda **given: (query_grad(**given), *key_grad(**given))
