"""How kernels of norms are laid over a device: their programs, vectors, groups and shares of work."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from netcl.core.device.profile import DeviceProfile
from netcl.core.dtypes import C_NAME, DType
from netcl.core.layout import Shape
from netcl.core.protocols import Launch, Queue
from netcl.core.tensor import Tensor
from netcl.kernels import sources
from netcl.kernels.grid import width_of
from netcl.kernels.program import New, Program, program
from netcl.kernels.route import declare, kept
from netcl.kernels.streaming import is_streamed
from netcl.ops.normalization.problem import Types, flags_of

ByName = dict[str, Tensor]
OPTIONS = ("-cl-mad-enable",)
NORM = declare("norm", "registers", "passes")
ELEMENTS_PER_ITEM = 16384  # that a CPU device's work-item should at least walk over


def kernel(
    queue: Queue, file: str, name: str, types: Types, flags: tuple[str, ...], use: str = "", **sizes: Any
) -> Program:
    """The kernel `name` of `file` for these element types; `flags` become defines without a value.

    `use` names the program where several kernels are built together.
    """
    return program(queue, _source(file, use or name.upper(), types, flags, **sizes), name, OPTIONS)


@lru_cache(maxsize=1024)
def _source(file: str, use: str, types: Types, flags: tuple[str, ...], **sizes: Any) -> str:
    defines: dict[str, Any] = {**dict.fromkeys(flags, 1), f"USE_{use}": 1}
    defines |= {name: C_NAME[t] for name, t in zip("SEW", types)} | sizes
    shared = ("memory.cl", "norms_cpu.cl") if file.endswith("_cpu.cl") else ("norms_gpu.cl",)
    return sources.load(*shared, file, **defines)


def by_name(made: Program, grid: tuple[int, ...], group: tuple[int, ...], new: New, **known: Any) -> Launch[ByName]:
    """A launch that gives its new tensors by name; rstd stands in for results of a gradient that nobody wants."""
    launch = made.bind(grid, group, new, **known)
    unwanted = {"dx", "dw_part", "db_part"} & set(made.kernel.signature.names) - set(new)

    def run(**given: Any) -> ByName:
        found = launch(**dict.fromkeys(unwanted, given["rstd"].buffer), **given)
        return dict(zip(new, found if len(new) > 1 else (found,)))

    return run


def stream_flag(shape: Shape, row: int, types: Types, profile: DeviceProfile) -> tuple[str, ...]:
    """STREAM where the rows of a new result are written past a CPU's caches."""
    return flags_of(STREAM=is_streamed(profile, shape, row, types.stored, types.compute))


def cpu_vector(compute: DType, profile: DeviceProfile) -> dict[str, Any]:
    """Defines of the vector that fills a CPU's registers."""
    width = width_of(compute, profile.vector)
    return {"VECTOR": f"{C_NAME[compute]}{width}", "VW": width}


def gpu_vector(compute: DType, vector: bool) -> dict[str, Any]:
    """Defines of a GPU's vector: four elements, or one where lengths or offsets do not allow four."""
    return {"VECTOR": f"{C_NAME[compute]}{4 if vector else ''}", "VEC": 4 if vector else 1}


def power_of_two(n: int) -> int:
    """The smallest power of two of at least `n`."""
    return 1 << max(n - 1, 0).bit_length()


def row_group(n: int, vec: int, profile: DeviceProfile, keep: bool = True) -> dict[str, Any]:
    """Work-items per row (WG), rows per group (ROWS) and vectors per work-item (PER) for rows of `n` elements.

    PER 0 stands for rows that do not fit in registers, or are not kept there. Few values make few programs.
    """
    limit = profile.group(256)
    vectors = -(-n // vec)
    items = min(limit, max(min(32, limit), power_of_two(-(-vectors // 4))))
    per = next((p for p in (1, 4, 8) if vectors <= p * items), 0)
    return {"WG": items, "ROWS": max(1, limit // items), "PER": kept(NORM, per) if keep else 0}


def split_rows(rows: int, n: int, units: int) -> int:
    """Rows per work-item on a CPU device: enough to be worth a launch, few enough to keep all units busy."""
    return max(1, min(-(-ELEMENTS_PER_ITEM // max(n, 1)), -(-rows // (8 * units))))


def partial_rows(rows: int, units: int) -> int:
    """Rows per work-item of a CPU device where every work-item keeps partial sums."""
    return max(1, -(-rows // (16 * units)))
