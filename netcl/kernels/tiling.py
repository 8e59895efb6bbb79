"""How a product is cut into tiles: a pure function of sizes and device that weighs the tile sizes of the tuning table.

The cost of a choice is the time in cycles of a compute unit: rounds of tiles times the work of a tile at the rate
measured for it (RATE, multiply-adds per cycle and unit), what each tile and the kernel cost besides (EACH, START), and
what more launches and memory traffic cost. Dividing k among groups (splits) fills a device that has more units than
the product has tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
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


COST = attrgetter("cost")


class Tiling(NamedTuple):
    """A tile (the config of `kernel` in the tuning table) and into how many parts k is divided."""

    cost: float
    kernel: str
    config: dict[str, int]
    splits: int
    depth: int  # of k in a part


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
    for kernel, config in zip(kernels, tuning.configs(kernels, profile), strict=True):
        step = config["BK"] * config.get("SL", 1)  # of k in a group, of every slice that the group is cut into
        tiles = -(-m // config["BM"]) * -(-n // config["BN"]) * count
        limit = max(1, min(most, k // (DEPTH * step), -(-2 * units // tiles)))
        splits = [s for s in {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, max(units // tiles, 1)} if s <= limit]
        depths = [-(-k // (s * step)) * step for s in splits]
        work = _cycles(config, units, [(tiles * s, depth) for s, depth in zip(splits, depths)])
        sums = [LAUNCH + 4.0 * m * n * count * (2 * s + 1) / (TRAFFIC * units) if s > 1 else 0.0 for s in splits]
        costs = [w + again for w, again in zip(work, sums)]
        best = costs.index(min(costs))
        found.append(Tiling(before + costs[best], kernel, config, splits[best], depths[best]))
    return sorted(found, key=COST)


def cut_together(kernels: Sequence[str], profile: DeviceProfile, sizes: Sequence[tuple[int, int, int]]) -> Tiling:
    """The best tiling for products of `sizes` (m, n, k) in one launch, with one size of tiles and k whole."""
    units = max(profile.compute_units, 1)
    found: list[Tiling] = []
    for kernel, config in zip(kernels, tuning.configs(kernels, profile), strict=True):
        step = config["BK"] * config.get("SL", 1)
        groups = [-(-m // config["BM"]) * -(-n // config["BN"]) for m, n, _ in sizes]
        depths = [-(-k // step) * step for _, _, k in sizes]
        mean = sum(g * depth for g, depth in zip(groups, depths, strict=True)) / sum(groups)
        work = max(_cycles(config, units, [(sum(groups), mean), (1, max(depths))]))
        found.append(Tiling(work, kernel, config, 1, max(depths)))
    return min(found, key=COST)


def _cycles(config: dict[str, int], units: int, jobs: Sequence[tuple[int, float]]) -> list[float]:
    """What each job of (tiles, depth of k in a tile) takes: rounds of tiles that a unit computes one after the other,
    and what a tile takes it."""
    together = config.get("GROUPS", 1)  # groups that share a unit
    size, rate, each = config["BM"] * config["BN"], config.get("RATE", UNMEASURED), config.get("EACH", 0)
    start = config.get("START", 0)
    found = []
    for tiles, depth in jobs:
        rounds: float = -(-tiles // units)
        rounds = max(rounds, min(together, ALONE)) if rounds < together else -(-rounds // together) * together
        found.append(rounds * (size * depth / rate + each) + start + FILL)
    return found


def depth_of(k: int, splits: int, step: int) -> int:
    """k per part: a multiple of the step."""
    return -(-k // (splits * step)) * step
