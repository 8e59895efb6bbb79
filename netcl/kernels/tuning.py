"""Which kernel with which sizes on which device: one table, one lookup, no choice by vendor anywhere else.

`tuning.json` maps kernel -> device key -> named sizes, which become `#define`s. The most specific key wins: device
name, architecture, "vendor kind", "kind of N floats" (in a vector register), kind, "default". A user's overlay of the
same form (NETCL_TUNING, or tuning.json in the user's configuration folder; written by `netcl.profiling`) is looked up
before the packaged table at each step. `fit` then makes any config legal on any device, so a device without an entry is
slow, never broken.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from netcl.core import settings
from netcl.core.backend.opencl import Kernel, launch
from netcl.core.device.profile import DeviceProfile, profile_of
from netcl.core.errors import DeviceError
from netcl.core.kernels.primitives import PRIMITIVE_PREAMBLE
from netcl.core.protocols import Queue
from netcl.kernels.program import program

Config = dict[str, int]
COSTS = ("RATE", "GROUPS", "EACH", "START")  # what tiling.py knows of a config, beside its sizes
UNTUNED_GROUP = 64  # local size of a KernelSpec that names none


@dataclass(frozen=True)
class Footprint:
    """What a kernel's sizes cost: work-items of a group, bytes of local memory, and which sizes may shrink how far."""

    needs: Callable[[Config], tuple[int, int]]  # (items, bytes)
    shrink: tuple[tuple[str, int], ...]  # (size, least value), halved in turn; a size stays a multiple of its least


TILE = (("BM", 4), ("BN", 4), ("BK", 4))


def _tiles(bytes_per_k: int) -> Footprint:
    """Of the portable GPU tiles: `bytes_per_k` per row or column and step of k in local memory."""

    def needs(p: Config) -> tuple[int, int]:
        return p["BM"] // p["RM"] * (p["BN"] // p["RN"]), bytes_per_k * p["BK"] * (p["BM"] + p["BN"])

    return Footprint(needs, TILE)


def conv_tiles(bytes_per_k: int) -> Footprint:
    """The same with padded lines, room for a line of sums, and four integers a tap of two steps."""

    def needs(p: Config) -> tuple[int, int]:
        rows, step = p["BM"] // p["RM"], bytes_per_k * p["BK"]
        sums = bytes_per_k // 2 * rows * (p["BN"] + 16)
        local = step * (p["BM"] + 4) + max(step * (p["BN"] + 4), sums) + 32 * p["BK"]
        return rows * (p["BN"] // p["RN"]), local

    return Footprint(needs, TILE)


def _sliced_tiles() -> Footprint:
    """Of tiles of floats whose k is shared by slices of a group, which leave their sums where the tiles were."""

    def needs(p: Config) -> tuple[int, int]:
        tiles, sums = 8 * p["BK"] * (p["BM"] + p["BN"]), 4 * (p["BM"] * p["BN"] + p["BM"])
        return p["SL"] * (p["BM"] // p["RM"]) * (p["BN"] // p["RN"]), max(p["SL"] * tiles, (p["SL"] - 1) * sums)

    return Footprint(needs, (("SL", 1), *TILE))


FOOTPRINTS: dict[str, Footprint] = {
    "matmul_cpu": Footprint(
        lambda p: (1, 4 * ((p["KC"] + p["VW"]) * p["MC"] + 2 * p["VW"] * p["KC"] * p["NP"])),
        (("MC", 12), ("NP", 1), ("KC", 8)),
    ),
    "matmul_gpu": _tiles(8),  # two buffers of floats
    "matmul_gpu_medium": _tiles(8),
    "matmul_gpu_narrow": _tiles(8),
    "matmul_gpu_flat": _tiles(8),
    "matmul_gpu_tall": _tiles(8),
    "matmul_gpu_small": _tiles(8),
    "matmul_gpu_sliced": _sliced_tiles(),
    "matmul_gpu_thin": _sliced_tiles(),
    "matmul_gpu_double": _tiles(16),
    "conv_gpu": conv_tiles(8),
    "conv_gpu_large": conv_tiles(8),
    "conv_gpu_flat": conv_tiles(8),
    "conv_gpu_pixels": conv_tiles(8),
    "conv_gpu_weights": conv_tiles(8),
}


def overlay_path() -> Path | None:
    """Where the user's tuning table is kept, whether or not it exists; None where there is no home."""
    chosen = settings.value("NETCL_TUNING")
    if chosen:
        return Path(chosen).expanduser()
    try:
        from platformdirs import user_config_dir

        return Path(user_config_dir("netcl", appauthor=False)) / "tuning.json"
    except (ImportError, RuntimeError, OSError):
        return None


def _table(text: str, where: str) -> dict[str, dict[str, Config]]:
    """A tuning table from JSON; DeviceError in the house form when it is not one."""
    try:
        table: dict[str, dict[str, Config]] = json.loads(text)
        if not all(
            isinstance(v, int) and v > 0
            for configs in table.values()
            for config in configs.values()
            for v in config.values()
        ):
            raise ValueError("a size is not a positive integer")
    except (ValueError, AttributeError) as error:
        raise DeviceError(
            f"tuning: expected kernel -> device -> sizes as JSON in {where}, got: {error}; repair or delete the file."
        ) from None
    return table


@cache
def tables() -> tuple[dict[str, dict[str, Config]], ...]:
    """The user's overlay if there is one, then the packaged table. `tables.cache_clear()` reads them again."""
    packaged = json.loads((resources.files("netcl.kernels") / "tuning.json").read_text(encoding="utf-8"))
    path = overlay_path()
    try:
        return (packaged,) if path is None else (_table(path.read_text(encoding="utf-8"), str(path)), packaged)
    except OSError:  # no overlay
        return (packaged,)


def parameters(kernel: str, profile: DeviceProfile) -> Config:
    """The sizes of `kernel` for a device."""
    return configs((kernel,), profile)[0]


def configs(kernels: Sequence[str], profile: DeviceProfile) -> list[Config]:
    """The sizes of each of `kernels` for a device: the most specific config, made legal by `fit`.

    Sizes that a config of the user's does not name come from the packaged table; costs belong to a config as a whole.
    """
    vector = f"{profile.kind} of {profile.vector} floats"
    maker = f"{profile.vendor} {profile.kind}"
    keys = (profile.name, profile.architecture, maker, vector, profile.kind, "default")  # the most specific first
    known, found = tables(), []
    for kernel in kernels:
        rows = [table.get(kernel, {}) for table in known]
        named = [row[key] for key in keys for row in rows if key in row]
        if not named:
            listed = ", ".join(sorted(known[-1]))
            raise DeviceError(f"tuning: expected a kernel of the table ({listed}), got {kernel!r}.")
        ours = next((rows[-1][key] for key in keys if key in rows[-1]), {})
        config = {name: size for name, size in ours.items() if name not in COSTS} | named[0]
        cost = FOOTPRINTS.get(kernel)
        items, local = (math.inf, 0) if cost is None else cost.needs(config)
        legal = items <= profile.max_work_group and local <= profile.local_mem
        found.append(config if legal else fit(kernel, config, profile))
    return found


def fit(kernel: str, config: Config, profile: DeviceProfile) -> Config:
    """`config` with sizes halved until a group fits the device's work-group and local-memory limits.

    Kernels without an entry in FOOTPRINTS have their WG clamped to a power of two that the device can run.
    """
    cost = FOOTPRINTS.get(kernel)
    if cost is None:
        config = dict(config)
        while config.get("WG", 1) > profile.max_work_group:
            config["WG"] //= 2
        return config
    return shrink(kernel, config, cost, profile)


def shrink(kernel: str, config: Config, cost: Footprint, profile: DeviceProfile) -> Config:
    """`config` with sizes halved until `cost` is within the device's limits. Raises DeviceError where none is."""
    config = dict(config)
    items, local = cost.needs(config)
    while items > profile.max_work_group or local > profile.local_mem:
        before = dict(config)
        for name, least in cost.shrink:
            config[name] = max(least, config[name] // 2 // least * least)
            items, local = cost.needs(config)
            if items <= profile.max_work_group and local <= profile.local_mem:
                break
        if config == before:
            raise DeviceError(
                f"{kernel}: expected a device with at least {items} work-items a group and {local} bytes of local "
                f"memory, got {profile.max_work_group} and {profile.local_mem} on {profile.name}."
            )
    return config


# -- records by the documented names -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelSpec:
    """A hand-written kernel: `src` sees the functions of the primitive table (ADD, RELU, ...) over float."""

    name: str
    src: str
    shape_sig: tuple[Any, ...] = ()
    workgroup_size: tuple[int, ...] | None = None
    extra_flags: tuple[str, ...] = ()
    tune: bool = True

    @property
    def source(self) -> str:
        """The complete text of the program."""
        half = "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n" if re.search(r"\bhalf\s+\w", self.src) else ""
        return f"{half}{PRIMITIVE_PREAMBLE}{self.src}"

    def build(self, queue: Queue) -> Kernel:
        """The built kernel, from the program cache when it is there."""
        return program(queue, self.source, self.name, self.extra_flags).kernel

    def run(self, queue: Queue, global_size: Sequence[int], local_size: Sequence[int] | None, *args: Any) -> None:
        """Launch over `global_size`, rounded up to whole groups (so the kernel must guard its index)."""
        group = tuple(local_size or self.workgroup_size or (UNTUNED_GROUP, *(1,) * (len(global_size) - 1)))
        limit = profile_of(queue).max_work_group
        while int(np.prod(group)) > limit:
            widest = max(range(len(group)), key=lambda axis: group[axis])
            group = tuple(max(1, n // 2) if axis == widest else n for axis, n in enumerate(group))
        launch(self.build(queue), queue, tuple(-(-n // g) * g for n, g in zip(global_size, group)), group, *args)


@dataclass
class KernelSelector:
    """An ordered list of rules per op: the first whose condition(shapes, profile) holds names the kernel."""

    rules: dict[str, list[tuple[Callable[..., bool], Any]]] = field(default_factory=dict)

    def register(self, op_name: str, condition: Callable[..., bool], kernel: Any) -> None:
        """Add a rule behind those there are."""
        self.rules.setdefault(op_name, []).append((condition, kernel))

    def select(self, op_name: str, shapes: Any, profile: DeviceProfile) -> Any:
        """The kernel of the first rule that holds. Raises DeviceError when none does."""
        for condition, kernel in self.rules.get(op_name, ()):
            if condition(shapes, profile):
                return kernel
        raise DeviceError(f"KernelSelector: no rule of {op_name!r} holds for {shapes} on {profile.name}.")
