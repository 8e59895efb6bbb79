"""Which matrix units a device has and whether its driver runs our programs for them.

A kernel that faults makes its whole context unusable, so each family is tried once in a child process, on small
products that are compared with NumPy. The answer is kept in the program cache's folder, by device, driver and text of
the kernels. NETCL_MATRIX_UNITS=none|mma|wgmma limits what is used without asking. Run as a module, this file is the
child.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from netcl.core import settings
from netcl.core.device.profile import DeviceProfile
from netcl.kernels import route, sources
from netcl.runtime.cache import cacher

FAMILIES = ("mma", "wgmma")  # in order of preference, the best last
TEXTS = (  # all that the checks run, the sum of split-K's parts among them
    *("ptx.cl", "mma.cl", "wgmma.cl", "pack.cl", "split_k.cl", "common.cl", "half.cl", "bfloat.cl", "memory.cl"),
    *("philox.cl", "attention_scores.cl", "attention_rows.cl", "attention_tile.cl", "attention_mma.cl"),
)
ABSENT = "the device has no such units, or they are switched off"
SLOW = "three TF32 products take this chip longer than an ordinary one"
TIMEOUT = 180.0  # seconds for a child
_allowed: tuple[str, ...] = FAMILIES  # narrowed by `only`
_broken: set[str] = set()  # families that failed after the probe


def available(profile: DeviceProfile) -> tuple[str, ...]:
    """The families of matrix-unit kernels that work on the device, the best last."""
    if not _allowed or profile.vendor != "NVIDIA" or not profile.architecture.startswith("sm_"):
        return ()
    return tuple(f for f in _probed(profile) if f in _allowed and f not in _broken)


def serves(family: str, dtype: str, profile: DeviceProfile) -> bool:
    """Whether the family is worth using: on consumer chips three TF32 products take longer than an ordinary one."""
    return family == "wgmma" or dtype != "float" or profile.architecture in ("sm_80", "sm_90", "sm_100")


def attention(profile: DeviceProfile) -> tuple[str, ...]:
    """The families for which attention_mma.cl works on the device, the best last: products do, and so did its check."""
    return tuple(f for f in available(profile) if f"attention {f}" not in _broken and _attention_probed(profile, f))


def give_up(family: str, reason: Exception) -> None:
    """Use `family` no more in this process, and say so once."""
    if family not in _broken:
        _broken.add(family)
        route.settle("given up", frozenset(_broken))
        warnings.warn(f"matrix units ({family}) are not used: {reason}", stacklevel=3)


def given_up(family: str) -> bool:
    """Whether `give_up` was called for it."""
    return family in _broken


@contextmanager
def only(*families: str) -> Iterator[None]:
    """Within the block no other matrix-unit kernels are used (none at all without arguments): for tests and benchmarks.

    They are used where they are the fastest; `netcl.ops.force` uses them for everything.
    """
    before = _allowed
    _allow(families)
    try:
        yield
    finally:
        _allow(before)


def _allow(families: tuple[str, ...]) -> None:
    global _allowed
    _allowed = families
    route.settle("units", families)


@cache
def _probed(profile: DeviceProfile) -> tuple[str, ...]:
    capability = int(profile.architecture[3:] or 0)
    possible = [
        f for f, least in (("mma", 80), ("wgmma", 90)) if capability == 90 or (f == "mma" and capability >= least)
    ]
    limit = settings.value("NETCL_MATRIX_UNITS")
    if limit is not None:
        return tuple(possible[: FAMILIES.index(limit) + 1]) if limit in FAMILIES else ()
    known = _recall(profile)
    if known is None:
        known = {family: _try(family, profile) for family in possible}
        _remember(profile, known)
    for family in possible:
        if known.get(family, "not tried"):
            give_up(family, RuntimeError(known.get(family, "not tried")))
    return tuple(f for f in possible if not known.get(f, "not tried"))


@cache
def _attention_probed(profile: DeviceProfile, family: str) -> bool:
    if settings.value("NETCL_MATRIX_UNITS") is not None:
        return True
    name, known = f"attention {family}", _recall(profile) or {}
    if name not in known:
        known[name] = _try(name, profile)
        _remember(profile, known)
    if known[name]:
        give_up(name, RuntimeError(known[name]))
    return not known[name]


def _key(profile: DeviceProfile) -> str:
    text = "".join(sources.text(f) for f in TEXTS)
    facts = (profile.name, profile.driver, profile.platform_version, text)
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:32]


def _recall(profile: DeviceProfile) -> dict[str, str] | None:
    with contextlib.suppress(ValueError):
        found = json.loads(cacher.read(f"matrix-units-{_key(profile)}.json") or b"")
        if isinstance(found, dict):
            return {str(k): str(v) for k, v in found.items()}
    return None


def _remember(profile: DeviceProfile, known: dict[str, str]) -> None:
    cacher.write(f"matrix-units-{_key(profile)}.json", json.dumps(known).encode())


def _try(family: str, profile: DeviceProfile) -> str:
    """Run the check of `family` in a child process: "" when it passed, else the reason."""
    command = [sys.executable, "-m", "netcl.ops.nvidia.check", family, profile.name]
    limit = family.split()[-1]
    environment = {**os.environ, "NETCL_MATRIX_UNITS": limit, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    try:
        child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"the check could not run ({type(error).__name__})"
    if child.returncode == 0:
        return ""
    last = (child.stderr or child.stdout).strip().splitlines()
    return f"its check failed with status {child.returncode}: {last[-1] if last else 'no message'}"
