"""How a product is cut into tiles: a pure function of sizes and device that weighs the tile sizes of the tuning table.

The cost of a choice is the time in cycles of a compute unit: rounds of tiles times the work of a tile at the rate
measured for it (RATE, multiply-adds per cycle and unit), what each tile and the kernel cost besides (EACH, START), and
what more launches and memory traffic cost. Dividing k among groups (splits) fills a device that has more units than
the product has tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from netcl.core.device.profile import DeviceProfile
from netcl.kernels import tuning

LAUNCH = 15000.0  # cycles that a launch more costs the host or, recorded, the device
FILL = 1500.0  # cycles until the first step of a tile is there, and after the last
TRAFFIC = 20.0  # bytes per cycle and compute unit to and from memory
MOST_SPLITS = 64
ALONE = 2.5  # a group that has a unit to itself takes as long as so many that share it
UNMEASURED = 50  # RATE of a config that names none
DEPTH = 4  # least number of steps of k in a split


class Tiling(NamedTuple):
    """A tile (the config of `kernel` in the tuning table) and into how many parts k is divided."""

    cost: float
    kernel: str
    config: dict[str, int]
    splits: int


def cut(
    kernels: Sequence[str],
    profile: DeviceProfile,
    m: int,
    n: int,
    k: int,
    count: int,
    extra: float = 0.0,
    most: int = MOST_SPLITS,
) -> list[Tiling]:
    """The best tiling of each kernel for `count` products, cheapest first. `extra` bytes are moved in a launch
    before."""
    units = max(profile.compute_units, 1)
    before = LAUNCH + extra / (TRAFFIC * units) if extra else 0.0
    found: list[Tiling] = []
    for kernel in kernels:
        config = tuning.parameters(kernel, profile)
        tiles = -(-m // config["BM"]) * -(-n // config["BN"]) * count
        best = min(
            _splits(tiles, k, config, units, most), key=lambda s: _cost(tiles, s, m * n * count, k, config, units)
        )
        found.append(Tiling(before + _cost(tiles, best, m * n * count, k, config, units), kernel, config, best))
    return sorted(found, key=lambda t: t.cost)


def cut_together(kernels: Sequence[str], profile: DeviceProfile, sizes: Sequence[tuple[int, int, int]]) -> Tiling:
    """The best tiling for products of `sizes` (m, n, k) in one launch, with one size of tiles and k whole."""
    units = max(profile.compute_units, 1)
    found: list[Tiling] = []
    for kernel in kernels:
        config = tuning.parameters(kernel, profile)
        groups = [-(-m // config["BM"]) * -(-n // config["BN"]) for m, n, _ in sizes]
        each = [_tile(k, 1, config) for _, _, k in sizes]
        mean = sum(g * e for g, e in zip(groups, each, strict=True)) / sum(groups)
        work = max(_rounds(sum(groups), config, units) * mean, _rounds(1, config, units) * max(each))
        found.append(Tiling(work + config.get("START", 0) + FILL, kernel, config, 1))
    return min(found, key=lambda t: t.cost)


def _splits(tiles: int, k: int, config: dict[str, int], units: int, limit: int) -> list[int]:
    most = min(limit, k // (DEPTH * _step(config)), -(-2 * units // tiles))
    return [s for s in {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, max(units // tiles, 1)} if s <= max(most, 1)]


def _step(config: dict[str, int]) -> int:
    """What a group's share of k is a multiple of: the depth of a step, of every slice that the group is cut into."""
    return config["BK"] * config.get("SL", 1)


def _cost(tiles: int, splits: int, size: int, k: int, config: dict[str, int], units: int) -> float:
    work = _rounds(tiles * splits, config, units) * _tile(k, splits, config) + config.get("START", 0) + FILL
    again = LAUNCH + 4.0 * size * (2 * splits + 1) / (TRAFFIC * units) if splits > 1 else 0.0
    return work + again


def _rounds(groups: int, config: dict[str, int], units: int) -> float:
    """Tiles that a unit computes one after the other."""
    together = config.get("GROUPS", 1)  # groups that share a unit
    rounds = -(-groups // units)
    return max(rounds, min(together, ALONE)) if rounds < together else -(-rounds // together) * together


def _tile(k: int, splits: int, config: dict[str, int]) -> float:
    """What a tile takes a unit."""
    return config["BM"] * config["BN"] * depth_of(k, splits, _step(config)) / config.get(
        "RATE", UNMEASURED
    ) + config.get("EACH", 0)


def depth_of(k: int, splits: int, step: int) -> int:
    """k per part: a multiple of the step."""
    return -(-k // (splits * step)) * step
